"""Users find their page by what they type, in the search of the site itself."""

import json
from pathlib import Path

import pytest
import zensical

from website.build import SITE, build
from website.checks.questions import QUESTIONS, questions, ranked
from website.compact import place, titled
from website.synonyms import NAMES, SYNONYMS


TEMPLATES = Path(zensical.__file__).parent / "templates"


@pytest.mark.slow
def test_each_question_finds_its_page_among_the_first_two():
    build()
    assert questions(SITE).wrong == []
    places = {
        x["location"] for x in json.loads((SITE / "search.json").read_text())["items"]
    }
    assert {*SYNONYMS, *NAMES} <= places


def test_there_are_forty_questions():
    assert len(QUESTIONS) >= 40


def item(location, title, text=""):
    return {"location": location, "level": 1, "title": title, "text": text}


@pytest.fixture
def site(tmp_path):
    """The worker of the theme, with an index of three pages."""
    folder = "assets/javascripts/workers"
    (tmp_path / folder).mkdir(parents=True)
    (worker,) = (TEMPLATES / folder).glob("search.*.js")
    (tmp_path / folder / worker.name).write_bytes(worker.read_bytes())
    items = [
        item("a/", "Clipping", "of gradients"),
        item("b/", "Weight decay"),
        item("c/", "Optimizers", "with weight decay"),
    ]
    items = [x | {"path": [], "tags": []} for x in items]
    config = {"lang": ["en"], "separator": r"[\s_]+"}
    index = {"config": config, "items": items}
    (tmp_path / "search.json").write_text(json.dumps(index))
    return tmp_path


def test_titles_come_before_texts_in_the_search_of_the_theme(site):
    assert ranked(site, ["weight decay", "grad", "nothing"]) == [
        ["b/", "c/"],
        ["a/"],
        [],
    ]


def test_a_question_that_finds_another_page_is_named(site):
    wrong = questions(site).wrong
    said = "`weight decay` finds b/, c/, and not weight_decay/"
    assert said in wrong and len(wrong) == len(QUESTIONS)


@pytest.mark.parametrize(
    "place, title, shown",
    [
        ("mistakes/#sam", "sam", "Mistake: sam"),
        ("reference/states/#stepax.SAMState", "SAMState", "class SAMState"),
        ("reference/n/#stepax.Gumbel.sample", "sample", "Method of Gumbel: sample"),
        ("reference/wrappers/#stepax.contrib.sam", "sam", None),
        ("cards/sgd/", "sgd", "sgd: SGD with momentum"),
        ("masks/", "Masks", None),
    ],
)
def test_the_function_of_a_name_comes_before_what_only_begins_so(place, title, shown):
    assert titled({"location": place, "title": title}) == shown


def test_ties_show_guides_first_and_evidence_last():
    order = ["masks/", "cards/lion/", "reference/losses/#a", "reference/states/#b"]
    order += ["evidence/bench/"]
    assert sorted(reversed(order), key=place) == order

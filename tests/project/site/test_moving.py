"""The data of "Watch them move"."""

import json
import re

import numpy as np
import pytest
from inside import ROWS

from website import moving
from website.cards import measure, sources
from website.cards.problems import START


DOCS = sources.ROOT / "docs"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cards")
    names = ("sgd", "muon", "polyak_sgd")
    return {name: measure.measured(ROWS[name], cache) for name in names}


def test_what_is_drawn_on_the_valley_is_shown(measured):
    shown = moving.content(measured)["optimizers"]
    assert list(shown) == ["sgd", "polyak_sgd"]  # muon is for matrices
    for name, paths in (("sgd", 5), ("polyak_sgd", 1)):  # which has no rate
        rate, text = shown[name]
        points = moving.decoded(text).reshape(paths, measure.STEPS + 1, 2)
        np.testing.assert_allclose(points[:, 0], [START] * paths, atol=1e-4)
        assert rate == measured[name]["rate"]


def test_steps_wrap_and_are_undone():
    points = np.array([[4.0, -4.0], [-4.0, 4.0], [0.125, 3.5]])
    np.testing.assert_array_equal(moving.decoded(moving.encoded(points)), points)


def test_the_file_is_small(measured):
    text = json.dumps(moving.content({name: measured["sgd"] for name in ROWS}))
    optimizers = sum(row.kind == "optimizer" for row in ROWS.values())
    assert len(text) / len(ROWS) * optimizers < 210_000


def test_the_script_finds_what_the_page_has():
    page, script = (DOCS / "moving.md").read_text(), DOCS / "assets" / "moving.js"
    code = script.read_text()
    for name in re.findall(r'find\("(\w+)"\)', code):
        assert f'class="moving-{name}' in page
    for name in re.findall(r"FIRST = \[(.*)\]", code)[0].replace('"', "").split(", "):
        assert ROWS[name].kind == "optimizer"
    lines = [x for x in code.splitlines() if x.strip() and x.strip()[:2] != "//"]
    assert len(lines) <= 150
    assert "evidence" in page[:100]

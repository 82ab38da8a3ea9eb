"""The checks of the built site that need no browser find what was planted."""

import pytest

from website import checks
from website.checks import files
from website.checks.browser import chromium
from website.checks.programs import blocks, exists, mistakes
from website.checks.report import Row, place


GOOD = """<script src="assets/a.js"></script><h2 id="top"></h2><a href="#top">a</a>
<a href="page/#here">b</a><a href="https://arxiv.org">c</a><img src="a.png" alt="d">"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "page").mkdir()
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "index.html").write_text(GOOD)
    (tmp_path / "page" / "index.html").write_text(
        '<p id="here"></p><a href="..#top"></a><a href="../a.png"></a><a href="."></a>'
    )
    return tmp_path


def wrong(site):
    rows = files.in_files(site, {"index.md": "README.md", "page.md": "docs/rates.md"})
    return [line for row in rows for line in row.wrong]


def test_a_right_site_passes(site):
    assert wrong(site) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"#top', '"#gone', "`#gone` leads nowhere"),
        ("page/#here", "page/#gone", "`page/#gone` leads nowhere"),
        ("page/#here", "gone/", "`gone/` leads nowhere"),
        ('"a.png', '"gone.png', "there is no picture `gone.png`"),
        ('alt="d"', "", "the picture `a.png` has no text"),
        ("assets/a.js", "https://cdn.org/a.js", "loads https://cdn.org/a.js"),
        ("assets/a.js", "//cdn.org/a.js", "loads //cdn.org/a.js"),
    ],
)
def test_a_planted_mistake_is_found(site, old, new, said):
    (site / "index.html").write_text(GOOD.replace(old, new))
    found = [line.partition(": ")[::2] for line in wrong(site)]
    assert found == [("README.md:1", said)]


def test_styles_load_nothing_from_elsewhere(site):
    (site / "a.css").write_text("x { src: url(https://fonts.org/a.woff2) }")
    assert wrong(site) == ["a.css:1: loads https://fonts.org/a.woff2"]


def test_the_line_of_the_source_is_named():
    assert place("docs/a.md", "gone", "a\nb gone\n") == "docs/a.md:2"
    assert place("docs/a.md", "other", "a\nb gone\n") == "docs/a.md:1"


PAGE = (
    "# A\n\n```python\nimport stepax\n```\ntext\n```sh\nls\n```\n```python\nx\ny\n```\n"
)


def test_programs_are_found_with_their_lines():
    assert list(blocks(PAGE)) == [(3, "import stepax\n"), (10, "x\ny\n")]
    shown = "\n```text\nAttributeError: there is no such name\n```\n"
    assert len(list(blocks(PAGE + shown))) == 1


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("x = (1,\n", (1, "'(' was never closed")),
        ("stepax.adamww(1)", (1, "there is no `stepax.adamww`")),
        ("x\nstepax.contrib.moun", (2, "there is no `stepax.contrib.moun`")),
        ("import stepax as optax\noptax.adan_(1)", (2, "there is no `stepax.adan_`")),
        ("from stepax import adamww", (1, "there is no `stepax.adamww`")),
        ("from stepax.tree import gett", (1, "there is no `stepax.tree.gett`")),
        ("import optax\noptax.adan_(1)", None),
        ("try:\n    stepax.adamww\nexcept AttributeError:\n    pass", None),
        ("stepax.adamw(1).init(2).x", None),
        ("stepax.tree.get(x, 'y').nothing", None),
    ],
)
def test_a_program_with_a_wrong_name_is_found(program, said):
    assert mistakes(program) == ([said] if said else [])


def test_moved_and_later_names_exist():
    assert exists("stepax.dpsgd") and exists("stepax.minimize")
    assert exists("stepax.MultiSteps.has_updated")


def test_a_browser_that_is_named_must_be_there(monkeypatch):
    monkeypatch.setenv("CHROMIUM", "/no/chromium")
    with pytest.raises(SystemExit, match="CHROMIUM=/no/chromium is no program"):
        chromium()


def test_without_a_browser_the_rest_is_checked(monkeypatch, capsys, site):
    monkeypatch.setattr(checks, "chromium", lambda: None)
    monkeypatch.setattr(checks, "SITE", site)
    monkeypatch.setattr(checks, "planted", lambda: Row("planted", 0, []))
    monkeypatch.setattr(checks, "of_leaderboard", lambda: Row("figures", 0, []))
    monkeypatch.setattr(checks, "questions", lambda site: Row("questions", 0, []))
    assert checks.check({"index.md": "README.md", "page.md": "docs/rates.md"}, []) == 0
    said = capsys.readouterr().out
    assert "no browser" in said and "CHROMIUM=/path" in said
    (site / "a.png").unlink()
    assert checks.check({"index.md": "README.md"}, []) == checks.FILES

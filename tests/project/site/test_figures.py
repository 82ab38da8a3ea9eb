"""Figures in README.md and docs are backed by evidence, and agree with it."""

import re

from inside import INSTALLS
from pages import ROOT

from website.tables import figures, user_reports


def test_every_figure_in_prose_is_backed_and_is_what_the_evidence_says():
    """If this fails, run `python -m website.tables.figures` and read what it says."""
    assert [*figures.wrong(), *user_reports.wrong()] == []


def test_a_figure_without_evidence_is_found():
    for sentence in (
        "A step takes 1.7 ms.",
        "It needs 0.56 of Optax's time.",
        "It takes 3.3 times as long.",
        "Compilation takes 2 to 6 s.",
        "about a tenth of the time",
    ):
        assert figures.MEASURED.search(sentence), sentence
    for sentence in ("in 10 steps", "a decay of 0.9", "within 25 % of the best"):
        assert not figures.MEASURED.search(sentence), sentence


def test_a_page_that_says_something_else_is_named(monkeypatch):
    claim = figures.Claim("README.md", lambda: "a step takes 0.123 of the time")
    monkeypatch.setattr(figures, "CLAIMS", (claim,))
    assert any("'a step takes 0.123" in x for x in figures.wrong())


def test_what_readers_install_exists():
    """One constant says where from; see `INSTALLS` at a release."""
    pattern = re.compile(r"pip install \"?(\.|stepax)(?=[\[\"\s`])")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wrong = [
        f"{page.name}: {found[0]}"
        for page in pages
        for found in pattern.finditer(page.read_text())
        if found[1] != INSTALLS
    ]
    assert not wrong


def test_each_page_of_a_study_says_at_which_commit_it_ran():
    command = re.compile(r"python -m studies\.(\w+(?:\.\w+)?)")
    listed = (ROOT / "studies" / "README.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text()
        names = set(command.findall(text))
        # Of these the page says what they do, and no result.
        names -= {"kills", "checkpoint_speed"}
        assert not names or re.search(r"commits? `[0-9a-f]{8}`", text), page.name
        missing = {
            x for x in names if f"`{x}" not in listed and f", `{x}" not in listed
        }
        assert not missing, f"studies/README.md has no row for {missing}"

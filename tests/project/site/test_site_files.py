"""What the site has beside its pages: programs to copy, text for language models."""

import re

import pytest
from pages import ROOT, blocks, fenced, pages

from website import llms, scripts


@pytest.mark.parametrize("page", [x for x in pages() if blocks(x)])
def test_a_page_says_which_of_its_blocks_are_programs(page, tmp_path):
    """The browser joins these to one script: see `copying` in website/checks."""
    text = (ROOT / page).read_text()
    (tmp_path / "a.md").write_text(text)
    scripts.write(tmp_path, {"a.md": page})
    (numbers,) = re.findall(r'data-programs="(.*)"', (tmp_path / "a.md").read_text())
    every = [x.text for x in fenced(ROOT / page)]
    chosen = [every[int(i)].strip() for i in numbers.split()]
    assert chosen == [x.strip() for x in blocks(page)]


def test_a_page_without_programs_has_no_buttons(tmp_path):
    (tmp_path / "b.md").write_text("# B\n\n```text\nx\n```\n")
    scripts.write(tmp_path, {"b.md": "docs/b.md"})
    assert "data-programs" not in (tmp_path / "b.md").read_text()


def test_each_page_has_a_line_for_language_models(tmp_path, monkeypatch):
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: N\nsite_description: D\nnav:\n- Home: index.md\n- S:\n  - P: p.md\n"
    )
    (tmp_path / "index.md").write_text("# N\n\nDoes `x` with [y](y.md). And more.\n")
    head = "---\nhide:\n  - toc\n---\n\n"
    (tmp_path / "p.md").write_text(f"{head}# P\n\n<b>\n\nOne thing: this.\n")
    monkeypatch.setattr(llms, "CONFIG", tmp_path / "mkdocs.yml")
    llms.write(tmp_path, {"index.md": "README.md"})
    assert (tmp_path / "llms.txt").read_text() == (
        "# N\n\n> D\n\n## Home\n\n- [Home](./): Does `x` with y.\n\n"
        "## S\n\n- [P](p/): One thing: this.\n"
    )
    full = (tmp_path / "llms-full.txt").read_text()
    assert (
        full.startswith("# N\n")
        and "\nstepax.adamw(learning_rate: ScalarOrSchedule | None, b1:" in full
    )
    assert "\nb1, b2: decay rates of the EMAs" in full


def test_a_page_that_begins_with_a_question_is_told_by_it():
    assert llms.summary("# A\n\nWhich one?\nAnd more.\n") == "Which one?"

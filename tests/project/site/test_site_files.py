"""What the site has beside its pages: notebooks, and text for language models."""

import json

import pytest
from pages import ROOT, blocks, pages

from website import llms, notebooks


@pytest.mark.parametrize("page", [x for x in pages() if blocks(x)])
def test_a_notebook_has_the_programs_and_the_text_of_its_page(page):
    found = json.loads(notebooks.notebook((ROOT / page).read_text()))
    cells = found["cells"]
    code = [x["source"] for x in cells if x["cell_type"] == "code"]
    assert code == [x.strip() for x in blocks(page)]
    title = (ROOT / page).read_text().split("\n")[0]
    assert cells[0]["source"].startswith(title)
    assert len({x["id"] for x in cells}) == len(cells)


def test_a_notebook_is_offered_at_the_end_of_its_page(tmp_path):
    (tmp_path / "a.md").write_text("# A [b](b.md)\n\n```python\nx = 1\n```\n")
    (tmp_path / "b.md").write_text("# B\n")
    notebooks.write(tmp_path, {"a.md": "docs/a.md", "b.md": "docs/b.md"})
    assert [x.name for x in (tmp_path / "notebooks").iterdir()] == ["a.ipynb"]
    assert "[Open as notebook](notebooks/a.ipynb)" in (tmp_path / "a.md").read_text()
    cells = json.loads((tmp_path / "notebooks" / "a.ipynb").read_text())["cells"]
    assert [x["source"] for x in cells] == ["# A b", "x = 1"]


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

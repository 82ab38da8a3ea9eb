"""A page says first what a reader decides, in the words of some minutes."""

import markdown
import pytest
import yaml

from website.build import CONFIG
from website.llms import sections
from website.stage import ROOT, pages, staged_path
from website.words import words


CEILING = 1_500
# One looks things up there by name, or what a sentence elsewhere is measured by.
LONG = ("Reference", "Evidence")
EXTENSIONS = ["attr_list", "md_in_html", "tables", "pymdownx.superfences"]


def guides() -> dict[str, str]:
    """The pages that are read from the top: staged path to source."""
    nav = sections(yaml.safe_load(CONFIG.read_text())["nav"])
    looked_up = {page for title, found in nav if title in LONG for _, page in found}
    sources = [*pages().values(), "CONTRIBUTING.md"]
    return {staged_path(x): x for x in sources if staged_path(x) not in looked_up}


@pytest.mark.parametrize("page", guides())
def test_a_page_is_read_in_minutes(page):
    text = (ROOT / guides()[page]).read_text()
    html = markdown.markdown(text, extensions=EXTENSIONS)
    found = words(f"<article>{html}</article>")
    assert 0 < found <= CEILING, (
        f"{found} words: split it, or move what is measured to docs/evidence"
    )


def test_evidence_is_not_in_a_guide():
    evidence = {x for x in pages() if x.startswith("evidence/")}
    assert evidence and not evidence & set(guides())


def test_words_are_those_that_a_reader_sees():
    text = "<p>No</p><article><h1>A b</h1><pre><span>x</span>=<b>1</b></pre>"
    assert words(f"{text}<svg>y</svg><script>z</script><td>c<td>d</article>e") == 5

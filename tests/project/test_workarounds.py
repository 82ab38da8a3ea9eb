"""The page of workarounds names each file that has one."""

import re
import tokenize

from selection import ROOT


STEPAX = ROOT / "stepax"
PAGE = STEPAX / "_engine" / "WORKAROUNDS.md"
# In a comment: what a compiler would do otherwise, or a version.
SIGN = re.compile(r"XLA (would|copies|does not|joins|splits)|JAX 0\.\d|Python 3\.\d")


def named() -> set[str]:
    rows = [x for x in PAGE.read_text().splitlines() if x.startswith("| `")]
    names = re.findall(r"`([\w/]+\.py)`", "".join(x.split("|")[1] for x in rows))
    inside = [STEPAX / "_engine" / x for x in names]
    return {
        str((x if x.exists() else STEPAX / name).relative_to(STEPAX))
        for x, name in zip(inside, names, strict=True)
    }


def test_each_row_names_a_file_and_a_version_or_an_occasion():
    assert not [name for name in named() if not (STEPAX / name).exists()]
    rows = [x.split("|") for x in PAGE.read_text().splitlines() if x[:3] == "| `"]
    assert len(rows) > 15
    assert not [x for x in rows if not re.search(r"JAX \d|when|every night", x[3])]


def test_each_file_with_a_workaround_has_a_row():
    found = set()
    for file in STEPAX.rglob("*.py"):
        with file.open("rb") as source:
            for token in tokenize.tokenize(source.readline):
                if token.type == tokenize.COMMENT and SIGN.search(token.string):
                    found.add(str(file.relative_to(STEPAX)))
    hint = "add a row to `stepax/_engine/WORKAROUNDS.md`"
    assert not found - named(), f"{hint} for {sorted(found - named())}"

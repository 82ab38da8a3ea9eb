"""Mistakes that are planted in a page, to see that each is found where it is."""

import subprocess
import sys
import tempfile
from pathlib import Path

from ..build import readable
from ..stage import rewrite, with_names
from .programs import blocks, mistakes
from .report import Row


SOURCE, LINE = "docs/planted.md", 5
CONFIG = "site_name: N\ndocs_dir: d\nsite_dir: s\ntheme:\n  name: material\n"

PLANTED = {
    "a link": "[a](gone.md)",
    "a picture": "![a](gone.png)",
    "an anchor": "[a](index.md#gone)",
    "a name": "`stepax.adamww`",
    "a program": "```python\nx = stepax.adamww(1)\n```",
}


def planted() -> Row:
    """Each planted mistake is named with its file and line."""
    wrong = []
    for what, text in PLANTED.items():
        line = LINE + text.startswith("```")
        said = found(f"# A\n\nText.\n\n{text}\n")
        if f"{SOURCE}:{line}" not in said:
            told = f"{what}, planted in {SOURCE}:{line}, is not found: {said!r}"
            wrong.append(told)
    return Row("planted mistakes are found", len(PLANTED), wrong)


def found(text: str) -> str:
    """What the build and the checks say of a page."""
    said = [*rewrite(text, SOURCE)[2], *with_names(text, SOURCE)[1]]
    for before, block in blocks(text):
        said += [f"{SOURCE}:{before + at}: {x}" for at, x in mistakes(block)]
    return "\n".join(said) or built(text)


def built(text: str) -> str:
    """What the builder says of a page beside an empty one."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "d").mkdir()
        (Path(folder) / "mkdocs.yml").write_text(CONFIG)
        (Path(folder) / "d" / "index.md").write_text("# N\n")
        (Path(folder) / "d" / "planted.md").write_text(text)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return readable(done.stdout + done.stderr, {"planted.md": SOURCE})

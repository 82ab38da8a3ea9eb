"""Where pages of the reference went: links to a page for each module still work.

A page is a few bytes, and a script that all of them share knows on which page a name is
explained now.
"""

import json
from pathlib import Path
from posixpath import relpath

from .names import explained, homes


PAGE = """<!doctype html><meta charset=utf-8><title>{module}</title>
<p>The reference is by subject now: <a href="../#{module}">{module}</a>
<script src="../../assets/moved.js"></script>
"""
SCRIPT = """{{
const pages = {pages};
const name = location.hash.slice(1);
location.replace(name in pages ? `../${{pages[name]}}` : document.links[0].href);
}}
"""


def write(site: Path) -> None:
    """Write a page for each module, and their script, into a built site."""
    for module in explained():
        folder = site / "reference" / module
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "index.html").write_text(PAGE.format(module=module))
    script = SCRIPT.format(pages=json.dumps(places(), separators=(",", ":")))
    (site / "assets" / "moved.js").write_text(script)


def places() -> dict[str, str]:
    """From each public path to where it is explained, seen from `reference/`."""
    page = lambda home: relpath(home.page, "reference").removesuffix(".md")
    return {path: f"{page(home)}/#{home.path}" for path, home in homes().items()}

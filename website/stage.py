"""Stages the pages of the site: all that the builder reads, in one folder.

The pages of `docs` are copied, `README.md` becomes `overview.md`, and any other file of
the repository that a page links to becomes a page, a program with its code.  Links are
rewritten to where a file is staged.  Lines are kept, so an error of the builder at a
line of a staged page is at the same line of its source.  Generators add their pages.
"""

import os
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from .names import find, link_to_module


ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".cache" / "docs"

# Modules with a function `write(folder: pathlib.Path) -> None` that adds pages.
# The reference links to those cards that are there already.
GENERATORS: tuple[str, ...] = ("website.cards", "website.moving", "website.reference")

# With a function `write(folder, sources)` that reads the pages that are there by then.
FINISHERS = ("website.llms", "website.scripts")

# Of cards and programs: a search finds the names and the pages that link to them.
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"

# Where the changelog gets the changes of the next release.
NEXT = "<!-- the next release -->"

LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml"}

LINK = re.compile(r"(?P<before>\]\(|\b(?:src|href)=\")(?P<target>[^)\s\"]+)")
FENCE = re.compile(r" *(```|~~~)")
CODE = re.compile(r"(`+).+?\1")
# A name between backticks, or a link, which has one already.
NAME = re.compile(r"!?\[[^\]]*\]\([^)]*\)|``.*?``|`(?P<name>[^`]+)`")
# An item of a list in a list, as GitHub reads it; the builder wants four spaces.
NESTED = re.compile(r"^ {2,3}(?=(?:[-*]|\d+\.) )")


def pages() -> dict[str, str]:
    """The pages that are written by hand: staged path to path of the source."""
    found = {"overview.md": "README.md"}
    for file in sorted((ROOT / "docs").rglob("*.md")):
        source = file.relative_to(ROOT).as_posix()
        found[staged_path(source)] = source
    return found


def staged_path(source: str) -> str:
    """Where a file of the repository is on the site, by its path in the repository."""
    if source == "README.md":  # `docs/index.md` is shorter
        return "overview.md"
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    path = PurePosixPath(source)
    name = path.name if path.suffix == ".md" else f"{path.name}.md"
    name = name.lower() if path.name.isupper() or path.stem.isupper() else name
    if path.parent.name == "examples":
        return f"examples/{path.stem}.md"
    if path.stem == "README":  # which the builder would take for an index
        return f"{path.parent}.md".replace("/_", "/")
    # The builder leaves out what begins with a dot, such as `.github`.
    return (path.parent / name).as_posix().lstrip(".")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that are no program, with their numbers from 1."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        if mark := FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        elif not fence:
            yield number, line


def links(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """The links of a page to other files and headings, with their lines."""
    for number, line in prose(text):
        plain = CODE.sub(lambda code: "`" * len(code[0]), line)
        yield from ((number, link) for link in LINK.finditer(plain))


def with_names(text: str, source: str) -> tuple[str, list[str]]:
    """A page on which public names between backticks are links to the reference.

    Lists in lists are indented as the builder reads them.  It returns the page, and
    the names that do not exist, each with file and line.
    """
    lines, wrong, here = text.splitlines(keepends=True), [], staged_path(source)

    def link(found: re.Match[str]) -> str:
        try:
            home = find(found["name"]) if found["name"] else None
        except LookupError as error:
            wrong.append(f"{source}:{number}: {error}")
            return found[0]
        if isinstance(home, str):  # a module
            return f"[{found[0]}]({link_to_module(home, here)})"
        return f"[{found[0]}]({home.link(here)})" if home else found[0]

    for number, line in prose(text):
        line = NESTED.sub("    ", line)
        if not line.startswith("#"):
            lines[number - 1] = NAME.sub(link, line) + "\n"
    return "".join(lines), wrong


def rewrite(text: str, source: str) -> tuple[str, dict[str, str], list[str]]:
    """A page with its links as they are on the site.

    It returns the page, the files that it links to, by their staged paths, and what is
    wrong with its links, each with file and line.
    """
    lines, linked, wrong = text.splitlines(keepends=True), {}, []
    here = PurePosixPath(source).parent.as_posix()
    moves = []
    for number, link in links(text):
        path, mark, anchor = link["target"].partition("#")
        if not path or ":" in path:
            continue
        target = normpath(f"{here}/{path}")
        generated = target.startswith("docs/") and _is_generated(target)
        if not generated and not (ROOT / target).is_file():
            wrong.append(f"{source}:{number}: `{path}` is no file of the repository")
            continue
        staged = staged_path(target)
        linked[staged] = target
        to = relpath(staged, PurePosixPath(staged_path(source)).parent.as_posix())
        moves.append((number, link.span("target"), f"{to}{mark}{anchor}"))
    for number, (start, end), to in reversed(moves):
        line = lines[number - 1]
        lines[number - 1] = line[:start] + to + line[end:]
    return "".join(lines), linked, wrong


def _is_generated(path: str) -> bool:
    """Whether a generator writes it: the builder knows whether it did."""
    return path.startswith(("docs/reference/", "docs/cards/"))


def processor_seconds() -> float:
    """What this process and the ones it waited for have used; others may be busy."""
    return sum(os.times()[:4])


def stage(
    folder: Path = FOLDER,
    generators: tuple[str, ...] = GENERATORS,
    spent: dict[str, float] | None = None,
) -> dict[str, str]:
    """Write all pages into `folder`; returns the source of each staged page.

    `spent` takes the processor seconds of each generator.  Raises `SystemExit`, and
    names file and line, if a link leads nowhere.
    """
    shutil.rmtree(folder, ignore_errors=True)
    # Results of which pages were made are for the repository, and megabytes.
    leave_out = shutil.ignore_patterns("evidence")
    shutil.copytree(ROOT / "docs", folder, ignore=leave_out)
    for name in generators:
        started = processor_seconds()
        import_module(name).write(folder)
        if spent is not None:
            spent[name] = processor_seconds() - started
    sources, queue, wrong = {}, list(pages().items()), []
    while queue:
        staged, source = queue.pop()
        if staged in sources or _is_generated(source):
            continue
        text, linked, mistakes = rewrite(read(source), source)
        wrong += mistakes
        queue += linked.items()
        if source.startswith("docs/") and not staged.endswith(".md"):
            continue  # a picture, which lies there
        sources[staged] = source
        # The changelog names what there is no more.
        if source.endswith(".md") and source != "CHANGELOG.md":
            text, mistakes = with_names(text, source)
            wrong += mistakes
        (folder / staged).parent.mkdir(parents=True, exist_ok=True)
        (folder / staged).write_text(text)
    if wrong:
        raise SystemExit("\n".join(sorted(wrong)))
    for name in FINISHERS if generators == GENERATORS else ():
        import_module(name).write(folder, sources)
    return sources


def unreleased() -> str:
    """The changes that no release has yet, by kind, newest first."""
    lines = ["## Not released yet", ""]
    for kind in ("breaking", "deprecation", "change"):
        files = [*(ROOT / "changelog.d").glob(f"*.{kind}*.md")]
        number = lambda file: [int(x) for x in file.name.split(".") if x.isdigit()]
        found = [x.read_text() for x in sorted(files, key=number, reverse=True)]
        lines += [f"### {kind.title()}", ""] if found else []
        lines += [f"- {' '.join(text.split())}" for text in found]
        lines += [""] if found else []
    return "\n".join(lines)


def read(source: str) -> str:
    """A file of the repository as a page."""
    path = ROOT / source
    if source.startswith("docs/") and path.suffix != ".md":
        return ""
    text = path.read_text()
    if source == "CHANGELOG.md":
        text = text.replace(NEXT, unreleased())
    if path.suffix == ".md":
        return text
    language = LANGUAGES.get(path.suffix, "text")
    return f"{NOT_SEARCHED}# {path.name}\n\n```{language}\n{text.rstrip()}\n```\n"

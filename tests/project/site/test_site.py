"""The documentation site: what it is made of, without building it."""

import inspect
import json
import re
from enum import EnumType
from importlib import import_module
from posixpath import relpath

import griffe
import pytest
from inside import MOVED
from public import PUBLIC

from website import stage
from website.build import CONFIG, readable, unlisted
from website.compact import (
    below,
    searched,
    squeezed,
    with_headings_once,
    with_shared_script,
)
from website.docstrings import markdown
from website.entries import entry
from website.extension import read, rewrite, signature
from website.names import INDEX, Name, find, homes, parameters
from website.reference import write
from website.sizes import sizes
from website.subjects import RECOMMENDED, SUBJECTS, TASKS, is_optimizer, subject


OPTIMIZERS = {x for x in homes().values() if is_optimizer(x.name, x.value)}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The pages of the reference, as they are staged; no docstring names nothing."""
    folder = tmp_path_factory.mktemp("staged")
    write(folder)
    return {x: (folder / f"reference/{x}.md").read_text() for x in (*SUBJECTS, "index")}


def test_every_public_name_stands_on_exactly_one_page(reference):
    on = {x: re.findall(r"^::: (\S+)$", text, re.M) for x, text in reference.items()}
    on |= {f"../cards/{x.name}": [entry(x)[0][4:]] for x in OPTIMIZERS}
    on_pages = sorted(name for names in on.values() for name in names)
    assert on_pages == sorted({home.path for home in homes().values()})
    assert not on.pop("index") and all(on.values())
    for home in homes().values():
        assert home.path in on[relpath(home.page, "reference")[:-3]]
    for module in map(import_module, PUBLIC):
        for name in set(module.__all__) - set(MOVED):
            is_module = inspect.ismodule(getattr(module, name))
            assert is_module or f"{module.__name__}.{name}" in homes()


def test_the_optimizers_are_listed_by_task_and_the_recommended_ones_first(reference):
    listed = sorted(name for names in TASKS.values() for name in names)
    assert listed == sorted(x.name for x in OPTIMIZERS)
    assert len(RECOMMENDED) == 12 and RECOMMENDED.keys() <= set(listed)
    first, *tasks = reference["optimizers"].split("\n## ")[1:]
    linked = re.compile(r"^\| \[`(\w+)`\]\(\.\./cards/\1\.md\)", re.M)
    assert first.startswith("Recommended") and linked.findall(first) == [*RECOMMENDED]
    for (task, names), section in zip(TASKS.items(), tasks, strict=True):
        assert section.startswith(task) and linked.findall(section) == [*names]
    for home in OPTIMIZERS:  # links to where they were arrive there
        assert f"{{ #{home.path} }}" in reference["optimizers"]


def test_the_index_links_to_every_name_below_its_module(reference):
    sections = re.split(r"^### (\S+) \{ #\S+ \}$", reference["index"], flags=re.M)
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    for path, home in homes().items():
        module, _, name = path.rpartition(".")
        assert f"[`{name}`]({home.link(INDEX)})" in found[module], path


def test_a_name_that_belongs_to_no_subject_says_where_to_add_it():
    with pytest.raises(LookupError, match="`stepax.lost`.*website/subjects.py"):
        subject("stepax", "lost", None)


def test_every_argument_is_explained_in_the_table_of_its_function():
    count = 0
    for path, name in homes().items():
        if path != name.path or not inspect.isfunction(name.value):
            continue
        rows = re.findall(r"^\| (`.*?) \| ", read()[0][path].docstring.value, re.M)
        told = {x.strip("`*") for row in rows for x in row.split(", ")}
        own = inspect.signature(name.value).parameters
        assert set(own) - {"kwargs", "extra_args"} <= told, path
        count += len(own)
    assert count > 1200


def test_signatures_in_the_files_are_those_that_are_called():
    """Nothing is called for them, although decorators and tuples add to definitions."""
    count = 0
    for path, thing in read()[0].items():
        if thing.is_module or thing.is_attribute or "__call__" in thing.members:
            continue
        name = homes()[path]
        own = {} if type(name.value) is EnumType else parameters(name.value)
        found = {x.name: x for x in thing.parameters if x.name != "self"}
        assert list(found) == list(own), path
        for key, x in own.items():
            without = x.kind in (x.VAR_POSITIONAL, x.VAR_KEYWORD)
            is_given = found[key].default is not None
            assert without or is_given == (x.default is not x.empty), (path, key)
        count += 1
    assert count > 500


def test_a_factory_made_of_a_rule_returns_a_transformation():
    text = signature("stepax.adamw", read()[0]["stepax.adamw"])
    assert text.endswith(" = None) -> GradientTransformationExtraArgs")
    assert not [x for x in read()[0].values() if x.is_function and "Rule" == x.returns]


def test_the_reference_is_in_the_navigation():
    listed = set(re.findall(r"reference/\S+", CONFIG.read_text()))
    assert listed == {f"reference/{x}.md" for x in SUBJECTS} | {INDEX}


def test_every_page_is_in_the_navigation():
    assert unlisted(stage.pages() | {"lost.md": "docs/lost.md"}) == [
        "docs/lost.md:1: the page has no line in `nav` of mkdocs.yml"
    ]


def told(docstring: str, module: str = "stepax") -> tuple[str, dict[str, str]]:
    """A docstring of a function with the argument `b1`, as Markdown."""
    wrong: dict[str, str] = {}
    name = Name(module, "function", lambda b1: None)
    return markdown(docstring, name, {"b1"}, wrong), wrong


def test_lists_of_arguments_become_tables_and_titles_do_not():
    text, _ = told("LAMB: Adam.\n\nb1: decay of |g|, in [0, 1);\n    see `masked`.")
    assert text == (
        "LAMB: Adam.\n\n| argument | meaning |\n| --- | --- |\n"
        "| `b1` | decay of \\|g\\|, in &#91;0, 1); "
        "see [`masked`][stepax.transforms.masked]. |"
    )


def test_formulas_stay_as_written_and_their_names_are_linked():
    text, _ = told("Do.\n\n    u_0 = *g* [1],\n      of `adam`\n\nThen *more*_.")
    assert "```text\nu_0 = *g* [1],\n  of `adam`\n```" in text
    assert "See [`adam`][stepax.adam]." in text
    assert "Then \\*more\\*\\_." in text


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("adamw", "stepax.adamw"),
        ("sgd(1.0)", "stepax.sgd"),
        ("contrib.muon", "stepax.contrib.muon"),
        ("stepax.multi_transform", "stepax.transforms.partition"),
        ("stepax.tree_utils.tree_add", "stepax.tree.add"),
        ("stepax.MultiSteps.has_updated", "stepax.transforms.MultiSteps"),
        ("stepax.tree", "stepax.tree"),
        ("b1", None),
        ("jax.jit", None),
        ("0.9", None),
        ("state.hyperparams", None),
    ],
)
def test_names_between_backticks_are_found(written, found):
    home = find(written)
    assert getattr(home, "path", home) == found


@pytest.mark.parametrize("written", ["stepax.adamww", "contrib.muom", "tree.gett"])
def test_a_broken_name_is_an_error(written):
    with pytest.raises(LookupError, match="is no public name"):
        find(written)


@pytest.mark.parametrize(
    ("said", "what"),
    [("`stepax.adamww`", "no public name"), ("`scale_by_x`", "neither a public name")],
)
def test_a_broken_name_of_a_docstring_is_named_with_file_and_line(said, what):
    source = (
        f'import os\n\n\ndef function(b1):\n    """Do.\n\n    b1: as {said}.\n    """\n'
    )
    file = stage.ROOT / "stepax" / "contrib.py"
    thing = griffe.visit("contrib", filepath=file, code=source)["function"]
    name = Name("stepax.contrib", "function", lambda b1: None)
    (wrong,) = rewrite(thing, name, {"b1"})
    assert wrong.startswith("stepax/contrib.py:7: ") and what in wrong and said in wrong


def test_a_broken_name_stops_the_build(monkeypatch, tmp_path):
    monkeypatch.setattr("website.reference.read", lambda: ({}, ["a.py:7: no name"]))
    with pytest.raises(SystemExit, match="a.py:7: no name"):
        write(tmp_path)


@pytest.mark.parametrize(
    ("source", "staged"),
    [
        ("README.md", "overview.md"),
        ("docs/index.md", "index.md"),
        (".github/workflows/tests.yml", "github/workflows/tests.yml.md"),
        ("CONTRIBUTING.md", "contributing.md"),
        ("LICENSE", "license.md"),
        ("docs/rates.md", "rates.md"),
        ("docs/evidence/digits.md", "evidence/digits.md"),
        ("examples/log_csv.py", "examples/log_csv.md"),
        ("stepax/_engine/README.md", "stepax/engine.md"),
        ("tests/README.md", "tests.md"),
        ("benchmarks/house.py", "benchmarks/house.py.md"),
    ],
)
def test_where_files_are_staged(source, staged):
    assert stage.staged_path(source) == staged


PAGE = """# A page
[here](#a), [page](rates.md#b), [program](../examples/log_csv.py), `[x](y.md)`
```python
table[key](arguments.md)
```
![picture](bench.png) <img src="bench.png"> [away](https://arxiv.org/abs/1412.6980)
"""


def test_links_are_rewritten_and_lines_are_kept():
    text, linked, wrong = stage.rewrite(PAGE, "docs/page.md")
    assert not wrong
    assert text == PAGE.replace("../examples/log_csv.py", "examples/log_csv.md")
    assert linked["examples/log_csv.md"] == "examples/log_csv.py"
    text, _, wrong = stage.rewrite("[a](docs/rates.md#x) [b](LICENSE)", "README.md")
    assert text == "[a](rates.md#x) [b](license.md)" and not wrong


def test_a_broken_link_is_named_with_file_and_line():
    for broken in ("gone.md", "gone.png", "../examples/gone.py"):
        page = PAGE.replace("rates.md", broken, 1)
        wrong = stage.rewrite(page, "docs/page.md")[2]
        assert wrong == [f"docs/page.md:2: `{broken}` is no file of the repository"]


def test_errors_of_the_builder_name_the_source():
    said = "\x1b[33mWarning:\x1b[0m anchor does not exist\n  ╭─[ index.md:48:32 ]\n"
    said += "1 issue found\nTraceback (most recent call last)\n ..."
    assert readable(said, {"index.md": "README.md"}) == (
        "Warning: anchor does not exist\n  ╭─README.md:48:32\n1 issue found"
    )


def test_compact_pages_drop_what_no_style_asks_for():
    link = '<p><a class="autorefs autorefs-internal" title="a b" href="x">b</a>'
    assert squeezed(link) == "<p><a href=x>b</a>"
    block = '<h3 id="a" class="doc doc-heading">b</h3>'
    block += '<div class="doc doc-contents first"><b class="doc-signature highlight">'
    kept = '<h3 id=a>b</h3><div class="doc doc-contents first"><b class=highlight>'
    assert squeezed(block).startswith(kept)
    entry = '<a>\n<span class="md-ellipsis">\n{}adam\n{}</span>\n</a>\n<article>'
    for marks in [("", ""), ('<span class="md-typeset">\n', "</span>\n")]:
        small = "<a><span class=md-ellipsis>adam</span></a><article>"
        assert squeezed(entry.format(*marks)).startswith(small)


def test_compact_pages_have_their_headings_once():
    contents = '<nav class="md-nav"><ul><li>a<nav><ul><li>b</ul></nav></ul></nav>'
    label = '<label class="md-nav__link md-nav__link--active" for="__toc">A</label>'
    page = f"<li>{label}<a>A</a>{contents}</li><article>{contents}"
    assert with_headings_once(page) == f"<li><a>A</a></li><article>{contents}"
    assert with_headings_once(contents) == contents


def test_pages_share_the_scripts_of_the_theme(tmp_path):
    (tmp_path / "assets").mkdir()
    text = '<script>__md_scope=new URL("../..",location),a</script>'
    text += "<script>var palette=1</script><script>2</script>"
    text += (
        '<script id="__config" type="x">{"base":"../..","search":"../../s"}</script>'
    )
    small = with_shared_script(text, tmp_path / "a" / "b" / "index.html", tmp_path)
    script = '<script src="../../assets/frame.js"></script>'
    assert small == f"{script}<script>2</script>"
    shared = (tmp_path / "assets" / "frame.js").read_text()
    assert "__md_scope=site,a;\nvar palette=1;\n" in shared
    assert 'new URL("s", site)' in shared
    assert with_shared_script(text, tmp_path / "404.html", tmp_path) == text


def test_compact_pages_keep_code():
    code = "<pre><code>x\n\n  y</code></pre>"
    page = f"<article><p>\n\n   a\n  <b>b</b> c</p>\n\n{code}\n\n<i>d</i>"
    wanted = f"<article><p>a <b>b</b> c{code}<i>d</i>"
    assert squeezed(page).replace("</article>", "") == wanted


def test_sizes_are_measured(tmp_path):
    (tmp_path / "a.html").write_bytes(b"x" * 1000)
    (tmp_path / "b.bin").write_bytes(b"x" * 9_000_000)
    site, packed, largest, page = sizes(tmp_path)
    assert not site.holds and packed.holds and page.holds and page.of == "a.html"
    assert largest.holds and largest.of == "a.html"
    assert str(site) == "9001 kB of at most 8000 kB"


def test_pages_link_to_the_names_that_they_have_between_backticks():
    page = "# `adam`\n`adamw(1e-3)` [`sgd`](x.md) `stepax.tree`\n```\n`adam`\n```\n"
    text, wrong = stage.with_names(page, "README.md")
    lines = text.splitlines()
    assert not wrong and lines[0] == "# `adam`" and lines[3] == "`adam`"
    assert lines[1] == (
        "[`adamw(1e-3)`](cards/adamw.md#stepax.adamw) [`sgd`](x.md) "
        "[`stepax.tree`](reference/index.md#stepax.tree)"
    )
    text, _ = stage.with_names("1. a\n   1. b\n  - c\n", "README.md")
    assert text == "1. a\n    1. b\n    - c\n"
    _, wrong = stage.with_names("\nSee `stepax.adamww`.", "docs/rates.md")
    assert wrong == ["docs/rates.md:2: `stepax.adamww` is no public name"]


def test_the_search_index_has_the_reference_as_text():
    table = "<p>A.</p> argument meaning <code>b1</code> x; see <code>b1</code>.<p>B</p>"
    table += "<pre>f(b1)</pre>"
    items = [
        {"location": x, "text": table} for x in ("reference/optimizers/#adam", "x/")
    ]
    found = json.loads(searched(json.dumps({"items": items})))["items"]
    assert [x["text"] for x in found] == [table, "<p>A.</p> b1<p>B</p>"]


def test_a_search_finds_a_card_by_what_the_optimizer_does():
    items = [
        {"location": x, "text": "<p>Does.</p><p>More.</p>"}
        for x in ("cards/adam/", "cards/adam/#costs", "reference/#stepax")
    ]
    found = json.loads(searched(json.dumps({"items": items})))["items"]
    assert found == [{"location": "cards/adam/", "text": "<p>Does."}]


def test_links_of_a_sidebar_are_right_one_folder_below():
    sidebar = '<a href="../which/">W</a><a href="./">A</a><a href="../..">H</a>'
    moved_down = '<a href="../../which/">W</a><a href=".././">A</a>'
    assert below(sidebar) == f'{moved_down}<a href="../../..">H</a>'

"""The programs of each page run, every line of them, and print what the page shows."""

import pytest
from pages import NEEDS, ROOT, WITHOUT, PageError, blocks, is_alike, pages, run_page


@pytest.mark.few(1)
@pytest.mark.parametrize("page", [x for x in pages() if x not in WITHOUT])
def test_every_line_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch):
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    monkeypatch.chdir(tmp_path)
    assert run_page(ROOT / page).blocks, f"{page} has no program; say why in `WITHOUT`"


@pytest.mark.parametrize("page", WITHOUT)
def test_a_page_that_is_named_as_without_a_program_has_none(page):
    assert not blocks(page)


# --- the harness itself --------------------------------------------------------------

BROKEN = {
    "a function that is not called": (
        "def unused():\n    return 1",
        r"page\.md:3: def unused\(\):\n  page\.md:4: return 1",
    ),
    "a lambda that is not called": (
        "double = lambda x: 2 * x",
        r"page\.md:3: double = lambda x: 2 \* x",
    ),
    "a branch that is not taken": (
        "if 1 > 2:\n    x = 1",
        r"executed:\n  page\.md:4: x = 1$",
    ),
    "a traced function that is not traced": (
        "import jax\n\n\n@jax.jit\ndef f(x):\n    return x\n\n\nf",
        r"page\.md:6: @jax\.jit\n  page\.md:8: return x",
    ),
    "a wrong number": (
        "print(2 / 3)\n```\n\n```text\n0.661",
        r"page\.md:7: shows\n  0\.661\nprinted was\n  0\.666",
    ),
    "a wrong integer": ("print(1001)\n```\n\n```text\n1000", r"page\.md:7: shows"),
    "a wrong word": ("print('loss 1.0')\n```\n```text\nLoss 1.0", r"page\.md:6: shows"),
    "too little": ("x = 1\n```\n```text\n1", r"page\.md:6: shows\n  1\n.*\n  nothing"),
    "too much": (
        "print('a\\nb')\n```\n```text\na",
        r"page\.md:7: not shown is\n  b",
    ),
    "something not shown": ("print(1)", r"page\.md:3: this block prints '1'"),
    "no end": ("x = 1\n```\n```python\n", r"page\.md:5: .* has no end"),
    "Python by another name": ("x = 1\n```\n```py\n", r"page\.md:5: .* '```py'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_with_a_page_is_named_with_its_line(case, tmp_path):
    text, message = BROKEN[case]
    end = "" if case == "no end" else "\n```\n"
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n```python\n{text}{end}")
    with pytest.raises(PageError, match=message):
        run_page(page)


def test_an_error_in_a_page_names_its_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n\ny = 1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as found:
        run_page(page)
    last = found.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(page), 6)


def test_a_page_without_a_program_is_run_as_well(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n")
    assert run_page(page).blocks == 0


GOOD = """
```python
import pickle
import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Pair(NamedTuple):
    x: jax.Array
    y: int = 1


@jax.jit
def double(x):
    jax.debug.print("x = {x}", x=x)
    return [2 * x for x in range(3)], (lambda y: 2 * y)(x)
```

```python
pickle.dumps(Pair(1))
print(double(jnp.float32(1.5))[1], 1 / 3, 1.5e-7)
thread = threading.Thread(target=lambda: print(float("nan")))
thread.start()
thread.join()
```

It prints the following, within ... seconds.

```text
x = ...
3.0 0.33333 1.50e-07

nan
```
"""


def test_a_page_without_fault_passes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(GOOD)
    report = run_page(page)
    assert report.blocks == 2
    assert report.lines == 17


@pytest.mark.parametrize(
    ("found", "shown", "says"),
    [
        ("loss 0.12345", "loss  0.1234", True),
        ("loss 0.12345", "loss 0.1250", False),
        ("1e-08", "2e-08", False),
        ("-1.0", "1.0", False),
        ("in 5.2 s, 3 steps", "in ... s, 3 steps", True),
        ("in 5.2 s, 4 steps", "in ... s, 3 steps", False),
        ("a (b)", "a [b]", False),
        ("nan", "1.0", False),
    ],
)
def test_numbers_agree_to_three_digits(found, shown, says):
    assert is_alike(found, shown) is says

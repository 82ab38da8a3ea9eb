"""What docs/bench.md, its evidence and its picture say is what the files say."""

import shutil

import pytest
from pages import ROOT

from benchmarks.bench.measure import WAYS
from benchmarks.bench.ratios import all_ratios
from website.tables import bench_pages


RUNS = bench_pages.read()


def test_the_page_says_what_the_files_say():
    """If this fails, run `make bench-pages` and read what has changed."""
    assert list(bench_pages.wrong(RUNS)) == []


@pytest.mark.parametrize("name", RUNS)
def test_stored_ratios_are_those_of_the_rounds(name):
    _, rows = RUNS[name]
    rounds: dict = {}
    for row in rows:
        here = rounds.setdefault((row["shape"], row["case"]), {})
        here[row["library"]] = row["rounds"]
    for row in rows:
        if row["library"] in WAYS:
            here = rounds[row["shape"], row["case"]]
            others = {k: x for k, x in here.items() if k not in WAYS}
            assert row["ratios"] == all_ratios(row["rounds"], others)


@pytest.mark.parametrize("name", RUNS)
def test_a_file_says_how_it_was_measured_and_nothing_private(name):
    about, rows = RUNS[name]
    assert all(x.startswith("python -m ") for x in about["commands"])
    assert "/" not in "".join(about["commands"]) and about["divisor"] == 1
    assert {"system", "processor", "cores", "memory, GB", "devices"} == set(
        about["machine"]
    )
    assert {"jax", "optax", "torch", "stepax", "python"} <= set(about["versions"])
    assert all("load" in row for row in rows)


def test_a_stale_figure_is_named_with_its_line(tmp_path):
    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    pages = {bench_pages.PAGE, *bench_pages.PAGES.values()}
    for file in (*pages, bench_pages.PICTURE):
        shutil.copy(ROOT / file, tmp_path / file)
    page = tmp_path / bench_pages.EVIDENCE
    lines = page.read_text().splitlines()
    at = next(i for i, x in enumerate(lines) if x.startswith("| adamw, fused |"))
    right = lines[at]
    lines[at] = right.replace("(", "(9")
    page.write_text("\n".join(lines) + "\n")
    (error,) = bench_pages.wrong(RUNS, tmp_path)
    assert error.startswith(f"docs/evidence/bench.md:{at + 1}: says '| adamw, fused | ")
    assert error.endswith(repr(right))
    bench_pages.write(RUNS, tmp_path)
    assert list(bench_pages.wrong(RUNS, tmp_path)) == []


def test_a_picture_of_other_ratios_is_drawn_again(tmp_path):
    _, rows = RUNS[bench_pages.REFERENCE]
    picture = ROOT / bench_pages.PICTURE
    assert not bench_pages.is_stale(picture, rows)
    assert bench_pages.is_stale(picture, rows[:20])
    assert bench_pages.is_stale(tmp_path / "none.png", rows)

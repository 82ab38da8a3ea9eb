"""The cards of the optimizers: one for each, true to the code, and kept by its hash."""

import inspect
import re

import jax
import numpy as np
import pytest
from arguments import example
from inside import RANGES, ROWS

import stepax
from website import cards
from website.cards import measure, page, picture, sources, traits
from website.cards.problems import FIT, VALLEY


NAMES = [row.name for row in traits.optimizers()]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What is measured of one optimizer of each kind of picture."""
    cache = tmp_path_factory.mktemp("cards")
    return {name: measure.measured(ROWS[name], cache) for name in ("lion", "muon")}


def table_of(text, heading):
    """The rows of the first table below a heading, without its two first ones."""
    lines = text.partition(f"## {heading}\n")[2].splitlines()
    rows = [line for line in lines if line.startswith("|")]
    rows = rows[: next((i for i, x in enumerate(lines[1:]) if not x), len(rows))]
    return [[cell.strip() for cell in row[1:-1].split(" | ")] for row in rows[2:]]


@pytest.mark.slow
def test_each_optimizer_has_a_card_and_a_row(monkeypatch, tmp_path, measured):
    monkeypatch.setattr(cards, "measured", lambda row, cache: measured["lion"])
    cards.write(tmp_path)
    table = (tmp_path / "cards" / "index.md").read_text()
    for name in NAMES:
        text = (tmp_path / "cards" / f"{name}.md").read_text()
        assert f"# {name}" in text.splitlines()
        assert f"stepax.{name}" in text.replace("contrib.", "")
        assert f"| [{name}]({name}.md)" in table
        assert f"\n::: {traits.public_module(ROWS[name])}.{name}\n" in text
    assert len(list((tmp_path / "cards").iterdir())) == len(NAMES) + 1
    assert (tmp_path / "assets" / "valley.svg").stat().st_size < 16_000


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_arguments_is_that_of_the_code(name):
    row = ROWS[name]
    parameters = inspect.signature(row.factory).parameters
    found = {x["argument"]: x for x in traits.arguments(row)}
    assert list(found) == list(parameters)
    for k, p in parameters.items():
        if p.default is p.empty:
            assert found[k]["default"] == "required"
        elif isinstance(p.default, int | float | str | None):
            assert found[k]["default"] == repr(p.default)
        allowed = row.ranges.get(k) or RANGES.get(k)
        assert found[k]["range"] in ("", str(allowed))
        takes = vars(row.factory)["scalars"].takes.get(k)
        assert (found[k]["schedule"] == "yes") == bool(takes and takes.schedule)


@pytest.mark.parametrize("name", ["adamw", "lion", "psgd_kron", "rprop", "noisy_sgd"])
def test_what_may_change_in_a_run_is_in_the_state(name):
    row = ROWS[name]
    injected = stepax.inject_hyperparams(row.factory)(**example(row))
    live = injected.init({"w": np.ones((2, 2), np.float32)}).hyperparams
    found = {x["argument"] for x in traits.arguments(row) if x["run time"]}
    missing = {k for k, p in inspect.signature(row.factory).parameters.items()
               if p.default is None}  # fmt: skip
    assert set(live) <= found <= set(live) | missing


# Arrays of the state, by hand: bytes for each element of a matrix, and of a vector.
BYTES = {
    "adamw": (8, 8),  # mu, nu
    "sgd": (0, 0),
    "lion": (4, 4),  # mu
    "amsgrad": (12, 12),  # mu, nu, and the largest nu
    "muon": (4, 8),  # mu; Adam's for vectors
    "sm3": (4 + 8 / 1024, 8),  # mu, and a number for each row and column
    "soap": (24, 8),  # mu, nu, and two factors and bases of the size of the matrix
    "normuon": (4 + 4 / 1024, None),
}


@pytest.mark.parametrize("name", BYTES)
def test_costs_are_those_of_the_state(name):
    row = ROWS[name]
    shapes = (measure.MATRIX, None if row.matrices_only else measure.VECTOR)
    for shape, known in zip(shapes, BYTES[name], strict=True):
        if shape is None:
            assert known is None
        else:  # beside it, scalars, such as the step count
            found = measure.state_bytes(traits.make(row), shape)
            assert known <= found <= known + 20 / np.prod(shape)


@pytest.mark.slow
def test_a_card_says_the_costs(measured):
    text = page.page(ROWS["lion"], measured["lion"])
    rows = table_of(text, "Costs")
    assert [row[1:] for row in rows] == [["4", "12", "8"]] * 2


TRAITS = {
    "adamw": traits.ELEMENTS,
    "lamb": traits.ARRAYS,
    "muon": traits.MATRICES,
    "galore": traits.MATRICES,
    "prodigy": traits.TREE,
    "lbfgs": traits.TREE,
    "noisy_sgd": traits.ELEMENTS,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", TRAITS)
def test_what_an_element_depends_on(name):
    row = ROWS[name]
    assert traits.reach(row, traits.make(row)) == TRAITS[name]


@pytest.mark.parametrize("name, needs", [("adam", False), ("adamw", True)])
def test_whether_parameters_are_needed(name, needs):
    assert measure.needs_params(ROWS[name], traits.make(ROWS[name])) == needs


def test_only_what_is_replaced_is_deprecated():
    assert {name for name in NAMES if ROWS[name].deprecated} == {"optimistic_adam"}


def test_pictures_are_small_and_have_a_text(measured):
    for name, pictures in {"lion": 2, "muon": 1}.items():
        drawn = picture.figure(name, measured[name])
        assert len(drawn) < 6000
        assert drawn.count("<svg") == drawn.count("aria-label") == pictures
        assert "#" not in drawn  # colours are of the palette
        assert f"learning rate of {measured[name]['rate']:g}" in drawn


def test_a_line_is_steps_between_whole_numbers():
    assert picture.line([(1.4, 2), (3.6, 1.6), (3.7, 2), (0, -3)]) == "M1 2l3 0-4-5"
    assert picture.line([(1, 2), (1, 2)]) == "M1 2"


def test_a_run_ends_below_where_it_started(measured):
    for name, problem in {"lion": VALLEY, "muon": FIT}.items():
        losses = measured[name]["losses"][picture.BEST]
        assert losses[0] == pytest.approx(float(problem.loss(problem.start)), rel=1e-3)
        assert losses[-1] < losses[0] / 50 and len(losses) == measure.STEPS + 1


def test_paths_survive_16_bits(measured):
    path = measure.unpacked(measured["lion"]["paths"][picture.BEST])
    losses = [float(VALLEY.loss(p)) for p in path]
    known = measured["lion"]["losses"][picture.BEST]
    # Off by at most 1/16000 in each number, where the slope is at most 40.
    np.testing.assert_allclose(losses, known, atol=5e-3)
    far = measure.unpacked(measure.packed(np.array([[np.nan, 1e9], [-np.inf, 0]])))
    assert far.tolist() == [[4, 4], [-4, 0]]


def test_one_changed_optimizer_is_drawn_anew_alone(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(measure, "measure", lambda row: made.append(row.name) or {})
    draw = lambda: [measure.measured(ROWS[name], tmp_path) for name in NAMES]
    draw()
    assert made == NAMES
    made.clear()
    draw()
    assert made == []
    digest = measure._digest
    changed = lambda file: digest(file) + ("!" if file.name == "lion.py" else "")
    monkeypatch.setattr(measure, "_digest", changed)
    draw()
    users = [n for n in NAMES if any(x.name == "lion.py" for x in files(n))]
    assert made == users and "lion" in users and "adamw" not in users
    assert len(list(tmp_path.iterdir())) == len(NAMES)  # old ones are gone


def files(name):
    return measure.sources(sources.ROOT / sources.file_of(ROWS[name]))


def test_a_change_of_the_engine_draws_all_anew(monkeypatch):
    before = measure.key(ROWS["sgd"])
    monkeypatch.setattr(measure, "_engine", lambda: "another")
    assert measure.key(ROWS["sgd"]) != before


def test_numbers_to_start_with_are_those_of_the_board(monkeypatch):
    point = {"rate": 0.1, "one_minus_b1": 0.05, "decay": 1e-3}
    one = {"rate": 0.1, "low": 0.013, "high": 0.26, "at_least": True, "point": point}
    monkeypatch.setattr(page, "numbers_to_start_with", lambda name: {"digits": one})
    text = "\n".join(page.numbers(ROWS["adamw"]))
    assert "| digits | 0.1 | 0.013 to 0.26, or further | 0.05 | 0.001 |" in text
    assert text.count("<circle") == 1 and "1 - b1" in text
    monkeypatch.setattr(page, "numbers_to_start_with", lambda name: {})
    assert page.numbers(ROWS["yogi"]) == []


def test_sections_on_use_are_of_optimizers():
    named = re.findall(r"^## (.*)$", page.USE.read_text(), re.MULTILINE)
    assert set(named) <= set(NAMES) and len(named) >= 25
    assert {file.stem for file in page.TEX.iterdir()} <= set(NAMES)
    for name in named:
        assert re.fullmatch(
            r"\*\*Use it when\*\* .+\.\n\n\*\*Not when\*\* .+\.",
            "\n".join(page.use(ROWS[name])),
        )


def test_papers_have_links():
    assert sources.link("arXiv:2302.06675") == "https://arxiv.org/abs/2302.06675"
    assert sources.link("DOI 10.1137/0916069") == "https://doi.org/10.1137/0916069"
    for name in NAMES:
        row = ROWS[name]
        assert not row.paper or sources.link(row.paper) in "\n".join(page.paper(row))
    assert "Chen et al., 2023" in page.cited_paper(ROWS["lion"])


def test_an_example_is_enough_for_each_optimizer():
    for name in NAMES:
        assert jax.tree.structure(traits.make(ROWS[name])).num_leaves > 0


def test_a_line_of_one_point_is_a_path():
    assert picture.line([(1.0, 2.0), (1.2, 2.1)]) == "M1 2"
    assert picture.line([(1.0, 2.0), (3.0, 1.0)]) == "M1 2l2-1"

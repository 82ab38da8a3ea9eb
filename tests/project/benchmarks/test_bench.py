"""The benchmark: what it measures is right; how long anything takes is not tested."""

import json
import math
import os
import pty
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from children import read_all
from matplotlib.image import imread

import stepax
from benchmarks.bench import (
    bandwidth,
    command,
    goals,
    in_torch,
    measure,
    products,
    ratios,
    report,
    results,
    rounds,
    stages,
)
from benchmarks.bench.__main__ import main
from benchmarks.bench.cases import CASES, RATE
from benchmarks.bench.picture import step_ratios
from benchmarks.bench.shapes import SHAPES, Shape, abstract, filled, size


optax = pytest.importorskip("optax", reason="it is what is compared with")
TREE = {"w": (6, 4), "b": (4,), "v": (3, 8)}
SHORT = "--rounds", "1", "--seconds", "0"


def bench(*args, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench", *map(str, args)], text=True, **kwargs
    )


@pytest.mark.slow
def test_a_piped_run_tells_plainly_and_writes_all_files(tmp_path):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "md", "png")}
    quick = *SHORT, "--quick", "--shapes", "small", "--only", "sgd*"
    to = "--json", files["json"], "--markdown", files["md"], "--png", files["png"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = bench(*quick, *to, **pipes)
    told, errors = process.communicate()
    assert process.returncode == 0, errors
    (line,) = [line for line in told.splitlines() if "of optax" in line]
    assert line.startswith(" 1/1  small     sgd, momentum") and "fused" in line
    assert not any(c < " " and c != "\n" for c in told)
    found = json.loads(files["json"].read_text())
    assert found["about"]["versions"]["jax"] == jax.__version__
    (called,) = found["about"]["commands"]
    assert called.startswith(f"{results.COMMAND} --rounds 1 --seconds 0 --quick")
    assert called.endswith("--only sgd*")  # files change no result
    by_library = {row["library"]: row for row in found["rows"]}
    assert {"stepax", "stepax.step", "optax"} <= set(by_library)
    measured = {
        "step",
        "trace",
        "lower",
        "compile",
        "un-jitted",
        "bytes",
        "temporaries",
    }
    assert measured | {"init"} <= set(by_library["stepax"])
    assert measured <= set(by_library["stepax.step"])
    both = measured & set(by_library["stepax"]["rounds"])
    assert {len(by_library["stepax"]["rounds"][key]) for key in both} == {1}
    step = by_library["stepax"]["ratios"]["optax"]["step"]
    assert step == [pytest.approx(step[0]), 0, None]  # of one round nothing is known
    assert "| sgd, momentum |" in files["md"].read_text()
    assert np.ptp(imread(files["png"])[..., :3], axis=-1).max() > 0.3


@pytest.mark.slow
def test_a_terminal_shows_a_bar_and_tables(tmp_path):
    ours, theirs = pty.openpty()
    env = dict(os.environ, TERM="xterm", COLUMNS="160")
    quick = *SHORT, "--quick", "--shapes", "small", "--only", "sgd*"
    with bench(*quick, stdout=theirs, env=env, cwd=tmp_path) as process:
        os.close(theirs)
        told = read_all(ours)
    assert process.returncode == 0
    assert "\x1b[" in told
    for text in ("1/1", "compile, s", "equations", "the chart: stepax-bench.png"):
        assert text in told


@pytest.fixture
def tiny(monkeypatch):
    """A benchmark of nothing much, in this process."""
    monkeypatch.setitem(SHAPES, "small", Shape("tiny", lambda n: TREE))
    yield
    jax.config.update("jax_enable_compilation_cache", True)


@pytest.mark.slow
def test_what_is_not_installed_is_said_and_done_without(
    tiny, monkeypatch, capsys, tmp_path
):
    for module in (command, measure):
        monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    short = ["--shapes", "small", "--only", "lion", *SHORT]
    assert main([*short]) == 0
    told = capsys.readouterr().out
    for name in ("optax", "torch", "rich", "matplotlib"):
        line = f"^{name} is not installed, so .*: pip install {name}$"
        assert re.search(line, told, re.MULTILINE)
    assert "lion" in told and "of optax" not in told
    assert not jax.config.values["jax_enable_compilation_cache"]  # it hides the time
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_goes_on_from_its_file(tiny, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "installed", lambda: ("stepax",))  # Optax promotes
    kept = tmp_path / "kept.json"
    to = ["--json", str(kept), "--png", str(tmp_path / "out.png"), *SHORT]
    assert main(["--shapes", "small", "--only", "lion", *to]) == 0
    first = json.loads(kept.read_text())["rows"]
    names = {row["case"] for row in first}
    assert main(["--shapes", "small", "--only", "sgd*", *to]) == 0
    second = json.loads(kept.read_text())["rows"]
    assert second[: len(first)] == first and len(second) > len(first)
    capsys.readouterr()
    assert main(["--shapes", "small", "--only", "sgd*", *to]) == 0
    assert json.loads(kept.read_text())["rows"] == second
    told = capsys.readouterr().out
    assert all(name in told for name in names)
    assert main(["--quick", "--only", "sgd*", *to]) == 2
    assert "is of a run with other divisor, 1" in capsys.readouterr().out
    about, rows = results.read(kept)
    assert [x.split()[6] for x in about["commands"]] == ["lion", "sgd*"]
    # From the file alone the same tables come.
    monkeypatch.setattr(command, "measure", None)
    assert main(["--from", str(kept), *to[2:]]) == 0
    shown = capsys.readouterr().out
    found = command.tables(command.ordered(rows), about)
    assert all(report.plain(table) in shown for table in found.values())


def test_a_case_that_fails_is_named_and_the_others_go_on(
    tiny, monkeypatch, capsys, tmp_path
):
    def measured(shape, case, plan):
        if case == "lion":
            raise MemoryError("too large")
        yield "done", [row | {"shape": shape, "case": case} for row in made_rows()]

    monkeypatch.setattr(command, "measure", measured)
    kept = tmp_path / "kept.json"
    to = ["--json", str(kept), "--png", str(tmp_path / "out.png")]
    assert main(["--shapes", "small", "--only", "l*", *to]) == 1
    told = capsys.readouterr().out
    assert told.count("small: lion: MemoryError: too large\n") == 2
    assert told.endswith("failed: small: lion: MemoryError: too large\n")
    assert {row["case"] for row in results.read(kept)[1]} == {"lamb"}


@pytest.mark.parametrize("name", ["source", "versions", "machine", "limits"])
def test_rows_of_two_kinds_are_not_mixed(name, tmp_path):
    limits = rounds.Limits(1, 1, 0.0, 0.05)
    about = results.surroundings([], 1, limits)
    path = tmp_path / "kept.json"
    results.save(made_rows(), about, path)
    assert len(results.kept(path, dict(about))) == 4
    with pytest.raises(ValueError, match=f"is of a run with other {name}, .*remove it"):
        results.kept(path, about | {name: "another"})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--shapes", "huge"], "invalid choice: 'huge'"),
        (["--rounds", "0"], "expected more than 0, got 0"),
        (["--interval", "-1"], "expected more than 0, got -1"),
        (["--seconds", "-1"], "expected 0 or more, got -1"),
        (["--json", "out.txt"], "expected a name ending in .json, got out.txt"),
        (["--markdown", "out.txt"], "expected a name ending in .md, got out.txt"),
        (["--png", "no/such/out.png"], "there is no folder no/such"),
    ],
)
def test_wrong_arguments_are_explained(args, message, capsys):
    with pytest.raises(SystemExit):
        main([*args])
    assert message in capsys.readouterr().err


def test_a_name_that_fits_nothing_is_an_error_with_all_names(capsys):
    assert main(["--only", "adamm"]) == 2
    told = capsys.readouterr().out
    assert 'nothing fits "adamm"' in told and "clip + adamw" in told


def test_trees_have_the_sizes_they_are_said_to_have():
    found = {name: size(shape.make(1)) for name, shape in SHAPES.items()}
    # GPT-2 small and ResNet-50 as published; the others as asked for.
    assert found == {
        "large": (16, 64_000_000),
        "small": (600, 1_190_200),
        "many": (2000, 1_015_168),
        "gpt2": (148, 124_439_808),
        "gpt1b": (292, 1_017_302_272),
        "resnet50": (161, 25_557_032),
        "vit": (79, 11_403_496),
        "gpt256": (48, 3_159_040),
    }


@pytest.mark.parametrize("dtype", ["float32", jnp.bfloat16])
def test_trees_are_filled_with_numbers_that_go_on_from_leaf_to_leaf(dtype):
    found = filled({"a": (2**20,), "b": (3, 5), "c": (4,)}, 0, 0.5, dtype)
    assert found["b"].shape == (3, 5) and found["b"].dtype == dtype
    a, b, c = (np.asarray(x, "float64").ravel() for x in found.values())
    assert abs(np.std(a) - 0.5) < 1e-2
    # The first come again after 2^20 + 7.
    np.testing.assert_array_equal(np.concatenate([b, c])[7:], a[:12])


def test_what_takes_a_cpu_long_is_measured_there_only_if_asked_for(monkeypatch):
    alone = command.chosen("*", None)
    assert ("large", "muon") not in alone and ("gpt1b", "adamw") not in alone
    assert ("gpt1b", "adamw") in command.chosen("*", ["gpt1b"])
    monkeypatch.setattr(command, "on_gpu", lambda: True)
    more = set(command.chosen("*", None)) - set(alone)
    assert more == {(s, k) for k, case in CASES.items() for s in case.on_gpu} - set(
        alone
    )
    assert ("gpt1b", "muon") in more


def test_what_is_held_at_once_counts_donated_arrays_once():
    tx = CASES["adamw"].make(stepax, RATE)
    built = stages.build(tx, stepax, abstract({"w": (1000, 100)}))
    # Parameters, gradients and two moments, and the count.
    assert built.counts["held"] == pytest.approx(16 + built.counts["temporaries"], 1e-3)


def run_twice(tx, lib, dtype):
    params, gradients = (filled(TREE, seed, dtype=dtype) for seed in (0, 1))
    params = jax.tree.map(jnp.array, params)
    gradients = jax.tree.leaves(gradients)
    built = stages.build(tx, lib, abstract(TREE, dtype))
    carry = jax.tree.leaves((params, jax.tree.map(jnp.copy, tx.init(params))))
    for factor in (1.0, 0.5):  # as towards a minimum, for pairs of L-BFGS
        carry = built.run(carry, [g.dtype.type(factor) * g for g in gradients])
    return built.kinds, carry


SHARED = [name for name, case in CASES.items() if case.libraries is None]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_both_libraries_take_the_same_steps_on_the_same_arrays(name):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        theirs = run_twice(CASES[name].make(optax, RATE), optax, CASES[name].dtype)
    ours = run_twice(CASES[name].make(stepax, RATE), stepax, CASES[name].dtype)
    assert ours[0] == theirs[0]
    for x, y in zip(ours[1], theirs[1], strict=True):
        # Products of Muon in another order: some roundings of numbers of order 1.
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


# Of Adafactor and Muon PyTorch has other variants.
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(in_torch.MADE) - {"adafactor", "muon"}))
def test_torch_takes_the_same_step_in_each_way(name):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    params, gradients = (jax.tree.leaves(filled(TREE, seed)) for seed in (0, 1))
    tx = CASES[name].make(stepax, RATE)
    updates, _ = tx.update(gradients, tx.init(params), params)
    expected = stepax.apply_updates(params, updates)
    for way in in_torch.HOW:
        found, steps = in_torch.steps(name, params, gradients)
        steps[way]()
        # Decay before or after the step, clipping by n or n + 1e-6: within a rounding
        # or two of numbers of order 1.
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x.detach(), y, rtol=1e-5, atol=1e-6)


STEPS = {"stepax": [1.0, 2.0, 4.0] * 3}
STEPS |= {"optax": [2.0, 4.0, 8.0, 2.0, 4.0, 8.0, 2.0, 8.0, 16.0, 9.0]}
STEPS |= {"stepax.step": [1.0] * 6, "torch fused": [0.5, 1.0]}


def made_rows():
    """Rows as of a run, of which Optax took the most rounds, and PyTorch two."""
    found = {k: measure.Measured({"step": x}, {}) for k, x in STEPS.items()}
    found["stepax"].counts["bytes"] = 40.0
    about = {"shape": "large", "case": "adamw"}
    return measure._rows(about, TREE, 0.0, found)


def test_ratios_are_those_of_rounds():
    step = lambda name: {"step": STEPS[name]}
    each = lambda ours, theirs: ratios.ratio(step(ours), step(theirs), "step")
    # Of nine ratios seven are halves and two quarters; one at each end is left out.
    assert each("stepax", "optax") == (0.5, 0.25, 0.5)
    assert each("stepax", "torch fused") == (2.0, 0.0, math.inf)
    assert ratios.ratio({"step": [1.0]}, {}, "step") is None


def test_goals_are_ratios_or_numbers_of_the_run():
    value = {goals.named(goal): goals.got(goal, made_rows()) for goal in goals.GOALS}
    assert value["adamw: step", "large", "optax"] == (0.5, 0.25, 0.5)
    assert value["adamw: step", "large", "torch fused"] == (2.0, 0.0, None)
    assert value["adamw: bytes", "large", ""] == (40, None, None)
    assert value["lion: step", "large", "optax"] is None


def test_goals_are_of_cases_and_trees_that_are_measured():
    for goal in goals.GOALS:
        case = CASES[goal.case]
        assert goal.shape in case.shapes + case.on_gpu, goal
        assert goal.rival != measure.PRODUCTS or case.has_floor


def test_tables_show_ratios_and_goals():
    rows = made_rows()
    _, (two, one) = report.times(rows, "large", 0.05)
    assert two[:2] == ["adamw", "2000.00 (~0.50)"] and two[-3:] == ["~2.00", "", ""]
    assert one[0] == "adamw, fused" and one[1].startswith("1000.00 (~")
    assert report.times(rows, "large", 0.6)[1][0][1] == "2000.00 (0.50)"
    _, lines = report.goals(rows)
    fused = ["adamw: step", "large", "torch fused", "1.3", "2.00", "", "~no"]
    assert fused in lines
    assert ["adamw: bytes", "large", "", "40", "40.0", "", "yes"] in lines
    limited = ["adamw: step", "large", "optax", "1", "0.50", "0.25 to 0.50", "yes"]
    assert limited in lines
    assert step_ratios(rows)["large"]["adamw"]["stepax"] == 0.5


def test_a_step_in_one_is_measured_beside_the_two_calls():
    found = measure.ways(CASES["lion"], ("stepax", "optax", "torch"))
    assert list(found) == ["stepax", "stepax.step", "optax"]
    tree = abstract({"w": (128, 128)})
    built = {k: way.build(way.make(), tree) for k, way in found.items()}
    assert built["stepax"].kinds == built["stepax.step"].kinds
    less = built["stepax"].counts["temporaries"] - 4
    assert built["stepax.step"].counts["temporaries"] == pytest.approx(less, abs=0.1)
    assert list(measure.ways(CASES["soap"], ("stepax", "optax"))) == list(found)[:2]


def test_the_bytes_of_a_waiting_call_are_those_of_its_sum():
    case, tree = CASES["multi_steps(adamw, 4)"], abstract({"w": (64, 64)})
    # The gradient is added to the sum.
    found = stages.bytes_of_first_call(
        case.make(stepax, RATE), stepax, tree, case.arrange, stages.in_one
    )
    assert found == pytest.approx(12, abs=0.1)


def test_the_products_of_a_step_are_counted_with_their_loops():
    def step(x):
        return jax.lax.fori_loop(0, 3, lambda i, y: jax.jit(jnp.dot)(x, y), x) @ x

    traced = jax.jit(step).trace(jnp.ones((4, 4)))
    found = [times for _, times in products.products_of(traced.jaxpr.eqns)]
    assert sorted(found) == [1, 3]
    products.alone(traced)(2)


@pytest.mark.slow
def test_calls_of_a_period_are_timed_one_by_one(monkeypatch):
    monkeypatch.setitem(SHAPES, "gpt256", Shape("tiny", lambda n: TREE))
    plan = measure.Plan(1, rounds.Limits(1, 1, 0.0, 0.05), ("stepax",))
    *_, (what, rows) = measure.measure("gpt256", "soap", plan)
    assert what == "done" and [row["library"] for row in rows] == [*measure.WAYS]
    for row in rows:
        assert {f"call {i}" for i in range(10)} <= set(row["rounds"])
        assert row["longest to median call"] >= 1


def test_a_file_of_another_kind_is_refused(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text('{"rows": []}')
    assert main(["--from", str(path)]) == 2
    assert "x.json is not a file of this benchmark" in capsys.readouterr().out


def test_bytes_per_second_are_set_beside_those_of_a_copy():
    rows = [{"bytes": 40.0, "numbers": 1000, "step": 2.0}, {"step": 1.0}]
    bandwidth.add_rates(rows, rate=80_000.0)
    assert rows[0]["bytes per second"] == 20_000 and rows[0]["of copy"] == 0.25
    assert rows[0][goals.COPIES] == 4
    assert rows[1] == {"step": 1.0}


def test_a_copy_reads_and_writes_every_number():
    program = bandwidth.copy(2**12)
    assert program.cost_analysis()["bytes accessed"] == pytest.approx(2 * 4 * 2**12)
    rate = bandwidth.copy_rate(2**12, rounds=3)
    assert np.isfinite(rate) and rate > 0


def test_a_case_that_cannot_be_compiled_is_an_error_of_its_own():
    pair = "gpt256", "soap"
    plan = measure.Plan(1, rounds.Limits(1, 1, 0.0, 0.05), ("stepax",))
    plan = plan._replace(programs={pair: MemoryError("too large")})
    with pytest.raises(MemoryError, match="too large"):
        next(measure.measure(*pair, plan))


@pytest.mark.slow
def test_torch_takes_a_step_of_muon():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    arrays = [np.ones((4, 3), np.float32), np.ones(3, np.float32)]
    params, steps = in_torch.steps("muon", arrays, [0.1 * x for x in arrays])
    assert list(steps) == ["torch loop"]
    steps["torch loop"]()
    assert all((p.detach().numpy() != 1).all() for p in params)

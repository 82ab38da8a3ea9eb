"""The benchmark: what it measures is right; how long anything takes is not tested."""

import json
import os
import pty
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.image import imread
from test_demo import read_all

import stepax
from stepax.__main__ import main
from stepax._bench import bandwidth, command, goals, in_torch, measure, report, stages
from stepax._bench.cases import CASES, RATE
from stepax._bench.picture import step_ratios
from stepax._bench.shapes import SHAPES, Shape, abstract, filled, size


optax = pytest.importorskip("optax", reason="it is what is compared with")
TREE = {"w": (6, 4), "b": (4,), "v": (3, 8)}


def bench(*args, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-m", "stepax", "bench", *map(str, args)], text=True, **kwargs
    )


@pytest.mark.slow
def test_a_piped_run_tells_plainly_and_writes_all_files(tmp_path):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "md", "png")}
    quick = "--quick", "--rounds", 1, "--shapes", "small", "--only", "sgd*"
    to = "--json", files["json"], "--markdown", files["md"], "--png", files["png"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = bench(*quick, *to, **pipes)
    told, errors = process.communicate()
    assert process.returncode == 0, errors
    lines = [line for line in told.splitlines() if "of optax" in line]
    assert lines and lines[0].startswith(" 1/1  small     sgd, momentum")
    assert not any(c < " " and c != "\n" for c in told)
    found = json.loads(files["json"].read_text())
    assert found["about"]["versions"]["jax"] == jax.__version__
    assert "bench --quick --rounds 1" in found["about"]["command"]
    by_library = {row["library"]: row for row in found["rows"]}
    assert {"stepax", "optax"} <= set(by_library)
    measured = {"step", "trace", "lower", "compile", "init", "un-jitted", "bytes"}
    assert measured <= set(by_library["stepax"])
    rounds = {k: len(x) for k, x in by_library["stepax"]["rounds"].items()}
    assert rounds.pop("step") in (1, measure.MORE)  # more if it is quick
    assert set(rounds.values()) == {1}
    assert "| sgd, momentum |" in files["md"].read_text()
    assert np.ptp(imread(files["png"])[..., :3], axis=-1).max() > 0.3


@pytest.mark.slow
def test_a_terminal_shows_a_bar_and_tables(tmp_path):
    ours, theirs = pty.openpty()
    env = dict(os.environ, TERM="xterm", COLUMNS="160")
    quick = "--quick", "--rounds", 1, "--shapes", "small", "--only", "sgd*"
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
    short = ["--shapes", "small", "--only", "adam", "--rounds", "1"]
    assert main(["bench", *short]) == 0
    told = capsys.readouterr().out
    for name in ("optax", "torch", "rich", "matplotlib"):
        line = f"^{name} is not installed, so .*: pip install {name}$"
        assert re.search(line, told, re.MULTILINE)
    assert "adam" in told and "of optax" not in told
    assert not jax.config.values["jax_enable_compilation_cache"]  # it hides the time
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_goes_on_from_its_file(tiny, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "installed", lambda: ("stepax",))  # Optax promotes
    kept = tmp_path / "kept.json"
    to = ["--json", str(kept), "--png", str(tmp_path / "out.png"), "--rounds", "1"]
    assert main(["bench", "--shapes", "small", "--only", "adam", *to]) == 0
    first = json.loads(kept.read_text())["rows"]
    names = {row["case"] for row in first}
    assert main(["bench", "--shapes", "small", "--only", "sgd*", *to]) == 0
    second = json.loads(kept.read_text())["rows"]
    assert second[: len(first)] == first and len(second) > len(first)
    capsys.readouterr()
    assert main(["bench", "--shapes", "small", "--only", "sgd*", *to]) == 0
    assert json.loads(kept.read_text())["rows"] == second
    told = capsys.readouterr().out
    assert all(name in told for name in names)
    assert main(["bench", "--quick", "--only", "sgd*", *to]) == 2
    assert "is of a run with other divisor, 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--shapes", "huge"], "invalid choice: 'huge'"),
        (["--rounds", "0"], "expected more than 0, got 0"),
        (["--json", "out.txt"], "expected a name ending in .json, got out.txt"),
        (["--markdown", "out.txt"], "expected a name ending in .md, got out.txt"),
        (["--png", "no/such/out.png"], "there is no folder no/such"),
    ],
)
def test_wrong_arguments_are_explained(args, message, capsys):
    with pytest.raises(SystemExit):
        main(["bench", *args])
    assert message in capsys.readouterr().err


def test_a_name_that_fits_nothing_is_an_error_with_all_names(capsys):
    assert main(["bench", "--only", "adamm"]) == 2
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


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", CASES)
def test_both_libraries_take_the_same_steps_on_the_same_arrays(name):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        theirs = run_twice(CASES[name].make(optax, RATE), optax, CASES[name].dtype)
    ours = run_twice(CASES[name].make(stepax, RATE), stepax, CASES[name].dtype)
    assert ours[0] == theirs[0]
    for x, y in zip(ours[1], theirs[1], strict=True):
        # Products of Muon in another order: some roundings of numbers of order 1.
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(set(in_torch.MADE) - {"adafactor"}))
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


ROWS = [
    {"shape": "large", "case": "adamw", "library": "stepax", "step": 1.0, "bytes": 40},
    {"shape": "large", "case": "adamw", "library": "optax", "step": 2.0, "bytes": 41},
    {"shape": "large", "case": "adamw", "library": "torch fused", "step": 0.5},
]


def test_goals_are_ratios_or_numbers_of_the_run():
    value = {goals.named(goal): goals.got(goal, ROWS) for goal in goals.GOALS}
    assert value["adamw: step", "large", "optax"] == 0.5
    assert value["adamw: step", "large", "torch fused"] == 2.0
    assert value["adamw: bytes", "large", ""] == 40
    assert value["lion: step", "large", "optax"] is None


def test_tables_show_ratios_and_goals():
    _, (line,) = report.times(ROWS, "large")
    assert line[:2] == ["adamw", "1000.00 (0.50)"] and line[-3:] == ["2.00", "", ""]
    _, lines = report.goals(ROWS)
    assert ["adamw: step", "large", "torch fused", "1.3", "2.00", "no"] in lines
    assert ["adamw: bytes", "large", "", "40", "40.0", "yes"] in lines
    assert step_ratios(ROWS) == {"large": {"adamw": 0.5}}


def test_bytes_per_second_are_set_beside_those_of_a_copy():
    rows = [{"bytes": 40.0, "numbers": 1000, "step": 2.0}, {"step": 1.0}]
    bandwidth.add_rates(rows, rate=80_000.0)
    assert rows[0]["bytes per second"] == 20_000 and rows[0]["of copy"] == 0.25
    assert rows[1] == {"step": 1.0}


def test_a_copy_reads_and_writes_every_number():
    program = bandwidth.copy(2**12)
    assert program.cost_analysis()["bytes accessed"] == pytest.approx(2 * 4 * 2**12)
    rate = bandwidth.copy_rate(2**12, rounds=3)
    assert np.isfinite(rate) and rate > 0

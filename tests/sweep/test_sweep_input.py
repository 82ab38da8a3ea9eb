"""A sweep that is interrupted, wrong arguments, and the command."""

import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import compilations

import stepax
from examples.demo.sweep import main
from stepax._sweep import driver


RATES = [0.05, 0.1, 0.2, 0.4, 0.8]
DATA = np.arange(6, dtype=np.float32).reshape(3, 2)


def loss(params, key):
    x = jnp.asarray(DATA)[jax.random.randint(key, (), 0, 3)]
    return jnp.mean((params["w"] - x) ** 2)


def init(key):
    return {"w": jax.random.normal(key, (2,))}


def run(path=None, **changed):
    given = {
        "loss": loss,
        "init": init,
        "make_tx": stepax.sgd,
        "grid": {"learning_rate": RATES, "nesterov": [False, True]},
        "steps": 4,
        "seeds": 2,
        "path": path,
    }
    return stepax.sweep(**given | changed)


def momentum(learning_rate, nesterov):
    return stepax.sgd(learning_rate, momentum=0.5, nesterov=nesterov)


# --- going on from a file -------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_that_was_interrupted_ends_with_the_same_bits(tmp_path, monkeypatch):
    whole = run()
    path = tmp_path / "sweep.npz"
    calls, save = [], driver.Store.save

    def stop_later(store):
        save(store)
        calls.append(int(store.done.sum()))
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(driver.Store, "save", stop_later)
    with pytest.raises(KeyboardInterrupt):
        run(path)
    monkeypatch.undo()
    assert 0 < calls[-1] < 20
    again = run(path)
    np.testing.assert_array_equal(again.losses, whole.losses)
    with compilations() as found:
        np.testing.assert_array_equal(run(path).losses, whole.losses)
    assert found == []
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.npz"]


def test_runs_side_by_side_go_on_in_as_large_calls(tmp_path, monkeypatch):
    path = tmp_path / "sweep.npz"
    one = {"vectorize": True, "memory": 1}
    whole = run(path, **one)
    monkeypatch.setattr(driver.Store, "_compare", lambda *_: None)
    again = run(path, vectorize=True)  # all at once, by the memory
    np.testing.assert_array_equal(again.losses, whole.losses)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"steps": 5}, "`steps`, 4 for 5"),
        ({"seeds": 3}, "`seeds`"),
        ({"grid": {"learning_rate": RATES}}, "`grid`"),
        ({"loss": lambda p, key: loss(p, key) + 1}, "`loss`, `init` or `make_tx`"),
        ({"init": lambda key: {"w": jnp.ones(2)}}, "`loss`, `init` or `make_tx`"),
        ({"make_tx": momentum}, "`loss`, `init` or `make_tx`"),
    ],
    ids=["steps", "seeds", "grid", "loss", "init", "transformation"],
)
def test_the_file_of_another_sweep_is_refused(tmp_path, changed, named):
    path = tmp_path / "sweep.npz"
    run(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=re.escape(named)) as error:
        run(path, **changed)
    assert str(path) in str(error.value) and "another sweep" in str(error.value)
    assert path.read_bytes() == before


def test_other_data_are_another_sweep(tmp_path, monkeypatch):
    path = tmp_path / "sweep.npz"
    run(path)
    monkeypatch.setitem(globals(), "DATA", DATA + 1)
    with pytest.raises(ValueError, match="other `loss`, `init` or `make_tx`"):
        run(path)


@pytest.mark.parametrize("content", [b"", b"PK\3\4 no archive", b"text", None])
def test_a_file_that_is_no_sweep_is_refused(tmp_path, content):
    path = tmp_path / "sweep.npz"
    if content is None:
        np.savez(path, losses=np.ones(3))
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} is not the file of a sweep"):
        run(path)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} is a folder, expected a file"):
        run(tmp_path)


# --- wrong arguments ------------------------------------------------------------------

BAD = {
    "no grid": ({"grid": None}, TypeError, "`grid` is `None`, expected a dict"),
    "empty grid": ({"grid": {}}, ValueError, "`grid` is empty, expected at least one"),
    "empty sequence": (
        {"grid": {"learning_rate": []}},
        ValueError,
        "`grid['learning_rate']` is empty",
    ),
    "no sequence": (
        {"grid": {"learning_rate": 0.1}},
        TypeError,
        "`grid['learning_rate']` is a `float`, expected a sequence",
    ),
    "string": (
        {"grid": {"learning_rate": "0.1"}},
        TypeError,
        "`grid['learning_rate']` is a `str`, expected a sequence",
    ),
    "matrix": ({"grid": {"learning_rate": np.ones((2, 2))}}, TypeError, "an array of"),
    "name": (
        {"grid": {"learning_rat": [0.1]}},
        TypeError,
        "unexpected keyword argument 'learning_rat'; did you mean `learning_rate`?",
    ),
    "point": (
        {"grid": {"learning_rate": [0.1, math.inf]}},
        ValueError,
        "at the point learning_rate=inf of `grid`: `sgd`: `learning_rate` must be",
    ),
    "string in it": (
        {"grid": {"learning_rate": [0.1, "0.2"]}},
        TypeError,
        "at the point learning_rate='0.2' of `grid`: ",
    ),
    "no transformation": (
        {"make_tx": lambda **point: None},
        TypeError,
        "`make_tx(learning_rate=0.05, nesterov=False)` must be a gradient transf",
    ),
    "steps": ({"steps": -1}, ValueError, "`steps` is -1, expected a whole number, 1"),
    "no steps": ({"steps": 0}, ValueError, "`steps` is 0"),
    "half a step": ({"steps": 1.5}, ValueError, "`steps` is 1.5"),
    "seeds": ({"seeds": -2}, ValueError, "`seeds` is -2, expected a whole number, 1"),
    "no seeds": ({"seeds": []}, ValueError, "`seeds` is empty"),
    "a seed": ({"seeds": [0, -1]}, ValueError, "`seeds` is -1"),
    "margin": ({"margin": 1.5}, ValueError, "`margin` must be in [0, 1], but is 1.5"),
    "negative margin": ({"margin": -0.1}, ValueError, "`margin` must be in [0, 1]"),
    "bound": ({"bound": float("nan")}, ValueError, "`bound` must be a number"),
    "last": ({"last": 5}, ValueError, "`last` is 5, expected a whole number, 1 to 4"),
    "memory": ({"vectorize": True, "memory": 0}, ValueError, "`memory` is 0"),
    "rate": (
        {"rate": "learningrate"},
        ValueError,
        "`rate` is 'learningrate', which `grid` does not have; did you mean `lea",
    ),
    "loss": ({"loss": 1.0}, TypeError, "`loss` is a `float`, expected a function"),
    "vector": (
        {"loss": lambda p, key: p["w"]},
        TypeError,
        "`loss` returned float32 of shape (2,), expected a real scalar",
    ),
    "aux": (
        {"loss": lambda p, key: (loss(p, key), {})},
        TypeError,
        "`loss` returned a tuple of 2, expected a real scalar",
    ),
    "complex": (
        {"loss": lambda p, key: jax.lax.complex(loss(p, key), 1.0)},
        TypeError,
        "`loss` returned complex64 of shape (), expected a real scalar",
    ),
    "init": (
        {"init": lambda key: {"n": 3}},
        ValueError,
        "`init` returned a tree without floating-point arrays",
    ),
    "folder": ({"path": "no/such/file.npz"}, ValueError, "there is no folder no/such"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_argument_is_named(case):
    changed, kind, message = BAD[case]
    with pytest.raises(kind, match=re.escape(message)):
        run(**changed)


def test_an_error_in_the_loss_is_the_users_own():
    def broken(params, key):
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        run(loss=broken)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("grid", "rate", "message"),
    [
        (
            {"nesterov": [False, True]},
            None,
            "`plot` needs a learning rate: pass its name in the grid as `rate`",
        ),
        ({"learning_rate": [0.1, 0.0]}, None, "positive numbers for 'learning_rate'"),
        ({"nesterov": [False]}, "nesterov", "positive numbers for 'nesterov'"),
        ({"nesterov": [False]}, "nestrov", "no 'nestrov'; did you mean `nesterov`"),
    ],
    ids=["none", "zero", "boolean", "unknown"],
)
def test_a_picture_without_a_rate_is_refused(grid, rate, message, tmp_path):
    make_tx = lambda learning_rate=0.1, nesterov=False: stepax.sgd(
        learning_rate, momentum=0.9, nesterov=nesterov
    )
    result = run(grid=grid, make_tx=make_tx, steps=1)
    with pytest.raises(ValueError, match=re.escape(message)):
        result.plot(tmp_path / "picture.png", rate)


def test_a_part_that_is_not_there_is_refused():
    result = run()
    with pytest.raises(ValueError, match="no point of the sweep has learning_rate=3"):
        result.select(learning_rate=3)
    with pytest.raises(ValueError, match="no 'nestrov'; did you mean `nesterov`"):
        result.select(nestrov=True)


# --- progress and the command ---------------------------------------------------------


def test_progress_is_plain_lines_in_a_pipe(capsys):
    run(progress=True)
    *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"20/20 runs   lowest loss [\d.]+ at learning_rate=.*", last)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--optimizer", "adamw,muonn"], 'no optimizer "muonn" here, did you mean "mu'),
        (["--optimizer", ""], 'no optimizer "" here'),
        (["--rates", "0"], "expected more than 0, got 0"),
        (["--steps", "-3"], "expected more than 0, got -3"),
        (["--lowest", "nan"], "expected more than 0, got nan"),
        (["--png", "picture.jpg"], "expected a name ending in .png"),
        (["--file", "losses.txt"], "expected a name ending in .npz"),
    ],
)
def test_a_wrong_option_is_one_line(args, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_the_command_sweeps_the_digits(tmp_path, capsys):
    png, file = tmp_path / "sweep.png", tmp_path / "sweep.npz"
    args = ["--optimizer", "sgd,Adam", "--rates", "2", "--seeds", "1", "--steps", "4"]
    args += ["--lowest", "1e-3", "--highest", "1e-2", "--file", str(file)]
    assert main([*args, "--png", str(png)]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0] == "sgd, adam on handwritten digits: 4 runs of 4 steps"
    assert [x.split()[0] for x in lines[3:7]] == ["sgd", "sgd", "adam", "adam"]
    assert re.match(r"4 runs of 4 steps took \d+ s, compilation included", lines[7])
    assert lines[8].startswith("sgd: lowest loss") and png.exists()
    assert told.err.splitlines()[-1].startswith("4/4 runs   lowest loss")
    assert main([*args[:-4], "--lowest", "2e-3", *args[-2:]]) == 2
    assert "to another sweep, with other `grid`" in capsys.readouterr().err
    assert main(["--lowest", "1", "--highest", "0.1"]) == 2


@pytest.mark.slow
def test_help_says_how_long_it_takes():
    command = [sys.executable, "-m", "examples.demo.sweep", "--help"]
    told = subprocess.check_output(command, text=True)
    assert "two minutes for each optimizer on two cores" in " ".join(told.split())

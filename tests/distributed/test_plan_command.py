"""`python -m stepax plan`: models of a table."""

import json
import math

import jax
import pytest

from stepax.__main__ import main
from stepax._plan import MODELS, size, specs
from stepax._plan.command import optimizers, planned


SMALL = ["plan", "--model", "llama-1b"]


def test_a_plan_is_printed(capsys):
    assert main([*SMALL, "--devices", "64"]) == 0
    said = capsys.readouterr().out
    assert "llama-1b, 1,235,814,400 parameters, adamw" in said
    assert "on 64 devices: data=64" in said and "`audit`" in said


@pytest.mark.slow
def test_json_is_the_plan(capsys):
    args = ["--mesh", "data=4,model=2", "--zero", "--bits", "8", "--masters"]
    assert main([*SMALL, *args, "--offload", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    options = {"bits": 8, "masters": True, "sharded": True, "on_host": True}
    found = planned("llama-1b", "adamw", {"data": 4, "model": 2}, **options)
    assert {k: said[k] for k in found.to_dict()} == found.to_dict()
    # Two bytes for each parameter, which `model` alone shards, and four for the master.
    assert found.params == 2 * found.numbers
    assert found.params_per_device < found.params / 1.9
    assert found.host_per_device == found.state_per_device > found.numbers * 4 / 8


# The published numbers of parameters, in billions, as rounded there.
@pytest.mark.parametrize(
    "name, billions",
    [
        ("llama-1b", 1.24),
        ("llama-8b", 8.03),
        ("llama-70b", 70.6),
        ("llama-405b", 405.9),
        ("mixtral-8x7b", 46.7),
    ],
)
def test_models_are_of_the_published_size(name, billions):
    assert size(MODELS[name]) / 1e9 == pytest.approx(billions, rel=5e-3)
    shapes = MODELS[name].shapes("bfloat16")
    assert {x.dtype.name for x in jax.tree.leaves(shapes)} == {"bfloat16"}


@pytest.mark.parametrize("name", MODELS)
def test_matrices_are_shared_evenly_by_all_axes(name):
    mesh = {"data": 8, "model": 4, "expert": 2}
    shapes = MODELS[name].shapes()
    found = specs(shapes, mesh)
    pairs = zip(*map(jax.tree.leaves, (shapes, found)), strict=True)
    for x, spec in pairs:
        names = [k for k in spec if k]
        assert len(set(names)) == len(names)
        axes = {1: 8, 2: 32, 3: 64}[len(x.shape)]
        assert math.prod(mesh[k] for k in names) == axes
    whole = specs(shapes, mesh, is_split=False)
    assert not any("data" in tuple(x) for x in jax.tree.leaves(whole))


def test_every_offered_optimizer_is_one_of_a_rate():
    assert {"adamw", "lion", "muon", "soap", "adafactor", "sgd"} <= set(optimizers())


@pytest.mark.parametrize(
    "args, message",
    [
        (["--optimizer", "muonn"], 'no optimizer "muonn" here, did you mean "muon"?'),
        (["--model", "llama-2b"], "invalid choice: 'llama-2b' (choose from"),
        (["--mesh", "rows=8"], "expected sizes of data, model, expert, as in data=64"),
        (["--mesh", "data=8,data=2"], 'got "data=2"'),
        (["--mesh", "data=x"], 'expected a whole number, got "x"'),
        (["--devices", "0"], "expected more than 0, got 0"),
        (["--bits", "3"], "invalid choice: 3"),
    ],
)
def test_wrong_option_is_one_line_and_exit_code_2(args, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, *args])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "args, message",
    [
        (["--mesh", "data=4", "--devices", "8"], "--mesh has 4 devices, but --devices"),
        (
            ["--mesh", "data=99999999999999"],
            "99999999999999 devices is too large: give",
        ),
        (["--mesh", "data=65536,model=32768"], "a mesh of 2147483648 devices is too"),
        (["--mesh", "model=4", "--zero"], "--zero shards along `data`, which --mesh"),
    ],
)
def test_options_that_do_not_fit_together_are_named(args, message, capsys):
    assert main([*SMALL, *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_no_command_prints_help(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "plan" in said and "make demo" in said


def test_an_unknown_command_is_one_line_with_those_there_are(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["demo"])
    assert stop.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "invalid choice: 'demo' (choose from" in line and "plan" in line


def test_help_says_what_to_start_with(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    said = capsys.readouterr().out
    assert "python -m stepax plan --model llama-70b" in said
    assert all(name in said for name in MODELS)

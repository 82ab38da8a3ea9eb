"""The GPT of the examples: both libraries, several devices, kills, and its page."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from examples.gpt import __main__ as gpt, text as texts, training
from examples.gpt.compare import row


ROOT = Path(__file__).parents[2]
LIBRARIES = list(training.LIBRARIES)
WORDS = ["the cat sat", "on the mat", "that the dog ate"]
TEXT = texts.encode(" ".join(WORDS[i % 3] for i in range(99)))
SIZE = training.Size(len(TEXT.alphabet), context=8, width=8, layers=2, heads=2)
RUN = ["--steps=40", "--every=8", "--width=8", "--context=8", "--layers=1"]


def plan(library, optimizer="muon"):
    return training.Plan(library, optimizer, 1e-2, 6, 8, 0, SIZE, TEXT.digest)


def take_steps(library, devices):
    """The program, what it has after six steps, and the losses of these."""
    program = training.program(plan(library), TEXT, training.mesh_of(devices))
    carry = program.params, program.tx.init(program.params)
    carry, losses = program.take_steps(carry, jnp.arange(6))
    return program, carry, np.asarray(losses)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_eight_devices_agree_with_one(library):
    (_, one, losses), (program, eight, found) = (
        take_steps(library, devices) for devices in (1, 8)
    )
    # A gradient in bfloat16 has 8 bits; a batch that is divided rounds otherwise.
    np.testing.assert_allclose(found, losses, rtol=2**-7)
    assert losses[-1] < losses[0]
    params, state = eight
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    kinds = {x.dtype for x in jax.tree.leaves(state)}
    assert kinds == {jnp.dtype("float32"), jnp.dtype("int32")}
    before = jax.eval_shape(program.tx.init, params)
    same = lambda a, b: a.shape == b.shape and a.dtype == b.dtype
    assert jax.tree.all(jax.tree.map(same, before, state))
    # All matrices of a layer but none of its vectors are large enough to be divided.
    shares = [x.size // x.addressable_data(0).size for x in jax.tree.leaves(state)]
    assert set(shares) == {1, 8}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_muon_trains_the_matrices_of_the_blocks(library):
    params, _ = training.create(library, SIZE, jax.random.key(0))
    matrices = training.model(library).MATRICES
    state = training.optimizer("muon", 1e-2, 6, matrices).init(params)
    is_muon = lambda x: isinstance(x, stepax.contrib.MuonState)
    (muon,) = filter(is_muon, jax.tree.leaves(state, is_leaf=is_muon))
    square = [(8, 8)] * 4 * SIZE.layers
    long = [(8, 32)] * 2 * SIZE.layers
    found = [tuple(sorted(x.shape)) for x in jax.tree.leaves(muon.mu)]
    assert sorted(found) == sorted(square + long)


@pytest.mark.slow
def test_both_libraries_compute_the_same():
    theirs = training.create("nnx", SIZE, jax.random.key(0))
    params, logits = training.create("equinox", SIZE, jax.random.key(0))
    named = {path_of(k): x for k, x in jax.tree_util.tree_leaves_with_path(theirs[0])}
    other = lambda x: "weight" if x in ("kernel", "scale", "embedding") else x
    values = {
        "/".join([*path[:-1], other(path[-1])]): (x.T if path[-1] == "kernel" else x)
        for path, x in named.items()
    }
    take = lambda path, _: values.pop("/".join(path_of(path)))
    params = jax.tree_util.tree_map_with_path(take, params)
    assert not values
    wide = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32), tree)
    indices = TEXT.train[:16].reshape(2, 8)
    with jax.numpy_rank_promotion("allow"):
        found = logits(wide(params), indices)
        wanted = theirs[1](wide(theirs[0]), indices)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def path_of(keys):
    """The names of a path: those of Flax end in one more, `value`."""
    words = re.findall(r"\w+", jax.tree_util.keystr(keys))
    return tuple(words[:-1] if words[-1] == "value" else words)


def run(library, folder, capsys, *more):
    """What a run of Muon in this process prints."""
    given = [*RUN, f"--library={library}", f"--folder={folder}", f"--out={folder}.png"]
    gpt.main([*given, "--optimizer=muon", *more])
    return capsys.readouterr().out


def digest(told):
    return re.findall("digest of the parameters: ([0-9a-f]{16})", told)


def start_and_kill(library, folder, seed):
    """Start the same run in a process, and kill it a random time after a step."""
    code = f"""
from examples.gpt.__main__ import main
main({[*RUN, f"--library={library}", f"--folder={folder}"]!r}
     + ["--optimizer=muon", "--resume"])
"""
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        assert started.stdout is not None
        next(line for line in started.stdout if "saved step" in line)
        time.sleep(random.Random(seed).uniform(0, 0.1))
        started.kill()
    assert started.returncode == -signal.SIGKILL


def stop_after(monkeypatch, saves):
    """Let the next run end as by Ctrl-C, right after so many saves."""
    left = iter(range(saves - 1))

    def saved(*args, **kwargs):
        stepax.checkpoint.save(*args, **kwargs)
        if next(left, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "save", saved)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    library, tmp_path, capsys, monkeypatch
):
    whole = run(library, tmp_path / "whole", capsys)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_after(patch, saves=2)
        run(library, tmp_path / "stopped", capsys)
    told = run(library, tmp_path / "stopped", capsys, "--resume")
    assert digest(told) == digest(whole) != []
    held = lambda said: re.findall("held-out loss, .*", said)
    assert held(told) == held(whole) != []
    assert (tmp_path / "stopped.png").read_bytes()[1:4] == b"PNG"
    history = [
        (tmp_path / name / "muon" / training.HISTORY).read_text()
        for name in ("whole", "stopped")
    ]
    assert history[0] == history[1]

    with pytest.raises(SystemExit, match="resume it with the arguments that it was"):
        run(library, tmp_path / "stopped", capsys, "--resume", "--seed=1")


# Once in a run of the whole suite the bits differed, with a cold cache on a loaded
# machine; alone they never did.  The cause is not known: it is tried at night.
@pytest.mark.slow("test_a_run_that_was_stopped_ends_with_the_same_bits")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
    library, tmp_path, capsys
):
    whole = run(library, tmp_path / "whole", capsys)
    for seed in range(3):
        start_and_kill(library, tmp_path / "killed", seed)
    told = run(library, tmp_path / "killed", capsys, "--resume")
    assert digest(told) == digest(whole) != []


def test_the_folder_of_an_earlier_run_is_put_aside(tmp_path):
    folder = tmp_path / "run"
    assert gpt.put_aside(folder) is None
    for name in ("run-1", "run-2"):
        folder.mkdir()
        assert gpt.put_aside(folder) == tmp_path / name
    assert not folder.exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--width=10"], "--width is 10, expected a multiple of 4, the heads"),
        (["--batch=7"], "--batch is 7, expected a multiple of the 8 devices"),
        (["--rate=-1"], "--rate is -1.0, expected a positive number"),
        (["--steps=0"], "argument --steps: invalid whole value: '0'"),
        (["--library=linen"], "argument --library: invalid choice: 'linen'"),
    ],
)
def test_wrong_arguments_are_one_line(args, message, capsys):
    with pytest.raises(SystemExit) as stop:
        gpt.arguments(args)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_python_without_the_text_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(SystemExit, match="comes without `pydoc_data.topics`"):
        texts.load()


def test_no_paragraph_of_the_test_was_trained_on():
    text = texts.load()
    assert len(text.train) + len(text.test) > 300_000
    train, test = text.spell(text.train), text.spell(text.test)
    # The first and the last one are cut.
    for paragraph in test.split("\n\n")[1:-1]:
        assert f"\n\n{paragraph}\n\n" not in train


@pytest.mark.project
def test_a_row_of_the_evidence():
    reports = [
        training.Report(40, np.full(40, 2.0), {20: 3.0, 40: x}, None)
        for x in (1.0, 2.0, 3.0)
    ]
    assert row(reports) == {
        "held_out": [1.0, 2.0, 3.0],
        "mean": 2.0,
        "standard_deviation": 1.0,
        "training_loss_by_20_steps": [2.0, 2.0],
    }


EVIDENCE = json.loads((ROOT / "docs/evidence/gpt.json").read_text())


@pytest.mark.project
def test_the_example_trains_at_the_rates_of_the_evidence():
    found = {k: v["learning_rate"] for k, v in EVIDENCE["optimizers"].items()}
    assert found == gpt.RATES
    for one in EVIDENCE["optimizers"].values():
        assert len(one["tuning"]) == len(EVIDENCE["tuning"]["rates"])
        assert len(one["held_out"]) == len(EVIDENCE["seeds"]) >= 3
    assert not set(EVIDENCE["seeds"]) & set(EVIDENCE["tuning"]["seeds"])


@pytest.mark.project
def test_the_page_has_the_figures_of_the_evidence():
    page = (ROOT / "docs/gpt.md").read_text()
    for name, one in EVIDENCE["optimizers"].items():
        seeds = ", ".join(f"{x:.3f}" for x in one["held_out"])
        mean, deviation = one["mean"], one["standard_deviation"]
        cells = f"{name} | {one['learning_rate']:g} | {mean:.3f} ± {deviation:.3f}"
        assert f"| {cells} | {seeds} |" in page
    for key in ("command", "machine"):
        assert EVIDENCE[key] in page
    assert EVIDENCE["text"]["sha256"] in page

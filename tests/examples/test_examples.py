"""Every script in `examples/` runs as a user runs it and prints what it promises."""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))

PRINTED = {
    "accumulate_nan": """
        zero_nans inside: windows 5, waiting steps 5, all finite
        zero_nans outside: windows 5, waiting steps 5, all finite
        apply_if_finite: windows 4, waiting steps 6, all finite
          refused windows: 1
        skip_not_finite: windows 4, waiting steps 6, all finite
    """,
    "brax_ppo": r"""
        return (\d+\.\d) -> (\d+\.\d) of 100
        value: 6 leaves bit-identical
        optimizer state: (\d+) scalars for (\d+) trained, none for value
    """,
    "coordinates": r"""
        plain: change ~ width\^n, n of first (.*), out (.*), second (.*)
        mup: change ~ width\^n, n of first (.*), out (.*), second (.*)
    """,
    "inject_equinox": r"""
        mask as tree: injected - plain = (.*)
        mask as function: injected - plain = (.*)
        rate 0.001: moved (.*)
        rate 0.0001: moved (.*)
        rate 0: moved 0.0e\+00
        learning rates: 4, traces: 1
        bfloat16 parameters: injected \['b1', .*'learning_rate', .* as {'float32'}
    """,
    "lbfgs_neural_ode": r"""
        L-BFGS: (.*) -> (.*) in 200 evaluations
        Adam, 0.01: (.*) -> (.*) in 200 evaluations
        Adam, 0.03: (.*) -> (.*) in 200 evaluations
        Adam, 0.1: (.*) -> (.*) in 200 evaluations
    """,
    "log_csv": r"""
        step: 50
        loss: (.*)
        adamw/cosine: (.*)
        adamw/gradient_norm: (.*)
        adamw/update_ratio/bias: (.*)
        adamw/update_ratio/weight: (.*)
        adamw/inner_state/0/count: 50
        adamw/inner_state/0/mu/bias: (.*)
        adamw/inner_state/0/nu/bias: (.*)
        adamw/memory/0/bias: (.*)
    """,
    "log_tensorboard": r"""
        noise scale (.*) examples
    """,
    "masked_equinox": r"""
        masked: loss (.*) -> (.*), state 19 scalars
        masked by function: loss (.*) -> (.*), state 19 scalars
        partition: loss (.*) -> (.*), state 19 scalars
        partition by path: loss (.*) -> (.*), state 19 scalars
        frozen layers bit-identical, all ways agree
    """,
}

# They start processes; `test_multiprocess.py` runs them.
PROCESSES = ["digits_task", "distributed_digits", "heartbeat", "launch"]


@pytest.mark.project
def test_every_example_is_listed_here():
    assert SCRIPTS == sorted([*PRINTED, *PROCESSES])


@pytest.mark.project
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_short(name):
    most = 150 if name in PROCESSES else 99
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) <= most


def run(name, *args):
    """What the script prints; its own assertions fail the test."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment["PYTHONPATH"] = str(ROOT)
    script = ROOT / "examples" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(script), *args],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(name, *args):
    """The values in the lines of `PRINTED`."""
    lines = PRINTED[name].strip().splitlines()
    pattern = "\n".join(line.strip() for line in lines)
    printed = "\n".join(line.strip() for line in run(name, *args).strip().splitlines())
    found = re.search(pattern + r"\Z", printed)
    assert found, printed
    return [float(x) for x in found.groups()]


@pytest.mark.slow
def test_accumulation_survives_a_nan():
    check("accumulate_nan")


@pytest.mark.slow
def test_activations_change_as_much_at_every_width_under_mup():
    found = list(map(abs, check("coordinates")))
    assert max(found[:3]) > 0.3 and max(found[3:]) < 0.2


@pytest.mark.slow
def test_injected_hyperparameters_of_a_callable_model():
    gaps = check("inject_equinox")[:2]
    assert max(gaps) < 1e-5


@pytest.mark.slow
def test_metrics_are_logged_to_csv():
    loss, cosine, *_ = check("log_csv")
    assert loss < 0.1 and abs(cosine) <= 1


@pytest.mark.slow
def test_metrics_are_logged_in_the_format_of_tensorboard(tmp_path):
    (scale,) = check("log_tensorboard", str(tmp_path))
    (file,) = tmp_path.iterdir()
    found = list(events(file.read_bytes()))
    assert [n for n, name, _ in found if name == "gradient_norm"] == list(range(1, 81))
    last = {name: x for n, name, x in found if n == 80}
    assert {"loss", "noise/scale", "inner_state/gradient_step"} <= last.keys()
    assert last["noise/scale"] == pytest.approx(scale, rel=1e-2)
    assert last["inner_state/gradient_step"] == 20


def events(data):
    """Step, name and value of each scalar: records of a length, a checksum, an event,
    and its checksum."""
    from tensorboardX.proto import event_pb2

    proto: Any = event_pb2  # whose classes are made when it is imported
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = proto.Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        for value in event.summary.value:
            yield event.step, value.tag, value.simple_value


@pytest.mark.slow
def test_masks_and_labels_that_are_models():
    losses = check("masked_equinox")
    assert losses[:2] * 4 == losses


@pytest.mark.slow("test_lbfgs.py")
def test_lbfgs_fits_a_neural_ode_better_than_adam():
    start, found, *adam = check("lbfgs_neural_ode")
    assert start > 1 and found < min(adam[1::2])


@pytest.mark.slow("the tests of Brax in test_consumers.py")
def test_brax_learns_with_a_frozen_value_network():
    before, after, kept, learning = check("brax_ppo")
    # An untrained policy balances for 10 to 40 of 100 steps; with three seeds and two
    # versions of JAX the trained one has balanced for 99 or 100.
    assert before < 40 and after > 60
    assert kept == 2 * learning + 1

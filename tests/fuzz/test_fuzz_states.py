"""Random programs in wrappers that change nothing, and in calls that are no steps.

Each is run in two ways that must give the same: beside itself in a wrapper that holds
states twice or may idle; with states of NumPy, as `jax.device_get` and files make them;
in `MultiSteps`, each call made twice; with states that `tree.migrate` carried over; and
with float32 masters of bfloat16 parameters, where not a bit may change.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, strategies as st

import stepax
import stepax.contrib
from fuzz.beside import difference, failure, flat, is_wide
from fuzz.examples import fuzz as fuzz_states, other_parts
from fuzz.programs import nests
from fuzz.runs import (
    Program,
    Run,
    numbers,
    run,
    run_calls,
    run_ours,
    run_ours_by_operations,
    strictly,
)
from fuzz.trees import count, show, trees


# Around a program they return its updates.  Their values differ at most by a factor of
# some hundred, and gradients may be any.
SAME = [
    "o.rollback({}, 2, 1e9, 3)",
    "o.rollback(o.rollback({}, 2, 1e9, 3), 1, 1e9, 2)",
    "o.averages({}, 0.9)",
    "o.averages(o.averages({}, None), {{'fast': 0.5, 'slow': 0.9}})",
    "o.rollback(o.averages({}, 0.9), 1, 1e9, 2)",
    "o.apply_if_finite({}, 0)",
    "o.skip_spikes({}, 1e9)",
    "o.dynamic_loss_scale({}, 1.0)",
    "o.conditionally_mask({}, always)",
    "o.MultiSteps({}, 1).gradient_transformation()",
    "o.contrib.diloco({}, o.sgd(1.0), 100)",
    "o.observe({}, {{'norm': lambda g, u, p: o.global_norm(u)}})",
    "o.masked({}, True)",
]
# They act once in a step.
ACTING = [
    "o.with_weight_decay({}, 0.1, 0.1)",
    "o.with_weight_decay({}, o.weight_decay(falling, 'independent'), 0.1)",
    "o.averages({}, 0.9)",
    "o.averages({}, None, start=1)",
    "o.averages(o.with_weight_decay({}, 0.1, 0.1), {{'fast': 0.5, 'slow': 0.9}})",
    "o.contrib.gpa({}, 0.7, 0.9)",
    "o.contrib.ema_nesterov({}, 0.5)",
    "o.contrib.diloco({}, o.sgd(0.7, momentum=0.9), 2)",
    "o.chain({}, o.proximal(o.prox.l1(0.1), 0.1))",
]
IDLE = [
    "o.MultiSteps({}, 2).gradient_transformation()",
    "o.MultiSteps(o.chain({}), lambda t: 2 + 0 * t).gradient_transformation()",
    "o.apply_if_finite(o.MultiSteps({}, 2).gradient_transformation(), 0)",
    "o.skip_spikes(o.MultiSteps({}, 2).gradient_transformation(), 1e9)",
]
MASTERS = "o.master_weights({}, remainder={})"
KINDS = "same", "numpy", "idle", "migrated", "masters"


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Program, str]:
    """What is compared, a program, and the nest that it is compared with."""
    kind = draw(st.sampled_from(KINDS))
    spec = draw(trees().filter(count))
    tx = draw(nests(spec, draw(st.integers(1, 3))))
    size = st.sampled_from([1.0, 0.5, 0.01, 100.0, 0.0])
    sizes = draw(st.one_of(st.just((1.0,) * 4), st.tuples(*[size] * 4)))
    params, other = show(spec), tx
    # Programs with `sam` are given no keywords, as Optax's takes none.
    known = [x for x in SAME if "rollback" not in x or "sam(" not in tx]
    if "float16" in params:
        # Gradients are passed on in single, and a chain that rounds more than once, as
        # GaLore's is and Adam's is not, then rounds less.
        known = [x for x in known if "MultiSteps" not in x and "scale" not in x]
    if kind == "migrated" and "MultiSteps" in tx:  # which is which is not known
        known = [x for x in known if "MultiSteps" not in x]
    around = draw(st.sampled_from(known))
    if kind == "same":
        other = around.format(tx)
    elif kind == "numpy":
        tx = other = draw(st.sampled_from([tx, around.format(tx)]))
    elif kind == "migrated":
        tx, other = around.format(tx), draw(st.sampled_from(known)).format(tx)
    elif kind == "idle":
        # A function of the user's gets the mean of narrow gradients in single.
        assume("float16" not in params or "stateless" not in tx)
        acting = draw(st.sampled_from(ACTING))
        tx, other = (
            acting.format(x) for x in (tx, draw(st.sampled_from(IDLE)).format(tx))
        )
    else:
        cast = "lambda x: jax.numpy.asarray(x, 'bfloat16')"
        params = f"jax.tree.map({cast}, {params})"
        tx = MASTERS.format(tx, draw(st.sampled_from([16, 8])))
        other = around.format(tx)
    return kind, Program(params, tx, sizes), other


def check(case: tuple[str, Program, str]) -> None:
    kind, program, other = case
    if kind == "masters" and "complex" in program.params:
        return  # they have no masters
    run_first = run_ours_by_operations if kind == "numpy" else run_ours
    first = run_first(program)
    if first.error:  # what a program may not do is tested elsewhere
        return
    second = CHECKS[kind](program, other, first)
    told = "\n".join([kind, other, program.script()])
    assert not second.error, f"{failure(second)}\n{told}"
    assert not changes(second), f"the state changes\n{told}"
    for t, (x, y, p) in enumerate(
        zip(second.updates, first.updates, first.params, strict=True)
    ):
        text = f"step {t}: {differences(x, y)}\n{told}"
        if kind in ("numpy", "masters", "same", "migrated"):
            assert all(map(alike, numbers(x), numbers(y))), text
        elif is_wide(program):
            rows = zip(numbers(x), numbers(y), numbers(p), strict=True)
            assert all(difference(*row) <= 1e-9 for row in rows), text


def alike(x: np.ndarray, y: np.ndarray) -> bool:
    return np.array_equal(x.astype(y.dtype), y, equal_nan=True)


def differences(x: Any, y: Any) -> list[float]:
    pairs = zip(numbers(x), numbers(y), strict=True)
    return [float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs]


def changes(found: Run) -> bool:
    """Whether a state is not what it was at first."""
    return any({*flat(x)} != {*flat(found.states[0])} for x in found.states[1:])


def in_other(program: Program, other: str, first: Run) -> Run:
    with strictly():
        return run(stepax, replace(program, tx=other))


def with_numpy(program: Program, other: str, first: Run) -> Run:
    return run_ours_by_operations(program, carry="numpy")


def twice(program: Program, other: str, first: Run) -> Run:
    """Each call made twice; of two updates the second is that of the step."""
    calls = replace(program, tx=other).calls()
    with strictly():
        found = run_calls(stepax, [x for call in calls for x in (call, call)])
    idle = [x for u in found.updates[::2] for x in numbers(u)]
    if not found.error and any(x.any() for x in idle):
        found.error = AssertionError("an update in a call that is no step")
    return replace(found, updates=found.updates[1::2], params=found.params[1::2])


def migrated(program: Program, other: str, first: Run) -> Run:
    """Two steps of one nest, and the rest of another one with its state."""
    with strictly():
        rest = replace(program, tx=other).calls()[2:]
        return run_calls(stepax, program.calls()[:2] + rest)


CHECKS: dict[str, Callable[[Program, str, Run], Run]] = {
    "same": in_other,
    "numpy": with_numpy,
    "idle": twice,
    "migrated": migrated,
    "masters": in_other,
}


@pytest.fixture(autouse=True)
def wide(x64):
    """Differences of rounding are small in float64, and other ones show."""


@pytest.mark.slow
@other_parts
def test_programs_are_the_same_in_other_states(part):
    fuzz_states(check, part, case=cases())

"""`zero_nans` in `MultiSteps` reaches each gradient through what only passes it on."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import types
from runs import compare
from wrappers import WRAPPERS, seen

import stepax
import stepax.contrib


def steps(tx: Any, k: int = 2) -> Any:
    return stepax.MultiSteps(tx, k).gradient_transformation()


def by_path(tx: Any) -> Any:
    """In `flatten`, which then packs the tree."""
    rate = stepax.scale_by_learning_rate({"**/w": 0.5, "**": 0.25})
    return stepax.flatten(stepax.chain(tx, rate))


MORE: dict[str, Callable[[Any], Any]] = {
    "strict": lambda tx: stepax.strict_keywords(stepax.chain(tx, seen())),
    "with_extra_args_support": lambda tx: stepax.with_extra_args_support(
        stepax.MultiSteps(tx, 1)  # type: ignore[arg-type]
    ),
    "cut keywords": lambda tx: stepax.masked(tx, True, mask_compatible_extra_args=True),
    "flatten by path": by_path,
    "flatten in flatten": lambda tx: stepax.flatten(stepax.flatten(tx)),
    "rollback(flatten)": lambda tx: stepax.rollback(stepax.flatten(tx), 1, 4.0, 2),
    "masked(flatten)": lambda tx: stepax.masked(stepax.flatten(tx), True),
    "with_state_dtypes of a closure": lambda tx: stepax.with_state_dtypes(
        stepax.chain(stepax.flatten(tx), stepax.trace(0.9)), {"trace": jnp.bfloat16}
    ),
    "low_bit_states of a closure": lambda tx: stepax.low_bit_states(
        stepax.chain(stepax.rollback(tx), stepax.trace(0.9)),
        {"trace": 8},
        block=2,
        min_size=0,
    ),
}
EVERY = WRAPPERS | MORE
# They read or judge gradients, or choose who gets them: a table in the documentation.
READS = {
    *("apply_if_finite", "skip_spikes", "dynamic_loss_scale", "skip_not_finite"),
    *("skip_large_updates", "conditionally_transform", "conditionally_mask"),
    *("mechanize", "cautious", "sam", "lookahead"),
}
# They read gradients, too, but before `zero_nans`, not around it.
BEFORE = {"chain", "named_chain", "monitor", "mars_correction", "grokfast_ma"}


def parameters():
    z = jnp.array([1.0 + 2.0j, -1.0j], jnp.complex64)
    return {"w": jnp.arange(1.0, 5.0).reshape(2, 2), "b": jnp.ones(2), "z": z}


def gradients(bad: float):
    g = jax.tree.map(lambda p: p * p, parameters())
    spoilt = g | {"w": g["w"].at[0, 1].set(bad)}
    return [spoilt, g, g, g]


def run(tx: Any, gs: list, p: Any) -> Any:
    state = first = tx.init(p)
    step = jax.jit(lambda g, s, p: tx.update(g, s, p, value=jnp.float32(1.0)))
    us = []
    for g in gs:
        u, state = step(g, state, p)
        us.append(u)
    assert types(state) == types(first)
    return us, state


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [k for k in EVERY if k not in READS | BEFORE])
def test_a_nan_costs_one_number_in_every_wrapper_that_passes_gradients_on(name):
    guarded = stepax.chain(stepax.zero_nans(), stepax.sgd(0.1))
    tx, p = steps(EVERY[name](guarded)), parameters()
    found, state = run(tx, gradients(jnp.nan), p)
    wanted, other = run(tx, gradients(0.0), p)
    hint = (
        "; `hands_on` declares that gradients are passed on, `READS` here is for others"
    )
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(found)), name + hint
    compare(partial(np.testing.assert_array_equal, err_msg=name + hint), found, wanted)
    compare(np.testing.assert_array_equal, state, other)


def test_packed_gradients_are_cleaned_too():
    tx, p = steps(stepax.chain(stepax.zero_nans(), stepax.sgd(0.1))), parameters()
    wanted, _ = run(tx, gradients(0.0), p)
    packed = list(map(stepax.tree.pack, gradients(jnp.nan)))
    found, _ = run(tx, packed, stepax.tree.pack(p))
    compare(np.testing.assert_array_equal, list(map(stepax.tree.unpack, found)), wanted)


@pytest.mark.project
def test_the_page_names_those_that_read_gradients():
    page = Path(stepax.__file__).parents[1] / "docs" / "accumulation.md"
    row = next(x for x in page.read_text().splitlines() if "`skip_spikes`" in x)
    factories = READS - {"skip_not_finite", "skip_large_updates"}
    assert not [name for name in factories if f"{name}`" not in row]

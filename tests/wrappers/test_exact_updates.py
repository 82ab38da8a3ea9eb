"""Wrappers that change nothing change no bit of what must not be rounded.

The updates of `master_weights` with a remainder are float32 for bfloat16 parameters and
gradients: the difference of two bfloat16 numbers is not always one.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import on_fast_parameters, types
from wrappers import WRAPPERS, seen

import stepax
import stepax.contrib
from stepax.tree import get_all_with_path


def steps(tx: Any, k: int, **options: Any) -> Any:
    return stepax.MultiSteps(tx, k, **options).gradient_transformation()


def scaled(tx: Any) -> Any:
    factory = lambda factor: stepax.chain(tx, stepax.scale(factor))
    return stepax.inject_hyperparams(factory)(factor=1.0)


# Those that are named as in the table of all wrappers, with arguments for which they
# return the parameters that they would have without them.
SAME: dict[str, Callable[[Any], Any]] = {
    "chain": lambda tx: stepax.chain(stepax.identity(), tx, stepax.scale(1.0)),
    "named_chain": lambda tx: stepax.named_chain(("tx", tx)),
    "masked": lambda tx: stepax.masked(tx, True),
    "partition": lambda tx: stepax.partition({"a": tx, "b": tx}, {"w": "a", "b": "b"}),
    "freeze": lambda tx: stepax.chain(tx, stepax.freeze(False)),
    "inject_hyperparams": scaled,
    "MultiSteps": lambda tx: steps(tx, 1),
    "skip_not_finite": lambda tx: steps(
        tx, 1, should_skip_update_fn=stepax.skip_not_finite
    ),
    "apply_if_finite": lambda tx: stepax.apply_if_finite(tx, 2),
    "conditionally_transform": lambda tx: stepax.conditionally_transform(
        tx, lambda step, **_: step >= 0
    ),
    "conditionally_mask": lambda tx: stepax.conditionally_mask(
        tx, lambda step, **_: step >= 0
    ),
    "lookahead": lambda tx: on_fast_parameters(stepax.lookahead(tx, 100, 0.5)),
    "sam": lambda tx: stepax.contrib.sam(tx, stepax.sgd(0.1), 1),
    "outer": lambda tx: stepax.contrib.diloco(tx, stepax.sgd(1.0), 1),
    "outer at times": lambda tx: stepax.contrib.diloco(tx, stepax.sgd(1.0), 100),
    "split_real_and_imaginary": stepax.contrib.split_real_and_imaginary,
    "flatten": stepax.flatten,
    "monitor": WRAPPERS["monitor"],
    "reduce_on_plateau": lambda tx: stepax.chain(
        tx, stepax.contrib.reduce_on_plateau(patience=100)
    ),
    "averages": WRAPPERS["averages"],
    "averages in bits": lambda tx: stepax.averages(tx, 0.9, remainder=16),
    "dynamic_loss_scale": lambda tx: stepax.dynamic_loss_scale(tx, 1.0),
    "skip_spikes": lambda tx: stepax.skip_spikes(tx),
    "rollback": lambda tx: stepax.rollback(tx, 1, 4.0, 2),
    "with_state_dtypes": lambda tx: stepax.with_state_dtypes(
        tx, {"trace": jnp.float32}
    ),
    "low_bit_states": lambda tx: stepax.low_bit_states(tx, {"trace": 32}),
    "strict": lambda tx: stepax.strict_keywords(stepax.chain(tx, seen())),
    "observe": WRAPPERS["observe"],
    "with_extra_args_support": stepax.with_extra_args_support,
    "cut keywords": lambda tx: stepax.masked(tx, True, mask_compatible_extra_args=True),
    "several": lambda tx: stepax.apply_if_finite(
        stepax.contrib.diloco(scaled(stepax.flatten(tx)), stepax.sgd(1.0), 1), 2
    ),
}
# What they do changes parameters, whatever their arguments are; or, of the last, the
# transformation inside sees no narrow parameters.
OTHER = {
    *("schedule_free", "mechanize", "ema_nesterov", "cautious", "gpa", "hyperball"),
    *("mars_correction", "grokfast_ma", "with_weight_decay", "skip_large_updates"),
    *("master_weights", "stochastic_rounding"),
}


def start():
    rng = np.random.default_rng(0)
    draw = lambda *n: rng.normal(size=n) * 10.0 ** rng.uniform(-4, 0, n)
    p = {"w": draw(8, 64), "b": draw(64)}
    return {k: jnp.asarray(x, jnp.bfloat16) for k, x in p.items()}


def gradients(n: int):
    """Some of them thousands of times as large as the parameter."""
    rng = np.random.default_rng(1)
    draw = lambda x: jnp.asarray(10.0 * rng.normal(size=x.shape), jnp.bfloat16)
    return [jax.tree.map(draw, start()) for _ in range(n)]


def bits(tx: Any, width: int) -> tuple:
    """Parameters, and bits of what `master_weights` keeps, after some steps."""
    tx = stepax.chain(tx)
    p = start()
    state = tx.init(p)

    @jax.jit
    def step(g, state, p):
        u, state = tx.update(g, state, p, value=jnp.float32(1.0))
        return stepax.apply_updates(p, u), state

    for g in gradients(5):
        p, new = step(g, state, p)
        assert types(new) == types(state)
        state = new
    found = get_all_with_path(state, "masters")
    kept = [x for path, x in found if "kept" not in f"{path}"]
    kinds = {16: jnp.int16, 8: jnp.int8}
    kept = [x.reshape(-1) for x in jax.tree.leaves(kept) if x.dtype == kinds[width]]
    return p, jnp.sort(jnp.concatenate(kept))


def test_every_wrapper_is_here_or_changes_parameters():
    missing = set(WRAPPERS) - {*SAME, *OTHER}
    assert not missing, f"add {missing} to `SAME` or `OTHER` in this file"


@pytest.mark.few(2)
@pytest.mark.parametrize("width", [16, 8])
@pytest.mark.parametrize("name", SAME)
def test_a_wrapper_changes_no_bit(name, width):
    inner = lambda: stepax.master_weights(
        stepax.sgd(0.1, momentum=0.9), remainder=width
    )
    found, wanted = bits(SAME[name](inner()), width), bits(inner(), width)
    assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(
        lambda x: x.dtype, wanted
    )
    jax.tree.map(np.testing.assert_array_equal, found, wanted)

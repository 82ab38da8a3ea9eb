"""A bound that is never reached may be infinite: nothing is clipped, ever."""

import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make
from inside import ANY, RANGES, ROWS
from keywords import keywords
from test_calls import CALLED

import stepax
import stepax.transforms


P = {"w": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.array([0.25, 4.0])}
WORDS = re.compile(r"(^|_)(max|clip|clipping|threshold|delta)(_|$)")

# A loop without limit may not end; the other two are a choice and a function.
LIMITS = re.compile("steps$|^use_clipping$|^clip_value_fn$|^max_fun$")


def is_cap(row, name) -> bool:
    allowed = (row.ranges.get(name) or RANGES.get(name, ANY)) if row else ANY
    return allowed.is_cap or bool(WORDS.search(name) and not LIMITS.search(name))


OF_ROWS = [
    pytest.param(row, name, id=f"{row.name}-{name}")
    for row in ROWS.values()
    for name in inspect.signature(row.factory).parameters
    if is_cap(row, name)
]


def updates(row, **more) -> list:
    """Of three steps, the second of which is far out."""
    if "noise_multiplier" in inspect.signature(row.factory).parameters:
        more |= {"noise_multiplier": 0.0, "key": 0}
    each = (lambda x: x[None]) if row.kind == "aggregate" else (lambda x: x)
    tx = stepax.with_extra_args_support(make(row, **more))
    step = jax.jit(lambda g, state: tx.update(g, state, P, **keywords(g)))
    state, found = tx.init(P), []
    for size in 1.0, 100.0, -1.0:
        g = jax.tree.map(lambda p, size=size: each(size * p), P)
        u, state = step(g, state)
        found += jax.tree.leaves(u)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(("row", "name"), OF_ROWS)
def test_an_infinite_bound_is_one_that_is_not_reached(row, name):
    parameter = inspect.signature(row.factory).parameters[name]
    whole = parameter.annotation is int or type(parameter.default) is int
    sign = -1 if "lower" in name or name == "f_min" else 1
    far = sign * (2**30 if whole else 1e18)
    found, wanted = updates(row, **{name: sign * np.inf}), updates(row, **{name: far})
    for x, y in zip(found, wanted, strict=True):
        assert jnp.isfinite(x).all()
        np.testing.assert_allclose(x, y, rtol=1e-6)


G = P["w"]


def clipped_logits(threshold):
    tx = stepax.qk_clip(threshold, {"q": "k"})
    both = {"q": jnp.ones((2, 2)), "k": jnp.ones((2, 2))}
    logits = {"q": jnp.float32(100.0)}
    return tx.update(both, tx.init(both), both, max_logits=logits)[0]


OTHERS: dict[str, Any] = {
    "huber_loss(delta)": lambda x: stepax.huber_loss(G, delta=x),
    "per_example_global_norm_clip(l2_norm_clip)": lambda x: (
        stepax.per_example_global_norm_clip(P, x)
    ),
    "per_example_layer_norm_clip(global_l2_norm_clip)": lambda x: (
        stepax.per_example_layer_norm_clip(P, x)
    ),
    "skip_large_updates(max_squared_norm)": lambda x: stepax.skip_large_updates(
        P, jnp.int32(0), None, x
    ),
    "unitwise_clip(max_norm)": lambda x: stepax.transforms.unitwise_clip(
        jnp.float32(3.0), x, G
    ),
    "qk_clip(threshold)": clipped_logits,
    "clip(max_value)": lambda x: stepax.tree.clip(P, max_value=x),
}


def test_all_bounds_of_functions_are_tried():
    names = {
        f"{f.__name__}({name})"
        for f in CALLED.values()
        for name in inspect.signature(f).parameters
        if f.__name__ not in ROWS and is_cap(None, name)
    }
    assert names | {"clip(max_value)"} == OTHERS.keys()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OTHERS)
def test_an_infinite_bound_of_a_function_is_one_that_is_not_reached(name):
    found, wanted = OTHERS[name](np.inf), OTHERS[name](1e18)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, wanted
    )


@pytest.mark.slow
def test_the_derivative_of_an_infinite_huber_loss_is_the_error():
    slope = jax.grad(lambda x: stepax.huber_loss(x, delta=np.inf).sum())(G)
    np.testing.assert_allclose(slope, G)


def test_infinite_noise_is_an_error():
    for make_private in (
        lambda: stepax.contrib.differentially_private_aggregate(np.inf, 1.0, key=0),
        lambda: stepax.contrib.dpsgd(0.1, np.inf, 1.0, key=0),
    ):
        with pytest.raises(ValueError, match="`l2_norm_clip` is infinite"):
            make_private()


@pytest.mark.slow
def test_with_an_infinite_factor_nothing_finite_spikes():
    tx = stepax.skip_spikes(stepax.sgd(0.1), np.inf, 4, warmup=1)
    state = tx.init(P)
    for size in 1.0, 1.0, 1e6, np.nan, 1.0:  # the deviation of equal norms is 0
        g = stepax.tree.scale(size, P)
        _, state = tx.update(g, state, P)
    assert int(state.skipped) == 1 and int(state.accepted) == 4

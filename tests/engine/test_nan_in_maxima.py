"""A NaN is seen by every maximum and minimum, also beside an infinity.

XLA's reductions on CPUs lose one in arrays that are shared out among threads.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows as rows_of_factories
from keywords import keywords

import stepax
from stepax import losses, projections


def update(tx):
    tx = stepax.with_extra_args_support(tx)
    return lambda x: tx.update(x, tx.init(x), x, value=jnp.float32(1))[0]


def on_plateau(x):
    """NaN where a loss that is no number is no improvement."""
    tx = stepax.contrib.reduce_on_plateau(factor=0.5, patience=1)
    state = tx.init(x)
    for value in (jnp.float32(5), stepax.tree.max(x)):
        _, state = tx.update(x, state, x, value=value)
    return jnp.where(state.scale < 1, jnp.nan, 0)


def scaled_loss(x):
    """NaN where a gradient that is no number makes the scale smaller, and no step."""
    tx = stepax.dynamic_loss_scale(stepax.sgd(1.0), 1024.0)
    updates, state = tx.update(x, tx.init(x), x)
    is_seen = (state.loss_scale == 512) & (state.skipped == 1) & ~updates.any()
    return jnp.where(is_seen, jnp.nan, 0)


def searched(tx):
    """A search along a direction that holds a NaN."""

    def run(x):
        f, p = lambda p: jnp.sum(p**2), jnp.zeros_like(x)
        return tx.update(-x, tx.init(p), p, value=f(p), grad=x, value_fn=f)[0]

    return run


def refused(tx):
    """NaN where a search refuses points of which the gradient alone holds a NaN."""

    def run(x):
        @jax.custom_vjp
        def f(p):
            return jnp.sum((p - 1) ** 2)

        def backward(p, ct):
            is_far = jnp.max(jnp.abs(p)) > 0.1
            return (ct * jnp.where(is_far, x, 2 * (p - 1)),)

        f.defvjp(lambda p: (f(p), p), backward)
        p = jnp.zeros_like(x)
        value, g = jax.value_and_grad(f)(p)
        u, state = tx.update(-g, tx.init(p), p, value=value, grad=g, value_fn=f)
        is_near = (jnp.abs(u) <= 0.1).all() & jnp.isfinite(state.grad).all()
        return jnp.where(is_near, jnp.nan, 0)

    return run


def rows(f):
    return lambda x: f(jnp.append(x, jnp.zeros_like(x[:1]))[None], jnp.zeros(1, int))


SEEN = {
    "max": stepax.tree.max,
    "min": stepax.tree.min,
    "norm inf": lambda x: stepax.tree.norm(x, ord=jnp.inf),
    "norm 1": lambda x: stepax.tree.norm(x, ord=1),
    "norm": stepax.tree.norm,
    "safe_norm inf": lambda x: stepax.safe_norm(x, 1e-3, ord=jnp.inf),
    "safe_norm -inf": lambda x: stepax.safe_norm(x, 1e-3, ord=-jnp.inf),
    "clip": update(stepax.clip(1.0)),
    "clip_by_global_norm": update(stepax.clip_by_global_norm(1.0)),
    "clip_by_block_rms": update(stepax.clip_by_block_rms(1.0)),
    "adamax": update(stepax.scale_by_adamax()),
    "sm3": update(stepax.scale_by_sm3()),
    "hinge": rows(losses.multiclass_hinge_loss),
    "perceptron": rows(losses.multiclass_perceptron_loss),
    "sparsemax": rows(losses.multiclass_sparsemax_loss),
    "cross-entropy": rows(losses.softmax_cross_entropy_with_integer_labels),
    "triplet": lambda x: losses.triplet_margin_loss(
        x, 0 * x, 0 * x + 1, norm_degree=jnp.inf
    ),
    "plateau": on_plateau,
    "loss scale": scaled_loss,
    "backtracking": searched(stepax.scale_by_backtracking_linesearch(5)),
    "zoom": searched(stepax.scale_by_zoom_linesearch(5)),
    "zoom refuses": refused(stepax.scale_by_zoom_linesearch(20)),
    "lbfgs": searched(stepax.lbfgs()),
    "lbfgsb": searched(stepax.lbfgsb(-1.0, 1.0)),
    "simplex": projections.projection_simplex,
    "l1 ball": projections.projection_l1_ball,
    "l2 ball": projections.projection_l2_ball,
    "linf ball": projections.projection_linf_ball,
    "vector": lambda x: projections.projection_vector(0 * x + 1, x),
    "cosine": lambda x: losses.cosine_distance(x, jnp.ones_like(x), epsilon=1e-3),
    "contrastive": lambda x: losses.ntxent(
        jnp.stack([x, 0 * x + 1]), jnp.zeros(2, int)
    ),
    "skip_not_finite": lambda x: jnp.where(
        stepax.skip_not_finite(x, jnp.int32(0), None)[0], jnp.nan, 0.0
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("f", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_a_nan_is_seen_wherever_it_is(f, size):
    run = jax.jit(f)
    for at in {0, size - 1}:
        for other in np.inf, -np.inf:
            x = np.linspace(-2, 2, size, dtype=np.float32)
            x[(at + size // 3) % size] = other
            x[at] = np.nan
            x = jnp.asarray(x)
            assert np.isnan(run(x)).any()
            assert size != 7 or np.isnan(f(x)).any()


def nans(tx, g, p):
    """The paths, in updates and state, of what holds a NaN after a step."""
    step = lambda g, state: tx.update(g, state, p, **keywords(g))
    after = jax.jit(step)(g, tx.init(p))
    found = jax.tree_util.tree_flatten_with_path(after)[0]
    floats = [(k, x) for k, x in found if jnp.issubdtype(x.dtype, jnp.inexact)]
    return {jax.tree_util.keystr(k) for k, x in floats if np.isnan(x).any()}


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows_of_factories())
def test_no_infinity_hides_a_nan_from_a_transformation(row):
    """As many arrays hold one as where nothing is infinite."""
    tx = stepax.with_extra_args_support(make(row))
    p = {"w": jnp.linspace(-1, 1, 4096).reshape(64, 64), "b": jnp.ones(3)}
    x = np.linspace(-2, 2, 4096, dtype=np.float32)
    for at, other in (0, 1300), (4095, 2):
        x[at] = np.nan
        alone = nans(tx, p | {"w": jnp.asarray(x.reshape(64, 64))}, p)
        beside = x.copy()
        beside[other] = np.inf
        assert alone <= nans(tx, p | {"w": jnp.asarray(beside.reshape(64, 64))}, p)

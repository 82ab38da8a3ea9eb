"""A NaN is seen by every maximum and minimum, also beside an infinity.

XLA's reductions on CPUs lose one in arrays that are shared out among threads.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax import losses


def update(tx):
    tx = stepax.with_extra_args_support(tx)
    return lambda x: tx.update(x, tx.init(x), x, value=jnp.float32(1))[0]


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
    "skip_not_finite": lambda x: jnp.where(
        stepax.skip_not_finite(x, jnp.int32(0), None)[0], jnp.nan, 0.0
    ),
}


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

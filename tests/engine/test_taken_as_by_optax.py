"""What Optax takes and a program may mean is taken, with Optax's numbers."""

import functools as ft
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from inside import ROWS
from loops import each
from runs import compare

import stepax
import stepax.contrib


P = {"w": jnp.array([[1.0, -2.0], [0.5, 3.0]])}
X, Y = jnp.array([0.2, -0.5, 1.0]), jnp.array([1.0, 0.0, 1.0])
LOGITS = jnp.array([[0.1, 0.2, 0.3], [1.0, 2.0, 0.0]])


close = ft.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def updates(o: Any, make: Any) -> Any:
    """Of two steps outside of `jit`."""
    with jax.numpy_dtype_promotion("strict" if o is stepax else "standard"):
        tx = make(o)
        u, state = tx.update(P, tx.init(P), P)
        return u, tx.update(jax.tree.map(lambda g: g * 0.5, P), state, P)[0]


THEIRS = vars(optax.contrib) | vars(optax)


def of(o: Any, name: str) -> Any:
    return getattr(o if name in vars(optax) else o.contrib, name)


def without_a_rate() -> list:
    """The optimizers in which Optax takes `None` for no learning rate."""
    rows = [x for x in ROWS.values() if x.kind == "optimizer" and x.name in THEIRS]
    takes = {
        x.name: vars(x.factory)["scalars"].takes.get("learning_rate") for x in rows
    }
    # The others read functions of the loss.
    others = "sophia", "lbfgs"
    return [k for k, x in takes.items() if x and x.none and k not in others]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", without_a_rate())
def test_no_learning_rate_scales_nothing(name):
    known = inspect.signature(THEIRS[name]).parameters
    key = {"key": 0} if "key" in known else {}
    make = lambda o: of(o, name)(learning_rate=None, **key)
    compare(close, updates(stepax, make), updates(optax, make))


def test_most_optimizers_take_no_learning_rate():
    assert len(without_a_rate()) > 30


TAKEN = {
    "weight decay off": lambda o: o.adamw(0.1, weight_decay=False),
    "momentum off": lambda o: o.sgd(0.1, momentum=False),
    "never factored": lambda o: o.adafactor(0.1, min_dim_size_to_factor=np.inf),
    "a size of JAX": lambda o: o.adafactor(0.1, min_dim_size_to_factor=jnp.int32(2)),
    "a flag of NumPy": lambda o: o.sgd(0.1, 0.9, nesterov=np.array(1)),
    "a flag of JAX": lambda o: o.sgd(0.1, 0.9, nesterov=jnp.array(0)),
    "one projection": lambda o: o.contrib.galore(0.1, rank=1, update_proj_gap=np.inf),
    "no least norm": lambda o: o.fromage(0.1, min_norm=-1.0),
    "an unused label": lambda o: o.partition({"a": o.sgd(0.1), "b": o.sgd(1.0)}, "a"),
}


@pytest.mark.slow
@each(TAKEN.items())
def test_numbers_are_those_of_optax(name, make):
    compare(close, updates(stepax, make), updates(optax, make))


LOSSES = {
    "huber, all pairs": lambda o: o.huber_loss(X[:, None], Y[None, :2]),
    "log-cosh, all pairs": lambda o: o.log_cosh(X[:, None], Y[None]),
    "logits, all pairs": lambda o: o.sigmoid_binary_cross_entropy(X[:, None], Y[None]),
    "hinge, all pairs": lambda o: o.hinge_loss(X[:, None], Y[None]),
    "classes, all pairs": lambda o: o.softmax_cross_entropy(
        LOGITS, jnp.eye(3)[:, None]
    ),
    "no label": lambda o: o.softmax_cross_entropy_with_integer_labels(
        LOGITS, np.array([1, -100])
    ),
    "negative smoothing": lambda o: o.smooth_labels(jnp.eye(3), -0.1),
    "a weight for all": lambda o: o.losses.dice_loss(
        jnp.ones((1, 2, 3)), jnp.ones((1, 2, 3)), class_weights=jnp.ones(1)
    ),
    "a radius": lambda o: o.projections.projection_l2_ball(X, np.array([0.5])),
    "radii": lambda o: o.projections.projection_linf_ball(X, jnp.array([0.1, 0.2, 2])),
    "an offset": lambda o: o.projections.projection_hyperplane(X, Y, np.array([0.5])),
    "a column": lambda o: o.second_order.hvp(
        lambda p, x, y: jnp.sum(p**3), X[:, None], X, None, None
    ),
}


@pytest.mark.filterwarnings("ignore:.*hvp.* is deprecated:DeprecationWarning")
@each(LOSSES.items())
def test_functions_are_those_of_optax(name, call):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        # Each in one program: one for each operation takes four times as long.
        found, wanted = (jax.jit(lambda o=o: call(o))() for o in (stepax, optax))
    assert np.shape(found) == np.shape(wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_column_that_was_not_flattened_is_still_refused():
    for loss in stepax.huber_loss, stepax.log_cosh, stepax.hinge_loss:
        with pytest.raises(ValueError, match="one broadcasts to the other"):
            loss(X, Y[:, None])

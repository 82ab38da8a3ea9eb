"""Whatever JAX can make an array of is an array: as parameter and as gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from inside import as_array, is_array
from wrappers import FAMILIES as RULES, WRAPPERS

import stepax


X = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]], np.float32)


class Quantized:
    """An array by its method alone."""

    def __init__(self, x):
        self.codes = jnp.round(x * 64).astype(jnp.int16)
        self.scale = jnp.float32(1 / 64)

    def __jax_array__(self):
        return self.codes.astype("float32") * self.scale


class Shaped(Quantized):
    """One that also tells its shape and dtype."""

    shape = X.shape
    dtype = jnp.dtype("float32")
    ndim = 2


class Loaded:
    """One that NumPy can read, and says of what shape it is."""

    shape = X.shape
    dtype = np.dtype("float32")

    def __init__(self, x):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.x, dtype)


KINDS: dict[str, Any] = {
    "jax.Array": jnp.asarray,
    "NumPy": np.asarray,
    "Param": nnx.Param,
    "Param with a reference": lambda x: nnx.Param(jnp.asarray(x), ref=True),
    "hijax Param": lambda x: nnx.Param(jnp.asarray(x), hijax=True),
    "hijax Param with a reference": lambda x: nnx.Param(
        jnp.asarray(x), hijax=True, ref=True
    ),
    "reference": lambda x: jax.new_ref(jnp.asarray(x)),
    "__jax_array__": Quantized,
    "__jax_array__, shape": Shaped,
    "__array__, shape": Loaded,
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def bare(tree):
    """The arrays of a tree, in order."""
    return [np.asarray(as_array(x)) for x in jax.tree.leaves(tree)]


def same(found, wanted):
    found, wanted = bare(found), bare(wanted)
    assert len(found) == len(wanted) > 0
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


@kinds
def test_every_kind_is_an_array(kind):
    leaf = jax.tree.leaves(kind(X))[0]
    assert is_array(leaf)
    np.testing.assert_array_equal(as_array(leaf), X)


@pytest.mark.parametrize(
    "x",
    [None, "x", len, object(), jnp.float32, jax.Array, np.dtype("f4"), Quantized, nnx],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_what_holds_no_numbers_is_none(x):
    assert not is_array(x)


@pytest.mark.parametrize("x", [1, 2.0, True, 1j, np.float32(1), np.int64(3)], ids=repr)
def test_numbers_are_arrays(x):
    assert is_array(x) and as_array(x) is x


def steps(tx, params, gradients):
    """Two steps; the parameters after them, and the state."""
    state = tx.init(params)
    first = state
    for _ in range(2):
        updates, state = tx.update(gradients, state, params, value=jnp.float32(1))
        params = stepax.apply_updates(params, updates)
    return params, state, first


@pytest.mark.few(1)
@pytest.mark.parametrize("tx", RULES.values(), ids=RULES)
def test_every_kind_is_optimized(tx):
    plain = {name: jnp.asarray(X) for name in KINDS} | {"b": jnp.ones(3)}
    own = plain | {name: kind(X) for name, kind in KINDS.items()}
    tx = stepax.with_extra_args_support(tx())
    wanted = steps(tx, plain, plain)
    same(steps(tx, own, own), wanted)
    same(steps(tx, own, jax.tree.map(as_array, own)), wanted)


STRANGE = ["reference", "hijax Param", "__jax_array__, shape"]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WRAPPERS)
def test_every_wrapper_takes_every_kind(name):
    plain = {k: jnp.asarray(X) for k in STRANGE} | {"b": jnp.ones(3)}
    own = plain | {k: KINDS[k](X) for k in STRANGE}
    tx = stepax.with_extra_args_support(WRAPPERS[name](stepax.sgd(0.1, 0.9)))
    with jax.disable_jit():
        wanted = steps(tx, plain, plain)
        same(steps(tx, own, plain), wanted)
        same(steps(tx, own, own), wanted)


@kinds
def test_every_kind_is_described(kind):
    found = stepax.describe(stepax.adam(0.1), {"w": kind(X)})
    assert sum(found.parameters.values()) == 2 * X.nbytes
    assert found.whole.leaves == 1


@kinds
def test_every_kind_has_a_norm(kind):
    np.testing.assert_allclose(stepax.tree.norm({"w": kind(X)}), np.linalg.norm(X))
    doubled = stepax.tree.scale(2.0, {"w": kind(X)})
    np.testing.assert_allclose(bare(doubled)[0], 2 * X)


def test_references_are_read_in_a_compiled_step():
    tx = stepax.adam(0.1)
    p = {"w": jax.new_ref(jnp.asarray(X))}
    state = tx.init(p)

    @jax.jit
    def step(p, state):
        updates, state = tx.update({"w": p["w"][...]}, state, p)
        p["w"][...] = p["w"][...] + updates["w"]
        return state

    state = step(p, state)
    plain = {"w": jnp.asarray(X)}
    u, wanted = tx.update(plain, tx.init(plain), plain)
    pairs = (state, wanted), (p, stepax.apply_updates(plain, u))
    for found, wanted in pairs:
        # One program rounds otherwise than one for each operation.
        for x, y in zip(bare(found), bare(wanted), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"ref": True}, {"hijax": True}], ids=str)
def test_nnx_keeps_a_state_for_parameters_of_every_mode(options):
    """Of as many arrays, of the same shapes, as with Optax."""

    def state(library: Any):
        model: Any = nnx.Module()
        model.w = nnx.Param(jnp.asarray(X), **options)
        optimizer: Any = nnx.Optimizer(model, library.adam(0.1), wrt=nnx.Param)
        return [jnp.shape(as_array(x)) for x in jax.tree.leaves(optimizer.opt_state)]

    assert state(stepax) == state(optax)
    assert state(stepax).count(X.shape) == 2

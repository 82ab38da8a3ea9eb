"""Programs that tell named tuples from other tuples, and make them anew, accept ours.

Checkpoints and masks of other libraries are made by walking a state.  They find a named
tuple by its bases, as a well-known recipe does, and make one of the same kind by
`type(x)` or `x.__class__`.
"""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from inside import COMPATIBLE
from loops import each

import stepax
from stepax.interop.optax import installed


def of_optax(name: str) -> Any:
    homes = (optax, optax.contrib, optax.transforms, optax.schedules)
    # Not by `getattr`, which warns for a name that has moved.
    return next((x for m in homes if (x := vars(m).get(name))), None)


# A named tuple of ours with Optax's class of its name, where Optax has one.
PAIRS: dict[str, Any] = {
    k: (ours, of_optax(k)) for k, ours in COMPATIBLE.items() if of_optax(k)
}

REMAKE = {
    "type": lambda x: type(x)(*x),
    "class": lambda x: x.__class__(*x),
    "class, by name": lambda x: x.__class__(**x._asdict()),
    "class, made": lambda x: x.__class__._make(x),
    "replace": lambda x: x._replace(),
}


@each(PAIRS)
def test_named_tuples_have_the_bases_of_optax(name):
    ours, theirs = PAIRS[name]
    assert ours.__bases__ == theirs.__bases__
    assert ours._field_defaults.keys() == theirs._field_defaults.keys()
    assert ours.__match_args__ == theirs.__match_args__


@each([(name, how) for name in PAIRS for how in REMAKE])
def test_named_tuples_are_made_anew(name, how):
    ours, theirs = PAIRS[name]
    x = ours(*ours._fields)
    made = REMAKE[how](x)
    assert type(made) is ours and tuple(made) == tuple(x)
    assert isinstance(made, theirs) and isinstance(made, made.__class__)
    assert x.__class__.__qualname__ == theirs.__qualname__


@each([*REMAKE, "tree", "copy"])
def test_transformations_are_made_anew(how):
    more: Any = {"tree": lambda x: jax.tree.map(lambda f: f, x), "copy": copy.copy}
    params = {"w": jnp.ones((4, 3))}
    for tx in (stepax.adam(0.1), stepax.chain(stepax.sgd(0.1)), stepax.identity()):
        made: Any = (REMAKE | more)[how](tx)
        state = made.init(params)
        jax.tree.map(np.testing.assert_array_equal, state, tx.init(params))
        pair: Any = optax.GradientTransformation
        assert made == tx and isinstance(made, pair)
        around = stepax.chain(made, stepax.scale(2.0))
        found, _ = around.update(params, around.init(params), params)
        wanted, _ = tx.update(params, tx.init(params), params)
        jax.tree.map(lambda u, v: np.testing.assert_allclose(u, 2 * v), found, wanted)
        assert repr(made) and stepax.describe(made, params)


def is_named_tuple(x: Any) -> bool:
    kind = type(x)
    return kind.__bases__ == (tuple,) and isinstance(getattr(kind, "_fields", 0), tuple)


def named(tree: Any, path: str = "") -> Any:
    """The path of each leaf, in a tree of the same structure."""
    if isinstance(tree, dict):
        return {k: named(x, f"{path}/{k}") for k, x in tree.items()}
    if is_named_tuple(tree):
        fields = {k: named(x, f"{path}.{k}") for k, x in tree._asdict().items()}
        return tree.__class__(**fields)
    if isinstance(tree, tuple):
        return tuple(named(x, f"{path}/{i}") for i, x in enumerate(tree))
    return path


def trained(library: Any) -> tuple:
    """Two groups of parameters, with decay by path in each."""

    def mask(params):
        return jax.tree.map(lambda p, path: "bias" not in path, params, named(params))

    def group(decay):
        parts = (library.scale_by_adam(), library.add_decayed_weights(decay, mask))
        return library.chain(*parts, library.scale(-0.1))

    labels = {"a": {"w": "x", "bias": "y"}, "b": "y"}
    tx = library.partition({"x": group(0.1), "y": group(0.01)}, labels)
    params = {"a": {"w": jnp.ones((4, 3)), "bias": jnp.ones(3)}, "b": jnp.ones(3)}
    state = tx.init(params)
    with jax.numpy_dtype_promotion("standard"):  # which Optax needs
        updates, state = jax.jit(tx.update)(params, state, params)
    return updates, named(state), jax.tree.map(lambda x, _: x, state, named(state))


@pytest.mark.parametrize("switched", [False, True])
def test_a_mask_and_paths_by_walking_a_state(switched):
    wanted, paths, kept = trained(optax)
    if switched:
        with installed(replace=True):
            import optax as library

            found = trained(library)
    else:
        found = trained(stepax)
    # One ulp for each operation that the compiler may join.
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6)
    jax.tree.map(close, found[0], wanted)
    assert jax.tree.leaves(found[1]) == jax.tree.leaves(paths)
    jax.tree.map(close, jax.tree.leaves(found[2]), jax.tree.leaves(kept))

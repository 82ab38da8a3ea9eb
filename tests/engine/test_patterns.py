"""What names and path patterns mean, and which errors they can give."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from inside import selection

import stepax


def dense(n, m):
    """Parameters of a layer."""
    return {"kernel": jnp.full((n, m), 0.5), "bias": jnp.full(m, 0.25)}


DEEP = {
    "encoder": {"head": {"w": 1.0}, "w": 2.0},
    "head": {"w": 3.0, "encoder": {"w": 4.0}},
}  # leaves: encoder/head/w, encoder/w, head/encoder/w, head/w


@pytest.mark.parametrize(
    "spec, labels",
    [
        ({"head": 1, "encoder": 2}, [2, 2, 1, 1]),  # fields, not what is deeper
        ({"**/head": 1, "encoder": 2}, [1, 2, 1, 1]),
        ({"encoder/head": 1, "**": 2}, [1, 2, 2, 2]),
        ({"**": 2}, [2, 2, 2, 2]),
        ({"*": 2}, [2, 2, 2, 2]),
        ({"w": 1}, [1, 1, 1, 1]),  # no field
        ({"head": 1, "**": 2}, [1, 2, 1, 1]),  # a field and a pattern: at any depth
        ({"head/**": 1, "**": 2}, [2, 2, 1, 1]),  # the field alone
        ({"head": 1, "enc*": 2}, [1, 2, 1, 1]),
        ({"*/w": 1, "**": 2}, [2, 1, 2, 1]),
        ({"*/*/w": 1, "**": 2}, [1, 2, 1, 2]),
        ({"enc*": 1, "h*": 2}, [1, 1, 1, 2]),
        ({"encoder": {"head": 1, "**": 2}, "**": 3}, [1, 2, 2, 3]),
        ({"encoder/**": {"head": 1, "**": 2}, "**": 3}, [1, 2, 3, 3]),
        ({"encoder": {"w": 1, "head": 2}, "head": {"*": 3}}, [2, 1, 3, 3]),
        ({"**/encoder": {"w": 1}, "**": 2}, [1, 1, 1, 2]),
        ({"**/encoder": {"w/**": 1}, "**": 2}, [2, 1, 1, 2]),
        ({"head/w": 1, "**/w": 2}, [2, 2, 2, 1]),
        ({"head/w": 1, "**/w": 2, "**": 3}, [2, 2, 2, 1]),  # no others
        ({"encoder": {"*": 1, "**": 2}, "**": 3}, [1, 1, 1, 3]),
        ({"**/encoder/**": 1, "head": 2}, [1, 1, 1, 2]),
    ],
)
def test_the_first_pattern_that_matches_decides(spec, labels):
    assert selection.resolve(spec, DEEP) == labels


@pytest.mark.parametrize(
    "spec, message",
    [
        ({"haed": 1, "**": 2}, "pattern `haed` in `labels` matches no leaf of "
         "encoder/head/w, .*; did you mean `head`"),
        ({"encoder/hed/w": 1, "**": 2}, "did you mean `encoder/head/w`"),
        ({"zzz": 1, "**": 2}, "pattern `zzz` in `labels` matches no leaf"),
        ({"encoder": 1}, r"nothing in `labels` matches head/w; the "
         r"patterns are \['encoder'\], and a final \"\*\*\" matches all others"),
        ({}, "nothing in `labels` matches"),
        ({"**": 1, "head": 2}, "pattern `head` in `labels` has no leaf left"),
        ({"encoder": {"nope": 1, "**": 2}, "**": 2}, "pattern `encoder/nope` in"),
        ({"encoder": {"head": 1}, "head": 2}, "nothing in `labels` matches encoder/w"),
        ({"head/w": {"x": 1}, "**": 2}, "pattern `head/w/x` in `labels` matches"),
        ({3: 1, "**": 2}, "pattern `3` in `labels` matches no leaf"),
        ([1, 2], r"`labels` and the parameters differ in structure; only in `labels`: "
         r"\[0\], \[1\]; only in the parameters: \['encoder'\]\['head'\]\['w'\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(spec, message):
    with pytest.raises(ValueError, match=message):
        selection.resolve(spec, DEEP)


@pytest.mark.parametrize(
    "value, message",
    [
        ("yes", r"`mask` for \['w'\] is `'yes'`, but must be a boolean"),
        (None, r"`mask` for \['w'\] is `None`"),
        (0.5, r"`mask` for \['w'\] is `0.5`, but must be a boolean"),
        (
            jnp.float32(0.5),
            r"`mask` for \['w'\] is of dtype float32 and shape \(\), but must be a",
        ),
        (np.ones(2, bool), r"`mask` for \['w'\] is of dtype bool and shape \(2,\)"),
    ],
)
def test_a_mask_is_of_booleans(value, message):
    for spec in ({"w": value, "b": True}, lambda p: {"w": value, "b": True}):
        with pytest.raises(TypeError, match=message):
            stepax.masked(stepax.scale(2.0), spec).init({"w": jnp.ones(2), "b": 1.0})


@pytest.mark.parametrize("true", [True, 1, np.True_, np.int8(1), jnp.array(True)])
def test_what_is_a_boolean_by_another_type_is_one(true):
    assert selection.resolve_mask({"w": true}, {"w": jnp.ones(2)}) == [True]


def test_a_traced_mask_is_refused():
    params = {"w": jnp.ones(2)}

    @jax.jit
    def init(p):
        return stepax.masked(stepax.adam(0.1), {"w": p["w"].sum() > 0}).init(p)

    with pytest.raises(TypeError, match=r"`mask` for \['w'\] is traced, but must be"):
        init(params)


@pytest.mark.parametrize("label", [jnp.array(1), np.array([1, 2]), "c", None, 1.5])
def test_an_unknown_label_is_named_whatever_it_is(label):
    tx = stepax.partition({"a": stepax.scale(1.0)}, {"w": label, "b": "a"})
    with pytest.raises(
        ValueError, match=r"no transformation: .* at \['w'\]; the known labels are"
    ):
        tx.init({"w": jnp.ones(2), "b": jnp.ones(2)})


def test_a_traced_label_is_named():
    @jax.jit
    def init(p):
        return stepax.partition({1: stepax.scale(1.0)}, {"w": p["w"]}).init(p)

    with pytest.raises(ValueError, match=r"no transformation: .* at \['w'\]"):
        init({"w": jnp.ones([])})


# --- what a mask around another leaves out -----------------------------------


def out(tree, *left_out):
    """`tree` as a mask around it leaves it, by Optax's class or ours."""
    nodes = [stepax.MaskedNode(), optax.MaskedNode()]
    for i, path in enumerate(left_out):
        *way, last = path.split("/")
        ft.reduce(lambda d, k: d[k], way, tree)[last] = nodes[i % 2]
    return tree


def test_a_pattern_for_what_is_left_out_is_no_error():
    tree = out({"a": dense(2, 2), "b": dense(2, 2)}, "a/bias", "b/bias")
    assert selection.resolve_mask({"bias": False, "**": True}, tree) == [True, True]
    assert selection.resolve({"a": {"bias": 1, "kernel": 2}, "**": 3}, tree) == [2, 3]
    whole = out({"a": dense(2, 2), "b": dense(2, 2)}, "a")
    assert selection.resolve({"a": {"bias": 1, "kernel": 2}, "**": 3}, whole) == [3, 3]
    assert selection.resolve({"a/bias": 1, "bias": 2, "**": 3}, whole) == [2, 3]


def test_a_typing_error_is_found_also_where_leaves_are_left_out():
    tree = out({"a": dense(2, 2), "b": dense(2, 2)}, "a/bias", "b/bias")
    with pytest.raises(ValueError, match="`biass` in `mask` matches no leaf.*`bias`"):
        selection.resolve_mask({"biass": False, "**": True}, tree)


@pytest.mark.parametrize("one", [1.0, np.float32(1), jnp.ones(1), np.array([True]), 1])
def test_what_optax_takes_for_a_boolean_is_one(one):
    p = {"w": jnp.ones(2), "b": jnp.ones(3)}
    for o in stepax, optax:
        for mask in {"w": one, "b": 0 * one}, {"w": 0 * one, "b": one}:
            tx = o.masked(o.scale(2.0), mask)
            u, _ = tx.update(p, tx.init(p))
            assert [u["w"][0], u["b"][0]] == [1 + bool(mask["w"]), 1 + bool(mask["b"])]

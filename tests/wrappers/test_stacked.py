"""`stacked` means the numbers of the tree in which each array is split."""

import pickle
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import make, rows
from compare import assert_equal, assert_same_tree, leaves
from inside import node_of
from loops import each
from stacks import AXES, ELSEWHERE, gradients, params, trained
from wrappers import FAMILIES, WRAPPERS

import stepax
import stepax.contrib


# Sums over arrays of a stack may be added in another order, and products be batched.
TOLERANCE = 1e-12


# The order of arrays, each of which has its own noise, is that of whole leaves.
BY_ARRAY = {"layers/w": 0, "layers/b": 0, "experts/w": (0, 1), "head": None}


def extra(tx: Any) -> dict:
    return {"value": jnp.float64(1.0), "value_fn": lambda p: jnp.float64(1.0)}


def assert_same(
    tx: Any, tree: Any, axes: Any, is_joined: bool = False, **extra: Any
) -> None:
    unrolled = trained(tx, tree, unrolled=axes, **extra)
    found = stepax.tree.unstack(trained(stepax.stacked(tx, axes), tree, **extra), axes)
    if is_joined:  # a vector in another order
        found, unrolled = found[0], unrolled[0]
    assert jax.tree.structure(found) == jax.tree.structure(unrolled)
    for x, y in zip(leaves(found), leaves(unrolled), strict=True):
        if x.dtype == "float64" and not is_elementwise(tx):
            scale = max(np.abs(y).max(initial=0), 1e-3)
            np.testing.assert_allclose(x, y, rtol=0, atol=TOLERANCE * scale)
        else:
            np.testing.assert_array_equal(x, y)


def is_elementwise(tx: Any) -> bool:
    measures = lambda part: part.leaf_stat or part.global_stat
    parts = [(x, getattr(x, "elementwise", False)) for x in node_of(tx).parts()]
    return all(on and not measures(x) for x, on in parts)


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows())
def test_a_stack_is_trained_as_its_arrays_are(row, x64):
    tx = make(row)
    assert_same(tx, params(), BY_ARRAY, row.name == "flatten", **extra(tx))


@pytest.mark.few(2)
@pytest.mark.parametrize("row", rows())
def test_the_axes_may_be_anywhere(row, x64):
    tx = make(row)
    is_joined = row.name == "flatten"
    assert_same(tx, params(elsewhere=True), ELSEWHERE, is_joined, **extra(tx))


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["layerwise", "factored", "matrix"])
@pytest.mark.parametrize("wrapper", sorted(WRAPPERS))
@pytest.mark.parametrize("axes", [BY_ARRAY, ELSEWHERE], ids=["in front", "elsewhere"])
def test_wrappers_inside_see_arrays_of_a_stack(axes, wrapper, family, x64):
    tx = WRAPPERS[wrapper](FAMILIES[family]())
    tree = params(elsewhere=axes is ELSEWHERE)
    assert_same(tx, tree, axes, wrapper == "flatten", **extra(tx))


@pytest.mark.few(1)
@pytest.mark.parametrize("wrapper", ["MultiSteps", "master_weights", "averages"])
def test_wrappers_may_be_outside(wrapper, x64):
    wrap, tx = WRAPPERS[wrapper], FAMILIES["layerwise"]()
    inside = trained(stepax.stacked(wrap(tx), AXES), params())
    assert_same_tree(trained(wrap(stepax.stacked(tx, AXES)), params()), inside)


def _matrices(params):
    number = stepax.contrib.MuonDimensionNumbers(1, 0)
    return jax.tree.map(lambda p: number if p.ndim == 2 else None, params)


SEEN = {
    "mask": lambda: stepax.adamw(
        1e-2, weight_decay=0.5, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)
    ),
    "dimension numbers": lambda: stepax.contrib.muon(
        1e-2, muon_weight_dimension_numbers=_matrices
    ),
    "patterns": lambda: stepax.lamb(1e-2, mask={"**/w": True, "**": False}),
    "turns": lambda: stepax.contrib.soap(1e-2, precondition_frequency=3, stagger=True),
    "projections in turn": lambda: stepax.contrib.galore(
        1e-2, rank=2, update_proj_gap=3, stagger=True
    ),
    "blocks": lambda: stepax.contrib.adam_mini(
        1e-2, partition=lambda p: jax.tree.map(lambda x: "output", p)
    ),
    "rows": lambda: stepax.contrib.row_states(stepax.adam(1e-2)),
    "heads": lambda: stepax.chain(
        stepax.clip_by_global_norm(0.1), stepax.normalize_by_update_norm()
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("seen", SEEN)
def test_functions_and_options_are_about_one_array(seen, x64):
    assert_same(SEEN[seen](), params(), AXES)


@pytest.mark.few(2)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("family", ["adaptive", "layerwise", "matrix"])
@pytest.mark.parametrize("axes", [BY_ARRAY, {"middle": 1, "head": None}])
def test_few_bits_of_a_stack_are_those_of_its_arrays(axes, family, bits):
    tree = params("float32", elsewhere="middle" in axes)
    tree.pop("last", None)
    mask = {"head": False, "**": True}
    tx = FAMILIES[family]()
    tx = stepax.low_bit_states(tx, bits, block=2, min_size=4, mask=mask)
    found = stepax.tree.unstack(trained(stepax.stacked(tx, axes), tree), axes)
    wanted = trained(tx, tree, unrolled=axes)
    assert any(x.dtype == "uint8" for x in leaves(found)) or family == "matrix"
    for x, y in zip(leaves(found), leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_blocks_across_the_arrays_of_a_stack_are_named():
    few = stepax.low_bit_states(stepax.lamb(1e-2), block=2, min_size=4)
    with pytest.raises(ValueError, match=r"stack axes \(2,\) into blocks: put it out"):
        stepax.stacked(few, -1).init(jnp.ones((3, 4, 2)))


QUERIES = [({"layers/**": 0}, (3, 8, 4)), ({"layers/**": -1}, (8, 4, 3))]


@pytest.mark.slow
@pytest.mark.parametrize("head_axis", [0, -2, (0, 1), None])
@pytest.mark.parametrize("axes, shape", QUERIES)
def test_heads_of_stacked_layers_are_clipped(axes, shape, head_axis, x64):
    rng, number = np.random.default_rng(4), {(0, 1): (2, 2), None: ()}
    weights = {"layers": {k: jnp.asarray(rng.normal(size=shape)) for k in "qk"}}
    logits = jnp.asarray(rng.uniform(1, 9, (3, *number.get(head_axis, (2,)))))
    clip = stepax.qk_clip(3.0, {"**/q": "**/k"}, head_axis=head_axis)
    tx = stepax.chain(stepax.sgd(0.1), clip)

    def step(tx, p, logits):
        g = gradients(p, 0)
        return tx.update(g, tx.init(p), p, max_logits={"layers": logits})[0]

    found = step(stepax.stacked(tx, axes), weights, {"q": logits})
    split = stepax.tree.unstack(weights, axes)
    wanted = step(tx, split, [{"q": x} for x in logits])
    assert_same_tree(stepax.tree.unstack(found, axes), wanted)


class Kept(NamedTuple):
    size: Any
    mean: Any


@stepax.rules.rule()
def of_ones_own():
    def leaf(g, p, ctx, size, mean):
        size = size + jnp.linalg.norm(g)
        return mean / size, size, mean + g

    size = stepax.rules.Slot(lambda p: jnp.zeros((), p.dtype), alike=False)
    return stepax.rules.Rule(leaf, Kept, {"size": size, "mean": stepax.rules.Slot()})


@pytest.mark.few(1)
@pytest.mark.parametrize("axes", [BY_ARRAY, ELSEWHERE], ids=["in front", "elsewhere"])
def test_a_state_may_have_any_name(axes, x64):
    assert_same(of_ones_own(), params(elsewhere=axes is ELSEWHERE), axes)


def test_a_stack_without_a_gradient_gets_no_noise():
    p = {"n": jnp.arange(6).reshape(3, 2), "w": jnp.ones((3, 2)), "z": None}
    g = p | {"n": np.zeros((3, 2), jax.dtypes.float0)}
    tx = stepax.stacked(stepax.add_noise(0.1, 0.5, 0), 0)
    u, _ = tx.update(g, tx.init(p), p)
    assert u["n"].shape == (3, 2) and u["n"].dtype.itemsize == 0
    assert u["z"] is None and (u["w"] != g["w"]).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("low", ["float32", "bfloat16"])
def test_each_array_is_rounded_by_noise_of_its_own(low):
    tx = stepax.stochastic_rounding(stepax.lamb(1e-2), 3)
    assert_same(tx, params(low), BY_ARRAY)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_elementwise_optimizers_are_the_same_program(dtype):
    p = params(dtype)
    texts = []
    for tx in (stepax.adamw(1e-2), stepax.stacked(stepax.adamw(1e-2), AXES)):
        f = jax.jit(lambda g, s, p, tx=tx: stepax.step(tx, g, s, p))
        texts.append(f.lower(p, tx.init(p), p).as_text())
    assert texts[0] == texts[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["layerwise", "factored", "matrix"])
def test_a_stack_is_traced_once(family):
    def text(length):
        p = {"layers": {"w": jnp.ones((length, 4, 3)), "b": jnp.ones((length, 3))}}
        tx = stepax.stacked(FAMILIES[family](), 0)
        lowered = jax.jit(tx.update).lower(p, tx.init(p), p).as_text()
        return lowered.count("func.func"), lowered.count("\n")

    one, many = text(1), text(32)
    assert many[0] <= 1.05 * one[0] and many[1] <= 1.05 * one[1]


@pytest.mark.few(4)
@pytest.mark.parametrize("row", rows())
def test_a_stack_may_have_no_arrays(row, x64):
    p = {"w": jnp.ones((2, 4, 3)), "z": jnp.ones((4, 0, 3)), "y": jnp.ones((0, 3))}
    tx = stepax.stacked(make(row), {"w": 0, "z": 1, "y": 0})

    def step(state):
        return tx.update(p, state, p, grad=p, **extra(tx))

    state = jax.eval_shape(tx.init, p)
    updates, after = jax.eval_shape(step, state)
    assert after == state
    assert row.name == "flatten" or updates == jax.eval_shape(lambda: p)


@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_trees_and_fused_steps(family):
    p = params("float32")
    tx, g = stepax.stacked(FAMILIES[family](), AXES), gradients(p, 1)
    u, state = tx.update(g, tx.init(p), p)
    new, _ = stepax.step(tx, g, tx.init(p), p)
    np.testing.assert_allclose(leaves(new)[0], leaves(p)[0] + leaves(u)[0], rtol=1e-6)
    packed = stepax.tree.pack(p)
    v, _ = tx.update(stepax.tree.pack(g, like=packed), tx.init(packed), packed)
    for x, y in zip(leaves(u), leaves(stepax.tree.unpack(v)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-7)


def test_a_stack_of_stacks_is_told_from_outside(x64):
    inner = stepax.stacked(stepax.lamb(1e-2), {"experts/**": 0, "**": None})
    outer = stepax.stacked(inner, {"layers/**": 0, "experts/**": 0, "**": None})
    once = stepax.stacked(stepax.lamb(1e-2), AXES)
    assert_same_tree(trained(outer, params()), trained(once, params()))


@jax.tree_util.register_dataclass
@dataclass
class Named:
    array: Any
    axes: tuple = field(metadata={"static": True})


def test_an_axis_may_have_a_name(x64):
    tree = params(elsewhere=True)
    named = {
        "middle": Named(tree["middle"], ("in", "layers", "out")),
        "head": Named(tree["head"], ("in", "out")),
    }
    plain = {k: tree[k] for k in named}
    tx = stepax.lamb(1e-2)
    found, _ = trained(stepax.stacked(tx, {"**": "layers"}), named)
    wanted, _ = trained(stepax.stacked(tx, {"middle": 1, "head": None}), plain)
    assert_equal(found, wanted)


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_states_are_split_and_joined_bit_for_bit(row):
    tx = stepax.stacked(make(row), AXES)
    p = params("float32")
    state = jax.jit(tx.init)(p)
    split = stepax.tree.unstack((p, state), AXES)
    assert_same_tree(stepax.tree.stack(split, AXES), (p, state))
    shapes = jax.eval_shape(lambda: (p, state))
    in_parts = stepax.tree.unstack(shapes, AXES)
    assert in_parts == jax.eval_shape(lambda: split)
    assert stepax.tree.stack(in_parts, AXES) == shapes
    unrolled = jax.eval_shape(make(row).init, split[0])
    assert jax.tree.structure(split[1]) == jax.tree.structure(unrolled)


def test_a_checkpoint_continues_unrolled_and_back(tmp_path):
    tx, p = stepax.lamb(1e-2), params("float32")
    both = trained(stepax.stacked(tx, AXES), p, 2)
    split = stepax.tree.unstack(both, AXES)
    stepax.checkpoint.save(tmp_path, 2, *split)
    found = stepax.checkpoint.restore(tmp_path, tx, stepax.tree.unstack(p, AXES))
    back = stepax.tree.stack((found.params, found.state), AXES)
    assert_same_tree(back, both)


WRONG = [
    ({"layers/**": 3, "**": None}, ValueError, r"\['layers'\]\['b'\] is 3.*-2 to 1"),
    ({"layers/**": (0, 0), "**": None}, ValueError, "different axes"),
    ({"layer/**": 0, "**": None}, ValueError, "matches no leaf"),
    ({"layers/**": 0}, ValueError, "matches experts/w, head"),
    ({"layers/**": "x", "**": None}, TypeError, "expected an axis"),
    ({"layers/**": True, "**": None}, TypeError, "expected an axis"),
    ({"layers/**": 0.5, "**": None}, TypeError, "expected an axis"),
    ({"s": 0, "**": None}, ValueError, r"\['s'\] is 0, expected `None`, as a scalar"),
]


@each(WRONG)
def test_axes_that_do_not_fit_are_named(axes, kind, text):
    tree = params("float32") | {"s": jnp.float32(1.0)}
    with pytest.raises(kind, match=text):
        stepax.stacked(stepax.lamb(1e-2), axes).init(tree)


def test_arrays_of_a_module_may_have_other_lengths(x64):
    tree = {"a": params()["layers"]["w"], "b": params()["head"]}
    assert_same(stepax.lamb(1e-2), tree, {"a": 0, "b": 0})
    with pytest.raises(ValueError, match="layers/a': \\(3,\\), 'layers/b': \\(4,"):
        stepax.tree.unstack({"layers": tree}, {"layers/**": 0})
    with pytest.raises(ValueError, match="layers, where the tree has no list"):
        stepax.tree.stack({"layers": tree}, {"layers/**": 0})


@each([(stepax.tree.stack,), (stepax.tree.unstack,)])
def test_packed_trees_are_refused(move):
    packed = stepax.tree.pack(params("float32"))
    for tree in packed, stepax.lamb(1e-2).init(packed):
        with pytest.raises(TypeError, match="is packed: use `stepax.tree.unpack`"):
            move(tree, AXES)


FOREIGN: Any = optax.scale(-1.0)


@each([(lambda: optax.adam(1e-2),), (lambda: stepax.chain(FOREIGN),)])
def test_parts_of_another_library_are_named(make):
    with pytest.raises(TypeError, match="of `optax.*use that of Stepax"):
        stepax.stacked(make(), 0)


def test_it_is_described_pickled_and_configured():
    tx = stepax.stacked(stepax.contrib.muon(1e-2), AXES)
    text = str(stepax.describe(tx, params("float32")))
    assert "experts/**" in text and "layers/w" in text
    assert pickle.loads(pickle.dumps(tx)) == tx
    assert stepax.from_config(stepax.to_config(tx)) == tx
    injected = stepax.inject_hyperparams(stepax.lamb)(learning_rate=1e-2)
    state = stepax.stacked(injected, AXES).init(params("float32"))
    assert stepax.tree.get(state, "learning_rate") == jnp.float32(1e-2)


@pytest.mark.slow
def test_layers_with_experts_are_updated_in_the_backward_pass():
    def layer(p, x):
        return x + jnp.tanh(jnp.einsum("bi,eio->bo", x, p["w"]))

    def loss(p):
        last, _ = jax.lax.scan(lambda x, p: (layer(p, x), None), x, p)
        return jnp.sum(last)

    p = {
        "w": jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 4, 4)), "float32")
    }
    x, lamb = jnp.ones((5, 4)), stepax.lamb(1e-2)
    fused = stepax.fused_scan(layer, stepax.stacked(lamb, 0))
    _, inputs = fused.forward(p, x)
    found, *_ = fused.backward(jnp.ones((5, 4)), inputs, p, fused.init(p))
    whole = stepax.stacked(lamb, (0, 1))
    updates, _ = whole.update(jax.grad(loss)(p), whole.init(p), p)
    wanted = stepax.apply_updates(p, updates)
    np.testing.assert_allclose(found["w"], wanted["w"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_steps_are_exported_and_swept():
    p = params("float32")
    tx = stepax.stacked(stepax.lamb(1e-2), AXES)
    step = jax.jit(tx.update)
    program = jax.export.deserialize(
        jax.export.export(step)(p, tx.init(p), p).serialize()
    )
    assert_equal(program.call(p, tx.init(p), p)[0], step(p, tx.init(p), p)[0])

    def head(rate):
        return trained(stepax.stacked(stepax.lamb(rate), AXES), p, 2)[0]["head"]

    many = jax.vmap(head)(jnp.array([1e-2, 1e-3]))
    np.testing.assert_allclose(many[0], head(1e-2), rtol=1e-5)

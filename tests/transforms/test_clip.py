"""Clipping agrees with Optax, and holds at zero, in narrow dtypes and by example."""

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stepax
import stepax.contrib
from stepax import EmptyState, adam, apply_updates, chain, transforms as ours


SHAPES = {"w": (5, 7), "b": (7,), "s": (), "k": (2, 3, 4, 5)}

# Optax divides each element by the norm and multiplies it by the bound; we multiply it
# by one rounded quotient.  Two roundings each, of half an ulp, on either side.
TWO_ULPS = 2

CLIPS = {
    "clip": ((0.5,), 0),
    "clip_by_block_rms": ((0.7,), 0),
    "clip_by_global_norm": ((7.0,), TWO_ULPS),
    # Of norms that cannot overflow: squares are scaled, which XLA fuses otherwise.
    "adaptive_grad_clip": ((0.5,), TWO_ULPS),
}


def random(seed, shapes=SHAPES, dtype="float32", lead=()):
    """Normal numbers, of a size that differs by example of the leading axes."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.normal(size=lead or 1))

    def leaf(shape):
        x = rng.normal(size=(*lead, *shape)) * size.reshape(lead + (1,) * len(shape))
        return jnp.asarray(x, dtype)

    return {name: leaf(shape) for name, shape in shapes.items()}


def run(tx, gradients, params, wrap=jax.jit):
    """The updates for gradients that are stacked along the first axis."""
    state, out = tx.init(params), []
    update = wrap(tx.update)
    for i in range(len(jax.tree.leaves(gradients)[0])):
        g = jax.tree.map(ft.partial(lambda i, x: x[i], i), gradients)
        u, state = update(g, state, params)
        out.append(u)
    return jax.tree.map(lambda *x: np.stack(x), *out)


def assert_within(found, wanted, ulps):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype
        if ulps:
            np.testing.assert_array_max_ulp(x, y, maxulp=ulps)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equals_optax_for_200_steps(name, dtype):
    args, ulps = CLIPS[name]
    with jax.enable_x64(dtype == "float64"):
        p, gs = random(0, dtype=dtype), random(1, dtype=dtype, lead=(200,))
        wanted = run(getattr(optax, name)(*args), gs, p)
        tx = getattr(ours, name)(*args)
        assert_within(run(tx, gs, p), wanted, ulps)
        few = jax.tree.map(lambda x: x[:5], gs)
        found = run(tx, few, p, wrap=lambda f: f)
        # Outside of `jit` numbers are arguments, by which XLA divides, where it may
        # multiply by the reciprocal of a literal.
        few_wanted = jax.tree.map(lambda x: x[:5], wanted)
        assert_within(found, few_wanted, 2 * TWO_ULPS)


def test_a_step_that_clips_all_some_or_none_is_that_of_optax():
    p, g = random(0), random(1)

    def steps(library):
        for name, ((bound,), _) in CLIPS.items():
            for factor in 1e-3, 1.0, 1e3:
                tx = getattr(library, name)(bound * factor)
                yield tx.update(g, tx.init(p), p)[0]

    found, wanted = jax.jit(lambda: [list(steps(ours)), list(steps(optax))])()
    for x, y in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        # Squares that are added in another order, a root and a quotient.
        np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("name", ["clip_by_block_rms", "clip_by_global_norm"])
def test_equals_optax_for_complex_gradients(name):
    g = {"w": jnp.asarray([3 + 4j, 1 - 2j]), "b": jnp.asarray([5j])}
    with jax.numpy_dtype_promotion("standard"):
        tx = getattr(optax, name)(0.5)
        wanted, _ = jax.jit(tx.update)(g, tx.init(g), g)
    tx = getattr(ours, name)(0.5)
    found, _ = jax.jit(tx.update)(g, tx.init(g), g)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_max_ulp(x.real, y.real, maxulp=TWO_ULPS)
        np.testing.assert_array_max_ulp(x.imag, y.imag, maxulp=TWO_ULPS)


@pytest.mark.few(1)
@pytest.mark.parametrize("bound", [0.0, 1.0])
@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_zero_gradient_stays_zero_and_has_a_derivative(name, bound, dtype):
    p = {k: jnp.ones(shape, dtype) for k, shape in SHAPES.items()}
    g = jax.tree.map(jnp.zeros_like, p)
    tx = getattr(ours, name)(bound)

    def summed(g):
        u, _ = tx.update(g, tx.init(p), p)
        return jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, u)), u

    slope, u = jax.jit(jax.grad(summed, has_aux=True))(g)
    assert all((x == 0).all() for x in jax.tree.leaves(u))
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(slope))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_norm_of_narrow_gradients_does_not_overflow(dtype):
    g: Any = {"w": jnp.full((300,), 3e4, dtype), "b": jnp.full((7,), -2e4, dtype)}
    tx: Any = ours.clip_by_global_norm(1.0)
    found, _ = tx.update(g, tx.init(g))
    wide = {k: np.asarray(x, np.float64) for k, x in g.items()}
    norm = np.sqrt(sum(np.sum(x**2) for x in wide.values()))
    for k, u in found.items():
        assert u.dtype == g[k].dtype
        # The factor and the product are float32: only the last rounding shows.
        np.testing.assert_allclose(
            np.asarray(u, np.float64), wide[k] / norm, rtol=float(jnp.finfo(dtype).eps)
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("bad", [jnp.inf, -jnp.inf, jnp.nan])
def test_norm_that_is_not_finite_acts_as_in_optax(bad):
    g = {"w": jnp.asarray([3.0, bad]), "b": jnp.asarray([1.0])}
    results = []
    for tx in ours.clip_by_global_norm(1.0), optax.clip_by_global_norm(1.0):
        results.append(jax.jit(tx.update)(g, tx.init(g))[0])
    assert_within(results[0], results[1], 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted({*CLIPS} - {"clip_by_block_rms"}))  # quicker
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_whose_squares_overflow_are_clipped_as_others(name, dtype):
    p = {"w": jnp.ones(2, dtype), "b": jnp.ones((2, 2), dtype)}
    g = {"w": jnp.asarray([1.0, -0.5], dtype), "b": jnp.full((2, 2), 0.25, dtype)}
    tx = getattr(ours, name)(0.125)
    huge = jax.tree.map(lambda x: x * jnp.asarray(2.0**100, dtype), g)
    near, far = (tx.update(x, tx.init(p), p)[0] for x in (g, huge))
    for x, y in zip(jax.tree.leaves(far), jax.tree.leaves(near), strict=True):
        # A unit that is no power of two rounds each number once.
        np.testing.assert_allclose(
            np.float64(x), np.float64(y), rtol=4 * float(jnp.finfo(dtype).eps)
        )


def test_global_norm_counts_gradients_alone():
    g = {"w": jnp.asarray([3.0, 4.0]), "none": None}
    tx = ours.clip_by_global_norm(1.0)
    u, state = tx.update(g, tx.init(g))
    assert u["none"] is None and state == EmptyState()
    np.testing.assert_allclose(u["w"], [0.6, 0.8], rtol=2e-7)  # two roundings
    assert tx.update({}, tx.init({}))[0] == {}


def test_clipping_writes_no_copy_of_the_gradient():
    p = {"w": jnp.ones((512, 512)), "v": jnp.ones((300, 500))}
    tx = chain(ours.clip_by_global_norm(1.0), adam(0.1))

    @ft.partial(jax.jit, donate_argnums=(0, 1))
    def step(p, state, g):
        u, state = tx.update(g, state, p)
        return apply_updates(p, u), state

    memory: Any = step.lower(p, tx.init(p), p).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.1 * p["v"].nbytes


@pytest.mark.slow
def test_compiled_program_grows_as_the_number_of_leaves():
    """The sum of all squares must not be copied to where each leaf is scaled."""
    tx = ours.clip_by_global_norm(1.0)

    def lines(n):
        g = {str(i): jnp.ones(3) for i in range(n)}
        step = jax.jit(lambda g: tx.update(g, tx.init(g))[0])
        return str(step.lower(g).compile().as_text()).count("\n")

    assert lines(96) < 2.1 * lines(48)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CLIPS)
def test_the_bound_may_be_traced(name):
    p, g = random(0), random(1)

    def updates(bound):
        tx = getattr(ours, name)(bound)
        return tx.update(g, tx.init(p), p)[0]

    # Another program: sums are taken in another order, and divisions by constants are
    # products with their reciprocals.  A few float32 roundings of 6e-8 each.
    found, wanted = jax.jit(updates)(jnp.float32(0.1)), updates(0.1)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_adaptive_clipping_asks_for_the_parameters():
    tx = ours.adaptive_grad_clip(0.1)
    with pytest.raises(ValueError, match="`params` is missing"):
        tx.update({"w": jnp.ones(2)}, EmptyState())


UNITS = [(), (1,), (3,), (2, 1), (2, 3), (1, 1, 3), (2, 3, 4), (2, 3, 4, 2)]
UNITS += [(2, 1, 2, 3, 2), (1,) * 6, (0, 3)]


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", UNITS, ids=str)
def test_units_are_those_of_optax(shape):
    x = random(2, {"x": shape})["x"]
    found = ours.unitwise_norm(x)
    np.testing.assert_array_equal(found, optax.transforms.unitwise_norm(x))
    assert found.shape == shape


def test_units_of_every_shape_are_those_of_optax_in_one_program():
    xs = [random(2, {"x": shape})["x"] for shape in UNITS]
    both = ours.unitwise_norm, optax.transforms.unitwise_norm
    found, wanted = jax.jit(lambda: [list(map(norm, xs)) for norm in both])()
    for x, y in zip(found, wanted, strict=True):
        # Two dozen squares of one sign, added in another order, and a root.
        np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, (0, 1), -1])
def test_units_may_be_given_by_axes(axis):
    x = random(2, {"x": (4, 3)})["x"]
    found = ours.unitwise_norm(x, axis)
    wanted = np.sqrt(np.sum(np.asarray(x, np.float64) ** 2, axis=axis, keepdims=True))
    # A dozen additions of one sign, each rounded by half an ulp, and a root.
    np.testing.assert_allclose(found, np.broadcast_to(wanted, x.shape), rtol=1e-6)


def test_units_of_six_axes_must_be_given():
    with pytest.raises(ValueError, match=r"more than 5 axes; give .* as `axis`"):
        ours.unitwise_norm(jnp.ones((2,) * 6))
    assert ours.unitwise_norm(jnp.ones((2,) * 6), 5).shape == (2,) * 6


def test_norms_of_units_are_wide():
    assert ours.unitwise_norm(jnp.full((3,), 6e4, jnp.float16)).dtype == jnp.float32
    assert ours.unitwise_norm(jnp.ones((2, 3), jnp.int32)).dtype == jnp.float32
    assert ours.unitwise_norm(jnp.asarray([3 + 4j]))[0] == 5


def test_unitwise_clip_equals_optax():
    g_norm = jnp.asarray([1.0, 2.0, 0.0, 1e-8, 3.0])
    most = jnp.asarray([2.0, 1.0, 0.0, 1e-9, 3.0])
    g = jnp.asarray([1.0, -2.0, 0.0, 1e-8, 3.0])
    for eps in 1e-6, 1e-9:
        args = g_norm, most, g, eps
        wanted = optax.transforms.unitwise_clip(*args)
        assert_within(ours.unitwise_clip(*args), wanted, 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64"])
def test_unitwise_clip_keeps_the_dtype_of_the_gradient(dtype):
    g = jnp.asarray([3, -4], dtype)
    u = ours.unitwise_clip(ours.unitwise_norm(g), jnp.ones(2), g)
    assert u.dtype == dtype
    eps = float(jnp.finfo(dtype).eps)  # two float32 roundings, then one of the dtype
    np.testing.assert_allclose(np.asarray(u, "complex64"), [0.6, -0.8], rtol=2 * eps)


def test_unitwise_clip_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"`g_norm` has shape \(1, 3\), .* \(2, 3\)"):
        ours.unitwise_clip(jnp.ones((1, 3)), jnp.ones((2, 3)), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"`max_norm` has shape \(3,\)"):
        ours.unitwise_clip(jnp.ones((2, 3)), jnp.ones((3,)), jnp.ones((2, 3)))


EXAMPLES = {
    "list": lambda: list(random(3, {"a": (3, 2), "b": ()}, lead=(6,)).values()),
    "dict": lambda: random(4, {"a": (3,), "b": (), "c": (2, 2)}, lead=(6,)),
    "array": lambda: random(5, {"a": (3,)}, lead=(6,))["a"],
    "None leaf": lambda: {**random(6, {"a": (3,)}, lead=(6,)), "none": None},
    "complex": lambda: [jnp.asarray([[3 + 4j, 0], [1j, 1j], [0, 0]])],
    "integers": lambda: [jnp.asarray([[0, 0, 0], [0, 3, 4], [4, 0, 3]])],
}

# The sum is taken in an order that the compiler chooses: six numbers of either sign,
# each right to two ulps, are right to 6 × 2 × 6e-8 of the largest.
close = ft.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)


def test_clipping_by_example_equals_optax_in_one_program():
    ways = ("global", {}), ("layer", {"uniform": True}), ("layer", {"uniform": False})

    def clipped(library):
        for how, kwargs in ways:
            clip = getattr(library, f"per_example_{how}_norm_clip")
            yield [clip(make(), 1.25, **kwargs) for make in EXAMPLES.values()]

    with jax.numpy_dtype_promotion("standard"):
        found, wanted = jax.jit(lambda: [list(clipped(ours)), list(clipped(optax))])()
    for x, y in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        close(x, y)


@pytest.mark.few(1)
@pytest.mark.parametrize("bound", [0.0, 1.25, jnp.inf])
@pytest.mark.parametrize("tree", EXAMPLES)
@pytest.mark.parametrize("how", ["global", "uniform", "by size"])
def test_clipping_by_example_equals_optax(tree, bound, how):
    grads = EXAMPLES[tree]()
    kwargs = {} if how == "global" else {"uniform": how == "uniform"}
    name = f"per_example_{'global' if how == 'global' else 'layer'}_norm_clip"
    clip = lambda home: jax.jit(lambda g: getattr(home, name)(g, bound, **kwargs))
    with jax.numpy_dtype_promotion("standard"):
        wanted, counts = clip(optax)(grads)
    found, clipped = clip(ours)(grads)
    assert jax.tree.structure((found, clipped)) == jax.tree.structure((wanted, counts))
    assert_within(clipped, counts, 0)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype
        close(x, y)


@pytest.mark.parametrize(
    "f", [ours.per_example_global_norm_clip, ours.per_example_layer_norm_clip]
)
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_example_of_unknown_norm_does_not_get_through(f, bad):
    grads = [jnp.asarray([[bad, 100.0], [0.3, 0.4]])]
    (total,), clipped = f(grads, 1.0)
    assert np.isnan(total[0]) and total[1] == np.float32(0.4)
    assert jax.tree.leaves(clipped) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_clipping_by_example_is_exact_for_narrow_gradients(dtype):
    g = jnp.full((4, 300), 3e4, dtype)
    total, clipped = ours.per_example_global_norm_clip(g, 1.0)
    assert total.dtype == dtype and clipped == 4
    wanted = np.full(300, 4 / np.sqrt(300))
    # Computed in float32, rounded once.
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(total, np.float64), wanted, rtol=eps)


@pytest.mark.parametrize(
    "grads",
    [[jnp.ones((4, 3)), jnp.ones((3, 2))], [jnp.ones(())], [], {"none": None}],
    ids=["differ", "scalar", "empty", "None"],
)
def test_examples_must_be_counted_by_the_first_axis(grads):
    for name in "per_example_global_norm_clip", "per_example_layer_norm_clip":
        with pytest.raises(ValueError, match=f"`{name}` .* over the examples"):
            getattr(ours, name)(grads, 1.0)


# --- some of the arrays ---------------------------------------------------------------

TREE = {"layer": {"w": (5, 7), "b": (7,)}, "head": (7, 3)}
INSIDE = {"layer": {"w": True, "b": False}, "head": False}
PARTS = {"m": stepax.contrib.normuon(0.02), "o": stepax.adamw(1e-2)}
LABELS = {"layer/w": "m", "**": "o"}
# Each says that only the kernel of the layer is clipped.
WHERES = {
    "tree": INSIDE,
    "prefix": {"layer": {"w": True, "b": False}, "head": False},
    "patterns": {"layer/w": True, "**": False},
    "function": lambda params: INSIDE,
    "masked": stepax.masked(stepax.adamw(1e-2), INSIDE),
    "partition": (stepax.partition(PARTS, LABELS), "m"),
    "muon": (
        stepax.contrib.muon(
            0.02,
            muon_weight_dimension_numbers={
                "layer/w": stepax.contrib.MuonDimensionNumbers(),
                "**": None,
            },
        ),
        "muon",
    ),
}


def grown(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(3 * rng.normal(size=shape), jnp.float32),
        shapes,
        is_leaf=lambda x: type(x) is tuple,
    )


@pytest.mark.parametrize("how", WHERES)
def test_only_what_is_named_is_measured_and_clipped(how):
    g = grown(TREE)
    clip: Any = ours.clip_by_global_norm(1.0, where=WHERES[how])
    tx = stepax.observe(clip, {"norm": lambda g, u, p: stepax.tree.norm(g)})
    u, state = jax.jit(tx.update)(g, tx.init(g), g)
    inside = g["layer"]["w"]
    alone = ours.clip_by_global_norm(1.0)
    wanted, _ = alone.update(inside, alone.init(inside))
    assert_within(u["layer"]["w"], wanted, TWO_ULPS)
    assert_within([u["layer"]["b"], u["head"]], [g["layer"]["b"], g["head"]], 0)
    # What is reported is the norm of all.
    norm = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(g)))
    np.testing.assert_allclose(stepax.tree.get(state, "norm"), norm, rtol=1e-6)


def test_a_partition_clips_each_part_by_its_own_norm():
    g = grown(TREE)
    parts = {k: chain(ours.clip_by_global_norm(1.0), stepax.sgd(1.0)) for k in "mo"}
    tx = stepax.partition(parts, LABELS)
    u, _ = tx.update(g, tx.init(g), g)
    for part in [u["layer"]["w"]], [u["layer"]["b"], u["head"]]:
        np.testing.assert_allclose(stepax.tree.norm(part), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("where", "kind", "words"),
    [
        (stepax.adamw(1e-2), TypeError, "own leaves are unknown"),
        ((stepax.adamw(1e-2), "m"), TypeError, "own leaves are unknown"),
        ((WHERES["partition"][0], "x"), ValueError, r"expected one of \['m', 'o'\]"),
    ],
)
def test_a_transformation_without_leaves_of_its_own_is_refused(where, kind, words):
    with pytest.raises(kind, match=words):
        ours.clip_by_global_norm(1.0, where=where)

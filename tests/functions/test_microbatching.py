"""A function of microbatches gives what the whole batch gives, in less memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compare import assert_same_tree
from jax.sharding import NamedSharding, PartitionSpec as P

import stepax
from stepax import microbatching as ours


KIND = ours.AccumulationType
X = jnp.arange(12.0).reshape(6, 2)
W = jnp.array([1.0, 2.0])


def theirs(kind):
    return getattr(optax.microbatching.AccumulationType, kind.name)


@pytest.mark.slow
def test_an_axis_is_cut_as_in_optax():
    tree = {"a": X, "b": (jnp.arange(6), None)}
    for args in (2,), (3, 0), (6,):
        assert_same_tree(
            ours.reshape_batch_axis(tree, *args),
            optax.microbatching.reshape_batch_axis(tree, *args),
        )
    assert_same_tree(
        ours.reshape_batch_axis(X, 1, -1),
        optax.microbatching.reshape_batch_axis(X, 1, 1),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("real", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("kind", KIND, ids=lambda k: k.name)
def test_each_way_to_combine_is_optaxs(kind, real):
    fun = lambda x: {"rows": 2 * x, "number": jnp.sum(x), "none": None}
    found, wanted = (
        m.microbatch(fun, 0, 2, k, num_real_microbatches=real)(X)
        for m, k in ((ours, kind), (optax.microbatching, theirs(kind)))
    )
    assert_same_tree(found, wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [None, 2, 6])
@pytest.mark.parametrize("kind", KIND, ids=lambda k: k.name)
def test_mapped_examples_are_combined_as_in_optax(kind, size):
    fun = lambda x, y, s: x * jnp.sum(y) * s
    args, axes = (X[:, 0], X.T, 2.0), (0, 1, None)
    found, wanted = (
        m.micro_vmap(fun, axes, microbatch_size=size, accumulator=k)(*args)
        for m, k in ((ours, kind), (optax.microbatching, theirs(kind)))
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def loss(w, x):
    return jnp.mean(jnp.square(x @ w))


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [None, 1, 3])
def test_gradients_of_examples_are_optaxs(size):
    found, wanted = (
        jax.jit(
            m.micro_grad(
                lambda w, x: (loss(w, x), x[0]),
                has_aux=True,
                microbatch_size=size,
                accumulator=(m.AccumulationType.SUM, m.AccumulationType.MEAN),
                transform_fn=lambda g: (g, g * g),
                metrics_fn=jnp.linalg.norm,
            )
        )(W, X)
        for m in (ours, optax.microbatching)
    )
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert found[1]._fields == wanted[1]._fields


def test_gradients_of_examples_without_a_batch_axis():
    grads, aux = ours.micro_grad(
        lambda w, s, x: s * jnp.square(x @ w),
        argnums=(0, 1),
        batch_argnums=-1,
        keep_batch_dim=False,
        microbatch_size=2,
    )(W, 2.0, X)
    wanted = jax.grad(lambda w, s: s * jnp.sum(jnp.square(X @ w)), (0, 1))(W, 2.0)
    jax.tree.map(np.testing.assert_array_equal, grads, wanted)
    np.testing.assert_array_equal(aux.values, 2 * jnp.square(X @ W))


def test_a_mean_over_microbatches_is_the_gradient_of_the_batch():
    for kind in KIND.MEAN, KIND.RUNNING_MEAN:
        found = jax.jit(stepax.microbatch(jax.grad(loss), 1, 2, kind))(W, X)
        np.testing.assert_allclose(found, jax.grad(loss)(W, X), rtol=1e-6)
    summed = lambda w: stepax.microbatch(loss, 1, 2)(w, X)
    found = jax.jit(jax.grad(summed))(W)
    np.testing.assert_allclose(found, 3 * jax.grad(loss)(W, X), rtol=1e-6)


def test_an_empty_batch_gives_zeros_of_the_right_shapes():
    kinds = {"c": KIND.CONCAT, "s": KIND.SUM, "m": KIND.MEAN, "r": KIND.RUNNING_MEAN}

    def fun(x):
        number = jnp.mean(x)
        return {"c": (x, number), "s": x.T, "m": number, "r": number}

    found = jax.jit(ours.microbatch(fun, 0, 3, kinds))(X[:0])
    assert found["c"][0].shape == (0, 2) and found["c"][1].shape == (0,)
    assert found["s"].shape == (2, 3) and found["m"] == 0 and found["r"] == 0
    grads, aux = ours.micro_grad(loss, microbatch_size=2)(W, X[:0])
    assert not grads.any() and aux.values.shape == (0,)
    assert ours.micro_vmap(jnp.sum, microbatch_size=2)(X[:0]).shape == (0,)
    assert ours.reshape_batch_axis(X[:0], 4).shape == (0, 4, 2)


def test_how_many_microbatches_are_real_may_be_traced():
    run = jax.jit(
        lambda n: ours.microbatch(
            jnp.sum, 0, 2, KIND.RUNNING_MEAN, num_real_microbatches=n
        )(X)
    )
    assert run(1) == jnp.sum(X[::3])
    assert run(9) == run(3) == jnp.sum(X) / 3  # there are no more than three


def test_arguments_are_chosen_by_number_name_and_axis():
    fun = lambda a, b, *, c, d: jnp.sum(a) + b * jnp.sum(c["x"] * (c["x"] + d.T))
    run = ours.microbatch(fun, (-2,), 3, argnames=("c", "d"), in_axes=(0, 0, 1))
    c = {"x": X, "none": None}
    found = run(X, 2.0, c=c, d=X.T)
    np.testing.assert_allclose(found, jnp.sum(X) + 2 * 2 * jnp.sum(X * X))
    axes = ({"x": 1, "y": None},)
    found = ours.micro_vmap(lambda t: t["x"] * t["y"], axes, microbatch_size=2)(
        {"x": X.T, "y": 3.0}
    )
    assert_same_tree(found, 3 * X)
    assert_same_tree(ours.micro_vmap(lambda x: x, microbatch_size=2)(x=X), X)


def test_an_accumulator_of_ones_own():
    top = ours.Accumulator(
        init=lambda s: jnp.full(s.shape, -jnp.inf, s.dtype),
        update=lambda carry, x, i: jnp.maximum(carry, x),
        finalize=lambda carry: carry,
        aggregate=lambda x: jnp.max(x, axis=0),
    )
    kinds = top, KIND.CONCAT
    best, rows = ours.micro_vmap(
        lambda x: (jnp.sum(x), x), microbatch_size=2, accumulator=kinds
    )(X)
    assert best == 21
    assert_same_tree(rows, X)


def test_narrow_numbers_are_added_in_float32():
    x = jnp.ones(1024, jnp.bfloat16)
    found = jax.jit(ours.microbatch(jnp.sum, 0, 1))(x)  # 256 + 1 is 256 in bfloat16
    assert found.dtype == jnp.bfloat16
    assert found == 1024
    assert ours.microbatch(jnp.sum, 0, 2)(jnp.arange(6)).dtype == jnp.int32
    assert ours.microbatch(jnp.any, 0, 2)(jnp.arange(6) > 4).dtype == bool


def test_no_more_than_one_result_is_held():
    big = jnp.ones((64, 4))
    fun = lambda x: jnp.sum(x) * jnp.ones(20_000)
    run = jax.jit(stepax.microbatch(fun, 0, 1))
    memory: Any = run.lower(big).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 5 * 80_000  # 64 of them would be 5 million
    jaxpr = str(jax.make_jaxpr(run)(big))
    assert jaxpr.count("scan[") + jaxpr.count("while[") == 1


AxisType = jax.sharding.AxisType


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_sharded_batch_stays_where_it_is(kind):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,))
    x = jax.device_put(jnp.arange(16.0).reshape(8, 2), NamedSharding(mesh, P("x")))
    run = jax.jit(ours.microbatch(lambda x: 2 * x, 0, 4, KIND.CONCAT))
    assert_same_tree(run(x), 2 * x)
    assert run(x).sharding.is_equivalent_to(x.sharding, 2)
    text = str(run.lower(x).compile().as_text())
    assert "all-gather" not in text and "all-to-all" not in text
    total = jax.jit(ours.microbatch(lambda x: jnp.sum(x, axis=1), 0, 4))(x)
    assert_same_tree(total, np.sum(np.asarray(x).reshape(4, 2, 2), axis=(1, 2)))


@pytest.mark.slow
def test_it_runs_inside_shard_map():
    mesh = jax.make_mesh((4,), ("x",))
    local = ours.microbatch(lambda x: jnp.sum(x, axis=0), 0, 1)
    run = jax.shard_map(
        lambda x: jax.lax.psum(local(x), "x"), mesh=mesh, in_specs=P("x"), out_specs=P()
    )
    x = jax.device_put(jnp.arange(16.0).reshape(8, 2), NamedSharding(mesh, P("x")))
    assert_same_tree(run(x), np.sum(np.asarray(x), axis=0))


def two(a, b):
    return jnp.sum(a) + jnp.sum(b)


WRONG = {
    r"argument 0\['w'\] has 6 rows, not divisible by the `microbatch_size` 4": lambda: (
        ours.microbatch(lambda t: t["w"], 0, 4)({"w": X})
    ),
    r"the leaf at \['w'\] has 6 rows, not divisible": lambda: ours.reshape_batch_axis(
        {"w": X}, 4
    ),
    "argument 1 has 4 rows and argument 0 has 6": lambda: ours.microbatch(
        two, (0, 1), 2
    )(X, X[:4]),
    r"`b` has shape \(\), so it has no batch axis 0": lambda: ours.microbatch(
        two, 0, 2, argnames="b"
    )(X, b=1.0),
    "`argnums` has 2, but the call has 2 positional": lambda: ours.microbatch(
        two, 2, 2
    )(X, X),
    "`argnames` has 'c', but the call passes no such argument": lambda: ours.microbatch(
        two, 0, 2, argnames="c"
    )(X, X),
    "`argnames` has 'b', but the call passes no such argument": lambda: ours.microbatch(
        lambda *both: two(*both), 0, 2, argnames="b"
    )(X, X),
    "`in_axes` has 'c', which is in neither": lambda: ours.microbatch(
        two, 0, 2, argnames="b", in_axes={"c": 1}
    ),
    "`in_axes` has 1 axes, expected 2": lambda: ours.microbatch(
        two, (0, 1), 2, in_axes=(0,)
    ),
    "`in_axes` has 1 axes, expected 2, one for each argument": lambda: ours.micro_vmap(
        two, (0,), microbatch_size=2
    )(X, X),
    "`in_axes` and argument 0 differ in structure": lambda: ours.micro_vmap(
        jnp.sum, ({"a": 0},), microbatch_size=2
    )(X),
    "no argument has a batch axis": lambda: ours.micro_vmap(
        lambda t: 1.0, microbatch_size=2
    )({}),
    "`microbatch_size` is 0": lambda: ours.microbatch(two, 0, 0),
    "`num_real_microbatches` is -1": lambda: ours.micro_vmap(
        two, num_real_microbatches=-1
    ),
    "`out_axes` is 1, expected 0": lambda: ours.micro_vmap(two, out_axes=1),
    r"`accumulator` is 'sum' for the result at the root": lambda: ours.microbatch(
        jnp.sum, 0, 2, "sum"
    )(X),
    "`accumulator` and the result differ in structure": lambda: ours.microbatch(
        jnp.sum, 0, 2, (KIND.SUM, KIND.SUM)
    )(X),
    r"the result at \[0\] is of dtype int32, which has no MEAN": lambda: (
        ours.microbatch(lambda x: (jnp.int32(1), x), 0, 2, KIND.MEAN)(X)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_calls_name_the_argument_and_the_sizes(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()


def pair(a, b, scale=1.0):
    return jnp.sum(a, axis=0) + scale * jnp.sum(b, axis=0)


CALLS = {
    "by position": lambda f, a, b: f(a, b),
    "the second by name": lambda f, a, b: f(a, b=b),
    "both by name": lambda f, a, b: f(b=b, a=a),
    "with another": lambda f, a, b: f(a, b, scale=1.0),
    "by position, with another": lambda f, a, b: f(a, b, 1.0),
}
PLANS = {
    "numbers": {"argnums": (0, 1)},
    "names": {"argnums": (), "argnames": ("a", "b")},
    "both": {"argnums": 0, "argnames": "b"},
    "the other way round": {"argnums": 1, "argnames": "a"},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("plan", PLANS)
def test_arguments_are_found_however_they_are_given(call, plan):
    a, b = jnp.arange(12.0).reshape(4, 3), jnp.arange(4.0)[:, None]
    f = ours.microbatch(pair, microbatch_size=2, **PLANS[plan])
    assert_same_tree(CALLS[call](f, a, b), pair(a, b))


@pytest.mark.few(1)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "in_axes", [(0, 1), {"b": 1}, {0: 0, "b": 1}], ids=["in order", "some", "all"]
)
def test_axes_go_with_numbers_and_names(call, in_axes):
    a, b = jnp.arange(12.0).reshape(4, 3), jnp.arange(8.0).reshape(2, 4)
    fun = lambda a, b, scale=1.0: jnp.sum(a) + scale * jnp.sum(b * b[:1])
    f = ours.microbatch(fun, 0, 2, argnames="b", in_axes=in_axes)
    assert_same_tree(CALLS[call](f, a, b), fun(a, b))


@pytest.mark.parametrize("last", [-1, 1])
def test_a_number_from_the_end_counts_what_is_given_by_name(last):
    a, b = jnp.arange(3.0), jnp.arange(8.0).reshape(4, 2)
    fun = lambda a, b: jnp.sum(a) + jnp.sum(b)
    f = ours.microbatch(fun, last, 2, KIND.CONCAT)
    assert f(a, b).shape == f(a, b=b).shape == (2,)


def test_gradients_of_examples_take_the_batch_by_name():
    w, x = jnp.arange(3.0), jnp.arange(12.0).reshape(4, 3)
    fun = lambda w, x: jnp.sum(jnp.sin(x @ w))
    f = ours.micro_grad(fun, microbatch_size=2)
    wanted = f(w, x)[0]
    assert_same_tree(f(w, x=x)[0], wanted)


# --- weights -------------------------------------------------------------------------


ROWS = jnp.array([[1, 1], [1, 0], [1, 1], [0, 0], [1, 0], [0, 0]], bool)  # of tokens
KINDS = (KIND.RUNNING_MEAN, KIND.MEAN, KIND.SUM)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [None, 1, 2])
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_a_microbatch_counts_by_its_tokens(kind, size):
    fun = lambda x: {"mean": jnp.mean(x), "count": jnp.int32(1)}
    kinds = {"mean": kind, "count": KIND.SUM}
    found = jax.jit(ours.microbatch(fun, 0, size, kinds))(X, weight=ROWS)
    n = 6 // (size or 6)
    values = [jnp.mean(X[i::n]) for i in range(n)]
    weights = [float(ROWS[i::n].sum()) for i in range(n)]
    total = 1 if kind is KIND.SUM else sum(weights)
    wanted = sum(w * x for w, x in zip(weights, values, strict=True)) / total
    np.testing.assert_allclose(found["mean"], wanted, rtol=1e-6)
    assert int(found["count"]) == sum(w > 0 for w in weights)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_nan_behind_weight_0_does_not_count(kind):
    f = ours.microbatch(jnp.sum, 0, 1, kind)
    bad = X.at[3].set(jnp.nan)
    found = jax.jit(lambda x, w: f(x, weight=w))(bad, ROWS)
    np.testing.assert_array_equal(found, f(X, weight=ROWS))
    assert float(f(bad, weight=jnp.zeros(6))) == 0


def test_equal_weights_give_the_bits_of_none():
    f = ours.microbatch(jnp.mean, 0, 1, KIND.RUNNING_MEAN)
    x = jnp.sin(X)
    np.testing.assert_array_equal(f(x, weight=jnp.full(6, 4)), f(x))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_a_mesh_is_one_batch(kind):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    one = ours.microbatch(jnp.mean, 0, 1, kind)
    many = ours.microbatch(jnp.mean, 0, 1, kind, axis_name="d")
    body = lambda x, w: (many(x, weight=w), many(x))
    specs = {"in_specs": (P("d"), P("d")), "out_specs": P()}
    found = jax.jit(jax.shard_map(body, mesh=mesh, **specs))(X, ROWS)
    np.testing.assert_allclose(found, (one(X, weight=ROWS), one(X)), rtol=1e-6)


def test_a_function_keeps_its_own_weight():
    f = ours.microbatch(lambda x, weight: jnp.sum(x) * weight, 0, 2)
    assert float(f(X, weight=2.0)) == 2 * float(X.sum())
    f = ours.microbatch(lambda x, **more: jnp.sum(x) * more["weight"], 0, 2)
    assert float(f(X, weight=2.0)) == 2 * float(X.sum())


WEIGHTS = {
    "rows": (jnp.ones(5), r"has shape \(5,\), expected 6 rows"),
    "scalar": (2.0, r"has shape \(\), expected 6 rows"),
    "negative": (-jnp.ones(6), "is -1, expected a finite number"),
    "NaN": (jnp.full(6, jnp.nan), "is nan, expected a finite number"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_other_weights_are_errors(case):
    weight, message = WEIGHTS[case]
    with pytest.raises(ValueError, match=f"`weight` of `microbatch` {message}"):
        ours.microbatch(jnp.sum, 0, 2)(X, weight=weight)
    with pytest.raises(ValueError, match="`weight` of `microbatch` has no effect"):
        ours.microbatch(lambda x: x, 0, 2, KIND.CONCAT)(X, weight=jnp.ones(6))
    with pytest.raises(ValueError, match="`axis_name` has 'x'.*call the function"):
        ours.microbatch(jnp.sum, 0, 2, axis_name="x")(X)


def test_keywords_are_mapped_along_axes_of_their_own():
    x, scale = jnp.arange(12.0).reshape(6, 2), jnp.arange(18.0).reshape(3, 6)
    f = lambda x, *, scale, shift: (x.sum() * scale.sum() + shift).astype("float32")
    axes, shift = {0: 0, "scale": 1, "shift": None}, jnp.float32(1.0)
    wanted = x.sum(1) * scale.sum(0) + shift
    for size in None, 2:
        mapped = stepax.microbatching.micro_vmap(f, axes, microbatch_size=size)
        found = mapped(x, scale=scale, shift=shift)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        with pytest.raises(ValueError, match="`in_axes` has 'scale', but the call"):
            mapped(x, shift=shift)

"""`MultiSteps` takes one step for several gradients, and works only then."""

import functools as ft
import inspect
import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import gradients, keeps_factors, make, mlp, rows, types
from jax.sharding import AxisType, PartitionSpec
from runs import (
    K,
    close,
    compare,
    compilations,
    eager,
    equal,
    everyhow,
    jitted,
    many,
    parameters,
    scanned,
    traced,
)

import stepax
from stepax import MultiSteps, skip_not_finite


EXTRA = {"value": jnp.float32(1.0)}  # for those that read the loss


# --- the mean of k is one step -------------------------------------------------------


def near(x, y, condition=1):
    """Close; optimizers of matrices mix entries, so that errors are of the largest.

    condition: that of a matrix that is decomposed, which multiplies them.
    """
    atol = max(1e-9, 1e-6 * condition * float(np.max(np.abs(y), initial=0)))
    np.testing.assert_allclose(x, y, rtol=3e-6, atol=atol)


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_k_gradients_are_one_step_with_their_mean(row):
    p, gs = parameters(), many(2 * K)
    # An orthonormal factor has a condition of some 10 here, and the inverse root of the
    # statistics of two steps, which are singular, more.
    has_roots = "inverse_exponents" in inspect.signature(row.factory).parameters
    condition = 10 if keeps_factors(make(row)) else 1
    alike = ft.partial(near, condition=100 if has_roots else condition)
    u, state = jitted(MultiSteps(make(row), K), gs, p, **EXTRA)
    means = []
    for window in (gs[:K], gs[K:]):
        mean = jax.tree.map(jnp.zeros_like, p)
        for n, g in enumerate(window, 1):
            mean = jax.tree.map(lambda m, x, n=n: m + (x - m) / n, mean, g)
        means.append(mean)
    v, inner = jitted(make(row), means, p, **EXTRA)
    compare(alike, jax.tree.map(lambda x: x[K - 1 :: K], u), v)
    if not any(x.dtype == bool for x in jax.tree.leaves(inner)):
        compare(alike, state.inner_opt_state, inner)
    assert not any(x[i].any() for x in jax.tree.leaves(u) for i in (0, 1, 3, 4))


INNER = {
    "adam": lambda o: o.adam(1e-2),
    "adamw": lambda o: o.adamw(o.linear_schedule(0.1, 0.01, 5), b1=0.8),
    "clip": lambda o: o.chain(o.clip_by_global_norm(0.1), o.scale(-0.1)),
    "masked": lambda o: o.masked(o.adam(1e-2), {"w": True, "b": False}),
    "injected": lambda o: o.inject_hyperparams(o.adamw)(1e-2),
}
OPTIONS = {
    "mean": {"every_k_schedule": 3},
    "sum": {"every_k_schedule": 3, "use_grad_mean": False},
    "one": {"every_k_schedule": 1},
    "schedule": {"every_k_schedule": lambda step: 1 + step},
    "narrow": {"every_k_schedule": 2, "accumulator_dtype": jnp.bfloat16},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("inner", INNER)
def test_updates_and_states_are_optax_s(inner, options):
    p, gs = parameters(), many(6)
    u, state = jitted(MultiSteps(INNER[inner](stepax), **OPTIONS[options]), gs, p)
    with jax.numpy_dtype_promotion("standard"):
        reference = optax.MultiSteps(INNER[inner](optax), **OPTIONS[options])
        v, wanted = jitted(reference, gs, p)
    # bfloat16 has 8 bits, of which the order of two roundings may cost the last.
    check = close if options != "narrow" else ft.partial(close, rtol=2**-7)
    compare(check, u, v)
    compare(check, state, wanted)
    assert types(state) == types(wanted)
    assert [type(x).__name__ for x in (state, state.inner_opt_state)] == [
        type(x).__name__ for x in (wanted, wanted.inner_opt_state)
    ]


def test_the_mean_is_bit_equal_to_optax_s():
    p, gs = parameters(), many(8)
    _, state = jitted(MultiSteps(stepax.adam(1.0), 9), gs, p)
    _, eagerly = eager(MultiSteps(stepax.adam(1.0), 9), gs, p)
    with jax.numpy_dtype_promotion("standard"):
        _, wanted = jitted(optax.MultiSteps(optax.adam(1.0), 9), gs, p)
    compare(equal, state.acc_grads, wanted.acc_grads)
    compare(equal, eagerly.acc_grads, wanted.acc_grads)


@pytest.mark.slow
@everyhow
def test_every_way_to_run_it_gives_the_same(run):
    p, gs = parameters(), many(2 * K)
    tx = MultiSteps(stepax.chain(stepax.zero_nans(), stepax.adam(1e-2)), K)
    u, state = run(tx, gs, p)
    v, wanted = jitted(tx, gs, p)
    compare(close, u, v)
    compare(close, state, wanted)
    assert types(state) == types(wanted) == types(tx.init(p))


@pytest.mark.parametrize("k", [2, 3.0, 2.9999998, jnp.int32(2), jnp.float32(3.0)])
def test_a_schedule_may_return_floats(k):
    n = round(float(k))
    for run in (eager, jitted):
        u, state = run(
            MultiSteps(stepax.scale(1.0), lambda step: k), many(n), parameters()
        )
        assert int(state.gradient_step) == 1 and int(state.mini_step) == 0


def test_has_updated_tells_of_the_last_call():
    tx, p = MultiSteps(stepax.adam(1e-2), 2), parameters()
    state, seen = tx.init(p), []
    assert not tx.has_updated(state)
    for g in many(4):
        _, state = tx.update(g, state, p)
        seen.append(bool(tx.has_updated(state)))
    assert seen == [False, True, False, True]


# --- cost ----------------------------------------------------------------------------


@pytest.mark.parametrize("run", [eager, jitted, scanned])
def test_inner_transformation_runs_only_when_due(run):
    calls = []

    def update(updates, state, params=None):
        jax.debug.callback(lambda: calls.append(None))
        return updates, state

    inner = stepax.GradientTransformation(stepax.init_empty_state, update)
    _, state = run(MultiSteps(inner, 4), many(8), parameters())
    jax.block_until_ready(state)
    jax.effects_barrier()
    assert len(calls) == 2


def test_waiting_branch_has_none_of_the_inner_operations():
    tx, p = MultiSteps(stepax.adam(1e-2), 4), parameters()
    jaxpr = jax.make_jaxpr(tx.update)(p, tx.init(p), p)
    (cond,) = [e for e in jaxpr.eqns if e.primitive.name == "cond"]
    has_root = ["sqrt" in str(branch) for branch in cond.params["branches"]]
    assert sorted(has_root) == [False, True]
    assert "sqrt" not in str([e for e in jaxpr.eqns if e is not cond])


def test_nothing_is_compiled_after_the_first_window():
    tx, p, gs = MultiSteps(stepax.adamw(1e-2), 2), parameters(), many(6)
    _, state = eager(tx, gs[:2], p)
    with compilations() as compiled:
        eager(tx, gs[2:4], p, state)
        again = MultiSteps(stepax.adamw(1e-2), 2)
        state = again.init(p)
        for g in gs[4:]:
            _, state = again.update(g, state, p)
    assert not compiled


def test_three_calls_compile_once():
    tx, p, traces = MultiSteps(stepax.adamw(1e-2), 2), parameters(), []

    @jax.jit
    def step(g, s, p):
        traces.append(None)
        return tx.update(g, s, p)

    eager(stepax.GradientTransformation(tx.init, step), many(3), p)
    assert len(traces) == 1


# --- dtypes, trees, devices ----------------------------------------------------------


DTYPES = {  # of the parameters and gradients, asked of the accumulator, of it
    "float32": ("float32", "float32", "float32"),
    "bfloat16": ("bfloat16", "float32", "float32"),
    "float16": ("float16", "float32", "float32"),
    "float64": ("float64", "float32", "float64"),
    "complex64": ("complex64", "float32", "complex64"),
    "complex128": ("complex128", "float32", "complex128"),
    "narrow": ("float32", "bfloat16", "bfloat16"),
    "wide": ("float32", "float64", "float64"),
    "narrow float64": ("float64", "bfloat16", "bfloat16"),
    "narrow complex": ("complex64", "bfloat16", "complex64"),
    "wide complex": ("complex64", "float64", "complex128"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtypes", DTYPES)
def test_gradients_accumulate_in_their_precision(dtypes, x64):
    dtype, asked, wanted = DTYPES[dtypes]
    p = {"w": jnp.ones(2, dtype)}
    number = 0.5 + 0.25j if "complex" in dtype else 0.5
    g = {"w": jnp.array([1, number], dtype)}
    tx = MultiSteps(stepax.adam(1e-2), 2, accumulator_dtype=asked)
    first = tx.init(p)
    assert first.acc_grads["w"].dtype == wanted
    u, state = scanned(tx, [g] * 3, p)
    assert types(state) == types(first)
    assert u["w"].dtype == dtype
    equal(state.acc_grads["w"], g["w"].astype(wanted))


def test_small_gradients_in_bfloat16_are_not_lost():
    p = jnp.ones(1, jnp.bfloat16)
    gs = [p, *[p / 512] * 256]  # in bfloat16 1 + 1/512 is 1
    tx = MultiSteps(stepax.scale(1.0), len(gs), use_grad_mean=False)
    u, _ = scanned(tx, gs, p)
    assert float(u[-1][0]) == 1.5


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
@pytest.mark.parametrize("row", rows(kind="optimizer", holomorphic=True))
def test_every_inner_state_is_a_scan_carry(row, dtype):
    p = jax.tree.map(lambda x: x.astype(dtype), parameters())
    gs = [jax.tree.map(lambda x: x.astype(dtype), g) for g in many(2)]
    tx = MultiSteps(make(row), 2)
    u, state = traced(tx, gs, p, **EXTRA)
    assert types(state) == types(tx.init(p))
    assert all(x.dtype == dtype for x in jax.tree.leaves(u))


def test_leaves_without_a_gradient_wait_and_stay():
    p = {"w": jnp.ones(3), "n": jnp.arange(2), "none": None, "off": jnp.ones(2)}
    nothing = np.zeros(2, jax.dtypes.float0)
    g = {"w": jnp.ones(3), "n": nothing, "none": None, "off": None}
    tx = MultiSteps(stepax.adamw(1e-2), 2, should_skip_update_fn=skip_not_finite)
    # A float0 array is no argument of a jitted function, but may be a constant in it.
    for step in (ft.partial(tx.update, g), jax.jit(ft.partial(tx.update, g))):
        state = first = tx.init(p)
        _, state = step(state, p)
        u, state = step(state, p)
        assert u["off"] is None and u["n"].dtype == jax.dtypes.float0
        assert jax.tree.structure(state) == jax.tree.structure(first)
        assert u["w"].all()


def test_integer_parameters_under_jit():
    p = {"w": jnp.ones(3), "n": jnp.arange(2)}
    tx = MultiSteps(stepax.adamw(1e-2), 2)

    @jax.jit
    def step(p, s):
        loss = lambda p: jnp.sum(p["w"] ** 2)
        u, s = tx.update(jax.grad(loss, allow_int=True)(p), s, p)
        return stepax.apply_updates(p, u), s

    state = tx.init(p)
    for _ in range(2):
        p, state = step(p, state)
    equal(p["n"], np.arange(2))
    assert (p["w"] < 1).all()


@pytest.mark.parametrize("run", [eager, jitted])
def test_a_whole_module_may_be_the_parameters(run):
    model = mlp()
    gs = [gradients(model, i) for i in range(4)]
    tx = MultiSteps(stepax.adamw(1e-2), 2, should_skip_update_fn=skip_not_finite)
    step = eqx.filter_jit(tx.update) if run is jitted else tx.update
    state, whole = tx.init(model), []
    for g in gs:
        u, state = step(g, state, model)
        whole.append(u)
    v, wanted = run(tx, gs, eqx.filter(model, eqx.is_inexact_array))
    compare(close, jax.tree.map(lambda *x: jnp.stack(x), *whole), v)
    compare(close, state, wanted)


def test_parameters_and_fresh_state_can_be_donated():
    p, g = parameters(), gradients(parameters())
    tx = MultiSteps(stepax.adamw(1e-2), 2, should_skip_update_fn=skip_not_finite)
    wanted = jax.jit(tx.update)(g, tx.init(p), p)
    state = tx.init(p)
    found = jax.jit(tx.update, donate_argnums=(1, 2))(g, state, p)
    compare(equal, found, wanted)


def _mesh():
    return jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))


@pytest.mark.few(1)
@pytest.mark.parametrize("skip", [None, skip_not_finite], ids=["", "skip"])
# Without checks nothing tells that an average is replicated.
@pytest.mark.parametrize(
    ("is_averaged", "checks"), [(True, True), (False, True), (False, False)]
)
def test_runs_in_shard_map(checks, is_averaged, skip):
    p, gs = parameters(), many(4)
    inner = stepax.chain(stepax.zero_nans(), stepax.adamw(1e-2))
    tx = MultiSteps(inner, 2, should_skip_update_fn=skip)
    spec = PartitionSpec() if is_averaged else PartitionSpec("d")

    def run(p, *gs):
        state = tx.init(p)
        u, scale = p, 1.0 + jax.lax.axis_index("d").astype(jnp.float32)
        for g in gs:
            g = jax.tree.map(lambda x: x * scale, g)
            g = jax.lax.pmean(g, "d") if is_averaged else g
            u, state = tx.update(g, state, p)
        return u if is_averaged else jax.tree.map(lambda x: x[None], u)

    sharded = jax.shard_map(
        run, mesh=_mesh(), in_specs=PartitionSpec(), out_specs=spec, check_vma=checks
    )
    found = jax.jit(sharded)(p, *gs)
    for i in [0] if is_averaged else range(2):
        scale = 1.5 if is_averaged else 1.0 + i
        v, _ = jitted(
            tx, [jax.tree.map(lambda x, scale=scale: x * scale, g) for g in gs], p
        )
        mine = found if is_averaged else jax.tree.map(lambda x, i=i: x[i], found)
        compare(close, mine, jax.tree.map(lambda x: x[-1], v))


# --- in other company ----------------------------------------------------------------


lib: Any = stepax  # for calls that are no good on purpose
READER = lib.GradientTransformationExtraArgs(
    stepax.init_empty_state,
    lambda u, s, p=None, *, factor, **_: (jax.tree.map(lambda x: x * factor, u), s),
)


WAYS = {
    "object": lambda tx: tx,
    "pair": lambda tx: tx.gradient_transformation(),
    "chain": lambda tx: stepax.chain(stepax.identity(), tx),
    "chain of the pair": lambda tx: stepax.chain(tx.gradient_transformation()),
    "Optax's chain": lambda tx: optax.chain(tx.gradient_transformation()),
    "masked": lambda tx: stepax.masked(tx, True),
}


@pytest.mark.parametrize("way", WAYS)
def test_keywords_reach_the_inner_transformation(way):
    tx = WAYS[way](MultiSteps(READER, 2))
    u, _ = jitted(tx, many(2), parameters(), factor=jnp.float32(3.0), unread=1)
    v, _ = jitted(MultiSteps(stepax.scale(3.0), 2), many(2), parameters())
    compare(close, u, v)


def test_the_object_is_a_member_of_chains():
    for o in (stepax, optax):
        tx = o.chain(o.scale(0.5), MultiSteps(stepax.scale(2.0), 2))
        u, state = jitted(tx, many(2), parameters())
        v, _ = jitted(MultiSteps(stepax.scale(1.0), 2), many(2), parameters())
        compare(close, u, v)
        assert type(state[1]).__name__ == "MultiStepsState"


def test_the_pair_is_a_transformation_of_optax_s_classes():
    tx = MultiSteps(stepax.adam(1e-2), 2).gradient_transformation()
    assert isinstance(tx, optax.GradientTransformation)
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    assert isinstance(tx.init(parameters()), optax.MultiStepsState)
    assert tx._fields == ("init", "update")


def test_optax_s_transformations_may_be_inside():
    p, gs = parameters(), many(4)
    with jax.numpy_dtype_promotion("standard"):
        u, state = jitted(lib.MultiSteps(optax.adam(1e-2), 2), gs, p)
        v, wanted = jitted(optax.MultiSteps(optax.adam(1e-2), 2), gs, p)
    compare(close, u, v)
    compare(close, state, wanted)


def test_equal_arguments_make_equal_objects():
    make = lambda k=2, **more: MultiSteps(stepax.adam(1e-2), k, **more)
    tx = make()
    assert repr(tx) == "MultiSteps(opt=adam(learning_rate=0.01), every_k_schedule=2)"
    assert "use_grad_mean=False" in repr(make(use_grad_mean=False))
    assert tx == make() and hash(tx) == hash(make())
    assert tx != make(3) and tx != make(use_grad_mean=False) and tx != tx.inner_opt
    assert pickle.loads(pickle.dumps(tx)) == tx
    pair = tx.gradient_transformation()
    assert repr(pair) == f"{tx!r}.gradient_transformation()"
    assert pair == make().gradient_transformation() and hash(pair)
    assert pickle.loads(pickle.dumps(pair)) == pair
    assert tx.inner_opt == stepax.adam(1e-2)


ERRORS = {
    "k is 0": (lambda tx: MultiSteps(tx, 0), ValueError, "`MultiSteps`.* is 0"),
    "k is below 0": (lambda tx: MultiSteps(tx, -1), ValueError, "at least 1 gradient"),
    "k is no integer": (lambda tx: lib.MultiSteps(tx, 2.5), TypeError, "an integer"),
    "no call": (lambda tx: lib.MultiSteps(stepax.adam, 2), TypeError, r"`adam\(...\)`"),
    "k is 0 later": (
        lambda tx: eager(MultiSteps(tx, lambda step: 1 - step), many(2), parameters()),
        ValueError,
        "`every_k_schedule` returned 0 for step 1",
    ),
    "shape": (
        lambda tx: eager(MultiSteps(tx, 2), [jnp.ones((1, 3))], jnp.ones((4, 3))),
        ValueError,
        r"the gradient at the root has shape \(1, 3\), `acc_grads` has",
    ),
    "tree": (
        lambda tx: eager(MultiSteps(tx, 2), [{"w": jnp.ones(2)}], {"v": jnp.ones(2)}),
        ValueError,
        r"only in `acc_grads`: \['v'\]; only in the gradients: \['w'\]",
    ),
    "no parameter": (
        lambda tx: eager(MultiSteps(tx, 2), [{"w": jnp.ones(2)}], {"w": None}),
        ValueError,
        r"there is a gradient at \['w'\], but no array in `acc_grads`",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_is_wrong(case):
    call, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call(stepax.adam(1e-2))

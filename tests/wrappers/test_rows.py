"""States and steps by rows, for large tables."""

import functools as ft
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ARGUMENTS, make, rows, types
from compare import assert_equal
from inside import slots_like_params
from jax.sharding import NamedSharding, PartitionSpec as P

import stepax
from stepax import contrib


def params():
    random = np.random.RandomState(0)
    made = lambda *shape: jnp.asarray(random.randn(*shape), jnp.float32)
    return {"table": made(6, 4), "deep": made(3, 2, 2), "bias": made(4), "none": None}


def gradient(p, step=0, zero=()):
    g = jax.tree.map(lambda x: x * (0.5 + step) + 0.1, p)
    for i in zero:
        g["table"] = g["table"].at[i].set(0)
    return g


@pytest.mark.slow
def test_both_go_together():
    tx, p = (
        contrib.lazy_rows(contrib.row_states(stepax.adamw(0.1))),
        params(),
    )
    for made in (
        tx,
        contrib.row_states(contrib.lazy_rows(stepax.adamw(0.1))),
    ):
        state = made.init(p)
        u, state = made.update(gradient(p, zero=[2]), state, p)
        nu = stepax.tree.get(state, "nu")["table"]
        assert nu.shape == (6, 1) and not nu[2] and nu[1]
        assert not u["table"][2].any() and u["table"][1].all()


def by_rows(tx):
    """The slots of a transformation that may be kept by rows."""
    parts, _ = slots_like_params(tx)
    return [part.name for part in parts if part and part.slot and part.slot.by_rows]


SOME = [
    case for case in rows() if case.values[0].kind != "wrapper"
    and by_rows(make(case.values[0]))
]  # fmt: skip


def test_many_optimizers_have_rows():
    found = {case.id for case in SOME}
    assert found >= {"adam", "adamw", "adagrad", "rmsprop", "amsgrad", "radam", "lamb"}


@pytest.mark.few(1)
@pytest.mark.parametrize("row", SOME)
def test_rows_of_equal_elements_step_as_whole_ones(row):
    # The mean over such a row is each of its squares, so that nothing else may differ.
    p = {"table": jnp.repeat(jnp.arange(1.0, 7)[:, None], 4, 1), "bias": jnp.ones(3)}
    tx = make(row)
    few, state, whole = contrib.row_states(tx), None, None
    state, whole = few.init(p), tx.init(p)
    for i in range(3):
        g = jax.tree.map(lambda x, i=i: (i - 1.5) * x / 4, p)
        u, state = few.update(g, state, p)
        v, whole = tx.update(g, whole, p)
        # Other loops have other multiply-adds; optimistic Adam subtracts two steps.
        close = ft.partial(np.testing.assert_allclose, rtol=3e-6)
        jax.tree.map(close, u, v)
    for name in set(by_rows(tx)):
        for _, slot in stepax.tree.get_all_with_path(state, name):
            # What another part owns is left out, as matrices are of Muon's Adam.
            table = getattr(slot["table"], "shape", (6, 1))
            assert table[1:] == (1,) and slot["bias"].shape == (3,)


def adam(g, mu, nu, t):
    mu, nu = 0.9 * mu + 0.1 * g, 0.999 * nu + 0.001 * np.mean(g * g, 1, keepdims=True)
    return mu / (1 - 0.9**t) / (np.sqrt(nu / (1 - 0.999**t)) + 1e-8), mu, nu


def test_adam_by_rows_is_that_of_the_formula():
    tx, p = contrib.row_states(stepax.scale_by_adam()), params()
    state, mu, nu = tx.init(p), 0.0, 0.0
    for t in range(1, 4):
        g = gradient(p, t)
        u, state = jax.jit(tx.update)(g, state, p)
        wanted, mu, nu = adam(np.asarray(g["table"], float), mu, nu, t)
        # A dozen roundings of 6e-8 each, and 1 - 0.999^t, which loses three digits.
        np.testing.assert_allclose(u["table"], wanted, rtol=1e-4)


def test_adagrad_by_rows_is_that_of_the_formula():
    tx, p = contrib.row_states(stepax.adagrad(0.1, 0.5)), params()
    state, s = tx.init(p), 0.5
    for t in range(3):
        g = gradient(p, t)
        u, state = tx.update(g, state, p)
        exact = np.asarray(g["table"], float)
        s = s + np.mean(exact * exact, 1, keepdims=True)
        np.testing.assert_allclose(u["table"], -0.1 * exact / np.sqrt(s), rtol=1e-5)


def test_the_mean_squares_of_a_table_are_a_number_for_each_row():
    p = {"table": jnp.zeros((1000, 64)), "deep": jnp.zeros((5, 2, 3))}
    state = jax.jit(contrib.row_states(stepax.adam(0.1)).init)(p)
    nu = stepax.tree.get(state, "nu")
    assert nu["table"].nbytes == 4000
    assert nu["deep"].shape == (5, 1, 1)
    size = sum(x.nbytes for x in jax.tree.leaves(state))
    assert size == 4 * (64000 + 1000 + 30 + 5 + 1)


WRAPS = {"rowwise": contrib.row_states, "lazy": contrib.lazy_rows}
both = pytest.mark.parametrize("wrap", WRAPS)


@pytest.mark.few(1)
@both
def test_patterns_choose_the_tables(wrap):
    tx = WRAPS[wrap](stepax.adam(0.1), {"table": True, "**": False})
    p = params()
    g = gradient(p, zero=[1])
    g["deep"] = g["deep"].at[1].set(0)
    u, state = tx.update(g, tx.init(p), p)
    _, state = tx.update(g, state, p)
    nu = stepax.tree.get(state, "nu")
    assert nu["deep"].shape == (3, 2, 2)
    assert nu["table"].shape == ((6, 1) if wrap == "rowwise" else (6, 4))
    with pytest.raises(ValueError, match="the pattern `tabel` in `tables`.*`table`"):
        WRAPS[wrap](stepax.adam(0.1), {"tabel": True, "**": False}).init(p)


OTHERS = {
    "injected": lambda tx: stepax.inject_hyperparams(stepax.adamw)(0.1),
    "masked": lambda tx: stepax.masked(tx, {"table": True, "**": False}),
    "partition": lambda tx: stepax.partition(
        {"a": tx, "b": stepax.sgd(0.1)}, {"table": "a", "**": "b"}
    ),
    "chain": lambda tx: stepax.chain(stepax.clip(0.3), tx),
    "with_state_dtypes": lambda tx: stepax.with_state_dtypes(tx, {"nu": "bfloat16"}),
}


# A factory is injected, not a transformation, and `lazy_rows` takes rules.
PAIRS = [(k, i) for k in OTHERS for i in (True, False) if (k, i) != ("injected", True)]


@pytest.mark.few(2)
@both
@pytest.mark.parametrize("other, inside", PAIRS)
def test_rows_beside_other_wrappers(wrap, other, inside):
    one, two = WRAPS[wrap], OTHERS[other]
    tx = two(one(stepax.adamw(0.1))) if inside else one(two(stepax.adamw(0.1)))
    p = params()
    first = tx.init(p)
    state, u = first, p
    for i in range(2):
        u, state = jax.jit(tx.update)(gradient(p, i, zero=[2]), state, p)
    assert types(state) == types(first)
    nu = stepax.tree.get(state, "nu")["table"]
    assert nu.shape == ((6, 1) if wrap == "rowwise" else (6, 4))
    if wrap == "lazy":
        assert not nu[2].any() and not u["table"][2].any() and u["table"][1].all()


LOCAL = [
    case for case in rows(kind="optimizer")
    if case.id in ("adamw", "adagrad", "rmsprop", "lion", "amsgrad", "yogi", "sgd")
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("row", LOCAL)
def test_rows_without_a_gradient_stay_and_others_step(row):
    decays = {"weight_decay": 0.1} if "weight_decay" in inspect.signature(
        row.factory
    ).parameters else {}  # fmt: skip
    tx = row.factory(ARGUMENTS["learning_rate"], **decays)
    few, p = contrib.lazy_rows(tx), params()
    state, whole = few.init(p), tx.init(p)
    g = gradient(p)
    (u, state), (v, whole) = few.update(g, state, p), tx.update(g, whole, p)
    assert_equal(u, v)
    assert_equal(state, whole)
    zero = gradient(p, 1, zero=[0, 3])
    zero["table"] = zero["table"].at[4, 1].set(0).at[5, 2].set(jnp.nan)
    (u, state), (v, _) = few.update(zero, state, p), tx.update(zero, whole, p)
    idle, rest = jnp.array([0, 3]), jnp.array([1, 2, 4, 5])
    assert not u["table"][idle].any()
    np.testing.assert_array_equal(u["table"][rest], v["table"][rest])
    assert_equal(u["bias"], v["bias"])
    for was, now in zip(*map(jax.tree.leaves, (whole, state)), strict=True):
        if was.shape == (6, 4):
            np.testing.assert_array_equal(
                was[jnp.array([0, 3])], now[jnp.array([0, 3])]
            )
            assert not (was[1] == now[1]).all()


def test_the_step_count_goes_on_without_a_gradient():
    tx, p = contrib.lazy_rows(stepax.adam(0.1)), params()
    state = tx.init(p)
    for _ in range(3):
        _, state = tx.update(jax.tree.map(jnp.zeros_like, p), state, p)
    assert stepax.tree.get(state, "count") == 3


@both
def test_sharded_tables_keep_their_sharding(wrap):
    mesh = jax.make_mesh(
        (4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    sharding = NamedSharding(mesh, P("x", "y"))
    p = {"table": jax.device_put(jnp.ones((8, 4)), sharding)}
    tx = WRAPS[wrap](stepax.adam(0.1))
    state = jax.jit(tx.init)(p)
    u, state = jax.jit(tx.update)(p, state, p)
    assert u["table"].sharding.is_equivalent_to(sharding, 2)
    nu = stepax.tree.get(state, "nu")["table"]
    assert nu.sharding.shard_shape(nu.shape)[0] == 2


REFUSED = {
    "matrix": (
        lambda: contrib.lazy_rows(stepax.contrib.scale_by_muon()).init(params()),
        "`scale_by_muon`, which computes with whole arrays; put it around the other",
    ),
    "norm": (
        lambda: contrib.lazy_rows(stepax.chain(stepax.clip_by_global_norm(1.0))).init(
            params()
        ),
        r"`clip_by_global_norm`, which measures .*`chain\(clip_by_global_norm",
    ),
    "closure": (
        lambda: contrib.lazy_rows(contrib.mechanize(stepax.sgd(0.1))).init(params()),
        "`mechanize`, which is not an elementwise rule",
    ),
    "accumulator": (
        lambda: contrib.lazy_rows(
            stepax.MultiSteps(stepax.sgd(0.1), 2).gradient_transformation()
        ).init(params()),
        "`MultiStepsState`, which keeps `acc_grads`, which is not a slot",
    ),
    "joined": (
        lambda: contrib.row_states(stepax.flatten(stepax.adam(0.1))).init(params()),
        "no rows in `nu`, whose arrays are not .*put `row_states` inside .*`flatten`",
    ),
    "no square": (
        lambda: contrib.row_states(stepax.lion(0.1)).init(params()),
        r"`row_states`: nothing .* by rows; the slots .* are \['mu'\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rows_is_refused_by_name(name):
    build, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        build()


def test_packed_parameters():
    p = params()
    packed = stepax.tree.pack(p)
    with pytest.raises(TypeError, match="`row_states` .* no rows in packed parameters"):
        contrib.row_states(stepax.adam(0.1)).init(packed)
    tx, g = contrib.lazy_rows(stepax.adam(0.1)), gradient(p, zero=[1])
    wanted, _ = tx.update(g, tx.init(p), p)
    u, _ = tx.update(stepax.tree.pack(g, like=packed), tx.init(packed), packed)
    assert_equal(stepax.tree.unpack(u), wanted)


def test_rows_and_codes_go_together():
    tables = {"table": True, "**": False}
    p = {"table": jnp.ones((8, 512)), "w": jnp.ones((8, 512))}
    few = ft.partial(stepax.low_bit_states, min_size=2)
    inside = few(contrib.row_states(stepax.adam(0.1), tables))
    outside = contrib.row_states(few(stepax.adam(0.1)), tables)
    state = inside.init(p)
    assert stepax.tree.get(state, "nu")["table"].shape == (8, 1)
    assert_equal(outside.init(p), state)
    u, first = inside.update(p, state, p)
    v, second = outside.update(p, outside.init(p), p)
    assert jnp.isfinite(u["table"]).all()
    assert_equal((v, second), (u, first))


def test_codes_are_kept_whole():
    p = {"table": jnp.ones((8, 512))}
    tx = contrib.lazy_rows(stepax.low_bit_states(stepax.adam(0.1), min_size=2))
    with pytest.raises(TypeError, match="omit `low_bit_states`"):
        tx.update(p, tx.init(p), p)

"""Islands that meet in fragments, later, part of the way, and in few bits."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import gradients, types
from jax.sharding import PartitionSpec as P
from runs import compare

import stepax
from stepax._wrappers.diloco import averaged
from stepax.contrib import diloco


lib: Any = stepax  # states of specs are not what their types say
SGD = stepax.sgd(0.7, momentum=0.9, nesterov=True)
PARAMS = {"a": jnp.ones((4, 3)), "b": jnp.ones(12), "c": jnp.ones(3), "d": jnp.ones(9)}


def streaming(gs, p, due, delay=0, blend=1.0):
    """From the paper, with one island and rounds of 6 steps: when each array is due."""
    a, p, sent = dict(p), dict(p), {}
    trace, found = {k: jnp.zeros_like(x) for k, x in p.items()}, []
    for t, g in enumerate(gs, 1):
        for k in p:
            p[k] = p[k] - 0.1 * g[k]
            if (t + delay) % 6 == due[k] % 6:
                sent[k] = a[k] - p[k]
            if t % 6 == due[k] % 6:
                trace[k] = sent[k] + 0.9 * trace[k]
                a[k] = a[k] - 0.7 * (sent[k] + 0.9 * trace[k])
                p[k] = (1 - blend) * p[k] + blend * a[k]
        found.append(dict(p))
    return found


def test_each_row_is_rounded_to_parts_of_its_own_largest_entry():
    x = jnp.array([[7.0, 3.0], [0.07, 0.03]])
    mean, left = averaged(x, None, "int4")
    np.testing.assert_allclose(mean, x, rtol=1e-6)
    np.testing.assert_allclose(left, jnp.zeros_like(x), atol=1e-6)


def test_an_exchange_loses_at_most_half_a_unit_and_keeps_it_for_later():
    shapes = [(), (1,), (4,), (5,), (2, 3), (2, 3, 5)]
    xs = [
        jnp.asarray(np.sin(1 + np.arange(math.prod(s))), "float32").reshape(s)
        for s in shapes
    ]
    bits = {"float32": 24, "bfloat16": 8, "int8": 7, "int4": 3}
    alone = lambda x: {kind: averaged(x, None, kind) for kind in bits}
    for x, found in zip(xs, jax.jit(lambda: list(map(alone, xs)))(), strict=True):
        for kind, (mean, left) in found.items():
            assert mean.shape == left.shape == x.shape
            # Of the largest entry the codes have 2^bits - 1 parts, each rounded once.
            assert jnp.max(jnp.abs(left)) <= 0.51 / (2 ** bits[kind] - 1), kind
            np.testing.assert_allclose(mean + left, x, rtol=0, atol=1e-6)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("fragments", "due"),
    [
        (1, {"a": 6, "b": 6, "c": 6, "d": 6}),
        (3, {"a": 2, "b": 4, "c": 6, "d": 6}),
        ({"a": 1, "b": 1}, {"a": 2, "b": 4, "c": 6, "d": 6}),
    ],
    ids=str,
)
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("blend", [1.0, 0.5])
def test_fragments_take_turns_as_in_the_paper(fragments, due, delay, blend):
    assert_as_in_the_paper(fragments, due, delay, blend)


def test_two_fragments_take_turns():
    assert_as_in_the_paper(2, {"a": 3, "b": 6, "c": 6, "d": 6})


def assert_as_in_the_paper(fragments, due, delay=0, blend=1.0):
    options: Any = {"fragments": fragments, "delay": delay, "blend": blend}
    tx = diloco(stepax.sgd(0.1), SGD, 6, **options)
    p, state, found = PARAMS, tx.init(PARAMS), []
    gs, step = [gradients(p, t) for t in range(14)], jax.jit(tx.update)
    for g in gs:
        u, state = step(g, state, p)
        p = stepax.apply_updates(p, u)
        found.append(p)
    # 14 steps of some roundings to 2^-24 of parameters below 8, in other orders.
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)
    compare(near, found, streaming(gs, PARAMS, due, delay, blend))
    assert types(state) == types(tx.init(PARAMS)) and int(state.count) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("exchange", ["bfloat16", "int8", "int4"])
def test_what_is_rounded_off_is_exchanged_later(exchange):
    """The anchor has moved as the island has, but for the last residual."""
    tx = diloco(stepax.sgd(0.1), stepax.sgd(1.0), 4, exchange=exchange)
    gs = [gradients(PARAMS, t) for t in range(20)]
    step, p, state = jax.jit(tx.update), PARAMS, tx.init(PARAMS)
    for g in gs:
        u, state = step(g, state, p)
        p = stepax.apply_updates(p, u)
    wanted = jax.tree.map(lambda x, *g: x - 0.1 * sum(g), PARAMS, *gs)
    found = jax.tree.map(lambda a, r: a - r, state.anchor, state.residual)
    assert any(jnp.any(r != 0) for r in jax.tree.leaves(state.residual))
    # 20 steps of some roundings to 2^-24 of parameters below 8.
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)
    compare(near, found, wanted)


# --- on meshes -----------------------------------------------------------------------


def meeting(n=8, islands=2, **options):
    """The step of islands with n equal arrays, and what it starts from."""
    tx = diloco(stepax.sgd(0.1), SGD, 16, axis_name="islands", **options)
    p = {str(i): jnp.ones((16, 64)) for i in range(n)}
    auto = (jax.sharding.AxisType.Auto,)
    devices = jax.devices()[:islands]
    mesh = jax.make_mesh((islands,), ("islands",), auto, devices=devices)

    def step(p, state, g):
        mine = lambda tree: jax.tree.map(lambda x: x[0], tree)
        more = lambda tree: jax.tree.map(lambda x: x[None], tree)
        is_plain = not hasattr(state, "residual")
        own = state if is_plain else state._replace(residual=mine(state.residual))
        u, new = tx.update(mine(g), own, mine(p))
        p = stepax.apply_updates(mine(p), u)
        return more(p), new if is_plain else new._replace(residual=more(new.residual))

    each = lambda tree: jax.tree.map(lambda x: jnp.stack([x] * islands), tree)
    state, own = tx.init(p), P("islands")
    specs = P()
    if hasattr(state, "residual"):
        specs = lib.contrib.StreamingDiLoCoState(P(), P(), P(), P(), P(), own)
        state = state._replace(residual=each(state.residual))
    ends = {"in_specs": (own, specs, own), "out_specs": (own, specs)}
    run = jax.jit(jax.shard_map(step, mesh=mesh, **ends))
    return run, each(p), state


BYTES = {"f32": 4, "bf16": 2, "s8": 1, "u8": 1}


def peak(**options):
    """The most bytes that a branch of the compiled program exchanges."""
    step, p, state = meeting(**options)
    text = step.lower(p, state, p).compile().as_text() or ""
    most = 0
    for body in re.split(r"\n\}", text):
        lines = [x.split(" all-reduce(")[0] for x in body.splitlines()]
        ends = [x for x, y in zip(lines, body.splitlines(), strict=True) if x != y]
        found = [pair for x in ends for pair in re.findall(r"(\w+)\[([\d,]*)\]", x)]
        sizes = [BYTES[d] * math.prod(map(int, s.split(","))) for d, s in found if s]
        most = max(most, sum(sizes))
    return most


WHOLE = 8 * 16 * 64 * 4


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, WHOLE),
        ({"fragments": 8}, WHOLE // 8),
        ({"fragments": 4, "delay": 1}, WHOLE // 4),
        # Codes of one byte or half of it, and units of four bytes for each row.
        ({"fragments": 8, "exchange": "int8"}, WHOLE // 8 // 4 + 16 * 4),
        ({"fragments": 8, "exchange": "int4"}, WHOLE // 8 // 8 + 16 * 4),
    ],
    ids=str,
)
def test_an_exchange_has_an_nth_of_the_bytes(options, wanted):
    assert peak(**options) == wanted


@pytest.mark.few(1)
@pytest.mark.parametrize("exchange", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("delay", [0, 1])
def test_islands_start_again_from_the_same_place(exchange, delay):
    step, p, state = meeting(2, fragments=2, delay=delay, exchange=exchange)
    for t in range(16):
        p, state = step(p, state, gradients(p, t))
    found = np.asarray(p["1"])
    # p returns to the anchor up to a rounding to 2^-24 of parameters below 8.
    np.testing.assert_allclose(found[0], state.anchor["1"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-6)
    assert np.abs(found[0] - 1).max() > 0.01


# --- errors --------------------------------------------------------------------------


def test_fragments_and_exchanges_are_checked():
    cases: list[Any] = [
        ({"fragments": 2, "every": 1}, "cannot send 2 fragments in 1 steps"),
        ({"delay": 5, "every": 5}, "cannot send 1 fragments in 5 steps, each 5 steps"),
        ({"fragments": 99}, "99 parts of 4 arrays"),
        ({"fragments": {"nothing": 2}}, "nothing"),
        ({"exchange": "int2"}, "`exchange`.*'int2'"),
        ({"blend": 0.0}, "`blend` must be in"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            diloco(stepax.sgd(0.1), SGD, **options).init(PARAMS)
    step, p, state = meeting(1, 8, exchange="int4")
    with pytest.raises(ValueError, match=r"sums of 7 workers at most.*there are 8"):
        step.lower(p, state, p)


@pytest.mark.parametrize("sizes", [(4, 0), (0, 4), (0, 0), (0, 4, 0, 0)])
def test_empty_arrays_are_in_fragments_too(sizes):
    params = [jnp.ones(n) for n in sizes]
    tx = diloco(stepax.sgd(0.1), SGD, every=4, fragments=2)
    state = tx.init(params)
    for _ in range(4):
        updates, state = tx.update(params, state, params)
        assert [x.shape for x in updates] == [(n,) for n in sizes]

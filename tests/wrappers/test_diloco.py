"""Islands take steps of their own, and meet after some of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import gradients, types
from compare import assert_equal
from jax.sharding import AxisType, PartitionSpec as P
from runs import compare, many, parameters
from wrappers import FAMILIES

import stepax
from stepax.contrib import diloco


lib: Any = stepax  # states of specs are not what their types say
SGD = stepax.sgd(0.7, momentum=0.9, nesterov=True)


def trained(tx, gs, p, jit=True):
    """The parameters after each step, and the last state."""
    state, found = tx.init(p), []
    step = lambda g, s, p: tx.update(g, s, p, value=jnp.float32(1.0))
    step = jax.jit(step) if jit else step
    for g in gs:
        u, state = step(g, state, p)
        p = stepax.apply_updates(p, u)
        found.append(p)
    return found, state


def as_type(dtype, tree):
    return jax.tree.map(lambda x: x.astype(dtype), tree)


@pytest.mark.few(1)
@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_of_sgd_with_rate_1_is_the_inner_one(family, jit):
    inner = FAMILIES[family]()
    (found, state), (wanted, inner_state) = (
        trained(tx, many(3), parameters(), jit)
        for tx in (diloco(inner, stepax.sgd(1.0), every=1), inner)
    )
    assert_equal(found, wanted)
    assert_equal(state.inner_state, inner_state)


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64"])
def test_so_it_is_in_other_dtypes_and_far_from_the_anchor(dtype):
    p = as_type(dtype, parameters())
    gs = [as_type(dtype, jax.tree.map(lambda x: 300 * x, g)) for g in many(4)]
    inner = stepax.sgd(0.37)
    found, state = trained(diloco(inner, stepax.sgd(1.0), every=1), gs, p)
    assert_equal(found, trained(inner, gs, p)[0])
    assert types(state) == types(diloco(inner, stepax.sgd(1.0), every=1).init(p))


def reference(gs, p, every, rate=0.1):
    """From the paper, with one island: SGD inside, Nesterov's momentum outside."""
    a, trace, found = p, jax.tree.map(jnp.zeros_like, p), []
    for t, g in enumerate(gs, 1):
        p = jax.tree.map(lambda p, g: p - rate * g, p, g)
        if t % every == 0:
            d = jax.tree.map(lambda a, p: a - p, a, p)
            trace = jax.tree.map(lambda d, m: d + 0.9 * m, d, trace)
            step = jax.tree.map(lambda d, m: 0.7 * (d + 0.9 * m), d, trace)
            p = a = jax.tree.map(lambda a, x: a - x, a, step)
        found.append(p)
    return found


def test_the_equations_are_those_of_the_paper():
    found, state = trained(diloco(stepax.sgd(0.1), SGD, 3), many(7), parameters())
    # Some roundings to 2^-24 of parameters of about 1, in other orders.
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)
    compare(near, found, reference(many(7), parameters(), 3))
    assert int(state.count) == 1
    # One rounding of a difference of parameters that are below 8.
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=2**-21)
    compare(near, found[5], state.anchor)


def test_it_scans_and_leaves_what_has_no_gradient():
    p = {**parameters(), "n": jnp.arange(2), "none": None, "off": jnp.ones(2)}
    tx = diloco(stepax.masked(stepax.adam(0.1), {"w": True, "**": False}), SGD, 2)
    off = {"n": np.zeros(2, jax.dtypes.float0), "none": None, "off": None}

    def step(carry, g):
        p, state = carry
        u, state = tx.update({**g, **off}, state, p)
        return (stepax.apply_updates(p, u), state), None

    gs = jax.tree.map(lambda *x: jnp.stack(x), *many(4))
    first = p, tx.init(p)
    (new, state), _ = jax.jit(lambda c, gs: jax.lax.scan(step, c, gs))(first, gs)
    assert types((new, state)) == types(first)
    for name in ("n", "off"):
        assert_equal(new[name], p[name])
    assert (new["w"] != p["w"]).all()


# --- on meshes -----------------------------------------------------------------------


MESH = {"islands": 2, "fsdp": 4}
SPECS = {"w": P("islands", "fsdp"), "b": P("islands")}
ANCHOR = {"w": P("fsdp"), "b": P()}  # the same on all islands


def meshed():
    kinds = (AxisType.Auto,) * 2
    return jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=kinds)


def islands_step(tx, checks=True):
    """A step on all islands: parameters and gradients have an axis of islands first."""

    def step(p, state, g):
        mine = lambda tree: jax.tree.map(lambda x: x[0], tree)
        own = state._replace(inner_state=mine(state.inner_state))
        u, new = tx.update(mine(g), own, mine(p))
        p = stepax.apply_updates(mine(p), u)
        add = lambda tree: jax.tree.map(lambda x: x[None], tree)
        return add(p), new._replace(inner_state=add(new.inner_state))

    inner = lib.ScaleByAdamState(P("islands"), SPECS, SPECS)
    far = (stepax.TraceState(ANCHOR), stepax.EmptyState())
    states = lib.contrib.DiLoCoState(P(), ANCHOR, far, inner)
    specs = {"in_specs": (SPECS, states, SPECS), "out_specs": (SPECS, states)}
    return jax.shard_map(step, mesh=meshed(), check_vma=checks, **specs)


def begun(tx):
    p = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    state, both = tx.init(p), lambda t: jax.tree.map(lambda x: jnp.stack([x, x]), t)
    return p, both(p), state._replace(inner_state=both(state.inner_state))


def inner():
    return stepax.scale_by_adam()


@pytest.mark.few(1)
@pytest.mark.parametrize("checks", [True, False])
def test_islands_of_sharded_parameters_meet(checks):
    tx = diloco(inner(), SGD, 2, axis_name="islands")
    p, both, state = begun(tx)
    step = jax.jit(islands_step(tx, checks))
    gs = [[gradients(p, 2 * t + i) for i in range(2)] for t in range(4)]
    each, a, far = [p, p], p, SGD.init(p)
    states = [inner().init(p)] * 2
    for t, g in enumerate(gs):
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *g)
        both, state = step(both, state, stacked)
        for i in range(2):
            u, states[i] = inner().update(g[i], states[i], each[i])
            each[i] = stepax.apply_updates(each[i], u)
        if t % 2:
            d = jax.tree.map(lambda a, x, y: a - (x + y) / 2, a, *each)
            u, far = SGD.update(d, far, a)
            a = stepax.apply_updates(a, u)
            each = [a, a]
        for i in range(2):
            # Two roundings to 2^-24 of parameters of about 1 in each step.
            near = lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6)
            compare(near, jax.tree.map(lambda x, i=i: x[i], both), each[i])


def exchanges(jaxpr, inside=False):
    """For each collective, whether it is inside of a branch."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name.startswith("psum"):
            yield inside
        is_branch = inside or eqn.primitive.name == "cond"
        for x in jax.tree.leaves(list(eqn.params.values())):
            below = getattr(x, "jaxpr", x)
            if hasattr(below, "eqns"):
                yield from exchanges(below, is_branch)


def test_only_an_outer_step_communicates():
    tx = diloco(inner(), SGD, 30, axis_name="islands")
    _, both, state = begun(tx)
    jaxpr = jax.make_jaxpr(islands_step(tx))(both, state, both).jaxpr
    assert [*exchanges(jaxpr)] == [True] * 2  # one for each array
    text = jax.jit(islands_step(tx)).lower(both, state, both).compile().as_text()
    entry = (text or "").split("ENTRY")[1]
    assert "all-reduce" not in entry and "all-reduce" in (text or "")


def test_equal_islands_are_the_inner_optimizer_to_the_last_bit():
    tx = diloco(inner(), stepax.sgd(1.0), 1, axis_name="islands")
    p = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}

    def step(p, g):
        u, _ = tx.update(g, tx.init(p), p)
        return stepax.apply_updates(p, u)

    specs = {"in_specs": (P(), P()), "out_specs": P()}
    run = jax.jit(jax.shard_map(step, mesh=meshed(), **specs))
    g = gradients(p, 1)
    u, _ = inner().update(g, inner().init(p), p)
    assert_equal(run(p, g), stepax.apply_updates(p, u))


# --- errors --------------------------------------------------------------------------


@pytest.mark.slow
def test_an_axis_that_the_mesh_lacks_is_named():
    tx, p = diloco(inner(), SGD, axis_name="nodes"), parameters()
    message = "`axis_name` has 'nodes', which is not an axis here"
    with pytest.raises(ValueError, match=message):
        tx.update(p, tx.init(p), p)
    tx = diloco(inner(), SGD, axis_name=("islands", "nodes"))
    _, both, state = begun(tx)
    with pytest.raises(ValueError, match=message):
        islands_step(tx)(both, state, both)


@pytest.mark.slow
def test_islands_that_may_disagree_on_when_to_meet_are_an_error():
    tx = diloco(inner(), SGD, axis_name="islands")
    step = lambda n, x: tx.update(x, tx.init(x)._replace(count=n[0]), x)[0]
    specs = {"in_specs": (P("islands"), P()), "out_specs": P()}
    with pytest.raises(ValueError, match=r"`count` .* may differ along \['islands'\]"):
        jax.shard_map(step, mesh=meshed(), **specs)(jnp.zeros(2, int), jnp.ones(2))


def test_parameters_and_transformations_are_asked_for():
    tx, p = diloco(inner(), SGD), parameters()
    with pytest.raises(ValueError, match="`diloco` reads the parameters"):
        tx.update(p, tx.init(p))
    with pytest.raises(ValueError, match="`every` must be >= 1, but is 0"):
        diloco(inner(), SGD, every=0)
    wrong: Any = stepax.sgd
    with pytest.raises(TypeError, match="`outer_optimizer` of `diloco`.*did you mean"):
        diloco(inner(), wrong)

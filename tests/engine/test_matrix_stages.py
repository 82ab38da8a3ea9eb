"""What holds for all optimizers with a stage on whole matrices.

They are chosen by that trait: a rule that has a batched stage, alone or in a chain.
"""

import inspect
import itertools as it
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from inside import node_of, open_components
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import stepax
from stepax.distributed import audit, state_sharding, zero
from stepax.rules import Rule


KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
DEVICES = 8


def _rules(tx: Any) -> list[Rule]:
    nodes = [node_of(x.tx) for x in open_components(tx, None).walk()]
    return [x for x in nodes if isinstance(x, Rule)]


def stages(tx: Any) -> list[Rule]:
    """The rules of a transformation that have a stage on whole matrices."""
    return [x for x in _rules(tx) if x.batched is not None]


def _beside_stages(tx, p):
    """The bytes of slots of rules without a stage, which lie as their parameters."""
    made = [rule.init(p) for rule in _rules(tx) if rule.batched is None]
    return sum(x.nbytes for x in jax.tree.leaves(made))


def _not_spread(tx):
    """The slots of stages that every device has as they are made, by name."""
    slots = it.chain(*(rule.slots.items() for rule in _rules(tx)))
    return {k: slot for k, slot in slots if not (slot.in_leaf or slot.is_spread)}


def _is_matrix_optimizer(row):
    return row.kind == "optimizer" and bool(stages(make(row)))


def _signature(q):
    row = q.values[0] if hasattr(q, "values") else q
    return inspect.signature(row.factory).parameters


ROWS = [q for q in rows(kind="optimizer") if _is_matrix_optimizer(q.values[0])]
everyone = pytest.mark.parametrize("row", ROWS)


def _draw(shape, seed=0):
    x = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(x, float)


def _params(shapes):
    return {f"w{i}": _draw(shape, i) for i, shape in enumerate(shapes)}


def _grads(p, step):
    # Of full rank in both directions, so that no eigenvector is arbitrary.
    return {
        k: _draw(x.shape, 100 + 10 * step + i) for i, (k, x) in enumerate(p.items())
    }


def _run(tx, p, place=lambda tree: tree, steps=2):
    state, update = tx.init(p), jax.jit(tx.update)
    updates = []
    for i in range(steps):
        u, state = update(place(_grads(p, i)), state, p)
        updates.append(u)
    return updates, state


# --- on a mesh ------------------------------------------------------------------------

# As many as there are devices.  They are square: the statistics of the longer side of
# one gradient are singular, and their eigenvectors arbitrary.
SHAPES = [(64, 64)] * DEVICES
PLACES = {"whole": P(), "fsdp": P("data"), "zero": P()}


def _on_mesh(kind, place):
    mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(KINDS[kind],))
    where = NamedSharding(mesh, PLACES[place])
    return mesh, lambda tree: jax.device_put(tree, where)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind, place", list(it.product(KINDS, PLACES)))
@everyone
def test_devices_share_the_work_the_state_and_few_messages(row, kind, place):
    mesh, put = _on_mesh(kind, place)
    with jax.enable_x64(True):
        p, tx = _params(SHAPES), make(row)
        usual, _ = _run(tx, p)
        with jax.set_mesh(mesh):
            there, placed = put(p), zero(tx, mesh) if place == "zero" else tx
            found, state = _run(placed, there, put)
            seen = audit(placed, there)
            places = [state_sharding(placed, there), placed.init(there), state]
        alone = _not_spread(tx)
        kept = _beside_stages(tx, p) if place == "whole" else 0
        kept += sum(slot.make(x).nbytes for slot in alone.values() for x in p.values())
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(usual), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * np.abs(y).max())
    # Two there and two back; `zero` then gathers the updates.
    most = 4 + (place == "zero")
    assert sum(x.count for x in seen.collectives) <= most
    # Each device scales and decays replicated updates itself, by three operations for
    # an element.  And XLA counts the body of a loop once, however often it runs, beside
    # which elementwise operations, repeated in each fusion that reads them, weigh too
    # much: the share of Dion2 is 1.32 here, 1.18 for sides of 128, 1.10 for 256, where
    # that of replicated work is 8.
    elementwise = (3.5 if place == "whole" else 0.5) * sum(x.size for x in p.values())
    assert seen.work <= 1.25 * seen.work / seen.share + elementwise
    # Scalars, such as step counts, are everywhere.
    assert seen.state_per_device <= 1.05 * seen.state / DEVICES + 200 + kept
    # With automatic axes XLA places what `init` does not spread in the first step:
    # NorMuon's squares, a number for each output.
    moved = {f".{name}[" for name in alone} if kind == "auto" else set()
    leaves = jax.tree_util.tree_leaves_with_path(places[0])
    rows = zip(leaves, *map(jax.tree.leaves, places[1:]), strict=True)
    for (path, first), *others in rows:
        if not any(name in jax.tree_util.keystr(path) for name in moved):
            assert all(x.sharding.is_equivalent_to(first, x.ndim) for x in others)


# Two that are exchanged, one alone, and one that every device has whole.
INSIDE = {"a": (8, 8), "b": (8, 8), "alone": (16, 16), "whole": (8, 8)}
SPLITS = {"rows": P("data"), "columns": P(None, "data")}


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
@everyone
def test_inside_of_shard_map_a_part_steps_as_the_whole_does(row, split):
    spec = SPLITS[split]
    mesh, _ = _on_mesh("auto", "whole")
    specs = dict.fromkeys(INSIDE, spec) | {"whole": P()}
    with jax.enable_x64(True):
        p = {k: _draw(shape, i) for i, (k, shape) in enumerate(INSIDE.items())}
        usual, _ = _run(make(row), p)
        tx = make(row, axis_name=spec)
        there = {
            k: jax.device_put(x, NamedSharding(mesh, specs[k])) for k, x in p.items()
        }
        state = tx.init(there)
        held = jax.tree.map(lambda x: x.spec, state_sharding(tx, there))
        made = jax.shard_map(tx.init, mesh=mesh, in_specs=(specs,), out_specs=held)
        for x, y in zip(
            *map(jax.tree.leaves, (jax.jit(made)(there), state)), strict=True
        ):
            assert x.shape == y.shape
        step = jax.shard_map(
            tx.update, mesh=mesh, in_specs=(specs, held, specs), out_specs=(specs, held)
        )
        step, found = jax.jit(step), []
        for i in range(len(usual)):
            u, state = step(_grads(p, i), state, there)
            found.append(u)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(usual), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * np.abs(y).max())


# --- numbers at the edges -------------------------------------------------------------


def _is_finite(tree):
    numbers = (x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact))
    return all(np.isfinite(x).all() for x in numbers)


SIZES = (1e-30, 1.0, 1e18, 1e30)
EDGES = {
    "zero": lambda t: np.zeros((4, 6)),
    "rank 1": lambda t: np.outer(np.arange(4.0), np.arange(6.0)),
    "one entry": lambda t: np.eye(4, 6) * (np.arange(6) == 1),
    "zero after a gradient": lambda t: np.eye(4, 6) * (t == 0),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", EDGES)
@everyone
def test_updates_and_states_stay_finite(row, name):
    tx, p = make(row), {str(x): jnp.ones((4, 6)) / 8 for x in SIZES}
    state, update = tx.init(p), jax.jit(tx.update)
    for t in range(12):
        g = {str(x): jnp.asarray(x * EDGES[name](t), jnp.float32) for x in SIZES}
        u, state = update(g, state, p)
        assert _is_finite((u, state)), t


GUARDS = {
    "zero_nans": lambda tx: stepax.chain(stepax.zero_nans(), tx),
    "apply_if_finite": lambda tx: stepax.apply_if_finite(tx, 5),
    "skip_spikes": stepax.skip_spikes,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDS)
@everyone
def test_no_nan_behind_a_guard_reaches_a_preconditioner(row, name):
    tx, p = GUARDS[name](make(row)), {"w": _draw((4, 4)), "b": _draw((3,))}
    p = {"w": p["w"]} if row.matrices_only else p
    state, update = tx.init(p), jax.jit(tx.update)
    for t in range(4):
        g = jax.tree.map(lambda x, t=t: jnp.cos(x + t), p)
        if t in (0, 2):
            g["w"] = g["w"].at[1, 2].set(jnp.nan)
        u, state = update(g, state, p)
        assert _is_finite((u, state)), t


NARROW = [q for q in ROWS if "factor_dtype" in _signature(q)]


@pytest.mark.slow
@pytest.mark.parametrize("row", NARROW)
def test_factors_of_half_precision_parameters_are_wide(row):
    tx = make(row)
    p = {"w": jnp.ones((4, 4), jnp.bfloat16)}
    state, update = tx.init(p), jax.jit(tx.update)
    for x in jax.tree.leaves(_factors(tx, state)):
        assert x.dtype == jnp.float32
    for _ in range(3):
        u, state = update({"w": jnp.eye(4, dtype=jnp.bfloat16)}, state, p)
        assert u["w"].dtype == jnp.bfloat16
        assert np.isfinite(u["w"].astype(float)).all()


def _factors(tx, state):
    """The slots of a stage that are not shaped like the parameters."""
    names = [k for rule in stages(tx) for k, x in rule.slots.items() if not x.alike]
    return [x for name in names for _, x in stepax.tree.get_all_with_path(state, name)]


@pytest.mark.parametrize("dtype, most", [(None, 24), ("bfloat16", 16)])
@pytest.mark.parametrize("row", NARROW)
def test_bytes_of_a_square_matrix(row, dtype, most):
    n = 64
    shape = jax.ShapeDtypeStruct((n, n), jnp.float32)
    state = jax.eval_shape(make(row, factor_dtype=dtype).init, {"w": shape})
    total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    # Vectors, one number for each row, and scalars.
    assert total <= (most + 0.2) * n**2


@pytest.mark.slow
@pytest.mark.parametrize("row", NARROW)
def test_narrow_factors_keep_their_dtype_and_the_direction(row):
    p = {"w": _draw((8, 8))}
    found, state = _run(make(row, factor_dtype="bfloat16"), p, steps=3)
    wanted, _ = _run(make(row), p, steps=3)
    kinds = {x.dtype for x in jax.tree.leaves(_factors(make(row), state)) if x.ndim > 1}
    assert kinds == {jnp.dtype("bfloat16")}
    x, y = found[-1]["w"].ravel(), wanted[-1]["w"].ravel()
    assert x @ y >= 0.9 * jnp.linalg.norm(x) * jnp.linalg.norm(y)


FREQUENCIES = [
    pytest.param(*q.values, name, id=f"{q.id}-{name}")
    for q in ROWS
    for name in ("precondition_frequency", "inverse_every")
    if name in _signature(q)
]


@pytest.mark.parametrize("row, name", FREQUENCIES)
def test_a_frequency_of_0_is_an_error_that_says_what_to_give(row, name):
    with pytest.raises(ValueError, match=f"`{name}` must be >= 1.*use 1 for every"):
        row.factory(**{name: 0})


@pytest.mark.slow
@pytest.mark.parametrize("row, name", FREQUENCIES)
def test_factors_that_are_not_renewed_are_not_copied(row, name):
    params = {"w": jnp.ones((24, 40)), "v": jnp.ones((24, 40))}
    tx = make(row, **{name: 10})
    state = tx.init(params)
    step = jax.jit(tx.update, donate_argnums=1)
    program = step.lower(params, state, params).compile().as_text() or ""
    always = program[program.index("\nENTRY") :]
    copies = re.findall(r"f32\[(\d+),\1\]\S* (?:copy\(|fusion\(.*wrapped_copy)", always)
    assert "conditional(" in always and not copies


@pytest.mark.parametrize("row", NARROW)
def test_factors_are_not_stored_in_integers(row):
    with pytest.raises(TypeError, match="`factor_dtype` must be a floating-point"):
        make(row, factor_dtype="int8")


@pytest.mark.thinned
@everyone
def test_matrices_of_one_shape_share_a_trace(row):
    """A decomposition is in the program once for each shape, as is all of a stage."""
    tx = make(row)

    def lines(number):
        p = _params([(6, 4)] * number)
        text = jax.jit(tx.update).lower(p, tx.init(p), p).as_text()
        return len(text.splitlines()), text.count("custom_call @lapack")

    (two, twice), (six, often) = lines(2), lines(6)
    assert often == twice
    # Of each matrix a call for what precedes the stage, one for the stage, and one for
    # what follows it.
    assert (six - two) / 4 <= 3

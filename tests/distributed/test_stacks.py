"""Work on matrices, shared out among eight virtual devices."""

import itertools as it

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import rows
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from stepax.checkpoint import restore, save
from stepax.contrib import MuonDimensionNumbers as Axes, muon, scale_by_muon
from stepax.distributed import audit, zero


KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
SPECS = {"split": P("data", None), "columns": P(None, "data"), "whole": P()}
WHOLE = scale_by_muon(sharding="none")


def _mesh(kind):
    return jax.make_mesh((8,), ("data",), axis_types=(KINDS[kind],))


def _matrices(n, shape=(64, 128)):
    keys = jax.random.split(jax.random.key(1), n)
    return {f"w{i}": jax.random.normal(k, shape) for i, k in enumerate(keys)}


def _step(tx, p):
    return jax.jit(tx.update)(p, tx.init(p), p)


def _check(tx, mesh, spec, p, mean_spec=None):
    """It steps as one device does, and its mean stays in place; returns the cost."""
    there = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec)), p)
    with jax.set_mesh(mesh):
        u, state = _step(tx, there)
    v, as_usual = _step(WHOLE, p)
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    jax.tree.map(near, u, v)
    jax.tree.map(near, state, as_usual)
    place = NamedSharding(mesh, spec if mean_spec is None else mean_spec)
    for x in jax.tree.leaves(state.mu):
        assert x.sharding.is_equivalent_to(place, x.ndim)
    return audit(tx, there)


def _counts(found):
    return {x.kind: x.count for x in found.collectives}


@pytest.mark.slow("test_devices_share_the_work_the_state_and_few_messages")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_device_works_on_some_of_the_matrices(kind, spec):
    # Where the matrices are whole, the means are shared, along the longer axis.
    is_whole = spec == "whole"
    mean = SPECS["columns" if is_whole else spec]
    found = _check(scale_by_muon(), _mesh(kind), SPECS[spec], _matrices(16), mean)
    once = {"all-gather": 1, "all-to-all": 1} if is_whole else {"all-to-all": 2}
    assert _counts(found) == once
    assert found.share <= 1.25
    assert found.state_per_device <= found.state / 8 + 64


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_zero_shares_matrices_too(kind):
    mesh = _mesh(kind)
    split = P(None, "data")  # along the longer axis
    found = _check(zero(scale_by_muon(), mesh), mesh, P(), _matrices(16), split)
    # It gathers the updates, all at once.
    assert _counts(found) == {"all-to-all": 2, "all-gather": 1}
    assert found.share <= 1.25


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_group_that_is_smaller_than_the_mesh_is_filled_up(kind):
    found = _check(scale_by_muon(), _mesh(kind), P("data", None), _matrices(5))
    assert _counts(found) == {"all-to-all": 2}
    assert found.share <= 1.25 * 8 / 5


@pytest.mark.slow
def test_divided_means_are_restored_on_another_mesh(tmp_path):
    tx, p = scale_by_muon(), _matrices(2, (8, 16))
    for n, step in ((8, 0), (4, 1), (1, 2)):
        mesh = jax.make_mesh((n,), ("data",), axis_types=(AxisType.Auto,))
        there = jax.device_put(p, NamedSharding(mesh, P()))
        found = restore(tmp_path, tx, there).state if step else tx.init(there)
        for x in found.mu.values():
            assert x.addressable_shards[0].data.shape == (8, 16 // n)
            np.testing.assert_allclose(x, (1 - 0.95**step) * p["w0"], rtol=1e-5)
        same = dict.fromkeys(there, there["w0"])
        u, state = jax.jit(tx.update)(same, found, there)
        assert all(x.sharding.is_fully_replicated for x in u.values())
        save(tmp_path, step, there, state)


@pytest.mark.slow
def test_groups_are_of_one_shape():
    p = _matrices(8) | {"b": _matrices(1, (16, 8))["w0"], "c": jnp.ones(8)}
    found = _check(scale_by_muon(), _mesh("auto"), P("data"), p)
    assert _counts(found)["all-to-all"] == 2  # `b` is alone, and stays as it lies


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "spec"), list(it.product(KINDS, SPECS)))
def test_matrices_may_stay_as_they_lie(kind, spec):
    found = _check(
        scale_by_muon(sharding="none"), _mesh(kind), SPECS[spec], _matrices(3)
    )
    assert "all-to-all" not in _counts(found)


@pytest.mark.slow
def test_a_mesh_of_two_axes_counts_as_one():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    found = _check(scale_by_muon(), mesh, P("data", "model"), _matrices(8))
    assert found.share <= 1.25


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_stacks_need_no_mesh(dtype):
    p = jax.tree.map(lambda x: x.astype(dtype), _matrices(3, (8, 12)))
    u, _ = _step(scale_by_muon(sharding="stack"), p)
    v, _ = _step(WHOLE, p)
    tight = 1e-5 if dtype == jnp.float32 else 1e-2  # one rounding to 8 bits
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(
            x.astype(float), y.astype(float), rtol=tight, atol=tight
        ),
        u,
        v,
    )
    assert all(x.dtype == dtype for x in jax.tree.leaves(u))


@pytest.mark.slow
def test_layers_in_one_array_are_stacked_with_others():
    mesh, axes = _mesh("auto"), Axes(-2, -1)
    p = {"a": _matrices(1, (3, 16, 24))["w0"], "b": _matrices(2, (3, 16, 24))["w1"]}
    there = jax.device_put(p, NamedSharding(mesh, P(None, "data", None)))
    make = lambda how: muon(0.1, muon_weight_dimension_numbers=axes, sharding=how)
    u, _ = _step(make("auto"), there)
    v, _ = _step(make("none"), p)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), u, v)
    assert _counts(audit(make("auto"), there))["all-to-all"] == 2


@pytest.mark.slow
def test_matrices_along_two_mesh_axes_are_not_gathered():
    explicit = (AxisType.Explicit,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=explicit)
    wanted = {"all-to-all": 4}
    found = _check(scale_by_muon(), mesh, P("data", "model"), _matrices(8))
    assert _counts(found) == wanted
    # A quarter of eight matrices after one move, and an eighth after the other.
    assert found.collectives[0].bytes == 2 * 2 * 64 * 128 * 4


# Of optimizers that take matrices alone, as everything above of `muon`.
ALONE = [p for p in rows(kind="optimizer") if hasattr(p.values[0].factory, "refusing")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", ALONE)
def test_a_group_takes_two_collectives_each_way(row, kind):
    mesh, tx = _mesh(kind), row.factory.refusing(0.1)
    p = _matrices(8)
    g = jax.tree.map(jnp.cos, p)
    put = lambda x: jax.device_put(x, NamedSharding(mesh, P("data", None)))
    there, gradients = (jax.tree.map(put, x) for x in (p, g))
    with jax.set_mesh(mesh):
        state = jax.jit(tx.init)(there)
        u, after = jax.jit(tx.update)(gradients, state, there)
    v, wanted = jax.jit(tx.update)(g, tx.init(p), p)
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    jax.tree.map(near, u, v)
    jax.tree.map(near, after, wanted)
    found = audit(tx, there, state=state)
    assert sum(_counts(found).values()) <= 4
    assert found.share <= 3  # where every device does all, 8


def test_an_unknown_way_is_an_error():
    with pytest.raises(ValueError, match=r"`sharding` is 'split', expected one of"):
        muon(0.1, sharding="split")  # pyright: ignore[reportArgumentType]

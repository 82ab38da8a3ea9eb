"""Optimizers inside of `shard_map`, where each device sees a part of the arrays."""

import functools as ft
import itertools as it
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import ArraySplit, collectives
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from runs import compare

import stepax
from stepax.contrib import scale_by_muon
from stepax.distributed import state_sharding


MESH = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


NAME, ROWS, COLUMNS = "data", P("data"), P(None, "data")


def _arrays(seed, spec=ROWS):
    keys = iter(jax.random.split(jax.random.key(seed), 8))
    new = lambda *shape: jax.random.normal(next(keys), shape)
    found = {"a": new(8, 6), "b": new(8, 6), "c": new(32, 4), "d": new(4, 2, 3, 5)}
    if spec == COLUMNS:
        found = {k: jnp.swapaxes(x, 0, 1) for k, x in found.items()}
    return found | {"bias": new(12), "whole": new(4, 6)}


def _specs(spec):
    """How each array is split; one is on every device."""
    return dict.fromkeys("abcd", spec) | {"bias": P("data"), "whole": P()}


MAKE: dict[str, Any] = {
    "clip_by_global_norm": ft.partial(stepax.clip_by_global_norm, 1.0),
    "clip_by_block_rms": ft.partial(stepax.clip_by_block_rms, 0.5),
    "adaptive_grad_clip": ft.partial(stepax.adaptive_grad_clip, 0.1),
    "normalize_by_update_norm": stepax.normalize_by_update_norm,
    "scale_by_trust_ratio": stepax.scale_by_trust_ratio,
    "scale_by_param_block_norm": stepax.scale_by_param_block_norm,
    "scale_by_param_block_rms": stepax.scale_by_param_block_rms,
    "scale_by_novograd": stepax.scale_by_novograd,
    "novograd": ft.partial(stepax.novograd, 0.1),
    "lamb": ft.partial(stepax.lamb, 0.1),
    "lars": ft.partial(stepax.lars, 0.1),
    "fromage": ft.partial(stepax.fromage, 0.1),
    "scale_by_factored_rms": ft.partial(
        stepax.scale_by_factored_rms, min_dim_size_to_factor=4
    ),
    "adafactor": ft.partial(stepax.adafactor, 0.1, min_dim_size_to_factor=4),
    "scale_by_muon": scale_by_muon,
    "muon_alone": ft.partial(scale_by_muon, sharding="none"),
    "muon": ft.partial(stepax.contrib.muon, 0.1),
    "hyperball": ft.partial(stepax.contrib.hyperball, 0.1),
    "floor_updates": ft.partial(stepax.contrib.floor_updates, 2.0),
    "floor_updates_rows": ft.partial(stepax.contrib.floor_updates, 2.0, 0),
    "floor_updates_columns": ft.partial(stepax.contrib.floor_updates, 2.0, -1),
    "radial_brake": stepax.contrib.radial_brake,
    "scale_by_cautious_adam": stepax.contrib.scale_by_cautious_adam,
    "scale_by_cautious_lion": stepax.contrib.scale_by_cautious_lion,
    "cautious": ft.partial(stepax.contrib.cautious, stepax.sgd(0.1, momentum=0.9)),
    "scale_by_mars_correction": stepax.contrib.scale_by_mars_correction,
    "mars": ft.partial(stepax.contrib.mars, 0.1),
    "mars_shampoo": ft.partial(stepax.contrib.mars, 0.1, variant="shampoo"),
}


near = ft.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)


def _inside(f, specs, out_specs, is_checked=True):
    return jax.jit(
        jax.shard_map(
            f, mesh=MESH, in_specs=specs, out_specs=out_specs, check_vma=is_checked
        )
    )


def _two_steps(tx, p, g, h):
    _, state = tx.update(g, tx.init(p), p)
    return tx.update(h, state, p)[0]


def _compare(make, axis_name, spec, is_checked=True, only=()):
    given = [_arrays(seed, spec) for seed in range(3)]
    specs = _specs(spec)
    if only:
        given = [{k: x[k] for k in only} for x in given]
        specs = {k: specs[k] for k in only}
    step = ft.partial(_two_steps, make(axis_name=axis_name))
    found = _inside(step, (specs,) * 3, specs, is_checked)(*given)
    compare(near, found, jax.jit(ft.partial(_two_steps, make()))(*given))


HOW = [(NAME, ROWS), (ROWS, ROWS), (COLUMNS, COLUMNS)]


@pytest.mark.few(1)
@pytest.mark.parametrize(("make", "how"), list(it.product(MAKE, HOW)), ids=str)
def test_a_part_steps_as_the_whole_does(make, how):
    _compare(MAKE[make], *how)


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKE)
def test_without_the_name_a_part_is_taken_for_the_whole(make):
    """If that were not so, the test above could not fail."""
    problem = "replication which can't be statically inferred|Not equal"
    with pytest.raises((ValueError, AssertionError), match=problem):
        _compare(lambda axis_name=None: MAKE[make](), NAME, ROWS)


@pytest.mark.few(1)
@pytest.mark.parametrize("make", ["clip_by_global_norm", "adafactor", "muon"])
def test_unchecked_all_arrays_are_in_parts(make):
    _compare(MAKE[make], NAME, ROWS, is_checked=False, only=["a", "b", "c", "bias"])


@pytest.mark.slow
@pytest.mark.parametrize("make", ["adafactor", "novograd", "muon"])
def test_a_state_may_be_made_outside(make):
    """Its arrays go inside by the specs of `state_sharding`."""
    tx, specs = MAKE[make](axis_name=NAME), _specs(ROWS)
    place = lambda x, spec: jax.device_put(x, NamedSharding(MESH, spec))
    p = jax.tree.map(place, _arrays(0), specs)
    state = tx.init(p)
    held = jax.tree.map(lambda s: s.spec, state_sharding(tx, p))
    u, _ = _inside(tx.update, (specs, held, specs), (specs, held))(p, state, p)
    v, _ = MAKE[make]().update(_arrays(0), MAKE[make]().init(_arrays(0)), _arrays(0))
    compare(near, u, v)


# `a` and `b` are moved there and back together; `c` is alone, and gathered.
COSTS = {
    "clip_by_global_norm": {"all-reduce": 2},
    "scale_by_muon": {"all-to-all": 2, "all-gather": 1},
}


@pytest.mark.parametrize("make", COSTS)
def test_a_step_exchanges_no_more_than_it_must(make):
    tx, specs = MAKE[make](axis_name=NAME), _specs(ROWS)
    step = _inside(lambda g: tx.update(g, tx.init(g), g)[0], (specs,), specs)
    text = step.lower(_arrays(0)).compile().as_text()
    found = {x.kind: x.count for x in collectives(text or "")}
    assert found == COSTS[make]


@pytest.mark.slow("test_runs_in_shard_map")
@pytest.mark.parametrize("make", ["clip_by_global_norm", "adafactor", "muon"])
def test_steps_accumulate_there_too(make):
    """The second of two gradients makes the step, of both; the first makes none."""

    def both(axis_name=None):
        tx = stepax.MultiSteps(MAKE[make](axis_name=axis_name), 2)
        return tx.gradient_transformation()

    _compare(both, NAME, ROWS)


def test_a_name_of_no_axis_is_an_error():
    tx = stepax.clip_by_global_norm(1.0, axis_name="model")
    problem = r"`axis_name` has 'model', which is not an axis here.*shard_map"
    with pytest.raises(ValueError, match=problem):
        tx.update(_arrays(0), tx.init(_arrays(0)))
    with pytest.raises(ValueError, match=problem):
        _compare(lambda axis_name=None: tx, NAME, ROWS)


@pytest.mark.parametrize("spec", [P("rows", "columns"), P(None, ("rows", "columns"))])
def test_measures_of_parts_are_those_of_the_whole(spec):
    mesh = jax.make_mesh((2, 2), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)
    x = jnp.asarray(np.random.RandomState(0).randn(4, 8, 3), jnp.float32)
    split, entries, alone = ArraySplit(spec), [*spec, None], ArraySplit(None)
    measures = {"sum": jnp.sum, "mean": jnp.mean, "norm": jnp.linalg.norm}
    cases = [(name, i) for name in measures for i in range(3)]
    # The axis that is measured is no longer split.
    specs = [
        P(*[None if i == j else y for j, y in enumerate(entries)]) for _, i in cases
    ]

    def measured(split, x):
        parts = [measures[name](x, axis=i, keepdims=True) for name, i in cases]
        pairs = zip(cases, parts, strict=True)
        found = [getattr(split, name)(part, x, i) for (name, i), part in pairs]
        total = split.sum(jnp.sum(x), x), split.norm(jnp.linalg.norm(x.ravel()), x)
        whole = split.whole(x)
        assert whole.shape == split.shape(x) == (4, 8, 3)
        return found, total, whole, split.mine(whole, x)

    out_specs = specs, P(), P(), spec
    inside = jax.shard_map(
        ft.partial(measured, split), mesh=mesh, in_specs=spec, out_specs=out_specs
    )
    compare(near, jax.jit(inside)(x), measured(alone, x))
    assert alone.whole(x) is x

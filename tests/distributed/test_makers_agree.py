"""Whatever makes a state makes what a step returns: types, places and memory."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from cases import make, rows, traits, types
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from keywords import keywords

import stepax
from stepax import checkpoint
from stepax.contrib import GaLoreDimensionNumbers, scale_by_galore
from stepax.distributed import init_sharded, offload, state_sharding, zero


def on_mesh(kind, **sizes):
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes)
    )


MESHES = {
    "automatic": lambda: on_mesh(AxisType.Auto, data=8),
    "two axes": lambda: on_mesh(AxisType.Auto, data=4, model=2),
    "two axes, not set": lambda: on_mesh(AxisType.Auto, data=4, model=2),
    "explicit": lambda: on_mesh(AxisType.Explicit, data=8),
}


def set_mesh(name, mesh):
    is_set = "not set" not in name
    return jax.set_mesh(mesh) if is_set else contextlib.nullcontext()


# XLA refuses programs that put arrays of a mesh of CPUs into host memory there.
NEEDS_HOST_MEMORY = ("offload", "both") if jax.__version_info__ < (0, 10) else ()

FORMS = {
    "plain": lambda tx, mesh: tx,
    "zero": lambda tx, mesh: zero(tx, mesh, min_size=64),
    "offload": lambda tx, mesh: offload(tx),
    "both": lambda tx, mesh: offload(zero(tx, mesh, min_size=64)),
}


def params_on(mesh, form):
    def put(x, *spec):
        return jax.device_put(x, NamedSharding(mesh, P(*spec)))

    has_two = "model" in mesh.shape
    w, b = jnp.ones((64, 24)) / 2, jnp.ones(16) / 4
    found = {"w": put(w, None, "model" if has_two else None), "b": put(b)}
    # `zero` divides what its axis replicates; these are sharded along it.
    if has_two and form not in ("zero", "both"):
        # Of one shape, so that stages on matrices divide them among all devices.
        specs = [("data", "model"), ("model", "data")]
        found["layers"] = [put(jnp.ones((16, 8)) / 3, *spec) for spec in specs]
    return found | {"s": put(jnp.ones(()))}


def restored(folder, tx, state, p):
    checkpoint.save(folder, 1, p, state)
    return checkpoint.restore(folder, tx, p).state


def reset(tx, state, p):
    # A pattern that matches nothing is an error.
    return stepax.tree.reset(tx, state, p, "**" if jax.tree.leaves(state) else ())


def assert_same_place(name, sharding, x):
    kinds = sharding.memory_kind, x.sharding.memory_kind
    assert kinds[0] == kinds[1], (name, kinds)
    is_same = sharding.is_equivalent_to(x.sharding, x.ndim)
    assert is_same, (name, sharding, x.sharding)


# Unless the mesh is set, what `jit` computes from no parameter is not on it.
CASES = [
    pytest.param(x.values[0], name, id=f"{x.id}-{name}")
    for x in rows()
    for name in MESHES
    if "not set" not in name or "slots" in traits(x.id)
]


@pytest.mark.few(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("row", "mesh_name"), CASES)
def test_all_that_make_a_state_agree_with_the_step(row, form, mesh_name, tmp_path):
    if form in NEEDS_HOST_MEMORY:
        pytest.skip("offloading on a mesh of CPUs needs JAX 0.10")
    mesh = MESHES[mesh_name]()
    tx, p, traces = FORMS[form](make(row), mesh), params_on(mesh, form), []

    @jax.jit
    def step(g, s, p):
        traces.append(None)
        return tx.update(g, s, p, **keywords(g))

    with set_mesh(mesh_name, mesh):
        made = tx.init(p)
        _, after = step(p, made, p)
        found = {
            "init": made,
            "jit(init)": jax.jit(tx.init)(p),
            "init_sharded": init_sharded(tx, p),
            "reset": reset(tx, after, p),
            "restore": restored(tmp_path, tx, after, p),
        }
        for name, state in found.items():
            assert types(state) == types(after), name
            step.lower(p, state, p)
        places = {k: jax.tree.map(lambda x: x.sharding, x) for k, x in found.items()}
        places["state_sharding"] = state_sharding(tx, p)
    for name, shardings in places.items():
        rows = zip(jax.tree.leaves(shardings), jax.tree.leaves(after), strict=True)
        for sharding, x in rows:
            assert_same_place(name, sharding, x)
    assert len(traces) == 1


def test_an_average_is_divided_along_the_axes_that_replicate_its_parameter():
    mesh, tx = MESHES["two axes"](), stepax.contrib.scale_by_muon()
    specs = {P("data"): P(("data", "model")), P(None, "model"): P("data", "model")}
    put = lambda spec: jax.device_put(jnp.ones((16, 8)), NamedSharding(mesh, spec))
    p = list(map(put, specs))
    step = jax.jit(lambda s: tx.update(p, s, p)[1])
    for made in (
        tx.init(p),
        jax.jit(tx.init)(p),
        init_sharded(tx, p),
        step(tx.init(p)),
    ):
        averages = stepax.tree.get(made, "mu")
        for x, spec in zip(averages, specs.values(), strict=True):
            assert_same_place("mu", NamedSharding(mesh, spec), x)


PROJECTED = {
    "plain": {},
    "narrow": {"base_optimizer": stepax.scale_by_adam(mu_dtype="bfloat16")},
    "other axes": {"weight_dimension_numbers": GaLoreDimensionNumbers(1, 0)},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("options", PROJECTED)
def test_projections_are_sharded_along_the_axis_that_is_not_projected(options):
    """Also those that have the shape of their parameter, or of another."""
    mesh, options = MESHES["two axes"](), PROJECTED[options]
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
    p = [
        put(jnp.ones((8, 16)), "data", "model"),
        put(jnp.ones((16, 16)), "model", "data"),
    ]
    tx = scale_by_galore(64, **options)
    _, after = jax.jit(tx.update)(p, tx.init(p), p)
    made = tx.init(p), jax.jit(tx.init)(p), init_sharded(tx, p)
    for state in made:
        rows = zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True)
        for x, y in rows:
            assert_same_place("state", x.sharding, y)
    # By default the columns of the wide one are projected, and the rows of the square.
    kept = [] if "weight_dimension_numbers" in options else [P("data"), P(None, "data")]
    for x, spec in zip(stepax.tree.get(after, "mu"), kept, strict=False):
        assert_same_place("mu", NamedSharding(mesh, spec), x)

"""The memory of optimizers, without devices, beside what is compiled for devices."""

import json
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import make, rows
from children import with_path
from inside import bytes_of
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from rich.console import Console

import stepax
from stepax._distributed.audit import _first_state
from stepax._distributed.plan import abstract_mesh, placed
from stepax.contrib import MuonDimensionNumbers, muon, soap
from stepax.distributed import Plan, audit, offload, plan, zero


def shape(*lengths, dtype="float32"):
    return jax.ShapeDtypeStruct(lengths, jnp.dtype(dtype))


DENSE = {
    "up": [shape(64, 128), shape(64, 128)],
    "down": [shape(128, 64), shape(128, 64)],
    "bias": shape(128),
    "scale": shape(3),
}
# Matrices whose means of squares are factored: sums of one wait for other sums.
LARGE = {"up": [shape(256, 512), shape(256, 512)], "bias": shape(128)}
LARGE |= {"down": [shape(128, 64)], "scale": shape(3)}
EXPERTS = {"gate": [shape(8, 64, 128), shape(8, 64, 128)], "router": shape(64, 8)}
ALONG_DATA = "data"
ALONG_BOTH = {"up": P("data", "model"), "down": P("model", "data"), "bias": P("model")}
ALONG_BOTH["scale"] = P()
BY_EXPERT = {"gate": P("expert", "data", None), "router": P("data")}


def adamw_8_bits():
    return stepax.low_bit_states(stepax.adamw(1e-3))


def experts():
    numbers = lambda p: MuonDimensionNumbers(-2, -1) if p.ndim == 3 else None
    stacks = lambda params: jax.tree.map(numbers, params)
    tx = muon(1e-3, muon_weight_dimension_numbers=stacks)
    return stepax.chain(stepax.clip_by_global_norm(1.0), tx)


def by_label():
    label = lambda params: jax.tree.map(lambda p: "ab"[p.ndim > 1], params)
    return stepax.partition({"a": stepax.adamw(1e-3), "b": soap(1e-3)}, label)


DATA, BOTH = {"data": 8}, {"data": 4, "model": 2}
# What each makes for a mesh; the mesh, shapes and specs.
CASES: dict[str, tuple[Any, dict, Any, Any]] = {
    "adamw": (lambda _: stepax.adamw(1e-3), DATA, DENSE, ALONG_DATA),
    "lamb": (lambda _: stepax.lamb(1e-3), BOTH, DENSE, ALONG_BOTH),
    "factored": (lambda _: stepax.adafactor(1e-3), BOTH, LARGE, ALONG_BOTH),
    "8 bits": (lambda _: adamw_8_bits(), DATA, DENSE, ALONG_DATA),
    "zero": (lambda m: zero(adamw_8_bits(), m), BOTH, DENSE, None),
    "muon": (lambda _: muon(1e-3), BOTH, DENSE, ALONG_BOTH),
    "muon, replicated": (lambda _: muon(1e-3), DATA, DENSE, None),
    "muon, zero": (lambda m: zero(muon(1e-3), m), DATA, DENSE, None),
    "soap": (lambda _: by_label(), DATA, DENSE, ALONG_DATA),
    "experts": (
        lambda _: experts(),
        {"expert": 4, "data": 2},
        EXPERTS,
        BY_EXPERT,
    ),
}


def on_devices(sizes, shapes, specs):
    """A mesh of virtual devices with explicit axes, and parameters there."""
    kinds = (AxisType.Explicit,) * len(sizes)
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)
    there = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=NamedSharding(mesh, x.sharding.spec)
        ),
        placed(shapes, abstract_mesh(mesh), specs),
    )
    return mesh, there


def audited(make, sizes, shapes, specs):
    """What is compiled for virtual devices with explicit axes."""
    mesh, there = on_devices(sizes, shapes, specs)
    with jax.set_mesh(mesh):
        return audit(make(mesh), there)


def differences(found, wanted):
    """What a plan has otherwise than an audit; empty if they agree."""
    same = ("devices", "state", "state_per_device")
    return [x for x in same if getattr(found, x) != getattr(wanted, x)]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_what_is_compiled(name):
    make, sizes, shapes, specs = CASES[name]
    found = plan(make, shapes, sizes, specs)
    assert differences(found, audited(make, sizes, shapes, specs)) == []


@pytest.mark.slow("the test above")
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_a_plan_of_each_optimizer_is_what_init_makes(row):
    found = plan(make(row), LARGE, BOTH, ALONG_BOTH)
    mesh, there = on_devices(BOTH, LARGE, ALONG_BOTH)
    with jax.set_mesh(mesh):
        state = jax.tree.leaves(_first_state(make(row), there))
    assert found.state == bytes_of(state)
    assert found.state_per_device == bytes_of(state, True)


_MANY = """
import test_plan
for sizes in ({"data": 8, "model": 2}, {"data": 16, "model": 4}):
    for name in ("lamb", "muon", "zero"):
        make, _, shapes, specs = test_plan.CASES[name]
        found = test_plan.plan(make, shapes, sizes, specs)
        wanted = test_plan.audited(make, sizes, shapes, specs)
        assert found.devices == sizes["data"] * sizes["model"]
        print(test_plan.differences(found, wanted))
"""


@pytest.mark.slow
def test_plans_for_16_and_64_devices_are_what_is_compiled():
    flags = "--xla_force_host_platform_device_count=64"
    env = with_path() | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    said = subprocess.check_output([sys.executable, "-c", _MANY], env=env, text=True)
    assert said.splitlines() == ["[]"] * 6


def test_a_plan_needs_no_devices():
    p = {"w": shape(2**20, 2**14), "b": shape(2**14)}
    found = plan(stepax.adamw(1e-3), p, {"data": 4096}, "data")
    assert found.numbers == 2**34 + 2**14
    assert found.params_per_device == found.params // 4096
    assert found.gradients_per_device == found.params_per_device
    assert found.state_per_device == 2 * found.params_per_device + 4


def test_on_one_device_is_all():
    found = plan(muon(1e-3), DENSE, {"data": 1, "model": 1}, ALONG_BOTH)
    assert found.params_per_device == found.params
    assert found.state_per_device == found.state


def test_a_state_in_host_memory_is_told_apart():
    tx = lambda mesh: offload(zero(stepax.adamw(1e-3), mesh))
    found = plan(tx, DENSE, {"data": 8})
    assert found.host_per_device == found.state_per_device < found.state
    assert "on the host" in str(found)


def test_a_plan_is_printed_and_becomes_json():
    found = plan(stepax.clip_by_global_norm(1.0), DENSE, BOTH, ALONG_BOTH)
    text = str(found)
    assert "on 8 devices: data=4, model=2" in text
    console = Console(width=200)
    with console.capture() as shown:
        console.print(found)
    for said in (text, shown.get()):
        assert "--xla_force_host_platform_device_count=8" in said
    said = json.loads(json.dumps(found.to_dict()))
    assert said["mesh"] == BOTH
    fields: Any = Plan.__dataclass_fields__
    assert set(said) == {*fields}


def test_of_a_large_mesh_a_smaller_one_can_be_measured():
    text = str(plan(stepax.sgd(0.1), {"w": shape(8)}, {"data": 4096}))
    assert "on 4096 devices" in text and "device_count=2048 " in text


def test_a_mesh_gives_its_axes():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    assert dict(plan(stepax.sgd(0.1), W, mesh).mesh) == {"data": 4, "model": 2}


def test_arrays_and_leaves_that_are_none_work():
    p = {"w": jnp.ones((8, 4)), "frozen": None}
    found = plan(stepax.adamw(1e-3), p, {"data": 8}, {"w": P("data"), "frozen": None})
    assert found.params == 8 * 4 * 4 and found.params_per_device == 16
    assert plan(stepax.adamw(1e-3), {}, {"data": 8}).params == 0


W = {"w": shape(6, 4)}
WRONG: dict[str, tuple[Any, Any, Any, str]] = {
    "axis": (W, {"data": 2}, P("dta"), r"\['w'\].*'dta'.*did you mean `data`"),
    "name": (W, {"data": 2}, "model", r"\['w'\].*'model', but the mesh has"),
    "twice": (W, {"data": 2}, P("data", "data"), r"\['w'\].*'data' 2 times"),
    "length": (W, {"data": 4}, P("data"), r"\['w'\].*length 6, which the 4 devices"),
    "rank": (W, {"data": 2}, P(None, None, "data"), r"\['w'\].*fewer axes than"),
    "missing": (W, {"data": 2}, {"v": P()}, r"\['w'\] has no spec"),
    "too many": (W, {"data": 2}, {"w": P(), "v": P()}, r"has \['v'\], where"),
    "spec": (W, {"data": 2}, 3, r"spec at \['w'\] is 3, expected a `PartitionSpec`"),
    "size": (W, {"data": 0}, None, r"axis 'data' of `mesh_shape` has size 0"),
    "mesh": (W, 8, None, r"`mesh_shape` is 8, expected names and sizes"),
    "number": ({"w": (6, 4)}, {"data": 2}, None, r"has 6 at \['w'\]\[0\], expected"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(name):
    shapes, mesh, specs, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message):
        plan(stepax.sgd(0.1), shapes, mesh, specs)


def test_what_cannot_be_planned_says_what_to_do():
    factory: Any = stepax.adamw
    with pytest.raises(TypeError, match=r"`tx` of `plan` .* did you mean `adamw"):
        plan(factory, W, {"data": 2})
    other = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    held = zero(stepax.sgd(0.1), other, min_size=1)
    with pytest.raises(ValueError, match=r"a mesh other than .*`lambda mesh: zero"):
        plan(held, W, {"data": 2})
    products: Any = lambda params: jax.tree.map(lambda p: p @ p.T @ p, params)
    foreign: Any = stepax.GradientTransformation(products, stepax.sgd(0.1).update)
    with pytest.raises(ValueError, match="cannot be planned.*use `audit`"):
        plan(foreign, W, {"data": 2}, "data")

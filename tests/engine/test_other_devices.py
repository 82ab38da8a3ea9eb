"""Programs for devices that need not be here: a step is lowered for them, and not run.

Lowering finds operations that a device lacks, and calls of libraries that it does not
have, such as LAPACK.  Branches of the engine on the device are taken as on that device.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import TREES, gradients, make, rows
from compare import assert_same_tree
from keywords import keywords
from wrappers import FAMILIES, WRAPPERS

import stepax
from stepax._engine.arrays import branch
from stepax.distributed import offload


# Calls that XLA itself replaces, and the beginnings of the names of its libraries.
KNOWN = {
    "cuda": ("LayoutConstraint", "annotate_device_placement", "cusolver_", "cu_"),
    "tpu": (
        "LayoutConstraint",
        "annotate_device_placement",
        "Eigh",
        "LuDecomposition",
        "ProductOfElementaryHouseholderReflectors",
        "Qr",
    ),
}


def two_calls(tx, g, state, p, **extra):
    u, state = tx.update(g, state, p, **extra)
    return stepax.apply_updates(p, u), state


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def traced(tx: Any, p: Any, take: Any = stepax.step) -> Any:
    step = lambda p, s, g: take(tx, g, s, p, **keywords(g))
    return jax.jit(step, donate_argnums=(0, 1)).trace(p, jax.eval_shape(tx.init, p), p)


def lowered(step: Any, platform: str) -> str:
    return step.lower(lowering_platforms=(platform,)).as_text()


def calls(text: str) -> set[str]:
    """The names of the functions outside of the program that it calls."""
    return set(re.findall(r"custom_call @([\w.]+)", text))


def strangers(step: Any) -> set[str]:
    """Functions that are not known to be on the device, of all devices."""
    found = ((x, y) for x in KNOWN for y in calls(lowered(step, x)))
    return {y for x, y in found if not y.startswith(KNOWN[x])}


@pytest.mark.thinned
@pytest.mark.parametrize("take", [stepax.step, two_calls], ids=["step", "two calls"])
@pytest.mark.parametrize("row", rows())
def test_a_step_can_be_lowered_for_every_device(row, take, elsewhere):
    assert not strangers(traced(make(row), TREES["dict"](), take))


@pytest.mark.few(11)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_step_can_be_lowered_for_every_device(wrapper, elsewhere):
    tx = WRAPPERS[wrapper](FAMILIES["adaptive"]())
    assert not strangers(traced(tx, TREES["dict"]()))


def test_an_offloaded_state_can_be_lowered_for_every_device(elsewhere):
    step = traced(offload(stepax.adamw(1e-3)), TREES["dict"]())
    for platform in KNOWN:
        assert calls(lowered(step, platform)) == {"annotate_device_placement"}


def test_lapack_is_for_a_cpu_alone():
    tx = stepax.contrib.soap(1e-3)
    step = traced(tx, TREES["dict"]())
    found = {x: calls(lowered(step, x)) for x in ("cpu", "cuda")}
    assert any("lapack" in x for x in found["cpu"])
    assert any("cusolver" in x for x in found["cuda"])


# Shapes of which no other test traces a step: traces of a shape are shared by devices.
@pytest.mark.parametrize(
    "tx, side",
    [
        (stepax.lion(1e-3), 131),
        (stepax.contrib.schedule_free_adamw(1e-3), 137),
    ],
    ids=["lion", "schedule_free_adamw"],
)
def test_only_a_cpu_is_told_in_which_order_to_write(tx, side, monkeypatch):
    shape = lambda rows: {"w": jax.ShapeDtypeStruct((rows, side), jnp.float32)}
    on_cpu = lowered(traced(tx, shape(side + 1)), "cpu")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    on_gpu = lowered(traced(tx, shape(side)), "cuda")
    assert len(on_gpu.splitlines()) < len(on_cpu.splitlines())


def branches(step: Any) -> list[int]:
    """The number of sides of each branch of a program, outside of nested ones."""
    eqns = [x for x in step.jaxpr.eqns if x.primitive.name == "cond"]
    return [len(x.params["branches"]) for x in eqns]


@pytest.mark.parametrize("take, most", [(stepax.step, 3), (two_calls, 2)])
def test_a_gpu_need_not_take_a_step_that_waits(take, most, elsewhere):
    tx = stepax.MultiSteps(stepax.adamw(1e-3), 4)
    large = {"w": jax.ShapeDtypeStruct((branch.LARGE // 16, 16), jnp.float32)}
    assert branches(traced(tx, large, take)) == [most]
    assert branches(traced(tx, TREES["dict"](), take)) == [2]


def test_branches_of_a_gpu_are_taken_as_those_of_a_cpu(monkeypatch):
    tx, p = stepax.MultiSteps(stepax.adamw(1e-2), 3), TREES["dict"]()
    new = lambda: jax.jit(lambda p, s, g: stepax.step(tx, g, s, p))
    one = other = p, tx.init(p)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        patch.setattr(branch, "LARGE", 0)
        on_gpu = new()
        assert branches(on_gpu.trace(*one, p)) == [3]
    on_cpu = new()
    for i in range(4):
        g = gradients(p, i)
        one, other = on_gpu(*one, g), on_cpu(*other, g)
        assert_same_tree(one, other)

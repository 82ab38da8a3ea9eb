"""Programs for devices that need not be here: a step is lowered for them, and not run.

Lowering finds operations that a device lacks, and calls of libraries that it does not
have, such as LAPACK.  What is done for one platform alone is in no program for others.
"""

import os
import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import TREES, gradients, make, rows
from compare import assert_same_tree
from inside import leaf_program, order, orthogonal
from keywords import keywords
from wrappers import FAMILIES, WRAPPERS

import stepax
from stepax._engine import xla as branch
from stepax._functions import fused_scan
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


@pytest.mark.few(3)
@pytest.mark.parametrize("take", [stepax.step, two_calls], ids=["step", "two calls"])
@pytest.mark.parametrize("row", rows())
def test_a_step_can_be_lowered_for_every_device(row, take):
    assert not strangers(traced(make(row), TREES["dict"](), take))


@pytest.mark.few(3)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_step_can_be_lowered_for_every_device(wrapper):
    tx = WRAPPERS[wrapper](FAMILIES["adaptive"]())
    assert not strangers(traced(tx, TREES["dict"]()))


def test_an_offloaded_state_can_be_lowered_for_every_device():
    step = traced(offload(stepax.adamw(1e-3)), TREES["dict"]())
    for platform in KNOWN:
        assert calls(lowered(step, platform)) == {"annotate_device_placement"}


def test_lapack_is_for_a_cpu_alone():
    tx = stepax.contrib.soap(1e-3)
    step = traced(tx, TREES["dict"]())
    found = {x: calls(lowered(step, x)) for x in ("cpu", "cuda")}
    assert any("lapack" in x for x in found["cpu"])
    assert any("cusolver" in x for x in found["cuda"])


# Shapes that are large enough for all that is done for a CPU or for a GPU alone.
LARGE = {
    "wide": jax.ShapeDtypeStruct((256, 512), jnp.float32),
    "waits": jax.ShapeDtypeStruct((1024, 1024), jnp.float32),
    "waits, too": jax.ShapeDtypeStruct((1024, 1024), jnp.float32),
}

# What a choice of the platform leaves of itself where it is made.
CHOICE = re.compile(
    r" *%\w+ = stablehlo.constant dense<\d> : tensor<i32>\n"
    r' *%\w+ = "stablehlo.case".*\n( *%.*dense<\d> : tensor<i32>\n'
    r" *stablehlo.return .*\n *}(, {)?.*\n){2,}"
)


def operations(step: Any, platform: str) -> tuple[Counter, int]:
    """How many operations of each kind, and how many choices of the platform."""
    text, n = CHOICE.subn("", lowered(step, platform))
    # Each is made by a branch with one side, which repeats constants.
    found = Counter(re.findall(r"stablehlo\.(?!constant)\w+", text))
    return found - Counter({"stablehlo.case": n, "stablehlo.return": n}), n


PLACES = leaf_program, order, branch, orthogonal, fused_scan


@pytest.mark.few(2)
@pytest.mark.parametrize("row", rows())
def test_what_is_for_one_platform_is_in_no_program_for_others(row, monkeypatch):
    step = traced(make(row), LARGE)
    found = {x: operations(step, x)[0] for x in KNOWN}
    on_cpu = lowered(step, "cpu")
    # Nor does a program depend on the host that it is traced on.
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "tpu")
        patch.setattr(os, "cpu_count", lambda: 64)
        assert lowered(traced(make(row), LARGE), "cpu") == on_cpu
    monkeypatch.setattr(order, "_after", lambda x, done: x)
    for platform in KNOWN:
        # As it would be written for this platform alone.
        def one(default, *args, gpu=None, platform=platform, **others):
            return (gpu if gpu and platform == "cuda" else default)(*args)

        for place in PLACES:
            monkeypatch.setattr(place, "by_platform", one)
        # JAX, too, chooses by platform, as for decompositions.
        wanted, _ = operations(traced(make(row), LARGE), platform)
        assert found[platform] == wanted, platform


# Lines of a program for a matrix, with the 11 of a choice of the platform.
LINES = {"cpu": 98, "tpu": 57, "cuda": 57}


def test_only_a_cpu_is_told_in_which_order_to_write():
    step = traced(stepax.lion(1e-3), {"w": LARGE["wide"]})
    found = {x: len(lowered(step, x).splitlines()) for x in LINES}
    assert found == LINES
    assert {x: operations(step, x)[1] for x in LINES} == dict.fromkeys(LINES, 1)


def most_sides(step: Any, platform: str) -> int:
    """The number of sides of the branch of a program that has most of them."""
    text, _ = CHOICE.subn("", lowered(step, platform))
    branch = r'^( *)%.*"stablehlo.case".*\n(?:\1 .*\n|\1}, {\n)*'
    found = [0]
    # Branches may be nested.
    for at in re.finditer(r"^(?= *%.*stablehlo.case)", text, re.M):
        part = re.compile(branch, re.M).match(text, at.start())
        found.append(1 + part[0].count(f"\n{part[1]}}}, {{\n") if part else 0)
    return max(found)


@pytest.mark.parametrize("take, most", [(stepax.step, 3), (two_calls, 2)])
def test_a_gpu_need_not_take_a_step_that_waits(take, most):
    tx = stepax.MultiSteps(stepax.adamw(1e-3), 4)
    large = {"w": jax.ShapeDtypeStruct((branch.LARGE // 8, 16), jnp.float32)}
    for step, platform, sides in (
        (traced(tx, large, take), "cuda", most),
        (traced(tx, large, take), "cpu", 2),
        (traced(tx, TREES["dict"](), take), "cuda", 2),
    ):
        assert most_sides(step, platform) == sides


def test_branches_of_a_gpu_are_taken_as_those_of_a_cpu(monkeypatch):
    tx, p = stepax.MultiSteps(stepax.adamw(1e-2), 3), TREES["dict"]()
    new = lambda: jax.jit(lambda p, s, g: stepax.step(tx, g, s, p))
    one = other = p, tx.init(p)
    with monkeypatch.context() as patch:
        as_on_gpu = lambda default, *args, gpu: gpu(*args)
        patch.setattr(branch, "by_platform", as_on_gpu)
        patch.setattr(branch, "LARGE", -(2**40))
        on_gpu = new()
        assert most_sides(on_gpu.trace(*one, p), "cpu") == 3
    on_cpu = new()
    for i in range(4):
        g = gradients(p, i)
        one, other = on_gpu(*one, g), on_cpu(*other, g)
        assert_same_tree(one, other)

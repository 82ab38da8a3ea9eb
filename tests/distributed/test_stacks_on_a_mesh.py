"""A stack on a mesh moves no more than its arrays would, and nothing along it."""

import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from stacks import AXES as TREE, params, trained

import stepax
import stepax.contrib


AXES = {"layers/**": 0, "**": None}
OPTIMIZERS = {
    "muon": lambda: stepax.contrib.muon(1e-2),
    "soap": lambda: stepax.contrib.soap(1e-2, precondition_frequency=2),
    "lamb": lambda: stepax.lamb(1e-2),
    "adafactor": lambda: stepax.adafactor(1e-2, min_dim_size_to_factor=4),
}
SPECS = {"stack": P("x"), "rows": P(None, "x"), "whole": P()}
_MOVES = re.compile(
    r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)


def moved(text: str) -> int:
    """Bytes that the collectives of a compiled program return."""
    total = 0
    for line in text.splitlines():
        if found := _MOVES.search(line):
            for shape in re.findall(r"f32\[([\d,]*)\]", line[: found.start()]):
                total += 4 * prod(int(n) for n in shape.split(",") if n)
    return total


def step(tx: Any, params: Any) -> tuple[int, Any]:
    """The bytes that a step moves, and the parameters after two."""

    def one(p, state):
        g = jax.tree.map(jnp.sin, p)
        u, state = tx.update(g, state, p)
        return stepax.apply_updates(p, u), state

    state = jax.jit(tx.init)(params)
    places = jax.tree.map(lambda x: x.sharding, (params, state))
    run = jax.jit(one, out_shardings=places).lower(params, state).compile()
    both = run(*run(params, state))
    return moved(run.as_text() or ""), both[0]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_more_moves_than_unrolled(name, spec, kind):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    draw = np.random.default_rng(0).normal
    put = lambda x, spec: jax.device_put(x.astype("float32"), NamedSharding(mesh, spec))
    w, v, head = draw(size=(8, 16, 8)), draw(size=(8, 16, 8)), draw(size=(4, 3))
    at, one = SPECS[spec], P(*SPECS[spec][1:])
    with jax.set_mesh(mesh):
        stacks = {"layers": {"w": put(w, at), "v": put(v, at)}, "head": put(head, P())}
        layers = [{"w": put(w[i], one), "v": put(v[i], one)} for i in range(8)]
        tx = OPTIMIZERS[name]()
        found, new = step(stepax.stacked(tx, AXES), stacks)
        most, wanted = step(tx, {"layers": layers, "head": stacks["head"]})
    assert found <= most
    if spec == "stack":
        assert not found
    for i, layer in enumerate(wanted["layers"]):
        for k, x in layer.items():
            y = np.asarray(new["layers"][k])[i]
            np.testing.assert_allclose(y, x, rtol=2e-4, atol=2e-5)


def _zero(tx: Any) -> Any:
    mesh = jax.make_mesh((8,), ("data",))
    return stepax.distributed.zero(tx, mesh, min_size=1)


PLACES = {"zero": _zero, "offload": stepax.distributed.offload}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("inside", [True, False])
def test_states_may_lie_elsewhere(place, inside):
    tree, tx = params("float32"), stepax.lamb(1e-2)
    wanted, _ = trained(stepax.stacked(tx, TREE), tree, 2)
    around = PLACES[place]
    both = stepax.stacked(around(tx), TREE) if inside else around(stacked(tx))
    found, _ = trained(both, tree, 2)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def stacked(tx: Any) -> Any:
    return stepax.stacked(tx, TREE)

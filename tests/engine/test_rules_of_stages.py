"""Rules with a stage on whole matrices, and on numbers of Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from inside import ArraySplit, node_of
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from keywords import keywords
from test_rules import _matrices, _run, whitened

import stepax
from stepax import testing
from stepax._engine.step.batched import Row, map_batched
from stepax.rules import Batched, Rule


@pytest.mark.slow
def test_a_stage_on_whole_matrices_keeps_a_state_by_parameter():
    testing.check(whitened)
    p = _matrices()
    us, state = _run(whitened(), p)
    left = stepax.tree.get(state, "left/w1")
    assert left.shape == (4, 4) and stepax.tree.get(state, "left/b").shape == (0, 0)
    wanted = jnp.zeros((4, 4))
    for i in range(4):
        g = (i + 1) * p["w1"]
        wanted = 0.9 * wanted + 0.1 * g @ g.T
    np.testing.assert_allclose(left, wanted, rtol=1e-5)
    assert stepax.describe(whitened(), p).parameters["w1"] == 2 * 4 * 4 * 4
    np.testing.assert_array_equal(us[0]["b"], p["b"])


def test_a_stack_takes_the_steps_of_single_matrices():
    p = _matrices()
    alone, _ = _run(whitened(sharding="none"), p)
    stacked, _ = _run(whitened(sharding="stack"), p)
    for found, wanted in zip(stacked, alone, strict=True):
        # Eigenvectors of a batch and of one matrix differ by roundings.
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), found, wanted
        )


def test_a_branch_on_the_context_is_still_one_in_a_stack():
    p = _matrices()
    tx = whitened(sharding="stack")
    text = str(jax.make_jaxpr(tx.update)(p, tx.init(p), p))
    assert "cond[" in text and "eigh" in text.split("cond[", 1)[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("sharding", ["auto", "stack", "none"])
def test_a_stage_works_on_a_mesh(sharding):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    p = _matrices(4)
    wanted, _ = _run(whitened(), p)
    place = lambda x: NamedSharding(
        mesh, PartitionSpec("data" if x.ndim == 2 and not x.shape[0] % 2 else None)
    )
    on_mesh = jax.tree.map(lambda x: jax.device_put(x, place(x)), p)
    found, _ = _run(whitened(sharding=sharding), on_mesh)
    for us, vs in zip(found, wanted, strict=True):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), us, vs)


@pytest.mark.parametrize("number", [1, 3])
def test_a_stage_works_on_parts_inside_of_shard_map(number):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), "float32")
    us, lefts = ([draw(4, n) for _ in range(number)] for n in (8, 4))
    one = lambda u, left: (left @ u, left + u @ u.T)

    def on_row(ctx, row):
        u, left = one(*row.parts, *row.wholes)
        return Row((u,), (left,))

    how = Batched(one, lambda u: True, ("left",), split=ArraySplit("data"))

    def run(us, lefts):
        rows = [Row((u,), (left,)) for u, left in zip(us, lefts, strict=True)]
        made = map_batched(on_row, None, rows, how)
        return [row.parts[0] for row in made], [row.wholes[0] for row in made]

    specs = PartitionSpec("data"), PartitionSpec()
    found = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=specs))
    pairs = zip(*found(us, lefts), us, lefts, strict=True)
    for u, left, old_u, old_left in pairs:
        wanted = one(old_u, old_left)
        np.testing.assert_allclose(u, wanted[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(left, wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows(kind="optimizer", takes="learning_rate"))
def test_python_s_integers_are_parameters_like_any(row):
    p = {"a": 1, "b": 2}
    tx = make(row)
    if not all(isinstance(x, Rule) for x in node_of(tx).parts()):
        pytest.skip("a closure may refuse them, as noise and L-BFGS do")
    u, state = tx.update(p, tx.init(p), p, **keywords(p))
    assert jax.tree.structure(u) == jax.tree.structure(p)
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(p))

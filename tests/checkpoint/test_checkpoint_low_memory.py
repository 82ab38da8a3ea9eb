"""Checkpoints of states in few bits, restored with wrappers that store otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import types
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import stepax
from stepax.checkpoint import restore, save


PARAMS = {"w": jnp.ones((8, 512), jnp.bfloat16)}
low = lambda **how: stepax.low_bit_states(stepax.adam(0.1), **how)
masters = lambda remainder: stepax.master_weights(stepax.sgd(0.1), remainder=remainder)
average = lambda remainder: stepax.averages(stepax.sgd(0.1), remainder=remainder)
# What wrappers store, and what the error says to do.
STORED = {
    "codes": (
        {
            "none": stepax.adam(0.1),
            "8": low(),
            "4": low(bits=4),
            "short": low(block=128),
            "one": low(bits={"nu": 8}),
        },
        "restored with the `low_bit_states` that saved them; `stepax.tree.dequantize`",
    ),
    "masters": (
        {"none": masters(None), "16": masters(16), "8": masters(8)},
        "`master_params` and `set_master_params` convert master weights",
    ),
    "average": (
        {"none": average(None), "16": average(16), "8": average(8)},
        "`eval_params` returns an average",
    ),
}
PAIRS = [
    (kind, saved, wanted)
    for kind, (forms, _) in STORED.items()
    for saved in forms
    for wanted in forms
]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind, saved, wanted", PAIRS)
def test_another_form_is_refused_with_what_to_do(kind, saved, wanted, tmp_path):
    forms, hint = STORED[kind]
    save(tmp_path, 1, PARAMS, forms[saved].init(PARAMS))
    if saved == wanted or {saved, wanted} == {"8", "short"}:
        restore(tmp_path, forms[wanted], PARAMS)
        return
    with pytest.raises(ValueError, match="does not fit") as error:
        restore(tmp_path, forms[wanted], PARAMS)
    assert hint in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("bits, bound", [(8, 0.02), (4, 0.2)])
@pytest.mark.parametrize("is_on_mesh", [False, True])
def test_other_blocks_are_restored_by_value(is_on_mesh, bits, bound, tmp_path):
    x = jax.random.normal(jax.random.key(0), (64, 512))
    if is_on_mesh:  # where devices cut the long blocks
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, "data")))
    # Those of all versions before blocks had several rows.
    long, now = low(bits=bits, block={8: 256, 4: 128}[bits]), low(bits=bits)
    _, state = jax.jit(long.update)({"w": x}, long.init({"w": x}), {"w": x})
    values = jax.jit(stepax.tree.dequantize)
    full = values(state)
    for source, tx in (("long", now), ("now", long)):
        save(tmp_path / source, 1, {"w": x}, state)
        state = restore(tmp_path / source, tx, {"w": x}).state
        assert types(state) == types(jax.eval_shape(tx.init, {"w": x}))
        found = values(state)
        # A code is half a step from the value, twice.
        for a, b in zip(*map(jax.tree.leaves, (found, full)), strict=True):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            assert np.linalg.norm(a - b) <= bound * np.linalg.norm(b)
        jax.jit(tx.update)({"w": x}, state, {"w": x})

"""Checkpoints of states in few bits, restored with wrappers that store otherwise."""

import jax.numpy as jnp
import pytest

import stepax
from stepax.checkpoint import restore, save


PARAMS = {"w": jnp.ones((8, 512), jnp.bfloat16)}
low = lambda **how: stepax.low_bit_states(stepax.adam(0.1), **how)
masters = lambda remainder: stepax.master_weights(stepax.sgd(0.1), remainder=remainder)
average = lambda remainder: stepax.average_params(stepax.sgd(0.1), remainder=remainder)
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
        "restored with the `low_bit_states` that saved it; `stepax.tree.dequantize`",
    ),
    "masters": (
        {"none": masters(None), "16": masters(16), "8": masters(8)},
        "`master_params` and `set_master_params` convert masters",
    ),
    "average": (
        {"none": average(None), "16": average(16), "8": average(8)},
        "`averaged_params` gives an average",
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
    if saved == wanted:
        restore(tmp_path, forms[wanted], PARAMS)
        return
    with pytest.raises(ValueError, match="does not fit") as error:
        restore(tmp_path, forms[wanted], PARAMS)
    assert hint in str(error.value)

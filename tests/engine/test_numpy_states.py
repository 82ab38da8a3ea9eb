"""A state of NumPy arrays, as files and `device_get` return it, is as good as its own.

Outside of `jit`: inside of it all arrays are traced.
"""

import pickle
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import gradients, make, rows
from compare import assert_equal
from keywords import keywords
from wrappers import FAMILIES, WRAPPERS

import stepax


def params(dtype: Any) -> Any:
    w = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3) + 0.3
    return {"w": w.astype(dtype), "b": jnp.ones(3, dtype)}


FORMATS = {
    "device_get": lambda state: jax.device_get(state),
    "pickle": lambda state: pickle.loads(pickle.dumps(jax.device_get(state))),
    "msgpack": lambda state: flax.serialization.from_bytes(
        state, flax.serialization.to_bytes(state)
    ),
}


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)


def check(tx: Any, form: Any, dtype: Any = jnp.float32) -> None:
    p = params(dtype)
    state = tx.init(p)
    more = keywords(gradients(p))

    def step(state, i):
        g = gradients(p, i)
        return tx.update(g, state, p, **more)

    for i in range(2):
        _, state = step(state, i)
    arrays = form(state)
    kinds = {type(x) for x in jax.tree.leaves(arrays) if not _is_key(x)}
    assert kinds <= {
        np.ndarray,
        np.bool_,
        np.float32,
        np.int32,
        jnp.bfloat16.dtype.type,
    }
    for i in range(2, 4):
        u, state = step(state, i)
        found, arrays = step(arrays, i)
        assert_equal(found, u)
        assert_equal(arrays, state)


@pytest.mark.few(3)
@pytest.mark.parametrize("row", rows())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_factory_steps_with_numpy_states(row, dtype):
    check(make(row), FORMATS["device_get"], dtype)


@pytest.mark.few(2)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_wrapper_steps_with_numpy_states(wrapper, form):
    if (wrapper, form) == ("named_chain", "msgpack"):
        pytest.skip("Flax does not write ordered dicts")
    check(WRAPPERS[wrapper](FAMILIES["adaptive"]()), FORMATS[form])


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "tx",
    [
        stepax.clip_by_recent_norm("autoclip"),
        stepax.skip_spikes(stepax.sgd(0.1), watch="both"),
        stepax.rollback(stepax.sgd(0.1), 1),
    ],
    ids=["clip_by_recent_norm", "skip_spikes", "rollback"],
)
def test_windows_of_recent_values_may_be_numpy_arrays(tx):
    check(tx, FORMATS["device_get"])

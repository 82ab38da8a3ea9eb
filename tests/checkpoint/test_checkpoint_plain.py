"""Parameters and states as files for other programs."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TREES
from safetensors import safe_open
from safetensors.numpy import load_file

import stepax
from stepax.checkpoint import latest_step, to_safetensors


def test_arrays_have_the_names_on_their_paths(tmp_path):
    params = {"layer": TREES["dict"]() | {"f": jnp.tanh, "none": None}}
    state = stepax.adam(0.1).init(params)
    to_safetensors(tmp_path / "a", params, state)
    found = load_file(tmp_path / "a")
    np.testing.assert_array_equal(found["layer.w"], params["layer"]["w"])
    assert found["state.0.count"].shape == () and found["state.0.count"] == 0
    slots = {f"state.0.{k}.layer.{x}" for k in ("mu", "nu") for x in "wb"}
    assert found.keys() == {"layer.w", "layer.b", "state.0.count"} | slots
    to_safetensors(tmp_path / "a", params, separator="/")
    assert load_file(tmp_path / "a").keys() == {"layer/w", "layer/b"}
    assert [x.name for x in tmp_path.iterdir()] == ["a"]


def test_layout_and_dtype_are_those_of_the_arrays(tmp_path):
    params = {
        "half": jnp.ones(3, jnp.bfloat16),
        "turned": np.arange(6.0, dtype="float32").reshape(2, 3).T,
        "key": jax.random.key(1),
    }
    to_safetensors(tmp_path / "a", params)
    with safe_open(tmp_path / "a", "np") as file:
        found = {key: file.get_tensor(key) for key in file.keys()}
    assert found["half"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found["turned"], params["turned"])
    np.testing.assert_array_equal(found["key"], jax.random.key_data(params["key"]))


def test_a_packed_tree_is_written_as_the_tree(tmp_path):
    params = TREES["dict"]()
    to_safetensors(tmp_path / "a", stepax.tree.pack(params))
    np.testing.assert_array_equal(load_file(tmp_path / "a")["w"], params["w"])


def test_an_error_leaves_the_file_that_was_there(tmp_path):
    params = {"a": jnp.ones(2)}
    to_safetensors(tmp_path / "a", params)
    with pytest.raises(ValueError, match="several arrays would have the name `x.y`"):
        to_safetensors(tmp_path / "a", {"x.y": jnp.ones(2), "x": {"y": jnp.ones(2)}})
    with pytest.raises(ValueError, match="cannot be written.*dtypes: int4"):
        to_safetensors(tmp_path / "a", {"a": jnp.ones(2, jnp.int4)})
    assert load_file(tmp_path / "a")["a"].shape == (2,)
    assert [x.name for x in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("orbax.checkpoint", lambda path: latest_step(path)),
        ("safetensors.numpy", lambda path: to_safetensors(path / "a", {})),
    ],
)
def test_what_is_not_installed_is_named(package, call, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r'pip install "\.\[checkpoint\]"'):
        call(tmp_path)

"""A delta gives the bits of the new tree, or an error; so does its file."""

import json
import os
import resource
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops import each
from test_checkpoint_processes import START, run_two
from test_delta import assert_same_bits, meshes, same_bits

import stepax
from stepax._checkpoint.delta_file import Block, Changed
from stepax.checkpoint import Delta, apply_delta, delta


OLD = {"a": {"w": jnp.arange(24.0).reshape(4, 6)}, "b": np.arange(8, dtype=np.int8)}
NEW = {"a": {"w": OLD["a"]["w"].at[1, 2].set(-0.0)}, "b": OLD["b"][::-1].copy()}
THIRD = jax.tree.map(lambda x: x * 2, NEW)


# --- what it is applied to ------------------------------------------------------------


def test_changes_are_made_to_what_they_were_found_in_only():
    """Also if it was changed before, as by another process with the same array."""
    first, second = delta(OLD, NEW), delta(NEW, THIRD)
    assert_same_bits(apply_delta(apply_delta(OLD, first), second), THIRD)
    assert_same_bits(apply_delta(NEW, first), NEW)
    with pytest.raises(ValueError, match="`old` is not what .*: `a/w` has other"):
        apply_delta(OLD, second)


@pytest.mark.parametrize("i", range(4))
def test_the_shards_of_another_array_are_refused(i):
    """Whatever the sharding of either, as far as a process has the block."""
    old = np.arange(48, dtype=np.float32).reshape(8, 6)
    new, other = old.copy(), old.copy()
    new[3, 4], other[3, 3] = 9, 1
    for sharding in meshes():
        found = delta(*(jax.device_put(x, sharding) for x in (old, new)))
        there = jax.device_put(other, meshes()[i])
        with pytest.raises(ValueError, match="is not what `changes` were found in"):
            apply_delta(there, found)


TREES: dict[str, Any] = {
    "a slash": lambda x, y: {"a": {"b": x}, "a/b": y},
    "and deeper": lambda x, y: {"a": {"b/c": x}, "a/b": {"c": y}},
    "escaped": lambda x, y: {"a": {"b": x}, "a/b": y, "a~1b": x + y},
    "in a list": lambda x, y: {"a": [x], "a/0": y},
    "as of Haiku": lambda x, y: {"mlp/~/linear_0": {"w": x}, "mlp/~": y},
}


@pytest.mark.parametrize("name", TREES)
def test_keys_that_are_joined_to_one_text_are_told_apart(name, tmp_path):
    x, y = jnp.zeros(3), jnp.zeros(3)
    old, new = TREES[name](x, y), TREES[name](x + 1, y.at[2].set(5.0))
    delta(old, new).to_safetensors(tmp_path / "d")
    found = Delta.from_safetensors(tmp_path / "d")
    assert_same_bits(apply_delta(old, found), new)


# --- forged blocks --------------------------------------------------------------------

X = np.zeros((2, 3), np.float32)
ONE = np.ones(1, np.float32)


def at(*places, dtype: Any = np.int64):
    return np.array(places, dtype)


FORGED: dict[str, Any] = {
    "negative": ((0, 0), (2, 3), at(-1), ONE),
    "behind the end": ((0, 0), (2, 3), at(6), ONE),
    "far behind the end": ((0, 0), (2, 3), at(2**32 + 3), ONE),
    "the least": ((0, 0), (2, 3), at(-(2**63)), ONE),
    "one value for two": ((0, 0), (2, 3), at(0, 1), ONE),
    "two values for one": ((0, 0), (2, 3), at(0), np.ones(2, np.float32)),
    "twice": ((0, 0), (2, 3), at(1, 1), np.ones(2, np.float32)),
    "not in order": ((0, 0), (2, 3), at(2, 1), np.ones(2, np.float32)),
    "no indices": ((0, 0), (2, 3), None, ONE),
    "empty indices": ((0, 0), (2, 3), at(), np.ones(0, np.float32)),
    "real indices": ((0, 0), (2, 3), at(1, dtype=np.float32), ONE),
    "indices of an axis more": ((0, 0), (2, 3), at([1]), ONE),
    "values of an axis more": ((0, 0), (2, 3), at(1), ONE[:, None]),
    "a list": ((0, 0), (2, 3), [1], ONE),
    "values of another dtype": ((0, 0), (2, 3), at(1), np.ones(1, np.int32)),
    "before the start": ((-1, 0), (2, 3), at(1), ONE),
    "behind the array": ((1, 0), (2, 3), at(1), ONE),
    "larger": ((0, 0), (2, 4), at(1), ONE),
    "of a negative size": ((0, 0), (2, -3), at(1), ONE),
    "fewer axes": ((0,), (2,), at(1), ONE),
    "more axes": ((0, 0, 0), (2, 3, 1), at(1), ONE),
    "a start of fewer axes": ((0,), (2, 3), at(1), ONE),
    "no integers": ((0.0, 0.0), (2, 3), at(1), ONE),
    "another digest before": ((0, 0), (2, 3), at(1), ONE, 5, 6),
    "another digest after": ((0, 0), (2, 3), at(1), ONE, 0, 6),
}  # fmt: skip


@each(FORGED.items())
def test_forged_blocks_are_refused(name, fields):
    changes = Delta({"w": Changed((2, 3), X.dtype, (Block(*fields),))})
    for put in np.asarray, jnp.asarray:
        with pytest.raises(ValueError, match="`w`"):
            apply_delta({"w": put(X)}, changes)


def test_what_is_no_delta_is_refused():
    wrong: Any = {"w": X}
    with pytest.raises(TypeError, match="`changes` is .*, expected a `Delta`"):
        apply_delta({"w": X}, wrong)


# --- files ----------------------------------------------------------------------------


def read(file):
    return apply_delta(OLD, Delta.from_safetensors(file))


@pytest.fixture
def file(tmp_path):
    delta(OLD, NEW).to_safetensors(tmp_path / "d")
    return tmp_path / "d"


def test_each_flipped_byte_changes_nothing_or_is_an_error(file):
    before = file.read_bytes()
    noticed = 0
    for i in range(len(before)):
        bits = bytearray(before)
        bits[i] ^= 1 << i % 8
        file.write_bytes(bits)
        try:
            assert_same_bits(read(file), NEW)
        except ValueError as error:
            assert f"`{file}` cannot be read" in str(error), (i, error)
            noticed += 1
    assert noticed > 0.95 * len(before)


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_a_file_that_is_cut_is_an_error(keep, file):
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=f"`{file}` cannot be read"):
        read(file)


def test_a_value_that_is_not_as_written_is_named(file):
    bits = bytearray(file.read_bytes())
    bits[-1] ^= 1
    file.write_bytes(bits)
    with pytest.raises(ValueError, match="`(a/w|b)` does not have the values that"):
        read(file)


def test_what_is_no_file_of_a_delta_is_an_error(tmp_path):
    stepax.checkpoint.to_safetensors(tmp_path / "other", OLD)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in "other", "folder", "pipe", "nothing":
        with pytest.raises(ValueError, match=f"/{name}` cannot be read"):
            read(tmp_path / name)
    with pytest.raises(TypeError, match="`file` is .*, expected a path"):
        read(3)


FIELDS: dict[str, list] = {
    "schema": [2, "x", None],
    "arrays": [None, [], {"w": None}, {"w": {}}],
    "sums": [None, {"9|9|values": ""}],
    "process": [None],
}
VALUES = [None, -1, 2**70, "x", [], [-1], [2**70, 1], {}, "float64", "object", "U3"]
BLOCKS = ["start", "shape", "indices", "values", "old", "new"]


def forged(file, change):
    """Change the description in a file, with a checksum that fits."""
    from safetensors.numpy import load_file, save_file

    from stepax._checkpoint.delta_file import KEY, seal_of

    header = file.read_bytes()
    size = int.from_bytes(header[:8], "little")
    body = json.loads(json.loads(header[8 : 8 + size])["__metadata__"][KEY])
    del body["seal"]
    change(body)
    text = json.dumps(body | {"seal": seal_of(body)})
    save_file(load_file(file), file, metadata={KEY: text})


def changes():
    """Each change of the description of a delta, with a name."""

    def put(place, key, value):
        return lambda body: place(body).update({key: value})

    whole, row = lambda body: body, lambda body: body["arrays"]["b"]
    block = lambda body: row(body)["blocks"][0]
    for place, table in (
        (whole, FIELDS),
        (row, dict.fromkeys(("shape", "dtype"), VALUES)),
        (row, {"blocks": [x for x in VALUES if x not in ([], {})]}),  # no change
        (block, dict.fromkeys(BLOCKS, VALUES)),
    ):
        for key, values in table.items():
            for x in values:
                yield f"{key}: {x}", put(place, key, x)
    yield "another name", lambda body: body["arrays"].update(c=body["arrays"].pop("b"))


def test_forged_descriptions_change_nothing_or_are_errors(file):
    before = file.read_bytes()
    for name, change in changes():
        file.write_bytes(before)
        forged(file, change)
        try:
            found = read(file)
            assert same_bits(found["b"], NEW["b"]), (name, found["b"])
        except (ValueError, TypeError) as error:
            assert f"`{file}`" in str(error) or "`changes`" in str(error), (name, error)


def test_a_full_disk_leaves_the_file_that_was_there(file):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(ValueError, match=f"`{file}` cannot be written"):
            delta(NEW, THIRD).to_safetensors(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [*file.parent.iterdir()] == [file]
    assert_same_bits(read(file), NEW)


BOTH = (
    START
    + """
import numpy as np
from stepax.checkpoint import Delta, apply_delta, delta
here = jax.process_index()
mask = np.zeros((64, 30), np.float32)
mask[3, 4], mask[60, 5] = 7, 8
mask = jax.make_array_from_callback(mask.shape, split, lambda i: mask[i])
new = {"w": params["w"] + mask}
found = delta(params, new)
file = folder / f"{here}.delta"
sync_global_devices("same name")
try:
    found.to_safetensors(folder / "one.delta")
    print("written", flush=True)
except ValueError as error:
    print(error, flush=True)
found.to_safetensors(file)
found.to_safetensors(file)  # its own may be replaced
sync_global_devices("written")
whole = NamedSharding(split.mesh, P())
everywhere = jax.jit(lambda x: x, out_shardings=whole)
bits = lambda x: np.asarray(everywhere(x)).tobytes()
for place in split, whole, NamedSharding(split.mesh, P(None, "data")):
    again = {"w": jax.jit(lambda x: x, out_shardings=place)(params["w"])}
    for i in 0, 1:
        again = apply_delta(again, Delta.from_safetensors(folder / f"{i}.delta"))
    assert again["w"].sharding == place and bits(again["w"]) == bits(new["w"])
    wrong = {"w": jax.jit(lambda x: x + 1, out_shardings=place)(params["w"])}
    if place != split and place != whole:
        continue  # each has a part of each block, and cannot tell
    try:
        apply_delta(wrong, Delta.from_safetensors(file))
        raise SystemExit("nothing was raised")
    except ValueError as error:
        assert "is not what" in str(error)
print("done", flush=True)
"""
)


@pytest.mark.slow
def test_each_process_writes_the_changes_that_it_holds(tmp_path):
    two = run_two(BOTH, tmp_path)
    assert all("done" in text for text in two)
    assert sum("written\n" in text for text in two) == 1
    assert sum("each process needs a file of its own" in text for text in two) == 1
    shape = jax.ShapeDtypeStruct((64, 30), jnp.float32)
    blocks = [
        block
        for i in (0, 1)
        for block in Delta.from_safetensors(tmp_path / f"{i}.delta").arrays["w"].blocks
    ]
    assert sorted(x.start for x in blocks) == [(0, 0), (32, 0)]
    assert {x.shape for x in blocks} == {(32, 30)} and shape

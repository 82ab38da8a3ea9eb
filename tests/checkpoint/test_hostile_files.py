"""Files that somebody else wrote: the same numbers, or an error, and never a hang."""

import functools
import json
import os
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from runs import compare, equal

import stepax
from stepax._checkpoint import manifest
from stepax.checkpoint import average, from_optax, restore, save, to_safetensors


PARAMS = {"w": jnp.asarray([1.0, 2.0, 3.0]), "m": jnp.ones((4, 4))}


def restored(folder):
    return restore(folder, stepax.identity(), PARAMS).params


@pytest.fixture
def saved(tmp_path):
    save(tmp_path, 1, PARAMS, ())
    return tmp_path


def resealed(folder, change):
    """Change the manifest, with a checksum that fits."""
    file = folder / "1" / "manifest" / "metadata"
    body = json.loads(file.read_text())
    change(body)
    body.pop("seal", None)
    body["seal"] = manifest.seal_of(body)
    file.write_text(json.dumps(body))


def refused(folder, words=""):
    with pytest.raises(ValueError, match=f"step 1 in `{folder}` is damaged.*{words}"):
        restored(folder)


# --- what a file says about its arrays ------------------------------------------------

STORED: dict[str, dict] = {
    "many": {"shape": [2**36]},
    "many in one block": {"chunks": [2**36]},
    "both": {"shape": [2**36], "chunks": [2**36]},
    "few": {"shape": [2]},
    "more axes": {"shape": [3, 1], "chunks": [3, 1]},
    "no axes": {"shape": [], "chunks": []},
    "of another dtype": {"dtype": "<i4"},
    "of a wider dtype": {"dtype": "<f8"},
}


@pytest.mark.parametrize("name", STORED)
def test_another_description_of_an_array_is_refused_before_it_is_read(name, saved):
    names = ts.KvStore.open(
        {"driver": "ocdbt", "base": f"file://{saved}/1/params/"}
    ).result()
    described = json.loads(names["w/.zarray"])
    names["w/.zarray"] = json.dumps(described | STORED[name])
    resealed(saved, lambda body: body.update(files={}))
    refused(saved, "`w` is stored as")


# --- what is no regular file ----------------------------------------------------------

ODD: dict[str, Any] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a link to a folder": lambda path: path.symlink_to("/"),
    "a broken link": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}
PLACES = [
    *("manifest/metadata", "params/_METADATA", "params/manifest.ocdbt", "params/new"),
]


@pytest.mark.few(12)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ODD)
def test_what_is_no_regular_file_is_refused_without_opening_it(name, place, saved):
    path = saved / "1" / place
    path.unlink(missing_ok=True)
    ODD[name](path)
    if (name, place) == ("a folder", "params/new"):
        compare(equal, restored(saved), PARAMS)
        return
    refused(saved)


@pytest.mark.parametrize("name", ["../../dev/zero", "/dev/zero", "params/../../x", ""])
def test_a_manifest_cannot_list_what_is_outside_of_its_folder(name, saved):
    (saved / "x").write_text("")
    resealed(saved, lambda body: body["files"].update({name: [0, ""]}))
    refused(saved, f"`{name}` is missing from its folder")


def test_a_pipe_in_a_checkpoint_of_orbax_is_refused(saved):
    os.mkfifo(saved / "1" / "params" / "pipe")
    with pytest.raises(ValueError, match="params/pipe` is not a regular file"):
        from_optax(saved / "1", stepax.identity(), PARAMS)


# --- forged fields --------------------------------------------------------------------

VALUES: list[Any] = [
    *(None, -1, 0, 2**70, 0.5, "x", "", [], [[]], {}, True, [-1], [2**70], ["x"]),
    *(["w", 3], "float64", "key<no>", "key<threefry2x32>", "object", "<U3", "int2"),
]
FIELDS = ["names", "where", "owner", "own", "shape", "dtype", "digest", "kind"]


def all_forged(folder, change):
    """Each value in turn, put where `change` puts it: the same numbers, or an error."""
    file = folder / "1" / "manifest" / "metadata"
    before = file.read_text()
    for value in VALUES:
        resealed(folder, functools.partial(change, value))
        try:
            found = restored(folder)
        except (ValueError, TypeError) as error:
            assert f"{folder}" in str(error), (value, error)
        else:
            compare(equal, found, PARAMS)
        file.write_text(before)


@pytest.mark.few(8)
@pytest.mark.parametrize("field", FIELDS)
def test_a_forged_field_changes_nothing_or_is_an_error(field, saved):
    all_forged(saved, lambda x, body: body["params"][1].update({field: x}))


@pytest.mark.parametrize("field", ["schema", "step", "params", "state", "files"])
def test_a_forged_body_changes_nothing_or_is_an_error(field, saved):
    all_forged(saved, lambda x, body: body.update({field: x}))


@pytest.mark.filterwarnings("ignore::stepax.checkpoint.RestoreWarning")
def test_a_forged_recipe_changes_nothing_or_is_an_error(tmp_path):
    """Also one that is deep, or names what no transformation is."""
    tx = stepax.adam(0.1)
    save(tmp_path, 1, PARAMS, tx.init(PARAMS), tx=tx)
    deep = functools.reduce(lambda x, _: [x], range(400), "x")
    names = "stepax.adamax", "os.system", 5, None, ["stepax.adam"], {}
    targets = [{"_target_": x, "_args_": [{"_target_": x}]} for x in names]
    file = tmp_path / "1" / "manifest" / "metadata"
    before = file.read_text()
    for value in [*VALUES, *targets, deep]:
        resealed(tmp_path, lambda body, x=value: body.update(recipe=x))
        found = restore(tmp_path, tx, PARAMS)
        compare(equal, found.params, PARAMS)
        compare(equal, found.state, tx.init(PARAMS))
        file.write_text(before)


# --- averages and plain files ---------------------------------------------------------


@pytest.mark.parametrize("kind", [str, os.fspath, lambda x: x, lambda x: 3])
def test_the_sources_of_an_average_are_a_list(kind, saved):
    with pytest.raises(TypeError, match="`sources` is .*, expected a list of directo"):
        average(kind(saved), PARAMS)


# The numbers of two checkpoints, their weights, and the mean.
MEANS: dict[str, tuple] = {
    "large and opposite": ([3e38, -3e38], None, 0.0),
    "large": ([3e38, 3e38], None, 3e38),
    "three": ([3e38, -3e38, 3e38], None, 1e38),
    "weights above 1": ([3e38, 3e38], [2.0, -1.0], 3e38),
    "infinite": ([np.inf, 1.0], None, np.inf),
    "equal and infinite": ([np.inf, np.inf], None, np.inf),
    "infinite and opposite": ([np.inf, -np.inf], None, np.nan),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_of_what_is_finite_is_finite(name, tmp_path):
    values, weights, mean = MEANS[name]
    for i, x in enumerate(values):
        save(tmp_path / str(i), 1, {"w": jnp.full(3, x)}, ())
    folders = [tmp_path / str(i) for i in range(len(values))]
    found = average(folders, {"w": jnp.zeros(3)}, weights=weights)
    np.testing.assert_allclose(found["w"], np.full(3, mean, np.float32), rtol=1e-6)


NARROW = [
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"),
    *("float16", "bfloat16"),
]


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_floats_have_a_mean(dtype, tmp_path):
    kind = getattr(ml_dtypes, dtype, dtype)
    for i in 1, 3:
        save(tmp_path / str(i), 1, {"w": np.full(3, i, kind)}, ())
    found = average([tmp_path / "1", tmp_path / "3"], {"w": np.zeros(3, kind)})
    assert found["w"].dtype == kind and (found["w"].astype(np.float32) == 2).all()


def test_no_array_has_the_name_that_the_format_keeps_for_itself(tmp_path):
    with pytest.raises(ValueError, match="named `__metadata__`.*rename it"):
        to_safetensors(tmp_path / "a", {"__metadata__": jnp.ones(2)})
    assert not [*tmp_path.iterdir()]
    to_safetensors(tmp_path / "a", {"x": {"__metadata__": jnp.ones(2)}})

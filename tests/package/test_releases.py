"""What each release has written, this version reads: states, checkpoints, programs.

Beside the releases stands this version, as if it were released now.
"""

import io
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import exports
import jax
import numpy as np
import pytest
import releases
from compare import assert_same_tree, leaves
from inside import EXPORTED

import stepax
from stepax import checkpoint


FOLDERS = sorted(releases.FOLDER.glob("*"))
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def this_version(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("releases")
    releases.write(folder)
    return folder


@pytest.fixture(params=[*(x.name for x in FOLDERS), "this_version"])
def release(request) -> Path:
    if request.param == "this_version":
        return request.getfixturevalue("this_version")
    return releases.FOLDER / request.param


@pytest.fixture
def unpacked(release, tmp_path):
    def unpack(name):
        shutil.unpack_archive(release / f"{name}.zip", tmp_path / name)
        return tmp_path / name

    return unpack


def test_the_classes_of_states_keep_their_names_and_fields(release):
    found: dict[str, Any] = EXPORTED
    for name, fields in json.loads((release / "states.json").read_text()).items():
        assert list(found[name]._fields) == fields


NAMED = """
import gc; gc.disable()  # what `optax_compatible` replaces is then still there
import stepax, stepax.contrib, stepax.experimental
from stepax._engine.base import COMPATIBLE
from stepax._engine.trees.packed import EXPORTED, register_states
register_states()
assert COMPATIBLE and all(EXPORTED[f"stepax.{k}"] is x for k, x in COMPATIBLE.items()
                          if f"stepax.{k}" in EXPORTED)
assert "stepax.ScaleByAdamState" in EXPORTED
"""


def test_names_are_those_of_the_classes_in_use():
    subprocess.run([sys.executable, "-c", NAMED], check=True, cwd=ROOT)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", releases.CHECKPOINTS)
def test_a_checkpoint_of_a_release_is_restored(name, unpacked):
    tx, p = releases.CHECKPOINTS[name]()
    found = checkpoint.restore(unpacked("checkpoints") / name, tx, p)
    assert found.step == releases.STEP
    assert_same_tree(found.params, releases.numbered(p))
    assert_same_tree(found.state, releases.numbered(tx.init(p)))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", releases.EXPORTS)
def test_a_program_of_a_release_still_runs(name, unpacked):
    file = unpacked("exports") / f"{name}.export"
    data, wanted = file.read_bytes(), exports.read(file.with_suffix(".out.npz"))
    args = exports.read(file.with_suffix(".in.npz"))
    loaded = jax.export.deserialize(bytearray(data))
    assert loaded.in_tree == jax.tree.structure((releases.program(name)[1], {}))
    found = leaves(exports.called(data, args))
    for x, y in zip(found, wanted, strict=True):
        # Another XLA may contract a product and a sum: a few ulps of entries up to 4.
        np.testing.assert_allclose(x, y, rtol=2e-6, atol=2e-6)


class ByName(pickle.Unpickler):
    """Finds classes of states by their names, since modules may move."""

    def find_class(self, module, name):
        is_ours = module.partition(".")[0] == "stepax"
        found = EXPORTED.get(f"stepax.{name}") if is_ours else None
        return found or super().find_class(module, name)


@pytest.fixture
def pickled(unpacked):
    def read(name):
        return ByName(io.BytesIO((unpacked("pickles") / name).read_bytes())).load()

    return read


def test_pickles_have_an_instance_of_each_class(release, pickled):
    found = pickled("of_each_class")
    assert {*found} == {*json.loads((release / "states.json").read_text())}
    for name, state in found.items():
        assert type(state) is EXPORTED[name]
        assert tuple(state) == tuple(range(len(state._fields)))


def test_pickled_states_are_those_that_factories_make_today(pickled):
    found, made = pickled("of_each_factory"), releases.of_each_factory()
    for name, state in found.items():
        assert jax.tree.structure(state) == jax.tree.structure(made[name])
        for x, y in zip(
            jax.tree.leaves(state), jax.tree.leaves(made[name]), strict=True
        ):
            assert (x.shape, x.dtype) == (y.shape, y.dtype), name


def test_no_file_names_the_machine_that_wrote_it(release):
    for archive in release.glob("*.zip"):
        with zipfile.ZipFile(archive) as found:
            data = b"".join(map(found.read, found.namelist()))
        assert not {x for x in (b".py", b"/home", b"/root", b"/tmp") if x in data}


@pytest.mark.project
def test_the_page_lists_the_formats_of_each_release():
    page = releases.PAGE.read_text()
    for folder in FOLDERS:
        classes = len(json.loads((folder / "states.json").read_text()))
        assert f"\n| {folder.name} | {classes} | schema " in page
    listed = releases.with_row(page)
    assert f"\n| {stepax.__version__} | {len(releases.schemas())} | schema " in listed
    assert releases.with_row(listed) == listed

"""Which directories are steps, and which steps count."""

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from runs import compare, equal

import stepax
from stepax._checkpoint.digest import digest
from stepax._checkpoint.manifest import seal_of
from stepax.checkpoint import from_optax, latest_step, restore, save, to_safetensors


TX = stepax.adam(0.1)
PARAMS = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3)}
STATE = TX.init(PARAMS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for step in 1, 2:
        save(folder, step, PARAMS, STATE)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """With steps 1 and 2."""
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def half(path):
    """Remove every other file."""
    for file in sorted(x for x in path.rglob("*") if x.is_file())[::2]:
        file.unlink()


def emptied(path):
    shutil.rmtree(path)
    path.mkdir()


def without(*names):
    return lambda path: shutil.rmtree(path.joinpath(*names))


def cut(path):
    file = path / "manifest" / "metadata"
    file.write_bytes(file.read_bytes()[:100])


HOLLOW = {
    "half of it": half,
    "nothing": emptied,
    "no manifest": without("manifest"),
    "no params": without("params"),
    "no state": without("state"),
    "a cut manifest": cut,
    "the manifest alone": lambda path: [without(x)(path) for x in ("params", "state")],
    "a directory for the manifest": lambda path: (
        (path / "manifest" / "metadata").unlink(),
        (path / "manifest" / "metadata").mkdir(),
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", HOLLOW)
def test_a_step_that_is_not_whole_is_skipped_and_named(name, folder):
    HOLLOW[name](folder / "2")
    damaged = rf"step 2 in `{folder}` is damaged: .*skipped: `step=1` is whole"
    with pytest.warns(UserWarning, match=damaged) as told:
        assert latest_step(folder) == 1
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=damaged) as told:
        assert restore(folder, TX, PARAMS).step == 1
    assert told[0].filename == __file__
    with pytest.raises(ValueError, match=r"step 2 in .* is damaged: .*`step=1` rest"):
        restore(folder, TX, PARAMS, step=2)


@pytest.mark.few(2)
@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("name", HOLLOW)
def test_saving_goes_on_after_a_broken_step(name, step, folder):
    HOLLOW[name](folder / "2")
    left = sorted(x.relative_to(folder / "2") for x in (folder / "2").rglob("*"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        save(folder, step, PARAMS, STATE)
    assert latest_step(folder) == step
    assert len(told) == (step == 2)
    if step == 2:
        assert "is not a complete step and is now called `2.broken`" in str(
            told[0].message
        )
        aside = folder / "2.broken"
        assert sorted(x.relative_to(aside) for x in aside.rglob("*")) == left
    compare(equal, restore(folder, TX, PARAMS).params, PARAMS)


def test_a_second_broken_step_is_kept_beside_the_first(folder):
    for name in "2.broken", "2.broken-2":
        emptied(folder / "2")
        with pytest.warns(UserWarning, match=f"now called `{name}`"):
            save(folder, 2, PARAMS, STATE)
    assert latest_step(folder) == 2


def test_without_a_whole_step_there_is_none(folder):
    for step in "12":
        emptied(folder / step)
    with pytest.warns(UserWarning, match="step 2 .*step 1 .*no step before"):
        assert latest_step(folder) is None
    with pytest.raises(ValueError, match="step 2 .* is damaged: it has no manifest"):
        restore(folder, TX, PARAMS)
    save(folder, 3, PARAMS, STATE)
    assert latest_step(folder) == 3


@pytest.mark.parametrize("how", [Path.rename, shutil.copytree], ids=["mv", "cp"])
def test_a_step_under_another_number_does_not_count(how, folder):
    how(folder / "2", folder / "9")
    there = 2 if (folder / "2").exists() else 1
    with pytest.warns(UserWarning, match="step 9 .*it holds step 2: it was renamed"):
        assert latest_step(folder) == there
    with pytest.raises(ValueError, match="step 9 .* holds step 2.*rename it to 2"):
        restore(folder, TX, PARAMS, step=9)
    save(folder, 3, PARAMS, STATE, keep=1)
    assert restore(folder, TX, PARAMS, step=3).step == 3
    with pytest.warns(UserWarning, match="step 9"):
        assert latest_step(folder) == 3


NO_STEPS = ["0007", "5 ", " 5", "+5", "-5", "²", "٣", "1e3", "5.0", "0x7", "1_0", "５"]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NO_STEPS)
def test_a_name_that_save_does_not_write_is_no_step(name, folder):
    shutil.copytree(folder / "2", folder / name)
    assert latest_step(folder) == 2
    save(folder, 3, PARAMS, STATE, keep=1)
    assert latest_step(folder) == 3 and (folder / name).is_dir()


def test_files_and_links_may_have_a_number(folder):
    (folder / "7").write_text("a note")
    assert latest_step(folder) == 2
    with pytest.warns(UserWarning, match="`7.broken`"):
        save(folder, 7, PARAMS, STATE)
    (folder / "8").symlink_to(folder / "nowhere")
    assert latest_step(folder) == 7
    assert (folder / "7.broken").read_text() == "a note"


@pytest.mark.few(2)
@pytest.mark.parametrize("power", [18, 19, 30, 99])
def test_a_step_of_many_digits_is_found_again(power, tmp_path):
    step = 10**power
    save(tmp_path, step - 1, PARAMS, STATE)
    save(tmp_path, step, PARAMS, STATE, keep=1)
    assert latest_step(tmp_path) == restore(tmp_path, TX, PARAMS).step == step
    assert [x.name for x in tmp_path.iterdir()] == [str(step)]


@pytest.mark.parametrize("power", [100, 300, 9999])
def test_a_step_of_too_many_digits_is_refused(power, tmp_path):
    with pytest.raises(ValueError, match="`step` has more than 100 digits"):
        save(tmp_path, 10**power, PARAMS, STATE)
    assert [*tmp_path.iterdir()] == []


def test_a_link_to_nowhere_makes_room_for_a_step(folder):
    (folder / "7").symlink_to(folder / "nowhere")
    with pytest.warns(UserWarning, match="`7.broken`"):
        save(folder, 7, PARAMS, STATE)
    assert latest_step(folder) == 7 and (folder / "7.broken").is_symlink()


def test_a_link_in_place_of_an_old_step_is_removed_and_not_what_it_leads_to(
    folder, tmp_path
):
    (folder / "1").rename(tmp_path / "elsewhere")
    (folder / "1").symlink_to(tmp_path / "elsewhere")
    assert restore(folder, TX, PARAMS, step=1).step == 1
    save(folder, 3, PARAMS, STATE, keep=1)
    assert [x.name for x in folder.iterdir()] == ["3"]
    assert (tmp_path / "elsewhere" / "manifest").is_dir()


def test_names_with_a_lone_surrogate_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"array, 'a\\udc80', has a lone surrogate"):
        save(tmp_path, 1, {"a\udc80": jnp.ones(3)}, ())
    with pytest.raises(ValueError, match=r"`directory`, '.*\\udc80', has a lone"):
        save(tmp_path / "a\udc80", 1, PARAMS, STATE)
    assert [*tmp_path.iterdir()] == []


def changed(folder, change, seal=False):
    """Change the manifest; with its checksum, as only a forger would, if `seal`."""
    file = folder / "2" / "manifest" / "metadata"
    body = json.loads(file.read_text())
    kept = body.pop("seal")
    change(body)
    file.write_text(json.dumps(body | {"seal": seal_of(body) if seal else kept}))


FIELDS = ["schema", "step", "params", "state", "files"]
ENTRY = ["names", "where", "owner", "own", "shape", "dtype"]
WRONG: list[Any] = [None, True, -1, 2.5, "text", [], [None], {}, {"a": 1}, [[1]]]


@pytest.mark.parametrize("key", FIELDS + ENTRY)
def test_a_manifest_without_a_field_or_with_a_wrong_one_is_damaged(key, folder):
    before = (folder / "2" / "manifest" / "metadata").read_bytes()

    def place(body):
        return body if key in FIELDS else body["params"][0]

    kinds = [lambda body: place(body).pop(key)]
    kinds += [lambda body, x=x: place(body).update({key: x}) for x in WRONG]
    for change in kinds:
        changed(folder, change)
        body = (folder / "2" / "manifest" / "metadata").read_bytes()
        if json.loads(body) != json.loads(before):  # `where` of a parameter is empty
            said = "step 2 .* is damaged: the manifest|has the schema 2.5"
            with pytest.raises(ValueError, match=said):
                restore(folder, TX, PARAMS, step=2)
        (folder / "2" / "manifest" / "metadata").write_bytes(before)


@pytest.mark.parametrize("key", FIELDS + ENTRY)
def test_a_sealed_manifest_without_a_field_is_damaged(key, folder):
    def change(body):
        for x in [body] if key in FIELDS else body["params"]:
            del x[key]

    changed(folder, change, seal=True)
    with pytest.raises(ValueError, match="step 2 .* is damaged: the manifest"):
        restore(folder, TX, PARAMS, step=2)


OTHER = ["", "{}", "[]", "null", "3", '"a"', "{", "\x00\xff", "[" * 99999]


@pytest.mark.parametrize("text", OTHER, ids=lambda x: repr(x[:4]))
def test_a_manifest_that_is_something_else_is_damaged(text, folder):
    (folder / "2" / "manifest" / "metadata").write_text(text)
    with pytest.raises(ValueError, match="step 2 .* is damaged: the manifest"):
        restore(folder, TX, PARAMS, step=2)
    with pytest.warns(UserWarning, match="step 2"):
        assert latest_step(folder) == 1


BAD = [True, np.bool_(True), 2.0, np.float32(2), jnp.float32(2), "2", -1, None, [2], 2j]
BAD += [np.array([2]), jnp.array([2]), jnp.asarray(True)]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_step_is_a_whole_number(bad, folder):
    with pytest.raises(ValueError, match="`step` is .*expected a whole number, 0 or"):
        save(folder, bad, PARAMS, STATE)
    if bad is not None:
        with pytest.raises(ValueError, match="`keep` is .*whole number, 1 .*`None`"):
            save(folder, 3, PARAMS, STATE, keep=bad)
        with pytest.raises(ValueError, match="`step` is .*expected a whole number"):
            restore(folder, TX, PARAMS, step=bad)
        with pytest.raises(ValueError, match="`step` is .*expected a whole number"):
            from_optax(folder, TX, PARAMS, step=bad)
    assert latest_step(folder) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [np.int64, np.uint8, jnp.int32, jnp.uint8, np.array])
def test_integers_of_numpy_and_jax_are_steps(kind, tmp_path):
    for step in 3, 4:
        save(tmp_path, kind(step), PARAMS, STATE, keep=kind(1))
    assert sorted(x.name for x in tmp_path.iterdir()) == ["4"]
    found = restore(tmp_path, TX, PARAMS, step=kind(4))
    assert type(found.step) is int and found.step == 4


def test_a_path_may_begin_at_home_and_be_of_any_kind(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save("~/run", 1, PARAMS, STATE)
    assert (tmp_path / "run" / "1").is_dir()
    places: list[Any] = [tmp_path / "run", os.fsencode(tmp_path / "run"), Path("~/run")]
    for place in places:
        assert latest_step(place) == restore(place, TX, PARAMS).step == 1
    monkeypatch.chdir(tmp_path)
    save("run", 2, PARAMS, STATE)
    assert latest_step("~/run") == latest_step("run/") == 2
    to_safetensors("~/a.safetensors", PARAMS)
    assert (tmp_path / "a.safetensors").is_file()


def test_what_is_no_directory_is_said(tmp_path):
    no_path: Any = PARAMS
    for call in latest_step, lambda x: save(x, 1, PARAMS, STATE):
        with pytest.raises(TypeError, match="of type `dict`, expected a path"):
            call(no_path)
    (tmp_path / "file").write_text("text")
    with pytest.raises(ValueError, match="`.*file` is a file, expected a directory"):
        save(tmp_path / "file", 1, PARAMS, STATE)
    assert latest_step(tmp_path / "file") is None


SWAPPED = {
    "adam": (TX, PARAMS),
    "one array": (TX, jnp.ones(3)),
    "nested": (stepax.chain(stepax.clip(1.0), TX), {"a": {"b": PARAMS}}),
    "no slots": (stepax.sgd(0.1), PARAMS),
    "a count alone": (stepax.sgd(stepax.constant_schedule(0.1)), PARAMS),
    "accumulated": (stepax.MultiSteps(TX, 2), PARAMS),
    "packed": (TX, stepax.tree.pack(PARAMS)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SWAPPED)
def test_params_and_state_in_the_wrong_order_are_refused(name, tmp_path):
    tx, params = SWAPPED[name]
    state = tx.init(params)
    with pytest.raises(ValueError, match=r"save\(directory, step, params, state\)"):
        save(tmp_path, 2, state, params)
    assert [*tmp_path.iterdir()] == []
    save(tmp_path, 2, params, state)
    save(tmp_path, 3, {"params": params, "opt_state": state}, ())  # all in one tree
    save(tmp_path, 4, (params, state), {"key": jnp.ones(7)})
    assert latest_step(tmp_path) == 4


def test_a_save_leaves_only_its_step(tmp_path):
    for step in range(3):
        save(tmp_path, step, PARAMS, STATE, keep=2)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["1", "2"]


def test_flipped_signs_in_the_files_of_arrays_are_an_error(tmp_path):
    """Two thousand, an even number, of which one half of the digest knows nothing."""
    params = {"w": jnp.asarray(np.random.RandomState(0).randn(50, 100), "float32")}
    save(tmp_path, 1, params, ())
    flipped = params["w"].ravel().at[:2000].multiply(-1).reshape(50, 100)
    assert digest(flipped) % 2**32 == digest(params["w"]) % 2**32
    save(tmp_path / "other", 1, {"w": flipped}, ())
    shutil.rmtree(tmp_path / "1" / "params")
    shutil.copytree(tmp_path / "other" / "1" / "params", tmp_path / "1" / "params")
    with pytest.raises(ValueError, match="step 1 .* is damaged: "):
        restore(tmp_path, TX, params, step=1)

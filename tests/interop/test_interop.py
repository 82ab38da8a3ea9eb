"""Under the switch `import optax` gives Stepax, and afterwards Optax again."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax as real_optax
import optax.contrib
import optax.experimental
import pytest
from inside import original

import stepax as real_stepax
from stepax.interop.optax import install, installed, main, uninstall


# To a type checker two libraries that know nothing of each other do not mix.
optax: Any = real_optax
stepax: Any = real_stepax
ROOT = Path(__file__).parents[2]
# Modules of Optax, as they are when it is loaded.
LOADED = {k: m for k, m in sys.modules.items() if re.match(r"optax(\.|$)", k)}
MODULES = sorted(LOADED)


@pytest.fixture
def switched():
    """The module that stands for Optax."""
    with installed(replace=True):
        yield importlib.import_module("optax")


def run(*arguments, **environment):
    """What a program prints, in a new interpreter."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- what is found -------------------------------------------------------------------


def ours(name):
    """The public module of ours for one of Optax's."""
    return importlib.import_module("stepax" + name.removeprefix("optax"))


@pytest.mark.parametrize("name", MODULES)
def test_every_module_of_optax_is_found(name, switched):
    found = importlib.import_module(name)
    parent, _, last = name.rpartition(".")
    assert found.__name__ == name and "stepax" in repr(found)
    assert found.__version__ == "0.2.8"
    assert not parent or getattr(importlib.import_module(parent), last) is found


@pytest.mark.parametrize("name", [m for m in MODULES if "._" not in m])
def test_names_are_those_of_stepax(name, switched):
    found, wanted = importlib.import_module(name), ours(name)
    for key in dir(wanted):
        if not key.startswith("_") and not hasattr(getattr(wanted, key), "__path__"):
            x = getattr(found, key)
            ours_is = original(x) is getattr(wanted, key)
            assert ours_is or x.__name__ == f"{name}.{key}"


# What modules of Optax define for others and do not make public is listed, if programs
# in the wild have been seen to use it.
PRIVATE = [
    ("optax._src.base", "ArrayTree NO_PARAMS_MSG PRNGKey PyTree Shape"),
    ("optax._src.numerics", "abs_sq"),
    (
        "optax._src.utils",
        "canonicalize_dtype canonicalize_key check_rank check_shapes_equal "
        "check_subdtype x64_precision",
    ),
    ("optax._src.transform", "ScaleByRmsWithCountState base numerics utils"),
]


@pytest.mark.parametrize(("module", "names"), PRIVATE)
def test_helpers_of_private_modules_are_there(module, names, switched):
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


def defined(module):
    """Public names that a module of Optax defines itself and Stepax has somewhere."""
    public = {key for m in MODULES if "._" not in m for key in dir(ours(m))}
    for key, x in vars(module).items():
        is_own = getattr(x, "__module__", None) == module.__name__
        if is_own and not key.startswith("_") and key in public:
            yield key


HOMES = {m: list(defined(sys.modules[m])) for m in MODULES if "._" in m}


@pytest.mark.parametrize("name", [name for name, keys in HOMES.items() if keys])
def test_private_modules_have_what_they_define(name, switched):
    found = importlib.import_module(name)
    for key in HOMES[name]:
        x = getattr(found, key)
        assert x is getattr(importlib.import_module(name.split("._")[0]), key, x)
        home = original(x)
        assert not hasattr(home, "__module__") or home.__module__.startswith("stepax")


@pytest.mark.slow
def test_a_star_gives_all_names_but_the_modules(switched):
    names = {}
    exec("from optax import *", names)
    assert original(names["adam"]) is stepax.adam and "contrib" not in names
    exec("from optax._src.transform import *", names)
    assert names["base"].EmptyState is stepax.EmptyState


def test_a_missing_name_says_where_it_is(switched):
    with pytest.raises(AttributeError, match="did you mean `optax.adam`"):
        _ = switched.contrib.adam
    with pytest.raises(AttributeError, match="did you mean `optax.contrib.muon`"):
        _ = switched.muon
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'optax'"):
        exec("from optax import nothing")
    with pytest.raises(ModuleNotFoundError, match="optax.nothing"):
        importlib.import_module("optax.nothing")
    assert not hasattr(switched, "__wrapped__")


@pytest.mark.few(13)
@pytest.mark.parametrize("name", MODULES)
def test_an_error_for_a_missing_name_begins_as_that_of_optax(name, switched):
    with pytest.raises(AttributeError) as wanted:
        _ = LOADED[name].no_such_name
    with pytest.raises(AttributeError) as caught:
        _ = importlib.import_module(name).no_such_name
    assert str(caught.value).startswith(str(wanted.value))
    assert "Stepax" in str(caught.value) and caught.value.name == "no_such_name"


def test_attributes_can_be_set_and_do_not_reach_stepax(switched):
    switched.big_vision = "added"
    with mock.patch.object(switched, "adam", "replaced"):
        assert switched.adam == "replaced"
    assert original(switched.adam) is stepax.adam and switched.big_vision == "added"
    assert not hasattr(stepax, "big_vision")
    assert {"adam", "big_vision", "contrib"} | {*dir(stepax)} <= set(dir(switched))


def test_instances_are_known(switched):
    tx = switched.adam(1e-3)
    state = tx.init({"w": 1.0})
    assert isinstance(tx, switched.GradientTransformation)
    assert isinstance(tx, optax.GradientTransformation) is False  # it is set aside
    assert isinstance(optax.adam(1e-3), switched.GradientTransformation)
    assert isinstance(state[0], switched.ScaleByAdamState)
    assert not isinstance(state[0], switched.EmptyState)
    assert state[0].__class__ is switched.ScaleByAdamState


def test_helpers_do_what_their_names_say(switched):
    utils, numerics = switched._src.utils, switched._src.numerics
    wanted = optax._src.utils
    for dtype in (None, "bfloat16", float, int):
        assert utils.canonicalize_dtype(dtype) == wanted.canonicalize_dtype(dtype)
    for key in (3, jax.random.key(3)):
        assert (utils.canonicalize_key(key) == jax.random.key(3)).all()
    assert numerics.abs_sq(jnp.array(3 + 4j)) == 25
    with utils.x64_precision():
        assert jnp.zeros(1).dtype == "float64"
    x = jnp.ones((2, 3))
    utils.check_subdtype(x, jnp.floating)
    utils.check_rank(x, 2)
    utils.check_shapes_equal(x, x)
    with pytest.raises(TypeError, match="expected a dtype under .*, but got float32"):
        utils.check_subdtype(x, jnp.integer)
    with pytest.raises(ValueError, match=r"expected 1 axes, but got shape \(2, 3\)"):
        utils.check_rank(x, 1)
    with pytest.raises(ValueError, match=r"shapes differ: \(2, 3\) and \(3, 2\)"):
        utils.check_shapes_equal(x, x.T)


# --- on and off ----------------------------------------------------------------------


def test_what_was_loaded_is_there_again():
    before, path = dict(sys.modules), list(sys.meta_path)
    with installed(replace=True):
        assert original(importlib.import_module("optax").adam) is stepax.adam
        importlib.import_module("optax._src.base")
        with installed():  # the outer one stays in charge
            install()
        assert importlib.import_module("optax.contrib").__file__ == stepax.__file__
    assert sys.modules == before and sys.meta_path == path
    assert importlib.import_module("optax") is real_optax
    uninstall()
    assert sys.modules == before


def test_what_was_imported_meanwhile_keeps_stepax():
    with installed(replace=True):
        kept = importlib.import_module("optax")
    assert original(kept.adam) is stepax.adam
    assert kept.transforms.chain is stepax.chain and kept.transforms is not optax
    with installed(replace=True):
        assert importlib.import_module("optax") is not kept


def test_an_error_switches_off():
    with pytest.raises(KeyError), installed(replace=True):
        raise KeyError
    assert sys.modules["optax"] is real_optax


def test_a_loaded_optax_is_refused():
    before = dict(sys.modules)
    with pytest.raises(RuntimeError, match=r"already imported by `.*`; .*`replace"):
        install()
    with pytest.raises(RuntimeError, match="python -m stepax.interop.optax"):
        with installed():
            pass
    assert sys.modules == before


LOADS = """
import sys, stepax
loaded = lambda: [m for m in sys.modules if m.startswith(("optax", "stepax.interop"))]
assert not loaded()
from stepax.interop.optax import installed
with installed():
    import optax, optax.contrib, optax._src.base
    assert len(loaded()) > 4
assert not [m for m in loaded() if m.startswith("optax")]
"""


@pytest.mark.slow
def test_neither_stepax_nor_the_switch_loads_optax():
    run("-c", LOADS)


# --- the command ---------------------------------------------------------------------

SCRIPT = """
import sys, optax
print(optax.adam.__module__, __name__, sys.argv[1:], sys.path[0])
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "some_script.py").write_text(SCRIPT)
    return tmp_path / "some_script.py"


COMMAND = "-m", "stepax.interop.optax"


@pytest.mark.slow
def test_a_script_runs_under_the_switch(script):
    said = run(*COMMAND, script, "--steps", "3", "-m")
    wanted = f"['--steps', '3', '-m'] {script.parent}"
    assert said == f"stepax._optimizers.adam __main__ {wanted}\n"


@pytest.mark.slow
def test_a_module_runs_under_the_switch(script):
    path = os.pathsep.join([str(ROOT), str(script.parent)])
    said = run(*COMMAND, "-m", "some_script", "x", PYTHONPATH=path)
    assert said.startswith("stepax._optimizers.adam __main__ ['x']")


@pytest.mark.slow
def test_a_safe_path_stays_as_it_is(script):
    """`python -P` puts no folder of a script before those in `PYTHONPATH`."""
    for what in ([script], ["-c", SCRIPT]):
        said = run("-P", *COMMAND, *what)
        assert said.strip().endswith(f"] {ROOT}")


def test_the_command_explains_itself(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "python -m stepax.interop.optax" in said and "imports Stepax" in said

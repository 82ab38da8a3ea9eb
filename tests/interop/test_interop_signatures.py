"""Under the switch, tools that read signatures see the parameters of Optax alone."""

import functools as ft
import importlib
import inspect
import pickle
import sys
import typing
from types import FunctionType
from typing import Any

import jax.numpy as jnp
import optax
import optax.contrib
import optax.experimental
import pytest
from inside import original
from loops import each

import stepax
import stepax.contrib
from stepax.interop._signatures import ADDED
from stepax.interop.optax import installed


def _modules() -> dict:
    found = {k: m for k, m in sys.modules.items() if k.partition(".")[0] == "optax"}
    return {k: m for k, m in found.items() if "._" not in k}


def _signature(f: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(f)
    except (TypeError, ValueError):
        return None  # such as a type that cannot be called


def _public(module: Any) -> dict:
    """Functions and classes, by name; what has moved is left out: it warns."""
    found = {k: x for k, x in vars(module).items() if not k.startswith("_")}
    kinds = FunctionType | type
    return {k: x for k, x in found.items() if isinstance(x, kinds) and _signature(x)}


# Each name of each public module, with what it is in Optax.
NAMES = [
    pytest.param(module, name, x, id=f"{module}.{name}")
    for module, m in _modules().items()
    for name, x in _public(m).items()
]
FUNCTIONS = [x for x in NAMES if isinstance(x.values[2], FunctionType)]


@pytest.fixture(scope="module", autouse=True)
def switched():
    """The module that stands for Optax."""
    with installed(replace=True):
        yield importlib.import_module("optax")


def ours(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def alike(p: inspect.Parameter, q: inspect.Parameter) -> bool:
    """Whether two parameters have one name, kind, and default, if that is plain."""
    if (p.name, p.kind) != (q.name, q.kind):
        return False
    plain = (bool, int, float, complex, str, type(None), tuple)
    if type(p.default) in plain:
        return p.default == q.default and type(p.default) is type(q.default)
    return (p.default is p.empty) == (q.default is q.empty)


def test_there_are_as_many_signatures_as_optax_has():
    assert len(NAMES) > 450


@each(NAMES)
def test_a_signature_is_that_of_optax(module, name, theirs):
    found = inspect.signature(ours(module, name)).parameters.values()
    wanted = inspect.signature(theirs).parameters.values()
    if name == "MultiSteps":  # a class has one signature; no tool sets these by name
        found = [p for p in found if p.name not in ("axis_name", "weighted")]
    assert [p.name for p in found] == [p.name for p in wanted]
    assert all(map(alike, wanted, found))


@each(FUNCTIONS)
def test_no_other_way_shows_more(module, name, theirs):
    f = ours(module, name)
    wanted = set(inspect.signature(theirs).parameters)
    spec = inspect.getfullargspec(f)
    theirs = inspect.getfullargspec(theirs)
    if theirs.varargs is None or theirs.varargs in wanted:  # else Optax wraps it
        assert (spec.args, spec.varargs, spec.varkw) == theirs[:3]
        assert spec.kwonlyargs == theirs.kwonlyargs
    assert set(f.__annotations__) <= wanted | {"return"}
    assert set(typing.get_type_hints(f)) <= wanted | {"return"}
    assert set(f.__kwdefaults__ or ()) <= wanted
    # Tools unwrap step by step, or all the way.
    assert set(inspect.signature(inspect.unwrap(f)).parameters) <= wanted | set(PLAIN)
    while hasattr(f, "__wrapped__"):
        f = f.__wrapped__
        assert set(inspect.signature(f).parameters) <= wanted


PLAIN = ("args", "kwargs")  # what a function shows that says nothing


def made(f: Any, **kwargs: Any) -> Any:
    """A call of `f` with numbers for all that it needs."""
    values = {"learning_rate": 0.1, "l2_norm_clip": 1.0, "noise_multiplier": 1.0}
    values |= {"max_norm": 1.0, "threshold": 1.0, "clipping": 0.1, "key": 0}
    values |= {"value_fn": jnp.sum, "base_optimizer": stepax.sgd(0.1)}
    values |= {"fun": jnp.sum, "argnums": 0, "microbatch_size": 1}
    found = inspect.signature(original(f)).parameters.values()
    needed = [p.name for p in found if p.default is p.empty or p.name == "key"]
    return f(**{k: values[k] for k in needed if k != "seed"} | kwargs)


GIVEN = {"axis_name": "i", "key": 0, "sharding": "none", "ns_dtype": "float32"}
GIVEN |= {
    "argnums": 1,
    "has_aux": True,
    "side": "short",
    "stagger": True,
    "first_step": 1,
}
GIVEN |= {
    "adam_nesterov": False,
    "shape_factor": "spectral",
    "growth_rate": 1.5,
    "slice_p": 2,
}
PAIRS = [(k, name) for k, names in ADDED.items() for name in names.split()]


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.parametrize(("parameter", "name"), PAIRS)
def test_what_was_added_works_where_it_is_given(parameter, name, switched):
    home = switched if name in dir(stepax) else switched.contrib
    f = getattr(home, name)
    full = original(f)
    assert parameter in inspect.signature(full).parameters
    assert parameter not in inspect.signature(f).parameters
    default = inspect.signature(full).parameters[parameter].default
    value = GIVEN.get(parameter, not default if isinstance(default, bool) else None)
    value = 0.01 if value is None else value
    value = (lambda p: p) if parameter == "weight_decay_mask" else value
    value = (lambda *args: 1.0) if parameter == "sampler" else value
    tx = made(f, **{parameter: value})
    if hasattr(tx, "call"):
        assert tx.call.bound.arguments[parameter] == value
        assert tx == made(full, **{parameter: value})
    else:
        assert callable(tx)


def test_stepax_itself_shows_all():
    assert "weight_decay" in inspect.signature(stepax.adam).parameters
    assert "weight_decay" in inspect.getfullargspec(stepax.adam).kwonlyargs


def test_a_loader_that_fills_in_what_it_sees_adds_no_decay(switched):
    config = {"learning_rate": 0.1, "b1": 0.9, "weight_decay": 0.1}
    for name in ("sgd", "adam", "rmsprop", "adagrad", "adafactor", "adamw"):
        f = getattr(switched, name)
        seen = inspect.signature(f).parameters
        tx = f(**{k: x for k, x in config.items() if k in seen})
        assert ("weight_decay" in tx.call.given) == (name == "adamw")


def test_functions_stay_themselves(switched):
    adam = switched.adam
    assert adam is switched.adam is switched._src.alias.adam
    assert pickle.loads(pickle.dumps(adam)) is adam
    assert switched.transforms.clip_by_global_norm is switched.clip_by_global_norm
    assert adam(1e-3) == stepax.adam(1e-3)
    assert pickle.loads(pickle.dumps(adam(1e-3))) == stepax.adam(1e-3)
    assert switched.chain is stepax.chain  # it has nothing to hide


def test_all_functions_with_something_to_hide_can_be_pickled():
    for name in {name for names in ADDED.values() for name in names.split()}:
        f = getattr(stepax if name in dir(stepax) else stepax.contrib, name)
        assert pickle.loads(pickle.dumps(f.like_optax)) is f.like_optax
        assert pickle.loads(pickle.dumps(f)) is f


def test_injected_hyperparameters_show_and_take_the_same(switched):
    make = switched.inject_hyperparams(switched.adam)
    seen = inspect.signature(make).parameters
    assert list(seen) == list(inspect.signature(optax.adam).parameters)
    tx = make(1e-3, weight_decay=0.1)
    assert tx == stepax.inject_hyperparams(stepax.adam)(1e-3, weight_decay=0.1)
    state = tx.init({"w": jnp.ones(2)})
    assert set(state.hyperparams) == {
        "learning_rate", "b1", "b2", "eps", "eps_root", "weight_decay"
    }  # fmt: skip
    with pytest.raises(ValueError, match="`adam`: `b1` must be in"):
        make(1e-3, b1=2.0)


def test_a_wrapper_of_a_factory_is_not_taken_for_it(switched):
    called = []

    @ft.wraps(switched.adam)
    def mine(*args, **kwargs):
        called.append(args)
        return switched.adam(*args, **kwargs)

    switched.inject_hyperparams(mine)(0.1).init({"w": jnp.ones(2)})
    assert called

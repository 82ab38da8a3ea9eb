"""Configurations that describe no transformation raise errors that name the place."""

import functools as ft
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import stepax


def sgd(rate) -> dict[str, Any]:
    return {"_target_": "stepax.sgd", "learning_rate": rate}


BAD_CONFIGS = {
    "no mapping": ("adam", TypeError, "a configuration is a mapping with a `_target_`"),
    "no name": ({"name": "sgd"}, ValueError, "has no `_target_`.*; rename `name`"),
    "misspelt": ({"_target_": "stepax.adamv"}, ValueError, "did you mean `adamw?`"),
    "of Optax": ({"_target_": "optax.sgd"}, ValueError, "did you mean `sgd`"),
    "import": (
        {"_target_": "os.system", "_args_": ["true"]},
        ValueError,
        "`os.system`",
    ),
    "eval": (
        {"_target_": "builtins.eval", "_args_": ["1"]},
        ValueError,
        "is not a name",
    ),
    "function": (
        {"_target_": "stepax.tree.norm"},
        ValueError,
        "not a name in the registry",
    ),
    "class": (
        {"_target_": "stepax.rules.Rule"},
        ValueError,
        "is not a name in the registry",
    ),
    "private": ({"_target_": "stepax._names.missing"}, ValueError, "is not a name"),
    "pair": (
        {"_target_": "stepax.GradientTransformation"},
        ValueError,
        "is not a name",
    ),
    "callable name": ({"_target_": stepax.sgd}, TypeError, "cannot hold functions"),
    "callable": (
        sgd(abs),
        TypeError,
        r"^`from_config`: \['learning_rate'\] is a `builtin",
    ),
    "array": (sgd(jnp.ones([])), TypeError, "mappings, lists, strings, numbers"),
    "nested": (
        {"_target_": "chain", "_args_": [sgd(0.1), {"_target_": "sqd"}]},
        ValueError,
        "did you mean `sgd`",
    ),
    "argument": (
        {"_target_": "chain", "_args_": [{"_target_": "sgd", "lr": 0.1}]},
        TypeError,
        r"unexpected .* 'lr'; did you mean `learning_rate`\? \(at \['_args_'\]\[0\]\)",
    ),
    "missing argument": ({"_target_": "sgd"}, TypeError, "missing .*'learning_rate'"),
    "range": (sgd(math.inf), ValueError, r"must be .*finite.*\(at the root\)"),
    "word": (sgd("fast"), TypeError, "`sgd`: `learning_rate` must be .*'fast'"),
    "args": ({"_target_": "chain", "_args_": "sgd"}, TypeError, "must be a list"),
    "inner partial": (
        {"_target_": "chain", "_args_": [{"_target_": "sgd", "_partial_": True}]},
        TypeError,
        "only the outermost call",
    ),
    "injected name": (
        {"_target_": "inject_hyperparams", "inner_factory": "sgd"},
        TypeError,
        r"\['inner_factory'\] must be the call whose hyperparameters",
    ),
    "array of objects": (
        sgd({"_target_": "numpy.asarray", "_args_": [[1]], "dtype": "object"}),
        TypeError,
        "object",
    ),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_bad_configuration_is_an_error_that_names_it(name):
    config, kind, message = BAD_CONFIGS[name]
    with pytest.raises(kind, match=message):
        stepax.from_config(config)


def _closure(count):
    return 0.1


NO_DATA = {
    "mask": (
        lambda: stepax.chain(stepax.masked(stepax.sgd(0.1), lambda p: True)),
        r"^`to_config`: \['_args_'\]\[0\]\['mask'\] is the function .*; "
        "use patterns of paths, as",
    ),
    "schedule": (
        lambda: stepax.partition({"a": stepax.adam(_closure)}, "a"),
        r"^`to_config`: \['transforms'\]\['a'\]\['learning_rate'\] is the "
        "function `_closure`.*use a schedule",
    ),
    "key": (
        lambda: stepax.add_noise(0.1, 0.1, key=jax.random.key(0)),
        r"^`to_config`: \['key'\] is a random key; give an integer",
    ),
    "foreign": (
        lambda: stepax.chain(optax.scale_by_adam()),  # type: ignore
        "made by `scale_by_adam` of `optax`.*make it with the `scale_by_adam` of",
    ),
    "foreign itself": (
        lambda: optax.sgd(0.1),
        "^`to_config`: the root is a transformation made by",
    ),
    "injected function": (
        lambda: stepax.inject_hyperparams(lambda rate: stepax.sgd(rate))(0.1),
        r"^`to_config`: \['inner_factory'\] is the function "
        r".*`stepax.rules.rule\(\)` decorates",
    ),
    "object": (
        lambda: stepax.masked(stepax.sgd(0.1), {"**": frozenset()}),
        "is a `frozenset`, which is not data; use dictionaries",
    ),
    "not a transformation": (
        lambda: 3,
        "^`to_config`: the root is a `int`, which is not data",
    ),
}


@pytest.mark.parametrize("name", NO_DATA)
def test_what_is_no_data_is_named_with_what_to_use_instead(name):
    build, message = NO_DATA[name]
    with pytest.raises(TypeError, match=message):
        stepax.to_config(build())


def test_an_array_that_is_traced_is_no_data():
    def config(rate):
        stepax.to_config(stepax.sgd(rate))

    with pytest.raises(TypeError, match=r"\['learning_rate'\] is a tr"):
        jax.eval_shape(config, jnp.ones([]))


def test_a_dtype_equals_its_name():
    adam = ft.partial(stepax.adam, 0.1)
    same = [adam(mu_dtype=x) for x in (jnp.bfloat16, "bfloat16", jnp.dtype("bfloat16"))]
    assert len({*same}) == 1
    assert adam(mu_dtype=jnp.float32) != adam(mu_dtype=jnp.float16)


def nested(depth):
    found = sgd(0.1)
    for _ in range(depth):
        found = {"_target_": "stepax.chain", "_args_": [found]}
    return found


def in_a_cycle(make):
    x: Any = make()
    if isinstance(x, dict):
        x["_args_"] = [x]
    else:
        x += [x, x]  # of which there are 2^100 paths of 100 steps
    return x


ENDLESS = {
    "deep": (nested(400), "nested more than 100 deep"),
    "a call in itself": (
        in_a_cycle(lambda: {"_target_": "stepax.chain"}),
        r"^`from_config`: \['_args_'\]\[0\].*does it contain itself",
    ),
    "a list in itself": (
        sgd(in_a_cycle(list)),
        r"^`from_config`: \['learning_rate'\].*contain itself",
    ),
}
LARGE = {
    "an argument": (
        sgd(10**400),
        r"\['learning_rate'\] has an integer of 1329 bits; give",
    ),
    "a negative one": (sgd(-(10**400)), "1329 bits"),
    "as text": (sgd("1" + 400 * "0"), "1329 bits"),
    "a bound": ({"_target_": "stepax.clip", "max_delta": 10**400}, "1329 bits"),
    "a number": (
        sgd({"_target_": "numpy.int8", "_args_": [300]}),
        r"\['learning_rate'\]",
    ),
    "a schedule": (
        sgd({"_target_": "stepax.constant_schedule", "value": 10**400}),
        r"\['learning_rate'\]\['value'\]",
    ),
    "an array": (
        sgd({"_target_": "numpy.asarray", "_args_": [[10**400]]}),
        "1329 bits",
    ),
}


@pytest.mark.parametrize("name", ENDLESS | LARGE)
def test_what_has_no_end_and_numbers_of_no_float_are_refused(name):
    config, message = (ENDLESS | LARGE)[name]
    with pytest.raises(ValueError, match=message):
        stepax.from_config(config)


def test_what_is_nested_as_deep_as_allowed_is_made():
    assert stepax.to_config(stepax.from_config(nested(40))) == nested(40)
    with pytest.raises(TypeError, match="`sgd`: `learning_rate` must be a number"):
        stepax.from_config(sgd(5000 * "1"))

"""Transformations as data, and back."""

import functools as ft
import inspect
import json
import pickle
import re
import warnings
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from cases import ARGUMENTS, make, rows
from hypothesis import given, settings, strategies as st
from inside import ROWS, SCHEDULES

import stepax
from stepax import contrib
from stepax._config import _MODULES
from stepax.experimental.aggregating import Aggregator


def files(config):
    """A configuration as it comes out of files, written in the usual ways."""
    for sort in (False, True):
        yield json.loads(json.dumps(config, allow_nan=False, sort_keys=sort))
    yield yaml.safe_load(yaml.safe_dump(config))  # which sorts, too


def assert_round_trip(tx, **options):
    config = stepax.to_config(tx)
    for read in files(config):
        again = stepax.from_config(read, **options)
        assert again == tx
        assert type(again) is type(tx)
        assert stepax.to_config(again) == config
    return config


# In place of the masks and labels in `ARGUMENTS`, which are functions.
DATA = {
    "mask": {"kernel": True, "**": False},
    "freeze_mask": {"**": True},
    "param_labels": {"kernel": "a", "**": "b"},
    "step_size_fn": stepax.cosine_decay_schedule(0.1, 10),
    "layers": "layers/{}",
}


def as_data(row):
    known = inspect.signature(row.factory).parameters
    return {k: x for k, x in DATA.items() if k in known}


def takes_function(row):
    """The argument of a row that can only be a function, and not a public one."""
    known = inspect.signature(row.factory).parameters
    functions = ("f", "metrics", "should_transform_fn")
    return next((k for k in functions if k in known), None)


@pytest.mark.few(60)
@pytest.mark.parametrize("name", ROWS)
def test_every_factory_survives_a_file(name):
    row = ROWS[name]
    more = as_data(row) | ({"key": 0} if name == "dpsgd" else {})
    tx = make(row, **more)
    if argument := takes_function(row):
        with pytest.raises(
            TypeError, match=rf"^`to_config`: \['{argument}'\].* is not data"
        ):
            stepax.to_config(tx)
        return
    tx = tx.call.again()()  # of the row itself, on matrices or not
    config = assert_round_trip(tx)
    assert config["_target_"] in (f"stepax.{name}", f"stepax.contrib.{name}")
    assert config.keys() - {"_target_", "_args_"} == {
        k for k in tx.call.given if k != "args"
    }
    # Lists stay lists there; arguments that are tuples take both.
    brackets = str.maketrans("[]", "()")
    assert repr(instantiated(config)).translate(brackets) == f"{tx}".translate(brackets)


def public_functions():
    """All functions of the public modules by name, those of the registry left out."""
    for home in _MODULES:
        module = import_module(home)
        for name in dir(module):
            f = getattr(module, name)
            if (
                inspect.isroutine(f)
                and getattr(ROWS.get(name), "factory", None) is not f
            ):
                yield f"{home}.{name}", f


def returns_transformation(f):
    try:
        return "Transformation" in str(inspect.signature(f).return_annotation)
    except ValueError:  # one of Python's
        return False


# What a function may be given beside what factories are.
OTHERS: dict[str, Any] = {
    "pairs": {"**/q": "**/k"},
    "tx": stepax.sgd(0.1),
    "opt": stepax.sgd(0.1),
    "preprocessor": stepax.clip(1.0),
    "aggregator": stepax.scale(0.5),
    "postprocessor": stepax.sgd(0.1),
    "accumulation_steps": 2,
    "mesh": jax.make_mesh((1,), ("data",)),
    "inner_factory": stepax.sgd,
    "g": stepax.solve.prox.l1(0.1),
}


def test_every_public_function_that_makes_a_transformation_survives_a_file():
    """As those of the registry do; or it is refused by the name of its argument."""
    found = {k: f for k, f in public_functions() if returns_transformation(f)}
    assert len({*found.values()}) >= 8
    refused = set()
    for name, f in found.items():
        parameters = inspect.signature(f).parameters.values()
        given = {p.name: given_for(p) for p in parameters if p.default is p.empty}
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            made = f(**given)
            made = made(0.1) if inspect.isroutine(made) else made
        if isinstance(made, Aggregator):
            continue  # which is no transformation
        try:
            stepax.to_config(made)
        except TypeError as error:
            refused.add(name.rpartition(".")[2])
            assert re.match(r"`to_config`: \['(mesh|g)'\] is .* not data", f"{error}")
            continue
        assert_round_trip(made)
        assert made == pickle.loads(pickle.dumps(made))
    assert refused == {"zero", "proximal"}


OF_TREES = [
    k for k in stepax.tree.__all__ if inspect.isfunction(getattr(stepax.tree, k))
]


@pytest.mark.parametrize("name", OF_TREES)
def test_a_public_function_of_trees_is_data(name):
    tx = stepax.snapshot("x", getattr(stepax.tree, name))
    assert assert_round_trip(tx)["measure"]["_partial_"]


def test_functions_are_named_and_never_called():
    skipping: dict[str, Any] = {"should_skip_update_fn": stepax.skip_not_finite}
    assert_round_trip(stepax.MultiSteps(stepax.sgd(0.1), 2, **skipping))
    for target in ("os.system", "stepax.adamw", "stepax.checkpoint.remove"):
        named = {"_target_": target, "_partial_": True}
        config = {"_target_": "stepax.snapshot", "measure_name": "", "measure": named}
        with pytest.raises(TypeError, match="only the outermost call and public funct"):
            stepax.from_config(config)
    with pytest.raises(ValueError, match="is not a name in the registry"):
        stepax.from_config({"_target_": "stepax.tree.norm"})


def given_for(parameter):
    known = ARGUMENTS | DATA | OTHERS
    x: Any = known.get(parameter.name)
    is_made = inspect.isroutine(x) and parameter.name in ("inner", "transforms")
    return x() if is_made else x


def instantiated(x):
    """What Hydra makes of a configuration: it imports the name, and calls it."""
    if isinstance(x, list):
        return [instantiated(y) for y in x]
    if not isinstance(x, dict):
        return x
    if "_target_" not in x:
        return {k: instantiated(y) for k, y in x.items()}
    home, _, name = x["_target_"].rpartition(".")
    named = {k: instantiated(y) for k, y in x.items() if k[0] != "_"}
    f = getattr(import_module(home), name)
    if x.get("_partial_"):  # a `partial` of it there, which does the same
        return f
    return f(*map(instantiated, x.get("_args_", [])), **named)


def others(parameter):
    """Values of an argument other than its default."""
    x = parameter.default
    if type(x) is bool:
        return [not x]
    if type(x) in (int, float) and x > 0:
        return [x * 2, x / 2, np.float32(x / 2), jnp.float32(x / 2)]
    if "dtype" in parameter.name:
        return ["bfloat16", jnp.bfloat16, np.dtype("float16")]
    return []


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_every_argument_survives_a_file(row):
    tried = 0
    for k, parameter in inspect.signature(row.factory).parameters.items():
        for x in others(parameter):
            try:
                tx = make(row, **as_data(row), **{k: x}).call.again()()
            except (TypeError, ValueError):
                continue  # outside of its range, or for whole numbers alone
            assert_round_trip(tx)
            tried += 1
    assert tried >= len(set(inspect.signature(row.factory).parameters) & {"b1", "eps"})


SCHEDULE_ARGUMENTS = {
    "boundaries_and_scales": {30: 0.5, 4: 0.1},
    "interpolate_type": "cosine",
    "warmup_steps": 5,
    "width": 0.1,
    "total_steps": 30,
    "schedules": [stepax.constant_schedule(1.0), stepax.linear_schedule(1.0, 0.0, 9)],
    "boundaries": (5,),
    "cosine_kwargs": (
        {"init_value": 0, "peak_value": 1.0, "warmup_steps": 2, "decay_steps": 5},
    ),
}


def ordinary(name, parameter):
    """A value for an argument of a schedule, and not always a Python number."""
    known = SCHEDULE_ARGUMENTS | ARGUMENTS
    if name in known:
        return known[name]
    is_whole = "int" in str(parameter.annotation) or name.endswith("steps")
    return 10 if is_whole else np.float32(0.3) if "init" in name else 0.7


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [k for k in SCHEDULES if hasattr(stepax, k)])
def test_every_schedule_survives_a_file(name):
    factory = SCHEDULES[name]
    parameters = inspect.signature(factory).parameters.items()
    required = {k: p for k, p in parameters if p.default in (p.empty, None)}
    schedule: Any = factory(**{k: ordinary(k, p) for k, p in required.items()})
    assert_round_trip(schedule)
    config = assert_round_trip(stepax.sgd(schedule))
    assert config["learning_rate"]["_target_"] == f"stepax.{name}"
    again = stepax.from_config(config["learning_rate"])
    np.testing.assert_array_equal(again(3), schedule(3))


@stepax.rules.rule()
def halve(times: int = 1, size: stepax.ScalarOrSchedule = 1.0):
    return stepax.scale(0.5**times)


VALUES = {
    "weakly typed": lambda: stepax.sgd(jnp.asarray(0.1)),
    "bfloat16": lambda: stepax.sgd(jnp.bfloat16(0.1)),
    "array of NumPy": lambda: stepax.sgd(np.array(0.1, "float32")),  # type: ignore
    "infinity": lambda: stepax.clip_by_global_norm(float("inf")),
    "complex": lambda: stepax.scale(complex(1, float("-inf"))),
    "tuple": lambda: contrib.prodigy(betas=(0.5, 0.25)),
    "list as a tuple": lambda: contrib.prodigy(betas=[0.5, 0.25]),  # type: ignore
    "tuple of tuples": lambda: contrib.muon(0.1, ns_coeffs=((1.0, 2.0, 3.0),) * 2),
    "axes": lambda: stepax.clip_by_global_norm(1.0, axis_name=("x", "y")),
    "axes as a spec": lambda: stepax.clip_by_global_norm(
        1.0, axis_name=jax.P("x", ("y", "z"))
    ),
    "whole keys": lambda: contrib.shampoo(0.1, inverse_exponents={2: 0.5, 1: 0.1}),
    "named tuple": lambda: contrib.muon(
        0.1,
        muon_weight_dimension_numbers={
            "w": contrib.MuonDimensionNumbers((0, 1), 2), "**": None
        },
    ),
    "mask of lists": lambda: stepax.masked(stepax.sgd(0.1), [True, (False, True)]),
    "mask of arrays": lambda: stepax.masked(stepax.sgd(0.1), [np.True_, np.bool_(0)]),
    "mask in order": lambda: stepax.masked(
        stepax.sgd(0.1), {"b": {"z": True, "a": False}, "**": False}
    ),
    "labels": lambda: stepax.partition(
        {0: stepax.sgd(0.1), "inf": stepax.adam(0.1)}, {"w": "inf", "**": 0}
    ),
    "a key that is ours": lambda: stepax.masked(stepax.sgd(0.1), {"_target_": True}),
    "dtypes": lambda: stepax.with_state_dtypes(stepax.adam(0.1), {"mu": jnp.bfloat16}),
    "MultiSteps": lambda: stepax.MultiSteps(stepax.adam(0.1), 4),
    "a pair of MultiSteps": lambda: stepax.MultiSteps(
        stepax.adam(0.1), 4, accumulator_dtype=jnp.bfloat16
    ).gradient_transformation(),
    "injected": lambda: stepax.inject_hyperparams(
        stepax.adamw, "b1", hyperparam_dtype=jnp.float32
    )(0.1, weight_decay=stepax.linear_schedule(1.0, 0.0, 9), b2=0.9),
    "wrapped schedule": lambda: stepax.inject_hyperparams(stepax.sgd)(
        stepax.WrappedSchedule(stepax.constant_schedule(0.1))  # type: ignore
    ),
    "Optax's name": lambda: stepax.multi_transform({"a": stepax.sgd(0.1)}, "a"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_survive_a_file(name):
    assert_round_trip(VALUES[name]())


@stepax.rules.rule()
def calls(rate, /, *others, by_name=1.0, **more):
    return stepax.chain(*map(stepax.scale, (rate, *others, by_name, *more.values())))


@pytest.mark.parametrize("more", [{}, {"z": 2.0, "by_name": 3.0}], ids=["", "by name"])
@pytest.mark.parametrize("others", [(), (4.0, 5.0)], ids=["one", "several"])
def test_arguments_of_each_kind_survive_a_file(others, more):
    assert_round_trip(calls(0.1, *others, **more), factories=[calls])


def test_factories_of_a_user_are_known_by_module_and_name():
    tx = stepax.chain(halve(3, size=jnp.float32(2.0)), stepax.sgd(0.1))
    config = assert_round_trip(tx, factories=[halve])
    assert config["_args_"][0]["_target_"] == f"{__name__}.halve"
    with pytest.raises(ValueError, match="is not a name in the registry"):
        stepax.from_config(config)
    with pytest.raises(TypeError, match=r"decorate it with `stepax.rules.rule\(\)`"):
        stepax.from_config(config, factories=[lambda: halve()])


def test_a_partial_waits_for_its_other_arguments():
    config = stepax.to_config(ft.partial(stepax.adamw, b1=0.8))
    assert config == {"_target_": "stepax.adamw", "_partial_": True, "b1": 0.8}
    assert stepax.from_config(config)(0.1) == stepax.adamw(0.1, b1=0.8)


def test_a_plain_pair_is_known_by_its_functions():
    pair = stepax.GradientTransformation(*stepax.sgd(0.1))
    assert stepax.from_config(stepax.to_config(pair)) == pair


def test_the_configuration_is_short():
    tx = stepax.chain(stepax.clip_by_global_norm(1.0), stepax.adamw(1e-3, b1=0.8))
    assert stepax.to_config(tx) == {
        "_target_": "stepax.chain",
        "_args_": [
            {"_target_": "stepax.clip_by_global_norm", "max_norm": 1.0},
            {"_target_": "stepax.adamw", "learning_rate": 1e-3, "b1": 0.8},
        ],
    }


@pytest.mark.parametrize("name", ["adamw", "stepax.adamw"])
def test_numbers_that_yaml_reads_as_strings_are_numbers(name):
    text = f"{{_target_: {name}, learning_rate: 1e-3, eps: 1E-12, b1: .5}}"
    wanted = stepax.adamw(1e-3, eps=1e-12, b1=0.5)
    assert stepax.from_config(yaml.safe_load(text)) == wanted
    text = "{_target_: prodigy, betas: [5e-1, .9], d: 0}"
    with pytest.raises(TypeError, match="unexpected keyword argument 'd'"):
        stepax.from_config(yaml.safe_load(text))
    text = "{_target_: prodigy, betas: [5e-1, .9]}"
    assert stepax.from_config(yaml.safe_load(text)) == contrib.prodigy(betas=(0.5, 0.9))
    text = "{_target_: clip, max_delta: inf}"
    assert stepax.from_config(yaml.safe_load(text)) == stepax.clip(float("inf"))


rates = st.one_of(
    st.floats(0, 1e3),
    st.floats(0, 1, width=32).map(np.float32).map(jnp.asarray),
    st.builds(stepax.cosine_decay_schedule, st.floats(0, 1), st.integers(1, 99)),
    st.builds(
        lambda a, b, n: stepax.join_schedules(
            [stepax.constant_schedule(a), stepax.linear_schedule(b, 0.0, 9)], [n]
        ),
        st.floats(0, 1, width=32).map(np.float32),
        st.floats(0, 1),
        st.integers(1, 99),
    ),
)
fractions = st.floats(0, 1, exclude_max=True)
names = st.text("abcz*/_ .0", min_size=1, max_size=4)
masks = st.dictionaries(names, st.booleans(), min_size=1, max_size=3)
leaves = st.one_of(
    st.builds(stepax.adamw, rates, b1=fractions, nesterov=st.booleans(), mask=masks),
    st.builds(stepax.sgd, rates, st.none() | fractions),
    st.builds(stepax.adam, rates, mu_dtype=st.sampled_from([None, "bfloat16"])),
    st.builds(contrib.muon, rates, ns_steps=st.integers(1, 9)),
    st.builds(stepax.clip_by_global_norm, st.floats(0, float("inf"))),
    st.builds(halve, st.integers(0, 9)),
    st.builds(
        stepax.inject_hyperparams(stepax.rmsprop), rates, decay=fractions, eps=rates
    ),
)


def wrapped(inner):
    labels = st.dictionaries(names | st.integers(0, 9), inner, min_size=1, max_size=3)
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda xs: stepax.chain(*xs)),
        st.dictionaries(names, inner, min_size=1, max_size=3).map(
            lambda xs: stepax.named_chain(*xs.items())
        ),
        st.builds(stepax.masked, inner, masks),
        labels.map(lambda xs: stepax.partition(xs, {"**": next(iter(xs))})),
        st.builds(stepax.apply_if_finite, inner, st.integers(0, 9)),
        st.builds(stepax.averages, inner, fractions),
        st.builds(stepax.MultiSteps, inner, st.integers(1, 9)).map(
            lambda x: x.gradient_transformation()
        ),
    )


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.recursive(leaves, wrapped, max_leaves=6))
def test_random_nests_survive_a_file(tx):
    assert_round_trip(tx, factories=[halve])

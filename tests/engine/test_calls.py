"""Calls with arguments that do not exist say whose they are and what was meant."""

import importlib
import inspect
import pickle
import pkgutil
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from inside import ROWS
from loops import each

import stepax as typed
import stepax.contrib


stepax: Any = typed  # to a type checker these calls are wrong, as they are meant to be


def _public(module) -> dict:
    found = {k: getattr(module, k) for k in dir(module) if not k.startswith("_")}
    return {k: f for k, f in found.items() if inspect.isfunction(f)}


MODULES = [stepax] + [
    importlib.import_module(f"stepax.{module.name}")
    for module in pkgutil.iter_modules(stepax.__path__)
    # Looking at the modules in `interop` imports them, and Keras takes seconds.
    if not module.name.startswith("_") and module.name != "interop"
]
FOUND = [row.factory for row in ROWS.values()] + [stepax.MultiSteps]
FOUND += [f for module in MODULES for f in _public(module).values()]
CALLED = {
    f"{f.__module__}.{f.__qualname__}": f
    for f in FOUND
    if f.__module__.startswith("stepax")
}


def parameters_of(f) -> list[inspect.Parameter]:
    return list(inspect.signature(f).parameters.values())


def takes_any(f) -> bool:
    """Whether it takes arguments of any name, so that none is wrong."""
    return any(p.kind is p.VAR_KEYWORD for p in parameters_of(f))


STRICT = [name for name, f in CALLED.items() if not takes_any(f)]


def named(f) -> list[inspect.Parameter]:
    """The parameters that can be given by name."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [p for p in parameters_of(f) if p.kind in kinds]


def own(f) -> str:
    """How what is said of a call begins."""
    return f"{f.__qualname__}.__init__(" if inspect.isclass(f) else f"{f.__name__}("


def complaint(f, /, *args, **kwargs) -> str:
    """What a wrong call says; nothing of how it was found out may show."""
    with pytest.raises(TypeError) as caught:
        f(*args, **kwargs)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert len(frames) <= 4  # this one, the two that check, and ours
    assert not [x for x in frames if x.filename.endswith("inspect.py")]
    assert caught.value.__cause__ is None and (
        caught.value.__suppress_context__ or caught.value.__context__ is None
    )
    return str(caught.value)


@each(STRICT)
def test_a_misspelt_argument_is_named_with_the_nearest_one(name):
    f = CALLED[name]
    said = complaint(f, zzz=1)  # nothing is near to it
    assert said.startswith(own(f)) and "unexpected keyword argument 'zzz'" in said
    listed = [p.name for p in named(f)]
    assert all(f"`{k}`" in said for k in listed) and (listed or "none by name" in said)
    for k in listed:
        if len(k) < 4:
            continue  # nothing is near to `b1` but `b2`
        wrong = k[:-2] + k[-1] + k[-2] + "_"
        said = complaint(f, **{wrong: 1})
        assert said.startswith(own(f))
        assert f"unexpected keyword argument '{wrong}'; did you mean `" in said


@pytest.mark.parametrize(
    "through",
    [
        stepax.inject_hyperparams(stepax.sgd),
        lambda **kwargs: stepax.sweep(
            jnp.sum, jnp.ones, stepax.sgd, {k: [x] for k, x in kwargs.items()}, 1
        ),
        lambda **kwargs: stepax.from_config({"_target_": "sgd", **kwargs}),
    ],
)
def test_what_calls_one_of_ours_hints_once(through):
    with pytest.raises(TypeError) as caught:
        through(learning_rat=0.1)
    assert str(caught.value).count("did you mean `learning_rate`") == 1


def takes_some(f) -> bool:
    """Whether a call by position may be wrong."""
    kinds = {p.kind for p in parameters_of(f)}
    is_open = inspect.Parameter.VAR_POSITIONAL in kinds
    return bool(kinds) and not is_open


@each([k for k, f in CALLED.items() if takes_some(f)])
def test_missing_surplus_and_duplicate_arguments_are_named(name):
    f = CALLED[name]
    first = [p for p in parameters_of(f) if p.kind <= p.POSITIONAL_OR_KEYWORD]
    taken = inspect.signature(inspect.unwrap(f)).parameters  # some look required
    needed = [p.name for p in first if taken[p.name].default is p.empty]
    if needed:
        said = complaint(f)
        assert said.startswith(own(f)) and "required positional argument" in said
        assert all(f"'{k}'" in said for k in needed)
    said = complaint(f, *[None] * (len(first) + 1))
    assert said.startswith(own(f)) and "positional argument" in said
    assert "given" in said
    if first and first[0].kind is not first[0].POSITIONAL_ONLY:
        said = complaint(f, None, **{first[0].name: None})
        assert said.startswith(own(f))
        assert f"multiple values for argument '{first[0].name}'" in said


@each(CALLED)
def test_what_explains_itself_pickles_and_is_found_by_its_name(name):
    f = CALLED[name]
    assert pickle.loads(pickle.dumps(f)) is f
    assert f.__doc__ and f.__doc__ == inspect.unwrap(f).__doc__


@pytest.mark.parametrize(
    "add", [stepax.tree.add, inspect.unwrap(stepax.tree.add)], ids=["ours", "plain"]
)
def test_what_explains_itself_adds_nothing_to_a_program(add):
    x = {"a": jnp.ones(2), "b": jnp.ones(3)}
    assert len(jax.make_jaxpr(add)(x, x).eqns) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stepax.adamw(1e-3, beta1=0.9), "beta1'; did you mean `b1`"),
        (lambda: stepax.adamw(lr=1e-3), "lr'; did you mean `learning_rate`"),
        (lambda: stepax.adam(1e-3, epsilon=1e-8), "did you mean `eps`"),
        (lambda: stepax.sgd(0.1, wd=0.1), "did you mean `weight_decay`"),
        (lambda: stepax.rmsprop(0.1, alpha=0.9), "did you mean `decay`"),
        (lambda: stepax.scale_by_rms(alpha=0.9), "did you mean `decay`"),
        (
            lambda: stepax.inject_hyperparams(stepax.adamw)(1e-3, beta1=0.9),
            r"^adamw\(\) got .*'beta1'; did you mean `b1`",
        ),
        (lambda: stepax.huber_loss(jnp.ones(2), dleta=1), "did you mean `delta`"),
        (
            lambda: stepax.cosine_decay_schedule(lr=1.0, decay_steps=9),
            r"^cosine_decay_schedule\(\) .*'lr'; did you mean `init_value`",
        ),
        (lambda: stepax.tree.norm(0.0, order=1), r"^norm\(\) .* did you mean `ord`"),
        (lambda: stepax.minimize(abs, 0.0, boudns=1), r"^minimize\(\) .*mean `bounds`"),
        (lambda: stepax.scale(1.0, 2.0), "takes 1 positional argument but 2 were"),
    ],
)
def test_what_other_libraries_call_an_argument_is_known(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_a_type_error_from_inside_is_not_rewritten():
    with pytest.raises(TypeError, match="`predictions` is None"):
        stepax.huber_loss(None)


X = jnp.ones(3)
WARNED = {
    "seed": lambda: stepax.add_noise(0.1, 0.1, seed=0),
    "key": lambda: stepax.add_noise(0.1, 0.1),
    "optimistic_adam": lambda: stepax.optimistic_adam(0.1),
    "global_norm": lambda: stepax.global_norm(X),
    "divergence": lambda: stepax.losses.convex_kl_divergence(X, X),
    "hvp": lambda: stepax.second_order.hvp(square, X, X, X, X),
    "hessian_diag": lambda: stepax.second_order.hessian_diag(square, X, X, X),
    "fisher_diag": lambda: stepax.second_order.fisher_diag(square, X, X, X),
    "old name": lambda: stepax.tree_utils.tree_scalar_mul(2.0, X),
}


def square(params, inputs, targets):
    return jnp.sum(params**2)


@pytest.mark.parametrize("name", WARNED)
def test_a_warning_names_the_line_that_calls(name):
    with pytest.warns() as told:
        WARNED[name]()
    assert [x.filename for x in told] == [__file__]


HOMES = [(stepax, optax), (stepax.contrib, optax.contrib)]
BOTH = [
    pytest.param(getattr(a, k), getattr(b, k), id=k)
    for a, b in HOMES
    for k in ROWS
    if k in vars(a) and inspect.isfunction(getattr(b, k, None))
]


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_tools_that_do_not_unwrap_see_the_arguments_of_optax(ours, theirs):
    found, wanted = inspect.getfullargspec(ours), inspect.getfullargspec(theirs)
    assert found.args[: len(wanted.args)] == wanted.args
    assert found.varargs == wanted.varargs and found.varkw == wanted.varkw
    assert set(wanted.kwonlyargs) <= set(found.kwonlyargs)


@each(CALLED)
def test_tools_that_do_not_unwrap_see_what_those_that_do_see(name):
    f = CALLED[name]
    by_position = [
        p.name for p in parameters_of(f) if p.kind <= p.POSITIONAL_OR_KEYWORD
    ]
    found = inspect.getfullargspec(f).args
    assert found[found[:1] == ["self"] :] == by_position

"""Calls with arguments that do not exist say whose they are and what was meant."""

import inspect
import traceback
from typing import Any

import jax.numpy as jnp
import optax
import optax.contrib
import pytest

import stepax as typed
import stepax.contrib
import stepax.losses
import stepax.microbatching
import stepax.perturbations
import stepax.projections
import stepax.second_order
from stepax._engine.registry import ROWS


stepax: Any = typed  # to a type checker these calls are wrong, as they are meant to be


def _public(module) -> dict:
    found = vars(module).items()
    return {k: f for k, f in found if inspect.isfunction(f) and not k.startswith("_")}


MADE = {
    "inject_hyperparams": stepax.inject_hyperparams,
    "MultiSteps": stepax.MultiSteps,
    "microbatch": stepax.microbatching.microbatch,
    "micro_vmap": stepax.microbatching.micro_vmap,
    "micro_grad": stepax.microbatching.micro_grad,
    "make_perturbed_fun": stepax.perturbations.make_perturbed_fun,
}
FACTORIES = {k: row.factory for k, row in ROWS.items()} | MADE
CALLED = FACTORIES | _public(stepax.losses)


def named(f) -> list[inspect.Parameter]:
    """The parameters that can be given by name."""
    found = inspect.signature(f).parameters.values()
    return [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


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


@pytest.mark.parametrize("name", CALLED)
def test_a_misspelt_argument_is_named_with_the_nearest_one(name):
    f = CALLED[name]
    for p in named(f):
        if len(p.name) < 4:
            continue  # nothing is near to `b1` but `b2`
        wrong = p.name[:-2] + p.name[-1] + p.name[-2] + "_"
        said = complaint(f, **{wrong: 1})
        assert said.partition("(")[0].removesuffix(".__init__") == name
        assert f"unexpected keyword argument '{wrong}'; did you mean `" in said


@pytest.mark.parametrize("name", CALLED)
def test_an_argument_of_nothing_near_lists_those_there_are(name):
    said = complaint(CALLED[name], zzz=1)
    assert f"{name}" in said and "unexpected keyword argument 'zzz'" in said
    listed = [p.name for p in named(CALLED[name])]
    assert all(f"`{k}`" in said for k in listed) and (listed or "none by name" in said)


@pytest.mark.parametrize("name", [k for k, f in CALLED.items() if named(f)])
def test_missing_surplus_and_duplicate_arguments_are_named(name):
    f = CALLED[name]
    parameters = list(inspect.signature(f).parameters.values())
    first = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    taken = inspect.signature(inspect.unwrap(f)).parameters  # some look required
    needed = [k for k, p in taken.items() if p.default is p.empty]
    needed = [p.name for p in first if p.name in needed]
    if needed:
        said = complaint(f)
        assert name in said and "required positional argument" in said
        assert all(f"'{k}'" in said for k in needed)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return  # it takes any number of them
    said = complaint(f, *[None] * (len(first) + 1))
    assert name in said and "positional argument" in said and "given" in said
    said = complaint(f, None, **{first[0].name: None})
    assert name in said and f"multiple values for argument '{first[0].name}'" in said


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stepax.adamw(1e-3, beta1=0.9), "beta1'; did you mean `b1`"),
        (lambda: stepax.adamw(lr=1e-3), "lr'; did you mean `learning_rate`"),
        (lambda: stepax.adam(1e-3, epsilon=1e-8), "did you mean `eps`"),
        (lambda: stepax.sgd(0.1, wd=0.1), "did you mean `weight_decay`"),
        (lambda: stepax.rmsprop(0.1, alpha=0.9), "did you mean `learning_rate`"),
        (lambda: stepax.scale_by_rms(alpha=0.9), "did you mean `decay`"),
        (
            lambda: stepax.inject_hyperparams(stepax.adamw)(1e-3, beta1=0.9),
            r"^adamw\(\) got .*'beta1'; did you mean `b1`",
        ),
        (lambda: stepax.huber_loss(jnp.ones(2), dleta=1), "did you mean `delta`"),
        (lambda: stepax.scale(1.0, 2.0), "takes 1 positional argument but 2 were"),
    ],
)
def test_what_other_libraries_call_an_argument_is_known(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_a_type_error_from_inside_is_not_rewritten():
    with pytest.raises(TypeError, match="`predictions` is None"):
        stepax.huber_loss(None)


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


def _functions() -> list:
    modules = (stepax, stepax.contrib, stepax.losses, stepax.schedules, stepax.tree)
    modules += (stepax.projections, stepax.second_order, stepax.tree_utils)
    found = {k: f for m in modules for k, f in _public(m).items()}
    return [pytest.param(f, id=k) for k, f in found.items()]


@pytest.mark.parametrize("f", _functions())
def test_tools_that_do_not_unwrap_see_what_those_that_do_see(f):
    parameters = inspect.signature(f).parameters.values()
    by_position = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
    assert inspect.getfullargspec(f).args == by_position

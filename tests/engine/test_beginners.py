"""First programs of users of PyTorch and SciPy: errors say what to write instead."""

import functools as ft
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from inside import SCHEDULES, checks_of
from keywords import keywords
from loops import each

import stepax as typed


stepax: Any = typed  # to a type checker these calls are wrong, as they are meant to be


OPTIMIZERS = rows(kind="optimizer")


def refused(f, *args, **kwargs) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        f(*args, **kwargs)
    return str(caught.value)


@each(OPTIMIZERS)
def test_keywords_of_pytorch_are_answered(row):
    f = getattr(row.factory, "refusing", row.factory)
    known = inspect.signature(f).parameters
    if "betas" not in known:
        said = refused(f, betas=(0.9, 0.99))
        pair = "did you mean `b1` and `b2`?"
        assert said.endswith(pair) if {"b1", "b2"} <= {*known} else pair not in said
    assert refused(f, amsgrad=True).endswith("; use `stepax.amsgrad`")
    for name in ("capturable", "differentiable", "foreach", "fused"):
        assert refused(f, **{name: True}).endswith("`jax.jit` compiles the step")
    assert "stepax.scale(-1.0)" in refused(f, maximize=True)
    if "learning_rate" in known:
        assert refused(f, lr=0.1).endswith("; did you mean `learning_rate`?")


PARAMETERS = {
    "a dict": lambda: {"w": jnp.ones((4, 3)), "b": jnp.ones(3)},
    "nested": lambda: {"layer": {"w": jnp.ones((4, 3))}},
    "a list": lambda: [jnp.ones(3), jnp.ones((4, 3))],
    "a matrix": lambda: jnp.ones((4, 3)),
    "of NumPy": lambda: [np.ones(3)],
    "an iterator, as of PyTorch": lambda: iter([jnp.ones(3)]),
    "a generator": lambda: (x for x in [jnp.ones(3)]),
}


@each(
    [
        pytest.param(row.values[0], make, id=f"{row.id}, {name}")
        for name, make in PARAMETERS.items()
        for row in OPTIMIZERS
    ]
)
def test_parameters_that_are_passed_to_the_factory_belong_to_init(row, make):
    f = getattr(row.factory, "refusing", row.factory)
    first = next(iter(inspect.signature(f).parameters))
    calls = [lambda: f(make(), 1e-3), lambda: f(make(), lr=1e-3)]
    calls += [lambda: f(make(), learning_rate=1e-3)]
    for call in calls if first.endswith("learning_rate") else ():
        said = refused(call)
        assert said.endswith(
            "; parameters are the argument of `init`, as in `state = tx.init(params)`"
        ), said


@each([(0.1, 1), (jnp.asarray([0.1]), 1), ("0.1", 1), ({"a": "x"}, 1)])
def test_what_is_no_tree_of_parameters_brings_no_such_hint(x, _):
    try:
        stepax.adamw(x, bata=0.9)
    except TypeError as error:
        assert "init" not in str(error)


FACTORIES = {k: f for k, f in SCHEDULES.items() if hasattr(stepax.schedules, k)}


def taking_schedules():
    for row in rows():
        f = row.values[0].factory
        checks = checks_of(getattr(f, "refusing", f))
        for name, takes in checks.takes.items() if checks else ():
            if takes.schedule:
                yield pytest.param(row.values[0], name, id=f"{row.id} {name}")


@each(list(taking_schedules()))
def test_a_schedule_factory_that_was_not_called_is_named(row, name):
    for factory in FACTORIES.values():
        said = refused(make, row, **{name: factory})
        assert (
            f"`{name}` must be a function of the step, but is `{factory.__name__}`"
            in (said)
        )
        assert said.endswith("): call it")


@each(list(FACTORIES))
def test_an_uncalled_factory_is_no_schedule_anywhere(name):
    """Nor in `join_schedules`, nor injected; a schedule of it is one."""
    factory = FACTORIES[name]
    for call in (
        lambda: stepax.join_schedules([stepax.constant_schedule(0.1), factory], [3]),
        lambda: stepax.inject_hyperparams(stepax.sgd)(factory),
        lambda: stepax.sgd({"w": factory, "**": 0.1}),
        lambda: stepax.sgd(0.1, weight_decay=stepax.weight_decay(factory)),
    ):
        assert "must be a function of the step, but is" in refused(call)


@each(
    [
        lambda count: 0.1,
        lambda *args: 0.1,
        ft.partial(pow, 0.5),
        math.sqrt,
        stepax.constant_schedule(0.1),
        jax.jit(lambda count: 0.1 * count),
    ]
)
def test_functions_of_one_argument_are_schedules(schedule):
    stepax.sgd(schedule)


@pytest.mark.thinned
@pytest.mark.parametrize(
    "kind", ["GradientTransformation", "GradientTransformationExtraArgs"]
)
@pytest.mark.parametrize("row", rows(kind="wrapper"))
def test_an_update_that_returns_one_tree_is_told(row, kind):
    own = getattr(stepax, kind)(lambda params: (), lambda g, s, p=None, **extra: g)
    known = inspect.signature(row.factory).parameters
    name = next((k for k in ("inner", "optimizer", "opt") if k in known), None)
    if name is None:
        pytest.skip("it takes several")
    p = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    try:
        tx = stepax.with_extra_args_support(make(row, **{name: own}))
        state = tx.init(p)
    except (TypeError, ValueError) as error:
        assert f"`{row.name}`" in str(error)
        pytest.skip("it refuses what has no slots, or is foreign")
    with pytest.raises(TypeError, match="returned a `.*`, expected a pair"):
        for _ in range(4):
            _, state = tx.update(p, state, p, **keywords(p))


def total(x):
    return jnp.sum(x**2)


def squares(x):
    return x**2 - 2


@pytest.mark.parametrize("start", [[1.0, 2.0], (1.0, 2.0), [1.0, (2.0, 3.0)]])
@pytest.mark.parametrize(
    "solve",
    [
        *(
            lambda x0, method=method: stepax.minimize(total, x0, method=method)
            for method in (stepax.adam(0.1), stepax.lbfgsb())
        ),
        lambda x0: stepax.minimize(total, x0),
        lambda x0: stepax.minimize(total, x0, bounds=(0.0, 9.0)),
        lambda x0: stepax.solve.root(squares, x0),
        lambda x0: stepax.solve.fixed_point(squares, x0),
        lambda x0: stepax.solve.least_squares(squares, x0),
    ],
)
def test_a_list_as_the_start_of_a_solver_is_told(solve, start):
    with pytest.raises(TypeError, match=r"`x0` as it was given.* `jnp.asarray\(x0\)`"):
        solve(start)


def test_a_list_that_the_function_takes_as_such_is_a_tree():
    found = stepax.minimize(lambda x: x[0] ** 2 + x[1] ** 2, [1.0, 2.0])
    assert isinstance(found.params, list) and found.success


def test_an_error_of_the_function_itself_is_not_rewritten():
    with pytest.raises(TypeError, match="unsupported operand"):
        stepax.minimize(lambda x: x["a"] + "b", {"a": 1.0})

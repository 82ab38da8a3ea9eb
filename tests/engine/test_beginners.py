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


# What the message for a keyword of PyTorch, Keras or their kin ends with.
KEYWORDS = {
    "amsgrad": "; use `stepax.amsgrad`",
    **dict.fromkeys(
        ("capturable", "differentiable", "foreach", "fused", "jit_compile"),
        "`jax.jit` compiles the step",
    ),
    "maximize": "as in `stepax.chain(stepax.scale(-1.0), tx)`",
    **dict.fromkeys(
        ("clipnorm", "global_clipnorm", "max_grad_norm"),
        "as in `stepax.chain(stepax.clip_by_global_norm(1.0), tx)`",
    ),
    "clipvalue": "as in `stepax.chain(stepax.clip(1.0), tx)`",
    **dict.fromkeys(
        ("decay", "lr_decay"),
        "such as `stepax.exponential_decay`, and `weight_decay` the parameters",
    ),
    "decoupled_weight_decay": '`weight_decay=stepax.weight_decay(0.1, "decoupled")`',
    **dict.fromkeys(
        ("use_ema", "ema_momentum", "ema_overwrite_frequency"),
        "as in `stepax.averages(tx, 0.99)`",
    ),
    "gradient_accumulation_steps": "as in `stepax.MultiSteps(tx, 4)`",
    "loss_scale_factor": "as in `stepax.dynamic_loss_scale(tx)`",
    "name": "`stepax.named_chain` names its members",
    **dict.fromkeys(("params", "parameters"), "as in `state = tx.init(params)`"),
}
# The argument that a keyword means, if the optimizer has it; otherwise none is named.
MEANT = {
    "lr": ("learning_rate",),
    "alpha": ("decay", "learning_rate"),
    "beta_1": ("b1", "adam_b1", "betas", "beta"),
    "beta2": ("b2", "adam_b2", "betas"),
    "betas": ("b1 b2", "b1", "beta"),
    "epsilon": ("eps",),
    "etas": ("eta_minus eta_plus",),
    "exclude_from_weight_decay": ("mask", "weight_decay_mask"),
    "rho": ("decay", "b2"),
    "wd": ("weight_decay",),
}
MEANT |= dict.fromkeys(("eps", "nesterov", "dampening"), ())
MEANT |= dict.fromkeys(("lambd", "t0", "max_iter", "tolerance_grad", "ns_steps"), ())
MEANT["momentum"] = ("b1", "decay", "beta")


@each(OPTIMIZERS)
def test_keywords_of_pytorch_and_keras_are_answered(row):
    f = getattr(row.factory, "refusing", row.factory)
    known = inspect.signature(f).parameters
    for name in KEYWORDS.keys() - known.keys():
        said = refused(f, **{name: True})
        assert said.endswith(KEYWORDS[name]), said
    for name in MEANT.keys() - known.keys():
        said = refused(f, **{name: 0.1})
        meant = [x for x in MEANT[name] if {*x.split()} <= {*known}]
        words = " and ".join(f"`{x}`" for x in meant[0].split()) if meant else ""
        assert said.endswith(f"; did you mean {words}?" if meant else "`"), said


# For schedules: of PyTorch, then of Keras, then of Hugging Face.
OF_SCHEDULES = {
    "T_max": ("decay_steps",),
    "max_lr": ("peak_value",),
    "milestones": ("boundaries", "boundaries_and_scales"),
    "step_size": ("transition_steps",),
    "total_iters": ("transition_steps",),
    "end_learning_rate": ("end_value",),
    "initial_learning_rate": ("init_value",),
    "boundaries": ("boundaries_and_scales",),
    "num_training_steps": ("decay_steps", "transition_steps"),
    "num_warmup_steps": ("warmup_steps",),
    "lr": ("init_value", "value"),
}


@each([k for k in SCHEDULES if hasattr(stepax.schedules, k)])
def test_keywords_of_other_schedules_are_answered(name):
    f = SCHEDULES[name]
    known = inspect.signature(f).parameters
    for key in OF_SCHEDULES.keys() - known.keys():
        said = refused(f, **{key: 1})
        meant = [x for x in OF_SCHEDULES[key] if x in known]
        assert said.endswith(f"; did you mean `{meant[0]}`?" if meant else "`"), said
    said = refused(f, name="warm")
    assert {"init_value", "peak_value"}.isdisjoint(known) or "named_chain" not in said


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

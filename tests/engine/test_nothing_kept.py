"""Nothing that the library keeps holds on to what the functions given to it hold."""

import functools as ft
import gc
import inspect
import typing
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ARGUMENTS, MADE, make
from inside import ROWS, members, of_parameters
from keywords import keywords
from solver_calls import SOLVERS, X, square
from test_calls import CALLED

import stepax as typed
import stepax.microbatching
import stepax.perturbations
import stepax.second_order
from stepax._engine.factories.arguments import _is_of_number


stepax: Any = typed  # functions of any arguments are given here
P = {"w": np.linspace(-1, 2, 6, dtype=np.float32).reshape(3, 2)}


def a_step(tx):
    tx = stepax.with_extra_args_support(tx)
    return tx.update(P, tx.init(P), P, **keywords(P), obj_fn=square)


class Holder:
    """A callable object that holds something, and has a method that does."""

    def __init__(self, big, f):
        self.big, self.f = big, f

    def __call__(self, *args, **kwargs):
        return self.f(*args, **kwargs)

    def method(self, *args, **kwargs):
        return self.f(*args, **kwargs)


def in_globals(big, f):
    names = {"big": big, "f": f}
    exec("def g(*args, **kwargs):\n    big\n    return f(*args, **kwargs)", names)
    return names["g"]


def in_closure(big, f):
    return lambda *args, **kwargs: (big, f(*args, **kwargs))[1]


def in_default(big, f):
    return lambda *args, _big=big, **kwargs: f(*args, **kwargs)


HOLDERS = {
    "closure": in_closure,
    "default": in_default,
    "globals": in_globals,
    "method": lambda big, f: Holder(big, f).method,
    "object": Holder,
    "partial": lambda big, f: ft.partial(lambda _, *a, **k: f(*a, **k), big),
}


def rate(count):
    return 0.01


def whole(params):
    return jax.tree.map(lambda p: True, params)


def counted(*counts):
    return 0.5


def many_dimensions(params):
    numbers = stepax.contrib.MuonDimensionNumbers()
    return jax.tree.map(lambda p: numbers, params)


# Where the annotation does not say what a function returns.
FUNCTIONS: dict[str, Any] = {
    "sampler": jax.random.normal,
    "measure": stepax.tree.norm,
    "muon_weight_dimension_numbers": many_dimensions,
    "weight_dimension_numbers": lambda params: None,
}


def held_pair(hold):
    def give(tx):
        tx = stepax.with_extra_args_support(tx)
        return stepax.GradientTransformationExtraArgs(hold(tx.init), hold(tx.update))

    return give


def is_transformation(hint) -> bool:
    return isinstance(hint, type) and {"init", "update"} <= {*dir(hint)}


def is_function(hint) -> bool:
    is_protocol = inspect.isclass(hint) and getattr(hint, "_is_protocol", False)
    is_called = is_protocol and "__call__" in vars(hint)
    return typing.get_origin(hint) is Callable or is_called


def given(row, p, hint) -> Callable | None:
    """From `hold` to what is given for a parameter, if it may be a function."""
    usual = ARGUMENTS.get(p.name)
    usual = usual() if p.name in MADE and usual else usual  # type: ignore[operator]
    inside = [x for h in hint for x in typing.get_args(h)]
    if p.kind is p.VAR_POSITIONAL:
        return None  # of `chain` and `named_chain`, which are among the others
    if any(map(is_transformation, hint)):
        tx = usual or stepax.scale(1.0)
        return lambda hold: held_pair(hold)(tx)
    is_mapping = any(typing.get_origin(h) in (dict, Mapping) for h in hint)
    if is_mapping and float not in hint:  # one of numbers holds nothing
        if not any(is_function(x) or is_transformation(x) for x in flat(inside)):
            return None
        assert isinstance(usual, dict)

        def wrap(hold, x):
            if isinstance(x, tuple):
                return held_pair(hold)(x)
            return hold(x if callable(x) else counted)

        return lambda hold: {k: wrap(hold, x) for k, x in usual.items()}
    functions = [h for h in hint if is_function(h)]
    if row.name == "stateless_with_tree_map":
        usual = lambda g, p: g
    if not functions and not inspect.isfunction(usual):
        return None
    f = FUNCTIONS.get(p.name, usual if callable(usual) else None)
    if row.matrices_only and p.name == "weight_dimension_numbers":
        f = many_dimensions  # every array has to be a matrix
    if f is None or (functions and all(map(_of_numbers, functions))):
        f = counted if any(map(_of_numbers, functions)) else whole
    return lambda hold: hold(f)


def flat(parts) -> list:
    return [x for part in parts for x in members(part)]


def _of_numbers(function) -> bool:
    """Whether all arguments of a type of functions are numbers."""
    arguments = next(iter(typing.get_args(function)), None)
    if not isinstance(arguments, list) or not arguments:
        return False
    return all(_is_of_number(Callable[[x], Any]) for x in arguments)


def of_rows() -> list:
    """Rows, with a parameter that takes a function, and how to give it."""
    found = []
    for row in ROWS.values():
        parameters = inspect.signature(row.factory).parameters
        for name, hint in of_parameters(row.factory).items():
            if (give := given(row, parameters[name], hint)) is not None:
                found.append((row, name, give))
    return found


CASES = of_rows()


def test_all_functions_are_found():
    names = {name for _, name, _ in CASES}
    spelt = {
        name
        for row in ROWS.values()
        for name, p in inspect.signature(row.factory).parameters.items()
        if "Callable" in str(p.annotation) or "Transformation" in str(p.annotation)
    }
    assert spelt - {"args"} <= names and {"param_labels"} <= names
    assert {"measures", "metrics", "transforms", "should_transform_fn"} <= names


def kept_after(uses) -> list[str]:
    """The names of uses, of pairs of a name and a function of `hold`, that keep it."""
    kept, holders = [], list(HOLDERS.items())
    for i, (title, use, few) in enumerate(uses):
        for kind, hold in holders if not few else [holders[i % len(holders)]]:
            big = jnp.full(3, i)
            kept.append((f"{title}, {kind}", weakref.ref(big)))
            use(ft.partial(hold, big))
            del big
    gc.collect()
    assert len(kept) >= len(uses) > 0
    return [title for title, ref in kept if ref() is not None]


@pytest.mark.slow
def test_what_is_kept_is_seen():
    kept = []
    use = lambda hold: kept.append(hold(counted))
    assert len(kept_after([("a list", use, False)])) == len(HOLDERS)


@pytest.mark.slow
def test_no_factory_keeps_what_a_function_holds():
    """Over all arguments that may be functions, and all that a function can hold."""
    uses, used = [], set()
    for row, name, give in CASES:
        parameters = inspect.signature(row.factory).parameters
        both = name == "weight_decay_mask" and "mask" in parameters
        more = ({"mask": None} if both else {}) | (
            {"key": 0} if "key" in parameters else {}
        )

        def use(hold, row=row, name=name, give=give, more=more):
            try:
                tx = make(row, **{name: give(hold)}, **more)
            except TypeError as error:  # one of others has to see whole arrays
                assert "cannot be applied to the arrays of a stack" in f"{error}"
                return
            a_step(tx) if row.kind != "aggregate" else aggregated(tx)

        uses.append((f"{row.name}({name}=...)", use, name in used))
        used.add(name)
    assert kept_after(uses) == []


def aggregated(tx):
    each = jax.tree.map(lambda p: p[None], P)
    tx.update(each, tx.init(P), P)


def product(x, y):
    return jnp.sum(x * jnp.sum(y))


def accumulated(**more):
    tx = stepax.MultiSteps(stepax.sgd(0.1), more.pop("every", 1), **more)
    tx.update(P, tx.init(P), P)


FROM_STATE = stepax.chain(stepax.lbfgs())


# Each public function with a function for an argument: how it is called.
def doubled():
    return stepax.GradientTransformation(
        lambda params: (),
        lambda updates, state, params=None: (jax.tree.map(twice, updates), state),
    )


def twice(x):
    return 2 * x


def swept(**given):
    functions = {
        "loss": lambda p, key: square(p),
        "init": lambda key: X,
        "make_tx": stepax.scale,
    }
    stepax.sweep(**(functions | given), grid={"step_size": [0.1]}, steps=1)


def fused(layer):
    scan = stepax.fused_scan(layer, stepax.sgd(0.1))
    y, inputs = scan.forward(P, jnp.zeros(2))
    scan.backward(y, inputs, P, scan.init(P))


def outputs(x):
    return {"x": x}


OTHERS: dict[str, Callable] = {
    **SOLVERS,
    "MultiSteps(opt)": lambda hold: stepax.MultiSteps(
        held_pair(hold)(stepax.adam(0.1)), 2
    ).init(P),
    "MultiSteps(every_k_schedule)": lambda hold: accumulated(every=hold(lambda n: 2)),
    "MultiSteps(should_skip_update_fn)": lambda hold: accumulated(
        should_skip_update_fn=hold(stepax.skip_not_finite)
    ),
    "chain(args)": lambda hold: a_step(
        stepax.chain(held_pair(hold)(stepax.adam(0.1)), stepax.scale(1.0))
    ),
    "named_chain(args)": lambda hold: a_step(
        stepax.named_chain(("a", held_pair(hold)(stepax.adam(0.1))))
    ),
    "strict(inner)": lambda hold: (
        tx := stepax.strict_keywords(held_pair(hold)(stepax.adam(0.1)))
    ).update(P, tx.init(P), P),
    "with_extra_args_support(tx)": lambda hold: a_step(
        stepax.with_extra_args_support(held_pair(hold)(stepax.adam(0.1)))
    ),
    "describe(tx)": lambda hold: stepax.describe(
        stepax.adam(hold(counted), weight_decay_mask=hold(whole)), P
    ),
    "fused_scan(layer)": lambda hold: fused(hold(lambda p, x: x + p["w"])),
    "plan(tx)": lambda hold: stepax.distributed.plan(
        hold(lambda mesh: stepax.adam(0.1)), {"w": P["w"]}, {"data": 2}
    ),
    "hyperparams(tx)": lambda hold: stepax.hyperparams(
        tx := stepax.adam(hold(counted)), tx.init(P)
    ),
    "inject_hyperparams(inner_factory)": lambda hold: a_step(
        stepax.inject_hyperparams(hold(stepax.adam))(learning_rate=0.1)
    ),
    "join_schedules(schedules)": lambda hold: a_step(
        stepax.adam(stepax.join_schedules([hold(counted), hold(counted)], [3]))
    ),
    "inject_stateful_hyperparams(inner_factory)": lambda hold: a_step(
        stepax.inject_stateful_hyperparams(hold(stepax.adam))(learning_rate=0.1)
    ),
    "measure_with_ema(measure)": lambda hold: (
        tx := stepax.measure_with_ema(hold(stepax.tree.norm), 0.9)
    ).update(P, tx.init(P), P),
    "power_iteration(matrix)": lambda hold: stepax.power_iteration(
        hold(lambda v: 2 * v), v0=X, num_iters=3
    ),
    "value_and_grad_from_state(value_fn)": lambda hold: (
        stepax.value_and_grad_from_state(hold(square))(P, state=FROM_STATE.init(P))
    ),
    "map_params(f)": lambda hold: stepax.tree.map_params(
        stepax.adam(0.1), hold(lambda x: x), stepax.adam(0.1).init(P)
    ),
    "map_params(transform_non_params)": lambda hold: stepax.tree.map_params(
        stepax.adam(0.1),
        lambda x: x,
        stepax.adam(0.1).init(P),
        transform_non_params=hold(lambda x: x),
    ),
    "map_params(is_leaf)": lambda hold: stepax.tree.map_params(
        stepax.adam(0.1),
        lambda x: x,
        stepax.adam(0.1).init(P),
        is_leaf=hold(lambda x: False),
    ),
    "get(filtering)": lambda hold: stepax.tree.get(
        P, "w", None, hold(lambda k, x: True)
    ),
    "get_all_with_path(filtering)": lambda hold: stepax.tree.get_all_with_path(
        P, "w", hold(lambda k, x: True)
    ),
    "set(filtering)": lambda hold: stepax.tree.set(
        P, hold(lambda k, x: True), w=P["w"]
    ),
    "random_like(sampler)": lambda hold: stepax.tree.random_like(
        jax.random.key(0), P, hold(lambda key, shape, dtype: jnp.zeros(shape, dtype))
    ),
    "make_fenchel_young_loss(max_fun)": lambda hold: (
        stepax.losses.make_fenchel_young_loss(hold(jax.nn.logsumexp))(X, X)
    ),
    "ranking_softmax_loss(reduce_fn)": lambda hold: stepax.losses.ranking_softmax_loss(
        X, X, reduce_fn=hold(jnp.mean)
    ),
    "microbatch(fun)": lambda hold: stepax.microbatching.microbatch(
        hold(lambda x: jnp.sum(x)), argnums=0, microbatch_size=1
    )(X),
    "micro_vmap(fun)": lambda hold: stepax.microbatching.micro_vmap(
        hold(lambda x: x), microbatch_size=1
    )(X),
    "micro_vmap(vmap_fn)": lambda hold: stepax.microbatching.micro_vmap(
        jnp.sum, microbatch_size=1, vmap_fn=hold(jax.vmap)
    )(X),
    "micro_grad(fun)": lambda hold: stepax.microbatching.micro_grad(hold(product))(
        X, X
    ),
    "micro_grad(transform_fn)": lambda hold: stepax.microbatching.micro_grad(
        product, transform_fn=hold(jnp.sign)
    )(X, X),
    "micro_grad(metrics_fn)": lambda hold: stepax.microbatching.micro_grad(
        product, metrics_fn=hold(jnp.sum)
    )(X, X),
    "make_perturbed_fun(fun)": lambda hold: stepax.perturbations.make_perturbed_fun(
        hold(jnp.sum), num_samples=2
    )(jax.random.key(0), X),
    "fisher_diag(negative_log_likelihood)": lambda hold: (
        stepax.second_order.fisher_diag(hold(square), X, X, X)
    ),
    "hessian_diag(loss)": lambda hold: stepax.second_order.hessian_diag(
        hold(square), X, X, X
    ),
    "hvp(loss)": lambda hold: stepax.second_order.hvp(hold(square), X, X, X, X),
    "from_step(f)": lambda hold: stepax.rules.from_step(hold(lambda t: t))(
        (X[0],), None, {}
    ),
    "check(factory)": lambda hold: stepax.testing.check(hold(doubled)),
    "weight_decay(amount)": lambda hold: a_step(
        stepax.sgd(0.1, weight_decay=stepax.weight_decay(hold(rate)))
    ),
    "weight_decay(mask)": lambda hold: a_step(
        stepax.sgd(0.1, weight_decay=stepax.weight_decay(0.1, mask=hold(whole)))
    ),
    "equality(fun)": lambda hold: stepax.minimize(
        square, X, constraints=stepax.solve.constraints.equality(hold(jnp.sum), 1.0)
    ),
    "inequality(fun)": lambda hold: stepax.minimize(
        square, X, constraints=stepax.solve.constraints.inequality(hold(jnp.sum), 1.0)
    ),
    "from_projection(project)": lambda hold: stepax.solve.prox.from_projection(
        hold(jax.nn.relu)
    )(X, 1.0),
    "proximal(learning_rate)": lambda hold: a_step(
        stepax.proximal(stepax.solve.prox.l1(0.1), hold(rate))
    ),
    "sweep(loss)": lambda hold: swept(loss=hold(lambda p, key: square(p))),
    "sweep(init)": lambda hold: swept(init=hold(lambda key: X)),
    "sweep(make_tx)": lambda hold: swept(make_tx=hold(stepax.scale)),
    "by_layer(metric)": lambda hold: a_step(
        stepax.observe(
            stepax.scale(1.0),
            {"rms": stepax.metrics.by_layer(hold(stepax.metrics.rms()))},
        )
    ),
    "check(keywords)": lambda hold: stepax.testing.check(
        stepax.scale, 2.0, keywords=hold(lambda params: {})
    ),
}


def test_all_public_functions_of_functions_are_tried():
    given = {
        f"{f.__name__}({p.name})"
        for f in CALLED.values()
        for p in inspect.signature(f).parameters.values()
        if f.__name__ not in ROWS and "Callable" in str(p.annotation)
    }
    # It takes functions under `rules.rule` only, which are in the registry for good.
    assert given - {"from_config(factories)"} <= OTHERS.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_no_function_keeps_what_a_function_holds():
    assert kept_after([(k, use, False) for k, use in OTHERS.items()]) == []

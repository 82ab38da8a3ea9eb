"""Which arguments of a factory are numbers, which are schedules, and which neither."""

import functools as ft
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import rows
from injection import (
    Warm,
    arguments,
    assert_close,
    gradients,
    half,
    inject,
    is_matrix,
    parameters,
    run,
)

import stepax
from stepax._engine.factories.arguments import Arguments


if TYPE_CHECKING:
    from nowhere import Missing  # pyright: ignore[reportMissingImports]


class Model(eqx.Module):
    """A model that must not be called."""

    w: jax.Array
    b: jax.Array
    f: Callable = jnp.tanh

    def __call__(self, x):
        raise AssertionError("a tree was called")


class IsMatrix(eqx.nn.Identity):
    def __call__(self, x, **kwargs):
        return jax.tree.map(lambda p: p.ndim > 1, x)


MASKS = {
    "tree": is_matrix,
    "function": lambda params: is_matrix,
    "functools.partial": lambda params: ft.partial(lambda c, p: is_matrix(p), 1),
    "Partial": lambda params: jax.tree_util.Partial(is_matrix),
    "leafless module": lambda params: IsMatrix(),
    "names": lambda params: {"w": True, "**": False},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("factory", [stepax.adamw, optax.adamw])
def test_a_mask_for_a_callable_model_is_never_taken_for_a_schedule(factory, mask):
    if factory is optax.adamw and mask not in ("tree", "function", "functools.partial"):
        pytest.skip("Optax does not take it")
    model = eqx.filter(Model(jnp.ones((2, 2)), jnp.ones(2)), eqx.is_array)
    more = {"weight_decay": 0.5, "mask": MASKS[mask](model)}
    with jax.numpy_dtype_promotion("standard"):
        if factory is optax.adamw:
            model = {"w": model.w, "b": model.b}
            more["mask"] = MASKS[mask](model)
        plain, _ = run(stepax.adamw(0.1, **more), model)
        found, state = run(inject(factory)(0.1, **more), model)
    assert_close(found, plain)
    assert "mask" not in state.hyperparams and state.hyperparams_states == {}


def untyped(lr, decay=0.5, mask=None, mu_dtype=None, clip_fn=None, k=3, flag=False):
    assert mask is None or callable(mask)
    return stepax.adamw(lr, weight_decay=decay, mask=mask, mu_dtype=mu_dtype)


def quoted(
    lr: "stepax.ScalarOrSchedule",
    k: "int" = 2,
    what: "Missing" = None,  # pyright: ignore
    mask: "stepax.MaskOrFn" = None,
    per_leaf: "Callable[[stepax.Params], Any] | float | None" = None,
):
    assert isinstance(k, int) and (mask is None or callable(mask))
    assert per_leaf is None or callable(per_leaf)
    return (
        stepax.sgd(lr) if hasattr(stepax, "sgd") else stepax.scale_by_learning_rate(lr)
    )


def with_rest(lr, *numbers, **more):
    assert numbers == (0.8,)
    return stepax.adam(lr, *numbers, **more)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "factory, args, kwargs, numbers, schedules",
    [
        (untyped, (0.1,), {}, {"lr", "decay", "k"}, set()),
        (untyped, (half, half), {}, {"k"}, {"lr", "decay"}),
        (untyped, (Warm(),), {"mask": is_matrix}, {"decay", "k"}, {"lr"}),
        (untyped, (0.1,), {"clip_fn": half, "mu_dtype": jnp.bfloat16},
         {"lr", "decay", "k"}, set()),
        (untyped, (np.float32(0.1), jnp.float32(1)), {"mu_dtype": jnp.dtype("float32")},
         {"lr", "decay", "k"}, set()),
        (quoted, (0.1,), {"mask": is_matrix, "per_leaf": is_matrix}, {"lr"}, set()),
        (quoted, (half,), {"k": 7}, set(), {"lr"}),
        (ft.partial(untyped, decay=0.25), (0.1,), {}, {"lr", "decay", "k"}, set()),
        (ft.partial(quoted, mask=is_matrix), (half,), {}, set(), {"lr"}),
        (with_rest, (0.1, 0.8), {"b2": 0.9, "eps": half}, {"lr", "b2"}, {"eps"}),
        (lambda lr: stepax.adam(lr), (1,), {}, {"lr"}, set()),
    ],
)  # fmt: skip
def test_factories_of_users_are_understood(factory, args, kwargs, numbers, schedules):
    tx = inject(factory)(*args, **kwargs)
    state = jax.jit(tx.init)(parameters())
    assert set(state.hyperparams) == numbers | schedules
    assert set(state.hyperparams_states) == schedules
    assert set(Arguments(factory, args, kwargs).sort(())[0]) == numbers
    jax.jit(tx.update)(parameters(), state, parameters())


class Decay(eqx.Module):
    """A schedule with arrays for leaves, one of them by itself."""

    rate: jax.Array
    rest: dict

    def __call__(self, count):
        return self.rate * self.rest["power"] ** jnp.asarray(count, jnp.float32)


DECAY = Decay(jnp.float32(0.25), {"power": jnp.float32(0.5)})
SCHEDULED = [
    pytest.param(row, name, id=f"{row.name}-{name}")
    for row in (x.values[0] for x in rows() if x.values[0].kind != "wrapper")
    for name in Arguments(row.factory, (), arguments(row)).sort(())[0]
]


def without_annotations(f):
    """What a user may write around a factory."""
    call = lambda *args, **kwargs: f(*args, **kwargs)
    found = inspect.signature(f)
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    vars(call)["__signature__"] = found.replace(parameters=bare)
    return call


@pytest.mark.few(44)
@pytest.mark.parametrize("row, name", SCHEDULED)
def test_a_module_is_a_schedule_wherever_a_function_is(row, name):
    for factory in (row.factory, without_annotations(row.factory)):
        roles = [
            Arguments(factory, (), arguments(row) | {name: schedule}).sort(())[1].keys()
            for schedule in (half, DECAY)
        ]
        assert roles[0] == roles[1]


@pytest.mark.few(12)
@pytest.mark.parametrize("row", rows(takes="learning_rate"))
@pytest.mark.parametrize("annotated", [True, False])
def test_a_module_for_a_rate_is_shown_in_the_hyperparams(row, annotated):
    all_given = lambda x: arguments(row) | {"learning_rate": x}
    if annotated:
        tx = inject(row.factory)(**all_given(DECAY))
    else:
        tx = inject(lambda learning_rate: row.factory(**all_given(learning_rate)))(
            learning_rate=DECAY
        )
    state = jax.eval_shape(tx.init, parameters())
    assert state.hyperparams["learning_rate"].shape == ()
    assert list(state.hyperparams_states) == ["learning_rate"]


@pytest.mark.parametrize(
    "factory",
    [
        lambda learning_rate: stepax.sgd(learning_rate),
        lambda lr, momentum=0.9: stepax.sgd(lr, momentum),
        lambda lr_of_all, model=None: stepax.sgd(lr_of_all),
        lambda **all_of_them: stepax.sgd(all_of_them["rate"]),
    ],
)
def test_a_module_for_a_number_of_ones_own_follows_the_steps(factory):
    name = next(iter(inspect.signature(factory).parameters))
    name = "rate" if name == "all_of_them" else name
    tx = inject(factory)(**{name: DECAY})
    state, p = tx.init(parameters()), parameters()
    for step in range(3):
        updates, state = tx.update(gradients(p), state, p)
        assert state.hyperparams[name] == 0.25 * 0.5**step
        assert stepax.hyperparams(tx, state)[f"hyperparams/{name}"] == 0.25 * 0.5**step
        if "momentum" not in inspect.signature(factory).parameters:
            wanted = stepax.tree.scale(-0.25 * 0.5**step, gradients(p))
            assert_close(updates, wanted)


def test_a_model_for_a_parameter_without_annotation_is_never_called():
    def make(model, learning_rate, anchor=None):
        assert isinstance(model, Model) and isinstance(anchor, Model)
        return stepax.sgd(learning_rate)

    model = Model(jnp.ones((2, 2)), jnp.ones(2))
    state = inject(make)(model, 0.1, anchor=model).init(parameters())
    assert set(state.hyperparams) == {"learning_rate"}


def test_an_integer_for_a_number_can_be_changed_to_a_fraction():
    tx = inject(lambda learning_rate: stepax.adam(learning_rate))(1)
    state = tx.init(parameters())
    assert state.hyperparams["learning_rate"].dtype == jnp.float32
    state.hyperparams["learning_rate"] = 0.5
    _, state = tx.update(parameters(), state, parameters())
    assert state.hyperparams["learning_rate"] == 0.5


def test_static_args_are_left_alone():
    tx = lambda static: inject(stepax.adam, static)(0.1, b1=0.8)
    for static in "b1", ("b1",), ["b1", "eps"], {"b1"}:
        assert "b1" not in tx(static).init(parameters()).hyperparams
    with pytest.raises(
        ValueError, match=r"`static_args` names \['b3'\], but the param"
    ):
        tx("b3")

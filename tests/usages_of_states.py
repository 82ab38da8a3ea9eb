"""Programs as people write them with Optax: types, states and transformations."""

# The library is a parameter, so that its types are variables to a type checker.
# pyright: reportInvalidTypeForm=false

import copy
import functools as ft
import pickle
from typing import Any, NamedTuple
from unittest import mock

import cloudpickle
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from flax import nnx, struct
from flax.training.train_state import TrainState
from usages import P, X, loss, names, run, words


def annotated_signatures(optax):
    """Unions and optionals of the library's types, evaluated at run time."""

    def f(
        tx: optax.GradientTransformation | None,
        rate: optax.ScalarOrSchedule | None = None,
        updates: optax.Updates | None = None,
    ) -> tuple[optax.Updates, optax.OptState]: ...

    return sorted(f.__annotations__)


def a_pytree_dataclass(optax):
    """A `flax.struct` with a static transformation, through `jit`."""

    @struct.dataclass
    class State:
        params: Any
        state: optax.OptState
        tx: optax.GradientTransformation = struct.field(pytree_node=False)

    @jax.jit
    def step(s):
        updates, state = s.tx.update(P, s.state, s.params)
        return s.replace(params=optax.apply_updates(s.params, updates), state=state)

    tx = optax.adam(1e-2)
    return step(step(State(P, tx.init(P), tx))).params


def a_subclass(optax):
    """A subclass of `GradientTransformation` with a name of its own."""

    class Named(optax.GradientTransformation):
        pass

    tx = Named(*optax.sgd(0.1))
    both = optax.chain(tx, optax.scale(2.0))
    return run(optax, both), isinstance(tx, optax.GradientTransformation)


def an_update_by_hand(optax):
    """A transformation by hand: a named tuple of a state, and two functions."""

    class State(NamedTuple):
        total: Any

    def init(params):
        return State(jax.tree.map(jnp.zeros_like, params))

    def update(updates, state, params=None):
        del params
        total = jax.tree.map(jnp.add, state.total, updates)
        return total, State(total)

    tx = optax.chain(optax.GradientTransformation(init, update), optax.scale(-0.1))
    return run(optax, tx)


def extra_arguments_by_hand(optax):
    """`GradientTransformationExtraArgs(init, update)`, which reads a keyword."""

    def update(updates, state, params=None, *, factor, **extra):
        del params, extra
        return jax.tree.map(lambda u: factor * u, updates), state

    own = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    return run(optax, optax.chain(own, optax.adam(1e-2)), factor=0.5)


def extra_arguments_dropped(optax):
    """`with_extra_args_support` around a plain transformation."""
    tx = optax.with_extra_args_support(optax.scale(0.5))
    is_wide = isinstance(tx, optax.GradientTransformationExtraArgs)
    return run(optax, tx, value=1.0), is_wide


def kinds_of_transformations(optax):
    """Libraries ask which transformations take keywords before they pass any."""
    made = {
        "ema": optax.ema(0.9),
        "scale": optax.scale(1.0),
        "identity": optax.identity(),
        "scale_by_adam": optax.scale_by_adam(),
        "adam": optax.adam(1e-2),
        "sgd": optax.sgd(1e-2),
        "chain": optax.chain(optax.scale(1.0)),
        "polyak": optax.scale_by_polyak(),
        "masked": optax.masked(optax.scale(1.0), True),
    }
    wide = optax.GradientTransformationExtraArgs
    return {k: isinstance(tx, wide) for k, tx in made.items()}


def unpacked(optax):
    """`init, update = optax.adam(...)`, as in JAX's older examples."""
    init, update = optax.adam(1e-2)
    return update(P, init(P), P)


def an_equinox_module(optax):
    """Equinox: a model filtered to its arrays."""
    model = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    tx = optax.adamw(1e-2)
    state = tx.init(eqx.filter(model, eqx.is_array))
    gradients = eqx.filter_grad(lambda m: jnp.sum(jax.vmap(m)(X) ** 2))(model)
    updates, _ = tx.update(gradients, state, eqx.filter(model, eqx.is_array))
    return jax.tree.leaves(eqx.filter(eqx.apply_updates(model, updates), eqx.is_array))


def closures_as_trees(optax):
    """Equinox's test of `closure_to_pytree`: a leaf is the negated rate."""
    rate = jnp.array(1e-3)
    factor = optax.scale_by_schedule(optax.piecewise_constant_schedule(1.0, {200: 0.1}))
    tx = eqxi.closure_to_pytree(optax.chain(optax.adam(rate), factor))
    leaves = [x for x in jax.tree.leaves(tx) if eqx.is_array(x)]
    return any(bool(x == -rate) for x in leaves), run(optax, tx)[0]


# --- Flax -----------------------------------------------------------------------------


def a_train_state(optax):
    """Flax's `TrainState`."""
    state = TrainState.create(apply_fn=loss, params=P, tx=optax.adam(1e-2))
    state = state.apply_gradients(grads=jax.grad(loss)(state.params))
    return state.params, state.step


def a_jitted_train_state(optax):
    """`TrainState` through `jit`, whose transformation is static."""

    @jax.jit
    def step(state):
        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    return step(step(TrainState.create(apply_fn=loss, params=P, tx=tx))).params


def an_nnx_optimizer(optax):
    """NNX's `Optimizer`."""
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(lambda m: jnp.mean(m(X) ** 2))(model))
    return jax.tree.leaves(nnx.state(model, nnx.Param))


def decay_of_kernels_alone(optax):
    """HuggingFace: a decay mask by the path of each parameter."""

    def mask(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, _: path[-1].key not in ("b", "scale"), params
        )

    return run(optax, optax.adamw(1e-2, weight_decay=0.1, mask=mask))


# --- copies, pickles, patches ---------------------------------------------------------


def a_pickled_state(optax):
    """Checkpoints by `pickle`, as in many small repositories."""
    _, state = run(optax, optax.adam(1e-2))
    back = pickle.loads(pickle.dumps(state))
    return back, names(back)


def a_cloudpickled_transformation(optax):
    """Ray: a transformation travels to a worker by cloudpickle."""
    tx = cloudpickle.loads(cloudpickle.dumps(optax.chain(optax.clip(1.0), *[])))
    return run(optax, tx)


def a_copied_state(optax):
    """`deepcopy` of a state, before a step that may be undone."""
    tx = optax.adam(1e-2)
    _, state = run(optax, tx)
    return copy.deepcopy(state), copy.copy(state)[0].count


def a_patched_factory(optax):
    """Tests that replace `optax.adam`."""
    with mock.patch.object(optax, "adam", lambda rate, **_: optax.sgd(rate)):
        return run(optax, optax.adam(1e-2, b1=0.5))


def a_patched_apply(optax):
    """Tests that count the calls of `optax.apply_updates`."""
    with mock.patch.object(optax, "apply_updates", wraps=optax.apply_updates) as apply:
        run(optax, optax.sgd(0.1))
        return apply.call_count


def a_factory_by_name(optax):
    """Configurations: `getattr(optax, name)(**options)`."""
    options = {"learning_rate": 1e-2, "momentum": 0.9}
    return run(optax, getattr(optax, "sgd")(**options))  # noqa: B009


def a_partial_factory(optax):
    """Configurations: a partial factory that gets its rate later."""
    return run(optax, ft.partial(optax.adamw, b1=0.8, weight_decay=1e-2)(1e-2))


# --- transformations ------------------------------------------------------------------


def a_frozen_part(optax):
    """Transfer learning: `set_to_zero` for a frozen encoder."""
    parts = {"train": optax.adam(1e-2), "freeze": optax.set_to_zero()}
    labels = {"w": "train", "b": "freeze"}
    params, state = run(optax, optax.multi_transform(parts, labels))
    return params, sorted(state.inner_states)


def labels_by_function(optax):
    """`multi_transform` with a function of the parameters."""
    label = lambda p: jax.tree.map(lambda x: "big" if x.ndim > 1 else "small", p)
    parts = {"big": optax.adamw(1e-2), "small": optax.sgd(0.1)}
    return run(optax, optax.multi_transform(parts, label))


def a_missing_label(optax):
    """A label without a transformation is a `ValueError`."""
    try:
        return optax.multi_transform({"a": optax.sgd(1.0)}, {"w": "a", "b": "c"}).init(
            P
        )
    except ValueError as error:
        return words(error)


def a_freeze(optax):
    """`optax.freeze` and `selective_transform`."""
    first = run(
        optax, optax.chain(optax.sgd(0.1), optax.freeze({"w": True, "b": False}))
    )
    tx = optax.selective_transform(optax.sgd(0.1), freeze_mask={"w": False, "b": True})
    return first[0], run(optax, tx)[0]


def accumulated_gradients(optax):
    """`MultiSteps`, asked whether it has updated."""
    tx = optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2)
    params, state = run(optax, tx)
    return params, tx.has_updated(state), state.mini_step, state.gradient_step


def accumulated_by_transformation(optax):
    """`MultiSteps(...).gradient_transformation()` in a `TrainState`."""
    tx = optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation()
    state = TrainState.create(apply_fn=loss, params=P, tx=tx)
    for _ in range(2):
        state = state.apply_gradients(grads=P)
    return state.params


def skipped_large_updates(optax):
    """`MultiSteps` with `skip_large_updates`, as in language models."""
    skip = ft.partial(optax.skip_large_updates, max_squared_norm=1e-3)
    tx = optax.MultiSteps(optax.sgd(0.1), 1, should_skip_update_fn=skip)
    params, state = run(optax, tx)
    return params, state.skip_state["should_skip"]


def a_lookahead(optax):
    """`lookahead`, which trains pairs of parameters."""
    tx = optax.lookahead(optax.sgd(0.1), sync_period=2, slow_step_size=0.5)
    pair = optax.LookaheadParams.init_synced(P)
    state = tx.init(pair)
    for _ in range(3):
        updates, state = tx.update(jax.grad(loss)(pair.fast), state, pair)
        pair = optax.apply_updates(pair, updates)
    return pair.fast, pair.slow, type(pair).__name__


def steps_that_are_finite(optax):
    """`apply_if_finite`, and the counts that are logged."""
    tx = optax.apply_if_finite(optax.sgd(0.1), max_consecutive_errors=2)
    state = tx.init(P)
    bad = jax.tree.map(lambda x: x * jnp.nan, P)
    updates, state = tx.update(bad, state, P)
    return updates, state.notfinite_count, state.last_finite, state.total_notfinite


def errors_never_skipped(optax):
    """A configuration whose -1 turns the check off."""
    return run(optax, optax.apply_if_finite(optax.adam(1e-2), -1))


def a_flattened_optimizer(optax):
    """`flatten`, for many small parameters."""
    params, state = run(optax, optax.flatten(optax.adam(1e-2)))
    return params, jax.tree.map(jnp.shape, state[0].mu)


def a_named_chain(optax):
    """`named_chain`, whose state is read by name."""
    tx = optax.named_chain(("clip", optax.clip(0.1)), ("adam", optax.adam(1e-2)))
    params, state = run(optax, tx)
    return params, sorted(state), state["adam"][0].count


def a_list_in_a_chain(optax):
    """A chain that is put together from a list of options."""
    parts = [optax.clip_by_global_norm(1.0), optax.scale_by_adam()]
    parts += [optax.add_decayed_weights(1e-2), optax.scale(-1e-2)]
    return run(optax, optax.chain(*parts))


def clipping_switched_off(optax):
    """A configuration whose -1 means no clipping by the rms."""
    return run(optax, optax.chain(optax.clip_by_block_rms(-1.0), optax.sgd(0.1)))


def an_adaptive_clip(optax):
    """NFNets: `adaptive_grad_clip` before SGD with momentum."""
    tx = optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1, 0.9, nesterov=True))
    return run(optax, tx)

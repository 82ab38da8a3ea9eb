"""Programs as people write them with Optax: a function of the library each.

The docstring names the kind of project where the usage is seen.  Each returns what it
computed, a tree of arrays and names; `test_public_usages.py` runs it on both libraries.
"""

# The library is a parameter, so that its types are variables to a type checker.
# pyright: reportInvalidTypeForm=false

import copy
import dataclasses
import functools as ft
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import cloudpickle
import equinox as eqx
import equinox.internal as eqxi
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, struct
from flax.training.train_state import TrainState


P = {"w": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.array([0.25, -0.5])}
X = jnp.linspace(-1.0, 1.0, 6).reshape(3, 2)


def loss(p):
    return jnp.mean((X @ p["w"] + p["b"]) ** 2)


def run(optax, tx, steps=3, params=P, **extra):
    """The parameters and the state after some steps."""
    state = tx.init(params)
    for _ in range(steps):
        gradients = jax.grad(loss)(params)
        updates, state = tx.update(gradients, state, params, **extra)
        params = optax.apply_updates(params, updates)
    return params, state


def names(tree):
    """The types of the states in a tree, and the fields of each."""
    fields = getattr(tree, "_fields", None)
    if fields is not None:
        return [type(tree).__name__, fields, [names(x) for x in tree]]
    return [names(x) for x in tree] if type(tree) is tuple else []


def words(error: BaseException) -> str:
    return type(error).__name__


# --- rates that ascend ----------------------------------------------------------------


def ascent_by_adam(optax):
    """Diffrax's neural SDE: the discriminator ascends by a negative rate."""
    return run(optax, optax.adam(-1e-2))


def ascent_by_rmsprop(optax):
    """Diffrax's GAN: `rmsprop` of both signs."""
    return run(optax, optax.rmsprop(-1e-3)), run(optax, optax.rmsprop(1e-3))


def ascent_with_decay(optax):
    """Adversarial training: the decay is negative, too, to shrink the parameters."""
    return run(optax, optax.adamw(-1e-2, weight_decay=-1e-2))


def ascent_by_a_schedule(optax):
    """jax_verify: a dual ascent whose rate decays."""
    return run(optax, optax.sgd(optax.exponential_decay(-0.1, 2, 0.5)))


def ascent_of_multipliers(optax):
    """Constrained learning: parameters descend and multipliers ascend."""
    both = {"w": optax.adam(1e-2), "b": optax.adam(-1e-2)}
    return run(optax, optax.multi_transform(both, {"w": "w", "b": "b"}))


def ascent_by_momentum(optax):
    """Adversarial attacks: PGD with momentum, by a negative rate."""
    tx = optax.chain(optax.sign_sgd(-0.1), optax.keep_params_nonnegative())
    return run(optax, tx, params=jax.tree.map(jnp.abs, P))


def ascent_of_an_injected_rate(optax):
    """A rate whose sign is flipped during a run."""
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=-0.1)
    params, state = run(optax, tx)
    state.hyperparams["learning_rate"] = 0.1
    updates, _ = tx.update(P, state, params)
    return params, updates


def ascent_by_schedule_free(optax):
    """A game in which one player ascends without a schedule."""
    return run(optax, optax.contrib.schedule_free_sgd(-0.1, b1=0.9))[0]


def many_negative_rates(optax):
    """A sweep over optimizers that multiplies the rate by a sign."""
    makers = "adagrad lamb lars lion radam yogi".split()
    return {k: run(optax, getattr(optax, k)(-1e-2), 2)[0] for k in makers}


# --- fields of states -----------------------------------------------------------------


def moments_by_field(optax):
    """Logging of Adam's moments, as in many training loops."""
    _, state = run(optax, optax.adam(1e-2))
    return state[0].mu, state[0].nu, state[0].count, names(state)


def fields_through_a_chain(optax):
    """PureJaxRL: clip and Adam, whose count is read by position."""
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2, eps=1e-5))
    _, state = run(optax, tx)
    return state[1][0].count, names(state)


def fields_by_attribute_name(optax):
    """A search of the state for whatever has `mu`."""
    tx = optax.chain(optax.clip(1.0), optax.adamw(1e-2))
    _, state = run(optax, tx)
    has_mu = lambda x: hasattr(x, "mu")
    found = [x for x in jax.tree.leaves(state, is_leaf=has_mu) if has_mu(x)]
    return [x.mu for x in found]


def replaced_fields(optax):
    """Resetting the moments by `_replace`, as in continual learning."""
    tx = optax.adam(1e-2)
    params, state = run(optax, tx)
    zero = jax.tree.map(jnp.zeros_like, state[0].mu)
    state = (state[0]._replace(mu=zero, count=jnp.zeros([], jnp.int32)), *state[1:])
    return tx.update(P, state, params)


def states_by_class(optax):
    """`isinstance` on state classes, as in Brax's and Acme's checkpoints."""
    _, state = run(optax, optax.chain(optax.trace(0.9), optax.scale_by_adam()))
    kinds = optax.TraceState, optax.ScaleByAdamState, optax.EmptyState
    return [[isinstance(x, kind) for kind in kinds] for x in state]


def states_by_hand(optax):
    """A state made of its class, as when one is converted from another program."""
    zero = jax.tree.map(jnp.zeros_like, P)
    state = optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=zero, nu=zero)
    return optax.scale_by_adam().update(P, state)


def states_by_match(optax):
    """Structural pattern matching of a state."""
    _, state = run(optax, optax.sgd(0.1, momentum=0.9))
    match state:
        case (optax.TraceState(trace=trace), *rest):
            return trace, len(rest)
    return "no match"


def shapes_of_a_state(optax):
    """t5x, MaxText: the state's shapes by `eval_shape`, for its sharding."""
    shapes = jax.eval_shape(optax.adafactor(1e-2).init, P)
    return [(x.shape, str(x.dtype)) for x in jax.tree.leaves(shapes)]


def params_like_leaves(optax):
    """`tree_map_params`: moments get the specs of parameters, other leaves none."""
    tx = optax.adamw(1e-2)
    state = tx.init(P)
    mapped = optax.tree_map_params(
        tx, lambda x: "parameter", state, transform_non_params=lambda x: "other"
    )
    return jax.tree.leaves(mapped)


def masked_nodes(optax):
    """`MaskedNode` stands where a mask leaves out."""
    tx = optax.masked(optax.adam(1e-2), {"w": True, "b": False})
    params, state = run(optax, tx)
    mu = state.inner_state[0].mu
    return params, type(mu["b"]).__name__, isinstance(mu["b"], optax.MaskedNode)


def paths_of_a_state(optax):
    """Checkpoints by path: the key paths of a state."""
    tx = optax.chain(optax.clip(1.0), optax.adam(1e-2))
    leaves = jax.tree_util.tree_leaves_with_path(tx.init(P))
    return [jax.tree_util.keystr(path) for path, _ in leaves]


def state_dicts(optax):
    """Flax's `to_state_dict` of a state, and back."""
    tx = optax.adam(1e-2)
    _, state = run(optax, tx)
    saved: Any = flax.serialization.to_state_dict(state)
    restored: Any = flax.serialization.from_state_dict(tx.init(P), saved)
    return sorted(saved["0"]), restored[0].mu


def bytes_of_a_state(optax):
    """Flax's `to_bytes`, and back."""
    tx = optax.adamw(1e-2)
    _, state = run(optax, tx)
    data = flax.serialization.to_bytes(state)
    restored: Any = flax.serialization.from_bytes(tx.init(P), data)
    return restored[0].nu


def get_and_set(optax):
    """`tree_utils.tree_get` and `tree_set`, in place of positions."""
    _, state = run(optax, optax.chain(optax.adam(1e-2), optax.clip(1.0)))
    state = optax.tree_utils.tree_set(state, count=7)
    return optax.tree_utils.tree_get(state, "mu"), optax.tree.get(state, "count")


def filtered_get(optax):
    """`tree_get` with a filter, where several fields have one name."""
    tx = optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(lambda c: 0.1))
    _, state = run(optax, tx)
    is_adam = lambda path, x: any(
        getattr(k, "tuple_name", "") == "ScaleByAdamState" for k in path
    )
    return optax.tree_utils.tree_get(state, "count", filtering=is_adam)


def ambiguous_get(optax):
    """`tree_get` of a name that occurs twice is a `KeyError`."""
    tx = optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(lambda c: 0.1))
    try:
        return optax.tree_utils.tree_get(tx.init(P), "count")
    except KeyError as error:
        return words(error)


# --- hyperparameters ------------------------------------------------------------------


def rates_read_and_written(optax):
    """`opt_state.hyperparams["learning_rate"]`, as in HuggingFace's Flax examples."""
    tx = optax.inject_hyperparams(optax.adamw)(learning_rate=1e-2)
    _, state = run(optax, tx)
    state.hyperparams["learning_rate"] = jnp.float32(1e-3)
    return tx.update(P, state, P)[0], sorted(state.hyperparams)


def rates_by_schedule(optax):
    """Logging the rate of a schedule out of the state."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    _, state = run(optax, optax.inject_hyperparams(optax.adam)(rate))
    return state.hyperparams["learning_rate"], state.count


def a_factory_of_a_schedule(optax):
    """A user's factory, annotated with a schedule, given a number."""

    def factory(lr: optax.Schedule, decay: float = 0.1):
        return optax.chain(
            optax.add_decayed_weights(decay), optax.scale_by_learning_rate(lr)
        )

    tx = optax.inject_hyperparams(factory)(1e-2)
    params, state = run(optax, tx)
    return params, state.hyperparams


def a_factory_of_a_callable(optax):
    """A user's factory, annotated with `Callable`, given a schedule."""

    def factory(lr: Callable[[int], float]):
        return optax.sgd(lr)

    tx = optax.inject_hyperparams(factory)(lr=lambda count: 0.1 / (count + 1))
    params, state = run(optax, tx)
    return params, state.hyperparams


def a_decorated_factory(optax):
    """`@optax.inject_hyperparams` over a function, as in Optax's own cookbook."""

    @optax.inject_hyperparams
    def factory(learning_rate, clip):
        return optax.chain(optax.clip_by_global_norm(clip), optax.sgd(learning_rate))

    params, state = run(optax, factory(learning_rate=0.1, clip=0.5))
    return params, state.hyperparams


def static_arguments(optax):
    """`static_args`, so that a flag reaches the factory as it is."""
    make = optax.inject_hyperparams(optax.sgd, static_args="nesterov")
    params, state = run(optax, make(0.1, momentum=0.9, nesterov=True))
    return params, sorted(state.hyperparams)


def a_population_of_rates(optax):
    """Population-based training: states with stacked rates under `vmap`."""
    tx = optax.inject_hyperparams(optax.adam)(1e-2)

    def train(rate):
        state = tx.init(P)
        state.hyperparams["learning_rate"] = rate
        return tx.update(P, state, P)[0]

    return jax.vmap(train)(jnp.array([1e-1, 1e-2, -1e-2]))


def a_plateau(optax):
    """`reduce_on_plateau` behind an optimizer, given the loss."""
    tx = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1))
    params, state = run(optax, tx, 4, value=jnp.float32(1.0))
    return params, state[1].scale


# --- types and annotations ------------------------------------------------------------


def an_annotated_dataclass(optax):
    """A trainer's dataclass, with the library's types as annotations."""

    @dataclasses.dataclass
    class Trainer:
        tx: optax.GradientTransformation
        rate: optax.Schedule
        state: optax.OptState = None
        params: optax.Params = None

    trainer = Trainer(optax.adam(1e-2), optax.constant_schedule(0.1))
    return isinstance(trainer.tx, optax.GradientTransformation), trainer.rate(3)


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


def noise_on_gradients(optax):
    """`add_noise` with a seed."""
    tx = optax.add_noise(0.01, 0.55, 0)
    updates, state = tx.update(P, tx.init(P))
    return jax.tree.map(jnp.shape, updates), state.count


def a_stateless_function(optax):
    """`stateless`, and `stateless_with_tree_map`."""
    first = optax.stateless(lambda u, p: jax.tree.map(jnp.sign, u))
    second = optax.stateless_with_tree_map(lambda u, p: u * p)
    return run(optax, optax.chain(first, second, optax.scale(-0.1)))


def a_condition(optax):
    """`conditionally_transform` and `conditionally_mask`."""
    late = lambda step, **extra: step >= 1
    first = optax.conditionally_transform(optax.scale(0.1), late)
    second = optax.conditionally_mask(optax.sgd(0.1), late)
    return run(optax, optax.chain(first, second))[0]


def a_centralized_step(optax):
    """`centralize`, `normalize_by_update_norm` and `zero_nans` in a chain."""
    parts = optax.zero_nans(), optax.centralize(), optax.normalize_by_update_norm()
    return run(optax, optax.chain(*parts, optax.scale(-0.1)))


def an_average_of_parameters(optax):
    """Target networks: `incremental_update` and `periodic_update`."""
    target = jax.tree.map(jnp.zeros_like, P)
    soft = optax.incremental_update(P, target, 0.1)
    return soft, optax.periodic_update(P, target, jnp.int32(4), 2)


def an_average_of_updates(optax):
    """`ema` behind an optimizer, with its accumulator."""
    tx = optax.chain(optax.sgd(0.1), optax.ema(0.9, debias=True))
    params, state = run(optax, tx)
    return params, state[1].ema


def a_switch_by_schedule(optax):
    """A part that starts after some steps: the schedule is a comparison."""
    tx = optax.chain(optax.sgd(0.1), optax.scale_by_schedule(lambda count: count >= 1))
    return run(optax, tx)


def a_missing_schedule(optax):
    """Scenic: a schedule of `None` is made, and fails where it is called."""
    tx = optax.scale_by_schedule(None)
    state = tx.init(P)
    try:
        return tx.update(P, state)
    except TypeError as error:
        return words(error)


def snapshots(optax):
    """`snapshot` of the gradients, read back by `tree_get`."""
    tx = optax.chain(optax.snapshot("norm", optax.global_norm), optax.sgd(0.1))
    _, state = run(optax, tx)
    return optax.tree_utils.tree_get(state, "norm")


# --- searches and second order --------------------------------------------------------


def a_search_by_lbfgs(optax):
    """Physics-informed networks: L-BFGS with its own line search."""
    tx, params = optax.lbfgs(), P
    state = tx.init(params)
    value_and_grad = optax.value_and_grad_from_state(loss)
    for _ in range(3):
        value, grad = value_and_grad(params, state=state)
        updates, state = tx.update(
            grad, state, params, value=value, grad=grad, value_fn=loss
        )
        params = optax.apply_updates(params, updates)
    return params, loss(params)


def a_search_by_backtracking(optax):
    """`scale_by_backtracking_linesearch` behind SGD."""
    tx = optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10))
    value, grad = jax.value_and_grad(loss)(P)
    state = tx.init(P)
    updates, state = tx.update(grad, state, P, value=value, grad=grad, value_fn=loss)
    return updates, optax.tree_utils.tree_get(state, "learning_rate")


def a_step_by_polyak(optax):
    """`polyak_sgd`, given the value."""
    return run(optax, optax.polyak_sgd(max_learning_rate=0.5), value=loss(P))


def a_product_with_the_hessian(optax):
    """`second_order.hvp` and diagonals, of a model and its data."""
    f = lambda p, x, y: jnp.sum((x @ p - y) ** 2)
    p, y = jnp.array([1.0, 2.0]), jnp.ones(3)
    return optax.second_order.hvp(f, jnp.ones(2), p, X, y)


def sharpness_aware(optax):
    """`contrib.sam` around SGD, in its transparent mode's first half."""
    adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    tx = optax.contrib.sam(optax.sgd(0.1), adversary, sync_period=2)
    return run(optax, tx)[0]


def without_a_schedule(optax):
    """`contrib.schedule_free_adamw`, evaluated at its averages."""
    params, state = run(optax, optax.contrib.schedule_free_adamw(1e-2))
    return params, optax.contrib.schedule_free_eval_params(state, params)


def without_a_rate(optax):
    """`contrib.prodigy`, `dog` and `mechanize`."""
    mechanic = optax.contrib.mechanize(optax.sgd(0.1))
    makers = optax.contrib.prodigy(), optax.contrib.dog(1.0), mechanic
    return [run(optax, tx)[0] for tx in makers]


def orthogonalized(optax):
    """`contrib.muon`, whose vectors are left to Adam."""
    return run(optax, optax.contrib.muon(1e-2))[0]


def contributed(optax):
    """Further optimizers of `contrib`."""
    c = optax.contrib
    made = c.ademamix(1e-2), c.adopt(1e-2), c.cocob(), c.madgrad(1e-2), c.sophia(1e-2)
    return [run(optax, tx, obj_fn=loss)[0] for tx in made[:4]]


# --- schedules ------------------------------------------------------------------------


def values(rate, steps=(0, 1, 2, 5, 9, 20)):
    return [rate(t) for t in steps]


def joined_schedules(optax):
    """A warm-up and a cosine that are joined, as in big_vision."""
    parts = optax.linear_schedule(0.0, 0.1, 3), optax.cosine_decay_schedule(0.1, 10)
    return values(optax.join_schedules(list(parts), [3]))


def stepped_schedules(optax):
    """ImageNet: rates that drop at given steps."""
    return values(optax.piecewise_constant_schedule(0.1, {2: 0.1, 8: 0.1}))


def interpolated_schedules(optax):
    """`piecewise_interpolate_schedule`, linear and cosine."""
    make = optax.piecewise_interpolate_schedule
    return [values(make(k, 0.1, {2: 2.0, 8: 0.1})) for k in ("linear", "cosine")]


def warm_restarts(optax):
    """`sgdr_schedule`, by a list of dictionaries."""
    cycle = {"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 2, "end_value": 0.0}
    cycles = [cycle | {"decay_steps": n} for n in (6, 12)]
    return values(optax.sgdr_schedule(cycles))


def one_cycle(optax):
    """`cosine_onecycle_schedule` and its linear sibling."""
    makers = optax.cosine_onecycle_schedule, optax.linear_onecycle_schedule
    return [values(make(20, 0.1)) for make in makers]


def traced_schedules(optax):
    """A schedule under `vmap`, to plot it."""
    rate = optax.warmup_exponential_decay_schedule(0.0, 0.1, 3, 5, 0.5, staircase=True)
    return jax.vmap(rate)(jnp.arange(12))


def polynomial_schedules(optax):
    """A polynomial decay after a delay, and a constant."""
    decay = optax.polynomial_schedule(0.1, 0.01, 2, 10, transition_begin=3)
    return values(decay) + values(optax.constant_schedule(0.3))


# --- losses and other functions -------------------------------------------------------


LOGITS = jnp.array([[2.0, -1.0, 0.5], [0.1, 0.2, -3.0]])


def classification_losses(optax):
    """Cross entropies by class, by distribution and by bit."""
    classes, soft = jnp.array([0, 2]), jax.nn.one_hot(jnp.array([0, 2]), 3)
    return (
        optax.softmax_cross_entropy_with_integer_labels(LOGITS, classes),
        optax.softmax_cross_entropy(LOGITS, optax.smooth_labels(soft, 0.1)),
        optax.sigmoid_binary_cross_entropy(LOGITS, soft),
        optax.losses.sigmoid_focal_loss(LOGITS, soft, alpha=0.25, gamma=2.0),
    )


def regression_losses(optax):
    """Huber, squared and cosine losses, by their names in both modules."""
    y = LOGITS + 0.5
    names = "huber_loss", "l2_loss", "squared_error", "log_cosh", "cosine_distance"
    return [getattr(optax.losses, k)(LOGITS, y) for k in names]


def sequence_losses(optax):
    """CTC, with paddings."""
    logits = jnp.sin(jnp.arange(40.0)).reshape(2, 5, 4)
    labels, zeros = jnp.array([[1, 2], [3, 1]]), jnp.zeros
    return optax.ctc_loss(logits, zeros((2, 5)), labels, zeros((2, 2)))


def ranking_losses(optax):
    """Losses of margins and of distributions."""
    a, b = LOGITS, LOGITS[::-1]
    poly = optax.losses.poly_loss_cross_entropy(a, jax.nn.softmax(b))
    hinge = optax.losses.hinge_loss(a, jnp.sign(b))
    return poly, hinge, optax.losses.kl_divergence(a, jnp.exp(b))


def the_mean_of_an_empty_batch(optax):
    """The last batch of an epoch, which may be empty: the mean of no losses."""
    empty = jnp.zeros((0, 3))
    return jnp.mean(optax.l2_loss(empty, empty)), optax.l2_loss(empty).shape


def projections_onto_sets(optax):
    """Projected gradient descent onto a simplex, a ball and a box."""
    p = optax.projections
    v = jnp.array([0.5, 2.0, -1.0])
    return (
        p.projection_simplex(v),
        p.projection_l2_ball(v, 1.0),
        p.projection_box(v, 0.0, 1.0),
        p.projection_non_negative({"v": v}),
        p.projection_hypercube(v),
    )


def an_assignment(optax):
    """DETR: the Hungarian algorithm on a matrix of costs."""
    costs = jnp.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])
    i, j = optax.assignment.hungarian_algorithm(costs)
    return costs[i, j].sum()


def a_perturbed_function(optax):
    """Perturbed optimizers: an argmax that has a gradient."""
    argmax = lambda v: jax.nn.one_hot(jnp.argmax(v), 3)
    soft = optax.perturbations.make_perturbed_fun(argmax, 1000, 0.5)
    found = soft(jax.random.key(0), jnp.array([0.1, 2.0, 0.3]))
    return found.shape, jnp.argmax(found)


def arithmetic_of_trees(optax):
    """`tree_utils`, under both of its names."""
    t, u = optax.tree, optax.tree_utils
    both = t.add_scale(P, 0.5, P), u.tree_scalar_mul(2.0, P), t.vdot(P, P)
    return (
        both,
        u.tree_l2_norm(P),
        t.zeros_like(P),
        t.sum(P),
        u.tree_cast(P, "bfloat16"),
    )


def norms(optax):
    """`global_norm` and `safe_norm`, as they are logged."""
    return optax.global_norm(P), jax.grad(optax.safe_norm)(jnp.zeros(2), 1e-3)


def counts_at_their_end(optax):
    """A count that does not overflow."""
    return optax.safe_increment(jnp.int32(2**31 - 1)), optax.safe_increment(
        jnp.int32(3)
    )


def half_precision(optax):
    """Moments in bfloat16 for parameters in float32."""
    _, state = run(optax, optax.adam(1e-2, mu_dtype=jnp.bfloat16))
    return [str(x.dtype) for x in jax.tree.leaves(state)]


def loops_of_steps(optax):
    """PureJaxRL: the steps inside of `lax.scan`."""
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2))

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), loss(params)

    return jax.lax.scan(step, (P, tx.init(P)), length=4)


def meta_gradients(optax):
    """MAML: a derivative through the inner optimizer."""

    def outer(rate):
        params, _ = run(optax, optax.sgd(rate), 2)
        return loss(params)

    return jax.grad(outer)(0.1)


def complex_parameters(optax):
    """Tensor networks: complex parameters, and a complex factor."""
    p = {"z": jnp.array([1.0 + 2.0j, -1.0j])}
    tx = optax.chain(optax.scale_by_adam(), optax.scale(1j), optax.scale(-0.1))
    updates, _ = tx.update(p, tx.init(p), p)
    return updates


def private_gradients(optax):
    """Differential privacy: clipped gradients of each example."""
    tx = optax.contrib.differentially_private_aggregate(1.0, 0.0, 0)
    each = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), P)
    return tx.update(each, tx.init(P), P)[0]


def numpy_numbers(optax):
    """Configurations of NumPy's numbers and arrays."""
    tx = optax.adamw(np.float64(1e-2), b1=np.float32(0.8), weight_decay=np.array(0.1))
    return run(optax, tx)

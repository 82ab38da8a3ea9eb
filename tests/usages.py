"""Programs as people write them with Optax: a function of the library each.

The docstring names the kind of project where the usage is seen.  Each returns what it
computed, a tree of arrays and names; `test_public_usages.py` runs it on both libraries.
"""

# The library is a parameter, so that its types are variables to a type checker.
# pyright: reportInvalidTypeForm=false

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp


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

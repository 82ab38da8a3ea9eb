"""A training script written for Optax: the import is all that has been changed."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

import stepax as optax
from stepax import tree_utils as otu
from stepax.contrib import muon, reduce_on_plateau
from stepax.losses import huber_loss


class TrainState(NamedTuple):
    params: optax.Params
    opt_state: optax.OptState


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adamw": optax.adamw,
    "lion": optax.lion,
    "muon": muon,
}


def make_optimizer(
    name: str, learning_rate: float | optax.Schedule, clip: float | None = None
) -> optax.GradientTransformation:
    parts: list[optax.GradientTransformation] = []
    if clip is not None:
        parts.append(optax.clip_by_global_norm(clip))
    parts.append(OPTIMIZERS[name](learning_rate))
    return optax.chain(*parts)


def halve() -> optax.GradientTransformation:
    def init_fn(params: optax.Params) -> optax.EmptyState:
        del params
        return optax.EmptyState()

    def update_fn(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        return jax.tree.map(lambda u: u / 2, updates), state

    return optax.GradientTransformation(init_fn, update_fn)


def loss_fn(params, x, y):
    logits = x @ params["kernel"] + params["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return losses.mean() + huber_loss(logits).mean()


def steps(tx: optax.GradientTransformation, n: int) -> TrainState:
    @jax.jit
    def step(state: TrainState) -> TrainState:
        grads = jax.grad(loss_fn)(state.params, x, y)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        return TrainState(optax.apply_updates(state.params, updates), opt_state)

    state = TrainState(params, tx.init(params))
    for _ in range(n):
        state = step(state)
    return state


params = {"kernel": jnp.ones((4, 3)), "bias": jnp.zeros(3)}
x, y = jnp.linspace(-1.0, 1.0, 32).reshape(8, 4), jnp.arange(8) % 3
warmup = optax.linear_schedule(0.0, 1e-2, 3)
cosine = optax.cosine_decay_schedule(1e-2, 10)
schedule = optax.join_schedules([warmup, cosine], [3])
labels = {"kernel": "matrix", "bias": "vector"}
mask = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)

# The test compares `trained`, and what is printed, with what Optax gives.
# The line search of `lbfgs` interpolates differently, so its step is not compared.
trained = {
    name: steps(make_optimizer(name, 1e-2, 1.0), 3).params for name in OPTIMIZERS
}

tx = optax.chain(
    halve(), optax.scale_by_adam(b1=0.9), optax.scale_by_learning_rate(0.1)
)
trained["chain"] = steps(tx, 3)
print(trained["chain"].opt_state[1].mu["kernel"], otu.tree_norm(params))
print(otu.tree_get(trained["chain"].opt_state, "count"))

grouped = optax.multi_transform(
    {"matrix": optax.adamw(schedule, mask=mask), "vector": optax.set_to_zero()}, labels
)
trained["groups"] = steps(grouped, 5)
accumulated = optax.MultiSteps(optax.adam(schedule), every_k_schedule=2)
trained["steps"] = steps(accumulated.gradient_transformation(), 5)
print(accumulated.has_updated(accumulated.init(params)))

injected = optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3)
state = injected.init(params)
state.hyperparams["learning_rate"] = jnp.asarray(1e-4)
trained["injected"] = injected.update(params, state, params)

plateau = optax.chain(optax.sgd(0.1, momentum=0.9), reduce_on_plateau(patience=1))
trained["plateau"] = plateau.update(params, plateau.init(params), params, value=1.0)

solver = optax.lbfgs(memory_size=5)
value_fn = lambda params: loss_fn(params, x, y)
state = solver.init(params)
value, grad = optax.value_and_grad_from_state(value_fn)(params, state=state)
updates, state = solver.update(
    grad, state, params, value=value, grad=grad, value_fn=value_fn
)
print(value_fn(optax.apply_updates(params, updates)) < value)

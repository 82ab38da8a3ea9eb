"""Every wrapper as a function of the transformation inside, and what goes inside."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from cases import on_fast_parameters
from inside import node_of

import stepax
import stepax.contrib


def _is_matrix(params: Any) -> Any:
    """A mask that fits any tree, also one that another wrapper made."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _matrix_or_vector(params: Any) -> Any:
    return jax.tree.map(lambda p: "matrix" if p.ndim > 1 else "vector", params)


def _steps(tx: Any, k: int, **options: Any) -> Any:
    return stepax.MultiSteps(tx, k, **options).gradient_transformation()


def _skip_large(updates: Any, step: Any, params: Any) -> Any:
    return stepax.skip_large_updates(updates, step, params, max_squared_norm=1e6)


def _scaled(tx: Any, learning_rate: Any) -> Any:
    return stepax.chain(tx, stepax.scale_by_learning_rate(learning_rate))


def _injected(tx: Any) -> Any:
    factory = lambda learning_rate: _scaled(tx, learning_rate)
    return stepax.inject_hyperparams(factory)(learning_rate=0.5)


def _lookahead(tx: Any) -> Any:
    return on_fast_parameters(stepax.lookahead(tx, 2, 0.5))


def _decaying(tx: Any) -> Any:
    # Of what refuses others, the kind that all take.
    kind: Any = "coupled" if refuses_decay(tx) else "to_start"
    return stepax.with_weight_decay(tx, stepax.weight_decay(1e-2, kind), 0.5)


def refuses_decay(tx: Any) -> bool:
    """Whether a part declares that it follows only the decay that is coupled."""
    made = [part.call for part in node_of(tx).walk()]
    return any("decay" in call.shared for call in made if call)


def _traced_in_half(tx: Any) -> Any:
    tx = stepax.chain(tx, stepax.trace(0.9))
    return stepax.with_state_dtypes(tx, {"trace": jnp.bfloat16})


def _traced_in_few_bits(tx: Any) -> Any:
    tx = stepax.chain(tx, stepax.trace(0.9))
    return stepax.low_bit_states(tx, {"trace": 8}, block=2, min_size=0)


def _change(before: Any, after: Any, params: Any) -> Any:
    return stepax.tree.norm(after) - stepax.tree.norm(before)


_MEASURES = {
    "norm": stepax.tree.norm,
    "mean_norm": stepax.measure_with_ema(stepax.tree.norm, 0.9),
}

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "chain": lambda tx: stepax.chain(stepax.clip(1.0), tx),
    "named_chain": lambda tx: stepax.named_chain(
        ("clip", stepax.clip(1.0)), ("tx", tx)
    ),
    "masked": lambda tx: stepax.masked(tx, _is_matrix),
    "partition": lambda tx: stepax.partition(
        {"matrix": tx, "vector": stepax.sgd(1e-2)}, _matrix_or_vector
    ),
    "freeze": lambda tx: stepax.chain(tx, stepax.freeze(_is_matrix)),
    "inject_hyperparams": _injected,
    "MultiSteps": lambda tx: _steps(tx, 2),
    "skip_not_finite": lambda tx: _steps(
        tx, 1, should_skip_update_fn=stepax.skip_not_finite
    ),
    "skip_large_updates": lambda tx: _steps(tx, 2, should_skip_update_fn=_skip_large),
    "apply_if_finite": lambda tx: stepax.apply_if_finite(tx, 2),
    "conditionally_transform": lambda tx: stepax.conditionally_transform(
        tx, lambda step, **_: step % 2 == 0
    ),
    "conditionally_mask": lambda tx: stepax.conditionally_mask(
        tx, lambda step, **_: step % 2 == 0
    ),
    "lookahead": _lookahead,
    "schedule_free": lambda tx: stepax.contrib.schedule_free(tx, 1e-2),
    "mechanize": stepax.contrib.mechanize,
    "sam": lambda tx: stepax.contrib.sam(tx, stepax.sgd(1e-2)),
    "outer": lambda tx: stepax.contrib.diloco(tx, stepax.sgd(0.7), 2),
    "split_real_and_imaginary": stepax.contrib.split_real_and_imaginary,
    "flatten": stepax.flatten,
    "monitor": lambda tx: stepax.chain(stepax.monitor(_MEASURES), tx),
    "reduce_on_plateau": lambda tx: stepax.chain(
        tx, stepax.contrib.reduce_on_plateau(patience=1)
    ),
    "averages": lambda tx: stepax.averages(tx, 0.9),
    "master_weights": stepax.master_weights,
    "stochastic_rounding": lambda tx: stepax.stochastic_rounding(tx, 0),
    "dynamic_loss_scale": lambda tx: stepax.dynamic_loss_scale(tx, 2.0),
    "skip_spikes": lambda tx: stepax.skip_spikes(tx, watch="both", warmup=1),
    "rollback": lambda tx: stepax.rollback(tx, 1, 4.0, 2),
    "with_state_dtypes": _traced_in_half,
    "low_bit_states": _traced_in_few_bits,
    "ema_nesterov": lambda tx: stepax.contrib.ema_nesterov(tx, 0.5),
    "cautious": stepax.contrib.cautious,
    "gpa": stepax.contrib.gpa,
    "mars_correction": lambda tx: stepax.chain(
        stepax.contrib.scale_by_mars_correction(), tx
    ),
    "grokfast_ma": lambda tx: stepax.chain(stepax.contrib.grokfast_ma(2), tx),
    "hyperball": lambda tx: stepax.chain(tx, stepax.contrib.hyperball(1e-2)),
    "with_weight_decay": _decaying,
    "observe": lambda tx: stepax.observe(tx, {"change": _change}),
}

FAMILIES: dict[str, Callable[[], Any]] = {
    "momentum": lambda: stepax.sgd(1e-2, momentum=0.9),
    "adaptive": lambda: stepax.adamw(1e-2),
    "sign": lambda: stepax.lion(1e-3),
    "layerwise": lambda: stepax.lamb(1e-2),
    "factored": lambda: stepax.adafactor(1e-2, min_dim_size_to_factor=2),
    "matrix": lambda: stepax.contrib.muon(1e-2),
    "without a rate": stepax.contrib.prodigy,
    "quasi-Newton": lambda: stepax.lbfgs(1e-2, linesearch=None),
}


class SeenState(NamedTuple):
    """seen: the loss that `update` was last given."""

    seen: jax.Array


def seen() -> Any:
    """Passes updates on, and remembers the keyword `value`."""

    def init(params):
        return SeenState(jnp.float32(0.0))

    def update(updates, state, params=None, *, value, **extra_args):
        return updates, SeenState(jnp.asarray(value, jnp.float32))

    return stepax.GradientTransformationExtraArgs(init, update)


def nest(wrappers: Any, family: str) -> Any:
    """Wrappers, the outermost first, around one optimizer, with a guard before all.

    Wrappers that read or pass on raw gradients cannot leave the guard to the inside.
    """
    tx = stepax.chain(FAMILIES[family](), seen())
    for name in reversed(wrappers):
        tx = WRAPPERS[name](tx)
    return stepax.chain(stepax.zero_nans(), tx)

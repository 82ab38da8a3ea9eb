"""Signatures and fields that name Optax's types."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

import stepax


@dataclass
class Config:
    tx: optax.GradientTransformation = field(default_factory=lambda: stepax.sgd(0.1))
    others: dict[str, optax.GradientTransformation] = field(default_factory=dict)


def wrapped(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    return stepax.chain(stepax.clip_by_global_norm(1.0), inner)


def with_value(tx: optax.GradientTransformationExtraArgs, p: jax.Array) -> Any:
    updates, _ = tx.update(p, tx.init(p), p, value=1.0, grad=p, value_fn=jnp.sum)
    return updates


def made(name: str) -> optax.GradientTransformationExtraArgs:
    return stepax.adam(1e-3) if name == "adam" else stepax.lbfgs()


def fit(tx: optax.GradientTransformation, p: optax.Params) -> optax.Params:
    updates, _ = tx.update(p, tx.init(p), p)
    return optax.apply_updates(p, updates)


FACTORIES: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adamw": stepax.adamw,
    "lion": stepax.lion,
    "sgd": optax.sgd,
}

config = Config(wrapped(stepax.adamw(1e-3)), {"bias": stepax.sgd(0.1)})
config.others["kernel"] = FACTORIES["lion"](1e-3)
moved = fit(config.tx, jnp.ones(3))
trained = with_value(made("lbfgs"), jnp.ones(3))

"""The cases: optimizers that Stepax and Optax create by the same call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .stages import as_it_is


RATE = 1e-3
ELEMENTWISE = ("large", "small")
GPTS = ("gpt2", "gpt1b")


class Case(NamedTuple):
    """A transformation to measure.

    make: creates the transformation from the library and the learning rate.
    shapes: names of the trees for which it makes sense.
    on_gpu: names of further trees, which are slow on a CPU.
    calls: the period in calls; a step is their mean.
    arrange: how a library stores the parameters; gradients come as a tree.
    dtype: dtype of parameters and gradients.
    is_stepwise: whether each of those calls is timed, since they differ.
    has_floor: whether its matrix products are measured, too, by themselves.
    libraries: those that have it; `None` for all.
    """

    make: Callable[[Any, float], Any]
    shapes: tuple[str, ...] = ELEMENTWISE
    calls: int = 1
    arrange: Callable[[Any, Any], Any] = as_it_is
    dtype: Any = jnp.float32
    on_gpu: tuple[str, ...] = ()
    is_stepwise: bool = False
    has_floor: bool = False
    libraries: tuple[str, ...] | None = None


def packed(lib: Any, tree: Any) -> Any:
    """The tree packed into one vector per dtype, if the library supports it."""
    return lib.tree.pack(tree) if hasattr(lib.tree, "pack") else tree


def matrices(params: Any) -> Any:
    """The mask of the parameters that decay."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def clipped(lib: Any, rate: float) -> Any:
    return lib.chain(lib.clip_by_global_norm(1.0), lib.adamw(rate))


def scheduled(lib: Any, rate: float) -> Any:
    schedule = lib.cosine_decay_schedule(rate, 10_000)
    return lib.chain(lib.clip_by_global_norm(1.0), lib.adamw(schedule, mask=matrices))


def without_nans(lib: Any, rate: float) -> Any:
    return lib.chain(lib.zero_nans(), lib.adamw(rate))


def averaged(lib: Any, rate: float) -> Any:
    """AdamW with an exponential moving average of the parameters."""
    tx = lib.adamw(rate)

    def init(params):
        return tx.init(params), jax.tree.map(jnp.copy, params)

    def update(g, state, params=None):
        u, inner = tx.update(g, state[0], params)
        new = lib.apply_updates(params, u)
        return u, (inner, lib.incremental_update(new, state[1], 1e-3))

    return lib.GradientTransformation(init, update)


class Mastered(NamedTuple):
    """State of hand-written masters, with the field names of `master_weights`."""

    masters: Any
    inner_state: Any


def mastered(lib: Any, rate: float) -> Any:
    """AdamW on float32 masters, hand-written for libraries without such a wrapper."""
    tx = lib.adamw(rate)
    if hasattr(lib, "master_weights"):
        return lib.master_weights(tx)
    widened = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32), tree)
    step = lambda m, p: m.astype(p.dtype) - p

    def init(params):
        masters = widened(params)
        return Mastered(masters, tx.init(masters))

    def update(g, state, params=None):
        u, inner = tx.update(widened(g), state.inner_state, state.masters)
        masters = lib.apply_updates(state.masters, u)
        return jax.tree.map(step, masters, params), Mastered(masters, inner)

    return lib.GradientTransformation(init, update)


CASES = {
    "sgd, momentum": Case(
        lambda lib, rate: lib.sgd(rate, momentum=0.9), (*ELEMENTWISE, "resnet50")
    ),
    "adam": Case(lambda lib, rate: lib.adam(rate)),
    "adamw": Case(
        lambda lib, rate: lib.adamw(rate),
        (*ELEMENTWISE, "gpt2", "resnet50"),
        on_gpu=GPTS,
    ),
    "clip + adamw": Case(clipped, (*ELEMENTWISE, "many", "gpt2"), on_gpu=GPTS),
    "clip + scheduled adamw, mask": Case(scheduled, (*ELEMENTWISE, "gpt2")),
    "lion": Case(lambda lib, rate: lib.lion(rate), on_gpu=GPTS),
    "lamb": Case(lambda lib, rate: lib.lamb(rate)),
    "adafactor": Case(lambda lib, rate: lib.adafactor(rate)),
    "schedule_free_adamw": Case(
        lambda lib, rate: lib.contrib.schedule_free_adamw(rate)
    ),
    "prodigy": Case(lambda lib, rate: lib.contrib.prodigy(rate)),
    "zero_nans + adamw": Case(without_nans),
    "apply_if_finite(adamw)": Case(
        lambda lib, rate: lib.apply_if_finite(lib.adamw(rate), 5)
    ),
    "multi_steps(adamw, 4)": Case(
        lambda lib, rate: lib.MultiSteps(lib.adamw(rate), 4).gradient_transformation(),
        calls=4,
        on_gpu=GPTS,
    ),
    "adamw, float32 masters": Case(
        mastered, ("large",), dtype=jnp.bfloat16, on_gpu=GPTS
    ),
    "adamw, 8 bits": Case(
        lambda lib, rate: lib.low_bit_states(lib.adamw(rate)),
        (),
        on_gpu=("large", *GPTS),
        libraries=("stepax",),
    ),
    "adamw, 4 bits": Case(
        lambda lib, rate: lib.low_bit_states(lib.adamw(rate), 4),
        (),
        on_gpu=("large", *GPTS),
        libraries=("stepax",),
    ),
    "inject_hyperparams(adamw)": Case(
        lambda lib, rate: lib.inject_hyperparams(lib.adamw)(rate)
    ),
    "adamw, average of params": Case(averaged),
    "adamw, packed": Case(
        lambda lib, rate: lib.adamw(rate),
        ("small", "many"),
        arrange=packed,
        on_gpu=("gpt2",),
    ),
    "clip + adamw, packed": Case(clipped, ("small", "many"), arrange=packed),
    "muon": Case(
        lambda lib, rate: lib.contrib.muon(rate),
        ("vit",),
        on_gpu=GPTS,
        has_floor=True,
    ),
    "muon, bfloat16": Case(
        lambda lib, rate: lib.contrib.muon(rate, ns_dtype=jnp.bfloat16),
        (),
        on_gpu=GPTS,
        has_floor=True,
        libraries=("stepax",),
    ),
    # Bases are renewed every ten steps, all at once or in turns.
    "soap": Case(
        lambda lib, rate: lib.contrib.soap(rate),
        ("gpt256",),
        calls=10,
        on_gpu=("gpt2",),
        is_stepwise=True,
        libraries=("stepax",),
    ),
    "soap, staggered": Case(
        lambda lib, rate: lib.contrib.soap(rate, stagger=True),
        ("gpt256",),
        calls=10,
        on_gpu=("gpt2",),
        is_stepwise=True,
        libraries=("stepax",),
    ),
    # Ten pairs are twenty trees; with 600 arrays they take minutes and GB to compile.
    "lbfgs": Case(
        lambda lib, rate: lib.lbfgs(rate, memory_size=10, linesearch=None), ("vit",)
    ),
}

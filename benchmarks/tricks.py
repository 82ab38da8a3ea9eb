"""What each trick on the compiler gives: the same step with it and without.

    python -m benchmarks.tricks               those of this platform, with small arrays
    python -m benchmarks.tricks --scale 4     with sides of arrays four times as long
    python -m benchmarks.tricks --only codes  those with this word in their names
    python -m benchmarks.tricks --exact       without the times, as CI does every night

Printed are the bytes of temporaries for each parameter and the number of copies in the
program, which are exact, and how many times as long the step takes without the trick, a
median of turns.  A trick without any such figure is named at the end: try to delete it.
The table of the tricks is in `stepax/_engine/xla/__init__.py`, and
`stepax/_engine/WORKAROUNDS.md` says when to try without those of a GPU.
"""

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.experimental.layout
import jax.numpy as jnp

import stepax
from stepax._engine import xla
from stepax._engine.step import batched, coded_slots, leaf_program
from stepax._engine.trees import reduce
from stepax._engine.xla import order


TURNS = 9


class Trick(NamedTuple):
    """A trick, how to do without it, and a step that needs it.

    off: triples of an object, a name in it, and the plain form of what has that name.
    make: makes the transformation; `arrays` of `side` times `side` numbers take a step.
    """

    name: str
    platform: str
    off: tuple[tuple[Any, str, Any], ...]
    make: Callable[[], Any]
    side: int
    arrays: int = 1


def _first(x: Any, *_: Any) -> Any:
    return x


def _at_once(self: Any, kernel: Callable, g: Any, p: Any, row: Any) -> tuple:
    return kernel(g, p, row)


def _selected(accepted: Any, step: Callable, old: Any) -> Any:
    u, slots = step()
    return u, jax.tree.map(lambda x, was: jnp.where(accepted, x, was), slots, old)


def _two_sides(at: Any, sides: list) -> Any:
    return jax.lax.cond(at == 0, *sides[:2])


def adamw() -> Any:
    return stepax.adamw(1e-3)


TRICKS = [
    Trick(
        "order of results",
        "cpu",
        ((order, "has_order", lambda g, row: False),),
        lambda: stepax.lion(1e-3),
        512,
    ),
    Trick(
        "order of results, shared",
        "cpu",
        ((order, "has_order", lambda g, row: False),),
        lambda: stepax.contrib.schedule_free_adamw(1e-3),
        512,
    ),
    Trick(
        "leaves wait",
        "cpu",
        ((order.LeafOrder, "run", _at_once),),
        lambda: stepax.lamb(1e-3),
        512,
        arrays=16,
    ),
    Trick(
        "refused steps",
        "cpu",
        ((leaf_program, "step_where", _selected),),
        lambda: stepax.apply_if_finite(adamw(), 3),
        512,
    ),
    Trick(
        "kept after its readers",
        "cpu",
        ((xla, "true_after", _first),),
        lambda: stepax.contrib.soap(1e-3),
        256,
    ),
    Trick(
        "layout of what is kept",
        "cpu",
        ((jax.experimental.layout, "with_layout_constraint", _first),),
        lambda: stepax.contrib.soap(1e-3),
        256,
    ),
    Trick(
        "three sides",
        "gpu",
        ((xla, "LARGE", 2**62),),
        lambda: stepax.MultiSteps(adamw(), 4).gradient_transformation(),
        8192,
    ),
    Trick(
        "three sides of a norm",
        "gpu",
        ((reduce.jax.lax, "switch", _two_sides),),
        lambda: stepax.chain(stepax.clip_by_global_norm(1.0), adamw()),
        8192,
    ),
    Trick(
        "codes in two passes",
        "gpu",
        ((coded_slots, "takes_two_passes", lambda g, row: False),),
        lambda: stepax.low_bit_states(adamw(), 8),
        8192,
    ),
    Trick(
        "matrices in stacks",
        "gpu",
        ((batched, "STACK", 1),),
        lambda: stepax.contrib.muon(1e-3),
        512,
        arrays=64,
    ),
]


class Built(NamedTuple):
    """A compiled step on donated arrays.

    fresh: makes parameters and a state.
    temporaries: bytes for each parameter; copies: operations of the program.
    """

    run: Any
    fresh: Callable[[], tuple]
    temporaries: float
    copies: int


def build(trick: Trick, is_on: bool, scale: float = 1) -> Built:
    """The step with a trick, or without it."""
    side = int(trick.side * scale)
    sizes = {str(i): (side, side) for i in range(trick.arrays)}
    shapes = {k: jax.ShapeDtypeStruct(x, jnp.float32) for k, x in sizes.items()}
    tx = trick.make()

    def step(p, state, g):
        return stepax.step(tx, g, state, p)

    def fresh():
        p = {k: jnp.full(x, 0.01) for k, x in sizes.items()}
        return p, jax.tree.map(jnp.copy, tx.init(p))

    jax.clear_caches()  # a trace with the trick would serve without it
    with contextlib.ExitStack() as stack:
        for owner, name, plain in () if is_on else trick.off:
            stack.enter_context(mock.patch.object(owner, name, plain))
        state = jax.eval_shape(tx.init, shapes)
        lowered = jax.jit(step, donate_argnums=(0, 1)).lower(shapes, state, shapes)
        run: Any = lowered.compile()
    jax.clear_caches()
    size = run.memory_analysis().temp_size_in_bytes / (trick.arrays * side * side)
    return Built(run, fresh, size, run.as_text().count(" copy("))


def slower(pair: list[Built]) -> float:
    """How many times as long the second takes, a median over turns."""
    places = [built.fresh() for built in pair]
    g = jax.tree.map(lambda x: x * 0.1, places[0][0])
    ratios = []
    for _ in range(TURNS + 1):
        seconds = []
        for i, built in enumerate(pair):
            begin = time.perf_counter()
            for _ in range(4):
                places[i] = built.run(*places[i], g)
            jax.block_until_ready(places[i])
            seconds.append(time.perf_counter() - begin)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios[1:])


def is_needed(found: Built, without: Built, ratio: float = 1) -> bool:
    """Whether a step with a trick needs less than the one without it."""
    # Beside what a compiler may need for sums and counts.
    is_smaller = found.temporaries < without.temporaries - 0.1
    return is_smaller or found.copies < without.copies or ratio > 1.05


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a part of names of tricks")
    parser.add_argument("--scale", type=float, default=1, help="of sides of arrays")
    parser.add_argument("--exact", action="store_true", help="measure no times")
    asked = parser.parse_args()
    print(f"JAX {jax.__version__} on {jax.devices()[0].device_kind}")
    print(f"{'':26} {'temporaries':>15} {'copies':>9} {'time without':>13}")
    useless = []
    for trick in TRICKS:
        if trick.platform == jax.default_backend() and asked.only in trick.name:
            pair = [build(trick, is_on, asked.scale) for is_on in (True, False)]
            sizes = " ".join(f"{x.temporaries:7.2f}" for x in pair)
            copies = " ".join(f"{x.copies:4}" for x in pair)
            ratio = 1 if asked.exact else slower(pair)
            print(f"{trick.name:26} {sizes} {copies} {ratio:13.2f}", flush=True)
            useless += [] if is_needed(pair[0], pair[1], ratio) else [trick.name]
    mark = "::warning::" if os.environ.get("GITHUB_ACTIONS") else ""
    for name in useless:
        print(f"{mark}JAX {jax.__version__} no longer needs `{name}`: try to delete it")


if __name__ == "__main__":
    main()

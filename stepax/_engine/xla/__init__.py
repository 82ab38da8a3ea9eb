"""Branches that only cost the side that is taken, and steps that may be rejected.

This room has what Stepax does for the sake of XLA.  Each trick is chosen for the
platform for which a program is lowered, and measured by `python -m benchmarks.tricks`:
bytes of temporaries for each parameter, with and without it, and how many times as long
a step takes without it; on two cores with JAX 0.10.2 (0.12.0 has the same bytes), and
on an H100 with JAX 0.11.2.

    what                      where           step                   bytes    time
    order of results          `in_order`      Lion                   0, 4     1.4 to 2.3
                                              Schedule-Free AdamW    0, 4     0.8 to 2.0
    leaves wait               `LeafOrder`     LAMB, 16 arrays        0.25, 4  1.8 to 2.2
    refused steps             `step_where`    apply_if_finite        0, 4     1.3 to 1.9
    kept after its readers    `true_after`    SOAP                   36, 44
    layout of what is kept    `kept_or`       SOAP, 23 copies for 26         1.1
    three sides               `branch`        MultiSteps, H100                1.6, 1.7
    three sides of a norm     trees/reduce    clip and AdamW, H100            1.1
    codes in two passes       coded_slots     AdamW in 8 bits, H100  4, 9     3.5
    matrices in stacks        step/batched    64 of Muon, H100       18, 0.4  2.9

It also says which of them XLA no longer needs; `WORKAROUNDS.md`, in the folder above,
lists these and all others with the version of JAX at which to try without.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from ..base import ArrayTree


T = TypeVar("T")

# Number of elements from which a GPU computes longer than its host waits for a boolean.
LARGE = 2**24


def by_platform(
    default: Callable[..., T],
    *args: Any,
    cpu: Callable[..., T] | None = None,
    gpu: Callable[..., T] | None = None,
) -> T:
    """The result of the function for the platform that the program is lowered for.

    All are traced, but only one is lowered.  The host, whose devices a trace could ask
    for, need not be where the program runs.

    default: the function for platforms whose function is `None`, with the same
        arguments.
    """
    given = {"cpu": cpu, "cuda": gpu, "rocm": gpu}
    given = {name: f for name, f in given.items() if f is not None}
    return jax.lax.platform_dependent(*args, default=default, **given)


def branch(
    pred: ArrayLike,
    on_true: Callable[[], T],
    on_false: Callable[[], T],
    elements: int = 0,
) -> T:
    """The result of the chosen function; the other one is not run.

    Under `vmap` both sides run, because `lax.cond` becomes a select; on a GPU XLA does
    the same, unless they call its libraries.

    elements: number of elements of arrays that one side returns unchanged and the other
        one computes in place; if it is large, a GPU also runs only one side.
    """
    # Outside of `jit` Python decides: `lax.cond` recompiles both sides on each call,
    # because its branches are new functions each time.
    if not isinstance(pred, Tracer):
        return on_true() if pred else on_false()
    # Only inside `shard_map` do types say along which mesh axes a value varies.
    if jax.sharding.get_abstract_mesh().manual_axes:
        on_true, on_false = _equally_varying(on_true, on_false)
    if elements < LARGE:
        return jax.lax.cond(pred, on_true, on_false)
    # Jitted, so that each is traced once.
    on_true, on_false = jax.jit(on_true), jax.jit(on_false)
    # With three sides XLA does not compute all, but a CPU would copy what they keep.
    sides = [on_true, on_false, on_false]
    return by_platform(
        lambda pred: jax.lax.cond(pred, on_true, on_false),
        pred,
        gpu=lambda pred: jax.lax.switch(jnp.where(pred, 0, 1), sides),
    )


def kept_or(
    renew: ArrayLike, new: Callable[[], T], old: T, readers: Sequence[jax.Array] = ()
) -> T:
    """`new()` if `renew`, otherwise `old`, without any computation or copy.

    readers: all arrays that are computed from `old`, except the result of `new`; not
        under a `vmap` that `renew` is not under, or both sides would run.
    """

    # XLA does not copy what is kept if all its readers come before the branch, and if
    # its memory layout is the same after both sides.
    def made():
        # Imported here, since `import jax` does not.
        from jax.experimental.layout import Layout, with_layout_constraint

        # The last axis is contiguous; LAPACK's arrays are stored by columns.
        return jax.tree.map(
            lambda x: with_layout_constraint(x, Layout(tuple(range(x.ndim)))), new()
        )

    if isinstance(renew, Tracer):
        renew = true_after(renew, readers)
    return branch(renew, made, lambda: old)


def true_after(flag: ArrayLike, arrays: Sequence[jax.Array]) -> ArrayLike:
    """A flag, which XLA knows only once it has computed some arrays.

    A barrier would not work: XLA removes it before it decides what to copy.
    """
    # Inside of `shard_map` types would say that it differs between devices.
    is_manual = bool(jax.sharding.get_abstract_mesh().manual_axes)
    arrays = [x for x in arrays if x.size]
    if is_manual or not arrays:
        return flag
    # No square is 2 modulo 4: this is always true.  XLA cannot prove it, so it waits
    # for the arrays.
    signs = [(x.real.reshape(-1)[0] > 0).astype(jnp.int32) for x in arrays]
    n = sum(signs[1:], signs[0]) + 1
    return flag & (n * n % 4 != 2)


def only_after(flag: ArrayLike, x: jax.Array) -> jax.Array:
    """`x`, which XLA computes only after a flag of `true_after`."""
    return jnp.where(flag, x, jnp.zeros_like(x))


def _equally_varying(*sides: Callable[[], T]) -> list[Callable[[], T]]:
    """The sides, made to vary over the same axes inside `shard_map`, as `cond` asks."""
    # Traced only for their types: a side that keeps the old state often varies over
    # fewer axes than one that has seen gradients.
    shapes = [jax.eval_shape(side) for side in sides]
    axes = jax.tree.map(lambda x, y: varying(x) | varying(y), *shapes)

    def vary(x, wanted):
        missing = tuple(wanted - varying(jax.typeof(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return [lambda side=side: jax.tree.map(vary, side(), axes) for side in sides]


def varying(x: Any) -> frozenset:
    """The mesh axes along which a value differs inside `shard_map`."""
    if not hasattr(x, "manual_axis_type"):  # before JAX 0.10
        return x.vma or frozenset()
    kind = x.manual_axis_type  # `None` in shapes under `pmap`, which does not check
    return kind.varying if kind else frozenset()


def step_where(
    accepted: jax.Array, step: Callable[[], ArrayTree], old: ArrayTree
) -> ArrayTree:
    """`step()`, which returns an update and slots, with the slots of `old` if rejected.

    The update is that of `step` if it is accepted, and unspecified if it is not.

    The slots are selected element by element.  XLA would compute the new ones twice,
    once for the update and once for the selection, and copy the old ones first, as they
    are overwritten in between.  So the update is computed from the selected slots: they
    are the new ones where the step is accepted, and elsewhere it is not used.
    """
    # Imported here, because it loads half of JAX, and few steps can be rejected.
    from .jaxprs import traced, update_from

    closed, run, rebuild = traced(step)
    _, *new = run()
    pairs = zip(new, jax.tree.leaves(old), strict=True)
    kept = [jnp.where(accepted, x, was) for x, was in pairs]
    u = update_from(closed, kept)
    return rebuild([u, *kept])

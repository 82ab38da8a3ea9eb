"""Muon: orthogonalized momentum.

Jordan et al., 2024, Muon: An optimizer for hidden layers in neural networks
(kellerjordan.github.io/posts/muon); Bernstein and Newhouse, 2024 (arXiv:2409.20325),
for the dual norm; Liu et al., 2025, Muon is Scalable for LLM Training
(arXiv:2502.16982), section 2.2, for steps of equal root mean square.

Differences from Jordan, unless `bias_correction=False`, `adam_nesterov=False`: the
momentum is a bias-corrected EMA, and `adamw` has Nesterov momentum, too.
Differences from Optax: `scale_by_muon` without dimension numbers accepts any tree, and
returns the EMA for arrays that are not matrices; `aol` uses `eps`; the iteration runs
in float32 for narrower gradients, unless `ns_dtype` is given.
"""

import functools as ft
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction as correction_at, corrected, ema
from .._engine.arrays.numerics import safe_increment
from .._engine.step.batched import Sharding
from .._transforms.decay import add_decayed_weights
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import partition
from . import matrices, orthogonal
from .adam import adamw
from .matrices import (
    DimensionNumbersOrFn,
    MuonDimensionNumbers as MuonDimensionNumbers,
)


PAPER = "https://kellerjordan.github.io/posts/muon"

Preconditioning = Literal["frobenius", "spectral", "aol", "schatten"]


@rx.optax_compatible
class MuonState(rx.optax.contrib.MuonState):
    """count: steps taken, a scalar.

    mu: EMA of g, shaped like the parameters.
    ns_coeffs: coefficients of the iteration, (3,), or (steps, 3).
    """

    count: jax.Array
    mu: rx.ArrayTree
    ns_coeffs: jax.Array


@rx.traits("orthogonalizes")
@rx.public(paper=PAPER)
def scale_by_muon(
    ns_coeffs: orthogonal.Coefficients = (3.4445, -4.775, 2.0315),
    ns_steps: rx.Whole = 5,
    beta: rx.ArrayLike = 0.95,
    eps: rx.ArrayLike = 1e-8,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    ns_dtype: rx.DTypeLike | None = None,
    sharding: Sharding = "auto",
    axis_name: rx.AxisName = None,
    bias_correction: bool = True,
) -> rx.GradientTransformation:
    """Replace the EMA of g, m = U S Vᵀ, by roughly U Vᵀ; see `orthogonalize`.

        mu = beta mu + (1 - beta) g
        m = mu,   or beta mu + (1 - beta) g if `nesterov`;   both bias-corrected
        u = o = orthogonalize(m),   Σ(m o) o if `adaptive`,   m if it is not a matrix

    ns_coeffs: (a, b, c) for all steps, an (n, 3) array for n steps, "muon", "dion",
        "polar_express" or "polar_express_long".
    ns_steps: steps of the iteration, at least 0; an array or "dion" fixes them.
    beta: decay rate of the EMA, in [0, 1].
    eps: added to the norm by which m is divided first; at least 0.
    mu_dtype: dtype of `mu`; defaults to the parameter's.
    nesterov, adaptive: whether to use Nesterov momentum; to multiply by m's dual norm.
    preconditioning: divisor of m: "frobenius", "spectral" (slow), "aol" or "schatten".
    weight_dimension_numbers: `MuonDimensionNumbers` for all arrays, a tree of them with
        `None` for other arrays, a function from the gradients to such a tree, or path
        patterns as in `partition`.  By default, 2D arrays are matrices.
    ns_dtype: dtype of the iteration, such as bfloat16; float32 or wider if `None`.
    sharding: "stack" stacks matrices of equal shape and shards the stack over devices,
        "none" keeps the sharding of each, "auto" stacks two or more that are on a mesh.
    axis_name: mesh axis over which the first axis of arrays is sharded inside
        `shard_map`, or their `PartitionSpec`; without it, each shard is treated as a
        whole array.
    bias_correction: whether m is corrected; Jordan's is not.
    """
    numbers = orthogonal.coefficients(ns_coeffs, ns_steps)
    rx.require_one_of("preconditioning", preconditioning, orthogonal.NORMS)
    rx.require_one_of("sharding", sharding, ("auto", "stack", "none"))
    norm = orthogonal.divisor(ns_coeffs, preconditioning)
    is_stack = weight_dimension_numbers is not None

    def prepare(scalars, stat, extra):
        count, abc = scalars
        t = safe_increment(count)
        c1 = correction_at(beta, t) if bias_correction else None
        is_ahead = bias_correction and nesterov
        c1_next = correction_at(beta, safe_increment(t)) if is_ahead else None
        return (c1, c1_next, orthogonal.rows_of(abc, ns_steps)), (t, abc)

    def leaf(g, p, ctx, mu):
        mu = ema(mu, g, beta)
        if bias_correction:
            return corrected(mu, g, beta, *ctx[:2]), mu
        return ema(mu, g, beta) if nesterov else mu, mu

    def orthogonalized(m, ctx):
        o = orthogonal.orthogonalize(m, ctx[-1], norm, eps, ns_dtype).astype(m.dtype)
        if adaptive:  # times the dual norm
            o = jnp.sum((m * jnp.conj(o)).real, (-2, -1), keepdims=True) * o
        return (o,)

    wants = ft.partial(_is_matrix, is_stack)
    batched = rx.Batched(
        orthogonalized,
        wants,
        sharding=sharding,
        split=rx.ArraySplit(axis_name),
        is_product=True,
    )

    scalars = {**rx.COUNT, "ns_coeffs": lambda params: jnp.array(numbers, float)}
    slots = {"mu": rx.Slot(dtype=mu_dtype)}
    rule = rx.Rule(leaf, MuonState, slots, scalars, prepare, batched=batched)
    tx = rx.build(rule)
    if not is_stack:
        return tx
    find = _finder(weight_dimension_numbers, "weight_dimension_numbers")
    return matrices.on_matrices(tx, find, ("mu",))


def _is_matrix(is_stack, x):
    return x.ndim == 2 or (is_stack and x.ndim > 2)


def _finder(spec: DimensionNumbersOrFn, what: str) -> Callable:
    kind = MuonDimensionNumbers
    return ft.partial(matrices.resolve, spec, kind=kind, what=what)


@rx.recorded
def _scale_by_shape(
    consistent_rms: rx.ArrayLike | None,
    is_stack: bool,
    axis_name: rx.AxisName,
    kind: orthogonal.ShapeFactor = "jordan",
) -> rx.Rule:
    """Scale updates by a factor of the matrix shape."""
    orthogonal.check_shape_factor(kind)
    parts = rx.ArraySplit(axis_name)
    # An array may be traced, so it is only compared with `None`.
    how: tuple = (kind,) if consistent_rms is None else ("rms", consistent_rms)

    def leaf(g, p, ctx):
        if not _is_matrix(is_stack, g):
            return (g,)
        return (orthogonal.shape_factor(parts.shape(g)[-2:], *how) * g,)

    return rx.Rule(leaf)


@rx.public("optimizer", paper=PAPER)
def muon(
    learning_rate: rx.ScalarOrSchedule | None,
    ns_coeffs: orthogonal.Coefficients = (3.4445, -4.775, 2.0315),
    ns_steps: rx.Whole = 5,
    beta: rx.ArrayLike = 0.95,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    adam_b1: rx.ArrayLike = 0.9,
    adam_b2: rx.ArrayLike = 0.999,
    adam_eps_root: rx.ArrayLike = 0.0,
    adam_weight_decay: rx.ScalarOrSchedule = 0.0,
    adam_learning_rate: rx.ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: DimensionNumbersOrFn = None,
    consistent_rms: rx.ArrayLike | None = None,
    ns_dtype: rx.DTypeLike | None = None,
    sharding: Sharding = "auto",
    axis_name: rx.AxisName = None,
    bias_correction: bool = True,
    shape_factor: orthogonal.ShapeFactor = "jordan",
    adam_eps: rx.ArrayLike | None = None,
    adam_nesterov: bool | None = None,
) -> rx.GradientTransformationExtraArgs:
    """Muon for matrices, `adamw` for all other arrays
    (Jordan et al., 2024, kellerjordan.github.io/posts/muon).

        p = p - learning_rate (f u + weight_decay p)
        with u the output of `scale_by_muon`

    learning_rate, adam_learning_rate: scalars or schedules; one for both by default.
    weight_decay, adam_weight_decay: scalars or schedules.
    weight_decay_mask: which matrices decay; see `masked`.
    ns_coeffs, ns_steps: coefficients and steps of the iteration; see `scale_by_muon`.
    beta: decay rate of the EMA, in [0, 1].
    eps: added to the norm by which m is divided, at least 0.
    mu_dtype, nesterov: storage dtype of the EMA; whether to use Nesterov momentum.
    adaptive: whether to multiply by the dual norm of m.
    preconditioning: norm by which m is divided first; see `scale_by_muon`.
    adam_b1, adam_b2, adam_eps_root: `b1`, `b2` and `eps_root` of `adamw`.
    adam_eps, adam_nesterov: for `adamw`; default to `eps` and `nesterov`.
    muon_weight_dimension_numbers: `weight_dimension_numbers` of `scale_by_muon`; arrays
        with `None` are left to `adamw`.
    consistent_rms: replaces `shape_factor`: c in f = c sqrt(max(inputs, outputs)).
    shape_factor: f: "jordan" sqrt(max(1, outputs / inputs)), "spectral" sqrt(outputs /
        inputs), "rms" 0.2 sqrt(max(inputs, outputs)), or `None` 1.
    bias_correction: whether the mean is corrected; Jordan's is not.
    ns_dtype: dtype of the iteration, such as bfloat16; float32 or wider if `None`.
    sharding, axis_name: how the iteration is distributed; see `scale_by_muon`.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.

    >>> tx = stepax.contrib.muon(1e-2, adam_learning_rate=1e-3)
    """
    spec = muon_weight_dimension_numbers
    find = _finder(spec, "muon_weight_dimension_numbers")
    by_shape = _scale_by_shape(
        consistent_rms, spec is not None, axis_name, shape_factor
    )
    if spec is not None:
        by_shape = matrices.on_matrices(by_shape, find, ())
    given = locals() | {"weight_dimension_numbers": spec}
    direction = rx.pass_on(scale_by_muon, given)
    for_matrices = chain(
        direction,
        by_shape,
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    for_others = adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate,
        adam_b1,
        adam_b2,
        eps if adam_eps is None else adam_eps,
        adam_eps_root,
        mu_dtype,
        adam_weight_decay,
        nesterov=nesterov if adam_nesterov is None else adam_nesterov,
    )
    parts = {"muon": for_matrices, "adam": for_others}
    return partition(parts, ft.partial(_labels, find))


def _labels(find: Callable, params: rx.Params) -> rx.ArrayTree:
    leaves, treedef = jax.tree.flatten(params, is_leaf=rx.is_none)
    # `None` is in both partitions, as in Optax.
    pairs = zip(leaves, find(params), strict=True)
    return treedef.unflatten(
        p if p is None else "muon" if x else "adam" for p, x in pairs
    )

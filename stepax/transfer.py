"""Hyperparameters of a small run for a large one: factors for each array.

    base = jax.eval_shape(lambda: init(width=64))
    factors = stepax.transfer.mup(params, base)
    params = factors.scaled(params)
    tx = stepax.adamw(factors.rate(1e-3), weight_decay=factors.decay(0.1))

The best learning rate of the base model is then about the best of the large one.
`horizon` and `batch` are for longer runs and larger batches, and `power_law` finds
exponents.

Papers: Yang et al., Tensor Programs V (arXiv 2203.03466), Table 3, for `mup`; Yang,
Simon and Bernstein, A Spectral Condition for Feature Learning (arXiv 2310.17813), for
`spectral`; Yang et al., Tensor Programs VI (arXiv 2310.02244), for `depth`; Bjorck et
al., Scaling Optimal LR Across Token Horizons (arXiv 2409.19913), for `horizon`; Malladi
et al., On the SDEs and Scaling Rules for Adaptive Gradient Algorithms (arXiv
2205.10287), Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677), and Shulgin
et al., Deriving Hyperparameter Scaling Laws via Modern Optimization Theory (arXiv
2603.15958), for `batch`.
"""

import itertools as it
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np

from ._engine import rules as rx
from ._engine.factories.ranges import whole_number
from ._engine.inspect import Printable, Table
from ._names import attributes
from ._optimizers.matrices import Axes, resolve
from ._optimizers.muon import MuonDimensionNumbers
from ._sweep.fit import Estimate, PowerLaw, power_law


__all__ = [
    "Estimate", "PowerLaw", "Transfer", "batch", "depth", "horizon", "mup", "power_law",
    "spectral",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


# How the size of an update depends on that of the gradient: "adam" means any optimizer
# whose updates have about the same size in each element, such as Adam, Lion, Adafactor
# and SOAP; "sgd" one whose updates are linear in the gradient, with or without
# momentum; "muon" one that orthogonalizes matrices, without a factor for their shape.
Optimizer: TypeAlias = Literal["adam", "sgd", "muon"]


class _Array(NamedTuple):
    """fan_in, fan_out: those of a matrix; 1 and the size for other arrays.

    wider, taller: ratios of the fan-in and the fan-out to those of the base.
    """

    fan_in: int
    fan_out: int
    wider: float
    taller: float
    is_matrix: bool


@dataclass(frozen=True, repr=False)
class Transfer(Printable):
    """Factors by the paths of arrays, such as "layers/0/weight".

    rates: factors of learning rates.
    decays: factors of weight decay that is multiplied by the learning rate, as in
        `adamw`.
    scales: factors of initial values whose standard deviation is 1 / sqrt(fan-in), or
        depends only on the fan-in in another way.
    branch: factor by which the model must multiply the output of a residual branch.
    forgetting: factor of 1 - b, for every decay b of an average over steps.
    eps: factor of `eps` in optimizers that divide by the size of gradients.
    """

    rates: Mapping[str, float]
    decays: Mapping[str, float]
    scales: Mapping[str, float]
    branch: float = 1.0
    forgetting: float = 1.0
    eps: float = 1.0

    def rate(self, learning_rate: float) -> dict[str, float]:
        """A learning rate for each path, to pass to an optimizer.

        For a schedule put `scale_by_path(factors.rates)` after the optimizer.
        """
        return {k: learning_rate * x for k, x in self.rates.items()}

    def decay(self, weight_decay: float) -> dict[str, float]:
        """A weight decay for each path, to pass to an optimizer."""
        return {k: weight_decay * x for k, x in self.decays.items()}

    def average(self, b: float) -> float:
        """The decay of an average over steps, such as `b1`, `b2` or `momentum`.

        Raises a `ValueError` if the average would be shorter than one step.
        """
        found = 1 - self.forgetting * (1 - b)
        if not found >= 0:
            raise ValueError(
                f"1 - {b} times {self.forgetting:.4g} is more than 1: the average "
                "would be shorter than a step of the larger batch"
            )
        return found

    def scaled(self, params: rx.Params) -> rx.Params:
        """The initial parameters, scaled, in their dtypes.

        Integers, booleans, random keys and leaves that are not arrays are unchanged.

        params: parameters with the paths of the tree that the factors were made from.

        Raises a `ValueError` for an array without a factor.
        """

        def leaf(name, x):
            if not rx.is_array(x):
                return x
            if name not in self.scales:
                known = rx.errors.list_some([*self.scales])
                raise ValueError(f"there is no factor for {name}, only for {known}")
            return _times(x, self.scales[name])

        leaves, treedef = jax.tree.flatten(params, is_leaf=rx.is_none)
        return treedef.unflatten(map(leaf, _paths(params), leaves))

    def __mul__(self, other: "Transfer") -> "Transfer":
        """The product, as of factors for width and depth; raises unless paths agree."""
        if self.rates.keys() != other.rates.keys():
            raise ValueError("these factors are for different arrays")

        def product(a: Any, b: Any) -> Any:
            by_path = isinstance(a, Mapping)
            return {k: a[k] * b[k] for k in a} if by_path else a * b

        return Transfer(*map(product, vars(self).values(), vars(other).values()))

    def tables(self) -> list[Table]:
        header = ["path", "rate", "decay", "initial scale"]
        columns = self.rates, self.decays, self.scales
        rows = [[k, *(f"{x[k]:.4g}" for x in columns)] for k in self.rates]
        whole = {"branch": self.branch, "1 - b": self.forgetting, "eps": self.eps}
        changed = [[k, f"{x:.4g}"] for k, x in whole.items() if x != 1]
        return [(header, rows), *[(["of all", "factor"], changed)] * bool(changed)]


def _times(x: Any, scale: float) -> Any:
    if isinstance(x, bool | int | float | complex):
        return x * scale if isinstance(x, float | complex) else x
    # NumPy makes float32 of its bfloat16.
    return (x * scale).astype(x.dtype) if rx.is_inexact(x) else x


@rx.explain_misuse
def mup(
    params: rx.Params,
    base_params: rx.Params,
    *,
    optimizer: Optimizer = "adam",
    weight_dimension_numbers: Any = None,
) -> Transfer:
    """Factors of the maximal update parametrization for a change of width.

        rate:  1 / a,  b / a,  sqrt(b / a)  for "adam", "sgd", "muon"
        decay:  1 / rate
        initial scale:  1 / sqrt(a) if b = 1,  otherwise 1

    where the fan-in of an array is a times that of the base, and its fan-out b times.
    Arrays with fewer than two axes are biases and gains, whose fan-in is 1; "muon"
    leaves them to Adam.

    params, base_params: two models that differ in width, as trees of arrays, or of
        their shapes as from `jax.eval_shape`.
    optimizer: "adam" for updates whose size does not depend on the gradient, "sgd" for
        updates linear in it, "muon" for orthogonal updates without a factor for their
        shape.
    weight_dimension_numbers: which axes are summed over and which are outputs, as for
        `muon`; by default the last but one and the last axis of arrays with two or
        more.

    Raises a `ValueError` with the path of an array that differs in its number of axes,
    or grows along an axis that is neither.
    """
    found = _compared(params, base_params, weight_dimension_numbers)

    def scale(x):
        return x.wider**-0.5 if x.is_matrix and x.taller == 1 else 1.0

    return _transfer(found, optimizer, scale)


@rx.explain_misuse
def spectral(
    params: rx.Params,
    base_params: rx.Params,
    *,
    optimizer: Optimizer = "adam",
    weight_dimension_numbers: Any = None,
) -> Transfer:
    """Factors with which weights and updates keep spectral norms ~ sqrt(out / in).

        rate:  1 / a,  b / a,  sqrt(b / a)  for "adam", "sgd", "muon"
        decay:  1 / rate
        initial scale:  min(1, sqrt(out / in)),  divided by that of the base

    The learning rates are those of `mup`; the initial scale depends on the sizes
    themselves.  The fan-in is a times that of the base, and the fan-out b times.

    Arguments: those of `mup`.

    Raises a `ValueError` with the path of an array that differs in its number of axes,
    or grows along an axis that is neither.
    """
    found = _compared(params, base_params, weight_dimension_numbers)

    def scale(x):
        base = _flat(x.fan_in / x.wider, x.fan_out / x.taller)
        return _flat(x.fan_in, x.fan_out) / base if x.is_matrix else 1.0

    return _transfer(found, optimizer, scale)


@rx.explain_misuse
def depth(
    params: rx.Params,
    layers: int,
    base_layers: int,
    *,
    where: str = "**",
    optimizer: Optimizer = "adam",
) -> Transfer:
    """Factors for a change of the number of layers with residual branches.

        rate:  1 / sqrt(r)  for "adam" and "muon",  1 for "sgd";   decay:  1 / rate
        branch:  1 / sqrt(r),     r = layers / base_layers

    The model must multiply the output of each residual branch by `branch`.  Multiply by
    the factors of `mup` if the width changes, too.

    params: the model, as a tree of arrays or of their shapes.
    layers, base_layers: numbers of layers, >= 1.
    where: a pattern of the paths of arrays in layers, such as "blocks/**".
    optimizer: "adam", "sgd" or "muon", which determines the size of updates.

    Raises a `ValueError` for a pattern that matches nothing.
    """
    less = math.sqrt(
        whole_number("base_layers", base_layers) / whole_number("layers", layers)
    )
    rx.errors.require_one_of("optimizer", optimizer, _RATES)
    factor = 1.0 if optimizer == "sgd" else less
    names = _paths(params)
    inside = rx.selection.resolve_patterns([where], params, "where", is_open=True)
    pairs = zip(names, inside, jax.tree.leaves(params, is_leaf=rx.is_none), strict=True)
    rates = {k: factor if i == 0 else 1.0 for k, i, x in pairs if rx.is_array(x)}
    decays = {k: 1 / x for k, x in rates.items()}
    return Transfer(rates, decays, dict.fromkeys(rates, 1.0), less)


@rx.explain_misuse
def horizon(
    params: rx.Params, tokens: float, base_tokens: float, *, exponent: float = 0.32
) -> Transfer:
    """Factors for training on more tokens, with the same batch size and schedule.

        rate:  k^-exponent,    k = tokens / base_tokens

    Nothing else changes: the exponent was measured with AdamW at a weight decay that
    is the same for all lengths.  For optimizers whose steps have a given norm, such as
    Muon, Scion and Lion, bounds of convergence at a fixed batch size and momentum give
    1/2.  `power_law` measures it.

    params: the model, as a tree of arrays or of their shapes.
    tokens, base_tokens: training tokens, or samples, or steps, positive.
    exponent: >= 0.
    """
    longer = _positive("tokens", tokens) / _positive("base_tokens", base_tokens)
    if not exponent >= 0:
        raise ValueError(f"`exponent` must be >= 0, but is {exponent}")
    return _uniform(params, longer**-exponent, 1.0)


# The exponents of k, which batches grow by: of rate, weight decay, 1 - b and eps.
_RULES = {
    "sqrt": (0.5, 0.5, 1.0, -0.5),
    "linear": (1.0, 0.0, 0.0, 0.0),
    "lmo": (1.0, 0.0, 1.0, 0.0),
}


@rx.explain_misuse
def batch(
    params: rx.Params,
    size: float,
    base_size: float,
    *,
    rule: Literal["sqrt", "linear", "lmo"] = "sqrt",
) -> Transfer:
    """Factors for a larger batch and as many tokens, in fewer steps.

                   rate      decay     1 - b   eps
        "sqrt"     sqrt(k)   sqrt(k)   k       1 / sqrt(k)
        "linear"   k         1         1       1
        "lmo"      k         1         k       1              k = size / base_size

    "sqrt" is for Adam and RMSProp, whose path it keeps while noise dominates gradients;
    "linear" for SGD; "lmo" for steps of a given norm, such as those of Muon, Scion and
    Lion, where an average then spans as many tokens as before.  Decay is such that the
    product of rate and decay stays the same per token.

    params: the model, as a tree of arrays or of their shapes.
    size, base_size: samples, or tokens, per step, positive.
    rule: "sqrt", "linear" or "lmo".

    All three hold up to a critical batch size, which they do not know.
    """
    rx.errors.require_one_of("rule", rule, _RULES)
    larger = _positive("size", size) / _positive("base_size", base_size)
    return _uniform(params, *(larger**x for x in _RULES[rule]))


def _positive(name: str, x: float) -> float:
    if not 0 < x < math.inf:
        raise ValueError(f"`{name}` must be positive and finite, but is {x}")
    return x


def _uniform(params: rx.Params, rate: float, decay: float, *rest: float) -> Transfer:
    """The same factors for every array."""
    leaves = jax.tree.leaves(params, is_leaf=rx.is_none)
    names = [k for k, x in zip(_paths(params), leaves, strict=True) if rx.is_array(x)]
    rates, decays, scales = (dict.fromkeys(names, x) for x in (rate, decay, 1.0))
    return Transfer(rates, decays, scales, 1.0, *rest)


_RATES: dict[str, Callable[[_Array], float]] = {
    "adam": lambda x: 1 / x.wider,
    "sgd": lambda x: x.taller / x.wider,
    "muon": lambda x: math.sqrt(x.taller / x.wider) if x.is_matrix else 1.0,
}


def _transfer(found: dict[str, _Array], optimizer: str, scale: Callable) -> Transfer:
    rx.errors.require_one_of("optimizer", optimizer, _RATES)
    rates = {k: _RATES[optimizer](x) for k, x in found.items()}
    decays = {k: 1 / x for k, x in rates.items()}
    return Transfer(rates, decays, {k: scale(x) for k, x in found.items()})


def _paths(tree: rx.ArrayTree) -> list[str]:
    # A tree that is a single array has no path, and any pattern matches it.
    return ["/".join(names) or "**" for names in rx.selection.leaf_names(tree)]


def _compared(params: rx.Params, base: rx.Params, spec: Any) -> dict[str, _Array]:
    """The arrays of a model compared with those of the base, by path."""
    structs = [jax.tree.structure(x, is_leaf=rx.is_none) for x in (params, base)]
    if structs[0] != structs[1]:
        raise rx.errors.mismatch("base_params", base, "the parameters", params)
    leaves, treedef = jax.tree.flatten(params, is_leaf=rx.is_none)
    shapes = [
        jax.ShapeDtypeStruct(np.shape(x), np.float32) if rx.is_array(x) else None
        for x in leaves
    ]
    is_guess = spec is None
    spec = MuonDimensionNumbers(-2, -1) if is_guess else spec
    what = "weight_dimension_numbers"
    axes = resolve(spec, treedef.unflatten(shapes), MuonDimensionNumbers, what)
    bases = jax.tree.leaves(base, is_leaf=rx.is_none)
    rows = zip(_paths(params), shapes, bases, axes, strict=True)
    return {
        k: _one(k, x.shape, np.shape(y), z, is_guess)
        for k, x, y, z in rows
        if x is not None
    }


def _one(
    path: str, shape: tuple, base: tuple, axes: Axes | None, is_guess: bool
) -> _Array:
    if len(shape) != len(base):
        raise ValueError(
            f"`base_params` has shape {base} for {path}, but `params` has {shape}: "
            "expected equal numbers of axes"
        )
    if 0 in base + shape:
        return _Array(1, 1, 1.0, 1.0, False)
    growth = [n / m for n, m in zip(shape, base, strict=True)]
    if axes is None:
        return _Array(1, math.prod(shape), 1.0, math.prod(growth), False)
    for i in axes.stack(len(shape)):
        if growth[i] != 1 and is_guess:
            raise ValueError(
                f"axis {i} of {path} grows from {base[i]} to {shape[i]}, but is "
                "neither fan-in nor fan-out: name its axes with `"
                f'weight_dimension_numbers={{"{path}": MuonDimensionNumbers(...)}}`'
            )
    sides = it.product((shape, growth), (axes.rows, axes.columns))
    a, b, c, d = (math.prod(xs[i] for i in at) for xs, at in sides)
    return _Array(a, b, c, d, True)


def _flat(n: float, m: float) -> float:
    """The scale of a matrix by its fan-in and fan-out."""
    return min(1.0, math.sqrt(m / n))

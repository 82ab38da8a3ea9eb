"""The result of a solver, why it stopped, and the covariance of a fit."""

import enum
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .frame import split
from .pack import Flat


class Status(enum.IntEnum):
    """Why a solver stopped; `message` explains it in a sentence.

    The first four are successes.  Not every solver knows all of them.
    """

    _value_: int
    message: str

    def __new__(cls, value: int, message: str):
        member = int.__new__(cls, value)
        member._value_, member.message = value, message
        return member

    CONVERGED_BY_GRADIENT = (
        0,
        "Converged: no element of the gradient is above its tolerance.",
    )
    CONVERGED_BY_VALUE = (
        1,
        "Converged: the value has stopped changing by more than its tolerance.",
    )
    CONVERGED_BY_STEP = (
        2,
        "Converged: the parameters are as precise as their dtype allows, or as asked.",
    )
    CONVERGED_BY_RESIDUAL = 3, "Converged: no residual is above its tolerance."
    ITERATION_LIMIT = (
        4,
        "Not converged after `max_steps` steps; allow more steps, or start again from "
        "`params`.",
    )
    LINE_SEARCH_FAILED = (
        5,
        "Not converged: no step along the gradient lowers the value; either it is at "
        "the limit of its precision, and a larger `tol` or float64 helps, or its "
        "gradient is wrong or discontinuous.",
    )
    STUCK = (
        6,
        "Not converged: near `params` no step comes closer to a solution; check "
        "whether there is one, start elsewhere, or scale the problem.",
    )
    NOT_FINITE = (
        7,
        "Not converged: the function or its derivative is not finite, at the start if "
        "`steps` is 0, or after the next step from `params`; start elsewhere, or take "
        "smaller steps.",
    )
    STOPPED_BY_CALLBACK = 8, "Stopped because `callback` returned `True`."
    RUNNING = 9, "Still running."
    UNBOUNDED = (
        10,
        "Not converged: the function seems to have no minimum, its value decreases "
        "without limit; bound the parameters, or check whether it has the wrong sign.",
    )
    INFEASIBLE = (
        11,
        "Not converged: the constraints seem to have no common solution near "
        "`params`, since `violation` does not decrease; check whether they contradict "
        "each other, or start elsewhere.",
    )
    INDEFINITE = (
        12,
        "Not converged: `Q` has a negative eigenvalue, so that the program is not "
        "convex; check its sign, or use `minimize` with constraints for a local "
        "minimum.",
    )
    NO_SIGN_CHANGE = (
        13,
        "Not converged: an element of the function has the same sign at both ends of "
        "its bracket; widen the bracket, or leave it out.",
    )


class Code:
    """The codes of `Status` as arrays of NumPy, which are never tracers."""

    GRADIENT, VALUE, STEP, RESIDUAL, LIMIT = map(np.int32, range(5))
    SEARCH, STUCK, NOT_FINITE, STOPPED, RUNNING = map(np.int32, range(5, 10))
    UNBOUNDED, INFEASIBLE, INDEFINITE, NO_SIGN_CHANGE = map(np.int32, range(10, 14))


class History(NamedTuple):
    """The course of a run: arrays of shape (n + 1,), NaN after the last step.

    value: that of the result, at the start and after each step.
    grad_norm: the largest |g| element there; `None` for `root` and `fixed_point`.
    """

    value: jax.Array
    grad_norm: Any


class Result(NamedTuple):
    """The result of a solver.

    params: the final parameters, a tree like `x0`.
    value: value of the function there, a scalar; for `least_squares`
        0.5 * sum(rho(r**2)), for `root` and `fixed_point` the largest |r| element.
    grad_norm: the largest |g| element there; with bounds, that of the projected
        gradient P(x - g) - x; `None` for `root` and `fixed_point`.
    steps: number of steps taken; those of `least_squares` include rejected ones.
    evaluations: number of evaluations of the function, most with its derivative.
    code: the `Status` as an integer, which can be compared with one in `jit`.
    aux: auxiliary output of the function at `params`, or `None`.
    history: the `History`, if requested, or `None`.
    residuals: r there: what the function of `least_squares` or `root` returns, and
        f(x) - x for a fixed point; otherwise `None`.
    multipliers: with constraints, arrays shaped like their values, in a list if the
        constraints are one; at a minimum df + sum of multipliers dc is 0, so that they
        are >= 0 at upper limits, <= 0 at lower ones, and 0 in between.  Otherwise
        `None`.
    violation: the largest distance of a constraint from its limits, or `None`.
    factor: of `least_squares`, an upper triangular matrix R of shape (n, n) with
        R'R = J'J, where J is the Jacobian of the n parameters with robust weights;
        `None` for the solver "cg".

    SciPy's `x`, `fun`, `nit`, `nfev` and `message` are the same as there.  Under `vmap`
    each array has a batch axis.
    """

    params: Any
    value: jax.Array
    grad_norm: Any
    steps: jax.Array
    evaluations: jax.Array
    code: jax.Array
    aux: Any = None
    history: History | None = None
    residuals: Any = None
    multipliers: Any = None
    violation: Any = None
    factor: jax.Array | None = None

    @property
    def status(self) -> Any:
        """Why it stopped, as a `Status`; an array of them for a batch.

        Raises a `TypeError` if the code is traced, as in `jit`.
        """
        if isinstance(self.code, Tracer):
            raise TypeError(
                "`status` is not known while a program is traced; compare `code` with "
                "a `Status`, or read `status` outside of `jit`"
            )
        codes = np.asarray(self.code)
        if codes.ndim == 0:
            return Status(int(codes))
        members = np.array([Status(int(c)) for c in codes.flat], object)
        return members.reshape(codes.shape)

    @property
    def success(self) -> jax.Array:
        """Whether it converged, a boolean."""
        return self.code <= Code.RESIDUAL

    @property
    def message(self) -> str:
        """A sentence that explains the status; for a batch, the number of each."""
        status = self.status
        if not isinstance(status, np.ndarray):
            return status.message
        counts = Counter(status.flat)
        return ", ".join(f"{n} {x.name}" for x, n in sorted(counts.items()))

    # SciPy's names of these fields.
    x = property(lambda self: self.params)
    fun = property(
        lambda self: self.value if self.residuals is None else self.residuals
    )
    nit = property(lambda self: self.steps)
    nfev = property(lambda self: self.evaluations)

    def __repr__(self) -> str:
        """A line for each number and each array of parameters."""
        fields = {k: x for k, x in self._asdict().items() if x is not None}
        if isinstance(self.code, Tracer):
            shown = (f"{k}={x!r}" for k, x in fields.items())
            return f"{type(self).__name__}({', '.join(shown)})"
        lines = {"message": self.message, "success": self.success}
        shown = {"steps", "evaluations", "value", "grad_norm", "violation"}
        lines |= {k: x for k, x in fields.items() if k in shown}
        paths = jax.tree_util.tree_flatten_with_path(self.params)[0]
        lines |= {"params" + jax.tree_util.keystr(path): x for path, x in paths}
        wide = max(map(len, lines))
        return "\n".join(f"{k:>{wide}}: {_short(x)}" for k, x in lines.items())

    # Hidden from type checkers, which would otherwise accept any name.
    if not TYPE_CHECKING:

        def __getattr__(self, name):
            fields = ", ".join(self._fields)
            hint = (
                f": it is `{_WORDS[name]}`" if name in _WORDS else f"; it has {fields}"
            )
            raise AttributeError(f"a result has no `{name}`{hint}")

    def covariance(self, variance: Any = None, *, matrix: bool = False) -> Any:
        """The covariance of the parameters of `least_squares`, s² inverse(J'J).

        variance: s², the variance of a residual; by default 2 value / (m - n) for m
            residuals and n parameters, which is NaN or infinite unless m > n.
        matrix: whether to return one matrix of shape (n, n), with the parameters in the
            order of `jax.tree.leaves`; a complex parameter counts as all real parts and
            then all imaginary parts.

        By default the result has a block for each pair of leaves: a tree like `params`,
        whose leaves are trees like `params`, with arrays of both shapes one after the
        other, as those of `jax.hessian`.  All are infinite if J'J is singular.  Bounds
        are ignored.  For a batch, map it, as in
        `jax.vmap(lambda r: r.covariance())(results)`.

        Raises a `ValueError` for other solvers, and for "cg", which does not form J.
        """
        if self.factor is None:
            raise ValueError(
                "only `least_squares` forms the Jacobian that a covariance needs, with "
                "`solver='qr'`"
            )
        if self.factor.ndim != 2:
            raise ValueError(
                "this is the result of a batch: map over it, as in "
                "`jax.vmap(lambda r: r.covariance())(results)`"
            )
        whole = inverse(self.factor)
        if variance is None:
            free = sum(map(jnp.size, jax.tree.leaves(self.residuals))) - len(whole)
            variance = 2 * self.value / max(free, 0)
        whole = whole * jnp.asarray(variance, whole.dtype)
        return whole if matrix else blocks(whole, self.params)


# Other names of what a result has.
_WORDS = {
    "njev": "evaluations",
    "jac": "grad_norm`; the gradient itself is `jax.grad(fun)(result.params)",
    "maxcv": "violation",
    "cost": "value",
    "optimality": "grad_norm",
    "pcov": "covariance()",
    "root": "params",
    "converged": "success",
}


def _short(x: Any) -> str:
    """A value in a line, or the ends of a long array."""
    if isinstance(x, str):
        return x
    text = np.array2string(np.asarray(x), precision=4, threshold=6, edgeitems=2)
    return " ".join(text.split())


def blocks(whole: jax.Array, params: Any) -> Any:
    """A symmetric matrix as a tree of trees of blocks."""
    frame, moving, _ = split(params)
    flat = Flat(moving, whole.dtype)
    # Each has the shape of a leaf, and an axis for the columns.
    rows = [jnp.moveaxis(x, 0, -1) for x in jax.vmap(flat.split)(whole)]

    def tree(row):
        shape = row.shape[:-1]
        columns = jax.vmap(flat.split)(row.reshape(-1, row.shape[-1]))
        return frame.params(x.reshape(shape + x.shape[1:]) for x in columns)

    return frame.params(map(tree, rows))


def inverse(factor: jax.Array) -> jax.Array:
    """The inverse of R'R, or infinity if that is singular."""
    norms = jnp.sqrt(jnp.sum(factor**2, axis=0))
    scale = jnp.where(norms > 0, norms, 1)
    _, values, rows = jnp.linalg.svd(factor / scale[None])
    least = len(factor) * jnp.finfo(factor.dtype).eps * jnp.max(values)
    half = rows.T / (jnp.maximum(values, least)[None] * scale[:, None])
    return jnp.where(jnp.min(values) > least, half @ half.T, jnp.inf)

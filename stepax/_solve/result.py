"""The results of `least_squares`, `root` and `fixed_point`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._minimize import result as results
from .._minimize.frame import Frame, split
from .._minimize.pack import Flat
from .._minimize.result import SCIPY, MinimizeHistory, MinimizeStatus, Status


class LeastSquaresResult(NamedTuple):
    """The result of `least_squares`.

    params: the final parameters, a tree like `x0`.
    value: 0.5 * sum(rho(r**2)) there, a scalar.
    residuals: the residuals r there, a tree as `residuals` returns it.
    grad_norm: the largest |g| element there; with bounds, that of the projected
        gradient P(x - g) - x.
    steps: number of steps tried.
    evaluations: number of evaluations of the residuals.
    code: the `MinimizeStatus` as an integer, which can be compared with one in `jit`.
    aux: auxiliary output of the function at `params`, or `None`.
    history: the `MinimizeHistory`, if requested, or `None`.
    factor: upper triangular matrix R of shape (n, n) with R'R = J'J, where J is the
        Jacobian of the n parameters with robust weights; `None` for the solver "cg".

    Under `vmap` each array has a batch axis.
    """

    params: Any
    value: jax.Array
    residuals: Any
    grad_norm: jax.Array
    steps: jax.Array
    evaluations: jax.Array
    code: jax.Array
    aux: Any = None
    history: MinimizeHistory | None = None
    factor: jax.Array | None = None

    _solver, _kind = "least_squares", MinimizeStatus
    _words = SCIPY | {
        "fun": "residuals",
        "cost": "value",
        "optimality": "grad_norm",
        "pcov": "covariance()",
    }
    __repr__, __getattr__ = results.show_result, results.explain_missing
    status, success = results.STATUS, results.SUCCESS

    def covariance(self, variance: Any = None, *, matrix: bool = False) -> Any:
        """The covariance of the parameters, s² inverse(J'J) at the solution.

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

        Raises a `ValueError` for the solver "cg", which does not form J.
        """
        if self.factor is None:
            raise ValueError(
                "the solver 'cg' does not form the Jacobian that a covariance needs: "
                "use `solver='qr'`"
            )
        if self.factor.ndim != 2:
            raise ValueError(
                "this is the result of a batch: map over it, as in "
                "`jax.vmap(lambda r: r.covariance())(results)`"
            )
        frame, moving, _ = split(self.params)
        whole = _inverse(self.factor)
        if variance is None:
            free = sum(map(jnp.size, jax.tree.leaves(self.residuals))) - len(whole)
            variance = 2 * self.value / max(free, 0)
        whole = whole * jnp.asarray(variance, whole.dtype)
        if matrix:
            return whole
        return _blocks(whole, frame, moving)


class SolveStatus(Status):
    """Why `root` or `fixed_point` stopped; `message` explains it in a sentence."""

    CONVERGED = 0, "Converged: no residual is above its tolerance."
    CONVERGED_BY_STEP = (
        1,
        "Converged: the parameters are as precise as their dtype allows, or as asked.",
    )
    ITERATION_LIMIT = (
        3,
        "Not converged after `max_steps` steps; allow more steps, or start again from "
        "`params`.",
    )
    STUCK = (
        4,
        "Not converged: near `params` no step makes the residuals smaller, and they "
        "are not 0; start elsewhere, or check whether there is a solution.",
    )
    NOT_FINITE = (
        5,
        "Not converged: the function or its derivative is not finite, at the start if "
        "`steps` is 0, or after the next step from `params`; start elsewhere.",
    )
    STOPPED_BY_CALLBACK = 6, "Stopped because `callback` returned `True`."
    RUNNING = 7, "Still running."
    NO_SIGN_CHANGE = (
        8,
        "Not converged: an element of the function has the same sign at both ends of "
        "its bracket; widen the bracket, or leave it out.",
    )


class SolveHistory(NamedTuple):
    """The course of a run; NaN after the last step.

    value: the largest absolute residual, at the start and after each step; shape
        (n + 1,).
    """

    value: jax.Array


class SolveResult(NamedTuple):
    """The result of `root` or `fixed_point`.

    params: the final parameters, a tree like `x0`.
    value: the largest absolute residual there, a scalar.
    residuals: f(x) for a root, f(x) - x for a fixed point, a tree like `x0`.
    steps: number of steps taken.
    evaluations: number of evaluations of the function, some with its derivative.
    code: the `SolveStatus` as an integer, which can be compared with one in `jit`.
    aux: auxiliary output of the function at `params`, or `None`.
    history: the `SolveHistory`, if requested, or `None`.

    Under `vmap` each array has a batch axis.
    """

    params: Any
    value: jax.Array
    residuals: Any
    steps: jax.Array
    evaluations: jax.Array
    code: jax.Array
    aux: Any = None
    history: SolveHistory | None = None

    _solver, _kind = "root` and `fixed_point", SolveStatus
    _words = SCIPY | {"fun": "residuals", "root": "params", "converged": "success"}
    __repr__, __getattr__ = results.show_result, results.explain_missing
    status, success = results.STATUS, results.SUCCESS


def _blocks(whole: jax.Array, frame: Frame, moving: list) -> Any:
    """A symmetric matrix as a tree of trees of blocks."""
    flat = Flat(moving, whole.dtype)
    # Each has the shape of a leaf, and an axis for the columns.
    rows = [jnp.moveaxis(x, 0, -1) for x in jax.vmap(flat.split)(whole)]

    def tree(row):
        shape = row.shape[:-1]
        columns = jax.vmap(flat.split)(row.reshape(-1, row.shape[-1]))
        return frame.params(x.reshape(shape + x.shape[1:]) for x in columns)

    return frame.params(map(tree, rows))


def _inverse(factor: jax.Array) -> jax.Array:
    """The inverse of R'R, or infinity if that is singular."""
    norms = jnp.sqrt(jnp.sum(factor**2, axis=0))
    scale = jnp.where(norms > 0, norms, 1)
    _, values, rows = jnp.linalg.svd(factor / scale[None])
    least = len(factor) * jnp.finfo(factor.dtype).eps * jnp.max(values)
    half = rows.T / (jnp.maximum(values, least)[None] * scale[:, None])
    return jnp.where(jnp.min(values) > least, half @ half.T, jnp.inf)

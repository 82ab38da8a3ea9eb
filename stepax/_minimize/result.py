"""The result of a minimization, and why it stopped."""

import enum
from collections import Counter
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax.core import Tracer


class Status(enum.IntEnum):
    """Why a run stopped; `message` explains it in a sentence."""

    _value_: int
    message: str

    def __new__(cls, value: int, message: str):
        member = int.__new__(cls, value)
        member._value_, member.message = value, message
        return member


class MinimizeStatus(Status):
    """Why a minimization stopped; `message` explains it in a sentence."""

    CONVERGED_BY_GRADIENT = (
        0,
        "Converged: no entry of the gradient is above its tolerance.",
    )
    CONVERGED_BY_VALUE = (
        1,
        "Converged: the value has stopped changing by more than its tolerance.",
    )
    CONVERGED_BY_STEP = (
        2,
        "Converged: the parameters have stopped moving by more than their tolerance.",
    )
    ITERATION_LIMIT = (
        3,
        "Not converged after `max_steps` steps; allow more steps, or start again from "
        "`params`.",
    )
    LINE_SEARCH_FAILED = (
        4,
        "Not converged: no step along the gradient lowers the value; either it is at "
        "the limit of its precision, and a larger `tol` or float64 helps, or its "
        "gradient is wrong or discontinuous.",
    )
    NOT_FINITE = (
        5,
        "Not converged: the value or the gradient is not finite, at the start if "
        "`steps` is 0, or after the next step from `params`; start elsewhere, or take "
        "smaller steps.",
    )
    STOPPED_BY_CALLBACK = 6, "Stopped because `callback` returned `True`."
    RUNNING = 7, "Still running."
    UNBOUNDED = (
        8,
        "Not converged: the function seems to have no minimum, its value decreases "
        "without limit; bound the parameters, or check whether it has the wrong sign.",
    )
    INFEASIBLE = (
        9,
        "Not converged: the constraints seem to have no common solution near "
        "`params`, since `violation` does not decrease; check whether they contradict "
        "each other, or start elsewhere.",
    )
    INDEFINITE = (
        10,
        "Not converged: `Q` has a negative eigenvalue, so that the program is not "
        "convex; check its sign, or use `minimize` with constraints for a local "
        "minimum.",
    )


class Code:
    """The codes of both statuses, as arrays of NumPy, which are never tracers."""

    GRADIENT, VALUE, STEP, LIMIT = map(np.int32, range(4))
    SEARCH, NOT_FINITE, STOPPED, RUNNING = map(np.int32, range(4, 8))
    UNBOUNDED, INFEASIBLE, INDEFINITE = map(np.int32, range(8, 11))
    CONVERGED, PRECISE, STUCK, NO_SIGN_CHANGE = map(np.int32, (0, 1, 4, 8))


# SciPy's names of the fields of all results.
SCIPY = {
    "x": "params",
    "nit": "steps",
    "nfev": "evaluations",
    "njev": "evaluations",
    "message": "status.message",
}


def _message(status: Any) -> str:
    """The explanation of one status, or the number of each in a batch."""
    if not isinstance(status, np.ndarray):
        return status.message
    counts = Counter(status.flat)
    return ", ".join(f"{n} {x.name}" for x, n in sorted(counts.items()))


def _short(x: Any) -> str:
    """A value in a line, or the ends of a long array."""
    if isinstance(x, str):
        return x
    text = np.array2string(np.asarray(x), precision=4, threshold=6, edgeitems=2)
    return " ".join(text.split())


def show_result(self: Any) -> str:
    """A result with a line for each number and each array of parameters."""
    if isinstance(self.code, Tracer):
        fields = (f"{k}={x!r}" for k, x in self._asdict().items())
        return f"{type(self).__name__}({', '.join(fields)})"
    lines = {"message": _message(self.status), "success": self.success}
    shown = {"steps", "evaluations", "value", "grad_norm", "violation"}
    lines |= {k: x for k, x in self._asdict().items() if k in shown}
    paths = jax.tree_util.tree_flatten_with_path(self.params)[0]
    lines |= {"params" + jax.tree_util.keystr(path): x for path, x in paths}
    wide = max(map(len, lines))
    rows = ((k, _short(x)) for k, x in lines.items() if x is not None)
    return "\n".join(f"{k:>{wide}}: {x}" for k, x in rows)


def explain_missing(self: Any, name: str) -> NoReturn:
    """Raise an error for a field of other libraries that names ours."""
    solver, known = self._solver, self._words
    fields = ", ".join(self._fields)
    hint = f": it is `{known[name]}`" if name in known else f"; it has {fields}"
    raise AttributeError(f"the result of `{solver}` has no `{name}`{hint}")


def _read_status(self: Any) -> Any:
    """Why it stopped, as a status with a `message`; an array of them for a batch.

    Raises a `TypeError` if the code is traced, as in `jit`.
    """
    kind = self._kind
    if isinstance(self.code, Tracer):
        raise TypeError(
            "`status` is not known while a program is traced; compare `code` with a "
            f"`{kind.__name__}`, or read `status` outside of `jit`"
        )
    codes = np.asarray(self.code)
    if codes.ndim == 0:
        return kind(int(codes))
    members = np.array([kind(int(c)) for c in codes.flat], object)
    return members.reshape(codes.shape)


def _is_success(self: Any) -> jax.Array:
    """Whether it converged, a boolean."""
    return self.code <= Code.STEP


# Properties of all results.
STATUS, SUCCESS = property(_read_status), property(_is_success)


class MinimizeHistory(NamedTuple):
    """The course of a minimization: arrays of shape (n + 1,), NaN after the last step.

    value: value of the function, at the start and after each step.
    grad_norm: the largest |g| element there.
    """

    value: jax.Array
    grad_norm: jax.Array


class MinimizeResult(NamedTuple):
    """The result of a minimization.

    params: the final parameters, a tree like `x0`.
    value: value of the function there, a scalar.
    grad_norm: the largest |g| element there; with bounds, that of the projected
        gradient P(x - g) - x.
    steps: number of steps taken.
    evaluations: number of evaluations of the function, most with its gradient.
    code: the `MinimizeStatus` as an integer, which can be compared with one in `jit`.
    aux: auxiliary output of the function at `params`, or `None`.
    history: the `MinimizeHistory`, if requested, or `None`.
    multipliers: with constraints, arrays shaped like their values, in a list if the
        constraints are one; at a minimum df + sum of multipliers dc is 0, so that they
        are >= 0 at upper limits, <= 0 at lower ones, and 0 in between.  Otherwise
        `None`.
    violation: the largest distance of a constraint from its limits, or `None`.

    Under `vmap` each array has a batch axis.
    """

    params: Any
    value: jax.Array
    grad_norm: jax.Array
    steps: jax.Array
    evaluations: jax.Array
    code: jax.Array
    aux: Any = None
    history: MinimizeHistory | None = None
    multipliers: Any = None
    violation: Any = None

    _solver, _kind = "minimize", MinimizeStatus
    _words = SCIPY | {
        "fun": "value",
        "jac": "grad_norm`; the gradient itself is `jax.grad(fun)(result.params)",
        "maxcv": "violation",
    }
    __repr__, __getattr__ = show_result, explain_missing
    status, success = STATUS, SUCCESS

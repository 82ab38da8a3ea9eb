"""The result of a minimization, and why it stopped."""

import enum
from collections import Counter
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax.core import Tracer


class MinimizeStatus(enum.IntEnum):
    """Why a minimization stopped; `message` explains it in a sentence."""

    CONVERGED_BY_GRADIENT = 0
    CONVERGED_BY_VALUE = 1
    CONVERGED_BY_STEP = 2
    ITERATION_LIMIT = 3
    LINE_SEARCH_FAILED = 4
    NOT_FINITE = 5
    STOPPED_BY_CALLBACK = 6
    RUNNING = 7
    UNBOUNDED = 8
    INFEASIBLE = 9
    INDEFINITE = 10

    @property
    def message(self) -> str:
        """An explanation in a sentence."""
        return _MESSAGES[self]


_MESSAGES = {
    MinimizeStatus.CONVERGED_BY_GRADIENT: (
        "Converged: no entry of the gradient is above its tolerance."
    ),
    MinimizeStatus.CONVERGED_BY_VALUE: (
        "Converged: the value has stopped changing by more than its tolerance."
    ),
    MinimizeStatus.CONVERGED_BY_STEP: (
        "Converged: the parameters have stopped moving by more than their tolerance."
    ),
    MinimizeStatus.ITERATION_LIMIT: (
        "Not converged after `max_steps` steps; allow more steps, or start again from "
        "`params`."
    ),
    MinimizeStatus.LINE_SEARCH_FAILED: (
        "Not converged: no step along the gradient lowers the value; either it is at "
        "the limit of its precision, and a larger `tol` or float64 helps, or its "
        "gradient is wrong or discontinuous."
    ),
    MinimizeStatus.NOT_FINITE: (
        "Not converged: the value or the gradient is not finite, at the start if "
        "`steps` is 0, or after the next step from `params`; start elsewhere, or "
        "take smaller steps."
    ),
    MinimizeStatus.STOPPED_BY_CALLBACK: "Stopped because `callback` returned `True`.",
    MinimizeStatus.RUNNING: "Still running.",
    MinimizeStatus.UNBOUNDED: (
        "Not converged: the function seems to have no minimum, its value decreases "
        "without limit; bound the parameters, or check whether it has the wrong sign."
    ),
    MinimizeStatus.INFEASIBLE: (
        "Not converged: the constraints seem to have no common solution near `params`, "
        "since `violation` does not decrease; check whether they contradict each "
        "other, or start elsewhere."
    ),
    MinimizeStatus.INDEFINITE: (
        "Not converged: `Q` has a negative eigenvalue, so that the program is not "
        "convex; check its sign, or use `minimize` with constraints for a local "
        "minimum."
    ),
}


# SciPy's names of the fields of all results.
SCIPY = {
    "x": "params",
    "nit": "steps",
    "nfev": "evaluations",
    "njev": "evaluations",
    "message": "status.message",
}
_SCIPY = SCIPY | {
    "fun": "value",
    "jac": "grad_norm`; the gradient itself is `jax.grad(fun)(result.params)",
    "maxcv": "violation",
}


def _message(status: Any) -> str:
    """The explanation of one status, or the number of each in a batch."""
    if not isinstance(status, np.ndarray):
        return status.message
    counts = Counter(status.flat)
    return ", ".join(f"{n} {x.name}" for x, n in sorted(counts.items()))


def _leaves(name: str, tree: Any) -> dict[str, Any]:
    """The arrays of a tree by their paths."""
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {name + jax.tree_util.keystr(path): x for path, x in found}


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
    lines |= _leaves("params", self.params)
    wide = max(map(len, lines))
    rows = ((k, _short(x)) for k, x in lines.items() if x is not None)
    return "\n".join(f"{k:>{wide}}: {x}" for k, x in rows)


def explain_missing(
    result: Any, name: str, solver: str, known: dict[str, str]
) -> NoReturn:
    """Raise an error for a field of other libraries that names ours.

    known: our names by theirs.
    """
    fields = ", ".join(result._fields)
    hint = f": it is `{known[name]}`" if name in known else f"; it has {fields}"
    raise AttributeError(f"the result of `{solver}` has no `{name}`{hint}")


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

    __repr__ = show_result

    def __getattr__(self, name: str) -> NoReturn:
        explain_missing(self, name, "minimize", _SCIPY)

    @property
    def status(self) -> Any:
        """Why it stopped, a `MinimizeStatus`, or an array of them for a batch.

        Raises a `TypeError` if the code is traced, as in `jit`.
        """
        return read_status(MinimizeStatus, self.code)

    @property
    def success(self) -> jax.Array:
        """Whether it converged, a boolean."""
        return self.code <= MinimizeStatus.CONVERGED_BY_STEP.value


def read_status(kind: type[enum.IntEnum], code: jax.Array) -> Any:
    """The member of an enumeration for a code, or an array of them for a batch."""
    if isinstance(code, Tracer):
        raise TypeError(
            "`status` is not known while a program is traced; compare `code` with a "
            f"`{kind.__name__}`, or read `status` outside of `jit`"
        )
    codes = np.asarray(code)
    if codes.ndim == 0:
        return kind(int(codes))
    members = np.array([kind(int(c)) for c in codes.flat], object)
    return members.reshape(codes.shape)

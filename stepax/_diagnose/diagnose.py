"""`diagnose` runs the rules."""

from collections.abc import Iterator
from typing import Any

import jax

from .._engine import rules as rx
from .._engine.factories.ranges import whole_number
from .._engine.inspect import Component, examine
from .._engine.trees.apply import map_pairs
from .._engine.trees.pack import unpack
from .findings import Diagnosis, Finding, Problem, collected
from .foreign import opened
from .table import CHECKS
from .trial import trial
from .view import View


# What Optax does otherwise than ours of the same name: it computes in narrow dtypes,
# and its accumulation passes on only means of gradients.
_OF_OPTAX = ("eps-underflows", "accumulation-of-nan")


@rx.explain_misuse
def diagnose(
    tx: rx.TransformationLike,
    params: rx.Params,
    *,
    gradients: rx.Updates | None = None,
    steps: int | None = None,
    state: rx.OptState | None = None,
) -> Diagnosis:
    """Look for mistakes that train without an error, as in the first line of a script.

    Without `gradients` no step is run, and no array as large as a parameter is
    allocated.  Transformations of Optax are opened by what their closures hold; what is
    not known is not guessed, and a note says how many parts were not opened.

    tx: the transformation.
    params: the parameters, or `jax.ShapeDtypeStruct`s in their place.
    gradients: a tree like `params`.  With real parameters a trial step is taken, whose
        result is thrown away: it shows updates that are 0 or that are rounded away.
    steps: how many calls of `update` the run will have, at least 1, to compare with
        the lengths of schedules.
    state: the state from which to read injected hyperparameters and counts; the initial
        state if `None`.

    Raises a `TypeError` if `tx` is not a transformation, a `ValueError` if `steps` is
    not a whole number or below 1 and for gradients of another structure, and the errors
    of `tx.init`.
    Returns a tuple of findings, which prints as a table; `.require()` raises a
    `ValueError` if errors or warnings are among them.

    >>> stepax.diagnose(tx, params, steps=10_000).require()
    """
    rx.require_transformation(tx, "`tx` of `diagnose`")
    params, gradients, state = unpack((params, gradients, state))
    if gradients is not None:

        def require_alike(p, g, check):
            if rx.is_array(p) and g is not None:
                check()

        map_pairs(require_alike, ("params", "gradients"), params, gradients)
    if steps is not None:
        steps = whole_number("steps` of `diagnose", steps)
    known, kept = opened(tx, params), state
    if known is not tx and state is None:  # in its dtypes
        kept = jax.eval_shape(tx.init, params)
    view = examine(known, params, View, kept)
    view.steps, view.given = steps or 1, gradients
    found = [*_run("static", view), *(_run("run", view) if steps else ())]
    if known is not tx:
        own = _run("static", examine(tx, params, View, state))
        found += [x for x in own if x.code in _OF_OPTAX]
    leaves = jax.tree.leaves((params, gradients))
    is_real = not any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves)
    if gradients is not None and is_real:
        found += _tried(view, tx, params, state)
    return collected(found)


def static_findings(component: Component, gradients: rx.Gradients) -> Diagnosis:
    """What is found without a step in components that are examined; for `describe`."""
    try:
        view = View(component, gradients)
    except Exception:  # what is described does not depend on it
        return Diagnosis()
    with jax.ensure_compile_time_eval():  # functions of users may compute
        return collected(_run("static", view))


def _tried(view: View, tx: Any, params: rx.Params, state: rx.OptState) -> list[Finding]:
    """What gradients and a trial step with them show."""
    if found := list(_run("gradients", view)):
        return found
    try:
        view.trials = trial(view, tx, params, state)
    except Exception as error:
        # Its keywords are not known.
        return [_failed("the trial step", error, "call `diagnose` without `gradients`")]
    return list(_run("step", view))


def _run(need: str, view: View) -> Iterator[Finding]:
    for check in (x for x in CHECKS if x.need == need):
        code, severity = check.code, check.severity
        try:
            for at in getattr(view, check.over):
                for found in check.rule(at):
                    x = found if isinstance(found, Problem) else Problem(found)
                    paths, cure = x.paths, x.cure or check.cure
                    paths = at.paths if paths is None else paths
                    yield Finding(code, severity, x.message, paths, cure)
        except Exception as error:  # never stop a training script
            yield _failed(f"the rule `{code}`", error, "please report it")


def _failed(what: str, error: Exception, cure: str) -> Finding:
    lines = str(error).splitlines() or [""]
    message = f"{what} failed with {type(error).__name__}: {lines[0][:200]}"
    return Finding("check-failed", "note", message, (), cure)

"""`diagnose` runs the rules."""

import operator
from collections.abc import Iterator
from typing import Any

import jax

from .._engine.base.protocol import (
    GradientTransformation,
    OptState,
    Params,
    Updates,
    is_array,
    require_transformation,
)
from .._engine.functions.calls import explain_misuse
from .._engine.inspect.components import Component, examine
from .._engine.step.gradients import Gradients
from .._engine.trees.apply import map_pairs
from .._engine.trees.pack import unpack
from .findings import Diagnosis, Finding, collected
from .stages import View, view_of
from .table import CHECKS
from .trial import trial


@explain_misuse
def diagnose(
    tx: GradientTransformation,
    params: Params,
    *,
    gradients: Updates | None = None,
    steps: int | None = None,
    state: OptState | None = None,
) -> Diagnosis:
    """Look for mistakes that train without an error, as in the first line of a script.

        stepax.diagnose(tx, params, steps=10_000).require()

    Without `gradients` no step is run, and no array as large as a parameter is
    allocated.  A transformation of another library, or a closure, is opened as far as
    `describe` can; what is not known is not guessed.

    tx: the transformation.
    params: the parameters, or `jax.ShapeDtypeStruct`s in their place.
    gradients: a tree like `params`.  With real parameters a trial step is taken, whose
        result is thrown away: it shows updates that are 0 or that are rounded away.
    steps: how many calls of `update` the run will have, at least 1, to compare with
        the lengths of schedules.
    state: the state from which to read injected hyperparameters and counts; the initial
        state if `None`.

    Raises a `TypeError` if `tx` is not a transformation or `steps` not a whole number,
    a `ValueError` for `steps` below 1 and for gradients of another structure, and the
    errors of `tx.init`.
    Returns a tuple of findings, which prints as a table; `.require()` raises a
    `ValueError` if errors or warnings are among them.
    """
    require_transformation(tx, "`tx` of `diagnose`")
    params, gradients, state = unpack((params, gradients, state))
    _check_gradients(gradients, params)
    view = examine(tx, params, lambda part, seen: view_of(part, seen, state))
    needs = ["static"]
    if steps is not None:
        view.steps = _whole(steps)
        needs.append("run")
    found = [x for need in needs for x in _run(need, view)]
    if gradients is not None and _are_real((params, gradients)):
        found += _tried(view, tx, params, gradients, state)
    return collected(found)


def static_view(component: Component, gradients: Gradients) -> View | None:
    """The view of components that are examined, for `describe`; `None` if it fails."""
    try:
        return view_of(component, gradients)
    except Exception:  # what is described does not depend on it
        return None


def static_findings(view: View | None) -> Diagnosis:
    """What is found without a step."""
    return Diagnosis() if view is None else collected(_run("static", view))


def _tried(view: View, *args: Any) -> Iterator[Finding]:
    """What a trial step shows; args: transformation, parameters, gradients, state."""
    if found := list(_run("gradients", view, args[2])):
        yield from found
        return
    try:
        taken = trial(view, *args)
    except Exception as error:
        # Its keywords are not known.
        yield _failed("the trial step", error, "call `diagnose` without `gradients`")
        return
    yield from _run("step", view, taken)


def _run(needs: str, *args: Any) -> Iterator[Finding]:
    for code, severity, need, rule, _, cure in CHECKS:
        if need != needs:
            continue
        try:
            for message, paths, own in list(rule(*args)):
                yield Finding(code, severity, message, paths, own or cure, _link(code))
        except Exception as error:  # never stop a training script
            yield _failed(f"the rule `{code}`", error, "please report it")


def _failed(what: str, error: Exception, cure: str) -> Finding:
    lines = str(error).splitlines() or [""]
    message = f"{what} failed with {type(error).__name__}: {lines[0][:200]}"
    return Finding("check-failed", "note", message, (), cure, _link("check-failed"))


def _link(code: str) -> str:
    return f"docs/diagnose.md#{code}"


def _whole(steps: Any) -> int:
    if isinstance(steps, bool) or not hasattr(steps, "__index__"):
        raise TypeError(
            f"`steps` of `diagnose` must be a whole number, but is {steps!r}"
        )
    number = operator.index(steps)
    if number < 1:
        raise ValueError(f"`steps` of `diagnose` must be at least 1, but is {steps!r}")
    return number


def _check_gradients(gradients: Any, params: Any) -> None:
    def leaf(p, g, check):
        if is_array(p) and g is not None:
            check()

    if gradients is not None:
        map_pairs(leaf, ("params", "gradients"), params, gradients)


def _are_real(tree: Any) -> bool:
    return not any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(tree))

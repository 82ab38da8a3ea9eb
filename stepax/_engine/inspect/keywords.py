"""Keywords of `update` that are never read.

Libraries pass keywords freely, such as the value of the loss, and an optimizer ignores
those that it does not use.  So a misspelled keyword goes unnoticed without `strict`.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from .. import rules as rx
from ..functions.calls import nearest
from ..step.plan import flatten, wrapped_by


def reads(tx: Any) -> frozenset[str] | None:
    """The keywords of `update` that a transformation reads; `None` if it may be any.

    Rules declare their keywords.  Our closures have them in their signature, or wrap
    transformations that read them.  Of other transformations only the signature is
    known, which is no help if it takes any keyword without naming one, as in Optax's
    `chain`.
    """
    if isinstance(tx, rx.Rule):
        return frozenset(tx.reads)
    is_ours = type(tx) is rx.Transformation
    if is_ours and tx.node:
        return _union(map(reads, flatten(tx)))
    if is_ours and tx.record.reads_any:
        return None
    inner = wrapped_by(tx)
    if is_ours or inner:  # `MultiSteps`, ours and Optax's
        return _union([_named(tx.update)[0], *map(reads, inner.values())])
    if isinstance(tx, rx.GradientTransformation) and not isinstance(
        tx, rx.GradientTransformationExtraArgs
    ):
        return frozenset()
    names, takes_any = _named(tx.update)
    return None if takes_any and not names else names


def _named(update: Callable) -> tuple[frozenset[str], bool]:
    """The keywords in a signature besides `params`, and whether it takes any other."""
    try:
        parameters = list(inspect.signature(update).parameters.values())
    except (TypeError, ValueError):
        return frozenset(), True
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    at = [p for i, p in enumerate(parameters) if i > 2 or p.kind is by_name[1]]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return frozenset(p.name for p in at if p.kind in by_name), takes_any


def _union(sets: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    found = list(sets)
    known = [x for x in found if x is not None]
    return frozenset().union(*known) if len(known) == len(found) else None


@rx.recipe
def strict(inner: rx.GradientTransformation) -> rx.GradientTransformationExtraArgs:
    """Raise an error for a keyword that no part of a transformation reads.

        update(updates, state, params, vlaue=loss)   # did you mean `value`?

    Put it around the outermost transformation; it changes neither state nor results.  A
    part whose `update` takes any keyword and names none may read them all; then no
    keyword is an error.

    inner: the transformation.

    `update` raises a `TypeError` that names the keyword, the closest one that is read,
    and all keywords that are read.
    """
    rx.require_transformation(inner, "`inner` of `strict`")
    known = reads(inner)
    names = sorted(known or ())
    listed = ", ".join(f"`{k}`" for k in names) or "none"
    tx = rx.with_extra_args_support(inner)

    def update(updates, state, params=None, **extra_args):
        unread = [] if known is None else [k for k in extra_args if k not in known]
        if unread:
            near = nearest(unread[0], names) or ";"
            raise TypeError(
                f"no part of `{rx.recipe_of(inner) or type(inner).__name__}` reads the "
                f"keyword `{unread[0]}`{near} the keywords that are read: {listed}"
            )
        return tx.update(updates, state, params, **extra_args)

    return rx.transformation(tx.init, update, inner={"": inner})

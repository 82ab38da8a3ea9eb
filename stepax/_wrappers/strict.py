"""Errors for keywords of `update` that are never read.

Libraries pass keywords freely, such as the value of the loss, and an optimizer ignores
those that it does not use.  So a misspelled keyword goes unnoticed without
`strict_keywords`.
"""

from .._engine import rules as rx
from .._engine.functions.calls import nearest


@rx.recorded
def strict_keywords(
    inner: rx.TransformationLike,
) -> rx.GradientTransformationExtraArgs:
    """Raise an error for a keyword of `update` that no transformation reads.

        update(updates, state, params, vlaue=loss)   # did you mean `value`?

    Put it around the outermost transformation; it changes neither state nor results.
    If one of its transformations takes any keyword and names none, it may read them
    all; then no keyword is an error.

    inner: the transformation.

    `update` raises a `TypeError` that names the keyword, the closest one that is read,
    and all keywords that are read.
    """
    tx = rx.with_keywords(inner, "`inner` of `strict_keywords`")
    known = rx.node_of(inner).keywords()
    names = sorted(known or ())
    listed = ", ".join(f"`{k}`" for k in names) or "none"

    def update(updates, state, params=None, **extra_args):
        unread = [] if known is None else [k for k in extra_args if k not in known]
        if unread:
            near = nearest(unread[0], names) or ";"
            raise TypeError(
                f"no part of `{rx.call_of(inner) or type(inner).__name__}` reads the "
                f"keyword `{unread[0]}`{near} the keywords that are read: {listed}"
            )
        return tx.update(updates, state, params, **extra_args)

    return rx.transformation(tx.init, update, inner={"": inner}, hands_on="")

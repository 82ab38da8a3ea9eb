"""Models that stack their layers or experts, trained as if these were separate arrays.

Flax's `nn.scan`, MaxText, haliax and others keep one array (layers, m, n) for a matrix
of each layer.  An optimizer that looks at whole arrays then takes all layers for one:
one trust ratio, one norm, one factorization.  Here it sees each array by itself.
"""

from contextlib import AbstractContextManager

from .._engine import rules as rx
from .._engine.arrays.stacked import joined
from .._engine.base.node import Foreign
from .._engine.step.leafwise import step
from .._engine.trees import stacks
from .._engine.trees.restack import StackAxes, resolve_axes
from .._engine.trees.selection import with_axes


class Stacked(rx.Composite):
    """One member, which sees stacks as arrays of their own."""

    has_scopes = True

    def __init__(self, inner: rx.TransformationLike, axes: StackAxes):
        self.members = (inner,)
        self.axes = axes

    def telling(self, params: rx.Params) -> AbstractContextManager:
        """Lets what is called meanwhile find the axes."""
        whole = params.outline() if isinstance(params, rx.Packed) else params
        found = resolve_axes(self.axes, whole)
        return stacks.known(whole, list(map(joined, stacks.of_leaves(whole), found)))

    def init(self, params):
        with self.telling(params):
            return rx.init_of(self.members[0])(params)

    def unpack(self, state):
        return [state]

    def pack(self, states):
        return states[0]

    def take_step(self, gradients, state, params, extra):
        with self.telling(params):
            return step(self.members[0], gradients, state, params, **extra)

    def scopes(self, gradients, scope):
        found = resolve_axes(self.axes, gradients.outline(scope))
        return [with_axes(found, scope)]


@rx.public("wrapper")
def stacked(
    inner: rx.TransformationLike, axes: StackAxes
) -> rx.GradientTransformationExtraArgs:
    """Treat the arrays of a stack as separate ones, such as the layers of a scan.

        u[i] = inner(g[i])   for each index i of the stack axes

    For models that keep one array (layers, m, n) for a matrix of each layer.  Norms,
    factors and matrices are those of each layer; a global norm is that of the tree.
    Functions that choose parameters see arrays without the stack axes, patterns the
    same paths.  A state that is shaped like a parameter keeps its shape; what is kept
    once for each array, such as a row of sums, has the stack axes in front.

    inner: a transformation of Stepax, with or without wrappers.
    axes: the stack axes, counted from the end if negative: a mapping from path patterns
        to an axis, a tuple of axes, or `None` for other arrays, as in
        `{"layers/**": 0, "experts/**": (0, 1), "**": None}`; a tree of these, a prefix
        of the parameters; or a function from the parameters to one of these.  An axis
        of an array with names, as in haliax, may be given by its name.

    Raises a `TypeError` if a transformation in `inner` is of another library; `init`
    and `update` raise one, or a `ValueError`, with the path, for axes and patterns that
    do not fit.

    >>> tx = stepax.stacked(stepax.contrib.muon(1e-2), {"layers/**": 0})
    """
    rx.require_transformation(inner, "`inner` of `stacked`")
    for part in rx.node_of(inner).walk():
        # `MultiSteps` is a class of its own, but calls what it was given.
        if isinstance(part, Foreign) and not part.callees:
            update = part.tx.update
            name = getattr(update, "__qualname__", type(part.tx).__name__)
            home = getattr(update, "__module__", type(part.tx).__module__)
            raise TypeError(
                f"`inner` of `stacked` contains `{name.split('.')[0]}` of `{home}`, "
                "which cannot be applied to the arrays of a stack: use that of Stepax"
            )
    return rx.build(Stacked(inner, axes))

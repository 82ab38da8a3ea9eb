"""What a gradient transformation is.  The rest of the library builds these."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jax.typing import ArrayLike

from ..arrays.placement import mesh_sharding, put_on
from ..functions.calls import explain_misuse
from ..functions.signatures import NAMES
from .optax_types import _Meta, optax_compatible


# Any tree is welcome.
if TYPE_CHECKING:
    Params: TypeAlias = Any
    Updates: TypeAlias = Any
    OptState: TypeAlias = Any
    ArrayTree: TypeAlias = Any
else:  # `Any` is a class at run time, where programs expect an alias
    Params = Updates = OptState = ArrayTree = Any | jax.Array
Schedule: TypeAlias = Callable[[ArrayLike], ArrayLike]
ScalarOrSchedule: TypeAlias = float | jax.Array | Schedule
MaskOrFn: TypeAlias = Any | Callable[[Params], Any] | None
NAMES |= {
    "ArrayTree": ArrayTree,
    "Schedule": Schedule,
    "ScalarOrSchedule": ScalarOrSchedule,
    "MaskOrFn": MaskOrFn,
}


class TransformInitFn(Protocol):
    """Makes the first state from the parameters; looks at shapes and dtypes alone."""

    def __call__(self, params: Params) -> OptState: ...


class TransformUpdateFn(Protocol):
    """Turns gradients into updates, and the state into the next one."""

    def __call__(
        self, updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]: ...


class TransformUpdateExtraArgsFn(Protocol):
    """An update that takes further keywords, such as the value of the loss."""

    def __call__(
        self,
        updates: Updates,
        state: OptState,
        params: Params | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, OptState]: ...


@optax_compatible
class GradientTransformation(NamedTuple):
    """A pair of pure functions.

    init:   params -> state
    update: (updates, state, params=None) -> (updates, state)
    """

    init: TransformInitFn
    update: Callable[..., tuple[Updates, OptState]]

    def __eq__(self, other: object) -> bool:
        # Optax's pair, for which `isinstance` holds, compares as a tuple, and so do we
        # with it: neither asks how the other was made.  Its hash is another one.
        if GradientTransformation not in type(other).__mro__:
            return tuple.__eq__(self, other)  # type: ignore[arg-type]
        return self is other or _identity(self) == _identity(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_identity(self))


def marked(f: Callable, made: Any) -> Callable:
    """`f`, which remembers what it is a function of."""
    known: Any = f
    known.made = made
    return f


def _identity(tx: Any) -> Any:
    """Equal for equal transformations: how it was made, or else its two functions."""
    recipe = getattr(tx, "recipe", None)
    made = getattr(tx.init, "made", None)
    if recipe is None and made is not None and getattr(tx.update, "made", 0) is made:
        recipe = made.recipe
    key = recipe and recipe.key
    return (tx.init, tx.update) if key is None else key


class GradientTransformationExtraArgs(GradientTransformation, metaclass=_Meta):
    """A transformation whose `update` also takes keywords, such as the loss value.

    init:   params -> state
    update: (updates, state, params=None, **extra_args) -> (updates, state)
    """


def takes_extra_args(tx: Any) -> bool:
    """Whether `tx.update` may be called with keywords beyond `params`.

    Our classes and Optax's say so by their type.  Any other object is asked for its
    signature, because libraries bring classes of their own.
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return True
    if isinstance(tx, GradientTransformation):
        return False
    kinds = (p.kind for p in inspect.signature(tx.update).parameters.values())
    return inspect.Parameter.VAR_KEYWORD in kinds


def require_transformation(tx: Any, where: str) -> None:
    """Raise unless `tx` has `init` and `update`; `chain(adam)` lacks a call."""
    if callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None)):
        return
    name = getattr(tx, "__name__", repr(tx))
    hint = f"; did you mean `{name}(...)`?" if callable(tx) else ""
    if isinstance(tx, list):
        hint = "; unpack a list with `*`"
    raise TypeError(
        f"{where} must be a gradient transformation, with `init` and `update`, "
        f"but is `{name}` of type `{type(tx).__name__}`{hint}"
    )


@explain_misuse
def with_extra_args_support(
    tx: GradientTransformation,
) -> GradientTransformationExtraArgs:
    """Wrap a transformation, so that its `update` accepts any keyword.

    Keywords that a plain transformation cannot take are dropped; one that takes
    keywords is returned as it is.

    tx: the transformation.
    """
    require_transformation(tx, "the argument of `with_extra_args_support`")
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    if takes_extra_args(tx):
        return transformation(tx.init, tx.update, inner={"": tx})

    def update(updates, state, params=None, **extra_args):
        return tx.update(updates, state, params)

    return transformation(tx.init, update)


@optax_compatible
class EmptyState(NamedTuple):
    """State of a transformation that remembers nothing."""


@optax_compatible
class MaskedNode(NamedTuple):
    """Stands where a parameter is left out; has no leaves, so tree maps skip it."""


@explain_misuse
def init_empty_state(params: Params) -> EmptyState:
    """The state of a transformation that remembers nothing.

    params: not looked at.
    """
    return EmptyState()


def is_none(x: Any) -> bool:
    return x is None


_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray, jax.Array)
_ARRAYS = (*_NUMBERS, jax.ShapeDtypeStruct)


def is_array(x: Any) -> bool:
    """Whether `x` is an array, or JAX can make one of it, or it stands for one.

    Functions and strings are not; the variables of Flax NNX are, and references.
    """
    return isinstance(x, _ARRAYS) or _is_like_an_array(x)


def _is_like_an_array(x: Any) -> bool:
    if isinstance(x, type):
        return False
    if hasattr(x, "__jax_array__"):
        return True
    dtype = getattr(x, "dtype", None)
    is_known = isinstance(dtype, np.dtype) or isinstance(x, Tracer)
    return is_known and hasattr(x, "shape")


def as_array(x: Any) -> Any:
    """The array that `x` is like; `x` itself if it is none, or one of JAX or NumPy."""
    if isinstance(x, _ARRAYS) or not is_array(x):
        return x
    if hasattr(x, "__jax_array__"):
        return jnp.asarray(x.__jax_array__())
    return jnp.asarray(x) if hasattr(x, "__array__") else x[...]  # a reference


def partition_arrays(tree: Any) -> tuple[list, Callable]:
    """The arrays of a tree, and a function that makes it with others in their place."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    at = [i for i, x in enumerate(leaves) if is_array(x)]

    def rebuild(arrays):
        given = dict(zip(at, arrays, strict=True))
        return treedef.unflatten(given.get(i, x) for i, x in enumerate(leaves))

    return [as_array(leaves[i]) for i in at], rebuild


Inner: TypeAlias = Mapping[str, Any]


class Transformation(GradientTransformationExtraArgs):
    """What our own factories return: it also knows what it is made of.

    node: the `Rule` it runs, or the composite; `None` for a closure, which nobody
        looks into.
    plan: what a step does, for a node.
    bare_init: `init`, without placing anything on a mesh.
    inner, hands_on, reads_any: of a closure; see `transformation`.
    recipe: the factory and the arguments it was made with.

    Equal recipes make equal transformations, so that a transformation can be a static
    argument of `jax.jit`.  It is printed as the call that made it, and pickled so.
    """

    node: Any = None
    plan: Any = None
    bare_init: TransformInitFn
    inner: Inner | Callable[[], Inner] = MappingProxyType({})
    hands_on: str = ""
    reads_any: bool = False
    recipe: Any = None

    def __repr__(self) -> str:
        return repr(self.recipe) if self.recipe else super().__repr__()

    def __reduce_ex__(self, protocol):
        if self.recipe is None:
            return super().__reduce_ex__(protocol)
        return self.recipe.reduced()

    @property
    def members(self) -> Inner:
        """What a closure calls, by the field of its state."""
        inner = self.inner
        return inner() if callable(inner) else inner


def transformation(
    init: TransformInitFn,
    update: Callable[..., tuple[Updates, OptState]],
    *,
    inner: Inner | Callable[[], Inner] = MappingProxyType({}),
    hands_on: str = "",
    reads_any: bool = False,
) -> Transformation:
    """A transformation that is a closure: two functions, and what they call.

    inner: the transformations that it calls, by the field of its state that holds
        theirs, as in "inner_state" or "states/0", or by "" where its state is theirs; a
        function that returns this where they are made at each step.
    hands_on: the field of the member to which it hands all gradients without reading
        them, if there is one.
    reads_any: whether it may read all keywords itself.
    """
    tx = Transformation(placed_init(init), update)
    tx.bare_init = init
    tx.inner = inner
    tx.hands_on = hands_on
    tx.reads_any = reads_any
    return tx


def with_init(tx: Transformation, init: TransformInitFn) -> Transformation:
    """A transformation with another `init`, whose states its steps can take."""
    new = Transformation(placed_init(init), tx.update)
    new.node, new.plan, new.bare_init = tx.node, tx.plan, init
    new.inner, new.hands_on, new.reads_any = tx.inner, tx.hands_on, tx.reads_any
    return new


def init_of(tx: Any) -> TransformInitFn:
    """`init` of a member of a composite; the outermost `init` places its state."""
    return tx.bare_init if type(tx) is Transformation else tx.init


def placed_init(init: TransformInitFn) -> TransformInitFn:
    """`init`, after which what is on one device is put on the parameters' mesh."""

    # A function, as libraries that look into closures know nothing else.
    def placed(params):
        return init_on_mesh(init, params)

    return placed


def init_on_mesh(init: TransformInitFn, params: Params) -> OptState:
    """`init(params)`; what is on one device is replicated on the parameters' mesh.

    Such are counts that are made outside of `jit`.  A process could not save them with
    an array that is on the devices of many.
    """
    state, ps = init(params), jax.tree.leaves(params)
    if any(isinstance(p, Tracer) for p in ps):
        return state
    found = mesh_sharding(ps)
    if found is None or not isinstance(found.mesh, Mesh) or found.mesh.size == 1:
        return state
    everywhere = NamedSharding(found.mesh, PartitionSpec())
    is_alone = lambda x: isinstance(getattr(x, "sharding", None), SingleDeviceSharding)
    put = lambda x: put_on(x, everywhere) if is_alone(x) else x
    return jax.tree.map(put, state)

"""The definition of a gradient transformation, which the rest of the library builds.

Most programs that use JAX have Optax loaded, because their libraries import it, and
those libraries ask `isinstance(tx, optax.GradientTransformation)`.  Subclassing would
force Optax to be imported first.  Instead an instance of ours answers `__class__`,
which `isinstance` consults after `type`, with a subclass of Optax's class of the same
name, if Optax happens to be loaded, and vice versa.  JAX's registry of trees looks at
`type` alone and never notices.
"""

import functools as ft
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
)

import jax
from jax.typing import ArrayLike

from ..arrays import (
    as_array as as_array,
    holds_array as holds_array,
    is_array as is_array,
    is_none as is_none,
    partition_arrays as partition_arrays,
)
from ..arrays.placement import placed_init
from ..functions.calls import (
    explain_misuse,
    is_transformation,
    no_attribute,
    takes_a_count,
)
from ..functions.signatures import NAMES, name_of


T = TypeVar("T")

# Where Optax keeps classes that are not at its top level.
_HOMES = ("optax", "optax.contrib", "optax.transforms", "optax.schedules")

# A class whose instances our transformations with `is_plain` are not: in Optax, the
# pieces of an optimizer that read no keywords are not of this class.
_WIDE = "GradientTransformationExtraArgs"

# Our classes that Optax has too, by name.
COMPATIBLE: dict[str, type] = {}


def _namesake(name: str) -> type | None:
    """Optax's class of this name, if Optax is loaded."""
    for home in filter(None, map(sys.modules.get, _HOMES)):
        # Not by `getattr`, which warns for a name that has moved.
        found = vars(home).get(name)
        # `stepax.interop.optax` presents our own classes as Optax's.
        if isinstance(found, type) and not isinstance(found, _Meta):
            return found
    return None


class _Meta(type):
    """Counts an instance of Optax's class of the same name as an instance of ours."""

    def __instancecheck__(cls, instance: object) -> bool:
        if cls.__name__ == _WIDE and _is_plain(instance):
            return False
        # By name, because Optax may be loaded after us, and need not be loaded at all.
        return type.__instancecheck__(cls, instance) or any(
            c.__name__ == cls.__name__ and c.__module__.partition(".")[0] == "optax"
            for c in type(instance).__mro__
        )


def _is_plain(x: object) -> bool:
    # Not by `isinstance`, which asks this.  A pair that another library rebuilt has no
    # record.
    record = vars(x).get("record") if issubclass(type(x), Transformation) else None
    return record is not None and record.is_plain


def _class(self):
    if "optax" not in sys.modules:
        return type(self)
    hidden = _WIDE if _is_plain(self) else ""
    known = (c for c in type(self).__mro__ if c.__name__ != hidden)
    found = ((_namesake(ours.__name__), ours) for ours in known)
    return next((_double(*x) for x in found if x[0]), type(self))


@ft.cache
def _double(theirs: Any, ours: Any) -> type:
    """A subclass of Optax's class that makes ours, as in `x.__class__(*x)`."""
    body = {
        "__module__": theirs.__module__,
        "__qualname__": theirs.__qualname__,
        "__new__": lambda cls, *args, **kwargs: ours(*args, **kwargs),
        "_make": classmethod(lambda cls, values: ours._make(values)),
    }
    return type(theirs.__name__, (theirs,), body)


def optax_compatible(cls: type[T]) -> type[T]:
    """Make a named tuple and Optax's class of the same name pass for each other."""
    # Made anew, because `NamedTuple` takes no metaclass; with the bases of a named
    # tuple, by which programs tell one: `type(x).__bases__ == (tuple,)`.
    body = {
        **vars(cls),
        "__qualname__": cls.__qualname__,
        "__class__": property(_class),
        # Pickle would otherwise ask `__class__`.
        "__reduce_ex__": lambda self, protocol: (type(self), tuple(self)),
    }
    made = cast(type[T], _Meta(cls.__name__, cls.__bases__, body))
    COMPATIBLE[cls.__name__] = made
    return made


# Any tree is accepted: JAX has no type for a pytree, which may have any registered
# class.  `Any` is written here once, and these names everywhere else.
if TYPE_CHECKING:
    from ..factories.recipe import Recipe
    from ..step.nest import Composite
    from ..step.plan import Plan
    from ..step.rule import Rule

    Params: TypeAlias = Any
    Updates: TypeAlias = Any
    OptState: TypeAlias = Any
    ArrayTree: TypeAlias = Any
else:  # `Any` is a class at run time, where programs expect an alias
    Params = Updates = OptState = ArrayTree = Any | jax.Array
Schedule: TypeAlias = Callable[[ArrayLike], ArrayLike]
# Learning rates and decays may differ by path: a mapping from patterns to values.
ScalarOrSchedule: TypeAlias = (
    float | jax.Array | Schedule | Mapping[str, float | jax.Array | Schedule]
)
MaskOrFn: TypeAlias = Any | Callable[[Params], Any] | None
NAMES |= {
    "ArrayTree": ArrayTree,
    "Schedule": Schedule,
    "ScalarOrSchedule": ScalarOrSchedule,
    "MaskOrFn": MaskOrFn,
}


class TransformInitFn(Protocol):
    """Makes the first state from the parameters."""

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


class TransformationLike(Protocol):
    """Anything with `init` and `update`: Optax's, `MultiSteps`, a user's class."""

    @property
    def init(self) -> Callable[[Params], OptState]: ...

    @property
    def update(self) -> Callable[..., tuple[Updates, OptState]]: ...


@optax_compatible
class GradientTransformation(NamedTuple):
    """A pair of pure functions.

    init:   params -> state
    update: (updates, state, params=None) -> (updates, state)
    """

    init: TransformInitFn
    update: Callable[..., tuple[Updates, OptState]]

    def __eq__(self, other: object) -> bool:
        # Optax's pair passes `isinstance`, but compares as a tuple, and has another
        # hash.  Equality is symmetric, so we compare with it as a tuple, too.
        if GradientTransformation not in type(other).__mro__:
            return tuple.__eq__(self, other)  # type: ignore[arg-type]
        pair = cast(TransformationLike, other)
        return self is other or _identity(self) == _identity(pair)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_identity(self))


def _identity(tx: TransformationLike) -> object:
    """Equal for equal transformations: how it was made, otherwise its two functions."""
    recipe = recipe_of_pair(tx)
    key = recipe and recipe.key
    return (tx.init, tx.update) if key is None else key


class GradientTransformationExtraArgs(GradientTransformation, metaclass=_Meta):
    """A transformation whose `update` also takes keywords, such as the loss value.

    init:   params -> state
    update: (updates, state, params=None, **extra_args) -> (updates, state)
    """


def recipe_of(x: object) -> "Recipe | None":
    """The call of a factory that made `x`; `None` if it is not known."""
    return getattr(x, "recipe", None)


def recipe_of_pair(tx: TransformationLike) -> "Recipe | None":
    """As `recipe_of`, also for two functions of one transformation."""
    recipe, made = recipe_of(tx), getattr(tx.init, "made", None)
    # `GradientTransformation(tx.init, tx.update)`, as wrappers of other libraries write
    # it, is a plain pair without a recipe; its functions still know theirs.
    if recipe is None and made is not None and getattr(tx.update, "made", 0) is made:
        return made.recipe
    return recipe


def takes_extra_args(tx: TransformationLike) -> bool:
    """Whether `tx.update` may be called with keywords beyond `params`."""
    # The type answers this for our classes and Optax's.  Of any other class the
    # signature is inspected, because libraries define their own transformations.
    if isinstance(tx, GradientTransformationExtraArgs | Transformation):
        return True
    if isinstance(tx, GradientTransformation):
        return False
    kinds = (p.kind for p in inspect.signature(tx.update).parameters.values())
    return inspect.Parameter.VAR_KEYWORD in kinds


def require_transformation(tx: Any, where: str) -> None:
    if is_transformation(tx) and callable(tx.init) and callable(tx.update):
        return
    name = name_of(tx, repr(tx)[:60])
    found = f"`{name}` of type `{type(tx).__name__}`"
    # The usual mistake: `chain(adam)`, the factory in place of what it makes.
    found += f"; did you mean `{name}(...)`?" * callable(tx)
    found += "; unpack a list with `*`" * isinstance(tx, list)
    if type(tx).__name__ == "Rule":  # which is defined in a layer above this one
        found = "a `Rule`; write `@rule()` above the function that returns it"
    if callable(tx) and takes_a_count(tx):
        found = f"the schedule `{name}`; did you mean `scale_by_learning_rate(...)`?"
    raise TypeError(
        f"{where} must be a gradient transformation, with `init` and `update`, "
        f"but is {found}"
    )


@explain_misuse
def with_extra_args_support(
    tx: GradientTransformation,
) -> GradientTransformationExtraArgs:
    """Wrap a transformation so that its `update` accepts any keyword.

    Keywords that a plain transformation cannot take are dropped; one that takes
    keywords is returned unchanged.

    tx: the transformation.
    """
    return with_keywords(tx, "the argument of `with_extra_args_support`")


def with_keywords(tx: Any, where: str) -> GradientTransformationExtraArgs:
    """As `with_extra_args_support`, for an argument whose place is named in errors."""
    require_transformation(tx, where)
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    if type(tx) is Transformation:
        record = replace(tx.record, is_plain=False)
        return Transformation.of(tx.init, tx.update, record)
    if takes_extra_args(tx):
        return transformation(tx.init, tx.update, inner={"": tx})

    def update(updates, state, params=None, **extra_args):
        return require_pair(tx.update, tx.update(updates, state, params))

    return transformation(tx.init, update)


def require_pair(update: Callable, found: Any) -> tuple[Updates, OptState]:
    """What an `update` of the user returned; raises unless it is a pair."""
    if isinstance(found, tuple) and len(found) == 2:
        return found
    name = getattr(update, "__qualname__", "update")
    raise TypeError(
        f"`{name}` returned a `{type(found).__name__}`, expected a pair, "
        "`return updates, state`"
    )


@optax_compatible
class EmptyState(NamedTuple):
    """State of a transformation without memory."""


@optax_compatible
class MaskedNode(NamedTuple):
    """Replaces a parameter that is masked out.

    It has no leaves, so tree maps skip it.
    """


@explain_misuse
def init_empty_state(params: Params) -> EmptyState:
    """The state of a transformation without memory.

    params: not used.
    """
    return EmptyState()


Inner: TypeAlias = Mapping[str, TransformationLike]


@dataclass(frozen=True, eq=False)
class Record:
    """The components of a transformation of ours; copied only by `replace`.

    init: its `init`, without placement on a mesh.
    node: the `Rule` or composite that it runs; `None` for a closure, which the engine
        does not inspect.
    plan: the operations of a step, for a node.
    inner: for a closure, a dict of the transformations that it calls, keyed by the
        field of its state that holds their state, such as "inner_state" or "states/0",
        or by "" if its state is theirs; a function that returns this if they are made
        at each step.
    hands_on: the field of the member to which it passes all gradients on unread, if
        there is one.
    reads_any: whether it may itself read any keyword.
    only_places: whether it does the same as `inner[""]`, on other devices.
    take_step: (gradients, state, params, extra) -> (params, state), if that is better
        than `update`; see `stepax.step`.
    recipe: the factory and the arguments that it was made with.
    is_plain: whether it counts as a transformation without keywords, as in Optax; it
        drops them.
    """

    init: Callable[[Params], OptState]
    node: "Rule | Composite | None" = None
    plan: "Plan | None" = None
    inner: Inner | Callable[[], Inner] = field(default_factory=dict)
    hands_on: str = ""
    reads_any: bool = False
    only_places: bool = False
    take_step: Callable[..., tuple[Params, OptState]] | None = None
    recipe: "Recipe | None" = None
    is_plain: bool = False


class Transformation(GradientTransformationExtraArgs):
    """The result of our own factories, which also knows its components.

    Equal recipes make equal transformations, so that a transformation can be a static
    argument of `jax.jit`.  It is printed and pickled as the call that made it.
    """

    # An attribute, not a field: it remains a pair, which unpacks to `init` and
    # `update`.
    record: Record

    @classmethod
    def of(cls, init: Callable, update: Callable, record: Record) -> "Transformation":
        """The pair of functions with its record."""
        tx = cls(init, update)
        tx.record = record
        return tx

    @property
    def recipe(self) -> "Recipe | None":
        """The call that made it."""
        return self.record.recipe

    @property
    def node(self) -> "Rule | Composite | None":
        """The rule or composite that it runs."""
        return self.record.node

    @property
    def members(self) -> Inner:
        """The transformations that a closure calls, keyed by the field of its state."""
        inner = self.record.inner
        return inner() if callable(inner) else inner

    def __repr__(self) -> str:
        return repr(self.recipe) if self.recipe else super().__repr__()

    def __getattr__(self, name: str) -> NoReturn:
        record = vars(self).get("record")
        maker = record.recipe.build.__name__ if record and record.recipe else ""
        raise no_attribute(maker, name)

    def __reduce_ex__(self, protocol):
        # Closures cannot be pickled; the call that made them can.
        if self.recipe is None:
            return super().__reduce_ex__(protocol)
        return self.recipe.reduced()

    def _replace(self, **functions: Any) -> GradientTransformationExtraArgs:
        # What is known about it need not hold for other functions.
        return GradientTransformationExtraArgs(**self._asdict() | functions)


def transformation(
    init: Callable[[Params], OptState],
    update: Callable[..., tuple[Updates, OptState]],
    **known: Any,
) -> Transformation:
    """A transformation that is a closure; `known` are fields of its `Record`."""
    return Transformation.of(placed_init(init), update, Record(init, **known))


def with_init(tx: Transformation, init: Callable[[Params], OptState]) -> Transformation:
    """A transformation with another `init`, whose states its `update` accepts."""
    # Without a recipe: the call that made `tx` would make the old `init`.
    record = replace(tx.record, init=init, recipe=None)
    return Transformation.of(placed_init(init), tx.update, record)


def with_recipe(tx: Transformation, recipe: "Recipe | None") -> Transformation:
    """A transformation that is printed, compared and pickled as another call."""
    return Transformation.of(tx.init, tx.update, replace(tx.record, recipe=recipe))


def titled(tx: Transformation, title: str) -> Transformation:
    """A transformation that is printed under another title."""
    return with_recipe(tx, tx.recipe and tx.recipe.titled(title))


def init_of(tx: TransformationLike) -> Callable[[Params], OptState]:
    """`init` of a member of a composite, without placement on a mesh."""
    # The outermost `init` places the whole state, once.
    return tx.record.init if type(tx) is Transformation else tx.init

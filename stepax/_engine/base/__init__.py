"""The definition of a gradient transformation, which the rest of the library builds."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeAlias,
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
from .compatible import COMPATIBLE as COMPATIBLE, Meta, optax_compatible


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


class GradientTransformationExtraArgs(GradientTransformation, metaclass=Meta):
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

    def update(updates, state, params=None, **extra_args):
        return require_pair(tx.update, tx.update(updates, state, params))

    update = tx.update if takes_extra_args(tx) else update
    return transformation(tx.init, update, inner={"": tx}, hands_on="")


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
        there is one; `None` if it reads or judges them.
    shows: (updates, params) -> (updates, params, back), if that member sees trees of
        another form; `back` turns its updates into those of the first form.
    reads_any: whether it may itself read any keyword.
    only_places: whether it does the same as `inner[""]`, on other devices.
    stepped: (old state, new state, keywords) -> whether a call was a step, for one that
        accumulates or refuses gradients.
    in_steps: as in a `Rule`.
    is_exact: whether its updates are float32 for narrower gradients, and must not be
        rounded.
    found: what was found out about it and what it calls, once.
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
    hands_on: str | None = None
    shows: Callable[..., tuple] | None = None
    reads_any: bool = False
    only_places: bool = False
    stepped: Callable[..., Any] | None = None
    in_steps: str | None = None
    is_exact: bool = False
    found: dict[str, bool] = field(default_factory=dict)
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

    def __new__(cls, init: Callable, update: Callable) -> "Transformation":
        # Rebuilt from its functions, as `jax.tree.map` does, of which no more is known.
        return cls.of(init, update, Record(init, reads_any=True))

    @classmethod
    def _make(cls, iterable: Any) -> "Transformation":
        return cls(*iterable)

    @classmethod
    def of(cls, init: Callable, update: Callable, record: Record) -> "Transformation":
        """The pair of functions with its record."""
        tx = tuple.__new__(cls, (init, update))
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

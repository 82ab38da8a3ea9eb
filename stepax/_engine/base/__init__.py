"""The definition of a gradient transformation, which the rest of the library builds."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, cast

import jax
import numpy as np
from jax.typing import ArrayLike

from ..arrays import (
    as_array as as_array,
    holds_array as holds_array,
    is_array as is_array,
    is_none as is_none,
    partition_arrays as partition_arrays,
)
from ..functions.calls import explain_misuse, is_transformation, takes_a_count
from ..functions.signatures import NAMES, name_of
from .call import Call as Call, call_of as call_of
from .compatible import (
    COMPATIBLE as COMPATIBLE,
    Meta,
    optax as optax,
    optax_compatible as optax_compatible,
)


# Any tree is accepted: JAX has no type for a pytree, which may have any registered
# class.  `Any` is written here once, and these names everywhere else.
if TYPE_CHECKING:
    Params: TypeAlias = Any
    Updates: TypeAlias = Any
    OptState: TypeAlias = Any
    ArrayTree: TypeAlias = Any
    # A schedule of users may be annotated as a function of `int`, which `ArrayLike` is
    # not, and they take `float` of its value, which a complex number does not have.
    Schedule: TypeAlias = Callable[[Any], Any]
    Whole: TypeAlias = int | np.integer | jax.Array  # which all count as `int`
else:  # `Any` is a class at run time, where programs expect an alias
    Params = Updates = OptState = ArrayTree = Any | jax.Array
    Schedule = Callable[[ArrayLike], ArrayLike]
    Whole = int
# Learning rates and decays may differ by path: a mapping from patterns to values.
_Rate: TypeAlias = float | jax.Array | np.ndarray | np.number | Schedule
ScalarOrSchedule: TypeAlias = _Rate | Mapping[str, _Rate]
if TYPE_CHECKING:  # as in Optax: programs negate what is not a schedule
    PublicScalarOrSchedule: TypeAlias = float | jax.Array | Schedule
else:
    PublicScalarOrSchedule = ScalarOrSchedule
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
class GradientTransformation(optax.GradientTransformation):
    """A pair of pure functions.

    init:   params -> state
    update: (updates, state, params=None) -> (updates, state)
    """

    init: TransformInitFn
    update: Callable[..., tuple[Updates, OptState]]

    if TYPE_CHECKING:  # Optax's constructor expects these very names of arguments

        def __new__(
            cls, init: Callable[[Params], OptState], update: Callable[..., Any]
        ) -> Self: ...

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
    call = call_of_pair(tx)
    key = call and call.key
    return (tx.init, tx.update) if key is None else key


if TYPE_CHECKING:

    class _Wide(GradientTransformation, optax.GradientTransformationExtraArgs): ...
else:
    _Wide = GradientTransformation


class GradientTransformationExtraArgs(_Wide, metaclass=Meta):
    """A transformation whose `update` also takes keywords, such as the loss value.

    init:   params -> state
    update: (updates, state, params=None, **extra_args) -> (updates, state)
    """


def call_of_pair(tx: TransformationLike) -> Call | None:
    """As `call_of`, also for two functions of one transformation."""
    call, node = call_of(tx), getattr(tx.init, "node", None)
    # `GradientTransformation(tx.init, tx.update)`, as wrappers of other libraries write
    # it, is a plain pair without a call; its functions still know theirs.
    if call is None and node is not None and getattr(tx.update, "node", 0) is node:
        return node.call
    return call


def require_transformation(tx: Any, where: str) -> None:
    is_made = is_transformation(tx) and not isinstance(tx, type)  # as `MultiSteps` is
    if is_made and callable(tx.init) and callable(tx.update):
        return
    name = name_of(tx, repr(tx)[:60])
    found = "`None`" if tx is None else f"`{name}` of type `{type(tx).__name__}`"
    # The usual mistake: `chain(adam)`, the factory in place of what it makes.
    if callable(tx):
        found += f"; did you mean `{name}(...)`?"
    if isinstance(tx, list):
        found += "; unpack a list with `*`"
    if type(tx).__name__ == "Rule":  # which is defined in a layer above this one
        found = "a `Rule`; write `@rule()` above the function that returns it"
    if callable(tx) and takes_a_count(tx):
        found = f"the schedule `{name}`; did you mean `scale_by_learning_rate(...)`?"
    raise TypeError(
        f"{where} must be a gradient transformation, with `init` and `update`, "
        f"but is {found}"
    )


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
class EmptyState(optax.EmptyState):
    """State of a transformation without memory."""


@optax_compatible
class MaskedNode(optax.MaskedNode):
    """Replaces a parameter that is masked out.

    It has no leaves, so tree maps skip it.
    """


@explain_misuse
def init_empty_state(params: Params) -> EmptyState:
    """The state of a transformation without memory.

    params: not used.
    """
    return EmptyState()

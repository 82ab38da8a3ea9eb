"""An optimizer written for one array.

A `Rule` holds the mathematics of an optimizer, for one array.  The engine does what all
optimizers have in common: flattening, step counts, precision, storage, masks, sharding,
and errors that name the parameter.
"""

import functools as ft
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, NoReturn

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from ..arrays import of_arrays_or_shapes
from ..arrays.numerics import dtype_of, increment, zero_count
from ..arrays.placement import shard_like, spread_over_mesh_of
from ..arrays.precision import scalar_dtype
from ..arrays.stacked import Axes, number_in, one_of
from ..base import ArrayTree, EmptyState, OptState, Params, as_array, is_array, is_none
from ..base.call import Call
from ..base.node import Node
from ..functions.calls import explain_misuse
from ..trees import errors, stacks
from ..trees.pack import pack
from ..trees.packed import Packed
from ..trees.search import SlotMark
from .batched import Batched
from .stacked_rule import slot_of_stack


@dataclass(frozen=True)
class Slot:
    """One array that a rule keeps for each parameter, and how it is stored.

    make: the initial value, from the parameter; by default zeros of its shape.  For a
        slot that is not `alike` it may be a tree, such as one matrix for each axis.
    dtype: the stored dtype; `None` keeps that of `make`, by default the parameter's.
    alike: whether it has the shape of the parameter, which is then checked.
    is_wide: whether it is stored in float32 for float16 parameters: the squares of
        ordinary gradients, and products of small ones, are out of the range of float16.
    in_leaf: whether `leaf` takes and returns it; otherwise only the batched stage does,
        and it is sharded over the devices of a mesh, however the parameter is sharded.
    is_slow: whether a step may change it by less than bfloat16 resolves, as in an
        average with a long memory; `describe` warns if it is stored in bfloat16.
    kind: a moving "average", which forgets rounding errors, so that it may be stored in
        few bits; a "sum" or a "copy", to which steps add little; or "other", which must
        remain exact for another reason.
    is_positive: whether it is never negative, such as a mean of squares.
    by_rows: whether it may have one number for each row, the mean over the row, instead
        of one for each element; `leaf` then receives it with axes of length 1.
    encode, decode: to and from storage, such as 8-bit blocks; `encode` may return a
        tree.  `None` stores the array as it is.
    is_spread: whether a slot that `leaf` does not take is sharded over all devices from
        the first; otherwise only if the array is stacked with others of its shape.

    >>> slots = {"mu": stepax.rules.Slot(dtype=jnp.float32)}
    """

    make: Callable[[jax.Array], ArrayTree] = jnp.zeros_like
    dtype: DTypeLike | None = None
    alike: bool = True
    is_wide: bool = False
    is_slow: bool = False
    in_leaf: bool = True
    kind: Literal["average", "sum", "copy", "other"] = "average"
    is_positive: bool = False
    by_rows: bool = False
    encode: Callable[[jax.Array], ArrayTree] | None = None
    decode: Callable[[ArrayTree], jax.Array] | None = None
    is_spread: bool = True

    @property
    def is_array(self) -> bool:
        """Whether it is known to be stored as one array."""
        return self.encode is None and self.alike

    @property
    def copies(self) -> bool:
        """Whether its initial value is 0, or the parameter, element by element."""
        return self.make in (jnp.zeros_like, copy_of)

    def new(self, p: ArrayTree, put: Callable | None = None) -> ArrayTree:
        """The initial value for a parameter, in stored form.

        put: (p, x) -> `x`, placed on the mesh of `p`.
        """
        p = as_array(p)
        is_spread = self.is_spread and not self.in_leaf
        put = put or (spread_over_mesh_of if is_spread else shard_like)
        return jax.tree.map(ft.partial(self._stored, p, put), self.make(p))

    def column(self, ps: list) -> list:
        """The initial values for parameters, `None` for those that are not trained."""
        is_moved = self.is_spread and not self.in_leaf
        if self.make is jnp.zeros_like and self.is_array and not is_moved:
            if _are_concrete(ps):  # one by one, each would be looked at several times
                to = {dtype: self._dtype(dtype) for dtype in {p.dtype for p in ps}}
                return [jax.lax.full_like(p, 0, to[p.dtype]) for p in ps]
        return [None if p is None else self.new(p) for p in ps]

    def _dtype(self, dtype: DTypeLike) -> DTypeLike:
        """The dtype of what is stored in place of an array of `dtype`."""
        if self.dtype is not None:
            return jax.dtypes.canonicalize_dtype(self.dtype)
        return jnp.float32 if self.is_wide and dtype == jnp.float16 else dtype

    def _stored(self, p: jax.Array, put: Callable, x: jax.Array) -> ArrayTree:
        dtype = self._dtype(x.dtype)
        if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
            x = jnp.real(x)  # as Optax stores it; a step that would lose a part raises
        # Strongly typed, or the first step would change the type, and `jit` retrace.
        x = jax.lax.convert_element_type(x, dtype)
        x = put(p, x)
        return x if self.encode is None else self.encode(x)


def zeros_like(p: ArrayTree, dtype: DTypeLike | None = None) -> jax.Array | None:
    """Zeros for a parameter, strongly typed, sharded like it; `None` for non-arrays."""
    return Slot(dtype=dtype).new(p) if is_trainable(p) else None


def copy_of(p: ArrayTree) -> jax.Array:
    """A copy of `p` in a new buffer; zeros for a shape."""
    # Not `p` itself: with parameters and state donated, it would be donated twice.
    return jnp.zeros_like(p) if isinstance(p, jax.ShapeDtypeStruct) else jnp.copy(p)


def zeros_for(p: jax.Array, reduced: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Zeros of the shape and the sharding of `reduced(p)`, in the dtype of `p`."""
    like = of_arrays_or_shapes(lambda p: reduced(jnp.asarray(p)), p)
    return shard_like(like, jnp.zeros_like(like, dtype=jnp.result_type(p)))


# The mean squared gradient is real, but Optax stores it in the parameter's dtype.
REAL = Slot(is_wide=True, is_positive=True, decode=jnp.real)


# The mean squared gradient of a rule that computes it by `square_like`.
MEAN_SQUARE = replace(REAL, by_rows=True)


# The mean squared gradient over parts of an array, whose shape `make` decides.
REDUCED = Slot(alike=False, is_wide=True, decode=jnp.real)


# A sum of squares, or the largest of something positive.
SQUARES = replace(REAL, kind="sum")
MAXIMUM = replace(REAL, kind="other")


# The initial parameter.
START = Slot(make=copy_of, kind="copy")


def is_trainable(p: object) -> bool:
    """Whether an optimizer keeps state for `p`; not for functions, keys and `None`."""
    if not is_array(p):
        return False
    # Random keys are arrays of an extended dtype, which has no zero.
    return not jnp.issubdtype(dtype_of(p, jnp.float32), jax.dtypes.extended)


def _are_concrete(ps: list) -> bool:
    """Whether all are numeric arrays of JAX, and no tracers."""
    is_known = all(issubclass(kind, jax.Array) for kind in set(map(type, ps)))
    dtypes = {p.dtype for p in ps} if is_known else ()
    return is_known and not any(jnp.issubdtype(x, jax.dtypes.extended) for x in dtypes)


def trained(ps: list) -> list:
    """The parameters as arrays, `None` for those that are not trained."""
    if _are_concrete(ps):
        return ps
    return [as_array(p) if is_trainable(p) else None for p in ps]


@explain_misuse
def from_step(f: Callable[[jax.Array], object]) -> Callable[..., Any]:
    """The `prepare` of rules whose context depends on the step number t = 1, 2, ...

    f: a function from t to the context of all leaves.

    >>> prepare = stepax.rules.from_step(lambda t: 1 / t)
    """

    def prepare(scalars, stat, extra):
        t = increment(scalars[0])
        return f(t), (t,)

    return prepare


def from_count(f: Callable[[jax.Array], object]) -> Callable:
    """As `from_step`, for a context that depends on the steps before, 0, 1, ..."""

    def prepare(scalars, stat, extra):
        return f(scalars[0]), (increment(scalars[0]),)

    return prepare


def real_scalar(
    first: ArrayLike | Callable[[Params], ArrayLike] = 0.0,
    shape: tuple[int, ...] = (),
) -> Callable[[Params], jax.Array]:
    """Makes a scalar or vector of a rule: in float32, or float64 as the parameters."""

    def make(params):
        value = first(params) if callable(first) else first
        return jnp.full(shape, value, scalar_dtype(params))

    return make


def unchanged(g: Any, p: Any, ctx: Any) -> tuple:
    """The `leaf` of a rule that returns its gradients, such as one for its stage."""
    return (g,)


COUNT: Mapping[str, Callable[..., Any]] = MappingProxyType({"count": zero_count})


@dataclass(frozen=True, eq=False)
class Varied:
    """Rules that replace a rule, each for its own leaves.

    labels: a function from a tree to a label for each of its leaves, `None` included.
    rule: a function from a label to the rule for such leaves.  These rules have the
        slots and scalars of the rule that they replace; initial values of slots may
        differ.
    calls: a dict from the names of labels to the calls that made their rules; empty if
        not needed.
    """

    labels: Callable[[ArrayTree], list]
    rule: Callable[[Hashable], "Rule"]
    calls: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Rule(Node):
    """One optimizer, for one array.

    leaf: (g, p, ctx, *slots) -> (u, *slots).  Pure; sees float32 or wider.  `None`
        leaves gradients as they are.
    State: named tuple whose fields are the names in `scalars` and `slots`.
    slots: the arrays that `leaf` keeps for each parameter, in the order it takes them.
    scalars: the scalars that all parameters share: a dict from names to functions of
        the parameters that make the initial values.
    prepare: (scalars, stat, extra) -> (ctx, scalars).  Runs once a step, before the
        leaves, which all get `ctx`.  By default each scalar counts steps, and `ctx` is
        `None`.
    leaf_stat: (g, p, scalars, *slots) -> statistics of one leaf, whose sum over all
        leaves `prepare` gets as `stat`.
    global_stat: list of all g -> a statistic, which `prepare` gets instead.
    batched: a stage on whole matrices that follows `leaf`; devices share its work.
    needs_params: whether `leaf` or `leaf_stat` reads `p`, which is `None` otherwise.
    reads: the keywords of `update` that `prepare` reads from `extra`.
    elementwise: whether `leaf` computes each element only from the same element of its
        arguments, so that arrays may be joined for it.
    sanitizes: whether it cleans each gradient separately, and keeps only flags of what
        it found, so that `MultiSteps` runs it on every micro-batch.
    in_steps: whether it acts only in calls that are steps of the parts before it, as
        weight decay does: on a "leaf" if it is one of that leaf, or on all if it is one
        of "any", where slots change.  By default each call counts, as in Optax.
    name, origin: the factory that made it, and its call, which says where in the result
        the rule is; from the decorator.
    varied: the rules that run in its place, if a hyperparameter differs by leaf.

    >>> rule = stepax.rules.Rule(lambda g, p, ctx: (-0.1 * g,))
    """

    leaf: Callable[..., Any] | None
    State: type = EmptyState
    slots: Mapping[str, Slot] = field(default_factory=dict)
    scalars: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    prepare: Callable[..., Any] | None = None
    leaf_stat: Callable[..., Any] | None = None
    global_stat: Callable[..., Any] | None = None
    batched: Batched | None = None
    needs_params: bool = False
    reads: tuple[str, ...] = ()
    elementwise: bool = False
    sanitizes: bool = False
    in_steps: Literal["leaf", "any"] | None = None
    name: str = ""
    origin: Call | None = None
    varied: Varied | None = None
    keeps_dtypes = True  # no field: all rules do

    # A wrong rule would otherwise fail in the first step, far from its definition.
    def __post_init__(self):
        fields, wanted = errors.fields_of(self.State), {*self.scalars, *self.slots}
        if fields is not None and set(fields) != wanted:
            raise TypeError(
                f"`{self.State.__name__}` has the fields ({', '.join(fields)}), but "
                f"the rule has the scalars and slots ({', '.join(wanted)})"
            )
        other = [k for k, slot in self.slots.items() if not slot.alike]
        if fields:
            # An elementwise rule encodes the elements of a stack where they are.
            coded = [k for k, x in self.slots.items() if x.encode]
            in_front = other if self.elementwise else other + coded
            stacks.register(self.State.__name__, self.scalars, in_front)
        if self.elementwise and other:
            raise ValueError(
                f"the slot `{other[0]}` has another shape than its parameter, so the "
                "rule cannot be elementwise: omit `elementwise=True`"
            )

    def made_by(self, name: str, origin: Call | None) -> "Rule":
        """The rule with the name of its factory, unless it has one already."""
        return self if self.name else self.changed(name=name, origin=origin)

    def for_label(self, label: Hashable) -> "Rule":
        """The rule that runs on leaves with a label; itself if it is not varied."""
        if self.varied is None or label is None:
            return self
        one, origin = self.varied.rule(label), self.origin
        if one.origin is not None or origin is None:
            return one
        # It was made by the call that made this rule.
        return replace(one, origin=replace(origin, at=(*origin.at, label)))

    def own_rules(self):
        yield self

    def keywords(self) -> frozenset[str]:
        return frozenset(self.reads)

    @property
    def has_sanitizer(self) -> bool:
        return self.sanitizes

    @property
    def takes_joined(self) -> bool:
        """Whether `leaf` and its slots work for joined arrays."""
        # The result of an encoder for a vector may not be splittable.
        return self.elementwise and all(x.is_array for x in self.slots.values())

    def __getattr__(self, name: str) -> NoReturn:
        text = f"a `Rule` has no `{name}`"
        if name == "update":
            text += ": write `@rule()` above the function that returns the rule"
        raise AttributeError(text)

    def init(self, params: Params, /) -> OptState:
        """The first state."""
        # It gets the arrays of packed gradients one by one, not their vectors.
        if not self.takes_joined and isinstance(params, Packed):
            params = params.unpack()
        whole = params
        if self.varied and isinstance(params, Packed):
            params = params.unpack()  # initial values may differ between arrays
        ps, treedef = jax.tree.flatten(params, is_leaf=is_none)
        rules = []
        axes = None if self.takes_joined else stacks.axes_in(params)
        matrices = list(map(one_of, ps, axes)) if axes else ps
        if self.varied and not isinstance(params, SlotMark):
            labels = self.varied.labels(params) or [None] * len(ps)
            rules = list(map(self.for_label, labels))

        def column(name):
            if isinstance(params, SlotMark):
                return params.of(self.slots[name])
            each = [rule.slots[name] for rule in rules]
            made = self.column(self.slots[name], ps, matrices, each, axes)
            made = treedef.unflatten(made)
            return made if whole is params else pack(made, like=whole)

        scalars = {k: make(whole) for k, make in self.scalars.items()}
        return self.State(**scalars, **{k: column(k) for k in self.slots})

    def column(
        self,
        slot: Slot,
        ps: list,
        matrices: list,
        each: list[Slot] | None = None,
        axes: Sequence[Axes] | None = None,
    ) -> list:
        """The initial values of a slot, `None` for leaves that are not trained.

        ps: the parameters from which it is made.
        matrices: the parameters as the stage on matrices sees them, one of each stack.
        each: the slot of each parameter, whose initial values may differ.
        axes: the axes along which each is a stack.
        """
        ps = trained(ps)
        if self.batched is None and not each and not axes:
            return slot.column(ps)
        axes = axes or [()] * len(ps)
        several = list(map(slot_of_stack, each or [slot] * len(ps), axes))
        places: list[Callable | None] = [None] * len(ps)
        if self.batched is not None:
            whole = self.batched.split.from_part
            ps = [p if p is None or slot.alike else whole(p) for p in ps]
            numbers = [(x, number_in(p, x)) for p, x in zip(ps, axes, strict=True)]
            places = self.batched.places(slot, trained(matrices), numbers)
        rows = zip(ps, places, several, strict=True)
        return [None if p is None else x.new(p, put) for p, put, x in rows]

    def check_state(self, state: OptState) -> None:
        """Raise unless `state` belongs to this rule, or is Optax's of the same name."""
        # By name and fields: restored checkpoints and Optax's states are other classes.
        wanted = (*self.scalars, *self.slots)
        fields = errors.fields_of(state)
        if fields is not None and type(state).__name__ == self.State.__name__:
            return

        # Every tuple has a method `count`.
        def has(k):
            return not callable(getattr(state, k, callable))

        if not fields and all(map(has, wanted)):
            return  # a rule without state accepts anything without fields
        raise errors.of_step(
            f"`{self.name}` expects a state `{self.State.__name__}` of fields "
            f"({', '.join(wanted)}), but was given {errors.describe(state)}"
            f"{errors.state_hint(state)}"
        )


def _apply() -> Rule:
    return APPLY


_BOUND = inspect.signature(_apply).bind()


# What `stepax.step` appends to a plan to return new parameters, which the kernel rounds
# to the dtype of the parameter, not of the gradient.
APPLY = Rule(
    lambda g, p, ctx: (p + g,),
    needs_params=True,
    elementwise=True,
    name="apply_updates",
    origin=Call(_apply, _apply, _BOUND, checked=_BOUND, at=(0,)),
)

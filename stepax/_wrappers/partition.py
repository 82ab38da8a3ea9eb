"""Masks and partitions: transformations that apply to some of the leaves."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.trees.packed import outline
from .._engine.trees.selection import Labels, LeafMask, Scope


@rx.optax_compatible
class MaskedState(rx.optax.MaskedState):
    """inner_state: state of the transformation, with `MaskedNode` for masked leaves."""

    inner_state: rx.OptState


@rx.optax_compatible
class PartitionState(rx.optax.PartitionState):
    """inner_states: a dict from labels to `MaskedState`s."""

    inner_states: Mapping[Hashable, rx.OptState]


MultiTransformState = PartitionState


def _part(
    labels: Labels, name: Hashable, tree: rx.ArrayTree, outer: Scope = None
) -> LeafMask:
    """The leaves with a label, and leaves without one that are not arrays.

    The latter belong to every part, as `None` does in Optax, where it is not a leaf.
    """

    def is_in(label, leaf=None):
        return label == name or (label is None and not rx.is_array(leaf))

    leaves = jax.tree.leaves(outline(tree), is_leaf=rx.is_none) if labels else []
    return LeafMask(labels.map(is_in, leaves), outer)


class Masked(rx.Composite):
    """One member, which sees the leaves where the mask is true."""

    has_scopes = True

    def __init__(self, inner: rx.TransformationLike, mask: rx.MaskOrFn):
        self.members = (inner,)
        self.mask = mask

    def init(self, params):
        keep = rx.selection.resolve_mask(self.mask, params)
        return MaskedState(
            rx.init_of(self.members[0])(_part(keep, True, params).cut(params))
        )

    def unpack(self, state):
        rx.errors.require_state("masked", MaskedState, state)
        return [state.inner_state]

    def pack(self, states):
        return MaskedState(*states)

    def scopes(self, gradients, scope):
        tree = gradients.outline(scope)
        return [_part(rx.selection.resolve_mask(self.mask, tree), True, tree, scope)]


class Partition(rx.Composite):
    """A member for each label, which sees the leaves so labelled."""

    has_scopes = True

    def __init__(
        self,
        transforms: Mapping[Hashable, rx.TransformationLike],
        labels: rx.MaskOrFn,
    ):
        self.names = tuple(transforms)
        self.members = tuple(transforms.values())
        self.labels = labels

    def resolve(self, tree: rx.ArrayTree) -> Labels:
        found = rx.selection.resolve(self.labels, tree, "param_labels")
        strange = [i for i, x in enumerate(found) if not self._knows(x)]
        if strange or not all(map(self._knows, found.empty)):
            tree = outline(tree)
            leaves = jax.tree.leaves(tree, is_leaf=rx.is_none)
            unknown = [i for i in strange if rx.is_array(leaves[i])]
            if unknown:
                paths = rx.errors.paths(tree)
                listed = [f"{found[i]!r} at {paths[i]}" for i in unknown]
                raise ValueError(
                    "`partition`: labels have no transformation: "
                    f"{rx.errors.list_some(listed)}; the known labels are "
                    f"{list(self.names)}"
                )
            found = found.map(lambda x: x if self._knows(x) else None)
        return found

    def _knows(self, label: object) -> bool:
        try:
            return hash(label) is not None and label in self.names
        except TypeError:  # arrays, traced ones among them, have no hash
            return False

    def init(self, params):
        found = self.resolve(params)
        states = [
            MaskedState(rx.init_of(tx)(_part(found, name, params).cut(params)))
            for name, tx in zip(self.names, self.members, strict=True)
        ]
        return PartitionState(dict(zip(self.names, states, strict=True)))

    def unpack(self, state):
        states = getattr(state, "inner_states", None)
        if not isinstance(states, Mapping) or set(states) != set(self.names):
            found = rx.errors.describe(state) if states is None else list(states)
            raise rx.errors.of_step(
                f"`partition` has states for {list(self.names)}, but got {found}"
                f"{rx.errors.state_hint(state)}"
            )
        for k in self.names:
            rx.errors.require_state(f"partition[{k!r}]", MaskedState, states[k])
        return [states[k].inner_state for k in self.names]

    def pack(self, states):
        states = map(MaskedState, states)
        return PartitionState(dict(zip(self.names, states, strict=True)))

    def scopes(self, gradients, scope):
        tree = gradients.outline(scope)
        found = self.resolve(tree)
        return [_part(found, name, tree, scope) for name in self.names]


def _cutting(inner: rx.TransformationLike) -> rx.GradientTransformationExtraArgs:
    """`inner`; keywords that are trees like the gradients are masked as they are."""
    inner = rx.with_keywords(inner, "`inner` of `masked`")

    def update(updates, state, params=None, **extra_args):
        extra = {k: cut_like(updates, x) for k, x in extra_args.items()}
        return inner.update(updates, state, params, **extra)

    return rx.transformation(inner.init, update, inner={"": inner}, hands_on="")


def cut_like(updates: rx.Updates, x: Any) -> Any:
    """A tree like the gradients, masked as they are; anything else unchanged."""

    def pick(u, y):
        return u if isinstance(u, rx.MaskedNode) else y

    try:
        return jax.tree.map(pick, updates, x, is_leaf=rx.is_absent)
    except (ValueError, TypeError):
        return x


@rx.public("wrapper")
def masked(
    inner: rx.TransformationLike,
    mask: rx.MaskOrFn,
    *,
    mask_compatible_extra_args: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """Apply a transformation where the mask is true.

        u = inner(g) where the mask is true,   u = g elsewhere

    The other leaves pass through unchanged and have no state.  To keep parameters
    fixed, use `freeze` or `selective_transform`.

    inner: the transformation.
    mask: a tree of booleans like the parameters or a prefix of it, a mapping from names
        or path patterns to booleans, or a function from the parameters to one of these.
    mask_compatible_extra_args: whether keywords of `update` that are trees like the
        gradients are masked, too.

    Raises a `ValueError` for a mask that does not fit, and a `TypeError` for a value in
    it that is not a boolean; both name the path.
    """
    rx.require_transformation(inner, "`inner` of `masked`")
    return rx.build(
        Masked(_cutting(inner) if mask_compatible_extra_args else inner, mask)
    )


@rx.public("wrapper")
def partition(
    transforms: Mapping[Any, rx.TransformationLike],
    param_labels: Any | Callable[[rx.Params], Any],
    *,
    mask_compatible_extra_args: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """Give each leaf to the transformation of its label.

    transforms: a dict from labels to transformations.
    param_labels: a tree of labels like the parameters or a prefix of it, a mapping from
        names or path patterns to labels, as in `{"policy/**": "adam", "**": "freeze"}`,
        or a function from the parameters to one of these.
    mask_compatible_extra_args: whether keywords of `update` that are trees like the
        gradients are masked, too.

    Raises a `ValueError` for a label without a transformation, for labels that do not
    fit, and for a pattern that matches nothing; these name the path.
    """
    if not isinstance(transforms, Mapping):
        found = rx.errors.describe(transforms)
        raise TypeError(
            f"`transforms` of `partition` is {found}, expected "
            'a dict from labels to transformations, as in `{"policy": adam(1e-3)}`'
        )
    for label, tx in transforms.items():
        rx.require_transformation(tx, f"the transformation for label {label!r}")
    if mask_compatible_extra_args:
        transforms = {label: _cutting(tx) for label, tx in transforms.items()}
    return rx.build(Partition(dict(transforms), param_labels))


multi_transform = partition


def own_leaves(where: Any) -> rx.MaskOrFn:
    """A mask of the leaves that a transformation trains; other masks unchanged.

    where: a transformation by `masked`; a partition and a label; or a mask.
    """
    is_pair = type(where) is tuple and len(where) == 2
    is_part = is_pair and rx.is_transformation(where[0])
    tx, label = where if is_part else (where, None)
    if not rx.is_transformation(tx):
        return where
    node = rx.node_of(tx)
    if isinstance(node, Masked) and not is_part:
        return node.mask
    if not isinstance(node, Partition) or not is_part:
        raise TypeError(
            "`where` holds a transformation whose own leaves are unknown, expected one "
            "by `masked`, or a pair of one by `partition` and a label"
        )
    if label not in node.names:
        raise ValueError(
            f"`where` names the label {label!r}, expected one of {list(node.names)}"
        )

    def mask(tree):
        labels = node.resolve(tree)
        return labels.map(lambda x: None if x is None else x == label).tree

    return mask


@rx.public()
def identity() -> rx.Rule:
    """Leave the updates as they are: u = g."""
    return rx.Rule(None, elementwise=True)


@rx.traits("freezes")
@rx.public()
def set_to_zero() -> rx.Rule:
    """Replace the updates by zeros, whatever they are: u = 0."""

    def leaf(g, p, ctx):
        return (rx.with_sharding_of(g, jnp.zeros_like(g)),)

    return rx.Rule(leaf, rx.EmptyState, elementwise=True)


@rx.public()
def freeze(mask: rx.MaskOrFn) -> rx.GradientTransformationExtraArgs:
    """Set the updates to zero where the mask is true; pass the others through.

    mask: true for the parameters to keep fixed; see `masked`.
    """
    return masked(set_to_zero(), mask)


@rx.public("wrapper")
def selective_transform(
    optimizer: rx.TransformationLike, *, freeze_mask: rx.MaskOrFn
) -> rx.GradientTransformationExtraArgs:
    """Apply an optimizer where the mask is false, and keep the rest fixed.

    Frozen parameters get zero updates and own no state.

    optimizer: for the parameters that are trained.
    freeze_mask: true for the parameters to keep fixed; see `masked`.
    """
    rx.require_transformation(optimizer, "`optimizer` of `selective_transform`")
    labels = split(freeze_mask, "freeze", "train", "freeze_mask")
    return partition({"train": optimizer, "freeze": set_to_zero()}, labels)


def split(mask: rx.MaskOrFn, inside: str, outside: str, what: str) -> Callable | str:
    """A function from parameters to two labels; `None` for what is `None`."""
    if isinstance(mask, bool):  # one label, also for a tree without leaves
        return inside if mask else outside
    names = {True: inside, False: outside, None: None}

    def labels(params):
        return rx.selection.resolve_mask(mask, params, what).map(names.get).tree

    return labels

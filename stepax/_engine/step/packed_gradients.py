"""Packed gradients while a step turns them into updates.

Masks and labels select among the arrays of a packed tree.  Arrays that are adjacent in
a vector, and that the same rules see, form a run.  Elementwise rules take a run as one
leaf, so nothing is unpacked; all other rules get the arrays in their own shapes.
"""

import functools as ft
import itertools as it
from collections.abc import Sequence

import jax
from jax.tree_util import keystr

from ..arrays.joined import join
from ..base import ArrayTree, MaskedNode, Params, Updates, is_none
from ..trees import errors, stacks
from ..trees.packed import Packed
from ..trees.selection import Labels, LeafMask, Scope
from . import Gradients


class PackedGradients(Gradients):
    """The gradients of a packed tree.

    packed: the current updates.
    leaves: shapes and dtypes of their arrays, among which masks choose.
    """

    def open(self, updates: Updates) -> None:
        if not isinstance(updates, Packed):
            raise TypeError(
                f"the updates were packed, and became {errors.describe(updates)}"
            )
        self.packed = updates
        # Cached below, from the old updates.
        for name in ("leaves", "treedef"):
            self.__dict__.pop(name, None)

    # Most steps never need them: without masks and rules that need shapes, a vector is
    # one run, and its arrays are not looked at.
    @ft.cached_property
    def leaves(self) -> list:
        return jax.tree.leaves(self.packed.outline(), is_leaf=is_none)

    @ft.cached_property
    def treedef(self) -> ArrayTree:
        return jax.tree.structure(self.packed.outline(), is_leaf=is_none)

    @property
    def updates(self) -> Packed:
        return self.packed

    def outline(self, scope: Scope) -> ArrayTree:
        whole, axes = self.packed.outline(), scope and scope.axes
        whole = stacks.as_one(whole, axes) if axes else whole
        return whole if scope is None else scope.cut(whole)

    def cut_params(self, scope: Scope) -> Params:
        whole = self.all_params
        return whole if scope is None or whole is None else scope.cut(whole)

    def merge(self, updates: Updates, scope: Scope) -> None:
        if scope is None:
            self.open(updates)
            return
        runs, (is_inside,) = self.runs([scope], [True])
        changed = runs.leaves_of(updates, "updates")
        triples = zip(is_inside, changed, runs.leaves, strict=True)
        runs.leaves = [u if on else x for on, u, x in triples]
        self.close(runs)

    def runs(
        self,
        scopes: Sequence[Scope],
        elementwise: Sequence[bool],
        labels: Sequence | None = None,
    ) -> tuple:
        """The runs for rules with these scopes, and which runs each rule sees.

        elementwise: for each rule, whether it takes arrays joined.
        labels: for each array, a label that all arrays of a run have in common.
        """
        # Nothing to split: each vector is a run.
        groups = self.packed.layout.groups
        is_whole = all(elementwise) and all(scope is None for scope in scopes)
        if is_whole and labels is None:
            return GradientRuns(self, groups, [False] * len(groups)), scopes
        arrays = [i for i, x in enumerate(self.leaves) if x is not None]
        sees = [tuple(scope is None or scope[i] for scope in scopes) for i in arrays]
        is_single = [
            any(on and not joins for on, joins in zip(x, elementwise, strict=True))
            for x in sees
        ]

        # An array with a rule that is not elementwise is a run of its own.
        def key(n):
            label = None if labels is None else labels[arrays[n]]
            return sees[n], n if is_single[n] else -1, label

        runs = [list(run) for group in groups for _, run in it.groupby(group, key)]
        seen: list[Scope] = []
        for k, scope in enumerate(scopes):
            axes = scope and scope.axes
            axes = axes and [axes[arrays[run[0]]] for run in runs]
            # Not whole: a mask may also leave out nodes that have no leaf.
            on = Labels([sees[run[0]][k] for run in runs], empty=[False])
            seen.append(None if scope is None else LeafMask(on, axes=axes))
        made = GradientRuns(self, runs, [is_single[run[0]] for run in runs])
        if labels is not None:
            made.labels = [labels[arrays[run[0]]] for run in runs]
        return made, seen

    def close(self, runs: "GradientRuns") -> None:
        """Replace the updates by the results of a pass on the runs."""
        self.open(runs.tree_of(runs.leaves, self.packed, None))


class GradientRuns(Gradients):
    """Runs of packed arrays, each of which is a leaf.

    whole: the gradients of the packed tree.
    runs: the indices of the arrays in each, in their order in the vector.
    is_single: whether a run is one array, which then has its own shape.
    labels: for each run, the label of its arrays; `None` if there are none.
    """

    labels: list | None = None

    def __init__(self, whole: PackedGradients, runs: list, is_single: list[bool]):
        self.whole = whole
        self.indices = runs
        self.is_single = is_single
        self.layout = whole.packed.layout
        self.leaves = self.leaves_of(whole.packed, "updates")
        self.treedef = jax.tree.structure(self.leaves)
        self.all_params = whole.all_params
        self.accepted = whole.accepted

    def path(self, i: int) -> str:
        paths = jax.tree.leaves_with_path(self.layout.places)
        found = [keystr(paths[n][0]) or "the root" for n in self.indices[i]]
        return errors.list_some(found, 1)

    def leaves_of(self, tree: ArrayTree, name: str) -> list:
        found = self._places(tree, name)
        pick = self._slice if isinstance(tree, Packed) else self._pick
        return [pick(i, tree, found, name) for i in range(len(self.indices))]

    def _places(self, other: ArrayTree, name: str) -> Sequence:
        """What `other` has in place of each array; if it is packed, its index there."""
        if not isinstance(other, Packed):
            found = self.whole.leaves_of(other, name)
        elif other.layout == self.layout:
            return range(len(self.layout.segments))
        else:
            found = self.whole.leaves_of(other.layout.places, name)
        pairs = zip(found, self.whole.leaves, strict=True)
        return [x for x, g in pairs if g is not None]

    def _pick(self, i: int, other: ArrayTree, found: Sequence, name: str) -> ArrayTree:
        """What a tree that is not packed has in place of a run."""
        x = found[self.indices[i][0]]
        if self.is_single[i] or isinstance(x, MaskedNode):
            return x
        raise TypeError(
            f"the gradients are packed, but `{name}` is not: pack parameters with "
            "`stepax.tree.pack(params)`, and a state with "
            "`stepax.tree.pack(state, like=jax.eval_shape(tx.init, packed_params))`"
        )

    def _slice(self, i: int, other: Packed, found: Sequence, name: str) -> ArrayTree:
        """What another packed tree has in place of a run."""
        first, last = self.indices[i][0], self.indices[i][-1]
        if isinstance(found[first], MaskedNode):
            return found[first]
        # Other layouts fit as long as they join these arrays in the same order.
        if other.layout != self.layout:
            self._check(i, other, found, name)
        x = other.piece(found[first], found[last])
        return x.reshape(self.layout.segments[first].shape) if self.is_single[i] else x

    def _check(self, i: int, other: Packed, found: Sequence, name: str) -> None:
        """Raise unless the arrays of a run are adjacent in another packed tree, too."""
        mine, theirs = self.layout.segments, other.layout.segments
        fits = not any(isinstance(found[n], MaskedNode) for n in self.indices[i])
        pairs = [(mine[n], theirs[found[n]]) for n in self.indices[i]] if fits else []
        shifts = {(y.vector, x.start - y.start) for x, y in pairs}
        if len(shifts) != 1 or any(x.shape != y.shape for x, y in pairs):
            raise ValueError(
                f"`{name}` is packed differently from the gradients at {self.path(i)}: "
                "use one layout for both, `stepax.tree.pack(tree, like=packed)`"
            )

    def tree_of(self, parts: list, like: ArrayTree, scope: Scope) -> ArrayTree:
        run_of = {n: i for i, run in enumerate(self.indices) for n in run}
        found = self._places(like, "the state")
        if not isinstance(like, Packed):
            leaves = iter([parts[run_of[n]] for n in range(len(run_of))])
            whole = self.whole
            pairs = zip(whole.leaves_of(like, "the state"), whole.leaves, strict=True)
            parts = [x if g is None else next(leaves) for x, g in pairs]
            return whole.tree_of(parts, like, scope)
        # From the indices of arrays in the layout of `like` to those in ours.
        number = {m: n for n, m in enumerate(found) if not isinstance(m, MaskedNode)}
        vectors = []
        for group in like.layout.groups:
            runs = dict.fromkeys(run_of[number[m]] for m in group)
            vectors.append(join([parts[i] for i in runs]))
        return Packed(vectors, like.layout)


def gradients_of(updates: Updates, params: Params) -> Gradients:
    """The gradients of a tree, whether it is packed or not."""
    kind = PackedGradients if isinstance(updates, Packed) else Gradients
    return kind(updates, params)

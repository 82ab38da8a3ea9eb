"""Checks for your own transformations, which every optimizer of Stepax passes.

    stepax.testing.check(my_optimizer, learning_rate=0.1)

Each check is a function below, named as a claim, and can be called separately.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ._engine.base import ArrayTree, OptState, Params, Updates, is_none
from ._engine.base.node import Transformation, node_of
from ._engine.functions.calls import explain_misuse
from ._engine.functions.signatures import name_of
from ._engine.inspect.describe import describe
from ._engine.step.rule import Rule
from ._engine.trees.pack import pack, unpack
from ._names import attributes
from ._wrappers.inject import inject_hyperparams
from ._wrappers.partition import masked


__all__ = ["Subject", "check"]

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


@dataclass(frozen=True)
class Subject:
    """A factory and the arguments of its call.

    factory: makes a transformation.
    args, kwargs: the arguments that it is called with.
    keywords: for `update`, or a function from the parameters to them.
    """

    factory: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    keywords: Mapping[str, Any] | Callable[[Params], Mapping[str, Any]] = field(
        default_factory=dict
    )

    @property
    def name(self) -> str:
        return name_of(self.factory, repr(self.factory))

    def make(self) -> Any:
        """The transformation."""
        return self.factory(*self.args, **self.kwargs)

    def step(self, tx: Any, gradient: Updates, state: OptState, params: Params) -> Any:
        """One step, with the keywords."""
        given = self.keywords
        extra = given(params) if callable(given) else given
        return tx.update(gradient, state, params, **extra)

    def demand(self, holds: bool, claim: str) -> None:
        """Raise an `AssertionError` unless a claim holds."""
        if not holds:
            raise AssertionError(f"`{self.name}`: {claim}")


@explain_misuse
def check(
    factory: Callable[..., Any],
    *args: Any,
    keywords: Mapping[str, Any] | Callable[[Params], Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> None:
    """Check that a factory makes a good transformation, on trees of several kinds.

    The transformation must accept any tree, in float32, bfloat16 and float16, with
    `None` for missing gradients; preserve structures and dtypes from step to step; give
    the same result under `jit` and `vmap`, packed, and under a mask; and keep a NaN
    within its array, unless its rule measures all arrays.  Equal calls must make
    transformations that are equal, hash alike and can be pickled, and hyperparameters
    must be injectable.  A rule that claims to be elementwise must give a joined array
    the update of its parts.

    factory: makes a transformation; under `stepax.rules.rule`, or any function that
        returns one.
    args, kwargs: what it is called with.
    keywords: keywords that its `update` reads, such as `{"value": 1.0}`, or a function
        from the parameters to these.

    Raises an `AssertionError` that says which claim fails and where; errors of the
    transformation itself are passed on.
    """
    subject = Subject(factory, args, kwargs, keywords or {})
    for claim in CLAIMS:
        claim(subject)


_SHAPES: Mapping[str, Any] = {
    "one matrix": (3, 4),
    "nested": {"dense": {"kernel": (4, 3), "bias": (3,)}, "scale": ()},
    "equal shapes": [(2, 2), (2, 2), (5,)],
    "an empty array": {"a": (0, 3), "b": (2,)},
    "a tensor": ((2, 3, 2), (7,)),
}
_DTYPES = ("float32", "bfloat16", "float16")


def _tree(shapes: ArrayTree, dtype: DTypeLike, seed: int) -> ArrayTree:
    """Standard normal elements, the same for each call."""
    rng = np.random.default_rng(seed)

    def is_shape(x):
        return isinstance(x, tuple) and all(isinstance(n, int) for n in x)

    def draw(shape):
        return jnp.asarray(rng.normal(size=shape), dtype)

    return jax.tree.map(draw, shapes, is_leaf=is_shape)


def _cases() -> Iterator[tuple[str, Params, Any]]:
    """Descriptions, parameters and gradients."""
    for name, shapes in _SHAPES.items():
        # Shapes and dtypes do not interact, and each case is compiled several times.
        for dtype in _DTYPES if name == "nested" else _DTYPES[:1]:
            p, g = (_tree(shapes, dtype, seed) for seed in (0, 1))
            yield f"{name} in {dtype}", p, g


def _type(x: Any) -> Any:
    is_array = isinstance(x, jax.Array | np.ndarray)
    return (x.shape, x.dtype, jax.typeof(x).weak_type) if is_array else type(x)


def _types(tree: ArrayTree) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [_type(x) for x in leaves]


def _differs(found: ArrayTree, wanted: ArrayTree, ulps: float = 64) -> str:
    """Where two trees differ by more than `ulps` rounding errors; empty if nowhere."""
    pairs = jax.tree.leaves_with_path(found), jax.tree.leaves(wanted)
    for (path, x), y in zip(*pairs, strict=True):
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            same = bool(jnp.all(x == y))
        else:
            near = ulps * float(jnp.finfo(x.dtype).eps)
            same = np.allclose(_wide(x), _wide(y), near, near, equal_nan=True)
        if not same:
            return jax.tree_util.keystr(path) or "the root"
    return ""


def _wide(x: Any) -> np.ndarray:
    return np.asarray(x, "complex128")


def keeps_its_types(subject: Subject) -> None:
    """Updates have the types of the gradients, and a state never changes its types."""
    tx = subject.make()
    for case, p, g in _cases():
        state = tx.init(p)
        for _ in range(2):
            u, new = subject.step(tx, g, state, p)
            claim = f"the updates have other types than the gradients, for {case}"
            subject.demand(_types(u) == _types(g), claim)
            claim = f"a step changes the types in the state, for {case}"
            subject.demand(_types(new) == _types(state), claim)
            state = new


def is_pure(subject: Subject) -> None:
    """The same step gives the same result, and under `jit`, too."""
    tx = subject.make()
    for case, p, g in _cases():
        state = tx.init(p)
        found, again = (subject.step(tx, g, state, p) for _ in range(2))
        at = _differs(found, again, 0)
        subject.demand(not at, f"two equal steps differ at {at}, for {case}")
        jitted = jax.jit(lambda g, state, p: subject.step(tx, g, state, p))
        at = _differs(jitted(g, state, p), found)
        subject.demand(not at, f"a jitted step differs at {at}, for {case}")


def looks_at_shapes_alone_in_init(subject: Subject) -> None:
    """`init` accepts shapes instead of parameters."""
    tx = subject.make()
    for case, p, _ in _cases():
        shapes, state = jax.eval_shape(tx.init, p), tx.init(p)
        same = jax.tree.structure(shapes) == jax.tree.structure(state)
        subject.demand(same, f"`init` depends on more than shapes, for {case}")


def skips_missing_gradients(subject: Subject) -> None:
    """Where a gradient is `None`, so is the update, and others are unaffected."""
    tx = subject.make()
    p, g = (_tree(_SHAPES["nested"], "float32", seed) for seed in (0, 1))
    missing = {**g, "scale": None}
    u, new = subject.step(tx, missing, tx.init(p), p)
    same = jax.tree.structure(u, is_leaf=is_none) == jax.tree.structure(
        missing, is_leaf=is_none
    )
    subject.demand(same and u["scale"] is None, "`None` as a gradient is not kept")
    subject.demand(
        _types(new) == _types(tx.init(p)), "`None` as a gradient changes the state"
    )


def works_in_batches(subject: Subject) -> None:
    """`vmap` treats each of several trees separately."""
    tx = subject.make()
    p, g = (_tree({"w": (2, 3, 4), "b": (2, 3)}, "float32", seed) for seed in (0, 1))

    def run(g, p):
        return subject.step(tx, g, tx.init(p), p)[0]

    found = jax.vmap(run)(g, p)
    for i in range(2):
        alone = run(*jax.tree.map(lambda x, i=i: x[i], (g, p)))
        at = _differs(jax.tree.map(lambda x, i=i: x[i], found), alone)
        subject.demand(not at, f"under `vmap` the update at {at} differs")


def is_as_elementwise_as_it_says(subject: Subject) -> None:
    """Packing, where elementwise rules see joined arrays, does not change updates."""
    tx = subject.make()
    rules = [x for x in node_of(tx).parts() if isinstance(x, Rule)]
    for case, p, g in _cases():
        packed, state = pack(p), tx.init(p)
        alone, joined = state, tx.init(packed)
        for _ in range(2):
            u, alone = subject.step(tx, g, alone, p)
            v, joined = subject.step(tx, pack(g, like=packed), joined, packed)
            at = _differs(unpack(v), u)
            names = ", ".join(f"`{x.name}`" for x in rules if x.elementwise)
            hint = f"; {names} claims to be elementwise" if names else ""
            claim = f"packed, the update at {at} differs, for {case}{hint}"
            subject.demand(not at, claim)


def keeps_a_nan_to_its_array(subject: Subject) -> None:
    """A NaN in one array does not reach others, unless a rule measures all arrays."""
    tx = subject.make()
    for part in node_of(tx).parts():
        if not isinstance(part, Rule) or part.leaf_stat or part.global_stat:
            return
    p, g = (_tree(_SHAPES["nested"], "float32", seed) for seed in (0, 1))
    bad = {**g, "scale": jnp.float32(jnp.nan)}
    found = subject.step(tx, bad, tx.init(p), p)[0]["dense"]
    at = _differs(found, subject.step(tx, g, tx.init(p), p)[0]["dense"])
    subject.demand(not at, f"a NaN at ['scale'] changes the update at ['dense']{at}")


def works_under_a_mask(subject: Subject) -> None:
    """Masked leaves pass through, and do not change the others."""
    tx = subject.make()
    p, g = (_tree(_SHAPES["nested"], "float32", seed) for seed in (0, 1))
    inside = masked(tx, {"dense": True, "scale": False})
    u, _ = subject.step(inside, g, inside.init(p), p)
    subject.demand(bool(u["scale"] == g["scale"]), "a leaf outside of a mask changes")
    g, p, u = ({"dense": tree["dense"]} for tree in (g, p, u))
    at = _differs(u, subject.step(tx, g, tx.init(p), p)[0])
    subject.demand(not at, f"under a mask the update at {at} differs")


def is_known_by_its_call(subject: Subject) -> None:
    """An equal call makes an equal transformation; it is pickled and described."""
    tx, again = subject.make(), subject.make()
    if not isinstance(tx, Transformation) or tx.call is None:
        return  # a plain pair of functions
    if tx.call.name != subject.name:
        return  # a function of another library around a factory
    subject.demand(subject.name in repr(tx), f"it is printed as {tx!r}")
    subject.demand(
        tx == again and hash(tx) == hash(again),
        "two equal calls make unequal transformations",
    )
    try:
        saved = pickle.dumps(tx)
    except (pickle.PicklingError, AttributeError):
        return  # defined inside a function, which pickle cannot name
    subject.demand(pickle.loads(saved) == tx, "a pickled copy is not equal")
    described = describe(tx, _tree(_SHAPES["nested"], "float32", 0))
    subject.demand(bool(described.whole.name), "`describe` has no name for it")


def takes_injected_hyperparameters(subject: Subject) -> None:
    """With hyperparameters in the state, updates stay the same."""
    tx = subject.make()
    injected = inject_hyperparams(subject.factory)(*subject.args, **subject.kwargs)
    p, g = (_tree(_SHAPES["nested"], "float32", seed) for seed in (0, 1))
    u, _ = subject.step(tx, g, tx.init(p), p)
    found, _ = subject.step(injected, g, injected.init(p), p)
    at = _differs(found, u)
    subject.demand(not at, f"with injected hyperparameters the update at {at} differs")


CLAIMS: tuple[Callable[[Subject], None], ...] = (
    keeps_its_types,
    is_pure,
    looks_at_shapes_alone_in_init,
    skips_missing_gradients,
    works_in_batches,
    is_as_elementwise_as_it_says,
    keeps_a_nan_to_its_array,
    works_under_a_mask,
    is_known_by_its_call,
    takes_injected_hyperparameters,
)

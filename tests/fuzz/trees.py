"""Random trees of parameters, and the masks and labels that fit them, as text."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from fuzz.world import Model, Pair, Record


@dataclass(frozen=True)
class Leaf:
    """Stands for an array."""

    shape: tuple[int, ...]
    dtype: str


# Few shapes, because each operation is compiled once for each.
SHAPES = [(2, 3), (3,), (), (1,), (0,)]
# The dtypes of a tree; where there is one alone that is wide, numbers are compared.
DTYPES = [
    *[("float64",)] * 10,
    *[("complex128",), ("float32",)],
    *[
        ("float64", "Python"),
        ("float64", "float32"),
        ("float32", "bfloat16"),
        ("float16",),
        ("complex64",),
    ],
]


def text(spec: Any, leaf: Callable[[Any], str]) -> str:
    """A tree as Python writes it."""
    inner = lambda x: text(x, leaf)
    match spec:
        case None:
            return "None"
        case dict():
            return "{" + ", ".join(f"{k!r}: {inner(x)}" for k, x in spec.items()) + "}"
        case Pair():
            return f"Pair({inner(spec.first)}, {inner(spec.second)})"
        case Record():
            name = type(spec).__name__
            return f"{name}({inner(spec.weights)}, {inner(spec.bias)})"
        case list():
            return "[" + ", ".join(map(inner, spec)) + "]"
        case tuple():
            return "(" + "".join(inner(x) + ", " for x in spec).rstrip() + ")"
    return leaf(spec)


def show(spec: Any) -> str:
    """The parameters themselves; no two leaves are equal."""
    salts = iter(range(1000))

    def one(x: Leaf) -> str:
        if x.dtype == "Python":
            return "0.5"
        return f"a({x.shape}, {x.dtype!r}, {next(salts)})"

    return text(spec, one)


def nodes(leaf: st.SearchStrategy, depth: int) -> st.SearchStrategy:
    """Trees of at most this depth: of single children, of nothing, of all kinds."""
    if not depth:
        return st.one_of(leaf, leaf, leaf, st.sampled_from([None, {}, ()]))
    x = nodes(leaf, depth - 1)
    return st.one_of(
        leaf,
        leaf,
        st.fixed_dictionaries({"w": x}),
        st.fixed_dictionaries({"w": x, "b": x}),
        st.lists(x, min_size=1, max_size=2),
        st.tuples(x, x),
        st.builds(Pair, x, x),
        st.builds(Record, x, x),
        st.builds(Model, x, x),
    )


@st.composite
def trees(draw: st.DrawFn) -> Any:
    """A tree of leaves, of one choice of dtypes."""
    dtypes = draw(st.sampled_from(DTYPES))
    leaf = st.builds(Leaf, st.sampled_from(SHAPES), st.sampled_from(dtypes))
    x = nodes(leaf, 1)
    whole = st.one_of(
        st.fixed_dictionaries({"w": x, "b": x}),
        st.fixed_dictionaries({"o": x, "a": x, "k": leaf}),
        nodes(leaf, 2),
    )
    return draw(whole)


def count(spec: Any) -> int:
    found: list[Leaf] = []
    text(spec, lambda x: found.append(x) or "")
    return len(found)


@st.composite
def patterns(draw: st.DrawFn, spec: dict, values: list[str]) -> str:
    """One value for the leaves below a name, another for the rest."""
    name = draw(st.sampled_from([k for k in spec if 0 < count(spec[k]) < count(spec)]))
    one, rest = draw(st.permutations(values))[:2]
    by_path = f"{{'{name}/**': {one}, '**': {rest}}}"
    below = {
        k: text(x, lambda _, k=k: one if k == name else rest) for k, x in spec.items()
    }
    whole = "{" + ", ".join(f"'{k}': {x}" for k, x in below.items()) + "}"
    return f"either(o, {by_path}, {whole})"


def has_patterns(spec: Any) -> bool:
    is_dict = isinstance(spec, dict)
    return is_dict and any(0 < count(x) < count(spec) for x in spec.values())


def trees_of(spec: Any, values: list[str]) -> st.SearchStrategy[str]:
    """Masks or labels: whole trees, prefixes, and patterns."""
    whole = prefixes(spec, values)
    return (
        st.one_of(whole, whole, patterns(spec, values)) if has_patterns(spec) else whole
    )


@st.composite
def prefixes(draw: st.DrawFn, spec: Any, values: list[str], cut: int = 3) -> str:
    """A tree of values as long as `spec` goes, or shorter on some of its branches.

    cut: one branch in so many ends early.
    """
    value = st.sampled_from(values)

    def grow(x):
        if isinstance(x, Leaf) or (x is not None and draw(st.integers(0, cut)) == cut):
            return Leaf((), draw(value))
        match x:
            case dict():
                return {k: grow(v) for k, v in x.items()}
            case Pair():
                return Pair(*map(grow, x))
            case Record():
                return type(x)(grow(x.weights), grow(x.bias))
            case list() | tuple():
                return type(x)(map(grow, x))
        return x

    return text(grow(spec), lambda x: x.dtype)

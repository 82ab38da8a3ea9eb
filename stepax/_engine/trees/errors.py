"""Error messages with the path of the leaf."""

# Callers pass trees and indices of leaves, not paths: these are computed here, for
# errors only, so that a step without errors does not pay for them.

import contextlib
import functools
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.errors import JAXTypeError, UnexpectedTracerError
from jax.tree_util import keystr, tree_flatten_with_path

from ..base import is_array, is_none
from ..base.call import call_of
from ..functions.calls import HOME, NAMED, is_transformation
from ..functions.signatures import of_parameters, signature
from .boxes import is_boxed
from .packed import holds_packed
from .stacks import FIELDS


# Ours, and what may be between us and a function of the user: folders and files.
_BETWEEN = jax, np, contextlib, functools, inspect
_FILES = map(inspect.getfile, _BETWEEN)
_NOT_OF_USER = (HOME, *(x.removesuffix("__init__.py") for x in _FILES))


def paths(tree: object) -> list[str]:
    """The path of each leaf, `None` included, in flattening order."""
    # `None` is a leaf in all of the engine, as it marks a parameter without a gradient.
    found, _ = tree_flatten_with_path(tree, is_leaf=is_none)
    shown = [path[:-1] if is_boxed(path) else path for path, _ in found]
    return [keystr(path) or "the root" for path in shown]


def list_some(names: Iterable[object], most: int = 5) -> str:
    """The first few names, and the number of further ones."""
    listed = [str(x) for x in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def require_one_of(name: str, found: object, known: Iterable[object]) -> None:
    choices = list(known)
    if found not in choices:
        raise ValueError(f"`{name}` is {found!r}, expected one of {choices}")


def mismatch(name: str, found: object, reference: str, wanted: object) -> Exception:
    """The error for a structure that differs from the expected one, with the places."""
    have, want = paths(found), paths(wanted)
    lines = [f"`{name}` and {reference} differ in structure"]
    only = [p for p in have if p not in set(want)]
    missing = [p for p in want if p not in set(have)]
    if only:
        lines.append(f"only in `{name}`: {list_some(only)}")
    if missing:
        lines.append(f"only in {reference}: {list_some(missing)}")
    # The same paths, so the containers differ: a list for a tuple, or another class.
    if not only and not missing:
        lines.append(f"`{name}` is {_kind(found)}, {reference} is {_kind(wanted)}")
    if hint := _whole_result(found, wanted) or _whole_result(wanted, found):
        lines.append(hint)
    # A frequent mistake that the paths do not show: both name the same parameters.
    if holds_packed(found) != holds_packed(wanted):
        lines.append(
            "only one of them is packed: use `stepax.tree.pack` or `stepax.tree.unpack`"
        )
    return of_step("; ".join(lines))


def matched(
    treedef: Any, name: str, tree: Any, reference: str, wanted: Callable[[], object]
) -> list:
    """What a tree has in place of each leaf of another one; raises by `mismatch`."""
    try:
        return treedef.flatten_up_to(tree)
    except (ValueError, TypeError):
        raise mismatch(name, tree, reference, wanted()) from None


def of_step(text: str, kind: type[Exception] = ValueError) -> Exception:
    """An error of a step, to which `named` adds what the user called."""
    error = kind(text.replace(MASK, "mask"))
    vars(error)["of_step"] = text
    return error


# Stands for the name of a mask, which the function that was called knows, in texts that
# may also contain names of users.
MASK = "\0"

# What functions call the argument that `masked` calls `mask`.
_MASKS = "mask", "weight_decay_mask", "trust_ratio_mask", "where"


@contextmanager
def named(
    name: str, made: Any = None, f: Any = None, given: Any = ()
) -> Iterator[None]:
    """Let errors of a step begin with the function that was called, the outermost.

    made: what the function made, by whose arguments errors call its mask.
    f, given: the function and its arguments, if all errors are of its call.
    """
    try:
        yield
    except (ValueError, TypeError, AttributeError) as error:
        passed = [*dict(given).items(), *_arguments(made)]
        text = vars(error).get("of_step") or _reworded(error, f, passed)
        if text is not None:
            known = _names_of_masks(made)
            # `masked`, which this function may call, leaves the name to it.
            if len(known) == 1 and "mask" not in known:
                text = text.replace(MASK, known.pop())
            vars(error)["of_step"] = text
            text = text.replace(MASK, "mask")
            is_named = f"`{name}`" in text or f"{name}(" in text or name[0] == "_"
            is_named = is_named or re.match(r"`\w+`: ", text)
            error.args = (text if is_named else f"`{name}`: {text}",)
        raise


NAMED.append(named)


def _reworded(error: Exception, f: Any, passed: Iterable[tuple]) -> str | None:
    """The text of an error, if it is that of a call of `f` or of a function passed."""
    if isinstance(error, UnexpectedTracerError):
        error.add_note(f"{error}")
        return "a value leaked from a function under `jax.jit`, which has to return it"
    pairs = [(k, y) for k, x in passed for y in _members(x)]
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    called = [x for x in codes if not x.co_filename.startswith(_NOT_OF_USER)]
    # The `__init__` of a data class comes from no file.
    made = "<string>", "__init__"
    called = [x for x in called if (x.co_filename, x.co_name) != made]
    if called:
        own = [k for k, x in pairs if getattr(x, "__code__", None) is called[-1]]
        key = f"`{(own or [called[-1].co_name])[0]}`"
        if isinstance(error, JAXTypeError):
            error.add_note(f"{error}")
            return (
                f"{key} is traced by JAX, so it cannot use NumPy, `float()` or `if` on "
                "its arguments: use `jax.numpy`, as in `jnp.sum`, and `jnp.where` for "
                "`if`"
            )
        if own and hasattr(np.ndarray, f"{getattr(error, 'name', '')}"):
            return f"{key} is called with a tree: use `jax.tree.map` for each leaf"
        return None
    for key, x in pairs:
        name = getattr(x, "__qualname__", None)
        if f"{error}".startswith((f"{name}() takes", f"{name}() missing")):
            return f"`{key}` is called with other arguments: {error}"
    if not f:  # a step; JAX shows the array of text or objects that it refuses
        return f"{error}" if "valid JAX" in f"{error}" else None
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_ours = last.filename.startswith(HOME) and f"{last.line}".startswith("raise ")
    return f"{error}" if is_ours else _misfit(error, f, dict(passed))


def _misfit(error: Exception, f: Callable, given: Mapping[str, Any]) -> str:
    """How trees among arguments differ, or what the arguments are."""
    shown, hints = signature(f), of_parameters(f)
    own = {k: x for k, x in given.items() if x is not shown.parameters[k].default}
    of_rest = inspect.Parameter.VAR_POSITIONAL
    trees = [k for k in own if hints[k][:2] == [Any, jax.Array]]
    trees = [k for k in trees if shown.parameters[k].kind is not of_rest]
    for a, b in zip(trees, trees[1:], strict=False):
        x, y = own[a], own[b]
        if jax.tree.structure(x) != jax.tree.structure(y):
            if re.search("structure|ismatch|Expected", f"{error}"):
                return f"{mismatch(b, y, f'`{a}`', x)}"
            continue
        for i, both in enumerate(zip(*map(jax.tree.leaves, (x, y)), strict=True)):
            sizes = [*map(np.shape, both)]
            if "shape" in f"{error}" and sizes[0] != sizes[1]:
                return f"`{a}` and `{b}` have shapes {sizes} at {paths(x)[i]}"
    listed = ", ".join(f"`{k}` is {describe(x)}" for k, x in own.items())
    error.add_note(f"{error}")
    # The kinds are listed; the names of classes of JAX add nothing.
    adds = isinstance(error, ValueError) or not re.search("jax|NoneType", f"{error}")
    return f"{listed}, expected {shown}" + f": {error}" * adds


def _names_of_masks(made: object) -> set[str]:
    """The arguments that are masks, also those of transformations among them."""
    # Of `True`, the default of some, no error is raised.
    given = _arguments(made)
    return {k for k, x in given if k in _MASKS and not isinstance(x, bool | None)}


def _arguments(made: object) -> Iterator[tuple[str, object]]:
    """The arguments that it was made with, also those of transformations in them."""
    given = call.bound.arguments if (call := call_of(made)) else {}
    yield from given.items()
    for part in (y for x in given.values() for y in _members(x)):
        yield from _arguments(part)


def _members(x: object) -> list:
    """The transformations that an argument may be, or hold."""
    if isinstance(x, Mapping):
        return list(x.values())
    if isinstance(x, tuple | list) and call_of(x) is None:  # no transformation
        return list(x)
    return [x]


def _whole_result(found: object, wanted: object) -> str:
    """A hint if `found` is all that a function returned; empty if it is not."""
    if not isinstance(found, tuple) or holds_state(wanted):
        return ""
    if len(found) != 2 or holds_state(found[0]):
        if not holds_state(found):
            return ""
        swapped = "the arguments of `update` are (gradients, state, params)"
        return f"one of them is a state; {swapped}"
    if holds_state(found[1]):
        return "`update` returns a pair: write `updates, state = tx.update(...)`"
    same = jax.tree.structure(found[1]) == jax.tree.structure(wanted)
    return "`jax.value_and_grad` returns a pair: take its second" * same


def is_state(name: str) -> bool:
    """Whether a named tuple of this name is a state."""
    # Those of rules are known; of others the customary name is, and one of Optax's.
    return name in FIELDS or name.endswith("State") or name == "ApplyEvery"


def holds_state(tree: object) -> bool:
    """Whether a tree has a state in it."""

    def is_here(x):
        return fields_of(x) is not None and is_state(type(x).__name__)

    return any(map(is_here, jax.tree.leaves(tree, is_leaf=is_here)))


def _kind(tree: object) -> str:
    # Cut off: the structure of a model fills a screen.
    text = str(jax.tree.structure(tree, is_leaf=is_none))
    return text if len(text) < 200 else f"{text[:200]}…"


def foreign_state(name: str, kind: type, state: object) -> Exception:
    """The error for a state that is not the named tuple `kind`, which `name` needs."""
    return of_step(
        f"`{name}` needs a state `{kind.__name__}`, but was given {describe(state)}"
        f"{state_hint(state)}"
    )


def refuse_transformation(name: str, x: object) -> None:
    """Raise for a transformation in place of its state, an argument of `name`."""
    if is_transformation(x):
        wanted = "a state: what `tx.init(params)` or the last `tx.update` returned"
        raise TypeError(f"`{name}` was given {describe(x)}, expected {wanted}")


def fields_of(x: object) -> tuple[str, ...] | None:
    """The fields of a named tuple, or of a class of them; `None` for anything else."""
    return getattr(x, "_fields", None)


def require_params(name: str, params: object) -> None:
    """Raise unless `update` was given the parameters, which `name` reads."""
    if params is None:
        raise ValueError(
            f"`{name}` reads the parameters, but `params` is missing: call "
            "`update(updates, state, params)`"
        )


def state_hint(state: object) -> str:
    """What to do about a state that does not fit, for an error."""
    if state is None:
        return (
            "; call `update(gradients, state, params)` with the state that `init("
            "params)` or the last `update` returned"
        )
    if not holds_state(state):
        return (
            "; the arguments of `update` are (gradients, state, params): were two of "
            "them swapped, or was this state made by another optimizer?"
        )
    return "; was this state made by another optimizer?"


def require_state(name: str, kind: type, state: object) -> None:
    """Raise unless a state is the named tuple `kind`, or Optax's of that name."""
    # By name, so that Optax's states and restored ones pass; the fields are looked at,
    # too, because Optax's class of that name may be from another version.
    kinds = [x.__name__ for x in type(state).__mro__]
    fields = fields_of(kind) or ()
    if kind.__name__ not in kinds or not all(hasattr(state, k) for k in fields):
        raise foreign_state(name, kind, state)


def not_floating(name: str, path: str, dtype: np.dtype) -> TypeError:
    """The error for a gradient of integers or booleans."""
    return TypeError(
        f"`{name}` trains floating-point numbers, but the gradient at {path} is of "
        f"dtype {dtype}; cast it and its parameter, or exclude them with `masked` or "
        "with `None` as the gradient"
    )


def require_states(owner: str, number: int, state: object) -> None:
    """Raise unless a state is a plain tuple of `number` states."""
    # A list is as good: checkpoint libraries return one for a tuple.
    is_named = fields_of(state) is not None
    given = len(state) if isinstance(state, tuple | list) and not is_named else None
    if given != number:
        found = describe(state) if given is None else f"{given} states"
        raise of_step(f"{owner} was given {found} as its state{state_hint(state)}")


def holds_arrays(name: str, params: object) -> bool:
    """Whether there are arrays in a tree of parameters, or no leaves.

    Trainers describe parameters by objects of their own.  Raises for what describes
    none: a function, text or an iterator.
    """
    # Python's iterators are leaves, of which JAX would warn.
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, Iterator))
    if not leaves or any(map(is_array, leaves)):
        return True
    if callable(leaves[0]) or isinstance(leaves[0], str | bytes | Iterator):
        raise _no_array(name, params, leaves)
    return False


def require_no_slots(name: str, params: object, state: object) -> None:
    """Raise if a state has a tree like that of parameters, with no array in it."""
    kind = type(None if jax.tree_util.all_leaves([params]) else params)

    def is_slot(x):
        nothing = type(x) is kind and not jax.tree.leaves(x)
        return nothing and bool(jax.tree.leaves(x, is_leaf=is_none))

    if any(map(is_slot, jax.tree.leaves(state, is_leaf=is_slot))):
        raise _no_array(name, params, jax.tree.leaves(params))


def _no_array(name: str, params: object, leaves: list) -> TypeError:
    path = paths(params)[0] if leaves[0] is not params else "the root"
    return TypeError(
        f"`{name}`: `init` was given no array, but {describe(leaves[0])} at {path}: "
        'call `init(params)` with a tree of JAX arrays, as in `{"w": jnp.ones(3)}`'
    )


def describe(x: object) -> str:
    if x is None:
        return "`None`"
    if build := getattr(call_of(x), "build", None):
        return f"what `{build.__name__}` returned"
    # Not its `repr`: that of a state or a model holds all of its arrays.
    fields = fields_of(x)
    if fields is not None:
        return f"a `{type(x).__name__}` of fields ({', '.join(fields)})"
    if isinstance(x, jax.Array | np.ndarray):  # the class of an array is JAX's own
        return f"an array of shape {x.shape}"
    if isinstance(x, tuple | list | dict):
        return f"a {type(x).__name__} of {len(x)}"
    return f"a `{type(x).__name__}`"

"""The names of a path, and what a pattern matches: names, with "*" and "**".

"*" matches any name, or a part of one, and "**" any number of names.
"""

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase


# Marks the end of a path to something other than an array, such as a `MaskedNode`.
# That may stand for parameters that an outer mask left out, so patterns for these are
# not a mistake.
LEFT_OUT = None


def path_names(path: Iterable) -> tuple[str, ...]:
    """The names of a path; a key with a "/" in it counts as several."""
    # Haiku's parameters have such keys: `{"mlp/~/linear_0": {"w": ...}}`.
    return tuple("/".join(map(key_name, path)).split("/"))


def key_name(key: object) -> str:
    # JAX's key classes have no common attribute; those of other libraries resemble one.
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def names_of(pattern: str) -> tuple[str, ...]:
    """The names of a pattern; a single one may be at any depth."""
    names = tuple(pattern.split("/"))
    return names if len(names) > 1 else ("**", *names)


def means_tree(spec: object, paths: Collection[tuple]) -> bool:
    """Whether the keys of a mapping are the fields of its node, or all its paths."""
    if not isinstance(spec, Mapping):
        return True
    keys = set(map(str, spec))
    fields = {path[0] for path in paths if path not in ((), (LEFT_OUT,))}
    arrays = [path for path in paths if path and path[-1] is not LEFT_OUT]
    has_all = bool(arrays) and {"/".join(path) for path in arrays} <= keys
    return has_all or {path[0] for path in arrays} <= keys <= fields


def is_match(pattern: tuple, path: tuple) -> bool:
    """Whether a pattern, as names, matches all of a path."""
    return len(path) in _ends(pattern, path)


def rest_of(pattern: tuple, path: tuple) -> tuple | None:
    """The rest after the shortest match of a pattern, `None` if there is none."""
    ends = _ends(pattern, path)
    return path[min(ends) :] if ends else None


def _ends(pattern: tuple, path: tuple) -> set[int]:
    """How many names of a path a pattern may match, beginning with the first."""
    # All ends at once: trying each "**" by itself takes exponential time.
    is_cut = path[-1:] == (LEFT_OUT,)
    n, ends = len(path) - is_cut, {0}
    for head in pattern:
        stay = ends & {n} if is_cut else set()  # what was left out may match the rest
        if head == "**" and ends:
            ends = stay | set(range(min(ends), n + (not is_cut)))
        else:
            ends = stay | {i + 1 for i in ends if i < n and _is_named(path[i], head)}
    return ends


def _is_named(name: str, pattern: str) -> bool:
    # A name may contain brackets, which `fnmatch` takes for a class.
    readings = pattern, pattern.replace("[", "[[]")
    return name == pattern or any(fnmatchcase(name, x) for x in readings)

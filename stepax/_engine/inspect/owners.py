"""Which parameter an array of a state belongs to."""

from collections.abc import Iterator, Sequence

import jax
from jax.tree_util import tree_flatten_with_path

from ..base.protocol import OptState
from ..trees import selection


Names = tuple[str, ...]


def arrays_in(state: OptState) -> list[tuple[Names, jax.Array]]:
    """The arrays of a state, with the names of their paths."""
    below, _ = tree_flatten_with_path(state)
    return [(selection.path_names(path), x) for path, x in below if hasattr(x, "dtype")]


def owned_arrays(
    state: OptState, params: Sequence[Names]
) -> Iterator[tuple[Names | None, jax.Array]]:
    """Each array of a state, with the path of its parameter; `None` if it has none.

    params: the paths of the parameters.
    """
    known = set(filter(None, params))
    # Longest first, so that the state of `a/b/c` is not counted for a parameter `b/c`.
    lengths = sorted({len(names) for names in known}, reverse=True)
    for path, x in arrays_in(state):
        # The first name is the field of a state, such as `mu`, also if a parameter has
        # it.
        parts = (path[i : i + n] for n in lengths for i in range(1, len(path) - n + 1))
        yield next((part for part in parts if part in known), None), x

"""Matrices: what orthogonalizing rules take and leave out; clips before and behind."""

import re
from collections.abc import Iterator

from .findings import Problem
from .stages import View, name_of
from .traits import GRADIENT_CLIPS, NORM_CLIPS, normalizes, orthogonalizes, scales


# Of a whole name, and of a word in it, such as `token_embedding` or `LayerNorm_0`.
_VECTORS = ("bias", "scale", "lm_head")
_WORD = re.compile(r"embed\w*|norms?\d*|\w*norm")
_MANY = 16


def clip_before_orthogonalizer(view: View) -> Iterator[Problem]:
    """Clipped gradients of matrices whose updates are normalized anyway."""
    for track, before, stage, _ in view.placed():
        clips = [x for x in before if x.name in NORM_CLIPS]
        taken = [x.path for x in track.leaves if orthogonalizes(view, stage, x)]
        if clips and taken:
            message = (
                f"{clips[-1]} does not bound the steps of these matrices: {stage} "
                "normalizes them afterwards, and it only weighs gradients in the "
                "momentum"
            )
            yield Problem(message, tuple(taken))


def clip_after_scaling(view: View) -> Iterator[Problem]:
    """A clip that is made for gradients behind what scales them."""
    for track, before, stage, _ in view.placed():
        scaling = [x for x in before if normalizes(x) or scales(x)]
        # The clip of an optimizer is part of its algorithm.
        if stage.name in GRADIENT_CLIPS and stage.owner is None and scaling:
            message = (
                f"{stage} comes after {scaling[-1]}: it clips steps, not gradients"
            )
            yield Problem(message, track.paths)


def matrix_left_out(view: View) -> Iterator[Problem]:
    """Stacks of matrices, which the default choice of axes does not take."""
    seen: set[str] = set()
    for part in view.parts:
        given = part.recipe.bound.arguments if name_of(part) else {}
        specs = [x for k, x in given.items() if k.endswith("weight_dimension_numbers")]
        if not specs or specs[0] is not None:
            continue
        pairs = zip(view.leaves, part.scope or [True] * len(view.leaves), strict=True)
        stacks = [x for x, on in pairs if x and on and len(x.shape) > 2]
        paths = [x.path for x in stacks if min(x.shape[-2:]) >= _MANY]
        if new := tuple(x for x in paths if x not in seen):
            seen.update(new)  # a part of it has the same argument
            what = "does not take these stacks as matrices, but arrays of two axes"
            yield Problem(f"by default `{name_of(part)}` {what}", new)


def matrix_taken_for_vectors(view: View) -> Iterator[Problem]:
    """Embeddings, heads and stacks of vectors that are orthogonalized."""
    for track, _, stage, _ in view.placed():
        taken = (x for x in track.leaves if orthogonalizes(view, stage, x))
        if paths := tuple(x.path for x in taken if _is_of_vectors(x.names)):
            what = "an embedding, a head, or a stack of biases or norm scales"
            yield Problem(f"{stage} takes {what} for a matrix", paths)


def _is_of_vectors(names: tuple[str, ...]) -> bool:
    words = [word for name in names for word in _words(name)]
    is_word = any(_WORD.fullmatch(word) for word in words)
    return is_word or any(name.lower() in _VECTORS for name in names)


def _words(name: str) -> list[str]:
    split = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    return [word for word in re.split(r"[^a-z0-9]+", split) if word]

"""A newcomer's questions: what one types, and the pages that answer it."""

from typing import NamedTuple


HOW = "how/"  # has a few lines for each of them


class Question(NamedTuple):
    """words: what is typed.  pages: where a good answer is, beside those lines."""

    words: str
    pages: tuple[str, ...]


QUESTIONS = (
    Question("change learning rate", ("hyperparameters/", HOW)),
    Question("freeze layer", ("masks/", HOW)),
    Question("log gradient norm", ("logging/", HOW)),
    Question("accumulate gradients", ("accumulation/", HOW)),
    Question("resume", ("checkpoints/", "start/", HOW)),
    Question("bfloat16", ("precision/", HOW)),
    Question("shard", ("distributed/", HOW)),
    Question("choose optimizer", ("which/", HOW)),
    Question("write my own", ("rules/", HOW)),
    Question("from optax", ("from_optax/", HOW)),
    Question("lr scheduler", ("schedules/",)),
    Question("cite", ("citing/",)),
    Question("gallery", ("gallery/",)),
)

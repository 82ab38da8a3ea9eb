"""A newcomer's ten questions: what one types, and the pages that answer it."""

from typing import NamedTuple


class Question(NamedTuple):
    words: str
    pages: tuple[str, ...]


QUESTIONS = (
    Question("change learning rate", ("hyperparameters/", "sweep/", "start/")),
    Question("freeze a layer", ("masks/", "guide/", "faq/")),
    Question("log gradient norm", ("logging/",)),
    Question("accumulate gradients", ("accumulation/",)),
    Question("resume checkpoint", ("checkpoints/",)),
    Question("bfloat16", ("precision/", "guide/", "memory/")),
    Question("sharding", ("distributed/",)),
    Question("which optimizer", ("which/", "cards/", "leaderboard/")),
    Question("write your own", ("rules/",)),
    Question("from Optax", ("from_optax/", "interop/")),
)

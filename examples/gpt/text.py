"""The text that ships with Python, as characters: the help on its language."""

import hashlib
from typing import NamedTuple

import numpy as np


class Text(NamedTuple):
    """train, test: indices into the alphabet, int32; the last tenth is held out.
    alphabet: the characters that occur, sorted.
    digest: of all characters, since the text differs between versions of Python.
    """

    train: np.ndarray
    test: np.ndarray
    alphabet: str
    digest: str

    def spell(self, indices):
        return "".join(self.alphabet[i] for i in np.asarray(indices))


def load():
    """Each paragraph once: some topics quote others, and would leak into the test."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise SystemExit(
            "this Python comes without `pydoc_data.topics`, the text that the GPT "
            "reads; use a Python that has it, such as one from python.org"
        ) from error
    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return encode("\n\n".join(dict.fromkeys(paragraphs)))


def encode(characters):
    alphabet = "".join(sorted(set(characters)))
    place = {character: i for i, character in enumerate(alphabet)}
    indices = np.array([place[x] for x in characters], np.int32)
    train, test = np.split(indices, [len(indices) * 9 // 10])
    digest = hashlib.sha256(characters.encode()).hexdigest()[:16]
    return Text(train, test, alphabet, digest)

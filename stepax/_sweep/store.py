"""The losses of a sweep so far, in memory and in its file."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np


_WHAT = {
    "grid": "`grid`",
    "steps": "`steps`",
    "seeds": "`seeds`",
    "programs": "`loss`, `init` or `make_tx`, or another version of JAX",
}


# NumPy's errors for a file that is not its archive; an array in its place has no names.
_DAMAGE = ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile


class Store:
    """The losses (points, seeds, steps), and which runs are done (points, seeds).

    path: the file, or `None`; it is replaced as a whole, so that it is never half
        written.
    about: what distinguishes this sweep from others.
    """

    def __init__(self, path: Any, about: dict, shape: tuple, dtype: np.dtype):
        self.path = None if path is None else Path(os.fspath(path))
        self.about = about
        self.losses = np.full(shape, np.nan, dtype)
        self.done = np.zeros(shape[:2], bool)
        if self.path is None:
            return
        if not self.path.absolute().parent.is_dir():
            raise ValueError(f"`path`: there is no folder {self.path.parent}")
        if self.path.is_dir():
            raise ValueError(f"`path`: {self.path} is a folder, expected a file")
        if self.path.exists():
            self._read(self.path)

    def _read(self, path):
        # A NumPy file without Python objects, which could run code.
        try:
            with open(path, "rb") as opened:
                file = np.load(opened, allow_pickle=False)
                about = json.loads(str(file["about"]))
                losses, done = file["losses"], file["done"]
        except _DAMAGE as error:
            raise ValueError(
                f"`path`: {self.path} is not the file of a sweep, or is damaged; pass "
                "another path, or remove it"
            ) from error
        self._compare(about)
        # With another number of parallel runs, results might differ in the last bit.
        self.about = about
        self.losses, self.done = losses, done

    def _compare(self, about):
        for key, what in _WHAT.items():
            old, new = about.get(key), self.about[key]
            if old != new:
                values = "" if key == "programs" else f", {_cut(old)} for {_cut(new)}"
                raise ValueError(
                    f"`path`: {self.path} belongs to another sweep, with other {what}"
                    f"{values}; pass another path, or remove the file"
                )

    def save(self) -> None:
        if self.path is None:
            return
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        about = np.asarray(json.dumps(self.about))
        try:
            with open(beside, "wb") as file:
                np.savez(file, about=about, losses=self.losses, done=self.done)
            os.replace(beside, self.path)
        finally:
            beside.unlink(missing_ok=True)


def _cut(x: Any, most: int = 100) -> str:
    text = str(x)
    return text if len(text) <= most else f"{text[:most]}…"

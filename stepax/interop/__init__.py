"""Interoperability with other libraries: one module each, imported on demand."""

import typing as _typing
from importlib import import_module as _import_module

from .._names import missing as _missing


if _typing.TYPE_CHECKING:
    from . import keras as keras, optax as optax


__all__ = ["keras", "optax"]


def __dir__() -> list[str]:
    return __all__


if not _typing.TYPE_CHECKING:

    def __getattr__(name):
        if name in __all__:
            return _import_module(f"{__name__}.{name}")
        raise _missing(__name__, name)

"""Functions that may still change; this module only lists names."""

import typing as _typing

from .._names import attributes as _attributes
from . import aggregating as aggregating


__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (known when it runs)
    name for name in globals() if not name.startswith("_")
]

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)

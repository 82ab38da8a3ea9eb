"""Stepax alongside Optax, or in its place for libraries that cannot be edited.

`python -m stepax.interop.optax script.py` runs a program in which `import optax`
imports Stepax, including in every library it uses.  `install`, `uninstall` and
`installed` do the same within a program.  `to_stepax` and `to_optax` convert states.
"""

import typing as _typing

from .._names import attributes as _attributes
from ._states import to_optax, to_stepax
from ._switch import install, installed, main, uninstall


__all__ = ["install", "installed", "main", "to_optax", "to_stepax", "uninstall"]

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)

if __name__ == "__main__":
    main()

"""Stepax beside Optax, and in its place for libraries that cannot be edited.

`python -m stepax.interop.optax script.py` runs a program whose `import optax`, and that
of each library it uses, means Stepax.  `install`, `uninstall` and `installed` do the
same from within a program.  `to_stepax` and `to_optax` convert states.
"""

from ._command import main as main
from ._states import to_optax as to_optax, to_stepax as to_stepax
from ._switch import (
    install as install,
    installed as installed,
    uninstall as uninstall,
)


__all__ = ["install", "installed", "main", "to_optax", "to_stepax", "uninstall"]


if __name__ == "__main__":
    main()

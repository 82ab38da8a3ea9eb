"""Run by Python at the start of processes that a switched program starts.

The switch itself waits for the first `import optax`, so that no process imports JAX
that does not need it.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder


_HERE = os.path.dirname(os.path.abspath(__file__))


class SwitchOfParent:
    """A finder that switches when Optax is imported; `install` removes it."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname.partition(".")[0] != "optax":
            return None
        if importlib.util.find_spec("stepax") is None:
            sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))
        from stepax.interop.optax import install

        install()
        return importlib.util.find_spec(fullname)


def _run_the_other() -> None:
    """Run the `sitecustomize` that this one stands before."""
    others = [x for x in sys.path if os.path.abspath(x) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, SwitchOfParent)
_run_the_other()

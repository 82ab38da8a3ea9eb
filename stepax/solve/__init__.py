"""Solvers: minima, roots, fixed points, least squares; only lists names.

`stepax.solve.minimize` is `stepax.minimize`.
"""

from typing import TYPE_CHECKING

from .._names import attributes


if TYPE_CHECKING:
    from . import constraints, prox
    from ._equations.least_squares import least_squares
    from ._equations.root import fixed_point, root
    from ._minimize.driver import minimize
    from ._minimize.implicit import implicit
    from ._minimize.quadratic import quadratic_program
    from ._minimize.result import History, Result, Status
    from ._minimize.watch import Tolerances


__all__ = [
    "History", "Result", "Status", "Tolerances", "constraints", "fixed_point",
    "implicit", "least_squares", "minimize", "prox", "quadratic_program", "root",
]  # fmt: skip

# Loaded on first access, since `stepax.proximal` alone needs only the operators.
_HOMES = {
    "constraints": (),
    "prox": (),
    "_equations.least_squares": ("least_squares",),
    "_equations.root": ("fixed_point", "root"),
    "_minimize.driver": ("minimize",),
    "_minimize.implicit": ("implicit",),
    "_minimize.quadratic": ("quadratic_program",),
    "_minimize.result": ("History", "Result", "Status"),
    "_minimize.watch": ("Tolerances",),
}

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__, _HOMES)

"""Averages of any width, computed after training from snapshots of two averages.

Karras, Aittala, Lehtinen, Hellsten, Aila and Laine, 2024, Analyzing and Improving the
Training Dynamics of Diffusion Models (arXiv:2312.02696), section 3 and appendix C.

The profile of such an average is the power τ^γ of time.  Its width is its standard
deviation, as a fraction of the length of training: σ = sqrt((γ + 1) / (γ + 3)) / (γ +
2).
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx


_WIDEST = 12**-0.5  # of γ = 0, the uniform average


def _power(width: Any) -> float:
    """γ for a width."""
    if not 0 < width <= _WIDEST + 1e-9:
        raise ValueError(
            f"`width` must be above 0 and at most {_WIDEST:.4f}, that of the uniform "
            f"average, but is {width}"
        )
    # The largest root of γ³ + 7 γ² + (16 - σ⁻²) γ + 12 - σ⁻² (equation 127).
    roots = np.roots([1, 7, 16 - width**-2, 12 - width**-2])
    return max(float(roots.real.max()), 0.0)


@rx.scheduled
def power_average_decay(width: float) -> rx.Schedule:
    """The decay rate of an average whose width grows with the number of steps.

        d(t - 1) = (1 - 1 / t)^(γ + 1),   an average with weights τ^γ up to t

    Give it to `averages` with `debias=False`.  In float32 its steps are exact to 1 %
    for about a million steps.

    width: the standard deviation as a fraction of the steps so far, in (0, 0.2887];
        0.1 and 0.05 are usual, with γ = 6.94 and 16.97.

    Raises a `ValueError` for other widths.
    """
    power = _power(width) + 1

    def decay(count):
        t = jnp.asarray(count, float) + 1
        return jnp.where(t > 1, jnp.exp(power * jnp.log1p(-1 / jnp.maximum(t, 2))), 0)

    return decay


@rx.explain_misuse
def power_average_weights(
    snapshots: Sequence[tuple[int, float]], step: int, width: float
) -> np.ndarray:
    """Weights that combine snapshots of power averages into one of another width.

    They are the least-squares fit of its profile by those of the snapshots; use them
    with `checkpoint.average`.  Some are negative, and their sum is about 1.

    snapshots: pairs of the step and the width of each, in general of at least two
        widths.
    step: the step of the new average, at most that of the last snapshot.
    width: the width of the new average, in (0, 0.2887].

    Raises a `ValueError` for other widths and steps.
    """
    steps = np.array([t for t, _ in snapshots], float)
    if not len(steps) or steps.min() < 1 or not 1 <= step <= steps.max():
        raise ValueError(
            f"`step` is {step}, but must be from 1 to the last snapshot, and the "
            f"snapshots are of the steps {[t for t, _ in snapshots]}"
        )
    powers = np.array([_power(w) for _, w in snapshots])
    products = _product(steps[:, None], powers[:, None], steps, powers)
    wanted = _product(steps, powers, float(step), _power(width))
    # Scale each profile to norm 1, as those of early steps are much higher.
    norms = np.sqrt(np.diag(products))
    solved = np.linalg.lstsq(
        products / norms / norms[:, None], wanted / norms, rcond=1e-14
    )
    return solved[0] / norms


def _product(t: Any, a: Any, s: Any, b: Any) -> Any:
    """The integral of the product of profiles with powers a and b, up to t and s."""
    least = np.minimum(t, s)
    ends = (least / t) ** a * (least / s) ** b * least / (t * s)
    return (a + 1) * (b + 1) / (a + b + 1) * ends

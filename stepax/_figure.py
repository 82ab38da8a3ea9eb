"""A figure of matplotlib, which is an optional dependency."""

from typing import Any

from ._names import install


def new_figure(asked_by: str, height: float = 5) -> Any:
    """An empty figure that is eight inches wide.

    asked_by: the public function that plots, for the error without matplotlib.
    """
    try:
        # Without pyplot, which would look for a window system.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"`{asked_by}` draws with matplotlib, which is not installed: "
            f"{install('plot')}"
        ) from error
    return Figure(figsize=(8, height), dpi=150, layout="constrained")

"""What the programs of the gallery share: a training loop, a network, a picture.

Pictures are small SVG files, readable on light and dark ground.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stepax


FOLDER = Path(__file__).parents[2] / "docs" / "assets" / "gallery"
COLORS = ("#5b6ee1", "#e07b39", "#2a9d8f", "#c2549d", "#8a8d91", "#b8922e")
GRAY = "#808080"


def run(main: Callable[[bool], "Canvas"]) -> None:
    """Run an example as its arguments say, and write its picture."""
    program = Path(sys.argv[0])
    parser = argparse.ArgumentParser(description="writes a picture of what it trained")
    parser.add_argument("--small", action="store_true", help="fewer steps: a test")
    parser.add_argument("--out", type=Path, default=FOLDER / f"{program.stem}.svg")
    asked = parser.parse_args()
    canvas = main(asked.small)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(canvas.svg())
    print(f"wrote {asked.out}")


class Canvas:
    """An SVG that is built from curves, points and cells."""

    def __init__(self, width: int = 360, height: int = 220, title: str = ""):
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def text(self, x, y, text, color=GRAY, bold=False, end=False) -> None:
        """A line of text; its end is at `x` if `end`."""
        weight = ' font-weight="bold"' * bold + ' text-anchor="end"' * end
        shown = str(text).replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{color}"{weight}>{shown}</text>'
        )

    def curves(
        self,
        ys: dict[str, Sequence[float]],
        xs: Sequence[float] | None = None,
        log: bool = False,
        points: dict[str, tuple] | None = None,
        labels: tuple[str, str] = ("step", "loss"),
    ) -> "Canvas":
        """Lines over a common axis, each with its name, and clouds of points.

        labels: what is across, and what is upwards.
        """
        rows = {k: np.asarray(y, float).ravel() for k, y in ys.items()}
        rows = {
            k: np.log10(np.maximum(y, 1e-12)) if log else y for k, y in rows.items()
        }
        first = next(iter(rows.values()))
        across = np.arange(len(first)) if xs is None else np.asarray(xs, float)
        clouds = {k: np.asarray(v, float) for k, v in (points or {}).items()}
        every = np.concatenate([*rows.values(), *(v[1] for v in clouds.values())])
        every = every[np.isfinite(every)]
        wide = np.concatenate([across, *(v[0] for v in clouds.values())])
        place = self._scale(wide, every)
        for i, cloud in enumerate(clouds.values()):
            color = COLORS[-1 - i]
            dots = "".join(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
                for x, y in zip(*place(cloud[0], cloud[1]), strict=True)
            )
            self.parts.append(f'<g fill="{color}" fill-opacity="0.7">{dots}</g>')
        for i, (name, row) in enumerate(rows.items()):
            at = np.unique(np.linspace(0, len(row) - 1, 120).astype(int))
            x, y = place(across[: len(row)][at], row[at])
            path = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
            self.parts.append(
                f'<path d="M{path}" fill="none" stroke="{COLORS[i]}" stroke-width="2"/>'
            )
            self.text(self.width - 8, 34 + 15 * i, name, COLORS[i], end=True)
        ends = [10.0**x if log else round(x, 9) for x in (every.min(), every.max())]
        self._axes(labels, ends, (wide.min(), wide.max()), log)
        return self

    def _axes(self, labels, along, across, log) -> None:
        """The names of both axes, with the least and the largest number on each."""
        bottom = self.height - 6
        self.text(4, 16, labels[1] + ", logarithmic" * log)
        self.text(4, 32, f"{along[1]:.2g}")
        self.text(4, bottom - 18, f"{along[0] + 0.0:.2g}")  # no -0
        self.text(4, bottom, f"{across[0]:.3g}")
        self.text(self.width / 2 - 3 * len(labels[0]), bottom, labels[0])
        self.text(self.width - 8, bottom, f"{across[1]:.3g}", end=True)

    def _scale(self, across, along):
        low, high = along.min(), max(along.max(), along.min() + 1e-9)
        start, stop = across.min(), max(across.max(), across.min() + 1e-9)
        right, top, bottom = self.width - 12, 38, self.height - 28

        def place(x, y):
            y = np.clip(y, low, high)
            return (
                12 + (np.asarray(x) - start) / (stop - start) * (right - 12),
                bottom - (y - low) / (high - low) * (bottom - top),
            )

        return place

    def cells(self, left, top, w, h, values, red: int | None = None) -> None:
        """A grid of values from 0 to 1, in eleven shades; the row `red` is red.

        left, top: of the grid.  w, h: of a cell, all in whole points.
        """
        shades = np.clip(np.round(10 * np.sqrt(np.abs(values))), 0, 10)
        for i, shade in {(i, s) for i in (red, None) for s in np.unique(shades)}:
            chosen = np.argwhere(shades == shade)
            path = "".join(
                f"M{left + x * w} {top + y * h}h{w - 1}v{h - 1}h{1 - w}z"
                for y, x in chosen
                if (y == red) == (i is not None)
            )
            color = COLORS[0] if i is None else "#d1495b"
            opacity = 0.04 + 0.096 * shade
            if path:
                style = f'fill="{color}" fill-opacity="{opacity:.2f}"'
                self.parts.append(f'<path d="{path}" {style}/>')

    def svg(self) -> str:
        """The file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} '
            f'{self.height}" font-family="system-ui, sans-serif" font-size="12">'
        )
        title = f"<title>{self.title}</title>"
        return "\n".join([head, title, *self.parts, "</svg>"]) + "\n"


def train(
    loss: Callable[..., jax.Array],
    params: Any,
    tx: stepax.GradientTransformation,
    steps: int,
    seed: int = 0,
) -> tuple[Any, np.ndarray]:
    """Train in one compiled loop; returns the parameters and the losses.

    loss: a function of the parameters and a random key.
    """

    def step(carry, key):
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params, key)
        updates, state = tx.update(gradient, state, params)
        return (stepax.apply_updates(params, updates), state), value

    keys = jax.random.split(jax.random.key(seed), steps)
    start = params, tx.init(params)
    (params, _), losses = jax.jit(lambda s: jax.lax.scan(step, s, keys))(start)
    return params, np.asarray(losses)


def dense(key: jax.Array, *sizes: int) -> list[dict[str, jax.Array]]:
    """The layers of a network, from the inputs to the outputs."""
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes, sizes[1:], strict=False)
    return [
        {"kernel": jax.random.normal(k, (m, n)) / m**0.5, "bias": jnp.zeros(n)}
        for k, m, n in shapes
    ]


def apply(layers: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """The network with tanh between its layers."""
    for layer in layers[:-1]:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x @ layers[-1]["kernel"] + layers[-1]["bias"]

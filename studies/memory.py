"""Bytes of parameters and optimizer states: the table of docs/memory.md.

Run it with `python -m studies.memory`; no array is made.

Models have the shapes of Llama 3: in each layer matrices of queries, keys, values and
outputs, and three of the feed-forward network; and an embedding.  `describe` counts the
bytes of the state of one matrix of each shape.  On several devices, which are virtual,
each matrix is sharded along its longest axis.
"""

import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=64"
)

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from rich.progress import track

import stepax
from stepax.contrib import muon, soap
from stepax.distributed import state_sharding
from website.tables.parts import write_table


PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
DEVICES = (1, 8, 64)
WIDE, HALF = jnp.dtype("float32"), jnp.dtype("bfloat16")


class Model(NamedTuple):
    """Layers, width, width of keys and values, of the feed-forward network; tokens."""

    layers: int
    width: int
    keys: int
    inner: int
    tokens: int = 128_256

    def shapes(self) -> dict[tuple[int, int], int]:
        """How many matrices there are of each shape."""
        found = Counter({(self.tokens, self.width): 1})
        found[self.width, self.width] += 2 * self.layers
        found[self.width, self.keys] += 2 * self.layers
        found[self.width, self.inner] += 2 * self.layers
        found[self.inner, self.width] += self.layers
        return found


MODELS = {
    "1 B": Model(16, 2048, 512, 8192),
    "8 B": Model(32, 4096, 1024, 14_336),
    "70 B": Model(80, 8192, 1024, 28_672),
}
# Name, dtype of the parameters, and the transformation.
ROWS: list[tuple[str, Any, Callable[[], Any]]] = [
    ("AdamW", WIDE, lambda: stepax.adamw(1e-3)),
    ("AdamW, 8 bits", WIDE, lambda: low(stepax.adamw(1e-3))),
    ("AdamW, 4 bits", WIDE, lambda: low(stepax.adamw(1e-3), 4)),
    ("AdamW, master weights", HALF, lambda: stepax.master_weights(stepax.adamw(1e-3))),
    ("AdamW, remainder 16", HALF, lambda: kept(stepax.adamw(1e-3), 16)),
    ("AdamW, remainder 16, 8 bits", HALF, lambda: kept(low(stepax.adamw(1e-3)), 16)),
    ("AdamW, remainder 8, 8 bits", HALF, lambda: kept(low(stepax.adamw(1e-3)), 8)),
    ("AdamW, stochastic rounding, 8 bits", HALF, lambda: rounded(stepax.adamw(1e-3))),
    ("Lion", WIDE, lambda: stepax.lion(1e-4)),
    ("Lion, 8 bits", WIDE, lambda: low(stepax.lion(1e-4))),
    ("Muon", WIDE, lambda: muon(1e-2)),
    ("Muon, 8 bits", WIDE, lambda: low(muon(1e-2))),
    ("SOAP", WIDE, lambda: soap(3e-3)),
    ("SOAP, bfloat16 factors", WIDE, lambda: soap(3e-3, factor_dtype=HALF)),
    ("SOAP, bfloat16 factors, 8 bits", WIDE, lambda: low(narrow_soap())),
]


def low(tx: Any, bits: int = 8) -> Any:
    return stepax.low_bit_states(tx, bits)


def kept(tx: Any, remainder: Any) -> Any:
    return stepax.master_weights(tx, remainder=remainder)


def rounded(tx: Any) -> Any:
    return stepax.stochastic_rounding(low(tx), 0)


def narrow_soap() -> Any:
    return soap(3e-3, factor_dtype=HALF)


def placed(shape: tuple[int, int], dtype: Any, devices: int) -> dict[str, Any]:
    """One matrix, sharded along its longest axis."""
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    spec = (
        PartitionSpec("data") if shape[0] >= shape[1] else PartitionSpec(None, "data")
    )
    place = NamedSharding(mesh, spec)
    return {"w": jax.ShapeDtypeStruct(shape, dtype, sharding=place)}


def part(tx: Any, params: Any) -> int:
    """Bytes of the parameters and the state on one device."""
    state = jax.eval_shape(tx.init, params)
    places = jax.tree.leaves(state_sharding(tx, params))
    pairs = [*zip(jax.tree.leaves(state), places, strict=True)]
    pairs += [(p, p.sharding) for p in params.values()]
    return sum(
        x.dtype.itemsize * math.prod(place.shard_shape(x.shape)) for x, place in pairs
    )


def cells(model: Model, dtype: Any, tx: Any) -> tuple[str, str]:
    """Bytes for each parameter, and GiB on a device."""
    shapes = model.shapes()
    number = sum(math.prod(shape) * count for shape, count in shapes.items())
    state = {
        x: stepax.describe(tx, placed(x, dtype, 1)).parameters["w"] for x in shapes
    }
    held = sum(state[shape] * count for shape, count in shapes.items())
    on_each = [
        sum(part(tx, placed(x, dtype, n)) * count for x, count in shapes.items())
        for n in DEVICES
    ]
    shown = " / ".join(f"{x / 2**30:,.1f}" for x in on_each)
    return f"{dtype.itemsize + held / number:.2f}", shown


def line(name: str, dtype: Any, make: Callable[[], Any]) -> str:
    """A row of the table."""
    tx = make()
    found = [x for model in MODELS.values() for x in cells(model, dtype, tx)]
    return f"| {' | '.join([name, *found])} |"


def main() -> None:
    rows = [line(*row) for row in track(ROWS, "counting")]
    heads = [x for name in MODELS for x in (f"{name}: bytes", "GiB on 1 / 8 / 64")]
    head = f"| state | {' | '.join(heads)} |\n| --- |{' --- |' * len(heads)}"
    write_table(PAGE, [head, *rows])
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()

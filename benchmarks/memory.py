"""Bytes of parameters and optimizer states: the table of docs/memory.md.

Run it with `python -m benchmarks.memory`, which takes a minute; no array is made.

Models have the shapes of Llama 3: in each layer matrices of queries, keys, values and
outputs, and three of the feed-forward network; and an embedding.  `describe` counts the
bytes of the state.  On several devices, which are virtual, each array is sharded along
its longest axis.
"""

import math
import os
from collections.abc import Callable, Iterator
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

    def shapes(self) -> Iterator[tuple[int, int]]:
        yield self.tokens, self.width
        for _ in range(self.layers):
            yield from [(self.width, self.width)] * 2
            yield from [(self.width, self.keys)] * 2
            yield from [(self.width, self.inner)] * 2
            yield self.inner, self.width


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
    ("AdamW, masters", HALF, lambda: stepax.master_weights(stepax.adamw(1e-3))),
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


def parameters(model: Model, dtype: Any, devices: int) -> dict[str, Any]:
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])

    def one(shape):
        longest = max(range(2), key=shape.__getitem__)
        spec = PartitionSpec(*["data" if i == longest else None for i in range(2)])
        place = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    return {f"w{i}": one(shape) for i, shape in enumerate(model.shapes())}


def largest_part(tx: Any, params: Any) -> int:
    """Bytes of parameters and state on one device."""
    state = jax.eval_shape(tx.init, params)
    places = jax.tree.leaves(state_sharding(tx, params))
    pairs = [*zip(jax.tree.leaves(state), places, strict=True)]
    pairs += [(p, p.sharding) for p in params.values()]
    return sum(
        x.dtype.itemsize * math.prod(place.shard_shape(x.shape)) for x, place in pairs
    )


def line(name: str, dtype: Any, make: Callable[[], Any]) -> str:
    """A row of the table."""
    cells = [name]
    for model in MODELS.values():
        params = parameters(model, dtype, 1)
        number = sum(p.size for p in params.values())
        found = stepax.describe(make(), params)
        held = sum(found.parameters.values()) + found.shared
        cells.append(f"{dtype.itemsize + held / number:.2f}")
        whole = [largest_part(make(), parameters(model, dtype, n)) for n in DEVICES]
        cells.append(" / ".join(f"{x / 2**30:,.1f}" for x in whole))
    return f"| {' | '.join(cells)} |"


def main() -> None:
    rows = [line(*row) for row in track(ROWS, "counting")]
    heads = [x for name in MODELS for x in (f"{name}: bytes", "GiB on 1 / 8 / 64")]
    head = f"| state | {' | '.join(heads)} |\n| --- |{' --- |' * len(heads)}"
    before, rest = PAGE.read_text().split("<!-- table -->\n", 1)
    after = rest.split("<!-- end -->", 1)[1]
    table = "\n".join([head, *rows])
    PAGE.write_text(f"{before}<!-- table -->\n{table}\n<!-- end -->{after}")
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()

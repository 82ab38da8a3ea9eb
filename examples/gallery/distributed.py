"""Many devices: Muon on a mesh of eight, each of which keeps an eighth of the state.

The devices are virtual ones of a CPU; on real ones the program is the same.
"""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import stepax
from stepax import distributed

from .shared import Canvas, run


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)


def main(small: bool) -> Canvas:
    mesh = jax.make_mesh((8,), ("data",))
    width, number = 64, 2 if small else 8
    keys = jax.random.split(jax.random.key(0), number)
    replicated = NamedSharding(mesh, PartitionSpec())
    params = {f"w{i}": jax.random.normal(k, (width, width)) for i, k in enumerate(keys)}
    params = jax.device_put(params, replicated)
    kept = {}
    for name, tx in {
        "AdamW": stepax.adamw(1e-3),
        "AdamW, zero": distributed.zero(stepax.adamw(1e-3), mesh),
        "Muon": stepax.contrib.muon(1e-2),
        "Muon, zero": distributed.zero(stepax.contrib.muon(1e-2), mesh),
    }.items():
        report = distributed.audit(tx, params)
        kept[name] = report.state_per_device / 1024
        print(f"{name}: {kept[name]:.1f} KiB of state on each of {report.devices}")
    canvas = Canvas(title="State on each of eight devices")
    canvas.text(12, 24, "KiB of state on each device", bold=True)
    most = max(kept.values())
    for i, (name, size) in enumerate(kept.items()):
        y = 48 + 40 * i
        canvas.text(12, y, name)
        canvas.cells(12, y + 6, max(2, int(300 * size / most)), 16, np.ones((1, 1)))
    return canvas


if __name__ == "__main__":
    run(main)

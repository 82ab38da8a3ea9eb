"""A step as XLA compiles it for a GPU that is not here: bytes, temporaries, kernels.

    pip install jax-cuda13-plugin jax-cuda13-pjrt nvidia-cuda-nvcc nvidia-nvvm
    python -m studies.gpu.compiled "clip + adamw" --tree gpt2 --target h100_sxm.txtpb

Versions of the plugin and of JAX have to agree.  The target describes the device; XLA
has a folder of such files, `xla/backends/gpu/target_config/specs`.  Nothing runs, and
matrix products are compiled without trying which algorithm is fast.  Counts of bytes
are those that a run on an H100 had, see docs/bench.md.
"""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from benchmarks.bench import report
from benchmarks.bench.cases import CASES
from benchmarks.bench.measure import WAYS, installed, ways
from benchmarks.bench.shapes import SHAPES, abstract, size
from benchmarks.bench.stages import step_of

from . import kernels


def device_of(target: Path) -> SingleDeviceSharding:
    """The place of arrays on a device that a file describes."""
    found = topologies.get_topology_desc(
        platform="cuda", target_config=target.read_text(), topology="1x1x1"
    )
    return SingleDeviceSharding(found.devices[0])


def compiled(case: str, tree: str, library: str, place: Any) -> Any:
    """A step, whose program is for another device."""
    way = ways(CASES[case], installed())[library]
    params = abstract(SHAPES[tree].make(1), way.case.dtype)
    step, first = step_of(way.make(), way.lib, params, way.case.arrange, way.take)
    put = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    given = [[put(x) for x in jax.tree.leaves(y)] for y in (first, params)]
    jitted = jax.jit(step, donate_argnums=0, keep_unused=True, out_shardings=place)
    return jitted.trace(*given).lower(lowering_platforms=("cuda",)).compile()


def table(text: str, numbers: int) -> report.Table:
    """Bytes per parameter of the operations of a program, outside of its branches."""
    entry = text[text.index("\nENTRY") :]
    traffic, found = kernels.traffic_of(entry), {}
    for name in re.findall(r"%([\w.-]+) = .*? (?:fusion|custom-call|copy)\(", entry):
        found.setdefault(kernels.stem(name), []).append(traffic[name])
    ordered = sorted(found.items(), key=lambda x: -sum(x[1]))
    lines = [[k, f"{len(x)}", f"{sum(x) / numbers:.2f}"] for k, x in ordered]
    every = [x for each in found.values() for x in each]
    lines.append(["all", f"{len(every)}", f"{sum(every) / numbers:.2f}"])
    return ["operation", "how many", "bytes"], lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("case", choices=list(CASES), metavar="CASE", help=", ".join(CASES))
    add("--tree", choices=list(SHAPES), default="gpt2")
    add("--way", choices=(*WAYS, "optax"), default="stepax.step")
    add("--target", type=Path, required=True, help="a description of the device")
    add("--hlo", type=Path, help="write the optimized program there")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0"
    place = device_of(args.target)
    # The engine asks for the device of the process.
    jax.default_backend = lambda: "gpu"
    program = compiled(args.case, args.tree, args.way, place)
    text, numbers = program.as_text(), size(SHAPES[args.tree].make(1))[1]
    if args.hlo:
        args.hlo.write_text(text)
    memory = program.memory_analysis().temp_size_in_bytes
    print(report.plain(table(text, numbers)))
    print(f"temporaries: {memory / numbers:.2f} bytes per parameter")
    branches = len(re.findall(r" (?:conditional|while)\(", text))
    print(f"branches and loops, of which the table has no bytes: {branches}")


if __name__ == "__main__":
    sys.exit(main())

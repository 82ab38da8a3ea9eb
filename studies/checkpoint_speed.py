"""How long a checkpoint takes, beside Orbax's own.

    python -m studies.checkpoint_speed
    python -m studies.checkpoint_speed --mebibytes 256 --rounds 3 --folder /scratch

In one process, eight arrays of float32 are saved and restored by Orbax and by Stepax in
turns, so that both meet the same machine; the medians of the rounds are printed, and
how much of a save a call with `wait=False` blocks.  Then: the memory that such a call
adds at most, the digest of 64 MiB beside BLAKE2, and how long 100,000 names take to
match.  The folder needs room for three times the arrays, and is cleared each round.
Orbax compresses, by 8 % for float32, and computes no digests; Stepax does the opposite.
"""

import argparse
import hashlib
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

import stepax
from stepax._checkpoint import entries
from stepax._checkpoint.digest import digest
from stepax._checkpoint.match import match
from stepax.checkpoint import restore, save, wait


ARRAYS = 8


def params_of(size):
    """Arrays that cannot be compressed, of so many bytes."""
    shape = (size // 4 // ARRAYS // 1024, 1024)
    keys = jax.random.split(jax.random.key(0), ARRAYS)
    found = {f"w{i}": jax.random.normal(key, shape) for i, key in enumerate(keys)}
    return jax.block_until_ready(found)


def seconds(call):
    os.sync()
    begun = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begun


def one_round(folder, params):
    """Seconds of each operation, by name."""
    theirs, ours = ocp.PyTreeCheckpointer(), stepax.identity()
    how = jax.tree.map(lambda x: ocp.ArrayRestoreArgs(sharding=x.sharding), params)
    path = folder / "theirs"
    found = {
        "Orbax saves": seconds(lambda: theirs.save(path, params)),
        "Stepax saves": seconds(lambda: save(folder / "ours", 1, params, ())),
        "Stepax blocks": seconds(
            lambda: save(folder / "late", 1, params, (), wait=False)
        ),
    }
    wait()
    shutil.rmtree(folder / "late")
    found["Orbax restores"] = seconds(lambda: theirs.restore(path, restore_args=how))
    found["Stepax restores"] = seconds(lambda: restore(folder / "ours", ours, params))
    return found


def compare_with_orbax(size, rounds, top):
    params, rows = params_of(size), []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=top) as folder:
            rows.append(one_round(Path(folder), params))
    middle = {name: statistics.median(x[name] for x in rows) for name in rows[0]}
    for name, value in middle.items():
        print(f"{name:16} {value:7.2f} s")
    for name in "saves", "restores":
        ratio = middle[f"Stepax {name}"] / middle[f"Orbax {name}"]
        print(f"Stepax {name} in {ratio:.2f} of Orbax's time")
    share = middle["Stepax blocks"] / middle["Stepax saves"]
    print(f"`wait=False` blocks {share:.2f} of the time of a save")


def resident():
    """Bytes of memory that this process has (Linux)."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def measure_memory(size, top):
    """How much memory a save in the background adds at most, in sizes of the arrays."""
    params, before, peak = params_of(size), resident(), 0
    ended = threading.Event()

    def watch():
        nonlocal peak
        while not ended.wait(0.005):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with tempfile.TemporaryDirectory(dir=top) as folder:
        save(folder, 1, params, (), wait=False)
        wait()
    ended.set()
    watcher.join()
    print(f"`wait=False` adds {(peak - before) / size:.2f} of the arrays to the memory")


def measure_digest():
    x = np.random.default_rng(0).random(2**24, np.float32)
    for name, call in ("digest", digest), ("BLAKE2", hashlib.blake2b):
        times = []
        for _ in range(7):
            begun = time.process_time()
            call(x)
            times.append(time.process_time() - begun)
        print(f"{name} of 64 MiB: {statistics.median(times):.3f} s of processor time")


def measure_names(n):
    x = np.zeros(2, np.float32)
    layers = {f"layer{i}": {f"w{j}": x for j in range(10)} for i in range(n // 10)}
    found = entries(layers)
    paths = [x.names for x in found]
    begun = time.process_time()
    match(found, found, paths)
    print(f"{n} names match in {time.process_time() - begun:.2f} s of processor time")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mebibytes", type=int, default=1024, help="of all arrays")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to write; a temporary one by default")
    args = parser.parse_args()
    size = args.mebibytes * 2**20
    measure_digest()
    measure_names(100_000)
    measure_memory(size, args.folder)
    compare_with_orbax(size, args.rounds, args.folder)


if __name__ == "__main__":
    main()

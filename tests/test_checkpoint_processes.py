"""A checkpoint of two processes, which is damaged in the part of one of them."""

import os
import socket
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from runs import equal

import stepax
from stepax.checkpoint import restore


# Process 1 alone reads the second half of each array.
PROCESS = """
import sys
from pathlib import Path
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), initialization_timeout=60)
import jax.numpy as jnp
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import NamedSharding, PartitionSpec as P
import stepax
from stepax.checkpoint import restore, save

folder, tx = Path(sys.argv[3]), stepax.adam(0.1)
split = NamedSharding(jax.make_mesh((2,), ("data",)), P("data"))
make = lambda key: jax.random.normal(key, (64, 30))
params = {"w": jax.jit(make, out_shardings=split)(jax.random.key(0))}
state = tx.init(params)
alone = state[0]._replace(count=jnp.int32(5))  # each process has it for itself
for step in 1, 2:
    save(folder, step, params, (alone, *state[1:]))
found = restore(folder, tx, params)
assert found.state[0].count == 5 and found.params["w"].sharding == split
sync_global_devices("saved")
if jax.process_index() == 0:
    for file in (folder / "2" / "params").glob("ocdbt.process_1/d/*"):
        file.write_bytes(b"")
sync_global_devices("damaged")
try:
    restore(folder, tx, params)
except ValueError as error:
    print(error, flush=True)
sync_global_devices("read")
assert restore(folder, tx, params, step=1).step == 1
"""


@pytest.fixture
def two(tmp_path):
    """What two processes print; neither outlives the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    start = [sys.executable, "-c", PROCESS, address]
    how: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # One device each, not those of the tests.
    how["env"] = {k: x for k, x in os.environ.items() if k != "XLA_FLAGS"}
    both = [subprocess.Popen([*start, str(i), tmp_path], **how) for i in (0, 1)]
    try:
        told = [x.communicate(timeout=90) for x in both]
        assert [x.returncode for x in both] == [0, 0], told
        yield [out for out, _ in told]
    finally:
        for x in both:
            x.kill()


def test_all_processes_learn_of_damage_that_one_has_seen(two, tmp_path):
    for text in two:
        assert f"step 2 in `{tmp_path}` is damaged" in text
        assert "`step=1` restores the one before" in text
    assert any("it could not be read by process 1" in text for text in two)
    template = {"w": np.zeros((64, 30), "float32")}
    found = restore(tmp_path, stepax.adam(0.1), template, step=1)
    assert found.state[0].count == 5
    equal(found.params["w"][:2] != 0, jnp.ones((2, 30), bool))

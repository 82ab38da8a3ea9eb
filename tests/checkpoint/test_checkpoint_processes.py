"""Checkpoints of two processes, of which one fails, or its part is damaged."""

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
START = """
import sys, warnings
from pathlib import Path
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), initialization_timeout=60)
import jax.numpy as jnp
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import NamedSharding, PartitionSpec as P
import stepax
from stepax._checkpoint import write
from stepax.checkpoint import latest_step, restore, save, wait

folder, tx = Path(sys.argv[3]), stepax.adam(0.1)
split = NamedSharding(jax.make_mesh((2,), ("data",)), P("data"))
make = lambda key: jax.random.normal(key, (64, 30))
params = {"w": jax.jit(make, out_shardings=split)(jax.random.key(0))}
"""
DAMAGED = (
    START
    + """
state = tx.init(params)
alone = state[0]._replace(count=jnp.int32(5))  # each process has it for itself
for step in 1, 2:
    save(folder, step, params, (alone, *state[1:]))
found = restore(folder, tx, params)
assert found.state[0].count == 5 and found.params["w"].sharding == split


# A state whose class changed, with its recipe, into the form without a weight.
gathers = stepax.MultiSteps(tx, 3).gradient_transformation()
_, late = gathers.update(params, gathers.init(params), params, weight=2.0)
save(folder / "late", 1, params, late, tx=gathers)
again = restore(folder / "late", gathers, params).state
assert jax.tree.structure(again) == jax.tree.structure(late) and again.weight == 2
same = jax.jit(lambda a, b: jax.numpy.all(a == b))
assert same(again.acc_grads["w"], late.acc_grads["w"])
sync_global_devices("saved")
if jax.process_index() == 0:
    __import__("shutil").rmtree(folder / "late")
    for file in (folder / "2" / "params").glob("ocdbt.process_1/d/*"):
        file.write_bytes(b"")
sync_global_devices("damaged")
try:
    restore(folder, tx, params)
except ValueError as error:
    print(error, flush=True)
sync_global_devices("read")
assert restore(folder, tx, params, step=1).step == 1

# In the background, while both go on to compute.
new = jax.tree.map(lambda x: x + 1, params)
save(folder, 3, new, state, wait=False)
busy = jax.jit(lambda x: x * 0, donate_argnums=0)
params, zeros = jax.tree.map(lambda x: x + 1, params), busy(new["w"])
assert not jax.jit(jax.numpy.any)(zeros)
wait()
assert latest_step(folder) == 3
found = restore(folder, tx, params).params
assert jax.jit(lambda a, b: jax.numpy.all(a == b))(found["w"], params["w"])

# An error in process 0 is one in both, and both go on.
def fail(*_):
    raise OSError(28, "No space left on device")
publish, write._publish = write._publish, fail
for how in True, False:
    try:
        save(folder, 4, params, state, wait=how)
        wait()
    except ValueError as error:
        print(error, flush=True)
write._publish = publish
for step in 3, 4 + jax.process_index():
    try:
        save(folder, step, params, state)
    except ValueError as error:
        print(error, flush=True)
save(folder, 5, params, state, keep=2)
assert latest_step(folder) == 5
sync_global_devices("seen")  # before it is damaged
if jax.process_index() == 0:
    (folder / "5" / "manifest" / "metadata").unlink()
sync_global_devices("removed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert restore(folder, tx, params).step == 3
"""
)


# Each fault in each process in turn, in the foreground and in the background.
FAILING = (
    START
    + """
import os, resource
from stepax._checkpoint import disk, manifest, steps

def refuse(*_, **__):
    raise PermissionError(13, "Permission denied")

def replaced(owner, name):
    def start():
        before = getattr(owner, name)
        setattr(owner, name, refuse)
        return lambda: setattr(owner, name, before)
    return start

def quota():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)

kind = type(disk.place(folder))
# With the processes that take part in it, and whether the step is there nonetheless.
faults = {
    "quota": (quota, (0, 1), False),
    "names": (replaced(write, "arrays_of"), (0, 1), False),
    "mkdir": (replaced(kind, "mkdir"), (0,), False),
    "orbax": (replaced(write, "_handler"), (0, 1), False),
    "say": (replaced(kind, "write_text"), (0, 1), False),
    "manifest": (replaced(manifest, "write"), (0,), False),
    "sync": (replaced(write, "sync_tree"), (0,), False),
    "rename": (replaced(kind, "rename"), (0,), False),
    "names on disk": (replaced(write, "sync_names"), (0,), True),
    "prune": (replaced(steps, "prune"), (0,), True),
}
here, step = jax.process_index(), 1
save(folder, step, params, ())
for name, (start, who, is_saved) in faults.items():
    for process in who:
        for how in True, False:
            last, step = latest_step(folder), step + 1
            sync_global_devices("before")
            stop = start() if process == here else lambda: None
            try:
                save(folder, step, params, (), wait=how, keep=2)
                wait()
                text = "nothing"
            except (ValueError, OSError) as error:
                text = str(error)
            finally:
                stop()
            cause = "too large" if name == "quota" else "Permission denied"
            about = "was saved, but" if is_saved else ""
            assert cause in text and f"(in process {process})" in text, (name, text)
            assert about in text, (name, text)
            assert latest_step(folder) == (step if is_saved else last), name
            sync_global_devices("after")
save(folder, step + 1, params, (), keep=1)
same = jax.jit(lambda a, b: jax.numpy.all(a == b))
assert same(restore(folder, stepax.identity(), params).params["w"], params["w"])
print("all told", flush=True)
"""
)


def run_two(code, folder):
    """What two processes print; neither outlives the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    start = [sys.executable, "-c", code, address]
    how: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # One device each, not those of the tests.
    how["env"] = {k: x for k, x in os.environ.items() if k != "XLA_FLAGS"}
    both = [subprocess.Popen([*start, str(i), folder], **how) for i in (0, 1)]
    try:
        # Far below the 1,200 s of a hang, and enough for a machine that is busy.
        told = [x.communicate(timeout=300) for x in both]
        assert [x.returncode for x in both] == [0, 0], told
        return [out for out, _ in told]
    finally:
        for x in both:
            x.kill()


@pytest.mark.slow
def test_all_processes_learn_why_one_could_not_save(tmp_path):
    """At once: a process that waited for the other would outlive the time limit."""
    assert all("all told" in text for text in run_two(FAILING, tmp_path / "run"))
    (last,) = (tmp_path / "run").iterdir()
    assert last.name == "30"


@pytest.mark.slow
def test_all_processes_learn_of_damage_that_one_has_seen(tmp_path):
    two = run_two(DAMAGED, tmp_path)
    for text in two:
        assert f"step 2 in `{tmp_path}` is damaged" in text
        assert "`step=1` restores the previous one" in text
        assert text.count("step 4 in") == text.count("was not saved") == 2
        assert "has step 3, and `step` is 3" in text
        assert "processes save different steps: 4, 5" in text
        assert text.count("No space left on device (in process 0)") == 2
    assert any("it could not be read by process 1" in text for text in two)
    names = sorted(x.name for x in tmp_path.iterdir())
    assert names == ["3", "5"]
    template = {"w": np.zeros((64, 30), "float32")}
    found = restore(tmp_path, stepax.adam(0.1), template, step=3)
    assert found.state[0].count == 0
    equal(found.params["w"][:2] != 0, jnp.ones((2, 30), bool))

"""The switch reaches all ways to start a program, and the processes that it starts."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepax.interop.optax import installed


ROOT = Path(__file__).parents[2]

# States travel both ways, so both sides have to agree about their classes.
PROGRAM = """
import multiprocessing, subprocess, sys
import jax.numpy as jnp
import optax

def child(pipe, state):
    import optax
    found = optax.adam(0.1).update(jnp.ones(2), state)[1]
    pipe.send((optax.adam.__module__, type(state[0]) is optax.ScaleByAdamState, found))

if __name__ == "__main__":
    state = optax.adam(0.1).init(jnp.ones(2))
    context = multiprocessing.get_context(sys.argv[1])
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there, state))
    process.start()
    module, is_same, found = here.recv()
    process.join()
    is_here = type(found[0]) is optax.ScaleByAdamState
    print(module, is_same, is_here, int(found[0].count))
"""
SHOW = "import optax, sys; print(optax.adam.__module__, *sys.argv, __name__)"
OURS = "stepax._optimizers.adam"


def run(*arguments: str, text: str = "", where: Path | None = None) -> str:
    """What a program under the switch prints."""
    done = subprocess.run(
        [sys.executable, "-m", "stepax.interop.optax", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
        input=text,
        capture_output=True,
        text=True,
        cwd=where,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_is_started_is_switched_too(method, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    assert run("program.py", method, where=tmp_path) == f"{OURS} True True 1"


@pytest.mark.slow
def test_what_is_run_by_python_is_switched_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('other')")
    program = (
        "import os, subprocess, sys; "
        f"os.environ['PYTHONPATH'] += os.pathsep + {str(tmp_path)!r}; "
        f"print(subprocess.check_output([sys.executable, '-c', {SHOW!r}], text=True))"
    )
    # Another `sitecustomize` runs, too.
    assert run("-c", program) == f"other\n{OURS} -c __main__"


WAYS = {
    "-c": (["-c", SHOW, "x", "-y"], "", f"{OURS} -c x -y __main__"),
    "-": (["-", "x"], SHOW, f"{OURS} - x __main__"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "text", "wanted"), WAYS.values(), ids=WAYS)
def test_the_text_of_a_program_is_run_as_python_runs_it(arguments, text, wanted):
    assert run(*arguments, text=text) == wanted


def test_modules_are_listed():
    optax = importlib.import_module("optax")
    known = {x.name for x in pkgutil.walk_packages(optax.__path__, "optax.")}
    with installed(replace=True):
        optax = importlib.import_module("optax")
        first = {x.name: x.ispkg for x in pkgutil.iter_modules(optax.__path__)}
        found = {x.name for x in pkgutil.walk_packages(optax.__path__, "optax.")}
        for name in found:
            importlib.import_module(name)
    assert first["contrib"] and not first["tree"]
    tests = {x for x in known if x.endswith("_test") or ".transforms." in x}
    assert "optax.contrib._muon" in found and "optax.losses" in found
    missing = {x for x in known - tests if x.count(".") == 1} - found
    assert missing == set()


def test_the_environment_is_afterwards_as_before(monkeypatch):
    for before in None, str(ROOT), os.pathsep.join(["a", "b"]):
        monkeypatch.delenv("PYTHONPATH", raising=False)
        if before is not None:
            monkeypatch.setenv("PYTHONPATH", before)
        hooks, cache = list(sys.path_hooks), dict(sys.path_importer_cache)
        with installed(replace=True):
            assert os.environ["PYTHONPATH"].endswith(before or "_children")
            optax = importlib.import_module("optax")
            assert list(pkgutil.iter_modules(optax.__path__))
        assert os.environ.get("PYTHONPATH") == before
        assert sys.path_hooks == hooks
        assert set(sys.path_importer_cache) == set(cache)

"""What a type checker says of users' programs; it reads this file, too."""

import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from children import with_path
from pages import ROOT, blocks

import stepax


class Pair(NamedTuple):
    kernel: jax.Array
    bias: jax.Array


@jax.tree_util.register_dataclass
@dataclass
class Record:
    kernel: jax.Array
    bias: jax.Array


class Module(eqx.Module):
    kernel: jax.Array
    bias: jax.Array


def step_of_pair(tx: stepax.GradientTransformation, p: Pair) -> Pair:
    updates, _ = tx.update(p, tx.init(p), p)
    return stepax.apply_updates(p, updates)


def step_of_record(tx: stepax.GradientTransformation, p: Record) -> Record:
    updates, _ = tx.update(p, tx.init(p), p)
    return stepax.apply_updates(p, updates)


def step_of_module(tx: stepax.GradientTransformation, p: Module) -> Module:
    updates, _ = tx.update(p, tx.init(p), p)
    return stepax.apply_updates(p, updates)


STEPS: dict[Any, Any] = {
    Pair: step_of_pair,
    Record: step_of_record,
    Module: step_of_module,
}


@pytest.mark.parametrize("kind", STEPS)
def test_parameters_of_any_class_are_moved(kind):
    tx: stepax.GradientTransformation = stepax.chain(
        stepax.clip(1.0), stepax.adamw(stepax.linear_schedule(0.1, 0.0, 10))
    )
    p = kind(jnp.ones((2, 2)), jnp.ones(2))
    moved = STEPS[kind](tx, p)
    assert type(moved) is kind
    assert (moved.bias < p.bias).all()


def test_types_are_shipped():
    assert files(stepax).joinpath("py.typed").is_file()


def test_what_is_returned_has_a_type():
    p = Pair(jnp.ones((2, 2)), jnp.ones(2))
    tx: stepax.GradientTransformationExtraArgs = stepax.adam(1e-3)
    state: stepax.OptState = tx.init(p)
    norm: jax.Array = stepax.tree.norm(p)
    numbers: dict[str, Any] = stepax.hyperparams(tx, state)
    moved: stepax.tree.Migration = stepax.tree.migrate(state, state)
    assert norm > 0 and numbers and moved.fresh == ()


SCRIPT = (ROOT / "tests/user_script.py").read_text()
# `interop.md` is not among them: Optax's own annotations refuse what it shows.
NAMES = (
    "start", "masks", "precision", "state_by_name",
    "checkpoints", "distributed", "hyperparameters", "minimize", "rules",
)  # fmt: skip
PAGES = ["README.md", *(f"docs/{x}.md" for x in NAMES)]
PROGRAMS = {"user_script": SCRIPT} | {x: "\n".join(blocks(x)) for x in PAGES}
WRONG = {
    "a name that there is not": "import stepax\nstepax.adamww(1e-3)",
    "a name in a submodule": "import stepax\nstepax.contrib.adamw(1e-3)",
    "an argument that there is not": "import stepax\nstepax.adamw(1e-3, beta1=0.9)",
    "a rate that is a string": "import stepax\nstepax.sgd('0.1')",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, list[str]]:
    """What pyright says of each program; one process reads them all."""
    folder = tmp_path_factory.mktemp("programs")
    config = {"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    names = {f"program_{i}.py": x for i, x in enumerate(PROGRAMS | WRONG)}
    for file, name in names.items():
        (folder / file).write_text((PROGRAMS | WRONG)[name])
    command = ["-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True
    )
    result = json.loads(done.stdout)
    assert result["summary"]["filesAnalyzed"] == len(names)
    messages = {name: [] for name in names.values()}
    for x in result["generalDiagnostics"]:
        line = x["range"]["start"]["line"] + 1
        messages[names[os.path.basename(x["file"])]] += [f"{line}: {x['message']}"]
    return messages


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_type_checker_finds_nothing_in_a_right_program(name, found):
    assert len(PROGRAMS[name].splitlines()) > 20
    assert found[name] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_type_checker_finds_what_is_wrong(name, found):
    assert len(found[name]) == 1


@pytest.mark.slow
def test_almost_all_of_the_public_interface_has_types(tmp_path):
    command = ["-m", "pyright", "--verifytypes", "stepax", "--ignoreexternal"]
    done = subprocess.run(
        [sys.executable, *command, "--outputjson"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=with_path(),
    )
    found = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    exported = [x for x in found if x["isExported"]]
    # Classes that derive from Optax's count as unknown, since it has no `py.typed`.
    of_optax = {x for m in (optax, optax.contrib) for x in dir(m)}
    own = [x for x in exported if x["name"].split(".")[-1] not in of_optax]
    assert len(own) > 400
    # 97.2 % when this was written; the rest names classes of JAX that have no types.
    assert sum(x["isTypeKnown"] for x in own) > 0.96 * len(own)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["user_script", *WRONG])
def test_mypy_finds_what_is_wrong_in_a_user_s_file(name, tmp_path):
    file = tmp_path / "program.py"
    file.write_text((PROGRAMS | WRONG)[name])
    # Silent about what it imports, as for an installed package.
    options = ["--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(file)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"MYPYPATH": str(ROOT)},
    )
    wrong = re.findall(r"error: ", done.stdout)
    assert len(wrong) == (name in WRONG), done.stdout + done.stderr


@pytest.mark.slow
def test_the_script_of_a_user_gives_what_it_gave_with_optax(tmp_path, capsys):
    theirs = tmp_path / "theirs.py"
    theirs.write_text(SCRIPT.replace("import stepax as", "import optax as"))
    theirs.write_text(theirs.read_text().replace("from stepax", "from optax"))
    run = lambda path: runpy.run_path(str(path))["trained"]
    # As users have it.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        ours, theirs = run(ROOT / "tests/user_script.py"), run(theirs)
    printed = capsys.readouterr().out
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        # XLA fuses the two programs differently: some ulps in each of five steps.
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)

"""Every cell of README's tables, as Optax, PyTorch and Stepax do it today.

A row names its test in its last column.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax as typed_optax
import pytest
import yaml
from children import with_path
from pages import ROOT

import stepax as typed_stepax
from stepax import distributed, rules
from website.tables import measured, user_reports


# To type checkers these calls are wrong, as some are meant to be.
optax: Any = typed_optax
stepax: Any = typed_stepax

README = (ROOT / "README.md").read_text()
P = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
G = jax.tree.map(jnp.ones_like, P)


@pytest.fixture(autouse=True)
def as_users_have_it(strict):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def cells(test: str) -> list[str]:
    """The cells of the first row that names a test, without its title."""
    line = re.findall(rf"^\|.*\| `{test}` \|$", README, re.MULTILINE)[0]
    return [x.strip() for x in line.strip("|").split(" | ")][1:-1]


def test_each_row_names_a_test_that_there_is():
    known = {x for x in globals() if x.startswith("test_")} | OF_COUNTS
    tables = re.findall(r"(?:^\|.*\|\n)+", README, re.MULTILINE)
    assert len(tables) == 3
    rows = [row for table in tables for row in table.splitlines()[2:]]
    named = [re.findall(r"\| `(test_\w+)` \|$", row) for row in rows]
    assert [row for row, found in zip(rows, named, strict=True) if not found] == []
    assert {x for found in named for x in found} <= known


# In the file beside this one.
OF_COUNTS = {"test_our_numbers_are_those_of_today"}


def steps(tx, gradients, params=P) -> Any:
    """The parameters after some steps with these gradients."""
    state = tx.init(params)
    for g in gradients:
        updates, state = tx.update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params


# --- Why switch -------------------------------------------------------------------


@pytest.mark.slow
def test_reported_problems():
    """That the two numbers are those of the last whole run is `test_figures.py`'s."""
    optax_, ours = cells("test_reported_problems")
    assert f"passes {measured.reports().optax:,}" == optax_
    assert ours.startswith("passes all; ") and str(user_reports.skipped()) in ours
    # One topic on both libraries, each with the result that it declares.
    command = [sys.executable, "-m", "website.tables.user_reports", "-n", "0"]
    more = ["--", "-k", "attention_logits or first_steps_of_acprop"]
    subprocess.run([*command, *more], cwd=ROOT, check=True, env=with_path())


def test_wrong_shape(torch):
    wrong = {"w": jnp.ones((1, 3)), "b": jnp.ones(3)}
    assert steps(optax.adam(0.1), [wrong])["w"].shape == (4, 3)
    with pytest.raises(ValueError, match=r"\['w'\].*\(1, 3\).*\(4, 3\)"):
        steps(stepax.adam(0.1), [wrong])
    with pytest.raises(RuntimeError, match="size|shape"):
        torch.nn.Parameter(torch.ones(4, 3)).grad = torch.ones(1, 3)


def test_nan_in_accumulation(torch):
    """The NaN is in element (0, 0) of the first of eight mini-batches."""
    bad = G | {"w": G["w"].at[0, 0].set(jnp.nan)}
    batches = [bad, *[G] * 7]
    of = lambda o: steps(o.MultiSteps(o.chain(o.zero_nans(), o.sgd(0.1)), 2), batches)
    theirs, ours = of(optax), of(stepax)
    assert theirs["w"][0, 0] == 1.0  # it never moves; all others take four steps
    assert jnp.allclose(theirs["w"][1:], 0.6) and jnp.allclose(ours["w"][1:], 0.6)
    assert 0.6 < ours["w"][0, 0] <= 0.7  # one update of four, or a half of it
    p = torch.nn.Parameter(torch.ones(2))
    (p * torch.tensor([float("nan"), 1.0])).sum().backward()
    p.sum().backward()
    assert p.grad.isnan().tolist() == [True, False]
    torch.optim.SGD([p]).zero_grad()
    assert p.grad is None


def off_by(library, widen=False) -> list[float]:
    """How far the updates of Adam are off in bfloat16 after 1,000 steps.

    Of gradients that are noise, and of constant ones, for which the mean stalls early.
    """
    noise = lambda key: jax.random.normal(key, (256,))
    return [_off_by(library, widen, g) for g in (noise, lambda _: jnp.ones(256))]


def _off_by(library, widen, gradient) -> float:

    def updates(library, dtype, wrap=lambda tx: tx):
        p, tx = jnp.zeros(256, dtype), wrap(library.adam(1e-3))

        def step(state, key):
            g = gradient(key).astype(dtype)
            u, state = tx.update(g, state, p)
            return state, u.astype(jnp.float32)

        keys = jax.random.split(jax.random.key(0), 1000)
        return jax.lax.scan(step, tx.init(p), keys)[1][-50:]

    wrap = lambda tx: stepax.with_state_dtypes(tx, {"nu": "float32"}) if widen else tx
    exact, found = updates(optax, "float32"), updates(library, "bfloat16", wrap)
    return float(jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact))


@pytest.mark.few(1)
def test_bfloat16(torch):
    """As the cells say, to their last digit."""
    theirs, ours = cells("test_bfloat16")
    numbers = lambda cell: [float(x) / 100 for x in re.findall(r"([\d.]+) %", cell)]
    assert numbers(theirs) == pytest.approx(off_by(optax), rel=0.1)
    found = [*off_by(stepax), *off_by(stepax, widen=True)]
    assert numbers(ours) == pytest.approx(found, rel=0.1)
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), P)
    cures = " ".join(x.cure for x in stepax.diagnose(stepax.adam(1e-3), half))
    assert "with_state_dtypes" in cures and '"nu": "float32"' in cures
    assert torch.autocast and torch.amp.GradScaler


def test_patterns():
    spec: Any = {"b": False, "**": True}
    moved = lambda tx: steps(tx, [jax.tree.map(jnp.zeros_like, P)])
    ours = moved(stepax.adamw(0.1, weight_decay=0.5, mask=spec))
    assert (ours["b"] == 1.0).all() and (ours["w"] < 1.0).all()
    with pytest.raises(Exception):  # noqa: B017 -- Optax takes it for a tree
        moved(optax.adamw(0.1, weight_decay=0.5, mask=spec))
    tree = moved(optax.adamw(0.1, weight_decay=0.5, mask={"b": False, "w": True}))
    np.testing.assert_allclose(ours["w"], tree["w"], rtol=1e-6)


def test_layers():
    """The second layer has parameters and gradients of another size than the first."""
    p = {"layers": jnp.stack([jnp.ones((3, 2)), 10 * jnp.ones((3, 2))])}
    g = {"layers": jnp.stack([jnp.ones((3, 2)), 2 * jnp.ones((3, 2))])}
    one = lambda o: o.chain(o.scale_by_trust_ratio(), o.scale(-1.0))
    each = lambda tx: [jnp.linalg.norm(u) for u in tx.update(g, tx.init(p), p)[0][KEY]]
    KEY = "layers"
    first, second = each(one(optax))
    assert second == pytest.approx(2 * first)  # one ratio for both
    first, second = each(stepax.stacked(one(stepax), {"layers": 0}))
    assert second == pytest.approx(10 * first)  # its norm is that of its parameters


def test_authors_code():
    runs, error = measured.replayed()
    assert cells("test_authors_code")[1].startswith(f"[{runs} runs]")
    assert f"{error:.0e}" in cells("test_authors_code")[1]
    listed = (ROOT / "tests/optimizers/test_references.py").read_text()
    assert "def test_" in listed  # which runs them


@pytest.mark.slow
def test_muon_on_a_mesh():
    """Counts here; times are those of `docs/evidence`, as `test_figures.py` checks."""
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((8,), ("data",), axis_types=auto)
    spec = jax.NamedSharding(mesh, jax.P("data"))
    matrix = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=spec)
    p = {str(i): matrix for i in range(16)}
    counts = lambda tx: {x.kind: x.count for x in distributed.audit(tx, p).collectives}
    theirs, ours = counts(optax.contrib.muon(1e-2)), counts(stepax.contrib.muon(1e-2))
    assert theirs["all-gather"] == 240 and "240 all-gather" in README
    assert ours == {"all-to-all": 2} and "2 all-to-all" in README


@pytest.mark.slow
def test_minimizers():
    """All 109 are `make bench-minimize`'s; here is one, in Optax's loop and in ours."""
    f = lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
    start, tx = jnp.array([-1.2, 1.0]), optax.lbfgs()
    both = optax.value_and_grad_from_state(f)

    def step(carry, _):
        x, state = carry
        value, g = both(x, state=state)
        u, state = tx.update(g, state, x, value=value, grad=g, value_fn=f)
        return (optax.apply_updates(x, u), state), value

    (theirs, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=60)
    ours = stepax.minimize(f, start)
    assert ours.success and f(ours.params) < 1e-6 and f(theirs) < 1e-6
    numbers = [
        measured.solved(x).partition(" ")[0] for x in ("optax", "stepax", "scipy")
    ]
    assert re.findall(r"\d+", "|".join(re.sub(r"\(docs\S*\)", "", x) for x in (
        cells("test_minimizers")
    ))) == numbers  # fmt: skip


# --- Versions ---------------------------------------------------------------------


def test_versions():
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    tried = jobs["versions-of-jax"]["strategy"]["matrix"]["include"]
    shown = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| `test_versions` \|", README, re.M)
    assert shown == [(x["jax"], x["python"]) for x in tried]


# --- What it has ------------------------------------------------------------------


def test_groups(torch):
    labels = {"w": "fast", "b": "slow"}
    groups = lambda o: o.partition({"fast": o.sgd(0.1), "slow": o.sgd(0.01)}, labels)
    by_path = stepax.sgd({"w": 0.1, "**": 0.01})
    wanted = steps(groups(optax), [G])
    for tx in groups(stepax), by_path:
        jax.tree.map(np.testing.assert_allclose, steps(tx, [G]), wanted)
    w, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    made = torch.optim.SGD([{"params": [w], "lr": 0.1}, {"params": [b]}], lr=0.01)
    assert [x["lr"] for x in made.param_groups] == [0.1, 0.01]


def test_low_bits(torch):
    p, tx = {"w": jnp.ones((64, 128))}, stepax.adam(0.1)
    size = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree))
    full, low = (size(stepax.low_bit_states(tx, n).init(p)) for n in (32, 8))
    assert low < 0.3 * full
    for state in (f(0.1).init(p) for f in (optax.adam, optax.sgd, optax.lion)):
        assert not any(x.dtype in (jnp.int8, jnp.uint8) for x in jax.tree.leaves(state))
    assert not [x for x in dir(optax) + dir(optax.contrib) if "bit" in x.split("_")]
    assert not [x for x in dir(torch.optim) if "bit" in x.lower()]


def test_averages(torch):
    slow: Any = optax.incremental_update(P, jax.tree.map(jnp.zeros_like, P), 0.25)
    assert (slow["w"] == 0.25).all()
    assert torch.optim.swa_utils.AveragedModel(torch.nn.Linear(2, 2)).module
    tx = stepax.averages(stepax.sgd(0.1), {"fast": 0.5, "slow": 0.9})
    updates, state = tx.update(G, tx.init(P), P)
    p = stepax.apply_updates(P, updates)
    swapped, average = stepax.swap_averages(state, p, "slow")
    _, back = stepax.swap_averages(swapped, average)
    assert (back["w"] == p["w"]).all()


def test_ranges(torch):
    optax.adam(1e-3, b2=1.5)
    with pytest.raises(ValueError, match=r"`b2`.*\[0, 1\]"):
        stepax.adam(1e-3, b2=1.5)
    with pytest.raises(ValueError, match="beta"):
        torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], betas=(0.9, 1.5))


def test_silent_mistakes():
    """A clip after Adam clips steps, and not gradients."""
    for o in optax, stepax:
        steps(o.chain(o.adam(1e-3), o.clip_by_global_norm(1.0)), [G])
    tx = stepax.chain(stepax.adam(1e-3), stepax.clip_by_global_norm(1.0))
    assert [x.code for x in stepax.diagnose(tx, P)] and not hasattr(optax, "diagnose")
    theirs = optax.chain(optax.adam(1e-3), optax.clip_by_global_norm(1.0))
    assert [x.code for x in stepax.diagnose(theirs, P)]


def test_states_by_name(torch):
    state = optax.chain(optax.clip(1.0), optax.adam(1e-3)).init(P)
    assert set(optax.tree.get(state, "mu")) == {"w", "b"}  # the field, and no path
    assert optax.tree.get(state, "mu/w", default=None) is None
    assert stepax.tree.get(state, "mu/w").shape == (4, 3)
    p = torch.nn.Parameter(torch.ones(2))
    made = torch.optim.Adam([p])
    p.sum().backward()
    made.step()
    assert set(made.state_dict()["state"]) == {0}


def test_on_a_mesh(torch):
    mesh = jax.make_mesh((8,), ("data",))
    w = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, jax.P("data")))
    whole = jax.device_put(jnp.ones((64, 64)), jax.NamedSharding(mesh, jax.P()))
    mu = lambda tx, p: stepax.tree.get(tx.init(p), "mu")
    assert mu(optax.adam(0.1), w).sharding.spec == w.sharding.spec
    assert mu(optax.adam(0.1), whole).sharding.is_fully_replicated
    divided = mu(distributed.zero(stepax.adam(0.1), mesh), whole)
    assert not divided.sharding.is_fully_replicated
    home = Path(torch.__file__).parent / "distributed"  # to import them warns
    assert (home / "optim/zero_redundancy_optimizer.py").is_file()
    assert (home / "fsdp").is_dir()


def test_until_convergence(torch):
    found = stepax.minimize(lambda x: jnp.sum((x - 3) ** 2), jnp.zeros(2))
    assert found.success and jnp.allclose(found.params, 3.0, atol=1e-4)
    assert not hasattr(optax, "minimize") and not hasattr(torch.optim, "minimize")


@pytest.mark.slow
def test_equations(torch):
    solve = stepax.solve
    zeros, eye = jnp.zeros(2), jnp.eye(2)
    assert jnp.allclose(solve.least_squares(lambda x: x - 1, zeros).params, 1.0)
    assert jnp.allclose(solve.root(lambda x: x - 1, zeros).params, 1.0)
    assert jnp.allclose(solve.fixed_point(lambda x: x / 2 + 1, zeros).params, 2.0)
    assert jnp.allclose(solve.quadratic_program(eye, -jnp.ones(2)).params, 1.0)
    f = lambda x: jnp.sum((x - 1) ** 2)
    assert (stepax.minimize(f, zeros, prox=solve.prox.l1(9.0)).params == 0).all()
    names = "least_squares", "root", "fixed_point", "quadratic_program", "prox"
    assert not [x for x in names if hasattr(optax, x) or hasattr(torch.optim, x)]


def test_writing_one(torch):
    """Sign descent, as each library wants it written."""

    def update(updates, state, params=None):
        return jax.tree.map(lambda g: -0.1 * jnp.sign(g), updates), state

    theirs = optax.GradientTransformation(lambda params: optax.EmptyState(), update)

    @rules.rule()
    def descent(learning_rate):
        return rules.Rule(lambda g, p, ctx: (-learning_rate * jnp.sign(g),))

    class Descent(torch.optim.Optimizer):
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.add_(p.grad.sign(), alpha=-0.1)

    p = torch.nn.Parameter(torch.ones(2))
    p.sum().backward()
    Descent([p], {}).step()
    for tx in theirs, descent(0.1):
        np.testing.assert_allclose(steps(tx, [G])["w"], 0.9, rtol=1e-6)
    np.testing.assert_allclose(p.detach().numpy(), 0.9, rtol=1e-6)

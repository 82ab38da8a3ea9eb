"""Examples in docstrings run, and each name that promises to stay has one."""

import doctest
import inspect
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from pages import ROOT

import stepax
from website.examples import example, is_needed
from website.names import homes
from website.subjects import RECOMMENDED
from website.tiers import stable, tier


NAMES = {home.path: home.value for home in homes().values()}
IN_DOCSTRINGS = {
    path: doc
    for path, value in NAMES.items()
    if callable(value) and ">>> " in (doc := inspect.getdoc(value) or "")
}


def promised(path: str) -> bool:
    """Whether the page on stability names it, alone or with its module."""
    whole = path.rpartition(".")[0] in ("stepax.rules", "stepax.tree")
    return path in LISTED or whole and tier(homes()[path]) == "stable"


LISTED = {homes()[path].path for path in stable() if path in homes()}
STAY = [path for path in NAMES if promised(path) and callable(NAMES[path])]


def test_all_names_that_stay_and_the_recommended_optimizers_have_an_example():
    assert len(RECOMMENDED) == 12 and len(STAY) >= 45
    recommended = [path for path in NAMES if path.rpartition(".")[2] in RECOMMENDED]
    assert len(recommended) == 12
    assert [x for x in STAY + recommended if x not in IN_DOCSTRINGS] == []


@pytest.mark.parametrize("path", IN_DOCSTRINGS)
def test_an_example_runs_and_shows_what_it_prints(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(path, IN_DOCSTRINGS[path])


def run(path: str, doc: str) -> None:
    text = doc[doc.index(">>> ") :]
    assert len(text.splitlines()) <= 4, "an example is short"
    assert re.search(rf"\b{path.rpartition('.')[2]}\b", text), "it uses the name"
    known = {"stepax": stepax, "jax": jax, "jnp": jnp}
    params = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
    tx = stepax.adam(0.1)
    known |= {"params": params, "gradients": params, "tx": tx, "state": tx.init(params)}
    test = doctest.DocTestParser().get_doctest(text, known, path, None, None)
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=said.append, clear_globs=False)
    assert not runner.failures, "".join(said)
    assert runner.tries
    made = test.globs["tx"]
    if made is not tx and ".stacked(" not in text:  # whose patterns need layers
        made.init(params)


PAGES = {home.path: example(home) for home in homes().values() if is_needed(home)}
# What they need beside the names of `run`.
APART = {
    "stepax.checkpoint.from_torch": "tests/checkpoint/test_checkpoint_torch.py",
    "stepax.interop.optax.install": "tests/interop/test_interop.py",
    "stepax.interop.optax.main": "tests/interop/test_interop.py",
    "stepax.interop.optax.uninstall": "tests/interop/test_interop.py",
    "stepax.testing.check": "tests/engine/test_rules.py",  # takes long
    "stepax.transfer.power_law": "tests/sweep/test_fit.py",
}


def test_each_function_without_an_example_has_one_on_its_page():
    functions = [x for x in homes().values() if inspect.isroutine(x.value)]
    without = {x.path for x in functions} - IN_DOCSTRINGS.keys()
    assert len(PAGES) > 350 and without <= {k for k, call in PAGES.items() if call}


@pytest.mark.filterwarnings("ignore:.* is deprecated since Optax:DeprecationWarning")
@pytest.mark.parametrize("path", PAGES)
def test_an_example_of_a_page_runs(path, tmp_path, monkeypatch):
    call = PAGES[path]
    assert path in call and len(call) < 100
    if path in APART:
        name = path.rpartition(".")[2]
        assert name in (ROOT / APART[path]).read_text()
        return
    monkeypatch.chdir(tmp_path)
    params = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
    tx = stepax.adam(0.1)
    mesh = jax.make_mesh((1,), ("data",))
    if path.endswith(".average"):
        for n in 10, 20:
            stepax.checkpoint.save("run", n, params, tx.init(params))
    known = {
        "stepax": stepax, "jax": jax, "jnp": jnp,
        "params": params, "gradients": params, "base_params": params,
        "tx": tx, "state": tx.init(params), "optax_state": optax.adam(0.1).init(params),
        "saved": {"params": params, "opt_state": optax.adam(0.1).init(params)},
        "x": jnp.ones(2), "t": jnp.arange(3.0), "f": lambda x: jnp.sum(x**2),
        "loss": lambda x, key: jnp.sum(x**2), "init": lambda key: jnp.ones(2),
        "changes": stepax.checkpoint.delta(params, params),
        "sharded": jax.device_put(params, jax.NamedSharding(mesh, jax.P())),
    }  # fmt: skip
    exec(call, known | arrays())


def arrays() -> dict:
    """Variables of the examples, by the names of arguments."""
    x, row, costs = (
        jnp.ones(2),
        jnp.array([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]]),
        jnp.eye(2),
    )
    classes, params = jnp.arange(2), {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
    labels = jax.nn.one_hot(classes, 3)
    ema = stepax.experimental.aggregating
    tracked = ema.track_per_element_mean_and_variance_with_ema()
    return {
        "updates": params, "moments": params, "average": params, "target": params,
        "count": jnp.zeros([], jnp.int32), "matrix": jnp.eye(2), "costs": costs,
        "b": x, "predictions": row, "probabilities": row, "targets": labels,
        "log_predictions": jnp.log(row), "log_targets": jnp.log(row), "logits": row,
        "labels": labels, "scores": row, "classes": classes, "embeddings": row,
        "anchors": row, "positives": row, "negatives": 1 - row,
        "batch": jnp.ones((4, 2)), "padded": jnp.zeros((1, 4)),
        "letters_padded": jnp.zeros((1, 2)),
        "frames": jnp.zeros((1, 4, 3)), "letters": jnp.ones((1, 2), jnp.int32),
        "warm_up": stepax.linear_schedule(0.0, 1e-3, 100),
        "decay": stepax.cosine_decay_schedule(1e-3, 1000),
        "loss_of": lambda p, *batch: jnp.sum(p["b"] ** 2),
        "ema_state": tracked.init(params),
        "labels_of": {"w": "a", "b": "b"}, "mean": ema.average_per_element_updates(),
        "per_example": jax.tree.map(lambda p: jnp.stack([p, p]), params),
        "schedule_free_state": stepax.contrib.schedule_free_adamw(1e-3).init(params),
        "cycle": {"init_value": 0.0, "peak_value": 1e-3, "warmup_steps": 10,
                  "decay_steps": 100, "end_value": 0.0},
    }  # fmt: skip

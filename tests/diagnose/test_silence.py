"""Where nothing is wrong, `diagnose` is silent."""

from importlib import import_module
from runpy import run_path
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnose_recorded import recorded
from fuzz.programs import programs
from hypothesis import HealthCheck, Phase, given, seed, settings
from models import MODELS, optimizer
from pages import (
    NEEDS as PAGE_NEEDS,
    ROOT,
    WITHOUT,
    as_readers_have_it,
    pages,
    run_page,
)

import stepax
import stepax.contrib
from examples.demo import network, training


OPTIMIZERS = [case.values[0] for case in cases.rows(kind="optimizer")]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_optimizers_of_the_registry_are_right(name):
    params, loud = MODELS[name](), []
    shapes = jax.eval_shape(lambda: params) if name != "Equinox" else params
    for row in OPTIMIZERS:
        found = stepax.diagnose(optimizer(row, name), shapes, steps=1000)
        if found.alarms or "check-failed" in found.codes:
            loud.append(f"{row.name}: {found}")
    assert not loud, "\n".join(loud)


def _step_of_bert(rate: float) -> stepax.GradientTransformation:
    """What the Flax examples `lm1b`, `nlp_seq` and `wmt` train with."""
    warmup = stepax.linear_schedule(0.0, rate, 100)
    root = lambda t: rate * (100 / (t + 100)) ** 0.5
    schedule = stepax.join_schedules([warmup, root], [100])
    return stepax.adamw(schedule, b2=0.98, eps=1e-9, weight_decay=0.1)


_PLATEAU = stepax.schedules.warmup_stable_decay_schedule(1e-2, 10, 1000, 100)
_DECAY = stepax.schedules.warmup_stable_decay_schedule(1e-2, 10, 40, 20, shape="sqrt")
_LINEAR = stepax.linear_schedule(3e-3, 0, 9)
_TWICE = lambda t: 2**0.5 * _DECAY(50 + 2 * t)

# Those that `docs/train_on.md` goes on with, whose states it restores.
GONE_ON = [
    (_PLATEAU, 1100),
    (_DECAY, 71),
    (stepax.join_schedules([_PLATEAU, _LINEAR], [50]), 60),
    (stepax.join_schedules([_DECAY, _TWICE], [50]), 61),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("schedule", "steps"), GONE_ON)
def test_runs_that_go_on_are_right(schedule, steps):
    shapes = {"w": jax.ShapeDtypeStruct((3,), "float32")}
    found = stepax.diagnose(stepax.adamw(schedule), shapes, steps=steps)
    assert found.alarms == ()


# What the examples of other libraries train with.  Flax's `sst2`, which adds its decay
# to finished steps, is in the museum.
CHAINS = {
    "flax: lm1b, nlp_seq, wmt": _step_of_bert(0.0625),
    "flax: gemma": stepax.adamw(
        stepax.warmup_cosine_decay_schedule(0.0, 2e-3, 100, 1000, 2e-4), eps=1e-9
    ),
    "flax: imagenet": stepax.sgd(
        stepax.warmup_cosine_decay_schedule(0.0, 0.1, 50, 1000),
        momentum=0.9,
        nesterov=True,
    ),
    "flax: mnist": stepax.sgd(0.1, 0.9),
    "flax: mnist in NNX": stepax.adamw(0.005, 0.9),
    "flax: ppo": stepax.adam(stepax.linear_schedule(2.5e-4, 0.0, 1000)),
    "flax: seq2seq, vae; equinox: bert, train_mlp": stepax.adam(3e-3),
    "equinox: alexnet, frozen_layer": stepax.sgd(1e-2),
    "equinox: deep_convolutional_gan": stepax.adam(2e-4, b1=0.5, b2=0.999),
    "equinox: score_based_diffusion": stepax.adabelief(3e-4),
    "equinox: vision_transformer": stepax.adamw(
        3e-4, b1=0.9, b2=0.999, weight_decay=1e-4
    ),
    "brax: apg": stepax.chain(
        stepax.clip(1.0),
        stepax.adam(stepax.exponential_decay(1e-4, 1, 0.997), b1=0.7, b2=0.95),
    ),
    "brax: es, bc, sac": stepax.adam(3e-4),
    "brax: ppo": stepax.chain(stepax.clip_by_global_norm(1.0), stepax.adam(3e-4)),
    "brax: ppo, adaptive": stepax.chain(
        stepax.clip_by_global_norm(1.0),
        stepax.inject_hyperparams(stepax.adam)(learning_rate=3e-4),
    ),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("chain", CHAINS)
def test_chains_in_examples_of_other_libraries_are_right(chain):
    for model in "MLP", "scanned":
        shapes = jax.eval_shape(MODELS[model])
        assert stepax.diagnose(CHAINS[chain], shapes, steps=1000).alarms == ()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", training.CHOICES)
def test_the_optimizers_of_the_demo_are_right(name):
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0)))
    tx = training.optimizer(name, training.CHOICES[name].learning_rate, 100)
    assert stepax.diagnose(tx, shapes, steps=100).alarms == ()


FOLDER = ROOT / "examples"
# They start processes, or diagnose themselves.
NOT_RUN = ("digits_task", "distributed_digits", "heartbeat", "launch", "shared")
EXAMPLES = [
    str(x.relative_to(FOLDER))
    for x in sorted([*FOLDER.glob("*.py"), *FOLDER.glob("gallery/[a-z]*.py")])
    if x.stem not in NOT_RUN
]
NEEDS = {"brax": "brax.envs", "resumed": "orbax.checkpoint", "vision": "sklearn"}


@pytest.mark.filterwarnings("ignore")  # Brax warns of itself
@pytest.mark.slow("test_examples.py and test_gallery.py run them")
@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_right(example, tmp_path, monkeypatch):
    for name, needed in NEEDS.items():
        if name in example:
            pytest.importorskip(needed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [example, str(tmp_path / "log")])
    with recorded() as made, as_readers_have_it():
        if example.startswith("gallery"):
            import_module(f"examples.gallery.{example[8:-3]}").main(True)
        else:
            run_path(str(FOLDER / example), run_name="__main__")
    meant = MEANT.get(example, ())
    assert _loud(made, meant) == []


def _bits(tree: Any) -> list[bytes]:
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    plain = lambda x: jax.random.key_data(x) if is_key(x) else x
    return [np.asarray(plain(x)).tobytes() for x in jax.tree.leaves(tree)]


def _arrays(dtype: str, is_split: bool) -> list[Any]:
    """Parameters and gradients, on a mesh if split."""
    draw = np.random.RandomState(0)
    shapes = {"kernel": (16, 8), "bias": (16,)}
    new = lambda shape: jnp.asarray(draw.randn(*shape), dtype)
    trees = [{k: new(shape) for k, shape in shapes.items()} for _ in range(2)]
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return jax.device_put(trees, split) if is_split else trees


# In 16 bits these may be true.
IN_HALF = {"narrow-mean", "update-rounds-away"}
# Their `update` may need the loss, which `diagnose` does not have.
NEED_LOSS = {"value", "value_fn", "obj_fn", "grad"}


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["float32", "float16", "mesh"])
@pytest.mark.parametrize("row", cases.rows(kind="optimizer"))
def test_a_trial_step_finds_nothing_and_changes_nothing(row, where):
    params, gradients = _arrays(
        "float16" if where == "float16" else "float32", where == "mesh"
    )
    tx = optimizer(row)
    given = params, gradients, tx.init(params)
    bits, places = _bits(given), [x.sharding for x in jax.tree.leaves(given)]
    found = stepax.diagnose(tx, params, gradients=gradients, state=given[2])
    assert _bits(given) == bits
    assert [x.sharding for x in jax.tree.leaves(given)] == places
    assert {x.code for x in found.alarms} <= (IN_HALF if where == "float16" else set())
    failed = [x for x in found if x.code == "check-failed"]
    needs = NEED_LOSS & set(stepax.describe(tx, params).whole.reads or ())
    assert not failed or needs, failed


# To take derivatives, Optimistix takes the functions of a transformation apart, and
# does not know those that record.
APART = "docs/with_optimistix.md"


@pytest.mark.few(1)
@pytest.mark.parametrize("page", [x for x in pages() if x not in (*WITHOUT, APART)])
def test_programs_of_pages_are_right(page, tmp_path, monkeypatch):
    if page in PAGE_NEEDS:
        pytest.importorskip(PAGE_NEEDS[page])
    monkeypatch.chdir(tmp_path)
    meant = MEANT.get(page, ())
    with recorded() as made:
        run_page(ROOT / page)
    assert _loud(made, meant) == []


# What pages and examples show on purpose.
MEANT: dict[str, tuple[str, ...]] = {
    "docs/clipping.md": ("rate-never",),  # a clip alone
    "docs/faq.md": ("rate-never",),  # errors, and what leads to them
    "docs/from_optax.md": ("narrow-mean", "integers"),  # what differs from Optax
    "docs/matrices.md": ("rate-never",),  # directions alone
    "docs/precision.md": ("narrow-mean",),  # it warns of them
    "docs/own_wrapper.md": ("rate-never",),  # a direction alone
    "docs/rules.md": ("rate-never",),  # that `masked` passes gradients on
    "inject_equinox.py": ("narrow-mean",),  # it shows dtypes of hyperparameters
}


def _loud(made: list, meant: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """The alarms of recorded transformations, without those that are meant."""
    found = [(tx, x) for tx, params in made for x in stepax.diagnose(tx, params).alarms]
    return [(repr(tx), x.code, x.message) for tx, x in found if x.code not in meant]


@pytest.mark.slow("test_optimizers_of_the_registry_are_right")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of deprecated names
def test_random_nests_raise_nothing_and_all_rules_run():
    wrong = []

    @seed(0)
    @settings(
        max_examples=20,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        phases=[Phase.generate],
    )
    @given(programs())
    def check(program):
        with jax.enable_x64(True):  # some of the arrays have 64 bits
            tx, params = program.make(stepax), program.tree(stepax)
            try:
                tx.init(params)
            except (TypeError, ValueError):
                return
            found = stepax.diagnose(tx, params, steps=100)
        if "check-failed" in found.codes:
            wrong.append((program.tx, found))

    check()
    assert not wrong

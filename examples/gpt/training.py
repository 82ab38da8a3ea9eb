"""Train a GPT of either library, sharded over all devices, with checkpoints."""

import functools as ft
import importlib
import json
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import stepax
from stepax.checkpoint import latest_step, restore, save
from stepax.contrib import muon
from stepax.distributed import zero


LIBRARIES = {"nnx": "in_nnx", "equinox": "in_equinox"}
STEPS, BATCH = 1200, 8  # by default
CHUNK = 20  # steps of one call, after which is reported
WINDOWS = 64  # of the held-out text, on which the model is tested
HISTORY = "history.json"


class Size(NamedTuple):
    """Of the model.

    alphabet: how many characters there are.
    context: how many of them the model sees.
    """

    alphabet: int
    context: int = 64
    width: int = 64
    layers: int = 6
    heads: int = 4


class Plan(NamedTuple):
    """What decides the numbers of a run, and must be the same if it is resumed."""

    library: str
    optimizer: str
    learning_rate: float
    steps: int
    batch: int
    seed: int
    size: Size
    text: str  # its digest


class Report(NamedTuple):
    """The run so far: step, loss of each step, held-out loss by step, parameters."""

    step: int
    losses: np.ndarray
    tested: dict[int, float]
    params: object


def model(library):
    """The module with the model: `create` and `MATRICES`."""
    return importlib.import_module(f".{LIBRARIES[library]}", __package__)


def create(library, size, key):
    """Parameters in bfloat16, and the function that makes logits of them."""
    params, logits = model(library).create(size, key)
    return jax.tree.map(lambda p: p.astype(jnp.bfloat16), params), logits


def schedule(peak, steps):
    """Up in the first twentieth of the steps, and down in the last three tenths."""
    return stepax.schedules.warmup_stable_decay_schedule(
        peak, 0.05, None, 0.3, total_steps=steps
    )


def optimizer(name, learning_rate, steps, matrices):
    """`adamw`, or `muon` for the matrices and AdamW for all else.

    Both see float32 masters, and only the matrices decay.
    """
    rate = schedule(learning_rate, steps)
    if name == "adamw":
        decay = dict.fromkeys(matrices, 0.1) | {"**": 0.0}
        tx = stepax.adamw(rate, b2=0.95, weight_decay=decay)
    else:
        others = stepax.adamw(rate, b2=0.95, weight_decay=0.0)
        # Updates of the size of Adam's, so that one rate serves both.
        own = muon(rate, weight_decay=0.1, shape_factor="rms")
        labels = dict.fromkeys(matrices, "muon") | {"**": "adamw"}
        tx = stepax.partition({"muon": own, "adamw": others}, labels)
    return stepax.master_weights(stepax.chain(stepax.clip_by_global_norm(1.0), tx))


def computed(params):
    """The parameters in the dtype of products: CPUs have none in bfloat16."""
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    return jax.tree.map(lambda p: p.astype(dtype), params)


def loss(logits, params, windows):
    """The mean cross-entropy of each next character, in nats.

    windows: (batch, context + 1) indices.
    """
    found = logits(computed(params), windows[:, :-1]).astype(jnp.float32)
    of_each = stepax.losses.softmax_cross_entropy_with_integer_labels
    return jnp.mean(of_each(found, windows[:, 1:]))


def draw(text, key, batch, context):
    """A mini-batch of windows (batch, context + 1), at random places of the text."""
    starts = jax.random.randint(key, (batch, 1), 0, len(text) - context)
    return text[starts + jnp.arange(context + 1)[None]]


class Program(NamedTuple):
    """A run, compiled on first use.

    params: as they begin; replicated.
    tx: the transformation, whose state is divided among the devices.
    take_steps: from (params, state) and the numbers of steps to the next (params,
        state), and the loss of each step.
    test: from parameters to the loss on held-out text.
    """

    params: object
    tx: stepax.GradientTransformation
    take_steps: Callable
    test: Callable


def mesh_of(devices):
    """All batches are divided along its only axis."""
    return jax.make_mesh((devices,), ("data",), (AxisType.Auto,))


def program(plan, text, mesh):
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    context = plan.size.context
    init_key, data_key = jax.random.split(jax.random.key(plan.seed))
    params, logits = create(plan.library, plan.size, init_key)
    matrices = model(plan.library).MATRICES
    tx = optimizer(plan.optimizer, plan.learning_rate, plan.steps, matrices)
    stepax.diagnose(tx, params, steps=plan.steps).require()
    tx = zero(tx, mesh)
    loss_of = ft.partial(loss, logits)

    # Key and text are arguments, so that all seeds have the same program.
    @ft.partial(jax.jit, donate_argnums=0)
    def scan(carry, steps, key, characters):
        def step(carry, i):
            params, state = carry
            key_of_step = jax.random.fold_in(key, i)
            windows = draw(characters, key_of_step, plan.batch, context)
            windows = jax.lax.with_sharding_constraint(windows, split)
            value, gradient = jax.value_and_grad(loss_of)(params, windows)
            updates, state = tx.update(gradient, state, params)
            return (stepax.apply_updates(params, updates), state), value

        return jax.lax.scan(step, carry, steps)

    given = data_key, jax.device_put(text.train, whole)
    take_steps = lambda carry, steps: scan(carry, steps, *given)
    test = jax.device_put(windows_of(text.test, context), whole)
    tested = jax.jit(loss_of)
    params = jax.device_put(params, whole)
    return Program(params, tx, take_steps, lambda p: float(tested(p, test)))


def windows_of(test, context):
    """Windows (WINDOWS, context + 1), evenly over the held-out text."""
    starts = np.linspace(0, len(test) - context - 1, WINDOWS).astype(int)
    return test[starts[:, None] + np.arange(context + 1)]


def train(plan, text, folder, every=200):
    """Train from where `folder` ends, and report after each chunk of steps.

    A checkpoint is saved each `every` steps, and at the end.  What a step does depends
    on its number only, so that a resumed run ends with the same bits.
    """
    params, tx, take_steps, test = program(plan, text, mesh_of(jax.device_count()))
    step, params, state, losses, tested = begin(folder, plan, tx, params)
    yield Report(step, losses, tested, params)
    while step < plan.steps:
        last = min(step + CHUNK, plan.steps, every * (step // every + 1))
        (params, state), values = take_steps((params, state), jnp.arange(step, last))
        step, losses = last, np.append(losses, np.asarray(values))
        if step % every == 0 or step == plan.steps:
            tested[step] = test(params)
            remember(folder, losses, tested)  # before the step counts as saved
            save(folder, step, params, state, keep=2)
        yield Report(step, losses, tested, params)


def begin(folder, plan, tx, params):
    """Step, parameters, state, losses and tests of the checkpoint, or of a new run."""
    file, told = folder / "plan.json", json.dumps(plan)
    if latest_step(folder) is None:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(told)
        return 0, params, jax.jit(tx.init)(params), np.zeros(0, np.float32), {}
    if file.read_text() != told:
        raise SystemExit(
            f"`{folder}` holds a run of\n  {file.read_text()}\nand this is one of\n"
            f"  {told}\nresume it with the arguments that it was started with, or "
            "start another with `--folder`"
        )
    found = restore(folder, tx, params)
    step = found.step
    losses, tested = json.loads((folder / HISTORY).read_text())
    tested = {int(n): value for n, value in tested.items() if int(n) <= step}
    return step, found.params, found.state, np.float32(losses[:step]), tested


def remember(folder, losses, tested):
    """Write the losses to a file, in one stroke."""
    new = folder / f"{HISTORY}.new"
    new.write_text(json.dumps([np.float64(losses).tolist(), tested]))
    new.replace(folder / HISTORY)

"""AlgoPerf: its reference submissions, at points of their search spaces.

Each trains the small model by its own `update_params`.
"""

import importlib
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from ..project import STEPS, Project


PROJECT = Project(
    repository="mlcommons/algorithmic-efficiency",
    commit="2c90454fc05d5bdf3598b0c7651e611f132a7060",
    packages="absl-py chex flax ml_collections tensorflow-cpu",
    patched=("`jax.pmap` replicates what four archived submissions name no axis for",),
    stubs=("torch", "algoperf._version"),
)
TARGETS = "algorithms/target_setting_algorithms"
# The algorithms of target runs, by whether their spaces have an end of the decay.
ALGORITHMS = {True: ("nesterov", "momentum"), False: ("nadamw", "adamw")}


def patch():
    import jax

    mapped = jax.pmap

    def pmap(function, *, in_axes=0, **settings):
        if isinstance(in_axes, tuple):
            named = function.__code__.co_argcount
            in_axes += (None,) * (named - len(in_axes))
        return mapped(function, in_axes=in_axes, **settings)

    jax.pmap = pmap


def optimizers():
    found = {}
    for file in sorted(Path("algorithms/archived_paper_baselines").glob("*/*.json")):
        name = file.parent.name
        module = f"{'.'.join(file.parent.parts)}.jax.submission"
        found[f"{name}, {file.stem}"] = partial(submission, module, file)
    for file in sorted(Path(TARGETS).rglob("*.json")):
        names = ALGORITHMS["end_factor" in json.loads(file.read_text())]
        for name in names:
            module = f"{TARGETS.replace('/', '.')}.jax_{name}"
            found[f"{name}, {file.parent.name}"] = partial(submission, module, file)
    for kind in ("external_tuning", "self_tuning"):
        module = f"algorithms.baselines.{kind}.jax_nadamw_full_budget"
        file = Path("algorithms/baselines/external_tuning/tuning_search_space.json")
        found[f"nadamw, {kind}"] = partial(submission, module, file)
    return found


def submission(module, file):
    from algoperf.halton import generate_search

    point = generate_search(json.loads(file.read_text()), 1)[0]
    return importlib.import_module(module), point


class Workload:
    """The small model, as a submission sees it."""

    step_hint = 100
    metrics_logger = None

    def __init__(self, params):
        import jax

        kind = lambda x: SimpleNamespace(shape_tuple=x.shape)
        self.param_shapes = jax.tree.map(kind, params)

    def model_fn(self, params, batch, state, *args, **settings):
        from ..child import loss

        return loss(params, batch["inputs"][0]), state

    def loss_fn(self, logits_batch, **settings):
        import jax.numpy as jnp

        return {"summed": logits_batch, "n_valid_examples": jnp.float32(1)}


def train(optimizer):
    import jax
    import jax.numpy as jnp
    from flax import jax_utils

    from ..child import small_model

    module, point = optimizer
    params, key = small_model(), jax.random.key(0)
    work = Workload(params)
    state = module.init_optimizer_state(work, params, {}, point, key)
    batch = {"inputs": jnp.zeros(1, int), "targets": jnp.zeros(1)}
    if hasattr(module, "pmapped_train_step"):
        params, batch = jax_utils.replicate((params, batch))
    for t in range(STEPS):
        batch["inputs"] = jnp.full_like(batch["inputs"], t)
        given = (work, params, None, {}, point, batch, None, state, [], t, key)
        state, params, _ = module.update_params(*given)
    return {"params": params, "state": jax.tree.leaves(state[0])}

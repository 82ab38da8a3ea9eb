"""EasyDeL: the optimizers and schedules of its training arguments."""

from functools import partial

from ..project import STEPS, Project


NAMES = ("adafactor", "adamw", "lion", "rmsprop", "muon", "mars", "quad", "skew")
KINDS = {
    "": {},
    ", cosine, warm-up": {"scheduler": "cosine", "warmup_steps": 5},
    ", linear, decay, clipping": {
        "scheduler": "linear",
        "learning_rate_end": 1e-4,
        "weight_decay": 0.1,
        "clip_grad": 1.0,
    },
}
MATRICES = "Newton-Schulz iterations amplify the rounding of each step"
ROUNDED = (
    "means and factors are bfloat16 by default: first updates differ in its last bit, "
    "which factors amplify; Quad's first six updates in float32 are the same bits"
)
REASONS = {"muon": MATRICES, "quad": ROUNDED, "skew": ROUNDED}
PROJECT = Project(
    repository="erfanzar/EasyDeL",
    commit="090a03b2e0b3606bd38e0e3fcfdc640cd7e6e246",
    packages="eformer==0.0.99.12 einops ejkernel fastapi==0.135.1 flax==0.12.3 gcsfs "
    "grain==0.2.15 msgspec partial-json-parser pillow ray[default]==2.54.0 "
    "sentencepiece torch transformers==5.5.0 uvicorn[standard] wandb zstandard",
    tests=(
        "tests/trainers/test_training_arguments_tx_template.py",
        "tests/trainers/test_resolve_total_steps.py",
        "tests/infra/test_base_state_load_optimizer.py",
    ),
    explained={f"{k}{kind}": x for k, x in REASONS.items() for kind in KINDS},
    patched=(
        "JAX starts before the import, which sets flags that a CPU refuses",
        "`jax.tree_map` is `jax.tree.map`",
    ),
)


def patch():
    import jax

    jax.devices()
    jax.tree_map = jax.tree.map


def optimizers():
    return {
        f"{name}{kind}": partial(build, 0, optimizer=name, **settings)
        for name in NAMES
        for kind, settings in KINDS.items()
    }


def schedules():
    return {
        f"schedule{kind}": partial(build, 1, **settings)
        for kind, settings in KINDS.items()
    }


def build(part, **settings):
    """The optimizer, or its schedule."""
    from easydel.trainers.training_configurations import TrainingArguments

    given = {"learning_rate": 1e-2, "total_batch_size": 1, "num_train_epochs": 1}
    made = TrainingArguments(model_name="small", **given, **settings)
    return made.get_optimizer_and_scheduler(STEPS if part == 0 else 100)[part]

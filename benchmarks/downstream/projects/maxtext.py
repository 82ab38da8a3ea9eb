"""MaxText: the optimizers and schedules of its base configuration and its models'."""

from functools import cache, partial
from pathlib import Path

from ..project import Project


PROJECT = Project(
    repository="AI-Hypercomputer/maxtext",
    commit="e591f30cbbf217ed67ef71263ec0538239f9c3b8",
    python="3.12",
    packages="chex filelock flax grain jaxtyping jinja2 ml_collections omegaconf "
    "orbax-checkpoint pandas psutil pydantic pytest-mock pytest-timeout pyyaml qwix "
    "scipy tensorflow-cpu tqdm",
    path="src",
    tests=(
        "src/maxtext/optimizers/muon_test.py",
        "tests/unit/optimizers_test.py",
        "tests/unit/muon_utils_test.py",
        "tests/unit/maxtext_utils_test.py",
        "-k",
        "not TestGetAbstract and not MuonDimensionTest",
    ),
    stubs=(
        "aqt",
        "drjax",
        "huggingface_hub",
        "pathwaysutils",
        "PIL",
        "sentencepiece",
        "sympy",
        "tiktoken",
        "tokamax",
        "tokenizers",
        "transformers",
    ),
    explained={
        "muon": "1.2e-5; five Newton-Schulz steps multiply roundings of small singular "
        "values by up to 3.4445^5 = 485"
    },
)

KINDS = {
    "adamw": "",
    "adamw, mask": "opt_type=adamw adamw_mask=['bias','scale']",
    "adamw, skipped spikes": "opt_type=adamw skip_step_on_spikes=true",
    "adamw, some": "opt_type=adamw trainable_parameters_mask=['dense']",
    "adam_pax": "opt_type=adam_pax",
    "sgd": "opt_type=sgd",
    "muon": "opt_type=muon muon_weight_decay=0.1",
}
RATES = {
    "cosine": "",
    "cosine, zero at the end": "learning_rate_schedule_steps=900",
    "wsd, linear": "lr_schedule_type=wsd",
    "wsd, cosine": "lr_schedule_type=wsd wsd_decay_style=cosine",
}


@cache
def config(options):
    from maxtext.configs import pyconfig

    given = ["run_name=test", "steps=1000", "skip_jax_distributed_system=true"]
    return pyconfig.initialize(
        ["", "src/maxtext/configs/base.yml", *given, *options.split()]
    )


def rate(options):
    from maxtext.utils.maxtext_utils import create_learning_rate_schedule

    return create_learning_rate_schedule(config(options))


def optimizer(options):
    from maxtext.optimizers.optimizers import get_optimizer

    return get_optimizer(config(options), rate(options), model())


def model():
    """Its Muon reads the dimensions of matrices from a module of Flax."""
    from flax import nnx

    from ..child import small_model

    class Layer(nnx.Module):
        def __init__(self, arrays):
            for name, x in arrays.items():
                setattr(self, name, nnx.Param(x))

    class Model(nnx.Module):
        def __init__(self, layers):
            for name, arrays in layers.items():
                setattr(self, name, Layer(arrays))

    return Model(small_model())


def train(made):
    from flax import nnx

    from .. import child

    return child.train(made, params=nnx.state(model(), nnx.Param))


def optimizers():
    names = sorted(x.stem for x in Path("src/maxtext/configs/models").glob("*.yml"))
    kept = {x: f"model_name={x}" for x in names if x.startswith("gpt3")}
    return {k: partial(optimizer, x) for k, x in (KINDS | kept).items()}


def schedules():
    return {k: partial(rate, x) for k, x in RATES.items()}

"""Tunix: the optimizers of the configurations that it ships."""

from functools import partial
from pathlib import Path

from ..project import Project


PROJECT = Project(
    repository="google/tunix",
    commit="c7d8950f12a9c55a976bf2e1a0d8b447d71c20b3",
    packages="flax omegaconf orbax-checkpoint jaxtyping pandas qwix tenacity tqdm",
    tests=("tests/cli/config_test.py", "tests/common/configs_test.py"),
    stubs=(
        "dotenv",
        "huggingface_hub",
        "metrax",
        "perfetto",
        "PIL",
        "safetensors",
        "sentencepiece",
    ),
)

# Beside the optimizer that all of them choose.
KINDS = ("adam", "adagrad", "lamb", "lion", "rmsprop", "sgd")


def optimizers():
    """Of each file, and of the first with other optimizers in its place."""
    found = dict(sections())
    name, given = next(iter(found.items()))
    given = {"learning_rate": given["learning_rate"]}
    found |= {f"{name}, {x}": {**given, "opt_type": x} for x in KINDS}
    return {k: partial(built, x) for k, x in found.items()}


def sections():
    """The sections of its files that describe an optimizer."""
    from omegaconf import OmegaConf

    files = [
        Path("tunix/cli/base_config.yaml"),
        *sorted(Path("examples").rglob("*.yaml")),
    ]
    for file in files:
        given = OmegaConf.to_container(OmegaConf.load(file))
        for path, section in walked(given):
            if "opt_type" in section:
                task = file.parents[2].name + "/" if len(file.parents) > 3 else ""
                yield f"{task}{file.stem}{path}", section


def walked(tree, path=""):
    if isinstance(tree, dict):
        yield path, tree
        for key, below in tree.items():
            yield from walked(below, f"{path}.{key}")


def built(section):
    from tunix.cli.config import HyperParameters

    made = HyperParameters.__new__(HyperParameters)
    made.config = {"optimizer": section}
    return made.create_optimizer("optimizer")

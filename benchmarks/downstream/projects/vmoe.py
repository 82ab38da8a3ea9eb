"""V-MoE: the optimizers of its published configurations."""

from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ..project import Project


PROJECT = Project(
    repository="google-research/vmoe",
    commit="942a78bc81d2e63199f0933733582ddae0715416",
    packages="absl-py cachetools chex clu flax ml_collections scipy tensorflow-cpu",
    tests=("vmoe/train/optimizer_test.py", "vmoe/train/schedule_test.py"),
)


def optimizers():
    from vmoe.train.optimizer import create_optimizer

    return {k: partial(create_optimizer, **x) for k, x in configurations().items()}


def configurations():
    """The arguments of the optimizer in each of its files."""
    found = {}
    for file in sorted(Path("vmoe/configs").rglob("*.py")):
        config = getattr(loaded(file), "get_config", dict)()
        if "optimizer" in config:
            given = config["optimizer"].to_dict()
            found[file.stem] = {"total_steps": 10_000, **given}
    return found


def loaded(file):
    spec = spec_from_file_location(file.stem, file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

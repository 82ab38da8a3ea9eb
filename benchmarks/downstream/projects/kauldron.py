"""Kauldron: the optimizers of its examples, and of its own transformations."""

import importlib
from functools import partial

from ..project import Project


PROJECT = Project(
    repository="google-research/kauldron",
    commit="c9b3ec86316cdfcfadd3c79f9bce074ea6333c04",
    packages="altair chex clu einops etils[edc,enp,epath,epy,etree] flax grain "
    "graphviz immutabledict jaxtyping lark mediapy ml_collections "
    "opencv-python-headless orbax-checkpoint pandas scikit-image scikit-learn "
    "tabulate tensorboard tensorflow-cpu tensorflow_datasets tqdm typeguard xmanager",
    tests=(
        "kauldron/optim/_freeze_test.py",
        "kauldron/optim/_masks_test.py",
        "kauldron/utils/config_util_test.py",
    ),
    stubs=("etils.g3_utils", "xmanager.resource_selector", "xmanager.xm_abc"),
)
EXAMPLES = (
    "configargs_demo",
    "contrib.nnx_mnist",
    "contrib.readout_mnist",
    "contrib.train_evaluator",
    "mnist_autoencoder",
    "mnist_autoencoder_sharded",
    "tiny_vit_advanced",
    "tiny_vit_imagenet",
    "vit_b_i1k",
)


OWN = ("partial_updates", "decay_to_init", "ema_params")


def optimizers():
    found = {x: partial(resolved, x, "optimizer") for x in EXAMPLES}
    return found | {x: partial(own, x) for x in OWN}


def schedules():
    names = [x for x in EXAMPLES if "vit" in x]
    return {f"{x}, schedule": partial(resolved, x, "schedules") for x in names}


def resolved(name, part):
    """The part of an example, with what it refers to."""
    from kauldron import konfig

    config = importlib.import_module(f"examples.{name}").get_config()
    found = konfig.resolve(config[part])
    return found["learning_rate"] if part == "schedules" else found


def own(name):
    """A chain with a transformation of its own."""
    import optax
    from kauldron.kd import optim

    clip, adam = optax.clip_by_global_norm(1.0), optax.scale_by_adam()
    rate = optax.scale_by_learning_rate(1e-2)
    if name == "partial_updates":
        return optim.partial_updates(optax.adamw(1e-2), optim.select("dense"))
    if name == "decay_to_init":
        decay = optim.decay_to_init(0.1, mask=optim.exclude(["bias", "scale"]))
        return optim.named_chain(clip=clip, adam=adam, decay=decay, rate=rate)
    average = optim.ema_params(decay=0.9)
    return optim.named_chain(clip=clip, adam=adam, rate=rate, average=average)

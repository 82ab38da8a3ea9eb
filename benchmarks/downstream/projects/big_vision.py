"""Big Vision: the optimizers of its published configurations."""

import importlib
from functools import partial
from pathlib import Path

from ..project import Project


# By their settings or their optimizer's defaults.
ROUNDED = (
    "bit_i1k",
    "bit_i21k",
    "proj/cappa/pretrain",
    "proj/clippo/train_clippo",
    "proj/distill/bigsweep_flowers_pet",
    "proj/distill/bigsweep_food_sun",
    "proj/distill/bit_i1k",
    "proj/flexivit/i1k_deit3_distill",
    "proj/flexivit/i21k_distill",
    "proj/flexivit/i21k_sup",
    "proj/givt/givt_coco_panoptic",
    "proj/givt/givt_nyu_depth",
    "proj/jet/imagenet64",
    "proj/uvim/train_coco_panoptic_pretrained",
    "proj/uvim/train_imagenet2012_colorization_pretrained",
    "proj/uvim/train_nyu_depth_pretrained",
    "proj/uvim/vqvae_coco_panoptic",
    "proj/uvim/vqvae_imagenet2012_colorization",
    "transfer",
    "vit_i1k",
    "vit_i21k",
    "vit_s16_i1k",
)
REASON = (
    "bfloat16 moments, computed in float32 and rounded once in a step; Optax's own "
    "steps in and out of `jit` differ by 0.007, too"
)
PROJECT = Project(
    repository="google-research/big_vision",
    commit="0127fb6b337ee2a27bf4e54dea79cff176527356",
    packages="absl-py chex clu einops flax ml_collections tensorflow-cpu",
    tests=("big_vision/optax_test.py",),
    explained=dict.fromkeys(ROUNDED, REASON),
)
ARGUMENTS = {"transfer": "model=vit-i21k-augreg-b/32,dataset=cifar10"}
VISION = ("embedding", "dense")


def optimizers():
    files = sorted(Path("big_vision/configs").rglob("*.py"))
    names = [x.with_suffix("").parts for x in files if "optax_name" in x.read_text()]
    paths = {"/".join(x[2:]): ".".join(x) for x in names}
    return {k: partial(build, x) for k, x in paths.items()}


def build(name):
    """The optimizer of a file, for a tree with the two halves that its masks name."""
    import optax
    from big_vision.optax import make

    from ..child import small_model

    arguments = [x for k, x in ARGUMENTS.items() if name.endswith(f".{k}")]
    config = importlib.import_module(name).get_config(*arguments)
    settings = {"total_steps": 100_000, "batch_size": 8, "data_size": 800}
    tx = make(config, halves(small_model()), sched_kw=settings)[0]
    init = lambda params: tx.init(halves(params))

    def update(updates, state, params):
        own, state = tx.update(halves(updates), state, halves(params))
        return own["img"] | own["llm"], state

    return optax.GradientTransformation(init, update)


def halves(tree):
    """The small model as an image and a language model."""
    image = {k: tree[k] for k in VISION}
    return {"img": image, "llm": {k: x for k, x in tree.items() if k not in VISION}}

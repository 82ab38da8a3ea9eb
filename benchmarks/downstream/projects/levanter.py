"""Levanter: the optimizers and schedules that it registers, over a model of Haliax."""

from functools import partial

from ..project import STEPS, Project


PROJECT = Project(
    repository="stanford-crfm/levanter",
    commit="9263f81e8b453241332c2c0b2d2001bfb2d2241c",
    packages="haliax>=1.4.dev404 equinox draccus jmp chex scipy tensorstore fsspec "
    "deepdiff tqdm_loggable tblib async_lru braceexpand pytimeparse humanfriendly tqdm "
    "requests dataclasses-json zstandard filelock lenses jinja2 matplotlib",
    path="src",
    tests=(
        "tests/test_optimizer_config.py",
        "tests/test_skip_step.py",
        "tests/test_sophia.py",
    ),
    stubs=(
        "datasets",
        "git",
        "huggingface_hub",
        "pyarrow",
        "ray",
        "transformers",
        "wandb",
    ),
    patched=(
        "`jax.tree_map` is `jax.tree.map`",
        "Haliax finds the mesh that is entered by `with`, and no abstract one",
    ),
)

# Beside their defaults.
OPTIONS = {
    "adam, no decay": ("adam", {"weight_decay": 0.0}),
    "adam, rms clipping": ("adam", {"update_rms_clipping": 1.0}),
    "adam, skip steps": ("adam", {"skip_bad_steps": True}),
    "adam, modules": ("adam", {"weight_decay_modules": ["weight"]}),
    "muon, decay": ("muon", {"weight_decay": 0.1, "use_kimi_scaling": True}),
    "muon, decay of all": ("muon", {"default_weight_decay_mask": False}),
}


def patch():
    import haliax
    import jax

    jax.tree_map = jax.tree.map
    haliax.partitioning._get_mesh = mesh


def mesh():
    import jax
    import numpy as np
    from jax.sharding import Mesh

    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))


def optimizers():
    from levanter.optim import OptimizerConfig

    known = OptimizerConfig.get_known_choices()
    made = {k: kind().build for k, kind in known.items()}
    made |= {k: known[kind](**x).build for k, (kind, x) in OPTIONS.items()}
    return {k: partial(build, STEPS) for k, build in made.items()}


def schedules():
    from levanter.optim import AdamConfig

    kinds = ["constant", "cosine", "linear", "inv_sqrt", "inv"]
    settings = [{}, {"cycles": 3}, {"decay": 0.2, "warmup": 10}, {"cooldown": 0.1}]
    return {
        f"{kind} {x}": partial(AdamConfig(lr_schedule=kind, **x).lr_scheduler, 1000)
        for kind in kinds
        for x in settings
    }


def train(optimizer):
    import equinox as eqx
    import haliax as hax
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec
    from levanter.trainer_state import take_train_step

    @eqx.filter_jit
    def step(model, state, t):
        def of(model, **more):
            return loss(model, t)

        value, grads = eqx.filter_value_and_grad(of)(model)
        more = {"obj_fun": of, "loss": value}
        model, state, updates = take_train_step(optimizer, model, state, grads, **more)
        return model, state, updates, value

    model, updates, losses = small_model(), None, []
    with mesh() as devices, hax.axis_mapping({}):
        model = jax.device_put(model, NamedSharding(devices, PartitionSpec()))
        state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        for t in range(STEPS):
            model, state, updates, value = step(model, state, jnp.asarray(t))
            losses.append(value)
    params = eqx.filter(model, eqx.is_inexact_array)
    return {"params": params, "updates": updates, "losses": jnp.stack(losses)}


def small_model():
    """An embedding, blocks that are scanned over, and a head."""
    import equinox as eqx
    import haliax as hax
    import jax

    Embed, Vocab = hax.make_axes(embed=4, vocab=7)
    Mlp = Embed.alias("mlp")
    keys = jax.random.split(jax.random.key(0), 3)

    class Block(eqx.Module):
        norm: hax.nn.LayerNorm
        dense: hax.nn.Linear

        @staticmethod
        def init(*, key):
            linear = hax.nn.Linear.init(Embed, Mlp, key=key, out_first=True)
            return Block(hax.nn.LayerNorm.init(Embed), linear)

        def __call__(self, x):
            return x + hax.tanh(self.dense(self.norm(x))).rename({"mlp": "embed"})

    class Model(eqx.Module):
        embedding: hax.nn.Embedding
        blocks: hax.nn.Stacked
        lm_head: hax.nn.Linear

    blocks = hax.nn.Stacked.init(hax.Axis("layers", 2), Block)
    return Model(
        hax.nn.Embedding.init(Vocab, Embed, key=keys[0]),
        blocks(key=jax.random.split(keys[1], 2)),
        hax.nn.Linear.init(Embed, Vocab, key=keys[2], out_first=True),
    )


def loss(model, t=0):
    import haliax as hax

    batch = hax.arange(hax.Axis("batch", 8))
    x = model.embedding((batch * (t + 1)) % 7)
    x = model.lm_head(model.blocks.fold(x))
    goal = hax.sin(batch.broadcast_axis(x.axes) + hax.arange(x.resolve_axis("vocab")))
    return hax.mean((x - goal) ** 2).array

"""Exhibits of steps: learning rates, signs, and clips."""

from .exhibit import ALL, VECTORS, Exhibit


RATES = (
    Exhibit(
        "rate-never",
        "tx = stepax.chain(stepax.clip(1.0), stepax.scale_by_adam())",
        "tx = stepax.chain(\n"
        "    stepax.clip(1.0), stepax.scale_by_adam(),\n"
        "    stepax.scale_by_learning_rate(0.05),\n"
        ")",
        "Each step has the size 1, along the gradient: the loss explodes.",
        ALL,
        "optax discussions",
    ),
    Exhibit(
        "rate-never",
        "tx = stepax.chain(stepax.clip_by_global_norm(1.0), stepax.trace(0.9))",
        "tx = stepax.chain(\n"
        "    stepax.clip_by_global_norm(1.0), stepax.sgd(0.05, momentum=0.9)\n"
        ")",
        "`trace` is momentum alone, and not an optimizer.",
        ALL,
    ),
    Exhibit(
        "rate-never",
        'tx = stepax.masked(stepax.adam(0.05), {"embed/**": False, "**": True})',
        'labels = {"embed/**": "fixed", "**": "train"}\n'
        'parts = {"train": stepax.adam(0.05), "fixed": stepax.set_to_zero()}\n'
        "tx = stepax.partition(parts, labels)",
        "`masked` passes the others on, so that the gradient itself is added to the "
        "embedding, which was to be fixed.",
        ("embed/kernel",),
        "optax discussions",
    ),
    Exhibit(
        "uphill",
        "tx = stepax.chain(stepax.adam(0.05), stepax.scale(-1.0))",
        "tx = stepax.adam(0.05)",
        "An optimizer negates already; a second sign climbs.",
        ALL,
        "optax discussions",
    ),
    Exhibit(
        "uphill",
        "tx = stepax.chain(stepax.scale_by_adam(), stepax.scale_by_schedule(cosine))",
        "tx = stepax.chain(stepax.scale_by_adam(), "
        "stepax.scale_by_learning_rate(cosine))",
        "`scale_by_schedule` does not negate, `scale_by_learning_rate` does.",
        ALL,
        "optax discussions",
    ),
    Exhibit(
        "uphill",
        "tx = stepax.chain(\n"
        "    stepax.scale_by_lion(),\n"
        "    stepax.scale_by_learning_rate(0.01, flip_sign=False),\n"
        ")",
        "tx = stepax.lion(0.01)",
        "`flip_sign=False` is for factors between others, not for the last one.",
        ALL,
    ),
    Exhibit(
        "uphill",
        "base = stepax.rmsprop(1.0)\n"
        "tx = stepax.contrib.galore(0.05, base_optimizer=base)",
        "base = stepax.scale_by_rms()\n"
        "tx = stepax.contrib.galore(0.05, base_optimizer=base)",
        "The base of GaLore is a scaling; a complete optimizer in its place negates a "
        "second time.",
        ALL,
    ),
    Exhibit(
        "rate-twice",
        "tx = stepax.chain(stepax.adamw(0.05), stepax.scale_by_learning_rate(0.05))",
        "tx = stepax.adamw(0.05)",
        "Steps are of the size 0.0025, along the gradient.",
        ALL,
    ),
    Exhibit(
        "rate-twice",
        "tx = stepax.chain(\n"
        "    stepax.adam(0.05),\n"
        "    stepax.scale_by_learning_rate(cosine, flip_sign=False),\n"
        ")",
        "tx = stepax.adam(cosine)",
        "The schedule was meant to replace the learning rate, and multiplies it.",
        ALL,
    ),
    Exhibit(
        "rate-twice",
        "tx = stepax.chain(\n"
        "    stepax.adam(0.05), stepax.add_decayed_weights(1e-4),\n"
        "    stepax.scale_by_learning_rate(0.05),\n"
        ")",
        "tx = stepax.chain(\n"
        "    stepax.scale_by_adam(), stepax.add_decayed_weights(1e-4),\n"
        "    stepax.scale_by_learning_rate(0.05),\n"
        ")",
        "`adam` in the place of `scale_by_adam`, in a chain that is copied from AdamW.",
        ALL,
    ),
    Exhibit(
        "rate-twice",
        "tx = stepax.chain(stepax.sgd(0.5), stepax.scale(-0.1))",
        "tx = stepax.sgd(0.05)",
        "A factor that was to lower the learning rate turns the step round.",
        ALL,
    ),
    Exhibit(
        "never-updated",
        "tx = stepax.adam(0.0)",
        "tx = stepax.adam(0.05)",
        "A default of a configuration file: nothing moves, and nothing is said. "
        "Without `steps`, a learning rate of 0 may be a placeholder.",
        ALL,
        "dion changelog",
        more="steps=100",
    ),
    Exhibit(
        "never-updated",
        "rate = stepax.warmup_cosine_decay_schedule(0.0, 0.0, 10, 100)\n"
        "tx = stepax.adam(rate)",
        "rate = stepax.warmup_cosine_decay_schedule(0.005, 0.05, 10, 100)\n"
        "tx = stepax.adam(rate)",
        "The peak of the schedule was left at 0.",
        ALL,
    ),
    Exhibit(
        "never-updated",
        "only = lambda u, p: u if p.ndim > 1 else 0 * u  # an experiment\n"
        "tx = stepax.chain(stepax.adam(0.05), stepax.stateless_with_tree_map(only))",
        "tx = stepax.adam(0.05)",
        "A function of the chain zeroes what it was not meant to. Only a trial step "
        "shows it.",
        VECTORS,
        "vllm/speculators#1058",
        more="gradients=net",
    ),
    Exhibit(
        "never-updated",
        "tx = stepax.chain(stepax.scale_by_adam(), stepax.contrib.hyperball(0.05))",
        "ball = stepax.chain(stepax.scale_by_adam(), stepax.contrib.hyperball(0.05))\n"
        'labels = {"bias": "free", "**": "ball"}\n'
        'tx = stepax.partition({"ball": ball, "free": stepax.adam(0.05)}, labels)',
        "A step that keeps the norm of each array keeps arrays of zeros at 0.",
        ("bias",),
        params='{"kernel": jnp.ones((16, 16)), "bias": jnp.zeros(16)}',
        more="gradients=arrays(kernel=(16, 16), bias=(16,))",
        measure="vectors",
    ),
)

CLIPS = (
    Exhibit(
        "clip-before-orthogonalizer",
        "muon = stepax.contrib.muon(0.02, muon_weight_dimension_numbers=\n"
        '    {"dense/kernel": axes, "**": None})\n'
        "tx = stepax.chain(stepax.clip_by_global_norm(0.1), muon)",
        'labels = {"dense/kernel": "hidden", "**": "other"}\n'
        "other = stepax.chain(stepax.clip_by_global_norm(0.1), stepax.adamw(0.02))\n"
        'parts = {"hidden": stepax.contrib.muon(0.02), "other": other}\n'
        "tx = stepax.partition(parts, labels)",
        "Muon's steps have the same size with and without it, and a spike anywhere "
        "silences the matrices in the momentum.",
        ("dense/kernel",),
        "DeepSpeed#7713, Megatron-LM#5394, xtuner#2001",
        options={"spikes": 7, "calls": 60},
    ),
    Exhibit(
        "clip-before-orthogonalizer",
        "scion = stepax.contrib.scion(0.02, momentum=0.1, constrained=False)\n"
        "tx = stepax.chain(stepax.adaptive_grad_clip(0.01), scion)",
        "tx = stepax.contrib.scion(0.02, momentum=0.1, constrained=False)",
        "Scion's steps do not depend on the size of gradients either.",
        ("layers/kernel",),
        "xtuner#2001",
        params='{"layers": arrays(kernel=(16, 16))}',
        options={"calls": 150},
    ),
    Exhibit(
        "clip-after-scaling",
        "tx = stepax.chain(\n"
        "    stepax.scale_by_adam(), stepax.clip_by_global_norm(1.0),\n"
        "    stepax.scale_by_learning_rate(0.05),\n"
        ")",
        "tx = stepax.chain(stepax.clip_by_global_norm(1.0), stepax.adam(0.05))",
        "Adam's steps have the size 1 in each element, and so a norm that grows with "
        "the model, to which the clip cuts them.",
        ALL,
        "Megatron-LM#5394",
        options={"spikes": 7},
    ),
    Exhibit(
        "clip-after-scaling",
        "tx = stepax.chain(stepax.adam(0.05), stepax.clip(1.0))",
        "tx = stepax.chain(stepax.clip(1.0), stepax.adam(0.05))",
        "Steps are far below 1, so that the clip never acts, and spikes stay in the "
        "averages.",
        ALL,
        options={"spikes": 7},
    ),
    Exhibit(
        "clip-after-scaling",
        "momentum = stepax.sgd(0.2, momentum=0.9)\n"
        "tx = stepax.chain(momentum, stepax.clip_by_global_norm(1.0))",
        "momentum = stepax.sgd(0.2, momentum=0.9)\n"
        "tx = stepax.chain(stepax.clip_by_global_norm(1.0), momentum)",
        "A spike is in the momentum, and its direction is that of the next ten steps.",
        ALL,
        options={"spikes": 7},
    ),
)

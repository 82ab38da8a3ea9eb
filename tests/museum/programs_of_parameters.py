"""Exhibits of parameters: matrices, decay, and what paths choose."""

from .exhibit import ALL, VECTORS, Exhibit


MATRIX = (
    Exhibit(
        "matrix-left-out",
        "tx = stepax.contrib.muon(0.02, adam_learning_rate=3e-4)",
        "tx = stepax.contrib.muon(0.02, adam_learning_rate=3e-4,\n"
        '    muon_weight_dimension_numbers={"**/kernel": axes, "**": None})',
        "In a scanned model kernels have three axes, and Muon leaves them to AdamW.",
        ("layers/kernel",),
        "goodfire-ai/spd#975",
        params="stack",
        measure="linear",
    ),
    Exhibit(
        "matrix-left-out",
        "tx = stepax.chain(\n"
        "    stepax.contrib.scale_by_muon(), stepax.scale_by_learning_rate(0.02)\n"
        ")",
        "muon = stepax.contrib.scale_by_muon(weight_dimension_numbers=axes)\n"
        "tx = stepax.chain(muon, stepax.scale_by_learning_rate(0.02))",
        "What `scale_by_muon` does not take gets plain momentum.",
        ("kernel",),
        "goodfire-ai/spd#982",
        params="arrays(kernel=(4, 16, 16))",
        measure="linear",
    ),
    Exhibit(
        "matrix-taken-for-vectors",
        "tx = stepax.contrib.muon(0.02)",
        'labels = {"embed/**": "adam", "**": "muon"}\n'
        'parts = {"muon": stepax.contrib.muon(0.02), "adam": stepax.adamw(0.02)}\n'
        "tx = stepax.partition(parts, labels)",
        "An embedding is a table of vectors; orthogonalizing it mixes all words.",
        ("embed/kernel",),
        "VeOmni#1093",
        options={"calls": 60},
    ),
    Exhibit(
        "matrix-taken-for-vectors",
        "tx = stepax.contrib.muon(0.02, adam_learning_rate=3e-4)",
        "tx = stepax.contrib.muon(0.02, adam_learning_rate=3e-4,\n"
        '    muon_weight_dimension_numbers={"**/kernel": axes, "**": None})',
        "In a scanned model the biases are two axes, and Muon takes them.",
        ("layers/bias",),
        "goodfire-ai/spd#982",
        params="stack",
        measure="linear",
    ),
    Exhibit(
        "matrix-taken-for-vectors",
        "tx = stepax.contrib.dion(0.02)",
        'parts = {"hidden": stepax.contrib.dion(0.02), "head": stepax.adamw(0.02)}\n'
        'tx = stepax.partition(parts, {"lm_head": "head", "**": "hidden"})',
        "The head has a row for each word, whose sizes matter.",
        ("lm_head",),
        "VeOmni#1093",
        params="arrays(hidden=(16, 16), lm_head=(16, 32))",
        options={"calls": 60},
    ),
)

LAYERS = (
    Exhibit(
        "layers-as-one",
        "tx = stepax.lamb(0.05)",
        'tx = stepax.stacked(stepax.lamb(0.05), {"layers/**": 0})',
        "All layers of a scanned model get one trust ratio.",
        ("layers/bias", "layers/kernel", "layers/scale"),
        "optax#1660",
        params='{"layers": arrays(kernel=(4, 16, 16), bias=(4, 16), scale=(4, 16))}',
    ),
    Exhibit(
        "layers-as-one",
        "tx = stepax.chain(stepax.adaptive_grad_clip(0.1), stepax.sgd(0.5))",
        "clip = stepax.adaptive_grad_clip(0.1)\n"
        'clip = stepax.stacked(clip, {"layers/**": 0})\n'
        "tx = stepax.chain(clip, stepax.sgd(0.5))",
        "Units are found along the axis of layers.",
        ("layers/bias", "layers/kernel", "layers/scale"),
        "marin#3902",
        params='{"layers": arrays(kernel=(4, 16, 16), bias=(4, 16), scale=(4, 16))}',
        options={"spikes": 10},
    ),
)

DECAYS = (
    Exhibit(
        "decay-uphill",
        "tx = stepax.chain(stepax.adam(0.05), stepax.add_decayed_weights(0.01))",
        "tx = stepax.adam(0.05, weight_decay=0.01)",
        "After the learning rate the decay is added, not subtracted: parameters grow "
        "by 1 % in each step. Flax's example `sst2` has this order, with `sgd`.",
        ALL,
        "google/flax: examples/sst2",
    ),
    Exhibit(
        "decay-twice",
        "tx = stepax.chain(\n"
        "    stepax.clip(1.0), stepax.add_decayed_weights(0.1),\n"
        "    stepax.adamw(0.05, weight_decay=0.1),\n"
        ")",
        "tx = stepax.chain(stepax.clip(1.0), stepax.adamw(0.05, weight_decay=0.1))",
        "Once as L2 regularization, once decoupled.",
        ALL,
    ),
    Exhibit(
        "decay-twice",
        "decay = stepax.weight_decay(0.1)\n"
        "tx = stepax.with_weight_decay(stepax.adamw(0.05, weight_decay=0.1), decay, "
        "0.05)",
        "decay = stepax.weight_decay(0.1)\n"
        "tx = stepax.with_weight_decay(stepax.adam(0.05), decay, 0.05)",
        "The optimizer has a decay of its own.",
        ALL,
    ),
    Exhibit(
        "decay-before-preconditioner",
        "tx = stepax.chain(stepax.add_decayed_weights(0.1), stepax.adam(0.05))",
        "tx = stepax.adamw(0.05, weight_decay=0.1)",
        "Adam divides the decay by the size of gradients: parameters with small ones "
        "decay most.",
        ALL,
    ),
    Exhibit(
        "decay-on-vectors",
        "tx = stepax.adamw(0.05, weight_decay=0.1)",
        "matrices = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)\n"
        "tx = stepax.adamw(0.05, weight_decay=0.1, mask=matrices)",
        "Biases and the scales of norms are pulled to 0.",
        VECTORS,
        measure="vectors",
    ),
    Exhibit(
        "decay-on-vectors",
        "tx = stepax.lion(0.01, weight_decay=0.3)",
        'tx = stepax.lion(0.01, weight_decay={"**/kernel": 0.3, "**": 0.0})',
        "The decays that are usual for Lion are large.",
        VECTORS,
        measure="vectors",
    ),
)

PATTERNS = (
    Exhibit(
        "pattern-matches-nothing",
        "named = lambda path, p: 'weight' in jax.tree_util.keystr(path)\n"
        "decays = lambda params: jax.tree_util.tree_map_with_path(named, params)\n"
        "tx = stepax.adamw(0.05, weight_decay=10.0, mask=decays)",
        "named = lambda path, p: 'kernel' in jax.tree_util.keystr(path)\n"
        "decays = lambda params: jax.tree_util.tree_map_with_path(named, params)\n"
        "tx = stepax.adamw(0.05, weight_decay=10.0, mask=decays)",
        "A mask that was written for another library's names: nothing decays.",
        ("adamw",),
        "VeOmni#1093",
        measure="largest",
    ),
    Exhibit(
        "pattern-matches-nothing",
        'label = lambda path, p: "fast" if "lora" in str(path) else "slow"\n'
        "labels = lambda params: jax.tree_util.tree_map_with_path(label, params)\n"
        'parts = {"fast": stepax.adam(0.05), "slow": stepax.adam(0.001)}\n'
        "tx = stepax.partition(parts, labels)",
        'label = lambda path, p: "fast" if "dense" in str(path) else "slow"\n'
        "labels = lambda params: jax.tree_util.tree_map_with_path(label, params)\n"
        'parts = {"fast": stepax.adam(0.05), "slow": stepax.adam(0.001)}\n'
        "tx = stepax.partition(parts, labels)",
        "No parameter has the name that the labels look for.",
        ("partition",),
        "VeOmni#1093",
    ),
    Exhibit(
        "integers",
        "tx = stepax.adam(0.05)",
        'parts = {"train": stepax.adam(0.05), "fixed": stepax.set_to_zero()}\n'
        'tx = stepax.partition(parts, {"table": "fixed", "**": "train"})',
        "A table of indices is among the parameters, and the first step fails.",
        ("table",),
        params='{"kernel": jnp.ones((4, 4)), "table": jnp.arange(4)}',
    ),
    Exhibit(
        "accumulation-of-nan",
        "inner = stepax.chain(stepax.zero_nans(), stepax.adam(0.05))\n"
        "tx = optax.MultiSteps(inner, 4)",
        "inner = stepax.chain(stepax.zero_nans(), stepax.adam(0.05))\n"
        "tx = stepax.MultiSteps(inner, 4)",
        "One NaN in four gradients loses all four: the mean is NaN when it is checked.",
        ("MultiSteps",),
        "optax issues",
        options={"nan": 5},
    ),
    Exhibit(
        "accumulation-of-nan",
        "steps = stepax.MultiSteps(stepax.scale_by_adam(), 4)\n"
        "tx = stepax.chain(\n"
        "    steps.gradient_transformation(), stepax.zero_nans(),\n"
        "    stepax.scale_by_learning_rate(0.05),\n"
        ")",
        "inner = stepax.chain(stepax.zero_nans(), stepax.adam(0.05))\n"
        "tx = stepax.MultiSteps(inner, 4)",
        "The NaN is in Adam's averages before it is replaced, and stays there.",
        ("1",),
        "optax issues",
        options={"nan": 5},
    ),
)

"""The exhibits, by the codes of `diagnose`."""

from .exhibit import Exhibit


ALL = ("dense/bias", "dense/kernel", "embed/kernel", "norm/scale")
VECTORS = ("dense/bias", "norm/scale")
MATRICES = ("dense/kernel", "embed/kernel")

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
        "Steps are of the size 0.0025, and uphill.",
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
        "A default of a configuration file: nothing moves, and nothing is said.",
        ALL,
        "dion changelog",
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
        "only = lambda u, p: u * (p.ndim > 1)  # of an experiment\n"
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
        "Adam's steps have the size 1 in each entry, and so a norm that grows with the "
        "model, to which the clip cuts them.",
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

DECAYS = (
    Exhibit(
        "decay-uphill",
        "tx = stepax.chain(stepax.adam(0.05), stepax.add_decayed_weights(0.01))",
        "tx = stepax.adam(0.05, weight_decay=0.01)",
        "After the learning rate the decay is added, not subtracted: parameters grow "
        "by 1 % in each step.",
        ALL,
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

NUMBERS = (
    Exhibit(
        "narrow-mean",
        "tx = stepax.adam(0.05)",
        "tx = stepax.master_weights(stepax.adam(0.05))",
        "Adam's second moment stops moving in bfloat16, after a few steps.",
        ("0/nu",),
        params="half",
        options={"calls": 300},
    ),
    Exhibit(
        "eps-underflows",
        "tx = stepax.inject_hyperparams(stepax.rmsprop, hyperparam_dtype='float16')"
        "(0.05)",
        "tx = stepax.inject_hyperparams(stepax.rmsprop)(0.05)",
        "In float16 the epsilon 1e-8 is 0, so that the first gradient of 0 gives NaN.",
        ALL,
        "pytorch issues",
        measure="padded",
    ),
    Exhibit(
        "eps-underflows",
        "tx = optax.adam(0.05)",
        "tx = stepax.adam(0.05)",
        "Optax computes in the dtype of the parameters, Stepax in float32.",
        ("w",),
        "pytorch issues",
        params='arrays(w=(4,), dtype="float16")',
        measure="padded",
    ),
    Exhibit(
        "update-rounds-away",
        'tx = stepax.with_state_dtypes(stepax.adam(3e-4), {"nu": "float32"})',
        "tx = stepax.master_weights(stepax.adam(3e-4))",
        "bfloat16 has eight bits: a step below 1/256 of a parameter is lost.",
        ALL,
        "keras-hub#2629, SingLoRA#6",
        params="half",
        more="gradients=half",
        options={"calls": 300},
    ),
    Exhibit(
        "update-rounds-away",
        "tx = stepax.sgd(1e-3)",
        "tx = stepax.stochastic_rounding(stepax.sgd(1e-3), 0)",
        "Without momentum as well. Rounding at random is right on average.",
        ALL,
        "keras-hub#2629",
        params="half",
        more="gradients=half",
        options={"calls": 300},
    ),
    Exhibit(
        "not-finite",
        "tx = stepax.adam(0.05)",
        "gradients = jax.tree.map(jnp.nan_to_num, gradients)\ntx = stepax.adam(0.05)",
        "The gradients that were to be tried contain NaN.",
        ALL,
        more="gradients=gradients",
        measure="given",
    ),
    Exhibit(
        "state-larger-than-parameters",
        "tx = stepax.master_weights(stepax.adam(0.05))",
        "small = stepax.low_bit_states(stepax.adam(0.05), block=16, min_size=0)\n"
        "tx = stepax.master_weights(small, remainder=16)",
        "Master weights and two moments in float32 take twelve bytes for each two.",
        ALL,
        params="half",
        measure="bytes",
    ),
    Exhibit(
        "averages-without-swap",
        "tx = stepax.averages(stepax.sgd(0.5), 0.9)",
        "tx = stepax.averages(stepax.sgd(0.5), 0.9)\n"
        "evaluate = lambda state, params: stepax.averaged_params(state, params)",
        "The averages are in the state, and the noisy parameters are evaluated.",
        ("averages",),
        "schedule_free issues",
        measure="evaluated",
        options={"noise": 1.0},
        remains="it reminds of the call",
    ),
)

SCHEDULES = (
    Exhibit(
        "schedule-in-micro-steps",
        "steps = stepax.MultiSteps(stepax.scale_by_adam(), 4)\n"
        "tx = stepax.chain(\n"
        "    steps.gradient_transformation(), stepax.scale_by_learning_rate(cosine)\n"
        ")",
        "tx = stepax.MultiSteps(stepax.adam(cosine), 4)",
        "The schedule counts calls, and ends four times too early.",
        ALL,
        "transformers, optax issues",
        options={"calls": 400},
    ),
    Exhibit(
        "schedule-in-micro-steps",
        "rate = stepax.cosine_decay_schedule(0.1, 800)\n"
        "tx = stepax.MultiSteps(stepax.adam(rate), 4)",
        "rate = stepax.cosine_decay_schedule(0.1, 200)\n"
        "tx = stepax.MultiSteps(stepax.adam(rate), 4)",
        "800 calls are 200 steps, so that the rate hardly falls.",
        ALL,
        "transformers, optax issues",
        more="steps=800",
        options={"noise": 3.0, "calls": 800},
    ),
    Exhibit(
        "schedule-in-micro-steps",
        "make = lambda learning_rate: stepax.MultiSteps(\n"
        "    stepax.adam(learning_rate), 4).gradient_transformation()\n"
        "tx = stepax.inject_hyperparams(make)(cosine)",
        "inner = stepax.inject_hyperparams(stepax.adam)(cosine)\n"
        "tx = stepax.MultiSteps(inner, 4)",
        "What is injected outside of the accumulation counts calls.",
        ALL,
        "optax issues",
        options={"calls": 400},
    ),
    Exhibit(
        "schedule-ends-early",
        "tx = stepax.adam(cosine)",
        "tx = stepax.adam(stepax.cosine_decay_schedule(0.05, 400))",
        "From a quarter of the run on, nothing is learned.",
        ALL,
        more="steps=400",
        options={"calls": 400},
    ),
    Exhibit(
        "schedule-ends-early",
        "tx = stepax.sgd(stepax.linear_schedule(0.5, 0.0, 50))",
        "tx = stepax.sgd(stepax.linear_schedule(0.5, 0.0, 400))",
        "Epochs for steps, or the length of another run.",
        ALL,
        more="steps=400",
        options={"calls": 400},
    ),
    Exhibit(
        "schedule-never-ends",
        "tx = stepax.adam(stepax.cosine_decay_schedule(0.1, 10_000))",
        "tx = stepax.adam(stepax.cosine_decay_schedule(0.1, 300))",
        "The end of a schedule, where noise is averaged out, is never reached.",
        ALL,
        more="steps=300",
        options={"noise": 3.0, "calls": 300},
    ),
    Exhibit(
        "warmup-longer-than-run",
        "tx = stepax.adam(stepax.linear_schedule(1e-5, 0.05, 10_000))",
        "tx = stepax.adam(stepax.linear_schedule(1e-5, 0.05, 10))",
        "The learning rate is still at 1 % of its peak at the end.",
        ALL,
        more="steps=100",
    ),
    Exhibit(
        "first-step-zero",
        "tx = stepax.adam(stepax.linear_schedule(0.0, 0.05, 10))",
        "tx = stepax.adam(stepax.linear_schedule(0.005, 0.05, 9))",
        "The first gradient is computed for nothing.",
        ALL,
        options={"calls": 10},
    ),
)

EXHIBITS = RATES + CLIPS + MATRIX + DECAYS + PATTERNS + NUMBERS + SCHEDULES

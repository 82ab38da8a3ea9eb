"""Exhibits of numbers: dtypes, states, and schedules."""

from .exhibit import ALL, Exhibit


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
        "variance-of-nothing",
        "tx = stepax.adabelief(0.05, b1=0.0)",
        "tx = stepax.adabelief(0.05)",
        "Without momentum the mean is the gradient, and its deviation from it 0: the "
        "first step is nearly a million times the learning rate.",
        ALL,
    ),
    Exhibit(
        "decay-rounded",
        "tx = stepax.inject_hyperparams(stepax.adam)(0.05, b2=0.9999)",
        "make = stepax.inject_hyperparams(stepax.adam, static_args=('b2',))\n"
        "tx = make(0.05, b2=0.9999)",
        "The nearest number to 0.9999 in float32 is 0.99989998.",
        ("inject_hyperparams",),
        measure="second",
    ),
    Exhibit(
        "not-opened",
        "own = optax.GradientTransformation(\n"
        "    lambda params: (),\n"
        "    lambda g, state, params=None: (jax.tree.map(jnp.negative, g), state),\n"
        ")\n"
        "tx = optax.chain(own, optax.sgd(0.05))",
        "tx = optax.chain(optax.scale(1.0), optax.sgd(0.05))",
        "The function negates gradients, which nothing shows before training.",
        ("0",),
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
        "evaluate = lambda state, params: stepax.eval_params(state, params)",
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
        "800 calls are 200 steps, so the learning rate hardly falls.",
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
        "momentum-in-micro-steps",
        "steps = stepax.MultiSteps(stepax.identity(), 4)\n"
        "tx = stepax.chain(steps.gradient_transformation(), stepax.adam(0.05))",
        "tx = stepax.MultiSteps(stepax.adam(0.05), 4)",
        "Adam sees three zeros for each mean gradient, and moves in each call.",
        ALL,
        "transformers, optax issues",
        options={"calls": 400, "noise": 1.0},
    ),
    Exhibit(
        "decay-in-micro-steps",
        "steps = stepax.MultiSteps(stepax.adam(0.05), 4)\n"
        "pair = steps.gradient_transformation()\n"
        "tx = stepax.chain(pair, stepax.add_decayed_weights(-0.01))",
        "inner = stepax.chain(stepax.adam(0.05), stepax.add_decayed_weights(-0.01))\n"
        "tx = stepax.MultiSteps(inner, 4)",
        "Parameters decay four times as fast as they should.",
        ALL,
        "transformers, optax issues",
        options={"calls": 400},
    ),
    Exhibit(
        "averages-in-micro-steps",
        "steps = stepax.MultiSteps(stepax.sgd(1.0), 4).gradient_transformation()\n"
        "tx = stepax.contrib.schedule_free(steps, cosine)\n"
        "evaluate = stepax.contrib.schedule_free_eval_params",
        "inner = stepax.contrib.schedule_free(stepax.sgd(1.0), cosine)\n"
        "tx = stepax.MultiSteps(inner, 4)\n"
        "evaluate = stepax.contrib.schedule_free_eval_params",
        "Parameters that did not move are averaged, with the weights of calls.",
        ALL,
        "transformers, optax issues",
        measure="evaluated",
        options={"calls": 400},
    ),
    Exhibit(
        "noise-in-micro-steps",
        "steps = stepax.MultiSteps(stepax.sgd(0.5), 4).gradient_transformation()\n"
        "tx = stepax.chain(steps, stepax.add_noise(0.01, 0.0, key=0))",
        "inner = stepax.chain(stepax.sgd(0.5), stepax.add_noise(0.01, 0.0, key=0))\n"
        "tx = stepax.MultiSteps(inner, 4)",
        "Each step gets the noise of four.",
        ALL,
        "transformers, optax issues",
        options={"calls": 400},
    ),
    Exhibit(
        "plateau-in-micro-steps",
        "plateau = stepax.contrib.reduce_on_plateau(patience=3)\n"
        "steps = stepax.MultiSteps(stepax.sgd(0.5), 4).gradient_transformation()\n"
        "tx = stepax.chain(steps, plateau)",
        "plateau = stepax.contrib.reduce_on_plateau(patience=3)\n"
        "tx = stepax.MultiSteps(stepax.chain(stepax.sgd(0.5), plateau), 4)",
        "The loss cannot improve between two steps, which counts as a plateau.",
        ALL,
        "transformers, optax issues",
        options={"calls": 400},
    ),
    Exhibit(
        "lookahead-in-micro-steps",
        "steps = stepax.MultiSteps(stepax.sgd(0.5), 4).gradient_transformation()\n"
        "tx = stepax.lookahead(steps, 6, 0.5)",
        "tx = stepax.lookahead(stepax.sgd(0.5), 6, 0.5)",
        "Six calls are one or two steps, of which half are undone.",
        ("lookahead",),
        "transformers, optax issues",
        params="stepax.LookaheadParams.init_synced(net)",
        measure="slow",
    ),
    Exhibit(
        "mechanize-in-micro-steps",
        "steps = stepax.MultiSteps(stepax.sgd(1.0), 4).gradient_transformation()\n"
        "tx = stepax.contrib.mechanize(steps)",
        "tx = stepax.MultiSteps(stepax.contrib.mechanize(stepax.sgd(1.0)), 4)",
        "The scale is learned from single gradients, which no step follows.",
        ("mechanize",),
        "transformers, optax issues",
        options={"calls": 400, "noise": 3.0},
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
    Exhibit(
        "part-of-a-step",
        "tx = stepax.adam(stepax.cosine_decay_schedule(0.05, 0.8))",
        "tx = stepax.adam(stepax.cosine_decay_schedule(0.05, 80))",
        "A fraction of the run was given for a number of steps.",
        ALL,
    ),
    Exhibit(
        "boundary-without-schedule",
        "warmup = stepax.linear_schedule(0.01, 0.1, 10)\n"
        "parts = [warmup, stepax.constant_schedule(0.1)]\n"
        "tx = stepax.adam(stepax.join_schedules(parts, [10, 50]))",
        "warmup = stepax.linear_schedule(0.01, 0.1, 10)\n"
        "parts = [warmup, stepax.constant_schedule(0.1)]\n"
        "parts += [stepax.cosine_decay_schedule(0.1, 250)]\n"
        "tx = stepax.adam(stepax.join_schedules(parts, [10, 50]))",
        "The decay was left out, but not its boundary.",
        ALL,
        "google/maxtext, where it is meant",
        options={"noise": 3.0, "calls": 300},
    ),
)

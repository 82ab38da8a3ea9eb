"""Where Stepax differs from Optax on purpose: each with its reason, and an example.

The example is a program in which the difference is seen, so that no reason outlives it.
"""

from fuzz.differences import Difference, below, both, is_complex, says, uses
from fuzz.runs import Program


A = "{'w': a((2, 3), 'float64', 0)}"
COMPLEX = "{'w': a((2, 3), 'complex128', 0)}"
NO_NUMBERS = r"\w*_fn|\w*_size\w*|\w+_steps|\w*dtype\w*|axis|key|\w*mask"
ONE_RATE = "learning_rate=o.warmup_constant_schedule(0.0, 0.1, 2)"

DIFFERENCES = [
    Difference(
        "gradients in double are accumulated in double, complex ones as complex",
        "other dtype",
        both(uses("MultiSteps"), says(r"acc_grads.*Optax float32")),
        Program(A, "o.MultiSteps(o.sgd(0.1), 2).gradient_transformation()"),
    ),
    Difference(
        "what Optax accumulated in single is rounded to single",
        "other numbers",
        # Where means of both signs cancel, by a hundred times more than 2^-24.
        both(uses("MultiSteps"), below(3e-5)),
        Program(A, "o.MultiSteps(o.sgd(0.1), 2).gradient_transformation()"),
    ),
    Difference(
        "a function of the user's gets the mean of narrow gradients in single",
        "ours fails",  # as it is run under strict promotion, which Optax is not
        both(uses("MultiSteps"), says(r"Promotion.*'b?float16'")),
        Program(
            "[a((2, 3), 'float16', 0)]",
            "o.MultiSteps(o.stateless_with_tree_map(lambda u, p: u + p), 2)"
            ".gradient_transformation()",
        ),
    ),
    Difference(
        "counters are int32 also where integers are int64 by default",
        "other dtype",
        says(r"num_not_finite.*int32, Optax (int|float)64"),
        Program(
            A,
            "o.MultiSteps(o.sgd(0.1), 1, should_skip_update_fn=o.skip_not_finite)"
            ".gradient_transformation()",
        ),
    ),
    Difference(
        "a rate that is single is kept as wide as the parameters are",
        "other dtype",
        says(r"hyperparams.*float64, Optax float32"),
        Program(A, f"o.inject_hyperparams(o.sgd)({ONE_RATE})"),
    ),
    Difference(
        "a factor made of a rate that is single is rounded otherwise when compiled",
        "other numbers",
        both(uses(r"fromage\(learning_rate=(o\.|falling)"), below(1e-5)),
        Program(A, "o.fromage(learning_rate=o.linear_schedule(.1, 0, 3))", also="scan"),
    ),
    Difference(
        "numbers of steps are int32 also where integers are int64 by default",
        "other dtype",
        says(r"num_linesearch_steps: int32, Optax int64"),
        Program(A, "o.scale_by_zoom_linesearch(4)"),
    ),
    Difference(
        "keywords of `update` reach what is inside of any wrapper",
        "Optax fails",
        says("missing .* required (keyword-only|positional) arg|obj_fn must be prov"),
        Program(
            A,
            "o.MultiSteps(o.scale_by_zoom_linesearch(4), 2).gradient_transformation()",
        ),
    ),
    Difference(
        "`lookahead` resets a state in its dtypes, booleans, too",
        "Optax fails",
        both(uses("lookahead"), says("cond branches must have equal output")),
        Program(
            A,
            "o.lookahead(o.MultiSteps(o.apply_if_finite(o.apply_if_finite(o.sgd(0.1), "
            "2), 0), 2, should_skip_update_fn=ft.partial(o.skip_large_updates, "
            "max_squared_norm=2.0)).gradient_transformation(), 2, 0.5, True)",
        ),
    ),
    Difference(
        "Sophia probes parameters of several dtypes, each in its own",
        "Optax fails",
        both(uses("sophia"), says("primal and tangent arguments .* do not match")),
        Program(
            "(a((3,), 'float64', 0), a((3,), 'float32', 1))", "o.contrib.sophia(0.1)"
        ),
    ),
    Difference(
        "a random key may be an integer, for Hutchinson's estimate, too",
        "Optax fails",
        both(uses("hutchinson_estimator_diag_hessian"), says("PRNG key data: .* got ")),
        Program(
            A,
            "o.contrib.sophia(0.1, hessian_diagonal_fn="
            "o.contrib.hutchinson_estimator_diag_hessian(0))",
        ),
    ),
    Difference(
        "`scale_by_muon` only averages gradients of what is not a matrix",
        "Optax fails",
        says(r"Input must have shape \(m, n\) or"),
        Program("a((3,), 'float64', 0)", "o.contrib.scale_by_muon()"),
    ),
    Difference(
        "matrices in 16 bits are decomposed in single",
        "Optax fails",
        says(r"Unsupported dtype b?float16"),
        Program(
            "a((2, 3), 'float16', 0)", "o.contrib.muon(1.0, preconditioning='spectral')"
        ),
    ),
    Difference(
        "every number may be injected, also one that Optax compiles into its program",
        "Optax fails",
        both(uses("inject_hyperparams"), says("unhashable type: .*Tracer")),
        Program(A, "o.inject_hyperparams(o.adafactor)(decay_rate=0.8, momentum=0.5)"),
    ),
    Difference(
        "trees may have nothing in them",
        "Optax fails",
        says("list index out of range|Need at least one array|reduce.. of empty iter"),
        Program("{'w': {}}", "o.scale_by_backtracking_linesearch(3)"),
    ),
    Difference(
        "a mask of `selective_transform` may be a function; Optax freezes everything",
        # Beside updates of nothing but zeros ours are infinitely larger.
        "other numbers|other structure|Optax is not finite",
        uses(r"freeze_mask=(lambda|is_matrix|Model)"),
        Program(
            A,
            "o.selective_transform(o.adam(0.1), freeze_mask=is_matrix)",
        ),
    ),
    Difference(
        "a monitor may be inside of any wrapper: its state is the same ever after",
        "Optax fails|other structure",
        both(
            uses("monitor"),
            says(
                "different numbers of pytree children|same pytree structure"
                r"|\.measurements\[.*, Optax \[\]"
            ),
        ),
        Program(
            "{'w': (a((3,), 'float64', 0), a((), 'float64', 0))}",
            "o.MultiSteps(o.monitor({'norm': o.global_norm}), 2)"
            ".gradient_transformation()",
        ),
    ),
    Difference(
        "a line search inside of `flatten` calls the user's function with the tree",
        "Optax fails",
        both(
            uses("flatten"), says("not a 2- or 3- tuple|not a valid JAX|Incompatible")
        ),
        Program(
            "{'w': a((2, 3), 'float64', 0), 'b': a((2, 3), 'float64', 1)}",
            "o.flatten(o.scale_by_zoom_linesearch(max_linesearch_steps=1))",
        ),
    ),
    Difference(
        "what is kept beside complex parameters is real where it stands for a length",
        "other dtype",
        both(is_complex, says("float64, Optax complex128")),
        Program(
            COMPLEX,
            "o.MultiSteps(o.sgd(0.1), 2, should_skip_update_fn=ft.partial("
            "o.skip_large_updates, max_squared_norm=2.0)).gradient_transformation()",
        ),
    ),
    Difference(
        "RPROP has schedules; Optax drops them, or fails where there are any numbers",
        "other structure",
        both(uses("rprop"), says("ScaleByScheduleState")),
        Program(A, "o.masked(o.rprop(falling), False)"),
    ),
    Difference(
        "a gradient of zero gives a number",
        "Optax is not finite",
        # `apply_every` passes zeros on in the steps in which it waits, and `zero_nans`
        # makes them.
        lambda program, finding: (
            0.0 in program.sizes or uses("apply_every", "zero_nans")(program, finding)
        ),
        Program(A, "o.contrib.normalize()", (0.0,) * 5),
    ),
    Difference(
        "the first gradient of ACProp that is not zero is a step, not 10^5 times that",
        "other numbers",
        both(uses("acprop"), lambda program, finding: 0.0 in program.sizes),
        Program(A, "o.contrib.acprop(learning_rate=0.1)", (0.0, 1.0, 1.0, 1.0, 1.0)),
    ),
    Difference(
        "a mask given as a tree fits what another mask has left of the parameters",
        "Optax fails",
        says("pytree structure error: different types at key path"),
        Program(
            "{'w': {'b': a((3,), 'float64', 0)}}",
            "o.masked(o.masked(o.sgd(0.1), {'w': {'b': True}}), {'w': False})",
        ),
    ),
    Difference(
        "a flat optimizer keeps a vector for each dtype",
        "other structure",
        both(uses("flatten"), says("'float")),
        Program(
            "(a((3,), 'float64', 0), a((), 'float32', 0))", "o.flatten(o.adam(0.1))"
        ),
    ),
    Difference(
        "a callable module is a tree when it stands for a mask, and is never called",
        "Optax fails",
        says("the model was called|takes 1 positional argument but 2 were given"),
        Program(
            "Model(a((3,), 'float64', 0), None)",
            "o.partition({'a': o.sgd(0.1)}, Model('a', None))",
        ),
    ),
    Difference(
        "a schedule is refused where only a number has a meaning, used or not",
        "ours fails",
        says("must be a number.* but is a function"),
        Program(A, "o.masked(o.scale_by_rprop(falling), False)"),
    ),
    Difference(
        "what lies in a narrower dtype beside others is widened",
        "Optax fails",
        says(r"lax.(clamp|select) requires arguments to have the same dtypes"),
        Program(
            "(a((3,), 'float32', 0), a((3,), 'bfloat16', 1))",
            "o.contrib.mechanize(o.sgd(0.1))",
        ),
    ),
    Difference(
        "the state of the optimizer in `sam` or `lookahead` may hold random keys",
        "Optax fails",
        both(
            uses("sam", "lookahead"), says(r"multiply does not accept dtypes \w+, key")
        ),
        Program(
            A, "o.contrib.sam(o.noisy_sgd(0.1, key=jax.random.key(1)), o.sgd(0.1))"
        ),
    ),
    Difference(
        "what is not a number is not injected: functions, dtypes, sizes of arrays",
        "Optax fails",
        both(
            uses("inject_hyperparams"),
            says("is not callable|array as a dtype|must be an int|boolean conversion"),
        ),
        Program(A, "o.inject_hyperparams(o.scale_by_schedule)(falling)"),
    ),
    Difference(
        "what is not a number is not injected: functions, dtypes, sizes of arrays",
        "other structure",
        says(rf"^\[\], Optax .*hyperparams\['({NO_NUMBERS})'\]"),
        Program(A, "o.inject_hyperparams(o.lbfgs)(memory_size=3)"),
    ),
    Difference(
        "a narrow mean is rounded once a step, where Optax also computes with it so",
        "other numbers",
        # The momentum of Adafactor is single by default.
        both(
            uses(r"\w*dtype\w*='(float32|bfloat16)", "adafactor.*momentum=0"),
            # Roundings of 2^-8, beside means that cancel to a hundredth of their terms.
            below(3e-1),
        ),
        Program(A, "o.sgd(0.1, momentum=0.9, accumulator_dtype='bfloat16')"),
    ),
    Difference(
        # Updates are differences of iterates, and may be smaller than their rounding.
        "a narrow iterate of schedule-free is rounded once a step, in Optax twice",
        "other numbers",
        uses(r"schedule_free.*state_dtype='(float32|bfloat16)"),
        Program(
            "a((2, 3), 'float64', 0)",
            "o.contrib.schedule_free_adamw(state_dtype='bfloat16')",
        ),
    ),
    Difference(
        "a mask of a tree without arrays masks nothing, where Optax masks the tree",
        "other structure",
        both(lambda program, finding: "a(" not in program.params, says("MaskedNode")),
        Program(
            "{'w': {'w': {}}}",
            "o.selective_transform(o.adam(0.1), freeze_mask={'w': True})",
        ),
    ),
    Difference(
        "`mu_dtype` of AdEMAMix is that of means of g; Optax's `nu` has it, too",
        "other dtype|other numbers",
        uses(r"(scale_by_)?ademamix.*mu_dtype='(float32|bfloat16)"),
        Program(A, "o.contrib.scale_by_ademamix(mu_dtype='bfloat16')"),
    ),
    Difference(
        "MADGRAD weighs in double for parameters in double",
        "other numbers",
        # Of the parameters, which `lookahead` compares: its updates may be far smaller.
        both(uses(r"(scale_by_)?madgrad"), below(1e-4)),
        Program(A, "o.contrib.madgrad(0.1)"),
    ),
    Difference(
        "GaLore decomposes gradients in double for parameters in double",
        "other numbers",
        both(uses(r"(scale_by_)?galore"), below(1e-5)),
        Program(A, "o.contrib.scale_by_galore()"),
    ),
    Difference(
        "`eps` counts beside every norm of Muon, and is relative for small gradients",
        "other numbers",
        both(uses(r"(scale_by_)?muon"), below(1e-4)),
        Program(
            "a((2, 3), 'float64', 0)", "o.contrib.scale_by_muon(preconditioning='aol')"
        ),
    ),
    Difference(
        "a real mean of complex numbers raises an error, and loses no imaginary parts",
        "ours fails",
        says("complex numbers needs a complex dtype"),
        Program(COMPLEX, "o.scale_by_adam(mu_dtype='bfloat16')"),
    ),
    Difference(
        "imaginary parts are accumulated, too",
        "other numbers",
        both(is_complex, uses("MultiSteps")),
        Program(COMPLEX, "o.MultiSteps(o.sgd(0.1), 2).gradient_transformation()"),
    ),
    Difference(
        "an injected integer is an int32 also where integers are int64 by default",
        "other dtype",
        says(r"hyperparams.*int32, Optax int64"),
        Program(A, "o.inject_hyperparams(o.apply_every)(k=2)"),
    ),
    Difference(
        "`None` may be a parameter, and a mask leave nothing, for GaLore, too",
        "Optax fails",
        both(uses(r"(scale_by_)?galore"), says("'NoneType' object has|Too few leaves")),
        Program("{'w': a((2, 3), 'float64', 0), 'b': None}", "o.contrib.galore(0.1)"),
    ),
    Difference(
        "a pair of differences without curvature has no weight in L-BFGS",
        "other numbers",
        both(uses(r"(scale_by_)?lbfgs"), lambda program, finding: 0.0 in program.sizes),
        Program(
            A, "o.lbfgs(memory_size=1, linesearch=None)", (1.0, 1.0, 0.0, 1.0, 1.0)
        ),
    ),
    Difference(
        "a complex number is as long as its absolute value",
        "other numbers",
        both(
            is_complex,
            uses(
                r"(scale_by_)?(adadelta|cocob|galore|simplified_ademamix)",
                "scale_by_distance_over_gradients",
                *["dadapt_adamw", "momo_adam", "prodigy"],
            ),
        ),
        Program(COMPLEX, "o.scale_by_adadelta()"),
    ),
    Difference(
        "Mechanic computes with the real parts of inner products",
        "other numbers|other dtype|Optax fails",
        both(is_complex, uses("mechanize")),
        Program(COMPLEX, "o.contrib.mechanize(o.scale_by_sign(), num_betas=2)"),
    ),
    Difference(
        "every learning rate and weight decay may be a schedule",
        "Optax fails",
        says(
            "bad operand type for unary -: 'function'|not support learning rate sch"
            "|full_like requires .* got <class 'function'>"
            "|unsupported operand type.*'function'"
        ),
        Program(A, "o.sm3(falling)"),
    ),
    Difference(
        "complex parameters may have any optimizer that has a meaning for them",
        "Optax fails",
        both(
            is_complex,
            says(
                "does not support complex param|Clip received a complex|cbrt does not"
            ),
        ),
        Program(COMPLEX, "o.scale_by_sm3()"),
    ),
    Difference(
        "parameters of no dimensions have SM3 and line searches, too",
        "Optax fails",
        both(uses("sm3", "scale_by_sm3"), says("list index out of range")),
        Program("a((), 'float64', 0)", "o.scale_by_sm3()"),
    ),
    Difference(
        "the slope along complex parameters is that of JAX's gradients, conjugates of "
        "what goes uphill",
        "other numbers",
        both(is_complex, uses(r"(scale_by_)?(lbfgs|\w+_linesearch)")),
        Program(
            "(a((3,), 'complex128', 1), a((2, 3), 'complex128', 2))",
            "o.scale_by_zoom_linesearch(4, max_learning_rate=0.1)",
            (1.0, 1.0, 0.0, 1.0, 1.0),
        ),
    ),
    Difference(
        "an update of Mechanic is rounded at its own size, in Optax at the parameter's",
        "other numbers",
        # Updates of 1e-12, as one Mechanic inside of another one makes them.
        both(uses("mechanize.*mechanize"), below(1e-2)),
        Program(
            A,
            "o.chain(o.contrib.mechanize(o.contrib.mechanize(o.sgd(1.0))), "
            "o.scale_by_adam())",
        ),
    ),
    Difference(
        "parameters may be Python's numbers, outside of a trace",
        "Optax fails",
        both(
            lambda program, finding: "0.5" in program.params,
            says("'float' object has no attribute|accepts only NDarrays"),
        ),
        Program("{'w': 0.5}", "o.contrib.sophia(0.1)", also="eager"),
    ),
    Difference(
        "margins of a plateau that are traced may both be 0",
        "Optax fails",
        says("At least one of rtol or atol must be positive"),
        Program(A, "o.inject_hyperparams(o.contrib.reduce_on_plateau)(rtol=0.0)"),
    ),
]

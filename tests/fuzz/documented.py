"""Where Stepax differs from Optax on purpose: each with its reason, and an example.

The example is a program in which the difference is seen, so that no reason outlives it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from fuzz.beside import Finding
from fuzz.runs import Program


When = Callable[[Program, Finding], bool]


@dataclass(frozen=True)
class Difference:
    """A difference that stays.

    kind: that of the findings that it explains, as a pattern.
    when: whether it explains this one.
    """

    reason: str
    kind: str
    when: When
    example: Program

    def explains(self, program: Program, finding: Finding) -> bool:
        return bool(re.fullmatch(self.kind, finding.kind)) and (
            self.when(program, finding)
        )


def uses(*names: str) -> When:
    """Whether the program calls one of these."""
    calls = re.compile(rf"\b({'|'.join(names)})\b")
    return lambda program, finding: bool(calls.search(program.tx))


def says(pattern: str) -> When:
    """Whether the finding's text has this in it."""
    return lambda program, finding: bool(re.search(pattern, finding.text))


def both(*conditions: When) -> When:
    return lambda *case: all(x(*case) for x in conditions)


def below(size: float) -> When:
    """Whether numbers differ by less than this."""
    return lambda program, finding: finding.size < size


def is_complex(program: Program, finding: Finding) -> bool:
    return "complex" in program.params


A = "{'w': a((2, 3), 'float64', 0)}"
COMPLEX = "{'w': a((2, 3), 'complex128', 0)}"
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
        both(uses("MultiSteps"), below(1e-5)),
        Program(A, "o.MultiSteps(o.sgd(0.1), 2).gradient_transformation()"),
    ),
    Difference(
        "counters are int32 also where integers are int64 by default",
        "other dtype",
        says(r"num_not_finite.*int32, Optax int64"),
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
        "numbers of steps are int32 also where integers are int64 by default",
        "other dtype",
        says(r"num_linesearch_steps: int32, Optax int64"),
        Program(A, "o.scale_by_zoom_linesearch(4)"),
    ),
    Difference(
        "keywords of `update` reach what is inside of any wrapper",
        "Optax fails",
        says("missing .* required (keyword-only|positional) arg"),
        Program(
            A,
            "o.MultiSteps(o.scale_by_zoom_linesearch(4), 2).gradient_transformation()",
        ),
    ),
    Difference(
        "trees may have nothing in them",
        "Optax fails",
        says("list index out of range|Need at least one array"),
        Program("{'w': {}}", "o.scale_by_backtracking_linesearch(3)"),
    ),
    Difference(
        "a mask of `selective_transform` may be a function; Optax freezes everything",
        "other numbers|other structure",
        uses(r"freeze_mask=(lambda|is_matrix)"),
        Program(
            A,
            "o.selective_transform(o.adam(0.1), freeze_mask=is_matrix)",
        ),
    ),
    Difference(
        "a monitor may be inside of any wrapper: its state is the same ever after",
        "Optax fails",
        both(uses("monitor"), says("different numbers of pytree children")),
        Program(
            "{'w': (a((3,), 'float64', 0), a((), 'float64', 0))}",
            "o.MultiSteps(o.monitor({'norm': o.global_norm}), 2)"
            ".gradient_transformation()",
        ),
    ),
    Difference(
        "slopes of complex gradients are those of their real and imaginary parts",
        "other numbers",
        both(is_complex, uses("scale_by_zoom_linesearch", "lbfgs")),
        Program(COMPLEX, "o.scale_by_zoom_linesearch(4)"),
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
        "what lies in a narrower dtype beside others is widened",
        "Optax fails",
        says("lax.clamp requires arguments to have the same dtypes"),
        Program(
            "(a((3,), 'float32', 0), a((3,), 'bfloat16', 1))",
            "o.contrib.mechanize(o.sgd(0.1))",
        ),
    ),
    Difference(
        "the state of the optimizer in `sam` may hold random keys",
        "Optax fails",
        both(uses("sam"), says("multiply does not accept dtypes bool, key")),
        Program(
            A, "o.contrib.sam(o.noisy_sgd(0.1, key=jax.random.key(1)), o.sgd(0.1))"
        ),
    ),
    Difference(
        "what is no number is not injected: functions, dtypes, sizes of arrays",
        "Optax fails",
        both(uses("inject_hyperparams"), says("is not callable|array as a dtype")),
        Program(A, "o.inject_hyperparams(o.scale_by_schedule)(falling)"),
    ),
    Difference(
        "what is no number is not injected: functions, dtypes, sizes of arrays",
        "other structure",
        says(
            r"^\[\], Optax \[[^]]*hyperparams\['(memory_size|max_linesearch_steps)'\]"
        ),
        Program(A, "o.inject_hyperparams(o.lbfgs)(memory_size=3)"),
    ),
    Difference(
        "a narrow mean is rounded once a step, where Optax also computes with it so",
        "other numbers",
        both(uses(r"\w*dtype\w*='(float32|bfloat16)"), below(1e-1)),
        Program(A, "o.sgd(0.1, momentum=0.9, accumulator_dtype='bfloat16')"),
    ),
    Difference(
        "a complex number is as long as its absolute value",
        "other numbers",
        both(is_complex, uses("adadelta", "scale_by_adadelta")),
        Program(COMPLEX, "o.scale_by_adadelta()"),
    ),
    Difference(
        "what Mechanic keeps for complex parameters is real",
        "other dtype|other numbers|Optax fails",
        both(is_complex, uses("mechanize")),
        Program(COMPLEX, "o.contrib.mechanize(o.scale_by_sign(), num_betas=2)"),
    ),
    Difference(
        "every learning rate may be a schedule",
        "Optax fails",
        says(
            "bad operand type for unary -: 'function'|not support learning rate sch"
            "|full_like requires .* got <class 'function'>"
        ),
        Program(A, "o.sm3(falling)"),
    ),
    Difference(
        "complex parameters may have any optimizer that has a meaning for them",
        "Optax fails",
        both(is_complex, says("does not support complex parameters")),
        Program(COMPLEX, "o.scale_by_sm3()"),
    ),
    Difference(
        "parameters of no dimensions have SM3 and line searches, too",
        "Optax fails",
        both(uses("sm3", "scale_by_sm3"), says("list index out of range")),
        Program("a((), 'float64', 0)", "o.scale_by_sm3()"),
    ),
]

# Found, and not mended yet: masks over subtrees of one leaf or none.
OPEN = [
    Difference(
        "a mask that ends above a single leaf or nothing leaves one `MaskedNode`",
        "other structure|state changes",
        uses("masked", "partition", "selective_transform", "freeze", r"\w*mask=.*"),
        Program(A, "o.masked(o.adam(0.1), False)"),
    )
]

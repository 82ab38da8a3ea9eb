"""`examples/compare` finds where two optimizers part, and names the difference."""

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from examples.compare import compare


PAGE = Path(__file__).parents[2] / "docs" / "from_pytorch.md"
SHAPES = {"b": (3,), "w": (2, 3)}
RATE = 0.1


def gradients(n=4, size=1.0):
    rng = np.random.default_rng(1)
    draw = lambda shape: jnp.asarray(size * rng.normal(size=shape), jnp.float32)
    return [{k: draw(shape) for k, shape in SHAPES.items()} for _ in range(n)]


def of_torch(name, *groups, **options):
    """An optimizer of PyTorch for the two arrays, or one with a group for each."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    ps = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES.values()]
    kept = options.pop("fixed", None)
    if kept is not None:
        ps[kept].requires_grad_(False)
    rows = [{"params": [p], **g} for p, g in zip(ps, groups, strict=False)]
    return getattr(torch.optim, name)(rows if groups else ps, **options)


clip = stepax.clip_by_global_norm(1.0)
ahead: Any = lambda count: 0.1 / (count + 2.0)
ADAM = {"lr": RATE, "weight_decay": 0.1}
# For each row of the tables of the page, what its neighbor there is confused with, and
# a word of the cause; or why it is no difference of numbers.
ROWS: dict[str, Any] = {
    "`opt = AdamW(model.parameters(), lr=1e-3)`": (
        lambda: stepax.adamw(1e-2, weight_decay=0.01),
        lambda: of_torch("AdamW", lr=1e-3),
        "`learning_rate` is 0.01 in the first, 0.001 in the second",
    ),
    "`loss.backward()`": "a gradient is given",
    "`opt.step()`": "a step is a step",
    "`opt.zero_grad()`": "gradients are values",
    "accumulating gradients by not zeroing them": (
        lambda: stepax.MultiSteps(stepax.sgd(RATE), 2),
        lambda: stepax.MultiSteps(stepax.sgd(RATE), 2, use_grad_mean=False),
        "`use_grad_mean` is True in the first, False in the second",
    ),
    'parameter groups, `[{"params": ..., "lr": 1e-4}, ...]`': (
        lambda: stepax.sgd(RATE),
        lambda: of_torch("SGD", {"lr": RATE}, {"lr": 0.3}),
        "`learning_rate` is 0.1 in the first, {'b': 0.1, 'w': 0.3} in the second",
    ),
    "`p.requires_grad_(False)`": (
        lambda: stepax.sgd(RATE),
        lambda: of_torch("SGD", lr=RATE, fixed=1),
        "w is kept fixed by the second",
    ),
    "`clip_grad_norm_(p, 1.0)`, `clip_grad_value_`": (
        lambda: stepax.chain(stepax.adam(RATE), clip),
        lambda: stepax.chain(clip, stepax.adam(RATE)),
        "the order of `adam` and `clip_by_global_norm`",
    ),
    "`scheduler.step()`": (
        lambda: stepax.sgd(lambda count: 0.1 / (count + 1.0)),
        lambda: stepax.sgd(ahead),
        "learning_rate",
    ),
    '`group["lr"] = 1e-4`': "as the first row",
    "`autocast`, `GradScaler`": "other gradients",
    "`AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))`": "takes no steps",
    '`opt.state[p]["exp_avg"]`': "takes no steps",
    "`opt.state_dict()`, `load_state_dict`": "takes no steps",
    "`maximize=True`": (
        lambda: stepax.adam(RATE),
        lambda: of_torch("Adam", lr=RATE, maximize=True),
        "maximize",
    ),
    "`foreach=True`, `fused=True`": (
        lambda: stepax.adam(RATE),
        lambda: of_torch("Adam", lr=RATE, foreach=True),
        "",
    ),
    "`ZeroRedundancyOptimizer`, FSDP": "the same numbers on several devices",
    "`LBFGS` with a closure": "evaluates the loss",
    "`AdamW`": (
        lambda: stepax.adamw(RATE),
        lambda: of_torch("AdamW", lr=RATE),
        "`weight_decay` is 0.0001 in the first, 0.01 in the second",
    ),
    "`weight_decay` of `Adam`, `SGD`, `RMSprop`, ...": (
        lambda: stepax.adam(RATE, weight_decay=0.1),
        lambda: of_torch("Adam", **ADAM),
        "coupled",
    ),
    "`RMSprop`": (
        lambda: stepax.rmsprop(RATE),
        lambda: of_torch("RMSprop", lr=RATE),
        "`decay` is 0.9 in the first, 0.99 in the second",
    ),
    "`Adagrad`": (
        lambda: stepax.adagrad(RATE),
        lambda: of_torch("Adagrad", lr=RATE),
        "`initial_accumulator_value` is 0.1 in the first, 0",
    ),
    "learning rate": "as the first row",
}
# What the page says below its tables, and others that no table has.
MORE: dict[str, Any] = {
    "a scheduler": (
        lambda: stepax.sgd(stepax.linear_schedule(0.5, 0.1, 3)),
        lambda: of_torch("SGD", lr=0.5),
        "`learning_rate` is `linear_schedule`",
    ),
    "amsgrad": (
        lambda: stepax.adam(RATE),
        lambda: of_torch("Adam", lr=RATE, amsgrad=True),
        "`amsgrad`",
    ),
    "dampening": (
        lambda: stepax.sgd(RATE, momentum=0.9),
        lambda: of_torch("SGD", lr=RATE, momentum=0.9, dampening=0.5),
        "`dampening`",
    ),
    "Nesterov": (
        lambda: stepax.sgd(RATE, momentum=0.9),
        lambda: of_torch("SGD", lr=RATE, momentum=0.9, nesterov=True),
        "nesterov",
    ),
    "groups that decay": (
        lambda: stepax.adamw(RATE, weight_decay=0.1),
        lambda: of_torch("AdamW", {"weight_decay": 0.0}, {}, **ADAM),
        "'w': 0.1",
    ),
    "eps in the root of Adam": (
        lambda: stepax.adam(RATE, eps=0.1),
        lambda: stepax.adam(RATE, eps=0.0, eps_root=0.1),
        "eps",
    ),
    "eps in the root of RMSprop": (
        lambda: stepax.rmsprop(RATE, eps=0.1),
        lambda: of_torch("RMSprop", lr=RATE, alpha=0.9, eps=0.1),
        "`eps` is inside the root in one",
    ),
    "bias correction": (
        lambda: stepax.adam(RATE),
        lambda: stepax.chain(uncorrected(), stepax.scale_by_learning_rate(RATE)),
        "corrected for their bias",
    ),
    "decay before or after": (
        lambda: stepax.chain(
            stepax.scale_by_adam(), stepax.add_decayed_weights(0.1), stepax.scale(-0.1)
        ),
        lambda: stepax.chain(
            stepax.add_decayed_weights(0.1), stepax.scale_by_adam(), stepax.scale(-0.1)
        ),
        "the order of `scale_by_adam` and `add_decayed_weights`",
    ),
    "independent decay": (
        lambda: stepax.adamw(RATE, weight_decay=0.1),
        lambda: stepax.adamw(
            RATE, weight_decay=stepax.weight_decay(0.1, "independent")
        ),
        "weight_decay",
    ),
    "vectors that decay": (
        lambda: stepax.adamw(RATE, weight_decay=0.1),
        lambda: hidden(stepax.adamw(RATE, weight_decay={"w": 0.1, "b": 0.0})),
        "vectors decay in one only",
    ),
    "a late schedule": (
        lambda: stepax.sgd(lambda count: 0.1 / (count + 1.0)),
        lambda: hidden(stepax.sgd(ahead)),
        "one step ahead",
    ),
    "a clip": (
        lambda: stepax.chain(clip, stepax.sgd(RATE)),
        lambda: of_torch("SGD", lr=RATE),
        "`clip_by_global_norm` is in one only",
    ),
}


def uncorrected():
    """Adam without bias corrections, as a stranger writes it."""

    def init(params):
        zeros = {k: jnp.zeros_like(p) for k, p in params.items()}
        return zeros, zeros

    def update(g, state, params=None):
        mu, nu = state
        mu = {k: 0.9 * mu[k] + 0.1 * x for k, x in g.items()}
        nu = {k: 0.999 * nu[k] + 0.001 * x**2 for k, x in g.items()}
        return {k: m / (jnp.sqrt(nu[k]) + 1e-8) for k, m in mu.items()}, (mu, nu)

    return stepax.GradientTransformation(init, update)


def hidden(tx):
    """A transformation of which nothing is known."""
    return stepax.GradientTransformation(
        tx.init, lambda g, state, params=None: tx.update(g, state, params)
    )


@pytest.mark.project
def test_each_row_of_the_page_has_a_case():
    cells = [
        line.split(" | ")[0].removeprefix("| ")
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| ---")
    ]
    # `test_as_torch_schedulers.py` has the rows of schedulers.
    scheduler = re.compile(r"`\w+(LR|Scheduler|Restarts)\(")
    shown = [x for x in cells if x not in ("PyTorch", "|") and not scheduler.match(x)]
    assert {x.strip() for x in shown} - {""} == set(ROWS)


CASES = {k: x for k, x in {**ROWS, **MORE}.items() if not isinstance(x, str)}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CASES)
def test_the_difference_is_named(name):
    make, make_other, words = CASES[name]
    a, b = make(), make_other()
    found = compare(a, b, gradients())
    assert bool(found) == bool(words)
    if words:
        assert words in str(found)
        assert found.step in (1, 2, 3) and found.path in SHAPES
        assert found.difference > 1e-5
    assert not compare(a, make(), gradients())


def test_the_first_step_and_the_path_are_those_that_differ():
    tx = stepax.sgd(RATE)
    late = lambda count: jnp.where(count < 2, RATE, 0.3)
    other = stepax.partition(
        {"a": stepax.sgd(late), "b": stepax.sgd(RATE)}, {"w": "a", "b": "b"}
    )
    found = compare(tx, hidden(other), gradients())
    assert (found.step, found.path) == (3, "w")
    assert str(found).startswith("step 3, w: ")
    assert not found.causes and "no known difference" in str(found)


def test_nothing_given_is_changed():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    b = of_torch("AdamW", lr=RATE)
    assert compare(stepax.adamw(RATE), b, gradients())
    assert all((p == torch.ones_like(p)).all() for p in b.param_groups[0]["params"])
    assert not b.state and b.param_groups[0]["lr"] == RATE


def test_arrays_of_other_shapes_are_refused():
    b = of_torch("SGD", lr=RATE)
    with pytest.raises(ValueError, match="in the order and the shapes of"):
        compare(stepax.sgd(RATE), b, [{"w": jnp.ones((3, 2)), "b": jnp.ones(3)}])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda a, g: compare(a, a, g[0]),
            "`gradients` is of type dict, expected a list with",
        ),
        (lambda a, g: compare(a, a, []), "`gradients` is empty, expected those of"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(stepax.sgd(RATE), gradients())

"""Optax's own transformations are opened: rules find in them what they find in ours."""

import inspect
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax as typed
import optax.contrib
import pytest
from cases import ROWS
from loops import each

import stepax


optax: Any = typed  # whose types are not ours
P = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
LABELS = {"w": "a", "b": "b"}
LOUD = optax.chain(optax.adam(1e-3), optax.clip_by_global_norm(1.0))
GIVEN = {"learning_rate": 1e-3, "decay": 0.9, "key": 0}


def theirs():
    """Optax's optimizers of the same names as ours, that need no other argument."""
    for name, row in ROWS.items():
        if row.kind != "optimizer" or name == "optimistic_adam":  # which warns
            continue
        made = getattr(optax, name, None) or getattr(optax.contrib, name, None)
        if made is None:
            continue
        known = inspect.signature(made).parameters
        given = {k: x for k, x in GIVEN.items() if k in known}
        needed = {k for k, p in known.items() if p.default is p.empty}
        if needed <= {*given, "kwargs"}:
            yield pytest.param(row.factory, made, given, id=name)


# They have parts that are not public, or whose closures hold too little.
SHUT = {"noisy_sgd", "dog", "dowg", "lbfgs", "sophia", "muon"}


@each(list(theirs()))
def test_what_is_found_in_ours_is_found_in_theirs(ours, made, given):
    """Alone, and followed by a clip, which is made for gradients."""
    for more in (lambda lib: [], lambda lib: [lib.clip_by_global_norm(1.0)]):
        tx = optax.chain(made(**given), *more(optax))
        wanted = stepax.diagnose(stepax.chain(ours(**given), *more(stepax)), P)
        found = stepax.diagnose(tx, P)
        if "not-opened" in found.codes:
            assert ours.__name__ in SHUT, found
            assert {*found.alarms.codes} <= {*wanted.alarms.codes}
        else:
            assert found.alarms.codes == wanted.alarms.codes


def test_most_optimizers_are_opened():
    names = {x.id for x in theirs()}
    assert len(names) > 25 and len(names & SHUT) < len(names) / 2


WRAPPED = {
    "alone": LOUD,
    "chain": optax.chain(optax.identity(), LOUD),
    "named_chain": optax.named_chain(("a", LOUD)),
    "of both": stepax.chain(optax.adam(1e-3), stepax.clip_by_global_norm(1.0)),
    "of both, ours first": optax.chain(stepax.adam(1e-3), optax.clip(1.0)),
    "inside of ours": stepax.apply_if_finite(LOUD, 3),
    "masked": optax.masked(LOUD, {"w": True, "b": False}),
    "partition": optax.partition({"a": LOUD, "b": optax.set_to_zero()}, LABELS),
    "MultiSteps": optax.MultiSteps(LOUD, 4),
    "MultiSteps, a pair": optax.MultiSteps(LOUD, 4).gradient_transformation(),
    "apply_if_finite": optax.apply_if_finite(LOUD, 3),
    "flatten": optax.flatten(LOUD),
    "with_extra_args_support": optax.with_extra_args_support(LOUD),
    "conditionally_transform": optax.conditionally_transform(LOUD, lambda step: True),
    "lookahead": optax.lookahead(LOUD, 5, 0.5),
    "sam": optax.contrib.sam(LOUD, optax.sgd(0.1)),
    "mechanize": optax.contrib.mechanize(LOUD),
    "pairs": optax.contrib.split_real_and_imaginary(LOUD),
    "injected": optax.chain(
        optax.inject_hyperparams(optax.adam)(1e-3), optax.clip_by_global_norm(1.0)
    ),
    "injected schedule": optax.chain(
        optax.inject_hyperparams(optax.adamw)(optax.linear_schedule(1.0, 0.1, 10)),
        optax.clip(1.0),
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_mistake_is_found_through_wrappers(name):
    found = stepax.diagnose(WRAPPED[name], P)
    assert "clip-after-scaling" in found.codes
    assert "not-opened" not in found.codes


def test_the_state_of_optax_is_read():
    tx = optax.inject_hyperparams(optax.adam)(optax.cosine_decay_schedule(1e-3, 10))
    with jax.numpy_dtype_promotion("standard"):  # for Optax's schedule
        state = tx.init(P)
        found = stepax.diagnose(tx, P, steps=100, state=state)
    assert found.alarms.codes == ("schedule-ends-early",)
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), P)
    assert "narrow-mean" in stepax.diagnose(optax.adam(1e-3), half).codes


ALONE = """
import jax.numpy as jnp, optax, stepax
tx = optax.chain(optax.adam(1e-3), optax.contrib.reduce_on_plateau())
print(stepax.diagnose(tx, {"w": jnp.ones(3)}).codes)
"""


@pytest.mark.slow
def test_contributed_ones_are_opened_before_ours_are_imported():
    said = subprocess.check_output([sys.executable, "-c", ALONE], text=True)
    assert said.split() == ["()"]


def own(count):
    return optax.GradientTransformation(
        lambda params: (), lambda g, state, params=None: (g, state)
    )


def test_what_is_not_opened_is_counted():
    tx = optax.chain(own(0), optax.adam(1e-3), own(1))
    (found,) = stepax.diagnose(tx, P)
    assert (found.code, found.severity, found.paths) == (
        "not-opened",
        "note",
        ("0", "2"),
    )
    assert found.message.startswith("2 transformations were not opened")
    (found,) = stepax.diagnose(stepax.chain(own(0), stepax.adam(1e-3)), P)
    assert found.message.startswith("1 transformation was not opened")
    assert "not-opened" not in stepax.diagnose(stepax.adam(1e-3), P).codes

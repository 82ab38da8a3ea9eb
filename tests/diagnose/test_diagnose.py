"""What `diagnose` is given and returns: bad input, failing rules, a trial step."""

import re
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from inside import CHECKS, Check
from museum.programs import EXHIBITS

import stepax
import stepax.contrib
from stepax._diagnose import diagnose as module
from stepax._diagnose.findings import SEVERITIES


# Of the contract, with which nothing may be missing.
CODES = """
    clip-before-orthogonalizer clip-after-scaling matrix-left-out
    matrix-taken-for-vectors rate-twice rate-never uphill decay-before-preconditioner
    decay-twice decay-on-vectors pattern-matches-nothing never-updated
    update-rounds-away narrow-mean eps-underflows schedule-in-micro-steps
    schedule-ends-early schedule-never-ends warmup-longer-than-run first-step-zero
    accumulation-of-nan integers averages-without-swap state-larger-than-parameters
""".split()


_ROUNDING = lambda tx: stepax.stochastic_rounding(tx, 0)


def _params(dtype: str = "float32") -> dict[str, jax.Array]:
    return {"kernel": jnp.ones((16, 16), dtype), "bias": jnp.ones(16, dtype)}


def _bits(tree) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def test_the_table_has_all_codes_and_says_what_to_do():
    assert set(CODES) <= {check.code for check in CHECKS}
    assert {check.severity for check in CHECKS} == set(SEVERITIES)
    for check in CHECKS:
        assert check.thread, check.code
        assert check.rule.__doc__, check.code


@pytest.mark.slow
def test_static_codes_are_found_without_values():
    static = {check.code for check in CHECKS if check.need == "static"}
    found, full = set(), []
    for exhibit in EXHIBITS:
        names = exhibit.names(exhibit.program)
        shapes = jax.eval_shape(lambda p=names["params"]: p)
        diagnosis = stepax.diagnose(names["tx"], shapes)
        found |= set(diagnosis.codes)
        full += [x for x in diagnosis if not (x.message and x.paths and x.cure)]
    assert static - found == set()
    assert full == []


_DIAGNOSE: Any = stepax.diagnose


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p: _DIAGNOSE(stepax.adam, p), TypeError, "`tx` of `diagnose`"),
        (lambda p: _DIAGNOSE(None, p), TypeError, "`tx` of `diagnose`"),
        (lambda p: _DIAGNOSE(_TX, p, steps=0), ValueError, "is 0, .* 1 or more"),
        (lambda p: _DIAGNOSE(_TX, p, steps=-1), ValueError, "is -1, .* 1 or more"),
        (lambda p: _DIAGNOSE(_TX, p, steps=2.5), ValueError, "2.5, .* whole number"),
        (lambda p: _DIAGNOSE(_TX, p, steps=True), ValueError, "True, .* whole number"),
        (lambda p: _DIAGNOSE(_TX, p, gradients=[1.0]), ValueError, "gradients"),
        (
            lambda p: _DIAGNOSE(_TX, p, gradients=p | {"bias": p["kernel"]}),
            ValueError,
            r"`gradients` has shape \(16, 16\) at \['bias'\], expected \(16,\)",
        ),
        (
            lambda p: _DIAGNOSE(_TX, p, gradients={"bias": p["bias"]}),
            ValueError,
            "only",
        ),
        (lambda p: _DIAGNOSE(_TX, p, gradients=p | {"bias": {}}), TypeError, "bias"),
    ],
)
def test_bad_input_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call(_params())


_TX = stepax.adam(1e-3)


@pytest.mark.parametrize("need", ["static", "run", "gradients", "step"])
def test_a_rule_that_fails_is_a_note(need, monkeypatch):
    def broken(*given):
        """A rule with a mistake."""
        raise KeyError("nothing here")
        yield

    over = "trials" if need == "step" else "whole"
    check = Check("broken", "error", need, over, broken, "none")
    monkeypatch.setattr(module, "CHECKS", (check, *CHECKS))
    tx, params = stepax.scale_by_adam(), _params()
    found = stepax.diagnose(tx, params, steps=10, gradients=params)
    assert set(found.codes) == {"check-failed", "rate-never"}
    (failed,) = [x for x in found if x.code == "check-failed"]
    assert failed.severity == "note"
    assert re.search("`broken` failed with KeyError: .*nothing here", failed.message)
    with pytest.raises(ValueError, match="rate-never") as raised:
        found.require()
    assert "broken" not in str(raised.value)  # notes are hidden
    assert "check-failed" not in stepax.describe(tx, _params()).warnings


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("row", cases.rows(kind="optimizer"))
def test_no_rule_fails_where_arrays_are_empty(row, dtype):
    params = {"w": jnp.zeros((0, 3), dtype), "b": jnp.zeros(0, dtype), "n": None}
    try:
        tx = cases.make(row)
        tx.init(params)
    except (TypeError, ValueError):
        pytest.skip("it does not take such parameters")
    assert "check-failed" not in stepax.diagnose(tx, params, steps=10).codes


def test_a_step_that_fails_is_a_note():
    tx = stepax.polyak_sgd()  # it needs the loss
    found = stepax.diagnose(tx, _params(), gradients=_params())
    (failed,) = [x for x in found if x.code == "check-failed"]
    assert "the trial step failed" in failed.message
    found.require()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_trial_step_leaves_its_arguments(dtype):
    params, gradients = _params(dtype), _params(dtype)
    tx = stepax.chain(stepax.clip_by_global_norm(1.0), stepax.adam(0.1))
    state = tx.init(params)
    given = params, gradients, state
    before = _bits(given)
    found = stepax.diagnose(tx, params, gradients=gradients, state=state)
    assert _bits(given) == before
    assert not any(x.is_deleted() for x in jax.tree.leaves(given))
    assert "check-failed" not in found.codes
    assert "update-rounds-away" not in found.codes


@pytest.mark.parametrize("wrap", [stepax.master_weights, _ROUNDING])
def test_parameters_that_are_kept_elsewhere_may_stand_still(wrap):
    params = _params("bfloat16")
    tx = wrap(stepax.sgd(1e-5))
    assert stepax.diagnose(tx, params, gradients=params).alarms == ()


def test_masks_of_what_a_wrapper_passes_on_are_not_guessed():
    # Lists, not patterns of paths, which fit to the pair of parameters as well.
    tx = stepax.lookahead(stepax.masked(stepax.adam(0.1), [True, True]), 5, 0.5)
    params = stepax.LookaheadParams.init_synced([jnp.ones(3), jnp.ones(3)])
    assert stepax.diagnose(tx, params).codes == ()
    assert "masked" in str(stepax.describe(tx, params))


def test_signs_of_schedules_in_functions_of_users_are_read():
    make = lambda rate: stepax.chain(stepax.scale_by_adam(), stepax.scale(rate))
    schedule = lambda count: 0.1 / (1.0 + jnp.asarray(count, float))
    tx = stepax.inject_hyperparams(make)(schedule)
    assert stepax.diagnose(tx, _params()).codes == ("uphill",)


def test_gradients_that_are_negated_first_are_meant_to_be_climbed():
    tx = stepax.chain(stepax.scale(-1.0), stepax.adam(0.1))  # `maximize` of PyTorch
    assert stepax.diagnose(tx, _params()).codes == ()
    tx = stepax.chain(stepax.adam(0.1), stepax.scale(-1.0))
    assert stepax.diagnose(tx, _params()).codes == ("uphill",)


def test_steps_that_round_away_are_seen_in_float16():
    params = jax.tree.map(lambda p: 100 * p, _params("float16"))
    found = stepax.diagnose(stepax.sgd(1e-3), params, gradients=_params("float16"))
    assert found.codes == ("update-rounds-away",)
    assert set(found[0].paths) == {"bias", "kernel"}


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_gradients_that_are_not_finite_are_named(value):
    gradients = _params() | {"bias": jnp.full(16, value)}
    found = stepax.diagnose(_TX, _params(), gradients=gradients)
    assert found.codes == ("not-finite",)
    assert found[0].paths == ("bias",)


def test_shapes_are_not_run():
    def update(u, s, p=None):
        raise AssertionError("a step was run")

    tx: Any = stepax.GradientTransformation(lambda params: (), update)
    params = _params()
    shapes = jax.eval_shape(lambda: params)
    for p, g in (shapes, params), (shapes, shapes), (params, shapes):
        assert "check-failed" not in stepax.diagnose(tx, p, gradients=g).codes
    assert "check-failed" in stepax.diagnose(tx, params, gradients=params).codes


def test_a_trial_step_works_on_a_mesh():
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    params = jax.device_put(_params(), split)
    found = stepax.diagnose(_TX, params, gradients=params)
    assert found == ()
    assert all(p.sharding == split for p in jax.tree.leaves(params))


def test_counts_and_hyperparameters_are_those_of_the_state():
    tx = stepax.inject_hyperparams(stepax.sgd)(learning_rate=0.1)
    state = tx.init(_params())
    state.hyperparams["learning_rate"] = jnp.asarray(-0.1)
    assert stepax.diagnose(tx, _params()).codes == ()
    assert stepax.diagnose(tx, _params(), state=state).codes == ("uphill",)


_INJECTED = stepax.inject_hyperparams(stepax.adam)
_ZERO = stepax.constant_schedule(0.0)
_BY_LABEL = stepax.partition(
    {"a": _INJECTED(0.0), "b": stepax.adam(1e-3)}, {"bias": "a", "**": "b"}
)
_TIMES_ONE = stepax.chain(
    stepax.adam(1.0), stepax.scale_by_learning_rate(0.1, flip_sign=False)
)


@pytest.mark.parametrize(
    ("tx", "steps", "tries", "codes"),
    [
        # It may be there only for `init`, unless it is said to run.
        (stepax.adam(0.0), None, False, ()),
        (stepax.adam(0.0), 100, False, ("never-updated",)),
        (stepax.adam(0.0), None, True, ("never-updated",)),
        (stepax.adam(_ZERO), None, False, ("never-updated",)),
        # It is set in the state, unless a schedule sets it.
        (_INJECTED(0.0), 100, True, ()),
        (_INJECTED(learning_rate=jnp.zeros(())), 100, True, ()),
        (_BY_LABEL, 100, True, ()),
        (_INJECTED(_ZERO), 100, False, ("never-updated",)),
        (_TIMES_ONE, 100, True, ()),
    ],
)
def test_a_rate_that_is_set_later_is_no_mistake(tx, steps, tries, codes):
    gradients = _params() if tries else None
    found = stepax.diagnose(tx, _params(), steps=steps, gradients=gradients)
    assert found.codes == codes


_ZERO_ALL = stepax.set_to_zero()
_LABELS = {"train": stepax.adam(1e-3), "freeze": _ZERO_ALL}


@pytest.mark.parametrize(
    ("tx", "codes"),
    [
        (stepax.partition(_LABELS, {"**": "freeze"}), ("never-updated",)),
        (stepax.partition(_LABELS, {"bias": "train", "**": "freeze"}), ()),
        (
            stepax.chain(stepax.sgd(0.1), stepax.freeze({"**": True})),
            ("never-updated",),
        ),
        (stepax.chain(stepax.sgd(0.1), stepax.freeze({"bias": True, "**": False})), ()),
        (_ZERO_ALL, ()),  # it does what it says
    ],
)
def test_freezing_all_parameters_is_told(tx, codes):
    found = stepax.diagnose(tx, _params())
    assert found.codes == codes
    if codes:
        assert set(found[0].paths) == {"bias", "kernel"}


def test_static_checks_allocate_no_parameters():
    huge = jax.ShapeDtypeStruct((2**21, 2**20), "float32")  # eight terabytes
    shapes = {"kernel": huge, "bias": jax.ShapeDtypeStruct((2**40,), "float32")}
    makers = stepax.adam, stepax.adafactor, stepax.lion, stepax.contrib.muon
    parts = [stepax.clip_by_global_norm(1.0), stepax.add_decayed_weights(1e-4)]
    for make in makers:
        tx = stepax.chain(*parts, stepax.inject_hyperparams(make)(0.1))
        tx = stepax.MultiSteps(tx, 2).gradient_transformation()
        found = stepax.diagnose(tx, shapes, steps=1000)
        assert "check-failed" not in found.codes


def test_a_schedule_without_an_end_is_not_too_long():
    falling = lambda t: 0.1 / (1.0 + t)
    tx = stepax.MultiSteps(stepax.sgd(falling), 2).gradient_transformation()
    assert stepax.diagnose(tx, _params(), steps=100).alarms == ()


def test_schedules_of_frozen_parameters_are_not_compared_with_a_run():
    short = stepax.cosine_decay_schedule(0.1, 4)
    tx = stepax.chain(stepax.sgd(short), stepax.freeze({"kernel": True, "bias": False}))
    (found,) = stepax.diagnose(tx, _params(), steps=100)
    assert (found.code, found.paths) == ("schedule-ends-early", ("bias",))


def test_parts_that_a_number_would_leave_out_are_described():
    tx = stepax.inject_hyperparams(stepax.contrib.shampoo)(1e-3)  # with momentum
    assert stepax.diagnose(tx, _params()).alarms == ()
    assert "trace" in str(stepax.describe(tx, _params()))


def test_findings_print_with_errors_first():
    tx = stepax.chain(
        stepax.scale_by_adam(), stepax.clip(1.0), stepax.add_decayed_weights(1e-4)
    )
    found = stepax.diagnose(tx, _params())
    assert found
    assert found.codes == ("rate-never", "clip-after-scaling", "decay-on-vectors")
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["error", "warning", "note"]
    assert len(stepax.describe(tx, _params()).warnings) == len(found.alarms) == 2
    assert str(stepax.diagnose(_TX, _params())) == "nothing found"
    assert all(x.link == f"docs/mistakes.md#{x.code}" for x in found)


_PAIR = stepax.MultiSteps(stepax.sgd(0.1), 4).gradient_transformation()
_IN_STEPS = [
    stepax.with_weight_decay(_PAIR, 0.1, 0.1),
    stepax.averages(_PAIR, 0.9),
    stepax.contrib.gpa(_PAIR),
    stepax.contrib.ema_nesterov(_PAIR, 0.5),
    stepax.chain(_PAIR, stepax.zero_nans()),
    stepax.chain(_PAIR, stepax.scale_by_rss()),
    stepax.contrib.diloco(_PAIR, stepax.sgd(0.7, momentum=0.9, nesterov=True)),
    stepax.MultiSteps(stepax.adamw(0.1), 4),
]


def test_what_acts_in_steps_may_be_outside_of_an_accumulation():
    codes = [stepax.diagnose(tx, _params()).codes for tx in _IN_STEPS]
    assert not [x for found in codes for x in found if x.endswith("micro-steps")]


def test_an_accumulation_of_optax_is_one_too():
    pair = optax.MultiSteps(optax.sgd(0.1), 4).gradient_transformation()
    tx: Any = optax.chain(pair, optax.trace(0.9))
    assert "momentum-in-micro-steps" in stepax.diagnose(tx, _params()).codes

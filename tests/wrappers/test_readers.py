"""What reads parameters out of a state reads the present ones, or says which there are.

Wrappers may hold the state of another transformation twice, as a copy or for a second
optimizer; nothing of this is read, and nothing of it is written.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_equal
from inside import spell
from runs import compare
from wrappers import WRAPPERS

import stepax
from stepax import contrib
from stepax.experimental import _variance


def params(dtype: Any = jnp.float32) -> Any:
    return {
        "w": jnp.linspace(0.4, 1.6, 6, dtype=dtype).reshape(2, 3),
        "b": jnp.ones(3, dtype),
    }


def _set(state: Any, p: Any) -> Any:
    """Master weights that have been written, as they are read."""
    new = jax.tree.map(lambda p: p.astype(jnp.float32) * 1.001 + 0.0123, p)
    p, state = stepax.set_master_params(p, state, new)
    found = stepax.master_params(p, state)
    # Parameters without master weights are rounded.
    assert_equal(found, jax.tree.map(lambda x, y: y.astype(x.dtype), found, new))
    return found


# From a transformation to one whose state is read; the class of that state; the reader.
READERS: dict[str, tuple[Any, str, Any]] = {
    "eval_params": (
        lambda tx: stepax.averages(tx, 0.5),
        "AverageState",
        lambda state, p: stepax.eval_params(state, p),
    ),
    "eval_params, remainder": (
        lambda tx: stepax.averages(tx, 0.5, remainder=16),
        "AverageState",
        lambda state, p: stepax.eval_params(state, p, blend=0.5),
    ),
    "eval_params, named": (
        lambda tx: stepax.averages(tx, {"fast": 0.5, "slow": 0.9}),
        "AveragesState",
        lambda state, p: stepax.eval_params(state, p, "slow"),
    ),
    "swap_averages": (
        lambda tx: stepax.averages(tx, 0.5),
        "AverageState",
        lambda state, p: stepax.swap_averages(state, p)[1],
    ),
    "schedule_free": (
        lambda tx: contrib.schedule_free(tx, 0.1),
        "ScheduleFreeState",
        contrib.schedule_free_eval_params,
    ),
    "gpa": (
        lambda tx: stepax.chain(contrib.gpa(tx)),
        "GPAState",
        stepax.eval_params,
    ),
    "ema_nesterov": (
        lambda tx: contrib.ema_nesterov(tx, 0.5),
        "EmaNesterovState",
        stepax.eval_params,
    ),
    "splus": (
        lambda tx: contrib.splus(0.1),
        "SPlusAverageState",
        stepax.eval_params,
    ),
    "master_params": (
        stepax.master_weights,
        "MasterWeightsState",
        lambda state, p: stepax.master_params(p, state),
    ),
    "master_params, remainder": (
        lambda tx: stepax.master_weights(tx, remainder=16),
        "MasterWeightsState",
        lambda state, p: stepax.master_params(p, state),
    ),
    "set_master_params": (stepax.master_weights, "MasterWeightsState", _set),
    "set_master_params, remainder": (
        lambda tx: stepax.master_weights(tx, remainder=16),
        "MasterWeightsState",
        _set,
    ),
}


def _held(make: Any, wrap: Any, dtype: Any, p: Any = None) -> tuple[Any, Any]:
    """Parameters and state after some steps, which differ from each other."""
    tx = wrap(make(stepax.sgd(0.1)))
    p = params(dtype) if p is None else p
    state = tx.init(p)
    step = jax.jit(lambda p, state: tx.update(p, state, p, value=jnp.float32(1.0)))
    for _ in range(3):
        u, state = step(p, state)
        p = stepax.apply_updates(p, u)
    return p, state


def _dtype(name: str) -> Any:
    return jnp.bfloat16 if "master" in name or "remainder" in name else jnp.float32


TWICE = {
    "rollback": lambda tx: stepax.rollback(tx, 2),
    "rollback twice": lambda tx: stepax.rollback(stepax.rollback(tx, 2), 3),
    "sam": lambda tx: contrib.sam(tx, tx, 1),
    "sam in rollback": lambda tx: stepax.rollback(contrib.sam(tx, tx, 1), 2),
    "rollback in MultiSteps": lambda tx: stepax.MultiSteps(stepax.rollback(tx, 2), 1),
    "rollback in a partition": lambda tx: stepax.partition(
        {"a": stepax.rollback(tx, 2), "b": stepax.rollback(tx, 2)},
        {"w": "a", "b": "b"},
    ),
    "flatten": stepax.flatten,
    "flatten in rollback": lambda tx: stepax.rollback(stepax.flatten(tx), 2),
    "flatten by path": lambda tx: stepax.flatten(
        stepax.chain(tx, stepax.scale_by_path({"w": 1.0, "b": 0.5}))
    ),
}


@pytest.mark.few(7)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("wrapper", TWICE)
def test_of_two_copies_the_present_one_is_read(wrapper, reader):
    if "flatten" in wrapper and reader == "splus":
        pytest.skip("it acts on matrices, of which a vector has none")
    make, _, read = READERS[reader]
    wrap = TWICE[wrapper]
    if "by path" in wrapper:
        alone = lambda tx: stepax.chain(tx, stepax.scale_by_path({"w": 1.0, "b": 0.5}))
    else:
        alone = lambda tx: tx
    p, state = _held(make, alone, _dtype(reader))
    expected = read(state, p)
    p, state = _held(make, wrap, _dtype(reader))
    if "set_" in reader and "flatten" in wrapper:
        with pytest.raises(ValueError, match="`flatten`"):
            read(state, p)
        return
    assert_equal(read(state, p), expected)


@pytest.mark.few(3)
@pytest.mark.parametrize("reader", READERS)
def test_packed_parameters_are_read_as_others(reader):
    make, _, read = READERS[reader]
    p, state = _held(make, lambda tx: tx, _dtype(reader))
    expected = read(state, p)
    packed = stepax.tree.pack(params(_dtype(reader)))
    q, state = _held(make, lambda tx: tx, _dtype(reader), packed)
    found = read(state, q)
    assert jax.tree.structure(found) == jax.tree.structure(packed)
    assert_equal(found.unpack(), expected)


# What is inside sees vectors, or pairs of real arrays.
SHOWN = {
    "flatten": stepax.flatten,
    "pairs": contrib.split_real_and_imaginary,
    "pairs of vectors": lambda tx: stepax.flatten(contrib.split_real_and_imaginary(tx)),
    "vectors of pairs": lambda tx: contrib.split_real_and_imaginary(stepax.flatten(tx)),
}
# Those of matrices, and what writes the state.
OF_TREES = "splus", "set_master_params", "set_master_params, remainder"


def _of_two_dtypes(reader: str) -> Any:
    narrow = jnp.complex64 if _dtype(reader) == jnp.float32 else jnp.bfloat16
    return {"w": params(narrow)["w"] * 1.5, "b": params()["b"]}


def _stepped(tx: Any, p: Any) -> tuple[Any, Any]:
    state = tx.init(p)
    for i in range(2):
        g = jax.tree.map(lambda p, i=i: (p - 0.3 * i).astype(p.dtype), p)
        u, state = tx.update(g, state, p, value=jnp.float32(1.0))
        p = stepax.apply_updates(p, u)
    return p, state


@pytest.mark.few(4)
@pytest.mark.parametrize("reader", [k for k in READERS if k not in OF_TREES])
@pytest.mark.parametrize("shown", SHOWN)
def test_a_state_of_other_arrays_is_read(shown, reader):
    make, _, read = READERS[reader]
    p = _of_two_dtypes(reader)
    (q, state), (r, plain) = (
        _stepped(wrap(make(stepax.sgd(0.1))), p)
        for wrap in (SHOWN[shown], stepax.chain)
    )
    compare(_same, read(state, q), read(plain, r))


def _same(x: Any, y: Any) -> None:
    np.testing.assert_allclose(x.astype(y.dtype), y, rtol=1e-6)


@pytest.mark.parametrize("reader", [k for k in READERS if k not in OF_TREES])
def test_a_vector_of_some_parameters_is_read_by_itself(reader):
    make, _, read = READERS[reader]
    inside = stepax.flatten(make(stepax.sgd(0.1)))
    tx = stepax.partition({"a": inside, "b": stepax.sgd(0.1)}, {"w": "a", "b": "b"})
    p = params(_dtype(reader))
    state = tx.init(p)
    with pytest.raises(ValueError, match="joins inside of a mask; pass its part"):
        read(state, p)
    found = read(state.inner_states["a"].inner_state, {"w": p["w"]})
    assert_equal(found["w"], p["w"].astype(found["w"].dtype))


@pytest.mark.few(3)
@pytest.mark.parametrize("wrapper", [k for k in TWICE if "partition" not in k])
def test_the_noise_scale_is_that_of_the_present_steps(wrapper):
    def read(wrap):
        steps = stepax.MultiSteps(stepax.sgd(0.1), 2).gradient_transformation()
        noise = stepax.metrics.noise_scale(4)
        return stepax.tree.flat(
            _stepped(stepax.observe(wrap(steps), {"noise": noise}), params())[1].metrics
        )

    wanted = read(stepax.chain)
    assert wanted["noise/trace"] > 0
    if wrapper == "rollback in MultiSteps":
        with pytest.raises(ValueError, match="found 2 states, at the root, .*one `M"):
            read(TWICE[wrapper])
        return
    compare(_same, read(TWICE[wrapper]), wanted)


# Every wrapper: a state of it, or of one inside, is read as if it were alone.
IS_ASIDE = ("kept_state", "adv_state")
# What `eval_params` reads: of two kinds it would have to choose.
KINDS = (
    "AverageState",
    "EmaNesterovState",
    "GPAState",
    "SPlusAverageState",
    "ScheduleFreeState",
)


@pytest.mark.few(7)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_wrapper_is_read_like_the_state_inside_of_it(wrapper, reader):
    make, name, read = READERS[reader]
    p, state = _held(make, WRAPPERS[wrapper], _dtype(reader))
    found = [
        x
        for path, x in stepax.tree.get_all_with_path(state, name)
        if not any(word in spell(path) for word in IS_ASIDE)
    ]
    if not found:
        pytest.skip("its state has no such state")
    if "set_" in reader and wrapper == "flatten":
        pytest.skip("it is refused, as the test above shows")
    kept = [k for k in KINDS if stepax.tree.get_all_with_path(state, k)]
    is_asked = read is stepax.eval_params or reader.startswith("eval_params")
    if is_asked and name in KINDS and len(kept) > 1:
        with pytest.raises(ValueError, match="`eval_params`: the state holds `"):
            read(state, p)
        return
    stored = [x for x in found if jax.tree.leaves(getattr(x, "masters", 0))]
    found = stored or found[:1]
    if len(found) > 1:
        with pytest.raises(ValueError, match="pass the part"):
            read(state, p)
        return
    assert_equal(read(state, p), read(found[0], p))


PAIRS = {
    "chain": lambda make: stepax.chain(make(stepax.sgd(0.1)), make(stepax.identity())),
    "nested": lambda make: make(make(stepax.sgd(0.1))),
    "outer": lambda make: contrib.diloco(
        make(stepax.sgd(0.1)), make(stepax.sgd(0.7)), 2
    ),
}
# Splus has no inner transformation, and master weights have no master weights.
ALONE = [("nested", k) for k in READERS if k == "splus" or "master" in k]


@pytest.mark.parametrize(
    "pair, reader", [(a, b) for a in PAIRS for b in READERS if (a, b) not in ALONE]
)
def test_two_present_states_of_a_parameter_are_named(pair, reader):
    make, _, read = READERS[reader]
    p = params(_dtype(reader))
    state = PAIRS[pair](make).init(p)
    with pytest.raises(ValueError, match="the states at .* and .*; pass the part"):
        read(state, p)


@pytest.mark.parametrize("remainder", [None, 16, 8])
@pytest.mark.parametrize("wrapper", ["rollback", "sam"])
def test_what_is_kept_aside_is_not_written(wrapper, remainder):
    wrap = TWICE[wrapper]
    make = lambda tx: stepax.master_weights(tx, remainder=remainder)
    p, state = _held(make, wrap, jnp.bfloat16)
    new = jax.tree.map(lambda p: p.astype(jnp.float32) + 0.0123, p)
    changed = stepax.set_master_params(p, state, new)[1]
    field = "kept_state" if wrapper == "rollback" else "adv_state"
    assert_equal(getattr(changed, field), getattr(state, field))


@pytest.mark.parametrize("wrapper", ["rollback", "sam"])
def test_a_search_reads_its_present_results(wrapper):
    tx = TWICE[wrapper](stepax.lbfgs())
    p = params()
    state = tx.init(p)
    field = {"rollback": "inner_state", "sam": "opt_state"}[wrapper]
    inner = stepax.tree.set(getattr(state, field), value=jnp.float32(3.0))
    read = stepax.value_and_grad_from_state(stepax.tree.sum)
    assert jnp.isfinite(read(p, state=state)[0])
    assert read(p, state=state._replace(**{field: inner}))[0] == 3.0


def test_a_variance_is_read_from_the_present_state():
    tx = _variance.track_per_element_mean_and_variance_with_ema()
    state = stepax.rollback(tx, 2).init(params())
    mean, _ = _variance.get_unbiased_mean_and_variance_ema(state)
    assert_equal(mean, jax.tree.map(jnp.zeros_like, params()))


def test_a_copy_is_read_where_it_is_asked_for():
    p, state = _held(READERS["gpa"][0], TWICE["rollback"], jnp.float32)
    kept = stepax.eval_params(state.kept_state, p)
    assert not (kept["w"] == stepax.eval_params(state, p)["w"]).all()

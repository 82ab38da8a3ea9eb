"""A run of Optax goes on in Stepax, and a run of Stepax in Optax, from any step.

The rows are those of the registry that Optax has, and what wrappers make of them.
"""

import dataclasses
import functools as ft
import inspect
import pickle
import subprocess
import sys
from collections import namedtuple
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax as real_optax
import optax.contrib
import orbax.checkpoint
import pytest
from cases import make
from flax import nnx
from flax.training.train_state import TrainState
from inside import ROWS

import stepax as real_stepax
from stepax.interop.optax import installed, to_optax, to_stepax


# To a type checker two libraries that know nothing of each other do not mix.
optax: Any = real_optax
stepax: Any = real_stepax

STEPS = 20


# Optax's code needs the usual promotion of dtypes and ranks.
@pytest.fixture(autouse=True)
def standard(strict):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def factory_of_optax(row) -> Any:
    return getattr(optax, row.name, getattr(optax.contrib, row.name, None))


OUT = {
    "monitor",  # starts with a state of another structure; it has its own test
    "scale_by_lbfgs",  # is in `lbfgs`, and slow to compile
    "scale_by_zoom_linesearch",  # likewise
    "scale_by_muon",  # takes one matrix alone, if it is not told more; see `muon`
}
PLAIN = [
    row
    for row in ROWS.values()
    if row.kind in ("optimizer", "transform") and factory_of_optax(row)
    if row.name not in OUT
]
# Each takes the library, ours or Optax.
BOTH = {"w": True, "b": False}
WRAPPED = {
    "chain": lambda o: o.chain(o.clip_by_global_norm(1.0), o.adamw(1e-2, mask=BOTH)),
    "named_chain": lambda o: o.named_chain(
        ("clip", o.clip(0.5)), ("lion", o.lion(0.1))
    ),
    "inject": lambda o: o.inject_hyperparams(o.adam)(o.linear_schedule(0.1, 0.0, 50)),
    "masked": lambda o: o.masked(o.adam(1e-2), BOTH),
    "partition": lambda o: o.partition(
        {"a": o.masked(o.adam(1e-2), BOTH), "f": o.sgd(0.1, 0.9)}, {"w": "a", "b": "f"}
    ),
    "MultiSteps": lambda o: o.MultiSteps(
        o.chain(o.clip(1.0), o.adam(1e-2)), 3, should_skip_update_fn=o.skip_not_finite
    ),
    "apply_if_finite": lambda o: o.apply_if_finite(
        o.inject_hyperparams(o.rmsprop)(1e-2), 3
    ),
    "conditionally": lambda o: o.conditionally_transform(o.adam(1e-2), lambda t: t > 9),
    "flatten": lambda o: o.flatten(o.adam(1e-2)),
}


def of_row(row):
    theirs = factory_of_optax(row)

    def build(o):
        factory: Any = ft.partial(row.factory if o is stepax else theirs)
        factory.__signature__ = inspect.signature(theirs)  # options of ours stay out
        return make(dataclasses.replace(row, factory=factory))

    return build


BUILDS = {row.name: of_row(row) for row in PLAIN} | WRAPPED
everyone = pytest.mark.parametrize("name", BUILDS)


def loss(t, params):
    """Gradients depend on parameters a little, so that errors grow, but not fast."""

    def one(p):
        slopes = jnp.sin(t + jnp.arange(p.size, dtype=p.dtype)).reshape(p.shape)
        return jnp.sum(0.1 * jnp.square(p - 0.3) + p * slopes)

    return 8 + sum(map(one, jax.tree.leaves(params)))


def first_parameters():
    return {"w": jnp.linspace(-0.5, 1.0, 6).reshape(2, 3), "b": jnp.linspace(0.1, 1, 3)}


def steps(tx, params, state, start):
    """Parameters and state after some steps, in one program."""
    update = optax.with_extra_args_support(tx).update

    def step(carry, t):
        params, state = carry
        value_fn = ft.partial(loss, t)
        value, g = jax.value_and_grad(value_fn)(params)
        extra = {"value": value, "grad": g, "value_fn": value_fn}
        updates, state = update(g, state, params, **extra)
        return (optax.apply_updates(params, updates), state), None

    times = start + jnp.arange(STEPS, dtype=jnp.float32)
    return jax.lax.scan(step, (params, state), times)[0]


@ft.cache
def run_of_optax(name):
    """Parameters and state at half time and at the end."""
    tx = BUILDS[name](optax)
    run = jax.jit(ft.partial(steps, tx))
    params = first_parameters()
    half = run(params, tx.init(params), 0.0)
    return half, run(*half, float(STEPS))


def numbers(tree):
    """The leaves as NumPy arrays, random keys as their bits."""
    is_key = lambda x: jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)
    leaves = jax.tree.leaves(tree)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in leaves]


def assert_close(found, wanted, ulps=0):
    """Equal dtypes, and values up to some units in the last place of the largest."""
    for x, y in zip(numbers(found), numbers(wanted), strict=True):
        assert x.dtype == y.dtype
        is_near = ulps and x.dtype.kind == "f" and x.size
        atol = ulps * np.spacing(np.max(np.abs(y))) if is_near else 0
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


def types(tree):
    """The class of each node and the path to it."""
    if not isinstance(tree, tuple | dict):
        return None
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return type(tree), {key: types(x) for key, x in pairs}


def bowl(p):
    return jnp.sum(jnp.arange(1.0, 5.0) * jnp.cosh(p)) + 0.3 * jnp.sum(p[1:] * p[:-1])


def descend(tx, params, state, count):
    """Steps of L-BFGS, each of which takes the first that its search tries."""
    for _ in range(count):
        value, g = jax.value_and_grad(bowl)(params)
        extra = {"value": value, "grad": g, "value_fn": bowl}
        updates, state = tx.update(g, state, params, **extra)
        params = optax.apply_updates(params, updates)
        assert state[-1].info.num_linesearch_steps == 1
    return params, state


@pytest.mark.slow
def test_a_run_of_lbfgs_goes_on_in_stepax(x64):
    # Where a search tries more, ours interpolates otherwise, and better.
    theirs, ours = optax.lbfgs(), stepax.lbfgs()
    start = jnp.linspace(-1.2, 1.0, 4)
    params, saved = descend(theirs, start, theirs.init(start), 3)
    wanted, _ = descend(theirs, params, saved, 3)
    state = to_stepax(pickle.loads(pickle.dumps(saved)))
    found, _ = descend(ours, params, state, 3)
    assert bowl(wanted) - bowl(jnp.zeros(4)) > 1e-6
    # The curvature pairs grow roundings of 1e-16.
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


# Where L-BFGS stands still, as on this loss, ours remembers pairs without curvature as
# zeros; see the test above.
@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted(BUILDS.keys() - {"lbfgs"}))
def test_a_run_of_optax_goes_on_in_stepax(name):
    """Twenty steps of Optax, then twenty of ours.

    Programs that are fused differently differ by two ulps a step at most, which add up.
    """
    (params, saved), wanted = run_of_optax(name)
    tx = BUILDS[name](stepax)
    state = to_stepax(pickle.loads(pickle.dumps(saved)))
    assert types(state) == types(tx.init(params))
    found = jax.jit(ft.partial(steps, tx))(params, state, float(STEPS))
    assert_close(found, wanted, ulps=2 * STEPS)


@pytest.mark.few(3)
@everyone
def test_conversion_goes_back_and_keeps_the_values(name):
    (_, saved), _ = run_of_optax(name)
    state, same = to_stepax(saved), to_optax(saved)
    if "stepax" not in str(types(saved)):  # some inner transformations are ours
        assert types(same) == types(saved)
    assert types(to_stepax(state)) == types(state)
    assert types(to_optax(state)) == types(same)
    assert_close(to_optax(state), saved)


def saved_states():
    return {name: run_of_optax(name)[0][1] for name in BUILDS}


def empty_states():
    return {name: BUILDS[name](stepax).init(first_parameters()) for name in BUILDS}


WITHOUT_OPTAX = """
import pickle, sys

class Absent:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "optax":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent)
from stepax.interop.optax import installed
with installed(), open(sys.argv[1], "rb") as file:
    states = pickle.load(file)
try:
    import optax
except ModuleNotFoundError:
    pickle.dump(states, open(sys.argv[2], "wb"))
"""


@pytest.mark.slow
def test_pickles_of_optax_are_read_where_there_is_no_optax(tmp_path):
    saved = saved_states()
    (tmp_path / "theirs").write_bytes(pickle.dumps(saved))
    files = [tmp_path / "theirs", tmp_path / "ours"]
    subprocess.run([sys.executable, "-c", WITHOUT_OPTAX, *files], check=True)
    found = pickle.loads((tmp_path / "ours").read_bytes())
    assert types(found) == types(empty_states())
    assert_close(found, saved)


@pytest.mark.slow
def test_checkpoints_of_optax_are_restored(tmp_path):
    states = saved_states().items()
    # Orbax saves no array without numbers.
    saved = {k: x for k, x in states if all(a.size for a in jax.tree.leaves(x))}
    empty = {k: x for k, x in empty_states().items() if k in saved}
    assert len(saved) > len(BUILDS) - 3
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "theirs", saved)
        checkpointer.wait_until_finished()
        found = checkpointer.restore(tmp_path / "theirs", empty)
    assert types(found) == types(empty)
    assert_close(found, saved)


def test_a_monitor_of_optax_goes_on():
    """Its first state has no measurements, so that it is no carry of a scan."""
    params = first_parameters()

    def after(tx, state, times):
        for _ in range(times):
            _, state = tx.update(params, state, params)
        return state

    build = lambda o: o.monitor({"norm": o.tree.norm})
    ours, theirs = build(stepax), build(optax)
    saved = after(theirs, theirs.init(params), 2)
    found, wanted = after(ours, to_stepax(saved), 2), after(theirs, saved, 2)
    assert types(to_optax(found)) == types(wanted)
    assert_close(found, wanted, ulps=2)


# --- branches, other containers, errors ----------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["MultiSteps", "apply_if_finite", "conditionally"])
def test_branches_need_a_converted_state(name):
    """A branch that leaves the state alone and one that makes ours must agree."""
    (params, saved), _ = run_of_optax(name)
    update = jax.jit(BUILDS[name](stepax).update)
    with pytest.raises((TypeError, ValueError), match="structure"):
        update(params, saved, params)
    _, state = update(params, to_stepax(saved), params)
    assert types(state) == types(to_stepax(saved))


def test_states_are_found_in_other_containers():
    state = optax.adam(0.1).init(first_parameters())
    train: Any = TrainState.create(
        apply_fn=jnp.dot, params=first_parameters(), tx=optax.adam(0.1)
    )
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    split = nnx.state(nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param))
    for tree in (train, [state, None], {"a": (state,)}, split, equinox.Module()):
        found = to_stepax(tree)
        assert type(found) is type(tree)
        assert_close(found, tree)
        assert jax.tree.structure(to_optax(found)) == jax.tree.structure(tree)
    assert type(to_stepax(train).opt_state[0]) is stepax.ScaleByAdamState


def of_another_version(name, *fields):
    """A class as another release of Optax may have it."""
    return namedtuple(name, fields, module="optax._src.other")


def test_a_class_that_stepax_has_not_is_an_error():
    with pytest.raises(ValueError, match="Stepax has no class `NewState`"):
        to_stepax({"a": of_another_version("NewState", "x")(1)})


def test_a_class_with_other_fields_is_an_error():
    old = of_another_version("ScaleByRmsState", "was")
    with pytest.raises(ValueError, match=r"has the fields \('was',\).*another version"):
        to_stepax((old(1),))


def test_a_named_tuple_of_a_user_is_not_a_state():
    mine = namedtuple("ScaleByRmsState", "x")(1)
    for convert in (to_stepax, to_optax):
        assert type(convert(mine)) is type(mine) and convert(mine) == (1,)


def test_to_optax_needs_optax(monkeypatch):
    state = stepax.adam(0.1).init(first_parameters())
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ImportError, match="need Optax installed"):
        to_optax(state)
    monkeypatch.undo()
    with installed(replace=True), pytest.raises(ImportError, match="`uninstall` it"):
        to_optax(state)

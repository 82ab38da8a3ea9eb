"""What was saved in a run of Optax, taken over by name."""

import inspect
import pickle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import orbax.checkpoint as ocp
import pytest
from cases import TREES, make, rows
from flax.training.train_state import TrainState
from inside import COMPATIBLE, named, open_node
from runs import compare, equal
from saved import layers, spread, trained

import stepax
from stepax._engine.trees.selection import path_names
from stepax.checkpoint import from_optax, restore, save
from stepax.interop.optax import to_optax


THEIRS: dict[str, tuple[Any, Any]] = {
    "adamw": (lambda o: o.adamw(0.1), stepax.adamw(0.1)),
    "a chain": (
        lambda o: o.chain(o.clip(1.0), o.adam(o.linear_schedule(0.1, 0.0, 9))),
        stepax.adam(stepax.linear_schedule(0.1, 0.0, 9)),
    ),
    "accumulated": (
        lambda o: o.MultiSteps(o.lamb(0.1), 2).gradient_transformation(),
        stepax.MultiSteps(stepax.lamb(0.1), 2).gradient_transformation(),
    ),
}


def of_optax(name):
    params = layers()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return params, trained(THEIRS[name][0](optax), params)


def write_tree(path, tree):
    with ocp.StandardCheckpointer() as saver:
        saver.save(path, tree)


def write_step(path, tree):
    with ocp.CheckpointManager(path) as manager:
        manager.save(4, args=ocp.args.StandardSave(tree))


def write_items(path, tree):
    items = {key: ocp.args.StandardSave(x) for key, x in tree.items()}
    with ocp.CheckpointManager(path) as manager:
        manager.save(4, args=ocp.args.Composite(**items))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("write", [write_tree, write_step, write_items])
def test_a_checkpoint_of_optax_is_taken_over(name, write, tmp_path):
    params, state = of_optax(name)
    write(tmp_path / "theirs", {"params": params, "opt_state": state})
    tx = THEIRS[name][1]
    found = from_optax(tmp_path / "theirs", tx, jax.eval_shape(lambda: params))
    assert jax.tree.structure(found.state) == jax.tree.structure(tx.init(params))
    compare(equal, found.state, state)
    compare(equal, found.params, params)
    assert found.step == (0 if write is write_tree else 4)


@pytest.mark.parametrize("name", THEIRS)
def test_a_pickled_state_of_optax_is_taken_over(name):
    params, state = of_optax(name)
    tx, again = THEIRS[name][1], pickle.loads(pickle.dumps(state))
    found = from_optax(again, tx, params)
    assert jax.tree.structure(found.state) == jax.tree.structure(tx.init(params))
    compare(equal, found.state, state)
    assert found.params is params and found.step == 0
    given: Any = {"apply_fn": jnp.dot, "tx": optax.identity(), "params": params}
    train = TrainState(step=7, opt_state=again, **given)
    found = from_optax(train, tx, jax.eval_shape(lambda: params))
    assert found.step == 7
    compare(equal, found.params, params)
    compare(equal, found.state, state)


def plain(node):
    """A state as Orbax keeps it: names of fields, lists, and no classes."""
    if jax.tree_util.all_leaves([node]):
        return node
    below = open_node(node)[0]
    if isinstance(node, tuple | list) and not hasattr(node, "_fields"):
        return [plain(x) for _, x in below]
    return {path_names((key,))[0]: plain(x) for key, x in below} or None


# The numbers in these states are no hyperparameters that anyone gave, and this is told.
@pytest.mark.filterwarnings("ignore:.*replaces hyperparameters")
@pytest.mark.thinned
@pytest.mark.parametrize("row", rows())
def test_a_state_without_classes_is_taken_over(row):
    """By the same transformation; one of Optax's also by a longer chain."""
    params, tx = TREES["dict"](), make(row)
    state = spread(tx.init(params))
    tree = {"params": params, "opt_state": plain(state)}
    compare(equal, from_optax(tree, tx, params).state, state)
    if {x.owner for x in named(state)} <= COMPATIBLE.keys() and theirs(row):
        chain = stepax.chain(stepax.clip(1.0), tx, stepax.scale(0.5))
        compare(equal, from_optax(tree, chain, params).state, state)


class MineState(NamedTuple):
    count: Any
    total: Any


def test_a_state_of_one_s_own_class_is_taken_over_by_a_longer_chain():
    params = TREES["dict"]()
    mine = stepax.GradientTransformation(
        lambda params: MineState(jnp.zeros([], int), params),
        lambda updates, state, params=None: (updates, state),
    )
    state = spread((mine.init(params), stepax.trace(0.9).init(params)))
    tree = {"params": params, "opt_state": plain(state)}
    tx = stepax.chain(stepax.clip(1.0), mine, stepax.scale(0.5), stepax.trace(0.9))
    found = from_optax(tree, tx, params).state
    compare(equal, (found[1], found[3]), state)


def theirs(row):
    return any(hasattr(home, row.name) for home in (optax, optax.contrib))


def test_what_is_no_checkpoint_of_optax_is_said(tmp_path):
    params, state = of_optax("adamw")
    tx = stepax.adamw(0.1)
    with pytest.raises(ValueError, match="there is no checkpoint of Orbax in"):
        from_optax(tmp_path, tx, params)
    write_step(tmp_path / "a", {"params": params, "opt": state})
    with pytest.raises(ValueError, match=r"no `opt_state` but \['opt', 'params'\]"):
        from_optax(tmp_path / "a", tx, params)
    keys = ("params", "opt")
    compare(equal, from_optax(tmp_path / "a", tx, params, keys=keys).state, state)
    with pytest.raises(ValueError, match=r"no step 5 in .*which has \[4\]"):
        from_optax(tmp_path / "a", tx, params, step=5)
    with pytest.raises(
        ValueError, match="the given state does not fit: .*extra: `Scale"
    ):
        from_optax(state, stepax.sgd(0.1), params)
    with pytest.raises(ValueError, match="has no manifest of Stepax.*`from_optax`"):
        restore(tmp_path / "a", tx, params)


NOT_IN_FILES = {
    "galore": "Orbax does not save the empty arrays of Optax's state",
    "noisy_sgd": "Optax's key is raw and ours is typed, as `jax.random` advises",
}


@pytest.mark.few(2)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_a_run_goes_from_optax_to_stepax_and_back_through_files(row, tmp_path):
    """As one run of Optax without a change, up to the rounding of each program."""
    theirs = getattr(optax, row.name, None) or getattr(optax.contrib, row.name, None)
    if theirs is None or row.deprecated or row.name in NOT_IN_FILES:
        pytest.skip(NOT_IN_FILES.get(row.name, "Optax does not have it"))
    known = inspect.signature(theirs).parameters
    given = {k: x for k, x in make(row).call.bound.arguments.items() if k in known}
    ours, theirs = row.factory(**given), theirs(**given)
    params = {"w": jnp.linspace(-1.0, 1.0, 12).reshape(4, 3), "b": jnp.ones(3)}

    def step(tx, params, state):
        g = jax.tree.map(jnp.sin, params)
        more = {"value": jnp.float32(1.0)}
        more |= {"grad": g, "value_fn": lambda p: jnp.float32(1.0)}
        wide = stepax.with_extra_args_support(tx)
        updates, state = wide.update(g, state, params, **more)
        return optax.apply_updates(params, updates), state

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        p, state = step(theirs, params, theirs.init(params))
        write_tree(tmp_path / "theirs", {"params": p, "opt_state": state})
        wanted, _ = step(theirs, *step(theirs, p, state))

        found = from_optax(tmp_path / "theirs", ours, params)
        p, state = step(ours, found.params, found.state)
        save(tmp_path / "ours", 2, p, state)
        back = restore(tmp_path / "ours", ours, params)
        p, _ = step(theirs, back.params, to_optax(back.state))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5), p, wanted)

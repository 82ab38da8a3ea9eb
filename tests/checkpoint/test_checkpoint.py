"""Parameters, state and step, saved and restored by name."""

import functools as ft
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TREES, make, rows, types
from inside import Policy
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from runs import compare, equal
from saved import layers, passed_on, spread, trained

import stepax
from stepax.checkpoint import latest_step, restore, save
from stepax.distributed import init_sharded, offload, zero


# `spread` replaces hyperparameters in states as well.
@pytest.mark.filterwarnings("ignore::stepax.checkpoint.RestoreWarning")
@pytest.mark.thinned
@pytest.mark.parametrize("row", rows())
def test_every_state_is_found_again_by_its_names(row):
    """Alone, and behind transformations that were added, on both sides of it."""
    params, tx = TREES["dict"](), make(row)
    state = spread(tx.init(params))
    found = passed_on(state, tx, params)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    compare(equal, found, state)
    chain = stepax.chain(stepax.clip(1.0), tx, stepax.scale(0.5))
    compare(equal, passed_on(state, chain, params), state)
    compare(equal, passed_on(passed_on(state, chain, params), tx, params), state)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", TREES)
def test_every_tree_is_saved_and_restored(name, tmp_path):
    params, tx = TREES[name](), stepax.chain(stepax.clip(1.0), stepax.adam(1e-2))
    state, folder = trained(tx, params), tmp_path / "made" / "with its parents"
    save(folder, 3, params, state)
    found = restore(folder, tx, params)
    assert found.step == latest_step(folder) == 3
    for new, old in (found.params, params), (found.state, state):
        assert jax.tree.structure(new) == jax.tree.structure(old)
        new, old = (jax.tree.map(np.asarray, only_arrays(x)) for x in (new, old))
        compare(equal, new, old)


def only_arrays(tree):
    return [x for x in jax.tree.leaves(tree) if not callable(x)]


TWO = stepax.chain(stepax.scale_by_adam(), stepax.scale_by_adam(b1=0.5))


def labelled(**rates):
    parts = {label: stepax.adam(rate) for label, rate in rates.items()}
    return stepax.partition(parts, {"first": "a", "second": "b"})


# What is saved, what it is restored into, and both ways.
SAME = {
    "under accumulation": (
        stepax.adam(0.1),
        stepax.MultiSteps(stepax.adam(0.1), 2).inner_opt,
    ),
    "equals keep their order": (TWO, stepax.chain(stepax.clip(1.0), TWO)),
    "one count for all parts": (stepax.adam(0.1), labelled(a=0.1, b=0.2)),
    "parts under names": (
        stepax.named_chain(("x", stepax.adam(0.1)), ("y", stepax.lion(0.1))),
        stepax.named_chain(("y", stepax.lion(0.1)), ("x", stepax.adam(0.1))),
    ),
    "a narrow mean": (stepax.adam(0.1), stepax.adam(0.1, mu_dtype=jnp.float16)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SAME)
def test_a_state_fits_the_other_way_of_saying_it(name):
    old, new = SAME[name]
    params = layers()
    state = trained(old, params)
    there = passed_on(state, new, params)
    assert jax.tree.structure(there) == jax.tree.structure(new.init(params))
    back = passed_on(there, old, params)
    near = ft.partial(
        np.testing.assert_allclose, rtol=1e-3
    )  # half precision on the way
    compare(near, back, state)


def test_a_renamed_layer_keeps_its_slots():
    tx = stepax.adam(0.1)
    params = layers()
    state = trained(tx, params)
    new = {"block": {"first": params["first"]}, "last": params["second"]}
    renamed = {"first": "block/first", "second": "last"}
    found = passed_on(state, tx, new, renamed=renamed, saved=params)
    compare(equal, found[0].mu["block"]["first"], state[0].mu["first"])
    compare(equal, found[0].nu["last"], state[0].nu["second"])


def test_names_that_swap_and_the_longer_one_of_two():
    tx = stepax.adam(0.1)
    params = layers()
    state = trained(tx, params)
    swapped = {"first": "second", "second": "first", "second/b": "first/b"}
    found = passed_on(state, tx, params, renamed=swapped)
    compare(equal, found[0].mu["first"], state[0].mu["second"])


def test_a_renamed_array_keeps_its_slots():
    tx, params = stepax.adam(0.1), {"w": jnp.ones(3), "b": jnp.zeros(2)}
    state, new = trained(tx, params), {"w": params["w"], "bias": params["b"]}
    found = passed_on(state, tx, new, renamed={"b": "bias"}, saved=params)
    compare(equal, found[0].mu["bias"], state[0].mu["b"])


def test_a_path_that_is_not_there_cannot_be_renamed():
    with pytest.raises(ValueError, match="`renamed` has the path `third`.*`first/b`"):
        passed_on(trained(TWO, layers()), TWO, layers(), renamed={"third": "x"})
    with pytest.raises(TypeError, match="`renamed` is a list.*, expected a dict"):
        passed_on(trained(TWO, layers()), TWO, layers(), renamed=[("first", "x")])
    for renamed in {"first": 5}, {5: "first"}, {"first": None}, {"first": ["a"]}:
        with pytest.raises(TypeError, match="`renamed` is .*, expected strings: paths"):
            passed_on(trained(TWO, layers()), TWO, layers(), renamed=renamed)


MISFITS = {
    "missing": (
        stepax.sgd(0.1),
        stepax.sgd(0.1, 0.9),
        "missing: `TraceState.trace/first/b`",
    ),
    "extra": (
        stepax.sgd(0.1, 0.9),
        stepax.sgd(0.1),
        "extra: `TraceState.trace/first/b`",
    ),
    "both": (
        stepax.lion(0.1),
        stepax.sgd(0.1, 0.9),
        "missing: `TraceState.*extra: `ScaleByLionState.count`",
    ),
    "unclear": (
        TWO,
        stepax.adam(0.1),
        "several candidates for: `ScaleByAdamState.mu/",
    ),
    "another's": (
        stepax.adam(0.1),
        stepax.lion(0.1),
        "missing: `ScaleByLionState.count`",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_listed(name):
    old, new, message = MISFITS[name]
    with pytest.raises(ValueError, match=f"the state does not fit.*{message}"):
        passed_on(trained(old, layers()), new, layers())


def test_all_of_another_shape_are_listed():
    tx, params = stepax.adam(0.1), layers()
    new = layers() | {"second": {"w": jnp.ones((4, 5)), "b": jnp.ones(3)}}
    wanted = r"another shape: `second/w` is \(4, 3\), expected \(4, 5\), `ScaleByAdamS"
    with pytest.raises(ValueError, match=wanted) as error:
        passed_on(trained(tx, params), tx, new, saved=params)
    assert "mu/second/w" in str(error.value) and "nu/second/w" in str(error.value)
    assert "/b" not in str(error.value)


def test_numbers_of_another_kind_do_not_fit():
    first, *others = trained(stepax.adam(0.1), layers())
    state = (first._replace(count=jnp.float32(2)), *others)
    with pytest.raises(TypeError, match="`0/count` is of dtype int32"):
        passed_on(state, stepax.adam(0.1), layers())


def test_what_is_missing_is_fresh_and_what_is_extra_dropped_if_asked():
    params = layers()
    state = trained(stepax.adam(0.1), params)
    tx = stepax.chain(stepax.ema(0.9), stepax.sgd(0.1, 0.9))
    found = passed_on(state, tx, params, Policy("fresh", "drop"))
    compare(equal, found, tx.init(params))
    both = stepax.chain(stepax.scale_by_adam(), stepax.trace(0.9))
    found = passed_on(state, both, params, Policy("fresh", "error"))
    compare(equal, found[0], state[0])
    compare(equal, found[1], both.init(params)[1])


def test_new_parameters_are_those_of_the_template(tmp_path):
    tx, params = stepax.adam(0.1), layers()
    save(
        tmp_path, 0, {"first": params["first"]}, trained(tx, {"first": params["first"]})
    )
    with pytest.raises(
        ValueError, match="missing: `second/b`, `second/w`, `ScaleByAdam"
    ):
        restore(tmp_path, tx, params)
    shared = pytest.warns(UserWarning, match="count beside them is old: 0/mu/second/b")
    with shared:
        found = restore(tmp_path, tx, params, missing="fresh")
    compare(equal, found.params, params)
    assert found.state[0].count == 2 and not found.state[0].mu["second"]["w"].any()
    shapes = pytest.raises(ValueError, match="shapes where .*`second/b`, `second/w`: g")
    with shared, shapes:
        restore(tmp_path, tx, jax.eval_shape(lambda: params), missing="fresh")


def test_keywords_are_checked(tmp_path):
    params, tx = layers(), stepax.sgd(0.1)
    save(tmp_path, 1, params, tx.init(params), keep=1)
    wrong: list[Any] = [{"missing": "drop"}, {"extra": "fresh"}]
    for keyword in wrong:
        with pytest.raises(
            ValueError, match=f"`{[*keyword][0]}` is .*, expected one of .'error'"
        ):
            restore(tmp_path, tx, params, **keyword)
    for step, keep, message in (-1, None, "`step` is -1"), (2, 0, "`keep` is 0"):
        with pytest.raises(ValueError, match=message):
            save(tmp_path, step, params, (), keep=keep)
    with pytest.raises(TypeError, match="`tx` of `restore`"):
        factory: Any = stepax.sgd
        restore(tmp_path, factory, params)


def test_arrays_of_one_name_are_refused(tmp_path):
    params = {"a/b": jnp.ones(2), "a": {"b": jnp.ones(2)}}
    with pytest.raises(ValueError, match="several arrays have the name `a/b`"):
        save(tmp_path, 0, params, ())
    assert latest_step(tmp_path) is None


class Mixed(NamedTuple):
    arrays: Any
    key: Any
    function: Any


def mixed():
    dtypes = "bfloat16", "float16", "int8", "bool", "complex64", "float8_e4m3fn"
    arrays = {x: (2 * TREES["array"]()).astype(x) for x in dtypes}
    return Mixed(arrays, jax.random.key(3), jnp.tanh)


def test_dtypes_keys_and_functions_are_restored(tmp_path):
    state = {"key": jax.random.split(jax.random.key(0)), "weak": 2.0}
    tx: Any = stepax.GradientTransformation(
        lambda params: state, lambda u, s, p=None: (u, s)
    )
    params = mixed()
    save(tmp_path, 1, params, tx.init(params))
    found = restore(tmp_path, tx, params)
    compare(equal, found.params[:2], params[:2])
    assert types(found.params[:2]) == types(params[:2])
    assert found.params.function is jnp.tanh
    assert types(found.state) == types(jax.eval_shape(tx.init, 0))
    compare(equal, found.state, state)
    rbg = params._replace(key=jax.random.key(3, impl="rbg"))
    with pytest.raises(TypeError, match="`key` is of dtype key<rbg>"):
        restore(tmp_path, tx, rbg)


def test_wide_numbers_are_restored_narrow_without_them(tmp_path):
    with jax.enable_x64(True):
        wide = {"w": jnp.linspace(0, 1, 8), "c": jnp.linspace(0, 1j, 8)}
        save(tmp_path, 0, wide, ())
        params = {"w": wide["w"].astype("float32"), "c": wide["c"].astype("complex64")}
    for template in params, on_mesh(params, 2):
        found = restore(tmp_path, stepax.identity(), template).params
        assert types(found) == types(params)
        compare(equal, found, params)
        assert found["w"].sharding == template["w"].sharding


def on_mesh(params, n, kind=AxisType.Auto, spec=("data",)):
    mesh = jax.make_mesh((n,), ("data",), axis_types=(kind,), devices=jax.devices()[:n])
    return jax.device_put(params, NamedSharding(mesh, P(*spec)))


BIG = {"w": jnp.arange(128.0).reshape(16, 8), "b": jnp.arange(16.0)}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_state_goes_from_mesh_to_mesh(kind, tmp_path):
    """8 devices, 4, and one without a mesh: the numbers stay, the places are new."""
    tx = stepax.chain(stepax.clip(1.0), stepax.adamw(0.1))
    there = on_mesh(BIG, 8, kind)
    params, state = there, spread(init_sharded(tx, there))
    for step, place in enumerate([ft.partial(on_mesh, n=4, kind=kind), lambda p: p]):
        save(tmp_path, step, params, state)
        template = place(BIG)
        wanted = init_sharded(tx, template) if step == 0 else tx.init(template)
        found = restore(tmp_path, tx, template)
        for x, y in zip(
            jax.tree.leaves(found.state), jax.tree.leaves(wanted), strict=True
        ):
            assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        compare(equal, found.state, state)
        compare(equal, found.params, BIG)
        params, state = found.params, found.state


WRAPPED = {
    "zero": lambda tx, mesh: zero(tx, mesh, min_size=8),
    "offload": lambda tx, mesh: offload(tx),
    "both": lambda tx, mesh: zero(tx, mesh, min_size=8, memory_kind="pinned_host"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WRAPPED)
def test_the_state_lies_where_its_transformation_has_it(name, tmp_path):
    params = on_mesh(BIG, 8, spec=())
    tx = WRAPPED[name](stepax.adam(0.1), params["w"].sharding.mesh)
    state = spread(stepax.adam(0.1).init(BIG))
    save(tmp_path, 0, BIG, state)
    found, wanted = restore(tmp_path, tx, params).state, jax.jit(tx.init)(params)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        assert x.sharding.memory_kind == y.sharding.memory_kind
    compare(equal, found, state)
    save(tmp_path, 1, params, found)
    compare(equal, restore(tmp_path, stepax.adam(0.1), BIG).state, state)


def test_shapes_with_shardings_are_a_template(tmp_path):
    params, tx = on_mesh(BIG, 2), stepax.adam(0.1)
    save(tmp_path, 0, BIG, tx.init(BIG))
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    found = restore(tmp_path, tx, jax.tree.map(shape, params))
    compare(equal, found.params, BIG)
    for x, y in zip(found.params.values(), params.values(), strict=True):
        assert x.sharding == y.sharding
    plain = jax.eval_shape(lambda: BIG)
    assert types(restore(tmp_path, tx, plain)[:2]) == types((BIG, tx.init(BIG)))


def test_a_parameter_on_no_mesh_beside_others_is_named(tmp_path):
    tx = stepax.adam(0.1)
    save(tmp_path, 0, BIG, tx.init(BIG))
    with pytest.raises(ValueError, match=r"the parameter at \['b'\] is not on a mesh"):
        restore(tmp_path, tx, BIG | {"w": on_mesh(BIG, 2)["w"]})


def test_the_tree_and_the_packed_layout_are_one_format(tmp_path):
    tx, params = stepax.chain(stepax.adam(0.1), stepax.trace(0.9)), layers()
    packed, state = stepax.tree.pack(params), spread(tx.init(params))
    save(tmp_path, 0, params, state)
    there = restore(tmp_path, tx, packed)
    shapes = jax.eval_shape(tx.init, packed)
    assert jax.tree.structure(there.state) == jax.tree.structure(shapes)
    compare(equal, stepax.tree.unpack(there.state), state)
    save(tmp_path, 1, there.params, there.state)
    back = restore(tmp_path, tx, params)
    compare(equal, back.state, state)
    compare(equal, back.params, params)

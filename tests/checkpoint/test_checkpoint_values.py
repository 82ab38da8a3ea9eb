"""Numbers of every dtype and of everybody's come back as they were."""

import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from cases import TREES, make, rows, types
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from loops import each
from saved import plain_bytes

import stepax
from stepax._checkpoint import require_finite
from stepax._checkpoint.values import _cast, is_finite, is_wide
from stepax._engine.trees.paths import fits
from stepax.checkpoint import from_optax, restore, save, to_safetensors


NUMPY = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
NARROW = [
    *("int2", "uint2", "int4", "uint4", "bfloat16", "float8_e3m4", "float8_e4m3"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
]


def extremes(name):
    """The ends of what a dtype holds, and what is between."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    if dtype == np.dtype(bool):
        return np.array([True, False, True])
    if jnp.issubdtype(dtype, np.integer):
        limits = jnp.iinfo(dtype)
        return np.array([limits.min, limits.max, 1], dtype)
    limits = jnp.finfo(dtype)
    found = np.array([limits.max, limits.smallest_normal, 1], dtype)
    return found * dtype.type(1 - 1j) if dtype.kind == "c" else found


def same(found, wanted):
    """Value, bits and kind."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


FORMS: dict[str, Any] = {
    "array": lambda x: x,
    "scalar": lambda x: x[0],
    "0-d": lambda x: x[0].reshape(()) if hasattr(x[0], "reshape") else x[0],
    "empty": lambda x: x[:0],
    "turned": lambda x: np.stack([x, x]).T,
}


def values():
    return {
        f"{name}, {form}": take(extremes(name))
        for name in (*NUMPY, *NARROW)
        for form, take in FORMS.items()
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "x64"])
def test_every_dtype_of_numpy_comes_back_with_its_bits(wide, tmp_path):
    with jax.enable_x64(wide):
        params = values()
        save(tmp_path, 0, params, ())
        found = restore(tmp_path, stepax.identity(), params).params
    for name, x in params.items():
        same(found[name], x)
        if not wide and np.dtype(x.dtype).name in ("int64", "uint64", "float64"):
            assert type(found[name]) is type(x), name


PYTHON = [True, 0, -3, 2**40, 2**63 - 1, -(2**63), 2**64 - 1, 0.1, 1e300, 0.1 + 1e300j]


def test_numbers_of_python_come_back_as_they_were(tmp_path):
    params = {f"{x}": x for x in PYTHON}
    save(tmp_path, 0, params, ())
    for again in params, {key: type(x)(1) for key, x in params.items()}:
        found = restore(tmp_path, stepax.identity(), again).params
        for key, x in params.items():
            assert type(found[key]) is type(x) and found[key] == x


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_integers_fit_a_narrower_dtype_up_to_its_ends(dtype, tmp_path):
    ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max])
    template = {"x": np.zeros(2, dtype)}
    for step, (x, is_in) in enumerate(
        [(ends, True), (ends + [0, 1], False), (ends - [1, 0], False)]
    ):
        save(tmp_path, step, {"x": x.astype("int32")}, ())
        if is_in:
            found = restore(tmp_path, stepax.identity(), template).params["x"]
            assert found.dtype == dtype and (np.asarray(found) == x).all()
            continue
        with pytest.raises(ValueError, match="has numbers that .* cannot hold"):
            restore(tmp_path, stepax.identity(), template)


ENTRY = SimpleNamespace(key="a")


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def edges(name):
    """Numbers at the edges of a dtype, as of Python, and what is no number."""
    dtype = dtype_of(name)
    if dtype == np.dtype(bool):
        return [0, 1]
    if jnp.issubdtype(dtype, np.integer):
        limits = jnp.iinfo(dtype)
        ends = int(limits.min), int(limits.max)
        return [*ends, ends[0] - 1, ends[1] + 1, 0, 1]
    limits = jnp.finfo(dtype)
    most, step = float(limits.max), float(limits.eps)
    top = math.ldexp(0.5, math.frexp(most)[1])
    # Up to the middle of the step that would follow, and the middle itself.
    found = [most, most + 0.49 * step * top, most + 0.5 * step * top, 2 * most]
    found += [float(limits.smallest_normal), 0.0, 1.0, math.inf, math.nan]
    return [*found, *(-x for x in found)]


def is_whole(dtype):
    return dtype == np.dtype(bool) or jnp.issubdtype(dtype, np.integer)


def exactly(x, dtype):
    """A number in a dtype that has it; `None` if it has not."""
    if is_whole(dtype):
        known = math.isfinite(x) and int(x) == x
        limits = (
            (0, 1)
            if dtype.kind == "b"
            else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
        )
        is_in = known and int(limits[0]) <= int(x) <= int(limits[1])
        return np.full(1, int(x)).astype(dtype) if is_in else None
    with np.errstate(all="ignore"):
        found = np.full(1, x, np.float64).astype(dtype)
        back = found.astype(np.complex128)[0].real
    is_same = back == x or (back != back and x != x)
    return found if is_same and np.signbit(back) == np.signbit(float(x)) else None


def is_held(x, dtype):
    """Whether a number is one of a dtype up to rounding, from what it is of."""
    if is_whole(dtype):
        return exactly(x, dtype) is not None
    limits, name = jnp.finfo(dtype), dtype.name
    if x != x:
        return name != "float4_e2m1fn"
    if math.isinf(x):
        return not name.endswith(("fn", "fnuz", "fnu"))
    most = float(limits.max)
    top = math.ldexp(0.5, math.frexp(most)[1])
    if abs(x) >= most + float(limits.eps) * top / 2:
        return False
    return x >= float(limits.smallest_normal) if name == "float8_e8m0fnu" else True


@pytest.mark.few(2)
@pytest.mark.parametrize("old", [*NUMPY, *NARROW])
def test_numbers_fit_another_dtype_up_to_rounding_or_are_refused(old):
    """From each dtype to each other, the edges of both; also in arrays of JAX."""
    tried = 0
    pairs = [(new, x) for new in (*NUMPY, *NARROW) for x in edges(old) + edges(new)]
    for new, x in pairs:
        value, dtype = exactly(x, dtype_of(old)), dtype_of(new)
        if value is None or not fits(dtype_of(old), dtype) or old == new:
            continue
        tried += 1
        forms = [value] if is_wide(old) or is_wide(new) else [value, jnp.asarray(value)]
        for form in forms:
            try:
                found = _cast(ENTRY, form, dtype)
            except ValueError as error:
                assert f"was saved as {old}" in str(error), (old, new, x)
                # XLA makes NaN of small negative numbers where there is no -0.
                is_xla = not isinstance(form, np.ndarray) and "fnuz" in new
                assert not is_held(x, dtype) or (is_xla and -1 < x < 0), (old, new, x)
                continue
            assert is_held(x, dtype), (old, new, x, type(form), found)
            back = np.asarray(found).astype(np.complex128)[0].real
            if not (is_whole(dtype) or back == x or back != back):
                limits = jnp.finfo(dtype)
                near = float(limits.eps) * abs(x), 2 * float(limits.smallest_normal)
                assert abs(back - x) <= max(near), (old, new, x, back)
    assert tried or old == "bool"  # which is no number


def held(state):
    return stepax.GradientTransformation(lambda params: state, lambda u, s, p=None: u)


@pytest.mark.parametrize("saved", [10**5, 2**40])
@pytest.mark.parametrize("new", [10**5, 2**40])
def test_integers_of_a_state_are_those_saved_however_long_new_ones_are(
    saved, new, tmp_path
):
    save(tmp_path, 0, (), {"n": saved})
    assert restore(tmp_path, held({"n": new}), ()).state["n"] == saved


STATE = {
    "count": np.int64(2**40),
    "both": np.array([2**40, 5]),
    "large": np.float64(1e300),
    "small": np.float32(0.1),
    "number": 0.1,
    "large number": 1e300,
    "weak": jnp.asarray(0.1),
}


def test_a_state_keeps_what_jax_cannot_hold(tmp_path):
    """Though `init` is only described by JAX, which says 32 bits."""
    save(tmp_path, 0, {}, STATE)
    tx: Any = held(STATE)
    found = restore(tmp_path, tx, {}).state
    for key, x in STATE.items():
        same(found[key], x)
    assert type(found["count"]) is np.int64 and type(found["number"]) is float


LOSSES: dict[str, tuple[Any, Any]] = {
    "an integer": (np.int64(2**40), jnp.int32(0)),
    "a negative one": (np.int32(-1), jnp.uint32(0)),
    "one of Python": (2**40, jnp.int32(0)),
    "a large float": (np.float64(1e300), jnp.float32(0)),
    "half precision": (jnp.float32(1e6), jnp.float16(0)),
    "bytes": (jnp.int32(300), jnp.int8(0)),
    "complex": (np.complex128(1e300j), jnp.complex64(0)),
    "on a mesh": (np.array([7, 300], "int32"), "int8"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", LOSSES)
def test_numbers_that_the_template_cannot_hold_are_an_error(name, tmp_path):
    x, like = LOSSES[name]
    if isinstance(like, str):
        mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
        like = jnp.zeros(2, like, device=NamedSharding(mesh, P("data")))
    save(tmp_path, 0, {"a": x}, ())
    dtype = like.dtype
    with pytest.raises(ValueError, match=f"`a` was saved as .* numbers that {dtype}"):
        restore(tmp_path, stepax.identity(), {"a": like})
    with pytest.raises(ValueError, match=f"`a` was saved as .* numbers that {dtype}"):
        from_optax(
            {"params": {"a": x}, "opt_state": ()}, stepax.identity(), {"a": like}
        )


REFUSED: dict[str, tuple[Any, str]] = {
    "text": (np.array(["x"]), "<U1"),
    "an object": (np.array([None]), "'O'"),
    "a date": (np.datetime64("2020-01-01"), "M8"),
    "a duration": (np.array([3], "m8[s]"), "m8"),
    "a record": (np.zeros(2, [("x", "f4")]), "x"),
    "bytes": (np.bytes_(b"a"), "S1"),
    "a long integer": (2**64, "an integer of more than 64 bits"),
    "a long double": (np.longdouble(1), "float128"),
    "masked": (np.ma.masked_array([1.0, 2.0], [True, False]), "masked array"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_number_is_refused_by_its_path(name, tmp_path):
    x, message = REFUSED[name]
    params = {"layer": {"a": x}}
    with pytest.raises(TypeError, match=f"`layer/a` is .*{message}"):
        save(tmp_path, 0, params, ())
    with pytest.raises(TypeError, match=f"`layer/a` is .*{message}"):
        to_safetensors(tmp_path / "a", params)
    assert [*tmp_path.iterdir()] == []
    save(tmp_path, 0, {"layer": {"a": jnp.ones(3)}}, ())
    with pytest.raises((TypeError, ValueError), match="layer/a"):
        restore(tmp_path, stepax.identity(), params)


# What reads the values of arrays, by what it is called with.
READS: dict[str, Any] = {
    "save": lambda x, at: save(at, 0, {"w": x}, ()),
    "save later": lambda x, at: save_later(at, {"w": x}),
    "to_safetensors": lambda x, at: to_safetensors(at / "f", {"w": x}),
    "delta": lambda x, at: stepax.checkpoint.delta({"w": jnp.ones(3)}, {"w": x}),
    "delta, old": lambda x, at: stepax.checkpoint.delta({"w": x}, {"w": jnp.ones(3)}),
    "apply_delta": lambda x, at: stepax.checkpoint.apply_delta(
        {"w": x}, stepax.checkpoint.delta({"w": jnp.ones(3)}, {"w": jnp.zeros(3)})
    ),
}


def save_later(folder, params):
    save(folder, 0, params, (), wait=False)
    stepax.checkpoint.wait()


@pytest.mark.parametrize("name", READS)
def test_arrays_without_values_are_refused_by_their_path(name, tmp_path):
    def read(x):
        READS[name](x, tmp_path)

    with pytest.raises(TypeError, match="w` is traced, .* make the call outside of"):
        jax.jit(read)(jnp.ones(3))
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(ValueError, match="w` was deleted, .* donated"):
        read(gone)
    assert not list(tmp_path.glob("[!.]*"))


def test_plain_files_have_every_bit(tmp_path):
    lacking = ("complex128", "int2", "uint2", "int4", "uint4", "float8_e3m4")
    lacking += ("float8_e4m3,", "float8_e4m3b11fnuz", "float4_e2m1fn")
    params = {k: x for k, x in values().items() if not k.startswith(lacking)}
    params |= {"one": np.int64(2**40), "two": np.float64(1e300)}
    to_safetensors(tmp_path / "a", params | {"one": 2**40, "two": 1e300})
    found = plain_bytes(tmp_path / "a")
    assert found == {k: (x.shape, x.tobytes()) for k, x in params.items()}


WEAK = {
    "a scalar": lambda: jnp.asarray(0.5),
    "an array": lambda: jnp.full((3,), 0.5),
    "integers": lambda: jnp.full((2, 2), 7),
    "complex": lambda: jnp.full((2,), 0.5j),
    "empty": lambda: jnp.full((0, 2), 0.5),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WEAK)
@pytest.mark.parametrize("place", ["alone", AxisType.Auto, AxisType.Explicit], ids=str)
def test_weak_types_are_restored_weak(name, place, tmp_path):
    """As they are saved, and from strongly typed ones."""
    x = WEAK[name]()
    if place != "alone":
        mesh = jax.make_mesh((2,), ("data",), (place,), devices=jax.devices()[:2])
        spec = P(*[None] * (x.ndim - 1), "data") if x.shape[-1:] == (2,) else P()
        x = jax.device_put(x, NamedSharding(mesh, spec))
    assert x.weak_type
    tx = stepax.chain(stepax.trace(0.9), held({"a": x}))
    params, state = {"a": x}, (stepax.trace(0.9).init({"a": x}), {"a": x})
    strong = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), params)
    for step, given in enumerate([params, strong]):
        save(tmp_path, step, given, state)
        found = restore(tmp_path, tx, params)
        for y in found.params["a"], found.state[1]["a"]:
            assert y.weak_type and y.dtype == x.dtype
            np.testing.assert_array_equal(y, x)
        assert found.params["a"].sharding.is_equivalent_to(x.sharding, x.ndim)


@pytest.mark.few(2)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("shape", [0, (0, 3), (2, 0), (), 3], ids=str)
def test_keys_of_every_shape_are_restored(impl, shape, tmp_path):
    key = jax.random.key(3, impl=impl)
    keys = jax.random.split(key, shape) if shape != () else key
    params = {"key": keys, "w": jnp.ones(2)}
    save(tmp_path, 0, params, ())
    found = restore(tmp_path, stepax.identity(), params).params["key"]
    assert found.dtype == keys.dtype and found.shape == keys.shape
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(keys))


def test_what_is_taken_over_from_other_libraries_is_of_jax():
    """They hold in NumPy's arrays of 64 bits what is narrow here."""
    params = {"w": jnp.ones(3)}
    tx = stepax.adam(0.1)
    theirs = jax.tree.map(lambda x: np.asarray(x).astype(f"{x.dtype.kind}8"), params)
    state = jax.tree.map(
        lambda x: np.asarray(x).astype(f"{x.dtype.kind}8"), tx.init(params)
    )
    found = from_optax({"params": theirs, "opt_state": state}, tx, params)
    assert types((found.params, found.state)) == types((params, tx.init(params)))
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(found[:2]))
    large = (state[0]._replace(count=np.int64(2**40)), *state[1:])
    with pytest.raises(ValueError, match="`0/count` was saved as int64.*int32"):
        from_optax(large, tx, params)


# --- what is not finite ---------------------------------------------------------------

INEXACT = [x for x in (*NUMPY, *NARROW) if jnp.issubdtype(dtype_of(x), np.inexact)]


@each((x, y) for x in INEXACT for y in (math.nan, math.inf, -math.inf))
def test_numbers_that_are_not_finite_are_found_in_each_dtype(name, number):
    dtype = dtype_of(name)
    x = np.array([1, 1, number]).astype(dtype)
    is_held = not np.isfinite(x.astype(np.complex128)).all()  # not all have them
    forms = [x] if is_wide(dtype) else [x, jnp.asarray(x)]
    for form in forms:
        assert is_finite("a", form, False) == (not is_held)
        assert is_finite("a", form[:2], False)


@pytest.mark.parametrize("wait", [True, False])
def test_a_tree_that_is_not_finite_is_refused_before_it_is_written(wait, tmp_path):
    good, folder = {"w": jnp.ones(3), "n": jnp.arange(3)}, tmp_path / "run"
    for where in "params", "state":
        for bad in jnp.asarray([1, jnp.nan]), jnp.asarray([jnp.inf, 1]), math.nan:
            trees: Any = {"params": good, "state": good} | {where: good | {"w": bad}}
            with pytest.raises(ValueError, match=f"not finite: `w` of `{where}`; no"):
                save(folder, 1, **trees, wait=wait, finite=True)
    assert not folder.exists()
    save(folder, 1, good, good | {"best": jnp.inf}, finite=True, wait=wait)
    save(folder, 2, good | {"w": jnp.full(3, jnp.nan)}, (), wait=wait)
    stepax.checkpoint.wait()
    with pytest.raises(ValueError, match="not finite: `w` of `params`"):
        save(folder, 3, good | {"w": math.inf}, (), finite=True)
    assert stepax.checkpoint.latest_step(folder) == 2


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows())
def test_each_state_is_finite_before_the_first_step(row):
    """Or has infinite scalars, such as the best value before there is one."""
    params = TREES["dict"]()
    require_finite({"params": params, "state": make(row).init(params)})

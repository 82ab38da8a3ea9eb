"""What `minimize` knows of the Hessian, and how it gathers what moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import stepax
from stepax.solve._minimize.bundle import while_loop
from stepax.solve._minimize.pack import Pack
from stepax.solve._minimize.pairs import Pairs, no_pairs
from stepax.solve._minimize.quasi_newton import MOST, begin


def pairs_of(size, number):
    """Differences of a convex function that is no quadratic."""
    random = np.random.RandomState(0)
    root = random.randn(size, size)
    hessian = root @ root.T + np.eye(size)
    for _ in range(number):
        s = random.randn(size)
        yield s, hessian @ s + 0.1 * s**3


def update(h, s, y):
    """The formula of BFGS, 6.17 in the book of Nocedal and Wright."""
    v = np.eye(len(s)) - np.outer(y, s) / (s @ y)
    return v.T @ h @ v + np.outer(s, s) / (s @ y)


def advance(known, s, y, g):
    """What is known after a pair, which ends at the gradient g."""
    return known.remember([jnp.asarray(s)], [jnp.asarray(y)], [jnp.asarray(g)])


@pytest.mark.slow
def test_direction_of_pairs_is_that_of_the_dense_matrix(x64):
    size, number = 7, 56
    known = no_pairs([jnp.zeros(size)], jnp.asarray(0.25))
    room, seen, g = known.products.size, [], np.ones(size)
    assert room < number  # so that old ones are forgotten
    known = known._replace(products=known.s[0] @ g)
    for s, y in pairs_of(size, number):
        np.testing.assert_allclose(known.scale, seen[-1][2] if seen else 0.25)
        g = g + y
        known = jax.jit(advance)(known, s, y, g)
        seen.append((s, y, s @ y / (y @ y)))
        h = seen[-1][2] * np.eye(size)
        for s, y, _ in seen[-room:]:
            h = update(h, s, y)
        # R has a condition of up to 1e5 here.
        np.testing.assert_allclose(known.direction([g])[0], -h @ g, rtol=1e-8)
    empty = known.forget(jnp.asarray(True), jnp.asarray(0.25))
    np.testing.assert_allclose(empty.direction([g])[0], -0.25 * g)
    s, y = next(pairs_of(size, 1))
    one = update(s @ y / (y @ y) * np.eye(size), s, y)
    found = advance(empty, s, y, g + y).direction([g + y])[0]
    np.testing.assert_allclose(found, -one @ (g + y), rtol=1e-9)


@pytest.mark.slow
def test_direction_of_a_matrix_is_that_of_the_scaled_formula(x64):
    size, g = 7, np.ones(7)
    known, h = begin(jnp.asarray(2.0), [jnp.asarray(g)]), None
    np.testing.assert_allclose(known.direction([g])[0], -g / np.sqrt(size))
    factors = []
    for s, y in pairs_of(size, 20):
        g = g + y
        known = jax.jit(advance)(known, s, y, g)
        h = s @ y / (y @ y) * np.eye(size) if h is None else h
        factors.append(max(1, s @ y / (y @ h @ y)))
        h = update(factors[-1] * h, s, y)
        np.testing.assert_allclose(known.direction([g])[0], -h @ g, rtol=1e-9)
    assert min(factors) == 1 < max(factors)
    plain = known.forget(jnp.asarray(True), jnp.asarray(0.25))
    np.testing.assert_allclose(plain.direction([g])[0], -0.25 * g)


@pytest.mark.slow
@pytest.mark.parametrize("size", [MOST, MOST + 1])
def test_what_has_no_curvature_is_not_learned(size):
    g = jnp.ones(size)
    known = begin(jnp.asarray(1.0), [g])
    s, bad = (
        -0.1 * g,
        [0.1 * g, 0 * g, jnp.full(size, jnp.inf), jnp.full(size, jnp.nan)],
    )
    for y in bad:
        after = known.remember([s], [y], [g])
        for was, now in zip(known.direction([g]), after.direction([g]), strict=True):
            np.testing.assert_array_equal(was, now)
        assert after.scale == known.scale


def test_the_first_step_is_no_longer_than_1_nor_than_to_a_value_of_0():
    for value, slope, length in ((8.0, 4.0, 1.0), (0.5, 4.0, 0.25), (0.0, 4.0, 1.0)):
        g = jnp.array([0.0, slope])
        d = begin(jnp.asarray(value), [g]).direction([g])[0]
        np.testing.assert_allclose(d, [0, -length], rtol=1e-6)
    known = begin(jnp.asarray(1.0), [jnp.zeros(2)])
    np.testing.assert_array_equal(known.direction([jnp.zeros(2)])[0], 0)


@pytest.mark.slow
def test_many_parameters_have_88_bytes_of_state_each():
    size = 10**6
    g, value = jax.ShapeDtypeStruct((size,), "float32"), jnp.float32(0)
    known = jax.eval_shape(begin, value, [g])
    assert isinstance(known, Pairs)
    carried = [known, g, g]  # with parameters and gradient
    total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(carried))
    assert total <= 88 * size + 1000


TREE = [
    jnp.arange(6.0).reshape(2, 3),
    jnp.array(2 + 3j),
    jnp.ones(3, jnp.bfloat16),
    jnp.arange(5000.0),
    jnp.zeros([]),
]


@pytest.mark.parametrize("is_local", [True, False])
def test_arrays_are_gathered_by_dtype_and_come_back(is_local):
    pack = Pack(TREE, is_local)
    vectors = pack.pack(TREE)
    assert len(vectors) == (2 if is_local else 3)
    for was, now in zip(TREE, pack.unpack(vectors), strict=True):
        assert was.dtype == now.dtype
        np.testing.assert_array_equal(was, now)


def count(jaxpr):
    """Equations of a program, however deep."""
    inner = [j for eqn in jaxpr.eqns for j in jaxprs_in_params(eqn.params)]
    return len(jaxpr.eqns) + sum(map(count, inner))


@pytest.mark.slow
def test_a_leaf_adds_to_what_it_costs_in_the_function_alone():
    """What gathers it is added at the start and the end, and in each evaluation."""
    counts = []
    for leaves in (10, 110):
        x0 = [jnp.ones((2, 3))] * leaves
        fun = lambda p: sum(jnp.sum(jnp.sinh(x)) for x in p)
        run = lambda x0, fun=fun: stepax.minimize(fun, x0).params
        program = jax.make_jaxpr(run)(x0).jaxpr
        evaluation = jax.make_jaxpr(jax.value_and_grad(fun))(x0).jaxpr
        counts.append((count(program), count(evaluation)))
    (few, one), (many, other) = counts
    assert (many - few) <= 2 * (other - one) + 13 * 100


@pytest.mark.slow
def test_a_loop_carries_its_numbers_in_vectors(x64):
    first = {
        "floats": [jnp.asarray(1.0 + i) for i in range(9)],
        "flag": jnp.asarray(True),
        "count": jnp.asarray(0, jnp.int32),
        "narrow": jnp.asarray(0.5, jnp.float32),
        "array": jnp.ones(3),
        "complex": jnp.asarray(1j),
        "key": jax.random.key(0),
    }

    def step(c):
        return c | {
            "floats": [x * 1.5 for x in c["floats"]],
            "flag": ~c["flag"],
            "count": c["count"] + 1,
            "array": c["array"] + c["floats"][8],
        }

    goes_on = lambda c: c["count"] < 5
    found, wanted = (f(goes_on, step, first) for f in (while_loop, jax.lax.while_loop))
    assert jax.tree.map(jnp.result_type, found) == jax.tree.map(jnp.result_type, wanted)
    keys = found.pop("key"), wanted.pop("key")
    assert keys[0] == keys[1]
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    # The condition, all numbers, the flag and the count in two vectors, and the array;
    # what does not change is not carried.
    program = jax.make_jaxpr(lambda c: while_loop(goes_on, step, c))(first)
    loops = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "while"]
    assert len(loops) == 1 and len(loops[0].outvars) == 3


@pytest.mark.slow
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_parameters_and_pairs_stay_on_their_devices(axis_type):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(axis_type,))
    fun = lambda p: jnp.sum((p["w"] ** 2 - 1) ** 2) + jnp.sum((p["b"] - 2) ** 2)
    with jax.set_mesh(mesh):
        w = jnp.linspace(0.2, 0.9, 16000).reshape(4000, 4)
        x0 = {"w": jax.device_put(w, NamedSharding(mesh, P("d"))), "b": jnp.ones(3)}
        found = stepax.minimize(fun, x0)
        known = jax.jit(begin)(jnp.float32(1), [x0["w"]])
    assert found.success
    assert found.params["w"].sharding.spec[0] == "d"
    np.testing.assert_allclose(found.params["w"], 1, atol=1e-3)
    if axis_type is AxisType.Explicit:
        assert known.s[0].sharding.spec == P(None, "d", None)

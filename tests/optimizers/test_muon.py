"""Muon: against its papers, against Optax and PyTorch, and for all shapes."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from inside import NORMS, orthogonalize

import stepax
from stepax.contrib import MuonDimensionNumbers, muon, scale_by_muon


JORDAN = (3.4445, -4.7750, 2.0315)
STEPS = 200


def arrays(dtype: type = np.float32, lead=()):
    random = np.random.default_rng(0)
    shapes = {"b": (3,), "k": (6, 5), "t": (3, 4, 5)}
    normal = lambda shape: jnp.asarray(random.normal(size=(*lead, *shape)), dtype)
    return {name: normal(shape) for name, shape in shapes.items()}


def drive(tx, params, gs):
    """The updates of all steps."""

    def step(state, g):
        updates, state = tx.update(g, state, params)
        return state, updates

    return jax.jit(lambda p, gs: jax.lax.scan(step, tx.init(p), gs)[1])(params, gs)


def reference(gs, beta=0.95, eps=1e-8, nesterov=True, norm="frobenius", adaptive=False):
    """Jordan's algorithm with a mean that is corrected, for one matrix."""
    mu = np.zeros_like(gs[0])
    for t, g in enumerate(gs, 1):
        mu = beta * mu + (1 - beta) * g
        m = mu / (1 - beta**t)
        if nesterov:
            m = beta * mu / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
        wide = m if m.shape[0] <= m.shape[1] else m.T
        o = iterate(wide / (size(wide, norm) + eps))
        o = o if m.shape[0] <= m.shape[1] else o.T
        yield np.sum(m * o) * o if adaptive else o


def size(x, norm):
    singular = np.linalg.svd(x, compute_uv=False)
    return {
        "frobenius": np.sqrt(np.sum(singular**2)),
        "spectral": singular.max(),
        "schatten": np.sum(singular**4) ** 0.25,
        "aol": np.sqrt(np.abs(x @ x.T).sum(axis=1, keepdims=True)),
    }[norm]


def iterate(x):
    """The polynomial a s + b s³ + c s⁵ of each singular value, five times."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    a, b, c = JORDAN
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    return u * s @ vt


OPTIONS = {
    "default": {},
    "plain": {"nesterov": False, "beta": 0.8},
    "adaptive": {"adaptive": True},
    "spectral": {"norm": "spectral", "eps": 0.1},
    "schatten": {"norm": "schatten", "eps": 0.1},
    "aol": {"norm": "aol", "eps": 0.1},
}


# Rounding is multiplied by at most 3.4445^5 = 485 on its way through the iteration:
# some 40 roundings of 2^-53 stay below 1e-11 of the largest entry.
@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
@pytest.mark.parametrize("name", OPTIONS)
def test_updates_are_those_of_the_papers(name, shape, x64):
    options = dict(OPTIONS[name])
    gs = np.random.default_rng(1).normal(size=(8, *shape))
    expected = np.stack(list(reference(gs, **options)))
    options["preconditioning"] = options.pop("norm", "frobenius")
    found = drive(scale_by_muon(**options), jnp.zeros(shape), jnp.asarray(gs))
    assert np.abs(found - expected).max() < 1e-11 * np.abs(expected).max()


@pytest.mark.slow
def test_steps_follow_the_shape():
    """Jordan's factor is sqrt(max(1, outputs / inputs)), for W of inputs × outputs."""
    gs = {"tall": jnp.ones((1, 6, 3)), "wide": jnp.ones((1, 3, 12))}
    p = jax.tree.map(lambda g: g[0], gs)
    plain = drive(scale_by_muon(), p, gs)
    for rms, factors in {None: (1, 2), 0.2: (0.2 * 6**0.5, 0.2 * 12**0.5)}.items():
        found = drive(muon(1.0, consistent_rms=rms), p, gs)
        for key, factor in zip(gs, factors, strict=True):
            np.testing.assert_allclose(found[key], -factor * plain[key], rtol=1e-6)


def specs(numbers):
    return {"b": None, "k": numbers(), "t": numbers(0, (1, 2))}


MATRIX = {"b": False, "k": True, "t": False}
SETS = {
    "default": lambda m: {},
    "narrower": lambda m: {"beta": 0.9, "nesterov": False, "eps": 1e-3},
    "spectral": lambda m: {"preconditioning": "spectral"},
    "schatten": lambda m: {"preconditioning": "schatten"},
    "aol": lambda m: {"preconditioning": "aol"},
    "adaptive": lambda m: {"adaptive": True},
    "dion": lambda m: {"ns_coeffs": "dion", "consistent_rms": 0.2},
    "rows": lambda m: {"ns_coeffs": ((4.0, -6.0, 3.0), JORDAN)},
    "decay": lambda m: {
        "weight_decay": 0.1,
        "weight_decay_mask": MATRIX,
        "adam_weight_decay": 0.2,
        "adam_learning_rate": lambda count: 1 / (10.0 + count),
        "adam_b1": 0.8,
        "adam_b2": 0.9,
        "adam_eps_root": 1e-3,
    },
    "dimensions": lambda m: {"muon_weight_dimension_numbers": specs(m)},
}
# Where the norm is written in another way, and for a stack, whose products XLA adds up
# in another order, a rounding is multiplied by up to 485 as above; elsewhere all bits
# are equal.
ROUNDED = {"schatten": 64, "aol": 64, "dion": 4, "dimensions": 64}
if jax.__version_info__ >= (0, 11):
    # There Optax's products of a stack are 384 from those in float64, and ours 20.
    ROUNDED["dimensions"] = 485
    # Both are up to 9 from those in float64, with sums of products in other orders.
    ROUNDED["adaptive"] = 18


def layout(state):
    """Names of types and fields, keys, shapes and dtypes."""
    if isinstance(state, tuple):
        kind = type(state).__name__, getattr(state, "_fields", None)
        return kind, [layout(x) for x in state]
    if isinstance(state, dict):
        return {k: layout(x) for k, x in state.items()}
    return state.shape, state.dtype


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SETS)
def test_float32_is_that_of_optax(name):
    params, gs = arrays(), arrays(lead=(STEPS,))
    ours = muon(0.1, **SETS[name](MuonDimensionNumbers))
    theirs = optax.contrib.muon(0.1, **SETS[name](optax.contrib.MuonDimensionNumbers))
    found = drive(ours, params, gs)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = drive(theirs, params, gs)
        wanted = theirs.init(params)
    assert layout(ours.init(params)) == layout(wanted)
    for key, y in expected.items():
        bound = ROUNDED.get(name, 0) * 2.0**-23 * np.abs(y).max()
        np.testing.assert_allclose(found[key], y, rtol=0, atol=bound)


@pytest.mark.slow
def test_float64_is_that_of_optax(x64):
    """To the rounding that the test against the papers reckons with."""
    params, gs = arrays(np.float64), arrays(np.float64, (20,))
    params, gs = ({"k": x["k"]} for x in (params, gs))
    found = drive(muon(0.1), params, gs)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = drive(optax.contrib.muon(0.1), params, gs)
    np.testing.assert_allclose(found["k"], expected["k"], rtol=0, atol=1e-11)


@pytest.mark.slow
def test_updates_are_those_of_torch():
    """It works in bfloat16: five steps of three products, each rounded by 2^-9.

    Without Nesterov's momentum, as it does not correct the mean: the mixture with the
    gradient is another one then, but the mean alone has the same direction.
    """
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    gs = np.random.default_rng(2).normal(size=(5, 6, 4)).astype(np.float32)
    w = torch.nn.Parameter(torch.zeros(6, 4))
    theirs = torch.optim.Muon([w], lr=1.0, weight_decay=0.0, nesterov=False)
    found = drive(scale_by_muon(nesterov=False), jnp.zeros((6, 4)), jnp.asarray(gs))
    before = np.zeros((6, 4), np.float32)
    for g, u in zip(gs, found, strict=True):
        w.grad = torch.tensor(g)
        theirs.step()
        after = w.detach().numpy().copy()
        # Its factor is sqrt(max(1, rows / columns)), since it stores the transpose.
        error = np.linalg.norm((before - after) / 1.5**0.5 - u)
        assert error < 15 * 2.0**-9 * np.linalg.norm(u)
        before = after


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NORMS)
def test_what_comes_out_is_orthogonal(name):
    """Jordan's coefficients lead singular values to between 0.68 and 1.14."""
    random = np.random.default_rng(3)
    u, _ = np.linalg.qr(random.normal(size=(8, 5)))
    v, _ = np.linalg.qr(random.normal(size=(5, 5)))
    x = jnp.asarray(u * np.linspace(0.1, 1, 5) @ v.T, jnp.float32)
    steps = jnp.broadcast_to(jnp.asarray(JORDAN), (5, 3))
    found = jax.jit(lambda x: orthogonalize(x, steps, NORMS[name], 1e-8))(x)
    s = np.linalg.svd(found, compute_uv=False)
    assert 0.65 < s.min() and s.max() < 1.2


@pytest.mark.slow
def test_complex_matrices_become_unitary():
    random = np.random.default_rng(4)
    x = random.normal(size=(4, 6)) + 1j * random.normal(size=(4, 6))
    u, _, vh = np.linalg.svd(x, full_matrices=False)
    # A step that converges to 1 exactly, as Bernstein and Newhouse have it.
    steps = jnp.broadcast_to(jnp.asarray([15 / 8, -10 / 8, 3 / 8]), (12, 3))
    x = jnp.asarray(x, jnp.complex64)
    for name in ("frobenius", "spectral", "schatten"):  # they keep the directions
        found = orthogonalize(x, steps, NORMS[name], 0.0)
        np.testing.assert_allclose(found, u @ vh, atol=2e-5)
        assert found.dtype == jnp.complex64
    phase = jnp.asarray(np.exp(1j), jnp.complex64)
    tx = scale_by_muon(adaptive=True, preconditioning="aol")
    turned, plain = (tx.update(y, tx.init(y))[0] for y in (x * phase, x))
    np.testing.assert_allclose(turned, plain * phase, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMS)
def test_zeros_stay_zero_and_have_a_derivative(name):
    x = jnp.zeros((2, 3))
    steps = jnp.broadcast_to(jnp.asarray(JORDAN), (5, 3))
    f = lambda x: orthogonalize(x, steps, NORMS[name], 0.0)
    np.testing.assert_array_equal(f(x), x)
    assert np.isfinite(jax.jacrev(f)(x)).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3)])
def test_empty_matrices_pass(name, shape):
    """Optax divides by zero."""
    g = {"w": jnp.zeros(shape)}
    spec = MuonDimensionNumbers(-2, -1)
    tx = muon(0.1, preconditioning=name, muon_weight_dimension_numbers=spec)
    updates, _ = tx.update(g, tx.init(g), g)
    assert updates["w"].shape == shape


def test_a_stack_is_many_matrices():
    g = {"w": jnp.asarray(np.random.default_rng(5).normal(size=(2, 3, 4)), jnp.float32)}
    p = jax.tree.map(jnp.zeros_like, g)
    stack = muon(1.0, muon_weight_dimension_numbers=MuonDimensionNumbers(1, 2))
    found, _ = stack.update(g, stack.init(p), p)
    alone = muon(1.0)
    for i in range(2):
        one, q = {"w": g["w"][i]}, {"w": p["w"][i]}
        expected, _ = alone.update(one, alone.init(q), q)
        np.testing.assert_allclose(found["w"][i], expected["w"], atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("numbers", "order", "shape"),
    [
        (((0,), (1, 2)), (0, 1, 2), (2, 12)),
        ((2, (0, 1)), (2, 0, 1), (4, 6)),
        (((-1, 0), 1), (2, 0, 1), (8, 3)),
    ],
)
def test_axes_are_joined_in_their_order(numbers, order, shape):
    g = np.random.default_rng(6).normal(size=(2, 3, 4)).astype(np.float32)
    tx = scale_by_muon(weight_dimension_numbers=MuonDimensionNumbers(*numbers))
    found, state = tx.update(jnp.asarray(g), tx.init(jnp.asarray(g)))
    assert state.mu.shape == g.shape
    np.testing.assert_allclose(state.mu, 0.05 * g, rtol=1e-6)
    plain = scale_by_muon()
    flat = jnp.asarray(g.transpose(order).reshape(shape))
    expected, _ = plain.update(flat, plain.init(flat))
    np.testing.assert_allclose(
        np.transpose(found, order).reshape(shape), expected, atol=1e-5
    )


class Net(eqx.Module):
    """Callable, and a tree: it may be parameters, and dimension numbers."""

    w: object
    b: object

    def __call__(self, x):
        raise AssertionError("the module was called")


SPECS = {
    "tree": Net(MuonDimensionNumbers(0, (1, 2)), None),
    "Optax's": Net(optax.contrib.MuonDimensionNumbers(0, (1, 2)), None),
    "function": lambda p: Net(MuonDimensionNumbers(0, (1, 2)), None),
    "partial": jax.tree_util.Partial(
        lambda p: Net(MuonDimensionNumbers(0, (1, 2)), None)
    ),
    "patterns": {"w": MuonDimensionNumbers(0, (1, 2)), "**": None},
    "one for all": MuonDimensionNumbers(0, (1, 2)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SPECS)
def test_dimension_numbers_in_all_forms(name):
    p = Net(arrays()["t"], arrays()["b"])
    tx = muon(1.0, muon_weight_dimension_numbers=SPECS[name])
    state = tx.init(p)
    assert jax.tree.leaves(state[0]["adam"].inner_state[0].mu)[0].shape == (3,)
    found, _ = jax.jit(tx.update)(p, state, p)
    s = np.linalg.svd(np.reshape(found.w, (3, 20)), compute_uv=False)
    assert 0.6 * 20**0.5 < 3**0.5 * s.min() and 3**0.5 * s.max() < 1.3 * 20**0.5


def test_a_module_without_matrices_is_no_function():
    p = Net(arrays()["t"], arrays()["b"])
    tx = muon(1.0, muon_weight_dimension_numbers=Net(None, None))
    assert not jax.tree.leaves(tx.init(p)[0]["muon"].inner_state[0].mu)


def test_what_is_no_matrix_gets_the_mean():
    gs = {"b": jnp.asarray([[1.0, 2.0], [3.0, -1.0]])}
    found = drive(scale_by_muon(beta=0.5, nesterov=False), {"b": jnp.zeros(2)}, gs)
    np.testing.assert_allclose(found["b"], [[1.0, 2.0], [7 / 3, 0.0]], atol=1e-6)
    spec = {"w": None}
    tx = scale_by_muon(nesterov=False, weight_dimension_numbers=spec)
    g = {"w": jnp.ones((2, 2))}
    found, _ = tx.update(g, tx.init(g))
    np.testing.assert_allclose(found["w"], g["w"], rtol=1e-6)


def test_none_keeps_its_state():
    p = {"k": arrays()["k"], "t": arrays()["t"], "n": None}
    for spec in (None, {"k": MuonDimensionNumbers(), "t": None, "n": None}):
        tx = muon(0.1, muon_weight_dimension_numbers=spec)
        _, state = tx.update(p, tx.init(p), p)
        u, after = tx.update({"k": None, "t": p["t"], "n": None}, state, p)
        assert u["k"] is None and u["n"] is None
        mu = [s[0]["muon"].inner_state[0].mu["k"] for s in (state, after)]
        np.testing.assert_array_equal(*mu)


def test_an_array_of_coefficients_and_the_presets():
    g = arrays()["k"]
    run = lambda c: (lambda tx: tx.update(g, tx.init(g))[0])(scale_by_muon(c))
    np.testing.assert_array_equal(run("muon"), run(JORDAN))
    np.testing.assert_array_equal(run(jnp.asarray([JORDAN] * 5)), run(JORDAN))
    np.testing.assert_array_equal(run(np.asarray([JORDAN] * 2)), run((JORDAN,) * 2))
    assert scale_by_muon("dion").init(g).ns_coeffs.shape == (5, 3)


def test_the_iteration_can_be_narrow():
    g = arrays()["k"]
    wide, narrow = scale_by_muon(), scale_by_muon(ns_dtype=jnp.bfloat16)
    text = str(jax.make_jaxpr(narrow.update)(g, narrow.init(g)))
    assert "bf16[5,6]" in text and "bf16" not in str(
        jax.make_jaxpr(wide.update)(g, wide.init(g))
    )
    found, state = narrow.update(g, narrow.init(g))
    expected, _ = wide.update(g, wide.init(g))
    assert found.dtype == state.mu.dtype == jnp.float32
    assert np.abs(found - expected).max() > 1e-4
    s = np.linalg.svd(found, compute_uv=False)
    assert 0.6 < s.min() and s.max() < 1.25  # 2^-8 a rounding beyond 0.68 and 1.14


def test_a_narrow_gradient_is_made_orthogonal_in_float32():
    g = arrays()["k"].astype(jnp.bfloat16)
    tx = scale_by_muon()
    found, _ = tx.update(g, tx.init(g))
    expected, _ = tx.update(g.astype(jnp.float32), tx.init(g.astype(jnp.float32)))
    np.testing.assert_array_equal(found, expected.astype(jnp.bfloat16))


def test_the_program_is_as_long_as_one_step():
    g = arrays()["k"]

    def lines(n):
        tx = scale_by_muon(ns_steps=n)
        return len(str(jax.make_jaxpr(tx.update)(g, tx.init(g))).splitlines())

    assert lines(50) == lines(5)


def test_muon_descends():
    """A matrix problem, to a known minimum: ‖W - T‖² with T of condition number 100."""
    t = jnp.asarray(np.diag([1.0, 0.1, 0.01]), jnp.float32)
    loss = lambda p: jnp.sum(jnp.square(p["w"] - t)) + jnp.sum(jnp.square(p["b"] - 1))
    p = {"w": jnp.zeros((3, 3)), "b": jnp.zeros(2)}
    tx = muon(lambda count: 0.1 * 0.97 ** jnp.asarray(count, jnp.float32))

    def step(carry, _):
        p, state = carry
        updates, state = tx.update(jax.grad(loss)(p), state, p)
        return (stepax.apply_updates(p, updates), state), None

    (p, _), _ = jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), length=300))(p)
    assert loss(p) < 1e-3


def test_bad_arguments_are_named():
    p = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    numbers = MuonDimensionNumbers
    bad = ft.partial(pytest.raises, ValueError)
    with bad(match="`preconditioning` is 'l2', expected one of .*'frobenius'"):
        scale_by_muon(preconditioning="l2")  # pyright: ignore[reportArgumentType]
    with bad(match="`ns_coeffs` is 'polar', expected one of .*'dion'"):
        muon(0.1, "polar")
    with bad(match="`shape_factor` is 'width', expected one of .*'spectral'"):
        muon(0.1, shape_factor="width")  # pyright: ignore[reportArgumentType]
    for shape in [(2,), (4,), (2, 4), (1, 2, 3)]:
        with bad(match=r"`ns_coeffs` has shape \(.*\), expected \(3,\) or \(n, 3\)"):
            scale_by_muon(np.ones(shape))

    def init(spec):
        return muon(0.1, muon_weight_dimension_numbers=spec).init(p)

    where = r"`muon_weight_dimension_numbers` for \['{}'\] is MuonDimensionNumbers"
    for spec in (numbers(0, 2), numbers(-3, 1), numbers((), 1)):
        with bad(match=where.format("w") + r".*an array of shape \(2, 3\)"):
            init({"w": spec, "b": None})
    with bad(match=where.format("b") + r".*an array of shape \(3,\)"):
        init({"w": numbers(), "b": numbers()})
    for spec in (numbers(0, 0), numbers(1, -1)):
        with bad(match=where.format("w") + r".*of the shape \(2, 3\) twice"):
            init({"w": spec, "b": None})
    with pytest.raises(TypeError, match=r"for \['b'\] is True, expected a `MuonDim"):
        init(lambda p: {"w": numbers(), "b": True})
    with pytest.raises(TypeError, match=r"for \['w'\] is MuonDimensionNumbers"):
        init({"w": numbers(0.5, 1), "b": None})  # pyright: ignore[reportArgumentType]
    with bad(match="the pattern `c` in `muon_weight_dimension_numbers` matches no"):
        init({"w": numbers(), "c": None})

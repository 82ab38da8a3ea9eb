"""Optimizers of whole matrices: against their equations, and for all shapes."""

import functools as ft
import inspect
import itertools as it

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import ROWS

import stepax
from stepax.contrib import (
    MuonDimensionNumbers,
    dion,
    dion2,
    muown,
    normuon,
    scale_by_scion,
    scion,
)


RATE, STEPS = 0.1, 5
SHAPES = {"square": (4, 4), "tall": (5, 3), "wide": (2, 6)}
EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]
LONG = [
    (8.2051, -22.9019, 16.4607),
    (4.0664, -2.8612, 0.5184),
    (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853),
]
JORDAN = [(3.4445, -4.775, 2.0315)] * 5


def size(x):
    return np.sqrt(np.sum(x**2))


def orthogonal(x, rows=JORDAN, eps=1e-7, safety=1.0):
    """The polynomials a s + b s³ + c s⁵ of the singular values, one for each row."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    s = s / (safety * size(s) + eps)
    for a, b, c in rows:
        s = a * s + b * s**3 + c * s**5
    return u * s @ vt


def waves(key, shape, dtype):
    return jnp.cos(jnp.arange(np.prod(shape), dtype=dtype) ** 2).reshape(shape)


FACTORS = {
    "jordan": lambda i, o: max(1, o / i) ** 0.5,
    "spectral": lambda i, o: (o / i) ** 0.5,
    "rms": lambda i, o: 0.2 * max(i, o) ** 0.5,
    None: lambda i, o: 1,
}


def plain_normuon(p, gs, nesterov, shape_factor, weight_decay=None):
    m, v = np.zeros_like(p), np.zeros(p.shape[1])
    for g in gs:
        m = 0.9 * m + 0.1 * g
        o = orthogonal(0.9 * m + 0.1 * g if nesterov else m)
        v = 0.8 * v + 0.2 * np.mean(o**2, 0)
        u = o / (np.sqrt(v) + 1e-3)
        u = FACTORS[shape_factor](*p.shape) * u * size(o) / (size(u) + 1e-3)
        decaying = np.where(u * p >= 0, p, 0) if weight_decay is CAUTIOUS else p
        p = p - RATE * (u + 0.3 * decaying)
        yield p


def plain_dion(p, gs, rank, beta):
    (m, n), b = p.shape, np.zeros_like(p)
    q = np.asarray(waves(None, (m, min(rank, m, n)), "float64"))
    for g in gs:
        b = b + g
        left = np.linalg.qr(b.T @ q)[0]
        right = b @ left
        b = b - (1 - beta) * right @ left.T
        q = right / (np.sqrt(np.sum(right**2, 0)) + 1e-8)
        p = p - RATE * ((n / m) ** 0.5 * q @ left.T + 0.01 * p)
        yield p


def plain_dion2(p, gs, fraction, ef_decay, shape_factor):
    (m, n), momentum = p.shape, np.zeros_like(p)
    axis = 1 if n <= m else 0
    for g in gs:
        momentum = momentum + g
        sums = np.abs(momentum).sum(1 - axis)
        k = int(np.ceil(fraction * min(m, n)))
        chosen = np.sort(np.argsort(-sums)[:k])
        at = (slice(None), chosen) if axis else (chosen, slice(None))
        u = np.zeros_like(p)
        u[at] = orthogonal(momentum[at], EXPRESS, 1e-8, 1.02)
        momentum[at] *= ef_decay
        p = p - RATE * (FACTORS[shape_factor](m, n) * u + 0.01 * p)
        yield p


def plain_muown(
    p, gs, ns_steps, norm_schedule_steps=0, norm_target=1, b1=0.9, eps=1e-8
):
    norms = lambda x: np.sqrt(np.sum(x**2, 0))
    gamma = aim = first = norms(p)
    momentum, mu, nu = np.zeros_like(p), 0, 0
    for t, g in enumerate(gs, 1):
        w = p / gamma
        along = np.sum(g * w, 0)
        across = gamma / aim * (g - w * along)
        momentum = 0.95 * momentum + across
        u = orthogonal(across + 0.95 * momentum, LONG[:ns_steps])
        v = aim * w - RATE * 0.2 * max(p.shape) ** 0.5 * u
        mu, nu = b1 * mu + (1 - b1) * along, 0.95 * nu + 0.05 * along**2
        adam = mu / (1 - b1**t) / (np.sqrt(nu / (1 - 0.95**t)) + eps)
        gamma = gamma - RATE * adam
        p = gamma * v / norms(v)
        n = norm_schedule_steps
        x = min((t - 1) / (n - 1), 1) if n > 1 else 1
        aim = first + x**2 * (3 - 2 * x) * (norm_target - first)
        yield p


CAUTIOUS = stepax.weight_decay(0.3, "cautious")
DECAYS = [{}, {}, {"weight_decay": CAUTIOUS}, {"weight_decay": CAUTIOUS}]
NORMUON = ft.partial(normuon, RATE, 0.9, 0.8, norm_eps=1e-3, weight_decay=0.3)
DION = ft.partial(dion, RATE, sampler=waves)
# The optimizer, what it is by its equations, and options of both.
CASES = {
    "normuon": (
        NORMUON,
        plain_normuon,
        [
            {"nesterov": n, "shape_factor": f, **decay}
            for f, n, decay in zip(FACTORS, it.cycle([1, 0]), DECAYS, strict=False)
        ],
    ),
    "dion": (DION, plain_dion, [{"rank": r, "beta": 0.8} for r in (1, 2, 99)]),
    "dion2": (
        ft.partial(dion2, RATE),
        plain_dion2,
        [
            {"fraction": 0.25, "ef_decay": 0.9, "shape_factor": "spectral"},
            {"fraction": 0.6, "ef_decay": 0.0, "shape_factor": "rms"},
            {"fraction": 1.0, "ef_decay": 0.5, "shape_factor": None},
        ],
    ),
    "muown": (
        ft.partial(muown, RATE),
        plain_muown,
        [
            {"ns_steps": 4, "norm_schedule_steps": n, "norm_target": x}
            for n, x in zip((0, 1, 2, 4), (0.5, 2.0, 1.0, 0.7), strict=True)
        ]
        + [{"ns_steps": 4, "b1": 0.8, "eps": eps} for eps in (1e-6, 1e-3, 0.1)],
    ),
}
OPTIONS = [
    pytest.param(make, plain, options, id=f"{name} {i}")
    for name, (make, plain, all_options) in CASES.items()
    for i, options in enumerate(all_options)
]


def drive(tx, params, gs):
    """The parameters after each step."""

    @jax.jit
    def step(carry, g):
        p, state = carry
        updates, state = tx.update(g, state, p)
        p = stepax.apply_updates(p, updates)
        return (p, state), p

    return jax.lax.scan(step, (params, tx.init(params)), gs)[1]


def problem(shapes=SHAPES, dtype="float64"):
    random = np.random.default_rng(0)
    draw = lambda *lead: {
        k: jnp.asarray(random.normal(size=(*lead, *shape)), dtype)
        for k, shape in shapes.items()
    }
    return draw(), draw(STEPS)


# Each step multiplies rounding by at most the product of the first coefficients, 4e3.
@pytest.mark.few(1)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("make", "plain", "options"), OPTIONS)
def test_steps_are_those_of_the_equations(make, plain, options):
    p, gs = problem()
    found = drive(make(**options), p, gs)
    for k in SHAPES:
        expected = list(plain(np.asarray(p[k]), np.asarray(gs[k]), **options))
        np.testing.assert_allclose(found[k], expected, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_traced_fraction_moves_the_same_slices():
    p, gs = problem()
    for fraction in (0.25, 0.6, 1.0):
        found = drive(dion2(RATE, jnp.asarray(fraction)), p, gs)
        for k, x in drive(dion2(RATE, fraction), p, gs).items():
            np.testing.assert_allclose(found[k], x, rtol=0, atol=1e-9)


MAKERS = {k: ft.partial(make, **options[0]) for k, (make, _, options) in CASES.items()}


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", MAKERS)
def test_a_stack_or_a_kernel_is_its_matrices(name):
    """Scanned layers, heads beside each other and kernels; also by path patterns."""
    shapes = {"stack": (3, 4, 5), "heads": (4, 2, 3), "kernel": (2, 1, 3, 4)}
    axes = {
        "stack": MuonDimensionNumbers(1, 2),
        "he*": MuonDimensionNumbers(0, 2),
        "kernel": MuonDimensionNumbers((0, 1, 2), 3),
    }
    p, gs = problem(shapes)

    def apart(x, lead):
        at = (slice(None),) * lead
        parts = {f"stack{i}": x["stack"][(*at, i)] for i in range(3)}
        parts |= {f"heads{i}": x["heads"][(*at, slice(None), i)] for i in range(2)}
        return parts | {"kernel": x["kernel"].reshape(*x["kernel"].shape[:lead], 6, 4)}

    found = apart(drive(MAKERS[name](weight_dimension_numbers=axes), p, gs), 1)
    wanted = drive(MAKERS[name](), apart(p, 0), apart(gs, 1))
    for k, x in wanted.items():
        np.testing.assert_allclose(found[k], x, rtol=0, atol=1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MAKERS)
def test_what_is_no_matrix_is_named(name):
    p = {"w": jnp.ones((2, 3)), "deep": {"b": jnp.ones(3)}}
    tx = MAKERS[name]()
    said = rf"`{name}` trains matrices, but the array at \['deep'\]\['b'\] has shape "
    with pytest.raises(ValueError, match=said + r"\(3,\).*`partition`"):
        tx.init(p)
    layers = {"w": jnp.ones((2, 3)), "deep": {"b": jnp.ones((4, 3))}}
    with pytest.raises(ValueError, match=said + r"\(3,\)"):
        stepax.stacked(tx, {"**/b": 0, "**": None}).init(layers)
    with pytest.raises(ValueError, match=said):
        tx.update(p, tx.init({"w": p["w"], "deep": {"b": None}}), p)
    tx = MAKERS[name](
        weight_dimension_numbers={"b": MuonDimensionNumbers(), "**": None}
    )
    with pytest.raises(
        ValueError, match=r"`weight_dim.* for \['deep'\]\['b'\] is Muon"
    ):
        tx.init(p)
    both = {"matrix": MAKERS[name](), "other": stepax.adam(RATE)}
    tx = stepax.partition(both, {"w": "matrix", "**": "other"})
    u, _ = jax.jit(tx.update)(p, tx.init(p), p)
    assert all(np.any(x != 0) for x in jax.tree.leaves(u))


MATRIX_ROWS = [
    pytest.param(row, id=row.name) for row in ROWS.values() if row.matrices_only
]


@pytest.mark.slow
@pytest.mark.parametrize("row", MATRIX_ROWS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_zero_gradients_first_and_later_make_no_nan(row, dtype):
    p, gs = problem(dtype=dtype)
    gs = jax.tree.map(lambda g: g.at[np.array([0, 3])].set(0), gs)
    takes = inspect.signature(row.factory).parameters
    tx = row.factory(RATE) if "learning_rate" in takes else row.factory()
    found = drive(tx, p, gs)
    for x in jax.tree.leaves(found):
        assert x.dtype == dtype and jnp.all(jnp.isfinite(x))
    assert jnp.any(found["tall"][-1] != found["tall"][-2])
    left = tx.update({k: None for k in p}, tx.init(p), p)[0]
    assert all(x is None for x in left.values())


@pytest.mark.slow
def test_outputs_of_norm_0_remain_0():
    p = {"w": jnp.ones((3, 2)).at[:, 1].set(0)}
    tx = muown(RATE)
    u, _ = tx.update({"w": jnp.ones((3, 2))}, tx.init(p), p)
    assert not jnp.any(u["w"][:, 1]) and jnp.all(jnp.isfinite(u["w"]))


BAD = {
    r"`dion`: `rank` must be >= 1, but is 0": lambda: dion(RATE, 0),
    r"`dion2`: `fraction` must be in \(0, 1\], but is 0": lambda: dion2(RATE, 0),
    r"`dion2`: `fraction` must be in \(0, 1\], but is 1.5": lambda: dion2(RATE, 1.5),
    r"`dion2`: `ef_decay` must be in": lambda: dion2(RATE, ef_decay=2.0),
    r"`muown`: `norm_target` must be >= 0": lambda: muown(RATE, norm_target=-1.0),
    r"`normuon`: `norm_eps` must be >= 0": lambda: normuon(RATE, norm_eps=-1.0),
    r"`shape_factor` is 'x', expected one of": lambda: normuon(
        RATE,
        shape_factor="x",  # pyright: ignore[reportArgumentType]
    ),
    r"`ns_coeffs` is 'x', expected one of": lambda: dion2(RATE, ns_coeffs="x"),
    r"`norms` for \['w'\] is 'x', expected one of \['auto', 'spec": lambda: scion(
        norms="x"
    ).init({"w": jnp.ones((2, 2))}),
    r"`norms` for \['b'\] is 'sign', expected an array with at least 2 axes.*\(3,\)": (
        lambda: scion(norms="sign").init({"b": jnp.ones(3)})
    ),
}


@pytest.mark.parametrize("said", BAD)
def test_bad_arguments_are_named(said):
    with pytest.raises(ValueError, match=said):
        BAD[said]()


# --- Scion: a norm for each array -----------------------------------------------------


def spectral_conv(m):
    *window, i, o = m.shape
    flat = orthogonal(m.reshape(-1, o)).reshape(m.shape)
    return (o / i) ** 0.5 / np.prod(window) * flat


def root_mean(m, axis=None):
    return np.sqrt(np.mean(m**2, axis, keepdims=True))


def spectral(m):
    return (m.shape[1] / m.shape[0]) ** 0.5 * orthogonal(m)


NORMS = {
    ("spectral", (3, 5)): spectral,
    ("spectral", (2, 3, 5)): lambda m: np.stack(list(map(spectral, m))),
    ("spectral_conv", (3, 2, 4)): spectral_conv,
    ("spectral_conv", (3, 3, 2, 4)): spectral_conv,
    ("sign", (3, 5)): lambda m: np.sign(m) / 3,
    ("bias_rms", (4,)): lambda m: m / (root_mean(m) + 1e-8),
    ("bias_rms", ()): lambda m: m / (root_mean(m).reshape(()) + 1e-8),
    ("column", (3, 5)): lambda m: m / (root_mean(m, 1) + 1e-8),
    ("row", (3, 5)): lambda m: m / (3 * root_mean(m, 0) + 1e-8),
    ("auto", (3, 5)): spectral,
    ("auto", (3, 2, 4)): spectral_conv,
    ("auto", (4,)): lambda m: m / (root_mean(m) + 1e-8),
}


@pytest.mark.few(1)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("case", NORMS, ids=str)
def test_a_step_of_scion_is_as_long_as_its_norm_says(case, constrained):
    norm, shape = case
    p, gs = problem({"w": shape})
    rate = lambda count: RATE / (1 + count)
    tx = scion(rate, 0.3, {"w": norm}, {"*": 2.5}, constrained=constrained)
    found, q, m = drive(tx, p, gs), np.asarray(p["w"]), np.zeros(shape)
    for t, (x, g) in enumerate(zip(found["w"], np.asarray(gs["w"]), strict=True)):
        m = 0.7 * m + 0.3 * g
        q = q - rate(t) * (2.5 * NORMS[case](m) + (q if constrained else 0))
        np.testing.assert_allclose(x, q, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_one_scale_for_all_is_a_hyperparameter():
    p = {"w": jnp.ones((2, 2)), "b": jnp.ones(3), "n": None}
    tx = stepax.inject_hyperparams(scion)(RATE, scales=2.0)
    state = tx.init(p)
    u, _ = tx.update(p, stepax.tree.set(state, scales=jnp.float32(4.0)), p)
    v, _ = scale_by_scion(scales={"**": 4.0}).update(p, scale_by_scion().init(p), p)
    np.testing.assert_allclose(u["b"], -RATE * (v["b"] + 1), rtol=1e-6)
    np.testing.assert_allclose(u["w"], -RATE * (v["w"] + 1), rtol=1e-6)
    assert u["n"] is None

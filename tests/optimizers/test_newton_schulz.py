"""The products of the Newton-Schulz iteration: how many, how precise, and when."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import (
    NORMS,
    batched,
    coefficients,
    newton_schulz,
    orthogonal,
    orthogonalize,
)
from jax.extend.core import jaxprs_in_params

import stepax


def rows_of(name, steps):
    return np.broadcast_to(np.asarray(coefficients(name, steps)), (steps, 3))


def products(jaxpr):
    """The equations of the products of a program."""
    for eqn in jaxpr.eqns:
        for inner in jaxprs_in_params(eqn.params):
            yield from products(inner)
        if eqn.primitive.name == "dot_general":
            yield eqn


def products_of(shape, steps=5, dtype=None):
    abc = jnp.asarray(rows_of("muon", steps), jnp.float32)
    f = lambda x: orthogonalize(x, abc, NORMS["frobenius"], 1e-8, dtype)
    return list(products(jax.make_jaxpr(f)(jnp.ones(shape)).jaxpr))


def take_for_others(monkeypatch):
    """Take the steps that are for other platforms than a CPU."""
    for_others = lambda default, *args, **by_platform: default(*args)
    monkeypatch.setattr(orthogonal, "by_platform", for_others)


@pytest.fixture
def work(monkeypatch):
    """Multiplications, as a number of products of square matrices of the short side."""
    product, counts = jnp.matmul, []

    def counting(x, y, **kwargs):
        out = product(x, y, **kwargs)
        counts.append(out.size * x.shape[-1])
        return out

    def count(shape, steps=5, dtype=None):
        counts.clear()
        abc = jnp.asarray(rows_of("muon", steps), jnp.float32)
        with jax.disable_jit():
            orthogonalize(jnp.ones(shape), abc, NORMS["frobenius"], 1e-8, dtype)
        return sum(counts) / min(shape) ** 3

    monkeypatch.setattr(jnp, "matmul", counting)
    return count


# n steps on x, of sides 1 and r, take n (2 r + 1) products of the short side; n on its
# Gram matrix take 4 n - 3 and 2 r.
WORK = {
    "square": ((8, 8), 5, 5 * 3),
    "1.5": ((8, 12), 5, 5 * 4),
    "wide": ((8, 32), 5, (9 + 8) + (5 + 8)),
    "tall": ((32, 8), 5, (9 + 8) + (5 + 8)),
    "twice": ((16, 8), 3, 9 + 4),
    "one step": ((8, 32), 1, 9),
    "seven steps": ((8, 32), 7, (9 + 8) + 2 * (5 + 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_the_work_is_that_of_the_cheaper_form(work, name):
    shape, steps, expected = WORK[name]
    assert work(shape, steps) == expected


@pytest.mark.slow
def test_rounded_products_are_of_the_whole_matrix(work, monkeypatch):
    assert work((8, 32), 5, jnp.bfloat16) == 45
    # There float32 is rounded to TF32 or bfloat16, unless one asks for more.
    take_for_others(monkeypatch)
    assert work((8, 32)) == 45
    with jax.default_matmul_precision("highest"):
        assert work((8, 32)) == 30


def test_products_on_a_gram_matrix_are_precise_wherever_they_run(monkeypatch):
    on_cpu = lambda default, x, cpu=None, gpu=None: (cpu or default)(x)
    monkeypatch.setattr(orthogonal, "by_platform", on_cpu)
    for eqn in products_of((8, 32)):
        assert set(eqn.params["precision"]) == {jax.lax.Precision.HIGHEST}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sums_of_narrow_products_are_in_float32(dtype):
    found = products_of((8, 12), 5, dtype)
    assert len(found) == 3
    for eqn in found:
        assert {x.aval.dtype for x in eqn.invars} == {jnp.dtype(dtype)}
        assert eqn.outvars[0].aval.dtype == jnp.float32


def matrices(m, n):
    random = np.random.default_rng(0)
    u, _ = np.linalg.qr(random.normal(size=(m, m)))
    v, _ = np.linalg.qr(random.normal(size=(n, m)))
    with_values = lambda s: u * s @ v.T
    yield "normal", random.normal(size=(m, n))
    yield "condition 1e4", with_values(np.logspace(0, -4, m))
    yield "condition 1e8", with_values(np.logspace(0, -8, m))
    yield "half the rank", with_values(np.arange(m) % 2)
    yield "rank 1", with_values(np.arange(m) == 0)
    yield "ones", np.ones((m, n))
    yield "one large", with_values(np.where(np.arange(m) == 0, 1, 1e-4))
    yield "tiny", 1e-15 * random.normal(size=(m, n))


def in_float64(x, name, steps):
    """The iteration, on singular values."""
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    s = s / np.linalg.norm(s) / (1.02 if name == "polar_express" else 1)
    for a, b, c in rows_of(name, steps):
        s = a * s + b * s**3 + c * s**5
    return u * s @ vh


@pytest.mark.few(1)
@pytest.mark.parametrize("steps", [5, 10])
@pytest.mark.parametrize("name", ["muon", "polar_express", "polar_express_long"])
@pytest.mark.parametrize("shape", [(16, 64), (12, 5)], ids=str)
def test_the_gram_form_is_as_precise(monkeypatch, shape, name, steps):
    """Rounding is multiplied by up to the product of all `a` in either form.

    4: there are twice as many products between two restarts.  2e-4: singular values of
    the largest, which is the only one of "ones", come from cancellation.
    """
    some = [x.astype(np.float32) for _, x in matrices(*sorted(shape))]
    xs = np.stack([x if shape[0] < shape[1] else x.T for x in some])
    right = np.stack([in_float64(x.astype(float), name, steps) for x in xs])
    error = lambda y: np.linalg.norm(y - right, axis=(-2, -1))
    sizes = np.linalg.norm(right, axis=(-2, -1))
    one = newton_schulz(name, steps, 0.0)
    found = error(jax.jit(lambda x: one(x))(xs))
    take_for_others(monkeypatch)
    whole = error(jax.jit(lambda x: one(x))(xs))
    assert (found != whole).any()
    assert (found <= 4 * whole + 2e-4 * sizes).all()


@pytest.mark.slow
def test_one_nan_stays_in_its_matrix_and_zeros_are_zeros():
    x = jax.random.normal(jax.random.key(0), (3, 4, 16)).at[1, 2, 3].set(jnp.nan)
    x = x.at[2].set(0)
    one = newton_schulz("muon", 5, 1e-8)
    found = one(x)
    np.testing.assert_allclose(found[0], one(x[0]), atol=1e-5)
    assert np.isnan(found[1]).any() and not found[2].any()
    assert np.isfinite(jax.jacrev(one)(jnp.zeros((2, 5)))).all()


@pytest.mark.slow
def test_long_complex_matrices_become_unitary():
    random = np.random.default_rng(1)
    x = random.normal(size=(3, 9)) + 1j * random.normal(size=(3, 9))
    u, _, vh = np.linalg.svd(x, full_matrices=False)
    steps = jnp.broadcast_to(jnp.asarray([15 / 8, -10 / 8, 3 / 8]), (12, 3))
    for y, right in ((x, u @ vh), (x.T, (u @ vh).T)):
        y = jnp.asarray(y, jnp.complex64)
        found = orthogonalize(y, steps, NORMS["frobenius"], 0.0)
        assert found.dtype == jnp.complex64
        np.testing.assert_allclose(found, right, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("factory", [stepax.contrib.muon, stepax.contrib.normuon])
def test_a_gpu_computes_matrices_of_one_shape_together(factory, monkeypatch):
    shapes = {
        "a": (6, 4),
        "b": (6, 4),
        "c": (4, 9),
        "d": (6, 4),
        "e": (6, 4),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    draw = lambda key, shape: jax.random.normal(key, shape)
    p = {k: draw(key, x) for key, (k, x) in zip(keys, shapes.items(), strict=True)}

    def updates(rate):  # another one for each, since equal ones share programs
        tx = factory(rate)
        step = jax.jit(tx.update)
        return step(p, tx.init(p), p)[0], str(
            jax.make_jaxpr(tx.update)(p, tx.init(p), p)
        )

    one_by_one, program = updates(1e-2)
    # Four matrices, two at a time.
    monkeypatch.setattr(batched, "STACK", 48)
    gpu = lambda default, *args, gpu: gpu(*args)
    monkeypatch.setattr(batched, "by_platform", gpu)
    together, stacked = updates(1.001e-2)
    assert "[2,4,4]" in stacked and "[2,4,4]" not in program  # Gram matrices
    for x, y in zip(*map(jax.tree.leaves, (one_by_one, together)), strict=True):
        # Rounding errors of products in another order.
        np.testing.assert_allclose(1.001 * x, y, rtol=1e-5, atol=1e-7)

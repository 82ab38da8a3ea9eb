"""Orthogonal updates do not depend on the scale of gradients; whitened ones are finite.

An `eps` above the rounding error of float32 is kept as it is given.

A momentum is homogeneous, so that all steps of a run are scaled alike.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ROWS, keeps_factors, make, rows

import stepax
from stepax import contrib


SCALES = np.array(
    [1e-30, 1e-24, 1e-18, 1e-12, 1e-6, 1, 1e6, 1e12, 1e18, 1e24, 1e30], np.float32
)
ONE = list(SCALES).index(1)
STEPS = 3
PARAMS = {"tall": (6, 4), "wide": (3, 9)}


def is_orthogonalizing(row):
    return row.matrices_only or "ns_steps" in inspect.signature(row.factory).parameters


# Other values of the arguments of these names, one at a time.
VALUES = {
    "nesterov": [False],
    "bias_correction": [False],
    "preconditioning": ["spectral", "aol", "schatten"],
    "ns_coeffs": ["dion", "polar_express", "polar_express_long"],
    "ns_dtype": [jnp.bfloat16],
    "shape_factor": ["rms"],
    "fraction": [0.6],
    "rank": [2],
    "norms": ["sign", "bias_rms", "column", "row"],
    "momentum": [0.3],
    "norm_schedule_steps": [2],
    "eps": [0.0],
}


def cases():
    for name, row in ROWS.items():
        if row.kind not in ("optimizer", "transform") or not is_orthogonalizing(row):
            continue
        names = inspect.signature(row.factory).parameters
        given = [(k, v) for k in names for v in VALUES.get(k, ())]
        for options in [{}, *({k: v} for k, v in given)]:
            shown = " ".join(f"{k}={v}" for k, v in options.items())
            yield pytest.param(row, options, id=f"{name} {shown}".strip())


def updates_at(given: Any, scales=SCALES):
    """The updates of a few steps as vectors, (scales, steps, elements).

    given: the transformation, or a function that makes it for a scale.
    """
    random = np.random.default_rng(0)
    draw = lambda *lead: {
        k: jnp.asarray(random.normal(size=(*lead, *shape)), jnp.float32)
        for k, shape in PARAMS.items()
    }
    params, gs = draw(), draw(STEPS)

    @jax.jit
    @jax.vmap
    def run(scale):
        tx: Any = given(scale) if callable(given) else given

        def step(state, g):
            g = jax.tree.map(lambda x: scale * x, g)
            u, state = tx.update(g, state, params)
            return state, jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(u)])

        return jax.lax.scan(step, tx.init(params), gs)[1]

    return np.asarray(run(scales))


def gaps(found):
    """How far each scale is from 1, as a share of the update."""
    norms = np.linalg.norm(found - found[ONE], axis=-1)
    return norms / np.linalg.norm(found[ONE], axis=-1)


@pytest.mark.few(2)
@pytest.mark.parametrize(("row", "options"), list(cases()))
def test_the_scale_of_gradients_does_not_matter(row, options):
    """To 1e-3; in bfloat16 to 2^-7, twice the rounding of what is iterated.

    A scale that is no power of two rounds each gradient, and bfloat16 keeps 8 bits.
    """
    is_narrow = options.get("ns_dtype") == jnp.bfloat16
    assert gaps(updates_at(make(row, **options))).max() <= (
        2**-7 if is_narrow else 1e-3
    )


def with_eps():
    for name, row in ROWS.items():
        names = inspect.signature(row.factory).parameters
        for eps in ("eps", "ns_eps"):
            if eps in names and is_orthogonalizing(row):
                yield pytest.param(row, eps, id=f"{name} {eps}")


@pytest.mark.few(2)
@pytest.mark.parametrize(("row", "name"), list(with_eps()))
def test_an_eps_that_matters_is_in_units_of_the_gradient(row, name):
    """Scaled as gradients are, it leaves updates as they are; 0 does not."""
    few = {"ns_steps": 2} if name == "ns_eps" else {}  # more forget it

    def tx(scale):
        return make(row, **{name: jnp.where(scale > 1e6, 0, 0.3 * scale)}, **few)

    found = updates_at(tx)
    is_kept = (SCALES >= 1e-6) & (SCALES <= 1e6)  # below, it is at most 2^-23
    assert gaps(found)[is_kept].max() <= 1e-3
    assert gaps(found)[SCALES > 1e6].min() > 1e-2


def test_the_dual_norm_is_as_large_as_the_gradient():
    """It is the size of the update if `adaptive`."""
    found = updates_at(contrib.scale_by_muon(adaptive=True))
    assert gaps(found / SCALES[:, None, None]).max() <= 1e-3


def whitening():
    return [
        x
        for x in rows(kind="optimizer")
        if keeps_factors(make(x.values[0])) and not is_orthogonalizing(x.values[0])
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("row", whitening())
def test_whitened_updates_are_finite(row):
    """Up to 1e18, whose square is still a float32."""
    found = updates_at(make(row), SCALES[: ONE + 4])
    assert np.isfinite(found).all() and found[ONE].any()


def test_a_clip_for_all_does_not_stall_a_layer():
    """A gradient of 1e9 beside it, clipped, leaves this one 1e-9 of its size."""
    random = np.random.default_rng(0)
    g = jnp.asarray(random.normal(size=(6, 4)), jnp.float32)
    tx = stepax.chain(stepax.clip_by_global_norm(1.0), contrib.scale_by_muon())
    alone, beside = {"w": g, "b": 0 * g}, {"w": g, "b": 1e9 * g}
    wanted, found = (tx.update(x, tx.init(x))[0]["w"] for x in (alone, beside))
    assert jnp.linalg.norm(found - wanted) <= 1e-3 * jnp.linalg.norm(wanted)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "row", [x for x in rows(kind="transform") if is_orthogonalizing(x.values[0])]
)
def test_zeros_stay_and_nan_spreads(row):
    tx, params = make(row), {"w": jnp.ones((4, 3))}
    u, _ = tx.update({"w": jnp.zeros((4, 3))}, tx.init(params), params)
    assert not u["w"].any()
    u, _ = tx.update({"w": jnp.full((4, 3), jnp.nan)}, tx.init(params), params)
    assert jnp.isnan(u["w"]).any()  # Dion2 moves a part of the columns

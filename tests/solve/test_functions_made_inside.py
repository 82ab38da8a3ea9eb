"""Solvers whose functions are made inside of a traced function have derivatives."""

import functools as ft
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax.solve import constraints, prox


X = np.array([1.0, 2.0])
EYE = np.eye(2)
START = np.ones(2)


class Fit:
    """Residuals p - a² x, of which the solution is a² x."""

    def residuals(self, p, a):
        return p - a**2 * X


def as_lambda():
    return lambda p, a: p - a**2 * X


def as_closure():
    x = X * 1

    def residuals(p, a):
        return p - a**2 * x

    return residuals


FORMS = {
    "lambda": as_lambda,
    "closure": as_closure,
    "method": lambda: Fit().residuals,
    "partial": lambda: ft.partial(lambda x, p, a: p - a**2 * x, X),
}


def square_of(r, form):
    """Its sum of squares, in the same form."""
    if form == "method":
        fit = Fit()
        fit.residuals = lambda p, a: jnp.sum(r(p, a) ** 2)
        return fit.residuals
    sums = lambda r, p, a: jnp.sum(r(p, a) ** 2)
    return ft.partial(sums, r) if form == "partial" else lambda p, a: sums(r, p, a)


def minimized(**options):
    def solve(r, form, a):
        fun = square_of(r, form)
        return stepax.minimize(fun, START, args=(a,), tol=1e-10, **options).params

    return solve


def constrained(method):
    def solve(r, form, a):
        return stepax.minimize(
            lambda p, a: jnp.sum(p**2),
            START,
            args=(a,),
            constraints=constraints.equality(r),
            method=method,
        ).params

    return solve


SOLVERS = {
    "lbfgs": minimized(),
    "transformation": minimized(method=stepax.sgd(0.5)),
    "bounds": minimized(bounds=(-100.0, 100.0)),
    "prox": minimized(prox=prox.box(-100.0, 100.0)),
    "sqp": constrained("sqp"),
    "augmented": constrained("lbfgs"),
    "least_squares": lambda r, _, a: (
        stepax.solve.least_squares(r, START, args=(a,)).params
    ),
    "least_squares with bounds": lambda r, _, a: (
        stepax.solve.least_squares(r, START, args=(a,), bounds=(-100, 100)).params
    ),
    "root": lambda r, _, a: stepax.solve.root(r, START, args=(a,)).params,
    "bracket": lambda r, _, a: (
        stepax.solve.root(r, START, args=(a,), bracket=(-99 * X, 99 * X)).params
    ),
    "fixed_point": lambda r, _, a: (
        stepax.solve.fixed_point(lambda p, a: p - r(p, a) / 2, START, args=(a,)).params
    ),
    "implicit": lambda r, _, a: stepax.solve.implicit(r)(lambda p, a: a**2 * X)(
        START, a
    ),
    "quadratic_program": lambda r, _, a: (
        stepax.solve.quadratic_program(EYE, r(0 * X, a)).params
    ),
}


def scanned(fit):
    def total(a):
        step = lambda carry, x: (carry + fit(x * a), None)
        return jax.lax.scan(step, 0.0 * a, jnp.ones(2))[0] / 2

    return jax.grad(jax.jit(total))


def around(fit):
    """A rule of the user's, which calls the solver's."""
    own = jax.custom_vjp(fit)
    own.defvjp(lambda a: jax.vjp(jax.jit(fit), a), lambda pull, ct: pull(ct))
    return jax.grad(jax.jit(own))


# Of fit(a) = sum(a² x), whose first two derivatives are 6 a and 6.
DERIVATIVES = {
    "grad of jit": lambda fit: jax.grad(jax.jit(fit)),
    "checkpoint": lambda fit: jax.grad(jax.jit(jax.checkpoint(fit))),
    "scan": scanned,
    "vmap of grad of jit": lambda fit: (
        lambda a: jax.vmap(jax.grad(jax.jit(fit)))(jnp.stack([a, a]))[0]
    ),
    "jacfwd": lambda fit: jax.jacfwd(jax.jit(fit)),
    "hessian": lambda fit: lambda a: jax.hessian(jax.jit(fit))(a) * a,
    "custom_vjp": around,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_function_made_inside_has_derivatives(solver, derivative, form, x64):
    def fit(a):
        return jnp.sum(SOLVERS[solver](FORMS[form](), form, a))

    found = DERIVATIVES[derivative](fit)(jnp.asarray(1.5))
    np.testing.assert_allclose(found, 6 * 1.5, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("solver", ("lbfgs", "sqp", "least_squares", "root"))
def test_a_function_made_inside_is_dropped_with_the_function_around(solver, form, x64):
    made = []

    def fit(a):
        r = FORMS[form]()
        made.append(weakref.ref(getattr(r, "__self__", r)))
        return jnp.sum(SOLVERS[solver](r, form, a))

    jax.grad(jax.jit(fit))(jnp.asarray(1.5))
    del fit
    gc.collect()
    assert made and not any(of() for of in made)

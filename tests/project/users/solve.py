"""Minimization until convergence, and least squares."""

import jax
import jax.numpy as jnp

import stepax


def rosenbrock(x: jax.Array) -> jax.Array:
    return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


def residuals(p: dict[str, jax.Array], t: jax.Array) -> jax.Array:
    return p["a"] * jnp.exp(-p["b"] * t) - 0.5


start = jnp.array([-1.2, 1.0])
found = stepax.minimize(rosenbrock, start)
boxed = stepax.minimize(rosenbrock, start, bounds=(None, 2.0), max_steps=50)
by_adam = stepax.minimize(rosenbrock, start, method=stepax.adam(0.1), max_steps=5)
p = {"a": jnp.ones([]), "b": jnp.ones([])}
t = jnp.linspace(0.0, 1.0, 5)
fit = stepax.solve.least_squares(residuals, p, args=(t,))
root = stepax.solve.root(lambda x: x**2 - 2, jnp.ones([]))
value: jax.Array = found.value
done: bool = bool(found.success) and "Converged" in found.status.message
trained = jnp.stack([value, fit.value, root.params])

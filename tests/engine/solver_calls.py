"""Calls of the solvers with functions that hold something."""

from typing import Any

import jax.numpy as jnp

import stepax as typed
import stepax.second_order


stepax: Any = typed  # functions of any arguments are given here
X = jnp.ones(3)


def square(x, *rest):
    return jnp.sum(jnp.square(x["w"] if isinstance(x, dict) else x))


# By function and argument, from what makes a function hold something to a call.
SOLVERS: dict[str, Any] = {
    "minimize(fun)": lambda hold: stepax.minimize(hold(square), X),
    "minimize(callback)": lambda hold: stepax.minimize(
        square, X, callback=hold(lambda result: None)
    ),
    "least_squares(residuals)": lambda hold: stepax.solve.least_squares(
        hold(jnp.sin), X
    ),
    "least_squares(callback)": lambda hold: stepax.solve.least_squares(
        jnp.sin, X, callback=hold(lambda result: None)
    ),
    "root(f)": lambda hold: stepax.solve.root(hold(jnp.sin), X),
    "root(callback)": lambda hold: stepax.solve.root(
        jnp.sin, X, callback=hold(lambda result: None)
    ),
    "fixed_point(f)": lambda hold: stepax.solve.fixed_point(hold(jnp.cos), X),
    "fixed_point(callback)": lambda hold: stepax.solve.fixed_point(
        jnp.cos, X, callback=hold(lambda result: None)
    ),
    "implicit(optimality)": lambda hold: stepax.solve.implicit(hold(jnp.sin))(jnp.sin)(
        X
    ),
    "implicit(fixed_point)": lambda hold: stepax.solve.implicit(
        fixed_point=hold(jnp.cos)
    )(jnp.cos)(X),
    "ggn_product(outputs)": lambda hold: stepax.second_order.ggn_product(
        hold(jnp.sin), jnp.sum, X, X
    ),
    "ggn_product(loss)": lambda hold: stepax.second_order.ggn_product(
        jnp.sin, hold(jnp.sum), X, X
    ),
    "fisher_product(negative_log_likelihoods)": lambda hold: (
        stepax.second_order.fisher_product(hold(jnp.sin), X, X)
    ),
}

"""Products with the Hessian, Gauss-Newton and Fisher matrices; diagonals.

Martens, 2020, New Insights and Perspectives on the Natural Gradient Method
(arXiv:1412.1193), for their uses; Schraudolph, 2002, Fast curvature matrix-vector
products (DOI 10.1162/08997660260028683), for those without a matrix.

`hvp`, `hessian_diag` and `fisher_diag` are deprecated, as in Optax: each is one line of
JAX.

Differences from Optax: the vector may be a tree, as the parameters; the diagonal of
the Hessian is computed one element at a time, in memory proportional to the number of
parameters, not to its square.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ._engine.arrays.numerics import abs_sq, has_dtype
from ._engine.base import ArrayTree, Params
from ._engine.functions.calls import explain_misuse
from ._engine.functions.deprecated import warn_deprecated
from ._names import attributes


__all__ = [
    "fisher_diag", "fisher_product", "ggn_product", "hessian_diag", "hvp",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


Loss = Callable[[Params, ArrayTree, ArrayTree], jax.Array]


@explain_misuse
def hvp(
    loss: Loss, v: Params, params: Params, inputs: ArrayTree, targets: ArrayTree
) -> Any:
    """The product of the Hessian of a loss with a vector, H v.

    loss: called as `loss(params, inputs, targets)`; returns a scalar.
    v: a tree like `params`, or its elements in one vector.
    params: the point at which to take the Hessian; a tree of real arrays.
    inputs, targets: passed to the loss.

    Returns a tree like `params`.  Raises ValueError if `v` does not fit.
    """
    warn_deprecated("hvp")
    return _product(loss, v, params, inputs, targets)


def _product(loss, v, params, inputs, targets):
    gradient = jax.grad(lambda p: loss(p, inputs, targets))
    return jax.jvp(gradient, (params,), (_tangent(v, params),))[1]


def _tangent(v, params):
    if jax.tree.structure(v) == jax.tree.structure(params):
        shapes = jax.tree.map(jnp.shape, v), jax.tree.map(jnp.shape, params)
        if shapes[0] == shapes[1]:
            return v
    flat, unravel = ravel_pytree(params)
    if not has_dtype(v) or v.size != flat.size:
        found = v.shape if has_dtype(v) else type(v).__name__
        raise ValueError(
            f"`v` is {found}, expected a tree like `params` or a vector of shape "
            f"{flat.shape}"
        )
    return unravel(jnp.reshape(v, flat.shape))


@explain_misuse
def hessian_diag(
    loss: Loss, params: Params, inputs: ArrayTree, targets: ArrayTree
) -> jax.Array:
    """The diagonal of the Hessian of a loss, H_ii.

    Arguments: those of `hvp`.

    Returns a vector, in the order of `jax.flatten_util.ravel_pytree(params)`.  Takes
    one product with the Hessian for each element.
    """
    warn_deprecated("hessian_diag")
    flat, unravel = ravel_pytree(params)

    def element(i):
        e = jnp.zeros_like(flat).at[i].set(1)
        column = _product(loss, unravel(e), params, inputs, targets)
        return ravel_pytree(column)[0][i]

    return jax.lax.map(element, jnp.arange(flat.size))


@explain_misuse
def fisher_diag(
    negative_log_likelihood: Loss, params: Params, inputs: ArrayTree, targets: ArrayTree
) -> jax.Array:
    """The diagonal of the observed Fisher information, |∂ loss / ∂ p_i|².

    negative_log_likelihood: called as `loss(params, inputs, targets)`; returns a
        scalar.  It should be the loss of one example: for a mean over examples, the
        result is the square of the mean gradient.
    params: the point at which to differentiate; a tree of real arrays.
    inputs, targets: passed to the loss.

    Returns a vector, in the order of `jax.flatten_util.ravel_pytree(params)`.
    """
    warn_deprecated("fisher_diag")
    gradient = jax.grad(negative_log_likelihood)(params, inputs, targets)
    return abs_sq(ravel_pytree(gradient)[0])


@explain_misuse
def ggn_product(
    outputs: Callable[[Params], ArrayTree],
    loss: Callable[[ArrayTree], jax.Array],
    params: Params,
    v: Params,
) -> Params:
    """The product of the generalized Gauss-Newton matrix with a vector, J' H J v.

    J is the Jacobian of the outputs, and H the Hessian of the loss with respect to
    them, so that the product is with a positive semidefinite matrix if the loss is
    convex in the outputs.

    outputs: a function of the parameters that returns a tree, such as logits.
    loss: a function of that tree that returns a scalar.
    params: the point at which to differentiate; a tree of real arrays.
    v: a tree like `params`, or its elements in one vector.

    Returns a tree like `params`.  Raises a ValueError if `v` does not fit.
    """
    tangent = _tangent(v, params)
    found, push = jax.linearize(outputs, params)
    _, curved = jax.jvp(jax.grad(loss), (found,), (push(tangent),))
    return jax.linear_transpose(push, params)(curved)[0]


@explain_misuse
def fisher_product(
    negative_log_likelihoods: Callable[[Params], jax.Array], params: Params, v: Params
) -> Params:
    """The product of the Fisher information with a vector, mean of g g' v.

    g are the gradients of the examples.  With targets sampled from the model this
    estimates the Fisher information, with those of the data it is the empirical one.

    negative_log_likelihoods: a function of the parameters that returns the loss of each
        example, an array.
    Other arguments: those of `ggn_product`.

    Returns a tree like `params`.  Raises a ValueError if `v` does not fit.
    """
    tangent = _tangent(v, params)
    found, push = jax.linearize(negative_log_likelihoods, params)
    return jax.linear_transpose(push, params)(push(tangent) / found.size)[0]

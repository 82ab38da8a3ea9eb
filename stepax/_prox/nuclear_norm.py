"""The nuclear norm: soft thresholding of singular values.

Cai, Candès and Shen, 2010, A Singular Value Thresholding Algorithm for Matrix
Completion (DOI 10.1137/080738970).  JAX's derivative of the decomposition is infinite
where singular values are equal, as are those that the threshold sets to 0; that of the
product is not (Candès, Sing-Long and Trzasko, 2013, DOI 10.1109/TSP.2013.2270464):

    dz = u (A ∘ H + B ∘ K + C) v' + (dx - u u' dx v v') parts,   u' dx v = H + K
    A_ij = (f_i - f_j) / (σ_i - σ_j),   B_ij = (f_i + f_j) / (σ_i + σ_j)

with f = max(σ - t, 0), H the Hermitian and K the skew part.
"""

import jax
import jax.numpy as jnp


def cost(x, axes, w):
    """w Σ σ, of each matrix."""
    return jnp.sum(w * jnp.linalg.svd(x, compute_uv=False).sum(-1)[..., None, None])


def point(x, s, axes, w):
    """The matrices with thresholded singular values."""
    if not x.size:
        return x
    t = jnp.broadcast_to(s * w, (*x.shape[:-2], 1, 1))
    return _threshold(x, t)


@jax.custom_jvp
def _threshold(x, t):
    u, sizes, v = jnp.linalg.svd(x, full_matrices=False)
    return _times(u * jax.nn.relu(sizes - t[..., 0])[..., None, :], v)


@_threshold.defjvp
def _threshold_and_slope(primals, tangents):
    (x, t), (dx, dt) = primals, tangents
    u, sizes, v = jnp.linalg.svd(jax.lax.stop_gradient(x), full_matrices=False)
    f = jax.nn.relu(sizes - t[..., 0])
    is_on = (sizes > t[..., 0]).astype(sizes.dtype)
    inner = _times(_times(_adjoint(u), dx), _adjoint(v))
    hermitian, skew = (inner + _adjoint(inner)) / 2, (inner - _adjoint(inner)) / 2
    here, there = lambda y: y[..., :, None], lambda y: y[..., None, :]
    gap, total = here(sizes) - there(sizes), here(sizes) + there(sizes)
    # Where both are kept it is 1, where none is 0; otherwise they differ.
    both, one = here(is_on) * there(is_on), here(is_on) != there(is_on)
    a = jnp.where(one, (here(f) - there(f)) / jnp.where(one, gap, 1), both)
    b = (here(f) + there(f)) / jnp.where(total > 0, total, 1)
    dz = a * hermitian + b * skew
    dz = _times(u, _times(dz, v)) - _times(u * there(is_on) * dt, v)
    # What is outside of the columns, or of the rows, of a matrix that is not square.
    part = f / jnp.where(sizes > 0, sizes, 1)
    right = dx - _times(u, _times(_adjoint(u), dx))
    below = dx - _times(_times(dx, _adjoint(v)), v)
    dz += _times(_times(right, _adjoint(v)) * there(part), v)
    dz += _times(u, here(part) * _times(_adjoint(u), below))
    return _threshold(x, t), dz


def _times(x, y):
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def _adjoint(x):
    return jnp.conj(jnp.swapaxes(x, -1, -2))

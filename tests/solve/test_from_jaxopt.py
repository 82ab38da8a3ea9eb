"""JAXopt's public names and their replacements on the page, which are run here."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax import losses, perturbations, projections, tree
from stepax.solve import prox


ROOT = pathlib.Path(__file__).parents[2]

# `dir()` of JAXopt 0.8.5 and of its modules.
NAMES = """
AndersonAcceleration AndersonWrapper ArmijoSGD BFGS BacktrackingLineSearch Bisection
BlockCoordinateDescent BoxCDQP BoxOSQP Broyden CvxpyQP EqualityConstrainedQP
FixedPointIteration GaussNewton GradientDescent HagerZhangLineSearch IterativeRefinement
LBFGS LBFGSB LevenbergMarquardt MirrorDescent NonlinearCG OSQP OptStep OptaxSolver
PolyakSGD ProjectedGradient ProximalGradient ScipyBoundedLeastSquares
ScipyBoundedMinimize ScipyLeastSquares ScipyMinimize ScipyRootFinding ZoomLineSearch
make_prox_from_projection prox_elastic_net prox_group_lasso prox_lasso
prox_non_negative_lasso prox_non_negative_ridge prox_none prox_ridge
kl_projection_birkhoff kl_projection_transport projection_affine_set
projection_birkhoff projection_box projection_box_section projection_halfspace
projection_hypercube projection_hyperplane projection_l1_ball projection_l1_sphere
projection_l2_ball projection_l2_sphere projection_linf_ball projection_non_negative
projection_polyhedron projection_simplex projection_sparse_simplex projection_transport
binary_hinge_loss binary_logistic_loss binary_perceptron_loss binary_sparsemax_loss
huber_loss make_fenchel_young_loss multiclass_hinge_loss multiclass_logistic_loss
multiclass_perceptron_loss multiclass_sparsemax_loss sparse_plus sparse_sigmoid
CompositeLinearFunction binary_logreg l2_multiclass_logreg
l2_multiclass_logreg_with_intercept least_squares multiclass_linear_svm_dual
multiclass_logreg multiclass_logreg_with_intercept ridge_regression
custom_fixed_point custom_root root_jvp root_vjp
solve_bicgstab solve_cg solve_cholesky solve_gmres solve_inv solve_iterative_refinement
solve_lu solve_normal_cg solve_qr
Gumbel Normal make_perturbed_argmax make_perturbed_fun make_perturbed_max
isotonic_l2_pav
broadcast_pytrees tree_add tree_add_scalar_mul tree_conj tree_div tree_dot tree_imag
tree_inf_norm tree_l2_norm tree_map tree_mul tree_negative tree_ones_like tree_real
tree_scalar_mul tree_sub tree_sum tree_vdot tree_vdot_real tree_where tree_zeros_like
""".split()
WITHOUT = {
    "kl_projection_transport", "kl_projection_birkhoff", "IterativeRefinement",
    "solve_iterative_refinement",
}  # fmt: skip


@pytest.mark.project
def test_every_public_name_has_a_row():
    page = (ROOT / "docs/from_jaxopt.md").read_text()
    first = "\n".join(x.split(" | ")[0] for x in page.splitlines() if x[:1] == "|")
    assert not [name for name in NAMES if name not in first]
    none = [x for x in page.splitlines() if x[:1] == "|" and "| none" in x]
    said = {name for name in NAMES if any(f"`{name}`" in x for x in none)}
    assert said == WITHOUT and len(WITHOUT) <= 5


X = jnp.array([0.9, -0.4, 0.7])
UNIT, ROWS = jnp.eye(3), jnp.array([[1.0, 1.0, 1.0]])
away = lambda x: jnp.sum((x - 2) ** 2) / 2
qp: Any = stepax.solve.quadratic_program


def simple(**options: Any) -> Any:
    """The minimum of |x - 2|² / 2."""
    return stepax.minimize(away, X, **options).params


def loop(tx: Any) -> jax.Array:
    """The minimum by a loop over updates."""
    x, state = X, tx.init(X)
    for _ in range(50):
        value, grad = jax.value_and_grad(away)(x)
        more = {"value": value, "grad": grad, "value_fn": away}
        u, state = tx.update(grad, state, x, **more)
        x = stepax.apply_updates(x, u)
    return x


def transported(x: jax.Array) -> jax.Array:
    """The nearest matrix with rows and columns of sum 1."""
    n = len(x)
    sums = jnp.kron(jnp.eye(n), jnp.ones(n)), jnp.kron(jnp.ones(n), jnp.eye(n))
    equal = jnp.concatenate(sums), jnp.ones(2 * n)
    found = qp(jnp.eye(n * n), -x.ravel(), equality=equal, bounds=(0.0, None))
    return found.params.reshape(x.shape)


def sparse_simplex(x: jax.Array, k: int) -> jax.Array:
    values, at = jax.lax.top_k(x, k)
    return jnp.zeros_like(x).at[at].set(projections.projection_simplex(values))


def penalized() -> Any:
    """prox_non_negative_lasso: the weight is in the function."""
    fun = lambda x: away(x) + 0.5 * jnp.sum(x)
    return stepax.minimize(fun, X, prox=prox.non_negative()).params


def perturbed(f: Callable) -> jax.Array:
    made = perturbations.make_perturbed_fun(f, 2000, 1e-3, perturbations.Normal())
    return made(jax.random.key(0), X)


line = stepax.scale_by_backtracking_linesearch(15)
zoom = stepax.scale_by_zoom_linesearch(15)
descent = lambda search: stepax.chain(stepax.sgd(1.0), search)
steep = jnp.array([[-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]])
largest = lambda x: jax.nn.one_hot(jnp.argmax(x), 3)
score, label = jnp.asarray(0.3), jnp.asarray(1)
# Rows of the page: what is run, and what it gives.
RUN: dict[str, tuple[Callable[[], Any], Any]] = {
    "minimize": (simple, 2.0),
    "bounds": (lambda: simple(bounds=(-1.0, 1.5)), 1.5),
    "method": (lambda: simple(method=stepax.adam(0.1)), 2.0),
    "ArmijoSGD": (lambda: loop(descent(line)), 2.0),
    "PolyakSGD": (lambda: loop(stepax.polyak_sgd()), 2.0),
    "ZoomLineSearch": (lambda: loop(descent(zoom)), 2.0),
    "ProximalGradient": (lambda: simple(prox=prox.l1(0.5)), 1.5),
    "ProjectedGradient": (
        lambda: simple(prox=prox.from_projection(projections.projection_simplex)),
        1 / 3,
    ),
    "prox_lasso": (lambda: prox.l1(0.5)(X, 1.0), [0.4, 0.0, 0.2]),
    "prox_non_negative_lasso": (penalized, 1.5),
    "prox_elastic_net": (lambda: simple(prox=prox.elastic_net(0.5, 0.5)), 1.0),
    "prox_group_lasso": (lambda: prox.group_l2(9.0)(X, 1.0), 0.0),
    "prox_ridge": (lambda: prox.l2_squared(1.0)(X, 1.0), X / 2),
    "projection_box": (lambda: projections.projection_box(X, 0.0, 0.8), [0.8, 0, 0.7]),
    "projection_hyperplane": (
        lambda: projections.projection_hyperplane(X, jnp.ones(3), 0.0), X - 0.4
    ),
    "projection_halfspace": (
        lambda: projections.projection_halfspace(X, jnp.ones(3), 9.0), X
    ),
    "projection_affine_set": (
        lambda: qp(UNIT, -X, equality=(ROWS, jnp.zeros(1))).params, X - 0.4
    ),
    "projection_polyhedron": (
        lambda: qp(
            UNIT, -X, equality=(ROWS, jnp.zeros(1)),
            inequality=(UNIT, None, jnp.full(3, 0.4)),
        ).params,
        [0.4, -0.75, 0.35],
    ),
    "projection_box_section": (
        lambda: qp(UNIT, -X, equality=(ROWS, jnp.ones(1)), bounds=(0.0, 1.0)).params,
        [0.6, 0.0, 0.4],
    ),
    "projection_transport": (lambda: transported(jnp.eye(2) + 3), jnp.eye(2)),
    "projection_sparse_simplex": (lambda: sparse_simplex(X, 2), [0.6, 0.0, 0.4]),
    "isotonic_l2_pav": (
        lambda: qp(UNIT, -X, inequality=(steep, None, 0.0)).params, [0.9, 0.15, 0.15]
    ),
    "BoxOSQP": (
        lambda: qp(UNIT, -X, inequality=(UNIT, -0.2, 0.8)).params, [0.8, -0.2, 0.7]
    ),
    "BoxCDQP": (lambda: qp(UNIT, -X, bounds=(0.0, None)).params, [0.9, 0.0, 0.7]),
    "huber_loss": (lambda: losses.huber_loss(X, jnp.zeros(3)), X**2 / 2),
    "binary_logistic_loss": (
        lambda: losses.sigmoid_binary_cross_entropy(score, 1.0),
        np.log1p(np.exp(-0.3)),
    ),
    "binary_hinge_loss": (lambda: losses.hinge_loss(score, 1.0), 0.7),
    "binary_perceptron_loss": (lambda: losses.perceptron_loss(score, 1.0), 0.0),
    "binary_sparsemax_loss": (
        lambda: losses.sparsemax_loss(score, 1.0), (1 - 0.3) ** 2 / 4
    ),
    "multiclass_logistic_loss": (
        lambda: losses.softmax_cross_entropy_with_integer_labels(X, label),
        np.log(np.exp(np.array([0.9, -0.4, 0.7])).sum()) + 0.4,
    ),
    "multiclass_hinge_loss": (lambda: losses.multiclass_hinge_loss(X, label), 2.3),
    "multiclass_perceptron_loss": (
        lambda: losses.multiclass_perceptron_loss(X, label), 1.3
    ),
    "multiclass_sparsemax_loss": (
        lambda: losses.multiclass_sparsemax_loss(X, jnp.asarray(0)), 0.16
    ),
    "make_fenchel_young_loss": (
        lambda: losses.make_fenchel_young_loss(jax.nn.logsumexp)(X, UNIT[0]),
        np.log(np.exp(np.array([0.9, -0.4, 0.7])).sum()) - 0.9,
    ),
    "sparse_plus": (lambda: jax.nn.sparse_plus(jnp.asarray(2.0)), 2.0),
    "make_perturbed_argmax": (lambda: perturbed(largest), [1.0, 0.0, 0.0]),
    "make_perturbed_max": (lambda: perturbed(lambda x: jnp.sum(x * largest(x))), 0.9),
    "solve_cg": (lambda: jax.scipy.sparse.linalg.cg(lambda v: 2 * v, X)[0], X / 2),
    "solve_normal_cg": (
        lambda: stepax.solve.least_squares(lambda v: 2 * v - X, X, solver="cg").x,
        X / 2,
    ),
    "solve_cholesky": (
        lambda: jax.scipy.linalg.solve(2 * UNIT, X, assume_a="pos"), X / 2
    ),
    "tree_add_scalar_mul": (lambda: tree.add_scale(X, 2.0, X), 3 * X),
    "tree_inf_norm": (lambda: tree.norm(X, ord="inf"), 0.9),
    "tree_negative": (lambda: tree.scale(-1.0, X), -X),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("row", RUN)
def test_a_replacement_does_what_its_row_says(row):
    run, wanted = RUN[row]
    # Solutions are up to the tolerance of minima in float32.
    found, wanted = np.broadcast_arrays(run(), wanted)
    np.testing.assert_allclose(found, wanted, atol=2e-3)

"""Arguments of JAXopt and SciPy raise errors that say what to write instead."""

import inspect
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from loops import each
from scipy import optimize

import stepax


# The arguments of JAXopt 0.8.5's classes and of their `run`, without those that ours
# have, by the function that replaces the class.
_EACH = "implicit_diff_solve init_params jit maxiter"
_MOST = f"{_EACH} implicit_diff kwargs unroll verbose"
_SEARCH = (
    "condition decrease_factor increase_factor linesearch maxls max_stepsize "
    "min_stepsize stepsize"
)
_SCIPY = "dtype implicit_diff_solve init_params jit kwargs options"
JAXOPT: dict[str, dict[str, str]] = {
    "minimize": {
        "ArmijoSGD": f"{_MOST} aggressiveness decrease_factor increase_factor "
        "max_stepsize maxls momentum pre_update reset_option value_and_grad",
        "BFGS": f"{_MOST} {_SEARCH} linesearch_init value_and_grad",
        "BlockCoordinateDescent": f"{_MOST} block_prox",
        "GradientDescent": f"{_MOST} acceleration decrease_factor maxls stepsize "
        "value_and_grad",
        "LBFGS": f"{_MOST} {_SEARCH} history_size linesearch_init "
        "stop_if_linesearch_fails use_gamma value_and_grad",
        "LBFGSB": f"{_MOST} {_SEARCH} history_size linesearch_init "
        "stop_if_linesearch_fails theta use_gamma value_and_grad",
        "MirrorDescent": f"{_MOST} hyperparams_proj projection_grad stepsize",
        "NonlinearCG": f"{_MOST} {_SEARCH.removesuffix(' stepsize')} linesearch_init "
        "value_and_grad",
        "OptaxSolver": f"{_MOST} opt pre_update value_and_grad",
        "PolyakSGD": f"{_MOST} delta fun_min max_stepsize momentum pre_update "
        "value_and_grad variant",
        "ProjectedGradient": f"{_MOST} acceleration decrease_factor hyperparams_proj "
        "maxls projection stepsize value_and_grad",
        "ProximalGradient": f"{_MOST} acceleration decrease_factor maxls stepsize "
        "value_and_grad",
        "ScipyBoundedMinimize": f"{_SCIPY} maxiter value_and_grad",
        "ScipyMinimize": f"{_SCIPY} maxiter value_and_grad",
        "any of them": "hyperparams_prox",  # of `run`, which takes it as `args`
    },
    "least_squares": {
        "GaussNewton": f"{_MOST} residual_fun",
        "LevenbergMarquardt": f"{_MOST} damping_parameter geodesic gtol jac_fun "
        "materialize_jac residual_fun stop_criterion xtol",
        "ScipyBoundedLeastSquares": f"{_SCIPY} fun method use_jacrev",
        "ScipyLeastSquares": f"{_SCIPY} fun method use_jacrev",
    },
    "root": {
        "Bisection": f"{_EACH} check_bracket kwargs lower optimality_fun unroll upper "
        "verbose",
        "Broyden": f"{_MOST} {_SEARCH} fun gamma history_size stop_if_linesearch_fails",
        "ScipyRootFinding": f"{_SCIPY} optimality_fun use_jacrev",
    },
    "fixed_point": {
        "AndersonAcceleration": f"{_MOST} beta fixed_point_fun history_size "
        "mixing_frequency ridge",
        "AndersonWrapper": "beta history_size implicit_diff implicit_diff_solve "
        "init_params jit kwargs mixing_frequency ridge solver unroll verbose",
        "FixedPointIteration": f"{_MOST} fixed_point_fun",
    },
    "quadratic_program": {
        "BoxCDQP": f"{_MOST} args",
        "BoxOSQP": f"{_EACH} check_primal_dual_infeasability dual_infeasible_tol "
        "eq_qp_solve fun implicit_diff matvec_A matvec_Q momentum params_eq "
        "params_ineq params_obj primal_infeasible_tol rho_max rho_min rho_start sigma "
        "stepsize_updates_frequency termination_check_frequency unroll verbose",
        "CvxpyQP": "implicit_diff_solve init_params params_eq params_ineq params_obj "
        "solver",
        "EqualityConstrainedQP": f"{_EACH} fun matvec_A matvec_Q params_eq params_obj "
        "refine_maxiter refine_regularization solve",
        "OSQP": "fun init_params kwargs matvec_A matvec_G matvec_Q params_eq "
        "params_ineq params_obj",
    },
}
SCIPY = {
    "minimize": "disp ftol gtol hess hessp jac maxcor maxfev maxfun maxiter options "
    "pgtol",
    "least_squares": "A Dfun absolute_sigma b check_finite diff_step f_scale "
    "full_output jac jac_sparsity lb lsmr_tol lsq_solver max_nfev method nan_policy "
    "p0 sigma tr_options tr_solver ub verbose x_scale xdata ydata",
    "root": "a b fprime fprime2 full_output jac maxfev maxiter rtol x1 xtol",
    "fixed_point": "method",
    "quadratic_program": "A_eq A_ub b_eq b_ub integrality method",
}
POINT = np.ones(2, np.float32)
CALLS: dict[str, Any] = {
    "minimize": lambda **words: stepax.minimize(jnp.sum, POINT, **words),
    "least_squares": lambda **words: stepax.solve.least_squares(lambda x: x, **words),
    "root": lambda **words: stepax.solve.root(lambda x: x, **words),
    "fixed_point": lambda **words: stepax.solve.fixed_point(lambda x: x, **words),
    "quadratic_program": lambda **words: stepax.solve.quadratic_program(**words),
}
ROWS = sorted(
    {(f, word) for f, of in JAXOPT.items() for x in of.values() for word in x.split()}
    | {(f, word) for f, words in SCIPY.items() for word in words.split()}
)


@each(ROWS)
def test_a_word_of_another_library_is_answered(function, word):
    with pytest.raises(TypeError) as found:
        CALLS[function](**{word: 7})
    said = f"`{function}` has no argument `{word}`; write "
    assert str(found.value).startswith(said)
    # An answer is a sentence or code, with each backtick closed.
    answer = str(found.value).removeprefix(said)
    assert len(answer) >= 3 and answer.count("`") % 2 == 0 and "{" not in answer


def test_the_table_has_all_arguments_of_jaxopt():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jaxopt = pytest.importorskip("jaxopt")
    for function, classes in JAXOPT.items():
        ours = set(inspect.signature(getattr(stepax.solve, function)).parameters)
        for name, words in classes.items():
            kind = getattr(jaxopt, name, None)
            if kind is None:
                assert name == "any of them"
                continue
            theirs = {*inspect.signature(kind).parameters}
            theirs |= {*inspect.signature(kind.run).parameters} - {"self"}
            assert theirs - ours == set(words.split()), name
    others = {"BacktrackingLineSearch", "HagerZhangLineSearch", "IterativeRefinement"}
    others |= {"OptStep", "ZoomLineSearch"}
    solvers = {k for k in dir(jaxopt) if inspect.isclass(getattr(jaxopt, k))} - others
    assert solvers == {k for x in JAXOPT.values() for k in x} - {"any of them"}


def test_a_list_as_start_is_a_tree_or_explained():
    found = stepax.minimize(lambda x: (x[0] - 1) ** 2 + x[1] ** 2, [3.0, 2.0])
    assert isinstance(found.params, list) and found.success
    with pytest.raises(TypeError, match="a list of numbers: pass `jnp.asarray"):
        stepax.minimize(lambda x: jnp.sum((x - 1) ** 2), [3.0, 2.0])


def test_linear_constraints_and_trust_constr_are_answered():
    limits = optimize.LinearConstraint(np.ones((1, 2)), 1, 1)
    found = stepax.minimize(lambda x: jnp.sum(x**2), POINT, constraints=limits)
    np.testing.assert_allclose(found.params, [0.5, 0.5], atol=1e-4)
    with pytest.raises(ValueError, match="'sqp' to 'SLSQP' and 'trust-constr'"):
        stepax.minimize(lambda x: jnp.sum(x**2), POINT, method="trust-constr")

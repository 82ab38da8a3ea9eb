"""Help for users who call a solver with the arguments of SciPy, JAXopt and others.

An error says what to write instead.  JAXopt's are those of its classes and their `run`.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..._engine.functions.calls import explain_misuse


P = ParamSpec("P")
R = TypeVar("R")


def _all(names: str, answer: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), answer)


# Replacements of the arguments and options of SciPy and JAXopt; {} is the value.
_DERIVATIVE = (
    "nothing: JAX differentiates {}; define your own derivative with `jax.custom_jvp`"
)
_OF_FUN = _DERIVATIVE.format("`fun`, which returns its value alone")
_OF_SYSTEM = _DERIVATIVE.format("the function")
_ONE_SEARCH = "nothing: there is one line search, which needs no settings"
_SEARCH = (
    "linesearch linesearch_init maxls condition decrease_factor increase_factor "
    "max_stepsize min_stepsize stop_if_linesearch_fails"
)
_COMMON = {
    **_all("maxiter max_iter maxfev maxfun max_nfev", "`max_steps={}`"),
    **_all("disp verbose", "`progress={}`"),
    "xtol": "`tol=stepax.solve.Tolerances(step={})`",
    "tolerance": "`tol={}`",
    **_all(
        "implicit_diff implicit_diff_solve",
        "nothing: results are always differentiable",
    ),
    **_all(
        "jit unroll",
        "nothing: the whole loop is always compiled; derivatives through unrolled "
        "steps have no counterpart",
    ),
    **_all("init_params initvals p0", "`x0`"),
    "kwargs": "`args=(...)`",
    "dtype": "nothing: the dtype is that of `x0`",
    "full_output": "nothing: the result has all of it",
    "options": "each of them as an argument",
}
_OF_VALUES = {
    **_COMMON,
    **_all("gtol pgtol", "`tol={}`"),
    "ftol": "`tol=stepax.solve.Tolerances(value={})`",
}
MINIMIZE = {
    **_OF_VALUES,
    **_all("jac hess hessp value_and_grad", _OF_FUN),
    **_all(
        _SEARCH + " aggressiveness reset_option",
        "nothing: the line search needs no settings; with others, `method` is a chain "
        "that ends with `stepax.scale_by_zoom_linesearch`",
    ),
    **_all("maxcor history_size", "`method=stepax.lbfgs(memory_size={})`"),
    **_all(
        "use_gamma theta", "nothing: the inverse Hessian is scaled by the newest step"
    ),
    "stepsize": "nothing: steps are searched; for fixed ones `method=stepax.sgd({})`",
    "momentum": "`method=stepax.sgd(learning_rate, momentum={})`",
    "acceleration": "nothing: with `prox` each step is accelerated",
    "hyperparams_prox": "the weight to the operator: `prox=stepax.solve.prox.l1({})`",
    "projection": "`prox=stepax.solve.prox.from_projection({})`",
    "hyperparams_proj": "the set with its numbers, as in "
    "`prox=stepax.solve.prox.box(lower, upper)`",
    "projection_grad": "`prox` for the set, since there is no mirror descent",
    "block_prox": "`prox`, of all parameters at once, since blocks do not take turns",
    "opt": "`method={}`",
    "pre_update": "a transformation that does it: `method=stepax.chain(own, other)`",
    **_all(
        "fun_min variant delta",
        "`method=stepax.polyak_sgd(...)`, which is for stochastic gradients",
    ),
}
_OF_RESIDUALS = (
    "the residuals: `lambda p, x, y: model(x, *p) - y`, and the data as `args=(x, y)`"
)
LEAST_SQUARES = {
    **_OF_VALUES,
    **_all("jac jac_fun fprime diff_step Dfun", _OF_SYSTEM),
    **_all("fun residual_fun func", "`residuals`"),
    **_all("f model xdata ydata", _OF_RESIDUALS),
    "f_scale": "`scale={}`",
    **_all(
        "x_scale diag factor",
        "nothing: parameters are scaled by the columns of the Jacobian",
    ),
    **_all(
        "jac_sparsity lsmr_tol lsq_solver tr_options",
        "`solver='cg'`, which only multiplies by the Jacobian",
    ),
    "method": "nothing: the method is Levenberg and Marquardt's, also with bounds",
    "tr_solver": "`solver='qr'` for 'exact', `solver='cg'` for 'lsmr'",
    "materialize_jac": "`solver='qr'`, which forms the Jacobian, or `solver='cg'`",
    "use_jacrev": "`jacobian='reverse'`",
    **_all(
        "damping_parameter geodesic stop_criterion",
        "nothing: the size of the steps follows from the values, and `tol` ends them",
    ),
    "sigma": "residuals divided by it: `(model(x, *p) - y) / sigma`",
    "absolute_sigma": "`result.covariance(1.0)` if it is `True`, otherwise "
    "`result.covariance()`",
    **_all("A b", "the residuals `lambda x: A @ x - b`"),
    **_all("lb ub", "`bounds=(lower, upper)`"),
    **_all("check_finite nan_policy", "nothing: NaN is a `status`"),
}
_ROOT_AND_POINT = {
    **_COMMON,
    **_all("jac fprime fprime2 fprime3 use_jacrev value_and_grad", _OF_SYSTEM),
    **_all("fun func optimality_fun fixed_point_fun", "`f`"),
    **_all(_SEARCH + " stepsize", _ONE_SEARCH),
}
ROOT = {
    **_ROOT_AND_POINT,
    "x1": "`bracket=(x0, x1)` if the function changes its sign between them",
    **_all("lower upper a b", "`bracket=(lower, upper)`"),
    "check_bracket": "nothing: a bracket without a change of sign is a `status`",
    "rtol": "`tol=stepax.solve.Tolerances(step={})`",
    **_all("history_size gamma", "nothing: the method keeps the whole matrix"),
}
FIXED_POINT = {
    **_ROOT_AND_POINT,
    "solver": "nothing: `f` is a step of it",
    "history_size": "`memory={}`",
    "mixing_frequency": "nothing: each step is accelerated",
    "beta": "`damping={}`",
    "ridge": "nothing: the least squares are solved without the normal equations",
    "method": "`memory=5` for Anderson's, `memory=0` for plain iteration",
}
_EQUAL, _ABOVE = "`equality=(A, b)`", "`inequality=(G, None, h)`"
_ROWS = f"{_EQUAL} or {_ABOVE}"
QUADRATIC = {
    **_COMMON,
    "P": "`Q`",
    "q": "`c`",
    **_all("params_obj args", "`quadratic_program(Q, c)`, the arrays themselves"),
    **_all("A b A_eq b_eq params_eq", _EQUAL),
    **_all("A_ub b_ub G h params_ineq", _ABOVE),
    "constraints": _ROWS,
    "integrality": "nothing: variables are real numbers",
    "fun": "`Q=jax.hessian(fun)(x)` and `c=jax.grad(fun)(0 * x)`",
    **_all(
        "matvec_Q matvec_A matvec_G",
        "the matrix: `jax.vmap({}, out_axes=1)(jnp.eye(n))`; programs without matrices "
        "have no counterpart",
    ),
    "check_primal_dual_infeasability": "nothing: both are a `status`",
    **_all("primal_infeasible_tol dual_infeasible_tol", "`tol={}`"),
    **_all(
        "method solve solver eq_qp_solve sigma momentum rho_start rho_min rho_max "
        "stepsize_updates_frequency termination_check_frequency refine_maxiter "
        "refine_regularization",
        "nothing: the method is an interior point method, which has no such setting",
    ),
}


def answering(words: dict[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Raise errors for foreign keywords; words: replacements, with {} for the value."""

    def decorate(solve: Callable[P, R]) -> Callable[P, R]:
        explaining = explain_misuse(solve)

        @ft.wraps(explaining)
        def answered(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in kwargs.items():
                if name in words:
                    raise TypeError(_answer(solve.__name__, words, name, value))
            return explaining(*args, **kwargs)

        return answered

    return decorate


def _answer(solver: str, words: dict[str, str], name: str, value: Any) -> str:
    said = f"`{solver}` has no argument `{name}`"
    if name == "options" and isinstance(value, dict):
        none = "nothing, since there is no counterpart"
        found = [f"{words.get(k, none).format(x)} for `{k}`" for k, x in value.items()]
        return f"{said}; write {', '.join(found) or 'nothing'}"
    return f"{said}; write {words[name].format(value)}"

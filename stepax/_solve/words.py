"""Arguments of SciPy and JAXopt, and what to write for them here."""

_LIMIT = "`max_steps={}`"
_DERIVATIVE = (
    "nothing: JAX differentiates the function; define your own derivative with "
    "`jax.custom_jvp`"
)
_ALWAYS = "nothing: results are always differentiable"
_COMPILED = "nothing: the whole loop is always compiled"

_COMMON = {
    "maxiter": _LIMIT,
    "max_nfev": _LIMIT,
    "maxfev": _LIMIT,
    "jac": _DERIVATIVE,
    "fprime": _DERIVATIVE,
    "disp": "`progress={}`",
    "verbose": "`progress={}`",
    "xtol": "`tol=stepax.Tolerances(step={})`",
    "implicit_diff": _ALWAYS,
    "implicit_diff_solve": _ALWAYS,
    "jit": _COMPILED,
    "unroll": _COMPILED,
}
# Replacements; {} is the value.
LEAST_SQUARES = {
    **_COMMON,
    "ftol": "`tol=stepax.Tolerances(value={})`",
    "gtol": "`tol={}`",
    "f_scale": "`scale={}`",
    "x_scale": "nothing: parameters are scaled by the columns of the Jacobian",
    "method": "nothing: the method is Levenberg and Marquardt's, also with bounds",
    "tr_solver": "`solver='qr'` for 'exact', `solver='cg'` for 'lsmr'",
    "diff_step": _DERIVATIVE,
    "damping_parameter": "nothing: the region of the first step is chosen by itself",
}
ROOT = {
    **_COMMON,
    "x1": "`bracket=(x0, x1)` if the function changes its sign between them",
    "fprime2": _DERIVATIVE,
    "lower": "`bracket=(lower, upper)`",
    "upper": "`bracket=(lower, upper)`",
    "check_bracket": "nothing: a bracket without a change of sign is a `status`",
    "rtol": "`tol=stepax.Tolerances(step={})`",
    "history_size": "nothing: the method keeps the whole matrix",
    "linesearch": "nothing: there is one line search",
    "stepsize": "nothing: there is one line search",
}
FIXED_POINT = {
    **_COMMON,
    "history_size": "`memory={}`",
    "mixing_frequency": "nothing: each step is accelerated",
    "beta": "`damping={}`",
    "ridge": "nothing: the least squares are solved without the normal equations",
    "tolerance": "`tol={}`",
}

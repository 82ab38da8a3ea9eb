"""L-BFGS of several libraries, with the same stopping criterion.

All store 10 pairs and use their library's default line search.  They stop at the first
step at which no entry of the gradient exceeds a tolerance, when they fail, when they no
longer move, or after 5,000 evaluations.  An evaluation computes the value, with or
without the gradient.

A solver takes a function, a start and a tolerance, and returns a `Job`; some accept
`None` as the tolerance, and then use their own stopping criteria.
"""

import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import stepax


BUDGET = 5000
MEMORY = 10


class Job(NamedTuple):
    """A minimization, ready to run.

    seconds: how long tracing, lowering and compiling took.
    run: returns where it stopped, and after how many evaluations.
    """

    seconds: float
    run: Callable[[], tuple[Any, Any]]


def compiled(solve: Callable, x0: jax.Array) -> Job:
    """A job from a function of the start, which JAX compiles as a whole."""
    begin = time.perf_counter()
    program = jax.jit(solve).lower(x0).compile()
    seconds = time.perf_counter() - begin
    return Job(seconds, lambda: jax.block_until_ready(program(x0)))


def largest(g):
    return jnp.max(jnp.abs(g))


def with_stepax(fun, x0, tolerance, bounds=None) -> Job:
    """`stepax.minimize`, with as many steps as fit into the budget."""

    def solve(x, most):
        more = {"tol": tolerance, "max_steps": most, "bounds": bounds}
        found = stepax.minimize(fun, x, **more)
        return found.params, found.evaluations, found.steps

    begin = time.perf_counter()
    program = jax.jit(solve).lower(x0, jnp.int32(BUDGET)).compile()
    seconds = time.perf_counter() - begin
    most = _steps_within_budget(lambda most: program(x0, jnp.int32(most))[1:])
    # Created here, because creating a scalar takes longer than a short run.
    limit = jnp.int32(most)
    return Job(seconds, lambda: jax.block_until_ready(program(x0, limit))[:2])


def _steps_within_budget(run):
    """The largest number of steps whose evaluations stay within the budget."""
    evaluations, most = map(int, run(BUDGET))
    if evaluations <= BUDGET:
        return BUDGET
    fewer = 0
    while most - fewer > 1:
        half = (fewer + most) // 2
        is_within = int(run(half)[0]) <= BUDGET
        fewer, most = (half, most) if is_within else (fewer, half)
    return fewer


def by_hand(library):
    """The loop from Optax's documentation, which also stops if nothing moves."""

    def make(fun, x0, tolerance) -> Job:
        tx = library.lbfgs(memory_size=MEMORY)
        both = library.value_and_grad_from_state(fun)
        read = library.tree_utils.tree_get

        def step(carry):
            x, state, evaluations, _ = carry
            value, grad = both(x, state=state)
            read_too = {"value": value, "grad": grad, "value_fn": fun}
            updates, state = tx.update(grad, state, x, **read_too)
            more = read(state, "num_linesearch_steps").astype(jnp.int32)
            new = library.apply_updates(x, updates)
            return new, state, evaluations + more, jnp.any(new != x)

        def goes_on(carry):
            _, state, evaluations, moves = carry
            is_steep = largest(read(state, "grad")) > tolerance
            return (evaluations == 1) | (moves & is_steep & (evaluations < BUDGET))

        def solve(x):
            first = x, tx.init(x), jnp.ones([], jnp.int32), jnp.ones([], bool)
            x, _, evaluations, _ = jax.lax.while_loop(goes_on, step, first)
            return x, evaluations

        return compiled(solve, x0)

    return make


def with_optax(fun, x0, tolerance) -> Job:
    import optax

    return by_hand(optax)(fun, x0, tolerance)


def with_jaxopt(fun, x0, tolerance) -> Job:
    with warnings.catch_warnings(action="ignore"):  # it says that it is no longer kept
        import jaxopt
    solver = jaxopt.LBFGS(fun, maxiter=BUDGET, tol=0.0, history_size=MEMORY)

    def goes_on(carry):
        _, state, moves = carry
        is_steep = largest(state.grad) > tolerance
        return moves & is_steep & (state.num_fun_eval < BUDGET)

    def step(carry):
        x, state, _ = carry
        new, state = solver.update(x, state)
        return new, state, jnp.any(new != x)

    def solve(x):
        first = x, solver.init_state(x), jnp.ones([], bool)
        x, state, _ = jax.lax.while_loop(goes_on, step, first)
        return x, state.num_fun_eval

    return compiled(solve, x0)


def with_optimistix(fun, x0, tolerance) -> Job:
    """BFGS up to 500 variables, where its L-BFGS needs ten times the evaluations."""
    import optimistix

    base: Any = optimistix.BFGS if x0.size <= 500 else optimistix.LBFGS
    more = {} if x0.size <= 500 else {"history_length": MEMORY}

    class ByGradient(base):
        def terminate(self, fn, y, args, options, state, tags):
            is_flat = largest(state.f_info.grad) <= tolerance
            is_begun = state.num_accepted_steps > 0
            return is_flat & is_begun, optimistix.RESULTS.successful

    def solve(x):
        solver = ByGradient(rtol=0.0, atol=0.0, **more)
        found = optimistix.minimise(
            lambda x, _: fun(x), solver, x, max_steps=BUDGET, throw=False
        )
        return found.value, found.stats["num_steps"]

    return compiled(solve, x0)


class Counted:
    """Value and gradient for libraries outside JAX; counts its calls."""

    def __init__(self, fun, x0):
        begin = time.perf_counter()
        self.program = jax.jit(jax.value_and_grad(fun)).lower(x0).compile()
        self.seconds = time.perf_counter() - begin
        self.x0, self.calls = np.asarray(x0), 0

    def __call__(self, x):
        self.calls += 1
        return self.program(jnp.asarray(x, self.x0.dtype))


def with_scipy(fun, x0, tolerance, bounds=None) -> Job:
    """L-BFGS-B, in float64 whatever the function's precision."""
    from scipy.optimize import minimize

    both = Counted(fun, x0)

    def value_and_grad(x):
        value, grad = both(x)
        return float(value), np.asarray(grad, np.float64)

    limits = {"maxfun": BUDGET, "maxiter": BUDGET, "maxcor": MEMORY}
    rule = {} if tolerance is None else {"ftol": 0.0, "gtol": tolerance}

    def run():
        both.calls = 0
        options = rule | limits
        start = np.asarray(x0, np.float64)
        more = {"bounds": None if bounds is None else np.transpose(bounds)}
        more |= {"jac": True, "method": "L-BFGS-B", "options": options}
        found = minimize(value_and_grad, start, **more)
        return found.x, both.calls

    return Job(both.seconds, run)


def with_torch(fun, x0, tolerance) -> Job:
    """The function is evaluated by JAX, so the times are not PyTorch's."""
    import torch

    both = Counted(fun, x0)

    def run():
        both.calls = 0
        x = torch.nn.Parameter(torch.tensor(both.x0))
        optimizer = torch.optim.LBFGS(
            [x],
            max_iter=BUDGET,
            max_eval=BUDGET,
            tolerance_grad=tolerance,
            tolerance_change=0.0,
            history_size=MEMORY,
            line_search_fn="strong_wolfe",
        )

        def closure():
            value, grad = both(x.detach().numpy())
            x.grad = torch.tensor(np.array(grad))
            return float(value)

        optimizer.step(closure)
        return x.detach().numpy(), both.calls

    return Job(both.seconds, run)


SOLVERS = {
    "stepax": with_stepax,
    "optax": with_optax,
    "scipy": with_scipy,
    "jaxopt": with_jaxopt,
    "optimistix": with_optimistix,
    "torch": with_torch,
    "stepax by hand": by_hand(stepax),
}


# Those that accept bounds, a lower and an upper array, and those with stopping criteria
# of their own, for a tolerance of `None`.
BOUNDED = ["stepax", "scipy"]
WITH_DEFAULTS = ["stepax", "scipy"]


def installed() -> list[str]:
    """Solvers of the installed libraries, without the loop by hand."""
    found = ["stepax"]
    for name in ("optax", "scipy", "jaxopt", "optimistix", "torch"):
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            __import__(name)
            found.append(name)
    return found

"""Networks that solve Poisson's equation, by Gauss-Newton and by SOAP.

All get the same seconds of the processor, without compilation, and are judged by the
loss at new points; all is in float64.  The problems are the task `pinn` of the board,
with batches of 64 new points, of which a step of Gauss-Newton takes four, since it
would fit a single one, and two of Müller and Zeinhofer, 2023, Achieving High
Accuracy with PINNs via Energy Natural Gradients (arXiv:2302.13163): a hidden layer of
64 tanh, and points that stay, inside and at the edges, of a square and of a cube of
five dimensions.  Gauss-Newton has one setting for all; SOAP has a cosine schedule over
the steps that fit into the time, and the best of four learning rates is shown.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import stepax
import stepax.contrib
from benchmarks.board.tasks import dense, layer, pinn

from .table import Table, goal, head, line


SECONDS = {"board": 5.0, "square": 5.0, "cube": 20.0}
RATES = 3e-2, 1e-2, 3e-3, 1e-3
MOST, BATCHES = 100_000, 4  # steps, more than any that fit; batches of a step
MEAN_SQUARE = 25 * np.pi**4 / 4  # of the board's right side over the square


class Problem(NamedTuple):
    """Residuals of single points, by the part of the domain to which these belong.

    points: of a step, from a key and a number of batches.
    fresh: those at which it is judged; is_fixed: whether those of steps stay.
    error: of the solution, relative.
    """

    params: Any
    residuals: dict[str, Callable]
    points: Callable
    fresh: dict[str, jax.Array]
    error: Callable
    is_fixed: bool = True

    def outputs(self, params: Any, points: dict) -> dict:
        return {
            k: jax.vmap(f, (None, 0))(params, points[k])
            for k, f in self.residuals.items()
        }

    def jacobian(self, params: Any, points: dict) -> dict:
        return {
            k: jax.vmap(jax.grad(f), (None, 0))(params, points[k])
            for k, f in self.residuals.items()
        }


def loss(out: dict) -> jax.Array:
    return sum((jnp.mean(jnp.square(x)) for x in out.values()), jnp.zeros(()))


def board() -> Problem:
    def inside(params, point):
        f = -5 * jnp.pi**2 * pinn.exact(point)
        return (pinn.laplacian(params, point) - f) / MEAN_SQUARE**0.5

    params = pinn.make().init(jax.random.key(0))
    at = grid(64)
    return Problem(
        jax.tree.map(lambda x: x.astype(float), params),
        {"inside": inside},
        lambda key, n: {"inside": jax.random.uniform(key, (64 * n, 2), float)},
        {"inside": at},
        lambda params: _distance(pinn.value(params, at), pinn.exact(at)),
        is_fixed=False,
    )


def square() -> Problem:
    exact = lambda x: jnp.prod(jnp.sin(jnp.pi * x), -1)
    residuals = poisson(exact, lambda x: -2 * jnp.pi**2 * exact(x), 2)
    points = {"inside": grid(30), "edge": edge(2, 120, 0)}
    return _fixed(exact, residuals, points, 2)


def cube() -> Problem:
    exact = lambda x: jnp.sum(jnp.sin(jnp.pi * x), -1)
    residuals = poisson(exact, lambda x: -(jnp.pi**2) * exact(x), 5)
    inside = jnp.asarray(np.random.default_rng(1).uniform(size=(1_000, 5)))
    return _fixed(exact, residuals, {"inside": inside, "edge": edge(5, 200, 0)}, 5)


def _fixed(exact: Callable, residuals: dict, points: dict, size: int) -> Problem:
    shapes = {"first": (size, 64), "last": (64, 1)}
    params = dense(jax.random.key(0), shapes)
    at = jnp.asarray(np.random.default_rng(2).uniform(size=(4_000, size)))
    return Problem(
        jax.tree.map(lambda x: x.astype(float), params),
        residuals,
        lambda key, n: points,
        {"inside": at, "edge": edge(size, 1_000, 3)},
        lambda params: _distance(shallow(params, at), exact(at)),
    )


def shallow(params: dict, x: jax.Array) -> jax.Array:
    return layer(params, "last", jnp.tanh(layer(params, "first", x)))[..., 0]


def poisson(exact: Callable, f: Callable, size: int) -> dict[str, Callable]:
    """The residuals of Δu = f inside, and of u = exact at the edges."""

    def inside(params, x):
        u = lambda x: shallow(params, x)

        def second(along):
            first = lambda x: jax.jvp(u, (x,), (along,))[1]
            return jax.jvp(first, (x,), (along,))[1]

        return sum(map(second, jnp.eye(size))) - f(x)

    return {"inside": inside, "edge": lambda params, x: shallow(params, x) - exact(x)}


def grid(n: int) -> jax.Array:
    axis = (jnp.arange(n) + 0.5) / n
    return jnp.stack(jnp.meshgrid(axis, axis), -1).reshape(-1, 2)


def edge(size: int, count: int, seed: int) -> jax.Array:
    """Random points with one coordinate of 0 or 1."""
    random = np.random.default_rng(seed)
    x, at = random.uniform(size=(count, size)), random.integers(size, size=count)
    x[np.arange(count), at] = random.integers(2, size=count)
    return jnp.asarray(x)


def _distance(x: jax.Array, y: jax.Array) -> float:
    return float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y))


class Run(NamedTuple):
    name: str
    loss: float
    error: float
    steps: int


def train(
    name: str, problem: Problem, tx: Any, seconds: float, batches: int = 1
) -> Run:
    params, state = problem.params, tx.init(problem.params)

    @jax.jit
    def step(params, state, key):
        points = problem.points(key, batches)
        f = lambda params: problem.outputs(params, points)
        value, grads = jax.value_and_grad(lambda p: loss(f(p)))(params)
        more = {
            "value": value,
            "outputs_fn": f,
            "loss_fn": loss,
            "jacobian_fn": lambda params: problem.jacobian(params, points),
        }
        updates, state = tx.update(grads, state, params, **more)
        return stepax.apply_updates(params, updates), state

    keys = jax.random.split(jax.random.key(1), MOST)
    jax.block_until_ready(step(params, state, keys[0]))
    begin, count = time.process_time(), 0
    while count < MOST and time.process_time() - begin < seconds:
        params, state = step(params, state, keys[count])
        jax.block_until_ready(params)
        count += 1
    value = float(loss(problem.outputs(params, problem.fresh)))
    return Run(name, value, problem.error(params), count)


def soap(problem: Problem, seconds: float) -> Run:
    """The best of the learning rates, and of one batch and several with that."""
    make = stepax.contrib.soap
    fit = 10 * train("", problem, make(1e-3), seconds / 10).steps
    runs: dict[Run, Any] = {}
    for rate in RATES:
        tx = make(stepax.cosine_decay_schedule(rate, fit))
        runs[train(f"SOAP, {rate}", problem, tx, seconds)] = rate
    best = min(runs, key=lambda run: run.loss)
    if not problem.is_fixed:
        fit = 10 * train("", problem, make(1e-3), seconds / 10, BATCHES).steps
        tx = make(stepax.cosine_decay_schedule(runs[best], fit))
        name = f"{best.name}, {BATCHES} batches"
        runs[train(name, problem, tx, seconds, BATCHES)] = runs[best]
    for run in runs:
        print(*run, flush=True)
    return min(runs, key=lambda run: run.loss)


PROBLEMS = {"board": board, "square": square, "cube": cube}


def measure(name: str) -> dict[str, Table]:
    problem = PROBLEMS[name]()
    tx = stepax.contrib.gauss_newton(1e-2, "samples", geodesic=True)
    more = "" if problem.is_fixed else f", {BATCHES} batches"
    own = train(f"Gauss-Newton{more}", problem, tx, SECONDS[name], BATCHES)
    print(*own, flush=True)
    peer = soap(problem, SECONDS[name])
    top = head("optimizer", "loss", "error of u", "steps")
    rows = [
        line(run.name, f"{run.loss:.1e}", f"{run.error:.1e}", run.steps)
        for run in (own, peer)
    ]
    what = f"Gauss-Newton, PINN `{name}`: SOAP's loss by its loss, equal time"
    got = f"{peer.loss / own.loss:.1e}"
    return {f"pinn {name}": Table(top, rows, [goal(what, "1e4", got)])}

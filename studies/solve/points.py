"""Anderson acceleration against plain iteration.

Logistic regression by gradient descent, x = x - grad(x) / L, on standardized random
data with features that are correlated; the Jacobi iteration for a Laplacian; and a
cosine.  Both stop at the same |f(x) - x|.
"""

import jax
import jax.numpy as jnp
import numpy as np

import stepax

from .table import Table, goal, head, line


def logistic(penalty):
    random = np.random.default_rng(1)
    mixed = random.normal(size=(500, 20)) @ (
        np.eye(20) + 0.3 * random.normal(size=(20, 20))
    )
    x = jnp.asarray((mixed - mixed.mean(0)) / mixed.std(0))
    y = jnp.asarray(
        np.sign(np.asarray(x) @ random.normal(size=20) + random.normal(size=500))
    )
    steep = float(np.linalg.norm(np.asarray(x), 2) ** 2) / (4 * 500) + penalty

    def loss(w):
        return jnp.mean(jax.nn.softplus(-y * (x @ w))) + penalty / 2 * jnp.sum(w**2)

    return lambda w: w - jax.grad(loss)(w) / steep, jnp.zeros(20)


def jacobi(n):
    def f(x):
        wide = jnp.pad(x, 1)
        return (wide[:-2] + wide[2:] + 1 / n**2) / 2

    return f, jnp.zeros(n)


TASKS = {
    "logistic regression, penalty 1e-2": lambda: logistic(1e-2),
    "logistic regression, penalty 1e-3": lambda: logistic(1e-3),
    "logistic regression, penalty 1e-4": lambda: logistic(1e-4),
    "Jacobi, 30 unknowns": lambda: jacobi(30),
    "cosine": lambda: (jnp.cos, jnp.arange(3.0)),
}
MEMORIES = 0, 2, 5, 10


def measure() -> dict[str, Table]:
    top = head("iteration", *(f"memory {m}" for m in MEMORIES), "5 by plain")
    rows, shares = [], []
    for name, task in TASKS.items():
        f, x0 = task()
        counts = []
        for memory in MEMORIES:
            found = stepax.solve.fixed_point(
                f, x0, memory=memory, tol=1e-8, max_steps=200_000
            )
            assert bool(found.success), (name, memory)
            counts.append(int(found.evaluations))
        shares.append(f"{counts[2] / counts[0]:.3f}")
        rows.append(line(name, *counts, shares[-1]))
    got = f"{', '.join(shares[:3])}, for three penalties"
    what = "`fixed_point`: logistic regression, evaluations by the plain iteration"
    return {"points": Table(top, rows, [goal(what, "0.3", got)])}

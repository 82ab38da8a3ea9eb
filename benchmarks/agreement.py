"""The distance of each step from Optax's, for the same gradients, parameters and state.

Run it with `python benchmarks/agreement.py`, or name optimizers.

Optax runs 200 jitted steps; Stepax repeats each of them from the same state.  A
distance is that of the worst leaf and step, in units in the last place (ulp) of the
largest entry of the leaf, and for the updates also in ulp of the parameters.  For
bfloat16, both libraries are compared with a float64 run on fixed gradients, relative to
the largest update.
"""

import argparse
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stepax.contrib
from stepax._engine.factories.registry import ROWS


STEPS = 200
SHAPES = {"b": (3,), "w": {"k": (4, 5)}}


def arrays(seed, dtype, lead=()):
    random = np.random.default_rng(seed)
    one = lambda shape: jnp.asarray(random.normal(size=(*lead, *shape)), dtype)
    return jax.tree.map(one, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


def loss(params, obj_fn=None):
    """A paraboloid, whose minimum value is 0.1, away from the initial parameters."""
    return 0.1 + sum(0.5 * jnp.sum((p - 3) ** 2) for p in jax.tree.leaves(params))


def made(lib, name):
    factory = getattr(lib if name in vars(lib) else lib.contrib, name)
    wanted = inspect.signature(factory).parameters
    own = {"learning_rate": 0.1, "decay": 0.9, "step_size": 0.5, "memory_size": 5}
    own |= {"update_interval": 2, "max_delta": 0.1, "max_norm": 0.1, "threshold": 0.1}
    own |= {"clipping": 0.1, "weight_decay": 0.01, "eta": 0.01, "gamma": 0.55, "key": 0}
    own |= {"max_linesearch_steps": 10, "max_backtracking_steps": 10}
    needed = {k: own[k] for k, p in wanted.items() if k in own and p.default is p.empty}
    if {"key", "eta"} <= wanted.keys():
        needed["key"] = 0
    with warnings.catch_warnings(action="ignore"):
        return lib.with_extra_args_support(factory(**needed))


def step(tx, g, state, p):
    read = {"value": loss(p), "grad": g, "value_fn": loss, "obj_fn": loss}
    return tx.update(g, state, p, **read)


def side_by_side(ours, theirs, params, noise):
    """For each step the parameters, our result from Optax's state, and Optax's."""

    @jax.jit
    def run(params, noise):
        treedef = jax.tree.structure(ours.init(params))

        def one(carry, n):
            p, state = carry
            g = jax.tree.map(lambda p, n: p - 3 + n / 10, p, n)
            same = treedef.unflatten(jax.tree.leaves(state))
            found, expected = step(ours, g, same, p), step(theirs, g, state, p)
            return (optax.apply_updates(p, expected[0]), expected[1]), (
                p,
                found,
                expected,
            )

        return jax.lax.scan(one, (params, theirs.init(params)), noise)[1]

    return run(params, noise)


def distance(found, expected, scale=None):
    """The largest difference over leaves and steps, in units in the last place."""
    worst = 0.0
    scale = expected if scale is None else scale
    trees = map(jax.tree.leaves, (found, expected, scale))
    for x, y, z in zip(*trees, strict=True):
        if not jnp.issubdtype(y.dtype, jnp.inexact) or not y.size:
            continue
        x, y, z = (np.asarray(a).reshape(STEPS, -1) for a in (x, y, z))
        unit = np.finfo(y.dtype).eps * np.abs(z).max(axis=1)
        gap = np.abs(x - y).max(axis=1)
        worst = max(worst, np.max(gap / np.where(gap == 0, 1, unit)))
    return worst


def exact_distances(name, dtype):
    params, noise = arrays(0, dtype), arrays(1, dtype, (STEPS,))
    pair = made(stepax, name), made(optax, name)
    before, found, expected = side_by_side(*pair, params, noise)
    u, state = map(distance, found, expected)
    return u, state, distance(found[0], expected[0], before)


def narrow_errors(name):
    """Errors of both libraries in bfloat16, relative to the largest update."""
    narrow = arrays(0, jnp.bfloat16), arrays(1, jnp.bfloat16, (STEPS,))
    wide = jax.tree.map(lambda x: x.astype(jnp.float64), narrow)
    truth = updates(made(stepax, name), *wide)
    return [error(updates(made(lib, name), *narrow), truth) for lib in (stepax, optax)]


def updates(tx, params, gs):
    def one(state, g):
        u, state = step(tx, g, state, params)
        return state, u

    with warnings.catch_warnings(action="ignore"):
        run = jax.jit(lambda gs: jax.lax.scan(one, tx.init(params), gs)[1])
        return jax.tree.leaves(run(gs))


def error(found, truth):
    gaps = [np.abs(np.asarray(x, float) - y) for x, y in zip(found, truth, strict=True)]
    return max(map(np.max, gaps)) / max(np.abs(y).max() for y in truth)


def attempt(f, *args):
    """The results, or the error."""
    try:
        return " ".join(f"{x:9.3g}" for x in f(*args))
    except (TypeError, ValueError, NotImplementedError) as problem:
        return f"{type(problem).__name__}: {str(problem).splitlines()[0][:40]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args().names
    shared = {**vars(optax), **vars(optax.contrib)}
    print(f"JAX {jax.__version__}, Optax {optax.__version__}, {STEPS} steps")
    print(
        "float32, float64: update, state, update in ulp of p; bfloat16: ours, Optax's"
    )
    for name, row in ROWS.items():
        if name not in (chosen or shared) or row.kind in ("wrapper", "measure"):
            continue
        single = attempt(exact_distances, name, jnp.float32)
        with jax.enable_x64(True):
            double = attempt(exact_distances, name, jnp.float64)
            narrow = attempt(narrow_errors, name)
        print(f"{name:34} {single:30} | {double:30} | {narrow}", flush=True)


if __name__ == "__main__":
    main()

"""Trajectories of optimizers as their authors wrote them, to hold Stepax against.

    import stepax, references

    for reference in references.load_all():
        tx = references.build(reference, stepax)
        print(reference.name, references.error(reference, tx, stepax))

A reference is numbers: gradients that do not depend on the parameters, and the
parameters after each step of the authors' code in float64.  Arrays are
laid out as JAX users have them, with the outputs as the last axis.
"""

import dataclasses
import functools as ft
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


HERE = pathlib.Path(__file__).resolve().parent / "data" / "references"
CURVATURES = 20  # how many different gradients there are


@dataclasses.dataclass(frozen=True)
class Reference:
    """params: where it starts.  grads, trajectory: each array has a step axis in front.

    evaluation: where it is to be evaluated after the last step, if that is elsewhere.
    meta: where the numbers are from, `factory` and `kwargs` for `build`, `tolerance`.
    """

    name: str
    params: dict[str, np.ndarray]
    grads: dict[str, np.ndarray]
    trajectory: dict[str, np.ndarray]
    evaluation: dict[str, np.ndarray]
    meta: dict[str, Any]
    curvature: dict[str, np.ndarray]
    value: np.ndarray | None


def names(folder: pathlib.Path = HERE) -> list[str]:
    return sorted(f.stem for f in folder.glob("*.npz") if f.stem != "problem")


def load(name: str, folder: pathlib.Path = HERE) -> Reference:
    """One reference, its arrays laid out for JAX if that makes a difference to it."""
    with np.load(folder / f"{name}.npz") as file:
        golden = dict(file)
    with np.load(folder / "problem.npz") as file:
        problem = dict(file)
    meta = json.loads(str(golden["meta"]))
    turn = _turned if meta["layout"] == "in_out" else lambda leaf, x, lead: x
    leaves = meta["leaves"]
    which = golden.get("which", np.arange(meta["steps"]))

    def read(source, key, lead):
        return {n: turn(n, source[f"{key}_{n}"], lead) for n in leaves}

    grads = read(problem, "g", 1)
    return Reference(
        name=meta["name"],
        params=read(problem, "p", 0),
        grads={n: g[which] for n, g in grads.items()},
        trajectory=read(golden, "p", 1),
        evaluation=read(golden, "e", 0) if meta["evaluation"] else {},
        meta=meta,
        curvature=grads,
        value=golden.get("value"),
    )


def load_all(folder: pathlib.Path = HERE) -> list[Reference]:
    return [load(name, folder) for name in names(folder)]


def _turned(leaf: str, x: np.ndarray, lead: int) -> np.ndarray:
    """Outputs last: (out, in) becomes (in, out); (O, I, H, W) becomes (H, W, I, O)."""
    n = x.ndim - lead
    if n == 4:
        axes = [2, 3, 1, 0]
    elif n >= 2:
        axes = [*range(n - 2), n - 1, n - 2]
    else:
        return x
    return np.transpose(x, [*range(lead), *(lead + a for a in axes)])


# --- the optimizer that a reference asks for ------------------------------------------


def build(reference: Reference, package: Any) -> Any:
    """The package's optimizer, with the arguments of the reference."""
    meta = reference.meta
    value = ft.partial(_value, reference=reference, package=package)
    if meta["factory"] == "$chain":
        return package.chain(*(_call(n, value(k), package) for n, k in meta["kwargs"]))
    return _call(meta["factory"], value(meta["kwargs"]), package)


def _call(name: str, kwargs: dict, package: Any) -> Any:
    return find(name, package)(**kwargs)


def find(name: str, package: Any) -> Callable:
    for part in name.split("."):
        package = getattr(package, part)
    return package


def _value(x: Any, reference: Reference, package: Any) -> Any:
    """Plain values as they are, and `{"$kind": ...}` as what it stands for."""
    again = ft.partial(_value, reference=reference, package=package)
    if isinstance(x, list):
        return tuple(again(v) for v in x)
    if not isinstance(x, dict):
        return x
    if len(x) == 1 and next(iter(x)).startswith("$"):
        [(kind, given)] = x.items()
        if kind == "$call":
            return _call(given[0], again(given[1]), package)
        if kind == "$fn":
            return {"waves": waves}[given]
        if kind == "$tree":
            return {n: again(given[n]) for n in reference.params}
        if kind == "$dims":
            return {n: _axes(p.ndim, package) for n, p in reference.params.items()}
        if kind == "$ramp":
            return ft.partial(ramp, *given)
        if kind == "$half_life":
            return ft.partial(half_life, *given)
        if kind == "$relative_step":
            return ft.partial(relative_step, given)
        if kind == "$curvature":
            return curvature(reference, package, **given)
        if kind == "$call":
            return _call(given[0], again(given[1]), package)
        raise ValueError(kind)
    return {int(k) if k.isdigit() else k: again(v) for k, v in x.items()}


def _axes(ndim: int, package: Any) -> Any:
    axes = {2: (0, 1), 3: (1, 2), 4: ((0, 1, 2), 3)}
    return package.contrib.MuonDimensionNumbers(*axes[ndim]) if ndim in axes else None


def waves(key: Any, shape: tuple[int, ...], dtype: Any = jnp.float64) -> jax.Array:
    """In place of normal noise: the k-th number, row by row, depends on k alone."""
    k = np.arange(math.prod(shape), dtype=np.float64)
    x = np.sqrt(2.0) * np.cos(2.399963229728653 * k * k + 0.5 + k)
    return jnp.asarray(x.reshape(shape), dtype)


def ramp(end: float, steps: int, count: Any) -> Any:
    """From 0 before the first step, whose count is 0, to `end`."""
    return end * jnp.minimum((jnp.asarray(count, float) + 1) / steps, 1.0)


def half_life(start: float, end: float, steps: int, count: Any) -> Any:
    """From one decay to another, the half-life growing evenly."""

    def life(beta):
        return math.log(0.5) / math.log(beta + 1e-8) - 1

    count = jnp.asarray(count, float)
    a = (count + 1) / steps
    middle = 0.5 ** (1 / ((1 - a) * life(start) + a * life(end) + 1))
    return jnp.where(count + 1 < steps, middle, end)


def relative_step(warm_up: bool, count: Any) -> Any:
    """Adafactor's own rate: 1 / sqrt(t), at most 0.01, or at most t / 1e6."""
    t = jnp.asarray(count, float) + 1
    return jnp.minimum(1e-6 * t if warm_up else 1e-2, t**-0.5)


def curvature(
    reference: Reference, package: Any, squares_times: float = 0, values: float = 0
) -> Any:
    """An estimator of the Hessian's diagonal: at its j-th call, of gradient 3 j + 1."""
    source = {n: jnp.asarray(reference.curvature[n]) for n in reference.params}

    def init(params):
        return jnp.zeros((), jnp.int32)

    def update(updates, state, params=None, **extra):
        g = {n: x[(3 * state + 1) % CURVATURES] for n, x in source.items()}
        h = {n: squares_times * x**2 + values * x for n, x in g.items()}
        return h, state + 1

    return package.GradientTransformationExtraArgs(init, update)


# --- replay ---------------------------------------------------------------------------


def replay(reference: Reference, tx: Any, dtype: Any = np.float64) -> tuple[dict, Any]:
    """Parameters after each step of `tx`, and its last state."""
    params = {n: jnp.asarray(p, dtype) for n, p in reference.params.items()}
    grads = {n: jnp.asarray(g, dtype) for n, g in reference.grads.items()}
    values = None if reference.value is None else jnp.asarray(reference.value, dtype)
    state = tx.init(params)

    @jax.jit
    def step(params, state, t):
        g = {n: x[t] for n, x in grads.items()}
        extra = {} if values is None else {"value": values[t]}
        updates, state = tx.update(g, state, params, **extra)
        return {n: p + updates[n] for n, p in params.items()}, state

    out: dict = {n: [] for n in params}
    for t in range(reference.meta["steps"]):
        params, state = step(params, state, t)
        for n, p in params.items():
            out[n].append(np.asarray(p))
    return {n: np.stack(x) for n, x in out.items()}, state


def error(
    reference: Reference, tx: Any, package: Any = None, dtype: Any = np.float64
) -> float:
    """Largest deviation of any leaf at any step, over the way that the leaf travels.

    With `package`, that of the evaluation parameters as well, if there are any.
    """
    if dtype == np.float64 and not jax.config.read("jax_enable_x64"):
        raise RuntimeError("enable jax_enable_x64 for float64")
    ours, state = replay(reference, tx, dtype)
    worst = 0.0
    pairs = [(ours[n], reference.trajectory[n], n) for n in reference.params]
    if reference.evaluation and package is not None:
        # Recorded under names of readers, which this one has replaced.
        get = package.eval_params
        last = {n: jnp.asarray(x[-1]) for n, x in ours.items()}
        at = get(state, last)
        pairs += [(np.asarray(at[n]), x, n) for n, x in reference.evaluation.items()]
    for a, b, n in pairs:
        way = np.max(np.abs(reference.trajectory[n] - reference.params[n]))
        gap = np.max(np.abs(a - b))
        worst = max(worst, float(gap / way)) if np.isfinite(gap) else math.inf
    return worst

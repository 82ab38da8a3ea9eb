"""What is measured of an optimizer for its card, kept by the sources it depends on."""

import ast
import base64
import hashlib
import inspect
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stepax
from stepax._engine.factories.registry import Row

from . import traits
from .problems import FIT, VALLEY, Problem


ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "cards"
PACKAGE = Path(stepax.__file__).parent

STEPS = 100
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
MULTIPLES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0)
MATRIX, VECTOR = (1024, 1024), (1024,)

# The programs are tiny: to compile them well takes longer than to run them.
QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


def measured(row: Row, cache: Path = CACHE) -> dict[str, Any]:
    """What `measure` returns, from the cache if the sources are the same."""
    file = cache / f"{row.name}-{key(row)}.json"
    if file.is_file():
        return json.loads(file.read_text())
    found = measure(row)
    cache.mkdir(parents=True, exist_ok=True)
    for old in cache.glob(f"{row.name}-*.json"):
        old.unlink(missing_ok=True)
    file.write_text(json.dumps(found))
    return json.loads(file.read_text())


def key(row: Row) -> str:
    """A hash of the optimizer's sources, of the engine, and of what measures."""
    own = Path(inspect.getsourcefile(inspect.unwrap(row.factory)) or "")
    parts = [jax.__version__, stepax.__version__, _engine(), row.name]
    tools = [
        Path(__file__).with_name(f"{x}.py") for x in ("measure", "problems", "traits")
    ]
    for file in sorted(sources(own)) + tools:
        parts.append(_digest(file))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def sources(file: Path) -> set[Path]:
    """A file of Stepax, and all that it imports, apart from the engine."""
    found, queue = set(), [file]
    while queue:
        one = queue.pop()
        if one not in found:
            found.add(one)
            queue += _imports(one)
    return found


@cache
def _imports(file: Path) -> list[Path]:
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = file.parents[node.level - 1].joinpath(
                *(node.module or "").split(".")
            )
            names = [base, *(base / alias.name for alias in node.names)]
            found += [path.with_suffix(".py") for path in names]
    inside = PACKAGE / "_engine"
    return [x for x in found if x.is_file() and not x.is_relative_to(inside)]


@cache
def _engine() -> str:
    return "".join(map(_digest, sorted((PACKAGE / "_engine").rglob("*.py"))))


def _digest(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def measure(row: Row) -> dict[str, Any]:
    """Costs, traits, and how it moves at the best of nine rates and beside it."""
    tx = traits.make(row)
    is_for_matrices = traits.is_for_matrices(row, tx)
    return {
        "reach": traits.reach(row, tx),
        "keywords": traits.keywords(tx),
        "needs_params": needs_params(row, tx),
        "bytes": {
            "matrix": state_bytes(tx, MATRIX),
            "vector": None if row.matrices_only else state_bytes(tx, VECTOR),
        },
        "lines": lowered_lines(tx),
        "parts": parts(row, tx),
        "problem": "fit" if is_for_matrices else "valley",
        **moves(row, FIT if is_for_matrices else VALLEY),
    }


def like(shape: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    return {"w": jax.ShapeDtypeStruct(shape, jnp.float32)}


def state_bytes(tx: Any, shape: tuple[int, ...]) -> float:
    """Bytes of state for each element of an array of float32."""
    state = jax.eval_shape(tx.init, like(shape))
    return _bytes(state) / int(np.prod(shape))


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _keywords(tx: Any, loss: Callable, value: Any, grad: Any) -> dict[str, Any]:
    every = {"value": value, "grad": grad, "value_fn": loss, "obj_fn": loss}
    return {k: every[k] for k in traits.keywords(tx) if k in every}


def _step(tx: Any, with_params: bool = True) -> Callable:
    total = lambda p: sum(jnp.sum(x**2) for x in jax.tree.leaves(p))

    def step(g, state, p):
        more = _keywords(tx, total, jnp.float32(1), g)
        return tx.update(g, state, p if with_params else None, **more)

    return step


def needs_params(row: Row, tx: Any) -> bool:
    """Whether `update` refuses to run without the parameters."""
    p = like((4, 4))
    try:
        jax.eval_shape(_step(tx, False), p, jax.eval_shape(tx.init, p), p)
    except (TypeError, ValueError):
        return True
    return False


def lowered_lines(tx: Any) -> int:
    """Lines of the program that JAX lowers for a step of one matrix."""
    p = like((256, 256))
    state = jax.eval_shape(tx.init, p)
    return jax.jit(_step(tx)).lower(p, state, p).as_text().count("\n")


def parts(row: Row, tx: Any) -> list[list[Any]]:
    """The components that `describe` prints, each with its depth."""
    p = (
        like((64, 64))
        if row.matrices_only
        else like((64, 64)) | {"b": like((64,))["w"]}
    )
    return [[depth, part.name] for depth, part in stepax.describe(tx, p).whole.lines()]


def moves(row: Row, problem: Problem) -> dict[str, Any]:
    """Losses and paths: at the best rate, and at multiples of it."""
    run = jax.jit(jax.vmap(_run(row, problem)), compiler_options=QUICKLY)
    if not traits.takes_rate(row):
        _, losses, paths = run(jnp.ones(1))
        again = len(MULTIPLES)
        return _moves(None, np.repeat(losses, again, 0), np.repeat(paths, again, 0))
    _, losses, _ = run(jnp.asarray(RATES))
    best = RATES[int(np.argmin(score(np.asarray(losses))))]
    _, losses, paths = run(jnp.asarray(MULTIPLES) * best)
    return _moves(best, losses, paths)


def score(losses: np.ndarray) -> np.ndarray:
    """The mean logarithm of the last ten losses, infinite if any is not finite."""
    last = losses[:, -10:]
    ends = np.log10(np.maximum(last, 1e-12)).mean(1)
    return np.where(np.isfinite(losses).all(1), ends, np.inf)


def _run(row: Row, problem: Problem) -> Callable:
    def run(rate):
        more = {"learning_rate": rate} if traits.takes_rate(row) else {}
        tx = traits.make(row, **more)

        def step(carry, _):
            p, state = carry
            value, g = jax.value_and_grad(problem.loss)(p)
            keywords = _keywords(tx, problem.loss, value, g)
            u, state = tx.update(g, state, p, **keywords)
            return (stepax.apply_updates(p, u), state), (value, p)

        p = jnp.asarray(problem.start)
        carry, (losses, path) = jax.lax.scan(step, (p, tx.init(p)), None, STEPS)
        last = carry[0]
        losses = jnp.append(losses, problem.loss(last))
        return last, losses, jnp.concatenate([path, last[None]])

    return run


def _moves(best: float | None, losses: Any, paths: Any) -> dict[str, Any]:
    paths = np.asarray(paths)
    is_valley = paths.shape[2:] == (2,)
    return {
        "rate": best,
        "losses": [[_short(x) for x in row] for row in np.asarray(losses)],
        "paths": [packed(path) for path in paths] if is_valley else [],
    }


def _short(x: float) -> float | None:
    return float(f"{x:.4g}") if np.isfinite(x) else None


# Paths are stored in 16 bits, as multiples of 1/8000, up to where no picture reaches.
LIMIT, SCALE = 4.0, 8000


def packed(path: np.ndarray) -> str:
    """Points as base64 of little-endian int16."""
    finite = np.nan_to_num(path, nan=LIMIT, posinf=LIMIT, neginf=-LIMIT)
    numbers = np.round(np.clip(finite, -LIMIT, LIMIT) * SCALE).astype("<i2")
    return base64.b64encode(numbers.tobytes()).decode()


def unpacked(text: str) -> np.ndarray:
    numbers = np.frombuffer(base64.b64decode(text), "<i2")
    return numbers.reshape(-1, 2) / SCALE

"""Where some steps of an optimizer lead, by which a change of it is noticed.

A digest of its source would change with each comment, one of its program with each
rearrangement.
"""

import json
from hashlib import sha256
from pathlib import Path

import jax
import numpy as np

import stepax

from . import engine, rules


_PROBE_STEPS = 4
_PROBE_RTOL = 1e-3
_ROOT = Path(__file__).parents[2]


def probes(cache: Path = _ROOT / ".cache" / "board") -> dict[str, list[float]]:
    """Those of all optimizers, kept until a file of Stepax or these rules change."""
    digest = sha256(jax.__version__.encode())
    sources = Path(str(stepax.__file__)).parent.rglob("*.py")
    for file in sorted([*sources, *Path(__file__).parent.glob("*.py")]):
        digest.update(file.read_bytes())
    file = cache / f"probes-{digest.hexdigest()[:16]}.json"
    if not file.exists():
        found = {name: probe(name) for name in rules.ENTRIES}
        cache.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found))
    return json.loads(file.read_text())


def is_near(a: list[float], b: list[float]) -> bool:
    scale = max(map(abs, b))
    return len(a) == len(b) and np.allclose(a, b, _PROBE_RTOL, _PROBE_RTOL * scale)


def probe(name: str) -> list[float]:
    draw = np.random.default_rng(0).standard_normal
    like = {"v": (4,), "w": (6, 4)}
    params = {k: np.float32(draw(shape)) for k, shape in like.items()}
    grads = {k: np.float32(draw((_PROBE_STEPS, *shape))) for k, shape in like.items()}
    ranges = rules.ENTRIES[name].ranges
    point = {k: (low * high) ** 0.5 for k, (low, high) in ranges.items()}
    tx = engine.transformation(name, point, 2 * _PROBE_STEPS)

    def step(carry, grads):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (jax.tree.map(lambda p, u: p + u, params, updates), state), None

    def run(params, grads):
        return jax.lax.scan(step, (params, tx.init(params)), grads)[0][0]

    moved = jax.tree.map(lambda p, q: p - q, jax.jit(run)(params, grads), params)
    return [_short(x) for k in like for x in np.ravel(moved[k])[:4].tolist()]


def _short(x: float) -> float:
    return float(f"{x:.6g}")

"""Compile time of L-BFGS over many small arrays, compared with Optax.

Run it with `python -m studies.many_leaves 200`.
"""

import argparse
import contextlib
import re
import time
from typing import Any

import jax
import jax.numpy as jnp

import stepax


SHAPES = (8,), (4, 4), (16,), (3, 5), ()


def fun(p):
    return sum(jnp.sum((x - 0.5) ** 2) for x in p.values())


def step_of(library):
    """A step as in Optax's documentation, and the function for its initial state."""
    tx = library.lbfgs()
    both = library.value_and_grad_from_state(fun)

    def step(p, s):
        value, grad = both(p, state=s)
        u, s = tx.update(grad, s, p, value=value, grad=grad, value_fn=fun)
        return library.apply_updates(p, u), s

    return step, tx.init


def programs(p) -> dict[str, Any]:
    """Maps a name to a function and its arguments."""
    libraries: dict[str, Any] = {"stepax": stepax}
    with contextlib.suppress(ImportError):
        import optax

        libraries["optax"] = optax
    found: dict[str, Any] = {
        "minimize": (lambda p: stepax.minimize(fun, p).params, (p,))
    }
    for name, library in libraries.items():
        step, init = step_of(library)
        found[f"{name}.lbfgs"] = step, (p, init(p))
    return found


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("leaves", type=int, nargs="?", default=200)
    n = parser.parse_args().leaves
    p = {f"w{i}": jnp.full(SHAPES[i % len(SHAPES)], 0.1 + i / n) for i in range(n)}
    print("| | compile, s | CPU time, s | fusions |\n| --- | --- | --- | --- |")
    for name, (f, args) in programs(p).items():
        lowered = jax.jit(f).lower(*args)
        begin, used = time.perf_counter(), time.process_time()
        compiled = lowered.compile()
        passed, used = time.perf_counter() - begin, time.process_time() - used
        fusions = len(re.findall(r" fusion\(", compiled.as_text() or ""))
        print(f"| {name} | {passed:.1f} | {used:.1f} | {fusions} |", flush=True)


if __name__ == "__main__":
    main()

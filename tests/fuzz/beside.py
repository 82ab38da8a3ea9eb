"""What is found when a program runs beside Optax."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stepax
from fuzz.runs import (
    Program,
    Run,
    numbers,
    run_optax,
    run_ours_by_operations,
    step,
    strictly,
)


@dataclass
class Finding:
    """kind: by which documented differences are found.  size: of other numbers."""

    kind: str
    text: str
    size: float = 0.0


Rerun = Callable[[Program], Run]


def find(
    program: Program, ours: Run, theirs: Run, rerun: Rerun = run_optax
) -> Iterator[Finding]:
    """All in which two runs differ.

    rerun: how the second one was made.
    """
    if ours.error and not theirs.error:
        yield Finding("ours fails", failure(ours))
    if theirs.error and not ours.error:
        yield Finding("Optax fails", failure(theirs))
    yield from changes(ours)
    if not ours.error and not theirs.error:
        yield from other_states(program, ours, theirs)
        if is_wide(program):
            yield from other_numbers(program, ours, theirs, rerun)


def failure(run: Run) -> str:
    first = str(run.error).split("\n")[0]
    return f"{run.at}: {type(run.error).__name__}: {first}"


def is_wide(program: Program) -> bool:
    """Whether numbers can be compared: there are some, and all in float64."""
    dtypes = {jnp.result_type(x).name for x in jax.tree.leaves(program.tree())}
    return bool(dtypes) and dtypes <= {"float64", "complex128"}


# --- states ---------------------------------------------------------------------------


def flat(tree: Any, path: str = "state") -> Iterator[tuple[str, str, str]]:
    """Each node and leaf of a state: where it is, its kind, its shape and dtype."""
    if isinstance(tree, dict):
        children = {f"[{k!r}]": x for k, x in tree.items()}
    elif isinstance(tree, tuple | list):
        fields = getattr(tree, "_fields", range(len(tree)))
        children = {f".{k}": x for k, x in zip(fields, tree, strict=True)}
    else:
        leaves, treedef = jax.tree.flatten(tree)
        if len(leaves) != 1 or leaves[0] is not tree:
            yield path, str(treedef), ""
            children = {f"<{i}>": x for i, x in enumerate(leaves)}
        else:
            yield path, str(jnp.shape(tree)), str(jnp.result_type(tree))
            return
    yield path, type(tree).__name__, ""
    for k, x in children.items():
        yield from flat(x, path + k)


def changes(run: Run) -> Iterator[Finding]:
    """Where the state of a run is not what it was at first."""
    for t, state in enumerate(run.states):
        before, after = set(flat(run.states[0])), set(flat(state))
        if before != after:
            first = f"{sorted(before - after)[:2]} -> {sorted(after - before)[:2]}"
            yield Finding("state changes", f"after {t} steps: {first}")
            return


def other_states(program: Program, ours: Run, theirs: Run) -> Iterator[Finding]:
    """How the first state differs from Optax's, where that is the same ever after."""
    if any(changes(theirs)):
        return
    found, wanted = (list(flat(x.states[0])) for x in (ours, theirs))
    nodes = [{x[:2] for x in state} for state in (found, wanted)]
    if nodes[0] != nodes[1]:
        only = [sorted(nodes[i] - nodes[1 - i])[:3] for i in (0, 1)]
        yield Finding("other structure", f"{only[0]}, Optax {only[1]}")
    elif is_wide(program):
        pairs = zip(sorted(found), sorted(wanted), strict=True)
        for (path, _, dtype), (_, _, other) in pairs:
            if dtype != other:
                yield Finding("other dtype", f"{path}: {dtype}, Optax {other}")


# --- numbers --------------------------------------------------------------------------


def other_numbers(
    program: Program, ours: Run, theirs: Run, rerun: Rerun
) -> Iterator[Finding]:
    """Updates that differ by more than 1e-9 of the largest entry of their array.

    More where the second run gives other numbers for gradients that differ in the last
    bits: what a program makes of rounding says nothing.
    """
    found = differences(ours, theirs)
    if (found <= 1e-9).all():
        return
    text = "by " + " ".join(f"{x:.1e}" for x in found) + " of the largest entry"
    if np.isnan(found).any():
        yield Finding("ours is not finite", text)
        return
    if np.isinf(found).any():
        yield Finding("Optax is not finite", text)
        return
    nudged = tuple(x * (1 + 2.0**-50) for x in program.sizes)
    again = rerun(replace(program, sizes=nudged))
    if (found <= 1e-9 + 1e4 * differences(again, theirs)).all():
        return
    yield Finding("other numbers", text, float(np.max(found)))


def differences(run: Run, other: Run) -> np.ndarray:
    """How much an array differs, at most, at each step."""
    steps = zip(run.updates, other.updates, other.params, strict=True)
    return np.array([np.max([0.0, *map(difference, *map(numbers, x))]) for x in steps])


def difference(x: np.ndarray, y: np.ndarray, p: np.ndarray) -> float:
    """NaN where `x` is none where `y` is a number, infinite for the reverse.

    What is a rounding error of the parameter is nothing: some updates are differences
    of two parameters.
    """
    # Where Optax makes a vector of one of a scalar, ours stays a scalar.
    x, y = np.broadcast_arrays(x, y)
    at = np.isfinite(y)
    if not np.isfinite(x[at]).all():
        return np.nan
    if np.isfinite(x[~at]).any():
        return np.inf
    # In double: the smallest number, for arrays without any, is 0 in single.
    size = lambda x: np.abs(x[np.isfinite(x)]).astype(float)
    least = lambda x: np.max(size(x), initial=np.finfo(float).tiny)
    error = np.max(np.abs(x[at] - y[at]), initial=0.0)
    with np.errstate(over="ignore"):  # infinitely different is an answer
        return float(max(0, error - 2.0**-48 * least(p)) / least(y[at]))


# --- steps that are compiled ----------------------------------------------------------


def find_in_scan(program: Program) -> Iterator[Finding]:
    """Where steps in one program, as `lax.scan` does them, give something else."""
    ours = run_ours_by_operations(program)
    sizes = jnp.asarray(program.sizes)

    def body(carry: Any, t: Any) -> Any:
        p, updates, state = step(stepax, tx, program, t, sizes[t], *carry)
        return (p, state), updates

    try:
        with strictly():
            tx, p = program.make(stepax), program.tree(stepax)
            scan = lambda p, s: jax.lax.scan(body, (p, s), jnp.arange(len(sizes)))
            updates = jax.jit(scan)(p, tx.init(p))[1]
    except Exception as error:
        yield Finding("ours fails", f"scan: {type(error).__name__}: {error}")
        return
    if is_wide(program):
        at = lambda t: jax.tree.map(lambda x: x[t], updates)
        found = Run(list(map(at, range(len(sizes)))))
        yield from other_numbers(program, found, ours, run_ours_by_operations)

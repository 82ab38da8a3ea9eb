"""The command `diagnose`: what is found in a configuration."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from .. import from_config
from .diagnose import diagnose


def run(args: argparse.Namespace) -> int:
    """Print what is found; the exit code is 1 for alarms, and 2 for wrong files."""
    try:
        tx = from_config(_read(args.config))
        shapes = _shapes(_read(args.params), args.params)
        found = diagnose(tx, shapes, steps=args.steps)
    except (OSError, TypeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except RecursionError:
        print(f"{args.config} or {args.params} is nested too deeply", file=sys.stderr)
        return 2
    print(found)
    return 1 if found.alarms else 0


def _read(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _shapes(x: Any, at: str, dtype: str = "float32") -> Any:
    """Parameters without values, from lists of sizes."""
    if isinstance(x, dict) and set(x) <= {"shape", "dtype"} and "shape" in x:
        return _shapes(x["shape"], at, x.get("dtype", dtype))
    if isinstance(x, list) and all(type(n) is int and n >= 0 for n in x):
        return jax.ShapeDtypeStruct(tuple(x), jnp.dtype(dtype))
    if isinstance(x, dict):
        return {k: _shapes(y, f"{at}: {k}") for k, y in x.items()}
    if isinstance(x, list):
        return [_shapes(y, f"{at}: {i}") for i, y in enumerate(x)]
    raise ValueError(
        f"{at} is {x!r}, expected a shape such as [16, 16], or a shape and a dtype"
    )

"""States that are passed on by name, as a checkpoint does it, without the disk."""

import json

import jax
import jax.numpy as jnp
from cases import TREES, gradients
from inside import Policy
from keywords import keywords

from stepax._checkpoint.assemble import Held, assemble


STRICT = Policy("error", "error")


def layers(first="first", second="second"):
    made = TREES["dict"]
    return {first: made(), second: jax.tree.map(lambda x: x + 1, made())}


def trained(tx, params, steps=2):
    """A state that is not the first one, in all that may have changed."""
    state = tx.init(params)
    for i in range(steps):
        g = gradients(params, i)
        _, state = tx.update(g, state, params, **keywords(params))
    return state


def passed_on(old, tx, params, policy=STRICT, renamed=None, saved=None):
    """A state as a checkpoint would give it to another transformation."""
    source = Held.of("the state", params if saved is None else saved, old)
    return assemble(source, tx, params, policy, renamed)[1]


def spread(state):
    """Numbers that tell all of a state apart."""
    leaves, treedef = jax.tree.flatten(state)
    new = (
        x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jnp.full_like(x, i)
        for i, x in enumerate(map(jnp.asarray, leaves))
    )
    return treedef.unflatten(new)


def plain_bytes(file):
    """Shapes and bytes of the arrays in a file of `safetensors`, by their names."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    part = lambda row: data[start:][slice(*row["data_offsets"])]
    return {k: (tuple(x["shape"]), part(x)) for k, x in header.items()}

"""Every public factory is exported, under Optax's signature."""

import inspect
from importlib import import_module
from typing import Any

import jax.numpy as jnp
import numpy as np
from inside import ROWS
from loops import each
from public import MODULES

import stepax
import stepax.contrib


@each(ROWS)
def test_what_is_registered_is_exported(name):
    home = stepax if name in vars(stepax) else stepax.contrib
    assert getattr(home, name) is ROWS[name].factory


def shared(path: str) -> list[tuple[str, str]]:
    """The public names of a module that Optax has, too."""
    ours, theirs = import_module(f"stepax{path}"), import_module(f"optax{path}")
    names = (n for n in vars(ours) if not n.startswith("_"))
    both = [(path, n) for n in names if n in vars(theirs)]
    return [pair for pair in both if inspect.isfunction(getattr(theirs, pair[1]))]


# Where Optax's main branch has a parameter by position that 0.2.8 lacks.
POSITIONAL = {("adabelief", "weight_decay"), ("prodigy", "weight_decay_mask")}


@each([pair for path in MODULES for pair in shared(path)])
def test_parameters_are_those_of_optax(path, name):
    ours = getattr(import_module(f"stepax{path}"), name)
    theirs = getattr(import_module(f"optax{path}"), name)
    found, wanted = (inspect.signature(f).parameters for f in (ours, theirs))
    assert [n for n in found if n in wanted] == list(wanted)
    for key, p in found.items():
        if key in wanted:
            assert p.kind == wanted[key].kind
            assert (p.default is p.empty) == (wanted[key].default is p.empty)
        else:
            assert p.kind is p.KEYWORD_ONLY or (name, key) in POSITIONAL
            assert p.default is not p.empty


def test_what_optax_s_main_branch_takes_by_position_is_taken_so():
    by_name = stepax.adabelief(0.1, 0.9, 0.999, 1e-16, 1e-16, weight_decay=0.01)
    assert stepax.adabelief(0.1, 0.9, 0.999, 1e-16, 1e-16, 0.01) == by_name
    given = 1.0, (0.9, 0.999), None, 1e-8, 1e-6, 1.0, 0.1, False
    mask = {"w": True, "b": False}
    by_name = stepax.contrib.prodigy(*given, weight_decay_mask=mask)
    assert stepax.contrib.prodigy(*given, mask) == by_name


def test_a_private_optimizer_is_injected_with_a_key():
    numbers: Any = {"learning_rate": 0.1, "l2_norm_clip": 1.0, "noise_multiplier": 1.0}
    tx = stepax.inject_hyperparams(stepax.contrib.dpsgd)(**numbers, key=0)
    p = {"w": jnp.ones(2)}
    examples = {"w": jnp.ones((3, 2))}
    found = tx.update(examples, tx.init(p), p)[0]
    plain = stepax.contrib.dpsgd(**numbers, key=0)
    np.testing.assert_allclose(
        found["w"], plain.update(examples, plain.init(p), p)[0]["w"], rtol=1e-6
    )
    assert set(tx.init(p).hyperparams) == set(numbers)

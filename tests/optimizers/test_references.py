"""Optimizers take the steps of their authors' own code."""

import jax
import numpy as np
import pytest
import references

import stepax
import stepax.contrib


@pytest.mark.few(2)
@pytest.mark.parametrize("name", references.names())
def test_an_optimizer_takes_the_steps_of_its_authors(name):
    with jax.enable_x64(True):
        reference = references.load(name)
        tx = references.build(reference, stepax)
        assert references.error(reference, tx, stepax) <= 1e-5


# Roots of singular statistics amplify what float32 rounds, and with "kl" they enter the
# next statistics: in float64, too, the gap is 1e8 times the rounding.
AMPLIFIED = {"shampoo_kl": 1.0}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", references.names())
def test_in_float32_it_stays_close_to_its_float64_self(name):
    reference = references.load(name)
    found, _ = references.replay(
        reference, references.build(reference, stepax), np.float32
    )
    for leaf, wanted in reference.trajectory.items():
        distance = np.max(np.abs(wanted - reference.params[leaf]))
        # Each step rounds the parameter itself, however short the distance is.
        rounding = len(wanted) * np.finfo(np.float32).eps * np.max(np.abs(wanted))
        gap = np.max(np.abs(found[leaf] - wanted))
        assert gap <= AMPLIFIED.get(name, 1e-4) * distance + rounding, leaf

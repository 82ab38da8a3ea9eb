"""Optimizers take the steps of their authors' own code."""

import jax
import pytest
import references

import stepax
import stepax.contrib


def _is_here(name: str) -> bool:
    meta = references.load(name).meta
    if meta["factory"] == "$chain":
        found = [factory for factory, _ in meta["kwargs"]]
    else:
        found = [meta["factory"]]
    try:
        return all(references.find(factory, stepax) for factory in found)
    except AttributeError:
        return False


NAMES = [name for name in references.names() if _is_here(name)]


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_takes_the_steps_of_its_authors(name):
    with jax.enable_x64(True):
        reference = references.load(name)
        tx = references.build(reference, stepax)
        assert references.error(reference, tx, stepax) <= 1e-5

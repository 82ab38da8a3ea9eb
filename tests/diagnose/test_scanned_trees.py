"""Which trees look as if a model scanned over its layers."""

import cases
import jax
import numpy as np
import pytest

import stepax
import stepax.contrib


def shapes(**arrays):
    return {k: jax.ShapeDtypeStruct(x, np.float32) for k, x in arrays.items()}


def dense(*shape):
    return shapes(kernel=shape, bias=(*shape[:-2], shape[-1]))


STACKS = {
    "layers": {"scan": {"up": dense(6, 16, 64), "down": dense(6, 64, 16)}},
    "layers without biases": {
        "blocks": shapes(up=(6, 8, 32), gate=(6, 8, 32), o=(6, 32, 8))
    },
    "experts": {"moe": shapes(wi=(4, 16, 64), wg=(4, 16, 64), wo=(4, 64, 16))},
    "groups of experts": {
        "experts": shapes(wi=(2, 4, 16, 64), wg=(2, 4, 16, 64), wo=(2, 4, 64, 16))
    },
    "attention in layers": {
        "layers": shapes(q=(3, 32, 4, 8), k=(3, 32, 4, 8), o=(3, 4, 8, 32))
    },
}
OTHERS = {
    "attention": {"attention": shapes(q=(32, 4, 8), k=(32, 4, 8), v=(32, 4, 8))},
    "attention with biases": {
        "layer": {x: shapes(kernel=(32, 4, 8), bias=(4, 8)) for x in "qkv"}
    },
    "heads first": {"block": shapes(q=(4, 32, 8), k=(2, 32, 8), v=(2, 32, 8))},
    "convolutions": {
        "block": shapes(a=(3, 3, 8, 16), b=(3, 3, 16, 16), c=(3, 3, 16, 8))
    },
    "convolutions in one axis": {
        "block": {f"conv{i}": shapes(kernel=(3, 16, 16)) for i in range(3)}
    },
    "matrices of one shape": {"layers": shapes(a=(8, 8), b=(8, 8), c=(8, 8))},
    "a list of layers": {"layers": [dense(16, 16), dense(16, 16), dense(16, 16)]},
}


def codes(tx, params):
    return {finding.code for finding in stepax.diagnose(tx, params)}


@pytest.mark.few(1)
@pytest.mark.parametrize("row", cases.rows(kind="optimizer"))
@pytest.mark.parametrize("tree", OTHERS)
def test_arrays_that_merely_have_an_axis_more_are_no_stacks(tree, row):
    assert "layers-as-one" not in codes(cases.make(row), OTHERS[tree])


@pytest.mark.parametrize("tree", STACKS)
def test_stacks_are_found_where_nobody_says_that_they_are(tree):
    params = STACKS[tree]
    (node,) = params
    axes = (0, 1) if "groups" in tree else 0
    for make in stepax.lamb, stepax.adafactor, stepax.novograd, stepax.contrib.soap:
        assert "layers-as-one" in codes(make(1e-3), params)
        told = stepax.stacked(make(1e-3), {f"{node}/**": axes})
        assert "layers-as-one" not in codes(told, params)
    assert "layers-as-one" not in codes(stepax.adamw(1e-3), params)

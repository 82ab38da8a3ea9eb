"""Short arrays lie in few vectors, and what is compiled does not grow with them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax._linesearch.line import SHORT, gather_short


def arrays(*front):
    random = np.random.RandomState(0)
    shapes = [(3,), (), (2, 2), (0,), (SHORT + 1,), *[(2,)] * 60]
    draw = lambda shape: jnp.asarray(random.randn(*front, *shape), jnp.float32)
    return list(map(draw, shapes))


@pytest.mark.parametrize("front", [(), (4,)])
def test_arrays_come_back_from_their_vectors(front):
    xs = arrays(*front)
    gathering = gather_short(arrays())
    vectors = gathering.join(xs, len(front))
    assert [x.shape for x in vectors] == [(*front, n) for n in (128, SHORT + 1)]
    for was, now in zip(xs, gathering.split(vectors), strict=True):
        np.testing.assert_array_equal(was, now)


def test_arrays_of_a_batch_come_back():
    gathering = gather_short(arrays())
    there_and_back = lambda xs: gathering.split(gathering.join(xs))
    for was, now in zip(arrays(4), jax.vmap(there_and_back)(arrays(4)), strict=True):
        np.testing.assert_array_equal(was, now)


def test_only_what_has_the_same_dtypes_in_all_columns_is_gathered():
    one, two = jnp.float32, jnp.bfloat16
    params = [jnp.zeros(3, dtype) for dtype in (one, one, two, one)]
    grads = [jnp.zeros(3, dtype) for dtype in (one, two, two, one)]
    vectors = gather_short(params, grads).join(params)
    assert [x.shape for x in vectors] == [(6,), (3,), (3,)]


def kernels(leaves):
    """The different fused computations in the program of a minimization."""
    x0 = [jnp.ones(3 + i % 2) for i in range(leaves)]
    fun = lambda p: sum(jnp.sum(jnp.sinh(x)) for x in p)
    run = jax.jit(lambda x0: stepax.minimize(fun, x0).params)
    text = run.lower(x0).compile().as_text() or ""
    bodies = {}
    for part in text.split("\n\n"):
        name, _, body = part.strip().partition(" (")
        body = re.sub(r", metadata=\{[^}]*\}", "", body.partition("\n")[2])
        numbers: dict = {}
        number = lambda m, seen=numbers: seen.setdefault(m.group(), str(len(seen)))
        bodies[name.lstrip("%")] = re.sub(r"%[\w.\-]+", number, body)
    called = re.findall(r" fusion\(.*calls=%?([\w.\-]+)", text)
    return len({bodies[name] for name in called})


@pytest.mark.slow
def test_more_leaves_of_the_same_shapes_are_no_more_kernels():
    few = kernels(8)
    # Less than one for each leaf more: sums of 40 numbers are cut into parts.
    assert 20 < few and kernels(40) <= few + 20

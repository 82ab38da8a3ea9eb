"""An argument of another kind than its annotation says is refused by its name."""

import inspect
import re
from collections.abc import Callable
from typing import get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import OTHERS, ROWS, make
from inside import checks_of
from keywords import keywords
from loops import each

import stepax
from stepax._engine.factories.ranges import DTYPE, FLAG, FUNCTION, KEY, MAPPING
from stepax._engine.functions.signatures import of_parameters


# What a program may pass by mistake: text from a command line, the argument beside it.
WRONG = {
    FLAG: ["false", 0.9, 2, np.nan, [True], jnp.bfloat16, jnp.ones(2, bool), print],
    DTYPE: ["fp8", 16, True, [jnp.float32], jnp.int32, bool, jnp.ones(2)],
    FUNCTION: ["relu", 0.5, [print], {}],
    KEY: ["0", 1.5, True, [0], jnp.ones(2), print],
    MAPPING: ["norm", 1.0, [("a", print)], print],
}
RIGHT = {
    FLAG: [True, False, 0, 1, np.True_, jnp.asarray(True)],
    DTYPE: ["bfloat16", jnp.float32, np.float16, np.dtype("float32"), float],
    KEY: [0, np.int32(7), jnp.asarray(3), jax.random.key(0), jax.random.PRNGKey(0)],
}


def arguments():
    """The factories, their arguments of a known kind, and the kind."""
    for row in ROWS.values():
        checks = checks_of(row.factory) if row.kind not in OTHERS else None
        for key, kind in checks.kinds.items() if checks else ():
            known = [x for x in WRONG if kind.wanted.startswith(x.wanted)]
            yield row, key, known[0]


ARGUMENTS = list(arguments())


def test_every_flag_and_dtype_of_every_factory_is_known():
    known = {(row.name, key) for row, key, _ in ARGUMENTS}
    for row in ROWS.values():
        for p in inspect.signature(row.factory).parameters.values():
            said = str(p.annotation)
            if said == "bool" or "DTypeLike" in said and "Mapping" not in said:
                assert row.kind in OTHERS or (row.name, p.name) in known


@each(ARGUMENTS)
def test_another_kind_is_refused(row, key, kind):
    for x in WRONG[kind]:
        said = rf"`{row.name}`: `{key}` must be {re.escape(kind.wanted)}.*, but is "
        with pytest.raises(TypeError, match=said):
            make(row, **{key: x})


@each(ARGUMENTS)
def test_all_forms_of_its_kind_are_accepted(row, key, kind):
    checks = checks_of(row.factory)
    assert checks is not None and RIGHT.keys() < WRONG.keys()
    allowed = checks.kinds[key]
    assert all(allowed.accepts(x) for x in RIGHT.get(kind, []))


@pytest.mark.parametrize(
    "wrong",
    [
        {"use_grad_mean": "sum"},
        {"should_skip_update_fn": True},
        {"accumulator_dtype": "half16"},
        {"accumulator_dtype": jnp.int32},
        {"weighted": 0.5},
    ],
)
def test_multi_steps_takes_none_of_another_kind(wrong):
    with pytest.raises(TypeError, match=f"`MultiSteps`: `{next(iter(wrong))}` must be"):
        stepax.MultiSteps(stepax.sgd(0.1), 2, **wrong)


FUNCTIONS = {2: lambda a, b: a, 3: lambda a, b, c: a}
OF_FUNCTIONS = [
    (row, key, len(get_args(hint)[0]))
    for row in ROWS.values()
    for key, hints in of_parameters(row.factory).items()
    for hint in hints
    if get_origin(hint) is Callable and get_args(hint)[0] is not ...
    if len(get_args(hint)[0]) > 1  # of one are schedules and masks
]


@each(OF_FUNCTIONS)
def test_a_function_takes_as_many_arguments_as_are_annotated(row, key, number):
    make(row, **{key: FUNCTIONS[number]})


@pytest.mark.parametrize("flag", [None, 0, 1, np.False_])
def test_flags_that_optax_accepts_mean_the_same(flag):
    p = jnp.arange(3.0)
    found = [
        tx.update(p, tx.init(p))[0]
        for tx in (lib.sgd(0.1, 0.9, nesterov=flag) for lib in (stepax, optax))
    ]
    np.testing.assert_array_equal(*found)


def test_a_flag_that_is_traced_is_named():
    with pytest.raises(TypeError, match="`adam`: `nesterov` must be .* before the pro"):
        jax.jit(lambda x: stepax.adam(0.1, nesterov=x).init(jnp.ones(2)))(True)


def test_a_flag_in_quotes_is_shown_without():
    with pytest.raises(TypeError, match="write False without quotes"):
        stepax.adam(0.1, nesterov="false")  # pyright: ignore[reportArgumentType]


def whole_numbers():
    for row in ROWS.values():
        checks = checks_of(row.factory) if row.kind not in OTHERS else None
        for key, hint in checks.hints.items() if checks else ():
            if int in hint and not {float, jax.Array} & {*hint} and key != "seed":
                yield row, key


@each(whole_numbers())
def test_a_traced_whole_number_is_refused_by_its_name_or_works(row, key):
    def step(x):
        tx = stepax.with_extra_args_support(make(row, **{key: x}))
        p = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
        return tx.update(p, tx.init(p), p, **keywords(p))[0]

    try:
        jax.eval_shape(step, jnp.int32(2))
    except TypeError as error:
        said = f"`{row.name}`: `{key}` is traced, but must be known before "
        assert str(error).startswith(said) and "`static_argnums`" in str(error)

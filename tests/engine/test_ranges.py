"""Numbers out of range are refused where a factory is called, by argument name."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from cases import ARGUMENTS, make
from inside import ANY, RANGES, ROWS, share
from keywords import keywords
from loops import each

import stepax
from stepax.rules import Range


X = jnp.ones(2)


def ranged():
    """Every argument of a factory that has a range, with the range."""
    for row in ROWS.values():
        for name in inspect.signature(row.factory).parameters:
            allowed = row.ranges.get(name) or RANGES.get(name, ANY)
            if allowed is not ANY:
                yield pytest.param(row, name, allowed, id=f"{row.name}-{name}")


def outside(allowed: Range):
    """Numbers that a range does not hold."""
    if allowed.least > -np.inf:
        yield allowed.least - 1.0
    if not allowed.is_cap:
        yield np.inf
    yield float("nan")
    if allowed.excludes_least:
        yield allowed.least
    if allowed.most < np.inf:
        yield allowed.most if allowed.excludes_most else allowed.most + 1


@each(list(ranged()))
def test_a_number_out_of_range_is_an_error_that_says_which(row, name, allowed):
    for x in outside(allowed):
        message = f"`{row.name}`: `{name}` must be "
        with pytest.raises(ValueError) as caught:
            default = inspect.signature(row.factory).parameters[name].default
            make(row, **{name: (x, x) if isinstance(default, tuple) else x})
        assert message in str(caught.value)
        assert str(allowed) in str(caught.value)
        assert str(x) in str(caught.value)


@each(list(ranged()))
def test_defaults_are_within_their_ranges(row, name, allowed):
    default = inspect.signature(row.factory).parameters[name].default
    for x in default if isinstance(default, tuple) else (default,):
        is_number = isinstance(x, int | float) and not isinstance(x, bool)
        assert x in allowed if is_number else x is None or x is inspect.Parameter.empty


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stepax.huber_loss(X, X, delta=-1.0), "`delta` must be above 0"),
        (lambda: stepax.smooth_labels(X, 1.5), "`alpha` must be at most 1"),
        (lambda: stepax.sigmoid_focal_loss(X, X, gamma=-1.0), "`gamma` must be >= 0"),
        (lambda: stepax.sigmoid_focal_loss(X, X, alpha=2.0), "`alpha` must be in"),
        (lambda: stepax.ntxent(X[None], X[:1], 0.0), "`temperature` must be above 0"),
    ],
)
def test_numbers_of_losses_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_numpy_s_numbers_and_pairs_are_checked():
    with pytest.raises(
        ValueError, match=r"`adam`: `b1` must be in \[-1, 1\], but is 1.5"
    ):
        stepax.adam(1e-3, np.float32(1.5))
    with pytest.raises(ValueError, match=r"`betas` must be in \[0, 1\]"):
        stepax.contrib.prodigy(betas=(0.9, 1.5))


def test_arrays_and_schedules_are_not_read():
    for rate in jnp.float32(-1.0), lambda count: -1.0:
        tx = stepax.adam(rate, b1=jnp.float32(0.0))
        u, _ = tx.update(X, tx.init(X))
        assert (u > 0).all()  # as they say, it ascends
    assert stepax.adam(0.1, jnp.float32(2.0)).init(X)[0].mu.shape == X.shape


def test_injected_numbers_are_checked():
    with pytest.raises(ValueError, match="`learning_rate` must be a finite number"):
        stepax.inject_hyperparams(stepax.adam)(learning_rate=float("inf"))


# Why no program can mean what we refuse and Optax takes, by what is given.
REFUSED = {
    "an average with such a decay grows without bound": {
        "above 1": "adam_b1 adam_b2 b1 b2 b3 beta beta3 betas decay momentum rho",
    },
    "an average of squares with such a decay turns negative, and has no root": {
        "negative": "adam_b2 b2 b3 beta3 betas decay rho",
    },
    "what is divided by, or under a root, turns zero or negative at some gradient": {
        "negative": "adam_eps_root eps eps_root epsilon initial_accumulator_value "
        "initial_scale",
    },
    "it is the scale of noise, a square, a radius, a norm or a distance": {
        "negative": "clip_threshold estim_lr0 eta init_estim_sq_dist init_step "
        "min_scale reps_rel s_init",
    },
    "it is the bound of a size, which is then replaced by it or changes its sign": {
        "negative": "clipping max_delta max_learning_rate max_norm max_step_size",
        "zero": "clip_threshold",
    },
    "an estimate that starts at 0 stays there": {
        "zero": "estim_lr0 init_step reps_rel s_init",
    },
    "an estimate is the larger one of itself and this factor's, which never grows": {
        "negative": "gamma",
    },
    "it is a number of steps, of rows or of things": {
        "negative": "accumulation_size cooldown k max_backtracking_steps "
        "max_linesearch_steps memory_size ns_steps num_betas "
        "patience rank sync_period update_interval update_proj_gap warmup_steps",
        "zero": "accumulation_size k max_linesearch_steps memory_size num_betas rank "
        "sync_period update_interval update_proj_gap",
    },
    "no step meets such a tolerance, or each does": {
        "negative": "approx_dec_rtol atol curv_rtol rtol slope_rtol stepsize_precision "
        "tol",
        "above 1": "rtol slope_rtol",
    },
    "Optax refuses it, too": {"zero": "rtol"},
    "a factor of a search or of a step size, which then goes the wrong way": {
        "negative": "decrease_factor eta_minus eta_plus factor increase_factor "
        "slow_step_size",
        "zero": "decrease_factor eta_plus factor increase_factor",
        "above 1": "decrease_factor eta_minus factor",
    },
    "the interpolation has no inverse, or is none": {"negative": "b1", "zero": "b1"},
    "the scale starts at 1, and is never above it": {"above 1": "min_scale init_step"},
}
COLUMNS = {"negative": -0.5, "zero": 0.0, "above 1": 1.5, "infinite": np.inf}
WHOLE = {"negative": -1, "zero": 0, "above 1": 2, "infinite": np.inf}


def shared():
    """Each hyperparameter of each factory that Optax has, too."""
    homes = vars(optax) | vars(optax.contrib)
    for row in ROWS.values():
        if row.name not in homes or row.kind in ("measure", "aggregate"):
            continue
        known = inspect.signature(homes[row.name]).parameters
        checks: Any = vars(row.factory)["scalars"]
        for name, takes in checks.takes.items():
            if name in known and (takes.number or takes.parts):
                yield row, homes[row.name], name, takes


def value(row, name, takes, column):
    parameter = inspect.signature(row.factory).parameters[name]
    whole = parameter.annotation is int or type(parameter.default) is int
    x = (WHOLE if whole else COLUMNS)[column]
    return (x,) * len(takes.parts) if takes.parts else x


def test_what_optax_takes_is_refused_for_a_reason_alone():
    reasons, met = {}, set()
    for columns in REFUSED.values():
        for column, names in columns.items():
            reasons |= {(column, name): 0 for name in names.split()}
    for row, _, name, takes in shared():
        for column in COLUMNS:
            try:
                make(row, **{name: value(row, name, takes, column)})
            except ValueError:
                met.add((column, name))
    # An infinite number leaves none in the updates; where it is a bound, it is taken.
    assert {x for x in met if x[0] != "infinite"} == set(reasons)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("column", ["negative", "above 1"])
def test_beyond_the_usual_the_numbers_are_those_of_optax(column):
    wrong, seen = [], set()
    for row, theirs, name, takes in shared():
        key = name, row.factory.__module__
        if key in seen or "hessian_diagonal_fn" in inspect.signature(theirs).parameters:
            continue  # it reads another function of the loss
        x = value(row, name, takes, column)
        try:
            make(row, **{name: x})
        except ValueError:
            continue
        seen.add(key)
        try:
            with jax.disable_jit(), jax.numpy_dtype_promotion("standard"):
                wanted = two_updates(theirs, name, x, MATRIX)
        except Exception:  # such as the step count of a schedule, which is one here
            continue
        try:
            with jax.disable_jit():
                found = two_updates(row.factory, name, x, MATRIX)
        except Exception as error:
            wrong.append((row.name, name, error))
            continue
        at = np.isfinite(wanted)
        if not np.allclose(found[at], wanted[at], rtol=1e-5, atol=1e-6):
            wrong.append((row.name, name, found, wanted))
    assert not wrong
    assert len(seen) > 50


def ends():
    """Each end that a range holds, of a factory in each file that Optax has, too."""
    seen = set()
    for row in ROWS.values():
        homes = vars(optax) | vars(optax.contrib)
        theirs = homes.get(row.name)
        if theirs is None or row.kind in ("measure", "aggregate", "wrapper"):
            continue
        known = inspect.signature(theirs).parameters
        if "hessian_diagonal_fn" in known:
            continue  # it reads another function of the loss
        ours = inspect.signature(row.factory).parameters
        for name in filter(ours.__contains__, known):
            allowed = row.ranges.get(name) or RANGES.get(name, ANY)
            for end in dict.fromkeys([allowed.least, allowed.most, np.inf]):
                key = name, end, row.factory.__module__
                if end in allowed and allowed is not ANY and name != "betas":
                    if key in seen:
                        continue
                    seen.add(key)
                    yield pytest.param(
                        row, theirs, name, end, id=f"{name}={end}-{row.name}"
                    )


# Ends at which Optax does something else, and the value at which it does what is meant.
INSTEAD = {
    # The rate of a warm-up over no steps is 0 for ever.
    ("warmup_steps", 0): None,
    # It reduces where the value improves, and not where it fails to.
    ("patience", 0): 1,
}


def two_updates(make, name, end, p):
    """Of two steps."""
    needed = inspect.signature(make).parameters.values()
    given = {p.name: ARGUMENTS[p.name] for p in needed if p.default is p.empty}
    given |= {"atol": 0.1} if (name, end) == ("rtol", 0) else {}  # one is needed
    whole = inspect.signature(make).parameters[name].annotation is int
    if whole and end is not None and np.isfinite(end):
        end = int(end)
    tx = stepax.with_extra_args_support(make(**given | {name: end}))
    state, us = tx.init(p), []
    for move in 0.0, 0.1:
        g = jax.tree.map(lambda x, move=move: 8 * move + (1 - 17 * move) * x, p)
        p = jax.tree.map(lambda x, move=move: x - move * x, p)
        u, state = tx.update(g, state, p, **keywords(g))
        us += jax.tree.leaves(u)
    return np.concatenate([np.ravel(x) for x in us])


P = {"w": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.float32(0.5)}
MATRIX = {"w": P["w"]}


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("row", "theirs", "name", "end"), list(ends()))
def test_at_the_ends_of_a_range_the_numbers_are_those_of_optax(row, theirs, name, end):
    no_jit = name != "ns_steps"  # which fuses no products, but runs no empty loops
    with jax.numpy_dtype_promotion("standard"):
        meant = INSTEAD.get((name, end), end)
        for p in P, MATRIX:  # some of Optax's take no scalars
            try:
                with jax.disable_jit(no_jit):
                    wanted = two_updates(theirs, name, meant, p)
                break
            except (ValueError, IndexError, ZeroDivisionError):
                wanted = np.full(8, np.nan)
    with jax.disable_jit(no_jit):
        found = two_updates(row.factory, name, end, p)
    assert np.isfinite(found).all() or not np.isfinite(wanted).all()
    # Optax divides 0 by 0 at some ends, where ours may stay where it is.
    at = np.isfinite(wanted)
    if (name, end) == ("b2", 1):
        # Nothing enters such a mean.  Optax divides what is in it from the start, as
        # `eps_root` is, by 1 - b2^t = 0, and then by that infinity; ours leaves it.
        at &= wanted != 0
    np.testing.assert_allclose(found[at], wanted[at], rtol=1e-5, atol=1e-6)


def test_adam_with_a_second_mean_that_nothing_enters_is_descent():
    tx = stepax.adam(0.1, b1=0.0, b2=1.0, eps=1.0)
    u, _ = tx.update(P, tx.init(P), P)
    v, _ = stepax.sgd(0.1).update(P, stepax.sgd(0.1).init(P), P)
    jax.tree.map(np.testing.assert_array_equal, u, v)


@pytest.mark.parametrize(
    "make",
    [
        lambda: stepax.adam(1e-3, b1=0.0, b2=1.0),
        lambda: stepax.adam(1e-3, b1=-0.5),
        lambda: stepax.scale_by_factored_rms(decay_rate=-0.8),
        lambda: stepax.sgd(1, momentum=-0.3),
        lambda: stepax.clip_by_global_norm(float("inf")),
        lambda: stepax.polyak_sgd(max_learning_rate=float("inf"), f_min=-float("inf")),
        lambda: stepax.add_noise(0.1, -0.5, key=0),
        lambda: stepax.scale(-1.0),
        lambda: stepax.scale(1j),
        lambda: stepax.scale_by_learning_rate(-0.1),
        lambda: stepax.add_decayed_weights(-0.1),
    ],
)
def test_what_optax_takes_with_a_meaning_is_taken(make):
    assert make().call is not None


def test_a_share_is_rounded_once_to_its_dtype(x64):
    wide = {jnp.float64: np.float64, jnp.complex128: np.float64}
    for dtype in (*wide, jnp.float32, jnp.complex64, jnp.bfloat16, jnp.float16):
        kind = wide.get(dtype, np.float32)
        found = share(1000.0, 3.0, dtype)
        assert found.dtype == jnp.finfo(dtype).dtype
        assert found == (kind(1000) / kind(3)).astype(found.dtype)

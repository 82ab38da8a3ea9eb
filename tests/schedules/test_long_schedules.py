"""Schedules of long runs: plateaus, roots, restarts; fractions of a total; pictures."""

import inspect
import itertools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import SCHEDULES

import stepax
from stepax import schedules


# By name: the arguments, and the same schedule in NumPy.
WSD, ROOT, CYCLES = (
    f"warmup_{kind}_schedule"
    for kind in ("stable_decay", "inverse_sqrt", "cosine_restarts")
)
LEFT: dict[str, Any] = {
    "linear": lambda s: 1 - s,
    "sqrt": lambda s: 1 - np.sqrt(s),
    "cosine": lambda s: (1 + np.cos(np.pi * s)) / 2,
}


def stable(p, w, s, d, i=0.0, e=0.0, shape="linear"):
    def at(t):
        if t < w:
            return i + (p - i) * t / w
        if t >= w + s + d:
            return e
        return e + (p - e) * LEFT[shape](max(t - w - s, 0) / max(d, 1))

    return at


def root(p, w, i=0.0, timescale=None):
    k = timescale or w or 1
    return lambda t: i + (p - i) * t / w if t < w else p * np.sqrt(k / (k + t - w))


def restarts(p, n, w=0, i=0.0, e=0.0, factor=1.0, cycles=None):
    def at(t):
        k, s = divmod(t, n)
        peak, start = p * factor**k, e if k else i
        if cycles is not None and k >= cycles:
            return e
        wave = (1 + np.cos(np.pi * (s - w) / max(n - w, 1))) / 2
        return start + (peak - start) * s / w if s < w else e + (peak - e) * wave

    return at


REFERENCES = {WSD: stable, ROOT: root, CYCLES: restarts}
CASES: list = [
    (WSD, (0.7, 4, 3, 5), {}),
    *((WSD, (0.7, 4, 3, 5, 0.1, 0.05), {"shape": x}) for x in LEFT),
    *((WSD, (0.7, w, s, d), {}) for w, s, d in itertools.product((0, 3), repeat=3)),
    (ROOT, (0.7, 5), {}),
    (ROOT, (0.7, 5, 0.7), {"timescale": 9}),
    (ROOT, (0.7, 0), {}),
    (CYCLES, (0.7, 6, 2), {}),
    (CYCLES, (0.7, 6, 2, 0.1, 0.05), {"factor": 0.5, "cycles": 3}),
    (CYCLES, (0.7, 4), {"factor": 1.5}),
    (CYCLES, (0.7, 4, 4), {"cycles": 1}),
    (CYCLES, (0.7, 1, 0), {}),
]
each_case = pytest.mark.parametrize(("name", "args", "more"), CASES, ids=str)
COUNTS = np.arange(24)


def make(name, args, more) -> Any:
    return getattr(schedules, name)(*args, **more)


@pytest.mark.few(3)
@each_case
def test_values_are_those_of_the_formula_in_float64(x64, name, args, more):
    wanted = [REFERENCES[name](*args, **more)(t) for t in COUNTS]
    schedule = make(name, args, more)
    found = jax.jit(schedule)(jnp.asarray(COUNTS))
    assert found.dtype == jnp.float64
    # A value is at most a dozen roundings of numbers below 1.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-15)


@pytest.mark.slow
@each_case
def test_every_kind_of_count_gives_the_same_float32(name, args, more):
    schedule = make(name, args, more)
    wanted = np.asarray(jax.jit(schedule)(jnp.asarray(COUNTS)))
    assert wanted.dtype == np.float32 and np.isfinite(wanted).all()
    by_one = [schedule(kind(t)) for t, kind in zip(COUNTS, itertools.cycle(KINDS))]
    for found in (by_one, jax.vmap(schedule)(COUNTS), schedule(COUNTS.reshape(4, 6))):
        np.testing.assert_allclose(np.ravel(found), wanted, rtol=1e-6, atol=1e-7)
    assert schedule(-3) == schedule(0)
    assert not np.isnan(float(schedule(2**31 - 1)))  # endless growth is infinite


KINDS = [int, np.int32, np.float32, jnp.int32, jnp.float32, np.asarray, jnp.bfloat16]


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "no jit"])
@pytest.mark.parametrize("shape", LEFT)
@pytest.mark.parametrize("peak", [0.7, 0.3, 1e-3])
def test_boundaries_are_exact(peak, shape, wrap):
    for warm, stay, down in [(3, 0, 7), (41, 5, 3), (1, 1, 1), (83, 7, 49)]:
        given = peak, warm, stay, down, 0.1, 0.01
        schedule = wrap(schedules.warmup_stable_decay_schedule(*given, shape=shape))
        end = warm + stay + down
        at = [0, warm, warm + stay, end, 2**31 - 1]
        wanted = np.array([0.1, peak, peak, 0.01, 0.01], np.float32)
        np.testing.assert_array_equal([schedule(jnp.int32(t)) for t in at], wanted)
        cyclic = wrap(schedules.warmup_cosine_restarts_schedule(peak, warm + 9, warm))
        assert cyclic(jnp.int32(2 * warm + 9)) == np.float32(peak)
        falling = wrap(schedules.warmup_inverse_sqrt_schedule(peak, warm))
        assert falling(jnp.int32(warm)) == np.float32(peak)


@pytest.mark.slow
def test_numbers_may_be_traced_of_any_dtype_and_length_0():
    def at(peak, steps, count):
        given = peak, *steps
        return jnp.stack(
            [
                schedules.warmup_stable_decay_schedule(*given, shape="sqrt")(count),
                schedules.warmup_inverse_sqrt_schedule(*given[:2])(count),
                schedules.warmup_cosine_restarts_schedule(peak, 4 + steps[0], steps[0])(
                    count
                ),
            ]
        )

    lengths = jnp.array([[3, 4, 5], [0, 0, 2], [0, 0, 0], [2, 0, 3]])
    rows = jax.jit(jax.vmap(lambda s: at(jnp.bfloat16(0.5), s, COUNTS)))(lengths)
    for found, steps in zip(rows, lengths.tolist(), strict=True):
        np.testing.assert_allclose(found, at(0.5, steps, COUNTS), rtol=1e-6, atol=1e-7)


@pytest.mark.few(5)
@each_case
def test_derivatives_by_all_numbers_are_finite(name, args, more):
    more = {k: x for k, x in more.items() if k in ("shape", "cycles")}
    slopes = jax.jit(jax.jacfwd(lambda args: make(name, args, more)(COUNTS)))
    for slope in slopes([float(x) for x in args]):
        assert np.isfinite(slope).all()


FRACTIONS = [
    ((0.1, 0.7, 0.2), 1000, (100, 800, 1000)),
    ((0.5, 0.25, 0.25), 10, (5, 8, 10)),
    ((1 / 3, 1 / 3, 1 / 3), 100, (33, 67, 100)),
    ((5, None, 0.2), 50, (5, 40, 50)),
    ((0.01, None, 0.2), 12_345, (123, 9876, 12_345)),
    ((0.29, 0, 0.71), 100, (29, 29, 100)),
    ((1, 2.0, np.int64(3)), None, (1, 3, 6)),
    ((np.float32(0.25), 1, jnp.float32(0.5)), 8, (2, 3, 7)),
    ((0.25, 0.25, 0.0), 2**33, (2**31, 2**32, 2**32)),
]


@pytest.mark.parametrize(("lengths", "total", "wanted"), FRACTIONS, ids=str)
def test_fractions_are_rounded_where_a_phase_ends(lengths, total, wanted):
    first, second, last = wanted
    found = schedules.warmup_stable_decay_schedule(0.7, *lengths, total_steps=total)
    plain = first, second - first, last - second
    same = schedules.warmup_stable_decay_schedule(0.7, *plain)
    for t in {0, 1, first - 1, first, second, second + 1, last - 1, last}:
        assert found(float(t)) == same(float(t))


def test_a_total_may_be_traced():
    at = lambda total: schedules.warmup_stable_decay_schedule(
        1.0, 0.25, None, 0.5, total_steps=total
    )(COUNTS)
    np.testing.assert_array_equal(jax.jit(at)(16), at(16))
    root = lambda total: schedules.warmup_inverse_sqrt_schedule(
        1.0, 0.25, total_steps=total
    )(COUNTS)
    np.testing.assert_allclose(jax.jit(root)(16), root(16), rtol=1e-6)


def curves(warm, total: int | None = 16):
    """The values of each schedule for a length of its warm-up, by row."""
    more: Any = {"total_steps": total}
    long = schedules.warmup_stable_decay_schedule(0.7, warm, 2, 3, **more)
    root = schedules.warmup_inverse_sqrt_schedule(0.7, warm, **more)
    cyclic = schedules.warmup_cosine_restarts_schedule(0.7, 9, warm, cycles=2, **more)
    return jnp.stack([f(COUNTS) for f in (long, root, cyclic)])


def injected(x):
    found = []

    def factory(warm):
        found.append(curves(warm))
        return stepax.identity()

    stepax.inject_hyperparams(factory)(x).init(jnp.ones(2))
    return found[-1]


WAYS: dict[str, Any] = {
    "jit": jax.jit(curves),
    "vmap": lambda x: jax.vmap(curves)(jnp.reshape(x, 1))[0],
    "half": lambda x: jax.jit(curves)(jnp.bfloat16(x)),
    "array": lambda x: curves(jnp.asarray(x)),
    "injected": injected,
    "injected, jit": jax.jit(injected),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_a_length_means_the_same_however_it_is_given(way):
    for x in (0, 0.125, 0.25, 0.5, 1, 3, 4.0):
        given = float(x) if way == "injected, jit" else x
        wanted = curves(x)
        np.testing.assert_allclose(WAYS[way](given), wanted, 2e-6, 1e-7, err_msg=f"{x}")


GIVEN = {
    "decay_rate": 0.9, "decay_steps": 8, "end_value": 0.05, "init_value": 0.1,
    "peak_value": 0.7, "power": 2.0, "stable_steps": 2, "timescale": 4,
    "total_steps": 16, "transition_begin": 2, "transition_steps": 10, "value": 0.3,
    "warmup_steps": 3, "cycle_steps": 6,
}  # fmt: skip


def is_given(name):
    """Not those of sequences, nor of one width, which has to be known."""
    known = inspect.signature(SCHEDULES[name]).parameters.items()
    return all(k in GIVEN or p.default is not p.empty for k, p in known)


TRACED = [name for name in SCHEDULES if is_given(name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_each_number_of_each_schedule_means_the_same_when_traced(name):
    assert len(TRACED) > 10
    factory, tried = SCHEDULES[name], 0
    known = inspect.signature(factory).parameters
    given = {k: GIVEN[k] for k in known if k in GIVEN}
    numbers = {k for k, p in known.items() if type(p.default) in (int, float)}
    for k in numbers | given.keys():
        at = lambda x: factory(**given | {k: x})(COUNTS)  # noqa: B023
        for kind in (int, float):
            values = [x for x in (0, 1, 3, 0.25, 4) if is_meant(at, kind(x))]
            for x in {kind(x) for x in values}:
                # `k` is that of this turn of the loop.
                found, wanted = jax.jit(at)(x), at(x)
                says = f"{k} {x}"
                np.testing.assert_allclose(found, wanted, 1e-5, 1e-6, err_msg=says)
                tried += 1
    assert tried > 2


def is_meant(at, x):
    try:
        return at(x) is not None
    except (TypeError, ValueError):
        return False


def test_a_traced_fraction_without_a_total_is_not_steps():
    rows = jax.jit(lambda x: curves(x, None))(0.5)
    assert np.isnan(rows[:, 1:18]).all()  # of two cycles in 18 steps
    np.testing.assert_allclose(jax.jit(lambda x: curves(x, None))(3.0), curves(3, None))
    with pytest.raises(ValueError, match="0.5, a fraction of `total_steps`, which"):
        curves(jnp.float32(0.5), None)


WRONG: list = [
    (WSD, (1.0, -1, 2, 3), {}, "`warmup_steps` must not be negative, but is -1"),
    (WSD, (1.0, 1, -2, 3), {}, "`stable_steps` must not be negative, but is -2"),
    (WSD, (1.0, 1, 2, -0.5), {"total_steps": 9}, "`decay_steps` must not be nega"),
    (WSD, (1.0, 1.0, 2, 3), {"total_steps": 9}, "1 is one step"),
    (WSD, (1.0, 2, 3, 1.0), {}, "`decay_steps` is 1.0, expected a whole number"),
    (WSD, (1.0, 2.5, 3, 1), {}, "`warmup_steps` is 2.5, expected a whole number"),
    (WSD, (1.0, 0.5, 3, 1), {}, "0.5, a fraction of `total_steps`, which is not"),
    (WSD, (1.0, 2, 3, 5), {"total_steps": 9}, "take 10 steps, but `total_steps` is 9"),
    (WSD, (1.0, 9, None, 5), {"total_steps": 9}, "take 14 steps, but `total_steps`"),
    (WSD, (1.0, 1, 2, 3), {"total_steps": 9.5}, "a whole number of steps, but is 9.5"),
    (WSD, (1.0, 1, 2, 3), {"total_steps": 0}, "`total_steps` must be positive"),
    (WSD, (1.0, 1, 2, float("nan")), {}, "`decay_steps` is nan"),
    (WSD, (1.0, 1, 2, 3), {"shape": "spline"}, "'linear', 'sqrt', 'cosine', not 'spl"),
    (WSD, (1.0, 1, None, 3), {}, "`stable_steps` must be a number, but is None"),
    (WSD, (1.0, 1, "2", 3), {}, "`stable_steps` must be a number, but is '2'"),
    (ROOT, (1.0, -1), {}, "`warmup_steps` must not be negative"),
    (ROOT, (1.0, 1), {"timescale": 0}, "`timescale` must be positive"),
    (CYCLES, (1.0, 0), {}, "`cycle_steps` must be positive, but is 0"),
    (CYCLES, (1.0, 3, 4), {}, "`cycle_steps - warmup_steps` must not be negative"),
    (CYCLES, (1.0, 3), {"factor": 0.0}, "`factor` must be positive"),
    (CYCLES, (1.0, 3), {"cycles": 0}, "`cycles` must be positive"),
    (CYCLES, (1.0, 0.5), {}, "`cycle_steps` is 0.5, a fraction of `total_steps`"),
]


@pytest.mark.parametrize(("name", "args", "more", "message"), WRONG, ids=str)
def test_what_cannot_be_meant_is_an_error(name, args, more, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        make(name, args, more)
    assert message in str(caught.value)


# --- what shows them -----------------------------------------------------------------


@pytest.mark.few(1)
@each_case
def test_descriptions_print_the_whole_schedule(name, args, more):
    schedule = make(name, args, more)
    for tx in stepax.adamw(schedule), stepax.inject_hyperparams(stepax.sgd)(schedule):
        assert repr(schedule) in str(stepax.describe(tx, {"w": jnp.ones(2)}))


BRANCHING = lambda t: 0.1 if t < 3 else 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    [
        schedules.warmup_stable_decay_schedule(0.7, 4, 3, 5),
        0.1,
        BRANCHING,
        {
            "one": schedules.constant_schedule(0.3),
            "two": lambda t: jnp.sqrt(t),
            "3": 0.5,
        },
    ],
    ids=["schedule", "number", "branches", "several"],
)
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_written(schedule, suffix, tmp_path):
    file = tmp_path / f"rates.{suffix}"
    schedules.plot(schedule, 20_000 if suffix == "png" else 20, file)
    start = b"\x89PNG" if suffix == "png" else b"<?xml"
    assert file.read_bytes().startswith(start)


def test_a_picture_shows_each_curve_under_its_name(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn, draw = {}, Axes.plot

    def keep(axes, x, y, label):
        drawn[label] = x, y
        return draw(axes, x, y, label=label)

    monkeypatch.setattr(Axes, "plot", keep)
    schedules.plot({"a": BRANCHING, "b": 0.5}, 4, tmp_path / "x.svg")
    np.testing.assert_array_equal(drawn["a"][0], range(5))
    np.testing.assert_allclose(drawn["a"][1], [0.1, 0.1, 0.1, 0.2, 0.2])
    np.testing.assert_array_equal(drawn["b"][1], [0.5] * 5)


@pytest.mark.parametrize(
    ("schedule", "steps", "message"),
    [
        ("cosine", 3, "`schedule` is a `str`, expected a function of the step count"),
        ({"a": [1, 2]}, 3, "`schedule['a']` is a list of 2, expected a function"),
        ({}, 3, "`schedule` is an empty mapping"),
        (0.1, 0, "`steps` must be positive, but is 0"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(schedule, steps, message, tmp_path):
    with pytest.raises((TypeError, ValueError)) as caught:
        schedules.plot(schedule, steps, tmp_path / "x.png")
    assert message in str(caught.value)


def test_without_matplotlib_an_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[plot\]"'):
        schedules.plot(0.1, 3, tmp_path / "x.png")


def test_a_rate_that_was_a_number_gets_a_count_of_its_own(tmp_path):
    params = {"w": jnp.ones(2)}
    before = stepax.adamw(1e-3)
    stepax.checkpoint.save(tmp_path, 5, params, before.init(params))
    after = stepax.adamw(schedules.warmup_stable_decay_schedule(1e-3, 4, 3, 5))
    with pytest.raises(ValueError, match="ScaleByScheduleState.count"):
        stepax.checkpoint.restore(tmp_path, after, params)
    found = stepax.checkpoint.restore(tmp_path, after, params, missing="fresh")
    state = stepax.tree.set(found.state, **{"2/count": 4})
    updates, _ = after.update(params, state, params)
    assert float(updates["w"][0]) == pytest.approx(-1e-3, rel=1e-3)


def test_a_cosine_may_take_more_steps_than_integers_count():
    last = jnp.int32(2**31 - 1)
    assert jnp.asarray(schedules.cosine_decay_schedule(0.5, 10**12)(last)) > 0.499


@pytest.mark.few(1)
@pytest.mark.parametrize("name", TRACED)
def test_unsigned_and_narrow_counts_do_not_wrap_around(name):
    """Before a boundary the steps since it are negative, and it may be far away."""
    factory = SCHEDULES[name]
    known = inspect.signature(factory).parameters
    given = {k: GIVEN[k] for k in known if k in GIVEN}
    if "transition_begin" in known:
        given["transition_begin"] = 5
    schedules = [factory(**given)]
    schedules.append(
        stepax.join_schedules([stepax.constant_schedule(0.2), *schedules], [7])
    )
    schedules.append(stepax.join_schedules(schedules, [10**6]))
    counts = np.arange(20)
    for schedule in schedules:
        wanted = jax.vmap(schedule)(jnp.asarray(counts, jnp.int32))
        for dtype in ("uint8", "uint16", "uint32", "int8", "int16"):
            found = jax.vmap(schedule)(jnp.asarray(counts, dtype))
            np.testing.assert_array_equal(found, wanted)
            one = schedule(np.dtype(dtype).type(3))
            np.testing.assert_allclose(one, wanted[3], 1e-6)
        last = schedule(jnp.uint32(2**32 - 1))
        np.testing.assert_allclose(last, schedule(jnp.int32(2**31 - 1)), 1e-6)

"""Schedules: their formulas in NumPy, Optax's bits, and ends that it misses."""

import math

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stepax import GradientTransformation, init_empty_state, schedules
from stepax.schedules import inject_hyperparams


FAR = 2**31 - 1
CYCLES = [
    dict(init_value=0.0, peak_value=0.7, warmup_steps=2, decay_steps=9, end_value=0.1),
    dict(init_value=0.1, peak_value=0.3, warmup_steps=0, decay_steps=5, exponent=2.0),
    dict(init_value=0.2, peak_value=0.3, warmup_steps=3, decay_steps=11),
]
SCALES = {9: 0.1, 3: 2.0, 0: 0.5, 17: 0.0}

# A schedule, its arguments, its first value, the step of its end, its value there.
CASES = [
    ("constant_schedule", (0.3,), 0.3, 0, 0.3),
    ("linear_schedule", (0.3, 0.07, 7, 2), 0.3, 9, 0.07),
    ("linear_schedule", (0, 1, 13), 0.0, 13, 1.0),
    ("linear_schedule", (0.3, 0.07, 7, -2), 0.3, 7, 0.07),
    ("linear_schedule", (0.3, 0.07, 0, 2), 0.3, 0, 0.3),
    ("polynomial_schedule", (0.3, 0.07, 2, 11), 0.3, 11, 0.07),
    ("polynomial_schedule", (0.3, 0.0, 0.5, 11, 3), 0.3, 14, 0.0),
    ("polynomial_schedule", (0.3, 0.07, 1.7, 5.5), 0.3, 6, 0.07),
    ("polynomial_schedule", (0.3, 0.07, 2, -1), 0.3, 0, 0.3),
    ("exponential_decay", (0.3, 7, 0.8), 0.3, FAR, 0.0),
    ("exponential_decay", (0.3, 3, 0.8, 2, True, 0.05), 0.3, 40, 0.05),
    ("exponential_decay", (0.3, 3, 1.2, 2, False, 0.9), 0.3, 40, 0.9),
    ("exponential_decay", (0.3, 0, 0.8), 0.3, 0, 0.3),
    ("exponential_decay", (0.3, 7, 0, 0, False, 0.1), 0.3, 0, 0.3),
    ("piecewise_constant_schedule", (0.3,), 0.3, 0, 0.3),
    ("piecewise_constant_schedule", (1, {20: 0.1}), 1.0, 20, 0.1),
    ("piecewise_constant_schedule", (0.3, {9: 0.1, 3: 1.7}), 0.3, 9, 0.051),
    ("piecewise_constant_schedule", (0.3, {0: 0.5, 2.5: 0.5}), 0.15, 3, 0.075),
    ("piecewise_interpolate_schedule", ("linear", 0.3), 0.3, 0, 0.3),
    ("piecewise_interpolate_schedule", ("linear", 0.3, {8: 0.1}), 0.3, 8, 0.03),
    ("piecewise_interpolate_schedule", ("cosine", 0.3, {8: 3.0}), 0.3, 8, 0.9),
    ("piecewise_interpolate_schedule", ("cosine", 0.3, SCALES), 0.15, 17, 0.0),
    ("cosine_decay_schedule", (0.3, 9), 0.3, 9, 0.0),
    ("cosine_decay_schedule", (0.3, 9, 0.1, 2.0), 0.3, 9, 0.03),
    ("cosine_decay_schedule", (0.3, 9, 0.1, 0.5), 0.3, 9, 0.03),
    ("cosine_onecycle_schedule", (13, 0.3), 0.012, 13, 1.2e-6),
    ("linear_onecycle_schedule", (13, 0.3), 0.012, 13, 1.2e-6),
    ("linear_onecycle_schedule", (13, 0.3, 0.2, 0.6, 5.0, 7.0), 0.06, 13, 0.3 / 35),
    ("sgdr_schedule", (CYCLES,), 0.0, 25, 0.0),
    ("warmup_constant_schedule", (0.03, 0.3, 7), 0.03, 7, 0.3),
    ("warmup_cosine_decay_schedule", (0.03, 0.3, 7, 20), 0.03, 20, 0.0),
    ("warmup_cosine_decay_schedule", (0.03, 0.3, 7, 20, 0.01, 2.0), 0.03, 20, 0.01),
    ("warmup_cosine_decay_schedule", (0.03, 0.3, 0, 20, 0.01), 0.3, 20, 0.01),
    ("warmup_cosine_decay_schedule", (0.0, 0.0, 7, 20), 0.0, 20, 0.0),
    ("warmup_exponential_decay_schedule", (0.03, 0.3, 7, 3, 0.8), 0.03, FAR, 0.0),
    ("warmup_exponential_decay_schedule", (0, 0.3, 0, 3, 0.8, 2, True), 0.3, FAR, 0.0),
]
each_case = pytest.mark.parametrize(
    ("name", "args"), [pytest.param(c[0], c[1], id=f"{c[0]}{c[1]}") for c in CASES]
)


def make(name, args, module=schedules):
    return getattr(module, name)(*args)


def f32(values):
    return np.asarray(values, np.float32)


def close(actual, wanted, scale=0.0):
    """Equal up to a dozen roundings, as a value is at most a dozen operations.

    Where large terms cancel, the errors are relative to their size, `scale`.
    """
    eps = np.finfo(np.asarray(actual).dtype).eps
    np.testing.assert_allclose(actual, wanted, rtol=12 * eps, atol=12 * eps * scale)


def every_way(schedule, counts):
    """The values for Python counts, for arrays, compiled, and in a compiled loop."""
    scalars = [jnp.int32(count) for count in counts]
    compiled = jax.jit(schedule)
    step = lambda _, count: (None, schedule(count))
    yield "python", [schedule(count) for count in counts[::3]], counts[::3]
    yield "array", [schedule(count) for count in scalars[::3]], counts[::3]
    yield "compiled", [compiled(count) for count in scalars], counts
    yield "loop", jax.lax.scan(step, None, jnp.array(counts, jnp.int32))[1], counts


def line_end(name, args):
    """The step at which a line arrives, and where."""
    if name == "warmup_constant_schedule":
        return args[2], args[1]
    if name not in ("linear_schedule", "polynomial_schedule"):
        return math.inf, 0.0
    steps, begin = (*args, 0)[2 + (name == "polynomial_schedule") :][:2]
    return (steps + max(begin, 0), args[1]) if steps > 0 else (math.inf, 0.0)


def assert_same_bits(name, args):
    """Ours and Optax's are equal, or Optax has missed the end of a line and we not."""
    counts = [*range(22), 40, 1000, FAR - 5, FAR]
    arrival, end_value = line_end(name, args)
    with jax.numpy_dtype_promotion("standard"):
        optax_values = list(every_way(make(name, args, optax), counts))
    for (way, ours, at), (_, theirs, _) in zip(
        every_way(make(name, args), counts), optax_values, strict=True
    ):
        ours, theirs = f32(ours), f32(theirs)
        arrived = (np.array(at) >= arrival) & (ours == f32(end_value))
        assert (arrived | (ours == theirs)).all(), (way, at, ours, theirs)


@pytest.mark.few(2)
@pytest.mark.usefixtures("optimized")
@each_case
def test_values_are_those_of_optax_bit_for_bit(name, args):
    assert_same_bits(name, args)


@pytest.mark.slow
@each_case
def test_values_are_those_of_optax_for_other_numbers(name, args):
    rng = np.random.default_rng(0)
    other = lambda x: x * rng.uniform(0.6, 1.4) if isinstance(x, float) else x
    assert_same_bits(name, jax.tree.map(other, args))


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "args", "first", "end", "last"), CASES)
def test_value_at_0_at_the_end_and_far_beyond(name, args, first, end, last):
    for schedule in (make(name, args), jax.jit(make(name, args))):
        close(f32(schedule(0)), first)
        close(f32(schedule(end)), last)
        close(f32(schedule(FAR)), last)


def test_formulas_of_the_docstrings_hold_in_float64(x64):
    t, s = np.arange(30.0), schedules
    i, p, e = 0.3, 0.7, 0.05
    done = lambda begin, steps: np.clip((t - begin) / steps, 0, 1)
    line = lambda a, b, *phase: a + (b - a) * done(*phase)
    cosine = lambda *phase: (1 + np.cos(np.pi * done(*phase))) / 2
    wave = lambda a, b, *phase: b + (a - b) * cosine(*phase)
    rate = lambda begin, steps: 0.8 ** np.maximum((t - begin) / steps, 0)
    stairs = 0.8 ** np.maximum((t - 3) // 4, 0)
    after = lambda step, later, sooner: np.where(t < step, sooner, later)
    return_ = after(6, line(p, p / 10, 6, 10), line(p / 10, p, 0, 6))
    scales = {4: 0.5, 9: 3.0}
    pairs = (
        (s.linear_schedule(i, e, 20, 3), line(i, e, 3, 20)),
        (s.polynomial_schedule(i, e, 2, 20, 3), (i - e) * (1 - done(3, 20)) ** 2 + e),
        (s.exponential_decay(i, 4, 0.8, 3), i * rate(3, 4)),
        (s.exponential_decay(i, 4, 0.8, 3, True, 0.2), np.maximum(i * stairs, 0.2)),
        (
            s.piecewise_constant_schedule(i, scales),
            after(9, 1.5 * i, after(4, 0.5 * i, i)),
        ),
        (
            s.piecewise_interpolate_schedule("linear", i, scales),
            after(4, line(i / 2, 1.5 * i, 4, 5), line(i, i / 2, 0, 4)),
        ),
        (
            s.piecewise_interpolate_schedule("cosine", i, scales),
            after(4, wave(i / 2, 1.5 * i, 4, 5), wave(i, i / 2, 0, 4)),
        ),
        (
            s.cosine_decay_schedule(i, 20, 0.1, 2.0),
            i * (0.9 * cosine(0, 20) ** 2 + 0.1),
        ),
        (
            s.cosine_onecycle_schedule(20, p, 0.3, 10.0, 100.0),
            after(6, wave(p, p / 1e3, 6, 14), wave(p / 10, p, 0, 6)),
        ),
        (
            s.linear_onecycle_schedule(20, p, 0.3, 0.8, 10.0, 100.0),
            after(16, line(p / 10, p / 1e3, 16, 4), return_),
        ),
        (s.warmup_constant_schedule(i, p, 9), line(i, p, 0, 9)),
        (
            s.warmup_cosine_decay_schedule(i, p, 9, 20, e, 2.0),
            after(9, e + (p - e) * cosine(9, 11) ** 2, line(i, p, 0, 9)),
        ),
        (
            s.warmup_exponential_decay_schedule(i, p, 9, 4, 0.8, 2),
            after(9, p * rate(11, 4), line(i, p, 0, 9)),
        ),
    )
    found = jax.jit(lambda count: [schedule(count) for schedule, _ in pairs])
    for values, (_, formula) in zip(found(jnp.arange(30)), pairs, strict=True):
        assert values.dtype == jnp.float64
        close(values, formula, scale=1.0)


@pytest.mark.few(1)
@each_case
@pytest.mark.parametrize("shape", [(12,), (3, 4), (0,)])
def test_an_array_of_counts_gives_an_array_of_values(name, args, shape):
    schedule = make(name, args)
    counts = np.arange(math.prod(shape), dtype=np.int32)
    values = schedule(jnp.asarray(counts.reshape(shape)))
    assert values.shape == shape
    # A division of vectors may be a product with a reciprocal, which rounds once more.
    close(np.ravel(values), f32([schedule(int(count)) for count in counts]), 1.0)


@pytest.mark.few(20)
@each_case
@pytest.mark.parametrize("kind", [jnp.int32, jnp.float32, np.int32, np.float32, int])
def test_any_kind_of_count_gives_the_same_value(name, args, kind):
    schedule = make(name, args)
    close(f32(schedule(kind(5))), f32(schedule(5)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
def test_hyperparameters_of_any_dtype_meet_counts_of_any(x64, dtype):
    value = jnp.asarray(0.25, dtype)
    s = schedules
    for count in (jnp.int32(3), jnp.asarray(3, jnp.int64), jnp.float32(3)):
        for schedule in (
            s.linear_schedule(value, jnp.float32(0.5), jnp.int32(8)),
            s.exponential_decay(value, 3, jnp.float32(0.5), end_value=jnp.float32(0.1)),
            s.piecewise_constant_schedule(value, {2: jnp.float32(0.5)}),
            s.piecewise_interpolate_schedule("cosine", value, {6: jnp.float32(0.5)}),
            s.cosine_decay_schedule(value, jnp.int32(6), jnp.float32(0.1)),
            s.cosine_onecycle_schedule(jnp.int32(9), value, 0.3, jnp.float32(4)),
            s.linear_onecycle_schedule(jnp.int32(9), value, 0.3, 0.8, jnp.float32(4)),
            s.warmup_cosine_decay_schedule(0.1, value, 2, jnp.int32(9), jnp.float32(1)),
            s.join_schedules([s.constant_schedule(value), lambda t: t * 0.5], [1]),
        ):
            assert jnp.issubdtype(jnp.result_type(schedule(count)), jnp.floating)


@pytest.mark.slow
def test_in_float64_values_are_those_of_optax(x64):
    for name, args, *_ in CASES:
        ours, theirs = make(name, args), make(name, args, optax)
        arrival, _ = line_end(name, args)
        with jax.numpy_dtype_promotion("standard"):
            for count in [t for t in (0, 4, 9, 100) if t < arrival]:
                assert ours(count) == theirs(count), (name, args, count)


def test_before_step_0_it_has_its_first_value():
    # 0 may be a boundary like others in steps.
    chosen = [x[:2] for x in CASES if x[0] != "piecewise_constant_schedule"]
    made = {f"{name}{args}": make(name, args) for name, args in chosen}
    run = jax.jit(lambda count: {says: f(count) for says, f in made.items()})
    assert run(-3) == run(0)


@pytest.mark.parametrize("power", [0.5, 1, 2])
def test_a_compiled_line_or_root_arrives(power):
    """Optax arrives at -6e-8, a negative rate, or at its root, a NaN."""
    line = lambda n: schedules.polynomial_schedule(1.0, 0.0, power, n)
    ends = jax.jit(lambda t: [line(n)(t + n) for n in range(1, 60)])
    assert not np.any(ends(jnp.int32(0)))


def test_stairs_change_at_multiples_of_their_width():
    """The quotient of 41 and 41 is just below 1 in some programs; Optax is late."""
    for width in (3, 41, 47, 61, 83):
        schedule = schedules.exponential_decay(1.0, width, 0.5, staircase=True)
        wanted = 0.5 ** (np.arange(10 * width) // width)
        for f in (schedule, jax.jit(schedule)):
            # Of one length, as each is compiled; powers beyond these underflow.
            found = np.asarray(f(jnp.arange(830)))[: 10 * width]
            assert np.array_equal(found, wanted)


ABSENT = [
    ("warmup_constant_schedule", (0.0, 0.3, 0), 0.3, 0.3),
    ("warmup_cosine_decay_schedule", (0.0, 0.3, 0, 10), 0.3, 0.0),
    ("warmup_exponential_decay_schedule", (0.0, 0.3, 0, 0, 0.5), 0.3, 0.3),
    ("piecewise_interpolate_schedule", ("linear", 0.3, {0: 0.5}), 0.15, 0.15),
    ("cosine_onecycle_schedule", (10, 0.3, 0.0), 0.3, 1.2e-6),
    ("cosine_onecycle_schedule", (10, 0.3, 1.0), 0.012, 1.2e-6),
    ("linear_onecycle_schedule", (10, 0.3, 0.5, 0.5), 0.012, 1.2e-6),
    ("linear_onecycle_schedule", (1, 0.3), 0.012, 1.2e-6),
    # As in google-deepmind/optax#1403, where it was not a number.
    ("cosine_onecycle_schedule", (3, 0.036, 0.2, 4e3, 3e3), 0.036, 3e-9),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "args", "first", "last"), ABSENT)
def test_a_phase_without_steps_is_left_out(name, args, first, last):
    schedule = make(name, args)
    close(f32([schedule(0), schedule(10)]), f32([first, last]))
    assert np.isfinite(f32([schedule(count) for count in range(12)])).all()


def test_a_warm_up_over_no_steps_may_be_traced():
    warm_up = lambda steps, t: schedules.warmup_constant_schedule(0.0, 0.3, steps)(t)
    values = jax.vmap(warm_up, (0, None))(jnp.array([0, 1, 2, 4]), 1)
    close(values, f32([0.3, 0.3, 0.15, 0.075]))


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_one_cycle_of_few_steps_is_a_number_between_its_values(kind, steps):
    schedule = getattr(schedules, f"{kind}_onecycle_schedule")(steps, 0.3)
    values = f32([schedule(count) for count in range(steps + 2)])
    assert (values > 1e-6).all() and (values <= 0.3001).all()
    assert values[0] >= f32(0.01)
    close(values[steps:], 1.2e-6)


JOINED = [
    ([3], [0, 1, 2, 100, 101, 102, 103]),
    ([0], [100, 101, 102, 103, 104, 105, 106]),
    ([-2], [102, 103, 104, 105, 106, 107, 108]),
    ([3, 5], [0, 1, 2, 100, 101, 200, 201]),
    ([3, 3], [0, 1, 2, 200, 201, 202, 203]),
    ([5, 3], [0, 1, 2, 200, 201, 202, 203]),
    ([1.5, 4], [0, 1, 100.5, 101.5, 200, 201, 202]),
    (np.array([3, 5]), [0, 1, 2, 100, 101, 200, 201]),
    (jnp.array([3, 5]), [0, 1, 2, 100, 101, 200, 201]),
]


@pytest.mark.parametrize(("boundaries", "wanted"), JOINED)
def test_each_joined_schedule_counts_from_its_boundary(boundaries, wanted):
    parts = [lambda t: t, lambda t: 100 + t, lambda t: 200 + t][: len(boundaries) + 1]
    joined = schedules.join_schedules(parts, boundaries)
    with jax.numpy_dtype_promotion("standard"):
        theirs = optax.join_schedules(parts, boundaries)
        for count, value in enumerate(wanted):
            assert joined(count) == theirs(count) == value
    np.testing.assert_array_equal(joined(jnp.arange(7)), wanted)


def test_joined_schedules_can_be_joined():
    s = schedules
    part = s.join_schedules([s.constant_schedule(1.0), s.constant_schedule(2.0)], [2])
    joined = s.join_schedules([part, part], [4])
    np.testing.assert_array_equal(joined(jnp.arange(8)), [1, 1, 2, 2, 1, 1, 2, 2])
    assert s.join_schedules([part], [])(3) == 2


def numbers(args):
    """The arguments that are numbers, by position."""
    return {i: x for i, x in enumerate(args) if type(x) in (int, float)}


def remake(name, args, others):
    """The schedule with other numbers, which may be traced."""
    return make(name, [others.get(i, x) for i, x in enumerate(args)])


@pytest.mark.few(3)
@each_case
def test_derivatives_by_all_numbers_are_finite(name, args):
    value = lambda floats, count: jnp.asarray(remake(name, args, floats)(count), float)
    slope = jax.jit(jax.grad(value))
    floats = {i: float(x) for i, x in numbers(args).items()}
    for count in (0, 1, 3, 6, 7, 8, 9, 13, 20, 40, 10**6):
        slopes = slope(floats, jnp.int32(count)).values()
        assert np.isfinite(list(slopes)).all(), count


def test_derivatives_are_those_of_the_formula():
    value = lambda x: schedules.polynomial_schedule(*x)(5)
    i, e, p, n = at = 0.3, 0.1, 1.7, 9.0
    r = 1 - 5 / n
    by_power, by_steps = r**p * np.log(r), p * r ** (p - 1) * 5 / n**2
    wanted = [r**p, 1 - r**p, (i - e) * by_power, (i - e) * by_steps]
    close(f32(jax.jit(jax.grad(value))(at)), wanted)


@pytest.mark.few(4)
@each_case
def test_all_numbers_may_be_traced(name, args):
    schedule = make(name, args)
    traced = jax.jit(lambda others, count: remake(name, args, others)(count))
    for count in (0, 3, 6, 7, 9, 14, 40):
        close(f32(traced(numbers(args), count)), f32(schedule(count)), scale=1.0)


def test_a_schedule_can_be_built_from_injected_hyperparameters():
    def scaled_by(init_value, steps, rate):
        schedule = schedules.exponential_decay(init_value, steps, rate, end_value=0.01)
        update = lambda g, s, p=None: (g * schedule(3), s)
        return GradientTransformation(init_empty_state, update)

    tx = inject_hyperparams(scaled_by)(init_value=0.5, steps=4, rate=0.25)
    state = jax.jit(tx.init)(jnp.zeros(()))
    updates, state = jax.jit(tx.update)(jnp.float32(1), state)
    close(updates, 0.5 * 0.25**0.75)


def cells(function):
    """The contents of the closure and of the closures of the functions in it."""
    function = getattr(function, "function", function)  # that a schedule calls
    for cell in function.__closure__ or ():
        yield cell.cell_contents  # ValueError if it is empty
        for leaf in jax.tree.leaves(cell.cell_contents):
            if hasattr(leaf, "__closure__") or hasattr(leaf, "function"):
                yield from cells(leaf)


@pytest.mark.few(1)
@each_case
def test_no_cell_of_a_closure_is_empty(name, args):
    """Equinox turns closures into trees, and Optax's exponential decay is refused."""
    schedule = make(name, args)
    assert len(list(cells(schedule))) > 0
    for f in (schedule, schedule.function):
        assert eqxi.closure_to_pytree(f)(3) == schedule(3)


WRONG = [
    ("join_schedules", ([abs, abs], []), ValueError, "has 0 for 2 schedules"),
    ("join_schedules", ([], []), ValueError, "each schedule but the first takes over"),
    ("join_schedules", ([abs, abs], None), TypeError, "`boundaries` must be a number"),
    ("join_schedules", ([abs, abs], ["3"]), TypeError, "a number, but is '3'"),
    ("join_schedules", ([0.1, abs], [3]), TypeError, "such as `constant_schedule"),
    ("sgdr_schedule", ({"decay_steps": 3},), TypeError, "must be a mapping, not str"),
    ("linear_schedule", (1.0, 0.0, None), TypeError, "`transition_steps` must be a n"),
    ("linear_schedule", (1.0, 0.0, 1, None), TypeError, "`transition_begin` must be"),
    ("exponential_decay", (1.0, 3, -0.5), ValueError, "`decay_rate` must not be nega"),
    ("cosine_decay_schedule", (1.0, 0), ValueError, "`decay_steps` must be positive"),
    ("warmup_constant_schedule", (0.0, 1.0, -1), ValueError, "`warmup_steps` must not"),
    ("warmup_constant_schedule", (0.0, 1.0, None), TypeError, "`warmup_steps` must be"),
    ("warmup_cosine_decay_schedule", (0, 1, 5, 5), ValueError, "warmup_steps` must be"),
    ("warmup_cosine_decay_schedule", (0.0, 1.0, 5, None), TypeError, "`decay_steps` m"),
    ("piecewise_constant_schedule", (1.0, {3: -1}), ValueError, "scales[3]` must not"),
    ("piecewise_constant_schedule", (1.0, {None: 1}), TypeError, "a number, but is No"),
    ("piecewise_constant_schedule", (1.0, [(3, 1)]), TypeError, "a dict of {step: sca"),
    ("piecewise_interpolate_schedule", ("spline", 1.0), ValueError, "not 'spline'"),
    ("cosine_onecycle_schedule", (0, 1.0), ValueError, "`transition_steps` must be po"),
    ("cosine_onecycle_schedule", (9, 1.0, 30), ValueError, "in order from 0 to 1"),
    ("cosine_onecycle_schedule", (9, 1.0, 0.3, 0), ValueError, "`div_factor` must be"),
    ("linear_onecycle_schedule", (9, 1.0, 0.6, 0.5), ValueError, "are [0.6, 0.5]"),
    ("linear_onecycle_schedule", (9, 1, 0.3, 0.8, 2, -1), ValueError, "but is -1"),
]


@pytest.mark.parametrize(("name", "args", "error", "message"), WRONG)
def test_what_cannot_be_meant_is_an_error(name, args, error, message):
    with pytest.raises(error) as caught:
        make(name, args)
    assert message in str(caught.value)

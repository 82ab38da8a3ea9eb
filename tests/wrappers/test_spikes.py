"""`skip_spikes` leaves out what is far above the last steps, unless it keeps coming."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import types
from runs import RUNS, equal

import stepax


rng = np.random.RandomState(0)
QUIET: Any = np.float32(1 + 0.1 * rng.rand(40))


def spiky(**at) -> Any:
    """Norms, with some replaced, as in `_5=100.0`."""
    xs = QUIET.copy()
    for i, x in at.items():
        xs[int(i[1:])] = x
    return xs


def reference(xs: Any, factor, window, warmup, most):
    """Which steps are accepted, from the docstring."""
    recent, in_a_row, out = [], 0, []
    for x in xs.astype(np.float64):
        last = recent[-window:]
        usual = bool(np.isfinite(x).all())
        if usual and len(recent) >= warmup and last:
            mean, std = np.mean(last, 0), np.std(last, 0)
            usual = bool((x <= mean + factor * np.maximum(std, abs(mean) / 1000)).all())
        in_a_row = 0 if usual else in_a_row + 1
        out.append(usual or in_a_row > most)
        if out[-1] and np.isfinite(x).all():
            recent.append(x)
    return out


def accepted(xs, values=None, **options):
    """Which steps `skip_spikes` accepts, for gradients of given norms."""
    tx = stepax.skip_spikes(stepax.scale(1.0), **options)
    p = jnp.zeros(2)

    def step(state, x):
        g = jnp.stack([x[0], 0 * x[0]])
        more = {} if values is None else {"value": x[1]}
        u, state = tx.update(g, state, p, **more)
        return state, ((u != 0).any(), state.skipped)

    xs = jnp.stack([xs, xs if values is None else values], 1)
    run = jax.jit(lambda xs: jax.lax.scan(step, tx.init(p), xs))
    state, (moved, skipped) = run(xs)
    equal(skipped, np.cumsum(~np.asarray(moved)))
    assert types(state) == types(tx.init(p))
    return np.asarray(moved).tolist()


OPTIONS = {"factor": 6.0, "window": 8, "warmup": 8, "max_consecutive": 3}
CASES = {
    "quiet": spiky(),
    "one": spiky(_20=100.0),
    "in the warm-up": spiky(_3=100.0),
    "small": spiky(_20=1e-3),
    "for good": np.concatenate([QUIET[:15], 5 * QUIET[15:]]),
    "twice": spiky(_20=9.0, _21=7.0, _25=1e30),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_steps_are_left_out_by_the_formula(case):
    found = accepted(CASES[case], **OPTIONS)
    assert found == reference(CASES[case], 6.0, 8, 8, 3)
    assert all(found) == (case in ("quiet", "in the warm-up", "small"))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 20])
def test_what_is_not_finite_is_a_spike_and_never_enters_the_mean(bad, at):
    # A NaN is an update that is not 0, too, if it gets through.
    xs = spiky(**{f"_{at + i}": bad for i in range(5)}, _30=100.0)
    found = accepted(xs, **OPTIONS)
    assert [i for i, on in enumerate(found) if not on] == [at, at + 1, at + 2, 30]


@pytest.mark.parametrize(
    "watch, left_out", [("norm", [15]), ("value", [25]), ("both", [15, 25])]
)
def test_the_loss_may_be_watched(watch, left_out):
    found = accepted(spiky(_15=50.0), -spiky(_25=-50.0), watch=watch, **OPTIONS)
    assert [i for i, on in enumerate(found) if not on] == left_out


def test_spikes_that_keep_coming_are_let_through():
    found = accepted(np.concatenate([QUIET[:10], 100 * QUIET[10:]]), **OPTIONS)
    assert found == [True] * 10 + [False] * 3 + [True] * 27


def test_equal_gradients_are_no_spikes():
    assert all(accepted(np.full(30, 0.1, np.float32), **OPTIONS))


@pytest.mark.few(1)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_what_is_left_out_leaves_no_trace(run):
    p = jnp.ones(3)
    gs = [jnp.full(3, x) for x in (1.0, 1.1, 50.0, 1.05)]
    tx = stepax.skip_spikes(stepax.adam(0.1), warmup=2)
    u, state = run(tx, gs, p)
    v, wanted = run(stepax.adam(0.1), [gs[0], gs[1], gs[3]], p)
    np.testing.assert_allclose(u[jnp.array([0, 1, 3])], v, rtol=3e-6)
    equal(state.inner_state[0].count, wanted[0].count)
    equal(u[2], 0.0)
    assert int(state.skipped) == 1 and int(state.accepted) == 3


def test_errors_say_what_is_wrong():
    inner, g, text = stepax.sgd(0.1), jnp.ones(2), "nrom"
    tx = stepax.skip_spikes(inner, watch="value")
    with pytest.raises(TypeError, match="`skip_spikes` reads the keyword `value`"):
        tx.update(g, tx.init(g), g)
    with pytest.raises(ValueError, match="`watch` is 'nrom', expected one of"):
        stepax.skip_spikes(inner, watch=text)  # pyright: ignore[reportArgumentType]
    not_called: Any = stepax.adam
    with pytest.raises(TypeError, match="`inner` of `skip_spikes`"):
        stepax.skip_spikes(not_called)
    for watch in "value", "both":
        tx = stepax.skip_spikes(inner, watch=watch)
        with pytest.raises(TypeError, match="`value` and `loss`.* give one of them"):
            tx.update(g, tx.init(g), g, value=1.0, loss=1.0)
    strict = stepax.strict_keywords(stepax.skip_spikes(inner))
    with pytest.raises(TypeError, match="reads the keyword `value`"):
        strict.update(g, strict.init(g), g, value=1.0)


def moves(tx, **keywords):
    """Whether steps with these keywords are accepted, one for each number."""
    state, g, found = tx.init(jnp.ones(2)), jnp.ones(2), []
    for xs in zip(*keywords.values(), strict=True):
        u, state = tx.update(g, state, g, **dict(zip(keywords, xs, strict=True)))
        found.append(bool(u.any()))
    return found


CALM, SPIKE = [1.0, 1.1, 1.0, 1.1], [1.0, 1.1, 50.0, 1.1]
LEFT_OUT = [True, True, False, True]
FORMS: dict[str, Any] = {
    "value": ("value", {"value": SPIKE}),
    "loss": ("value", {"loss": SPIKE}),
    "norm": ("norm", {"grad_norm": SPIKE}),
    "norm of both": ("both", {"value": CALM, "grad_norm": SPIKE}),
    "value of both": ("both", {"value": SPIKE, "grad_norm": CALM}),
    "loss of both": ("both", {"loss": SPIKE, "grad_norm": CALM}),
    "loss, own norm": ("both", {"loss": SPIKE}),
}


@pytest.mark.few(10)
@pytest.mark.parametrize(("watch", "keywords"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("kind", [float, np.float64, jnp.float32, jnp.bfloat16])
def test_what_is_watched_may_be_given(watch, keywords, kind):
    tx = stepax.skip_spikes(stepax.scale(1.0), watch=watch, warmup=2)
    keywords = {k: list(map(kind, xs)) for k, xs in keywords.items()}
    assert moves(tx, **keywords) == LEFT_OUT


def test_what_is_not_watched_does_not_count():
    tx = stepax.skip_spikes(stepax.scale(1.0), warmup=2)
    assert moves(tx, value=SPIKE, loss=SPIKE) == [True] * 4
    tx = stepax.skip_spikes(stepax.scale(1.0), watch="value", warmup=2)
    assert moves(tx, value=CALM, grad_norm=SPIKE) == [True] * 4


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["value", "loss", "grad_norm"])
def test_what_is_watched_is_handed_on_under_its_name(name):
    seen = []

    def update(updates, state, params=None, **extra_args):
        seen.append(extra_args)
        return updates, state

    inner = stepax.GradientTransformationExtraArgs(lambda params: (), update)
    for watch in {"grad_norm": ("norm", "both")}.get(name, ("value", "both")):
        tx = stepax.skip_spikes(inner, watch=watch)  # pyright: ignore[reportArgumentType]
        more = {name: 2.0} | (
            {"loss": 3.0} if (watch, name) == ("both", "grad_norm") else {}
        )
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)), **more)
        assert seen.pop() == more


@pytest.mark.parametrize("name", ["value", "loss", "grad_norm"])
def test_what_is_watched_is_a_real_scalar(name):
    watch: Any = "norm" if name == "grad_norm" else "value"
    tx, g = stepax.skip_spikes(stepax.scale(1.0), watch=watch), jnp.ones(2)
    for bad in jnp.ones(2), jnp.ones((1,)), [1.0, 2.0], jnp.complex64(1):
        is_list = isinstance(bad, list)
        error, text = (
            (TypeError, "a number") if is_list else (ValueError, "a real scalar")
        )
        with pytest.raises(error, match=f"`{name}` of `skip_spikes` is .*{text}"):
            tx.update(g, tx.init(g), g, **{name: bad})

"""`averages` keeps an average of the parameters beside any optimizer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import mlp
from runs import close, compare, eager, equal, everyhow, jitted, many, parameters

import stepax


DECAYS: dict[str, Any] = {
    "exponential": 0.9,
    "uniform": None,
    "schedule": lambda t: jnp.minimum(0.9, (1 + t) / (10 + t)),
    "schedule up to 1": lambda t: jnp.where(t < 3, 0.5, 1.0),
}


def train(tx, p, steps=12) -> Any:
    """The parameters after each step, and the states."""

    def step(carry, i):
        p, state = carry
        g = jax.tree.map(lambda x: x * jnp.sin(i).astype(x.dtype), p)
        u, state = tx.update(g, state, p)
        p = stepax.apply_updates(p, u)
        return (p, state), (p, state)

    steps = jnp.arange(1.0, steps + 1)
    return jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), steps)[1])(p)


def weight(decay: Any, debias, t):
    """The weight of the t-th that enters, from the docstring."""
    if decay is None:
        return 1 / t
    d: Any = decay(t - 1) if callable(decay) else decay
    d = float(d)
    if not debias:
        return 1 - d
    return 1 / t if d == 1 else (1 - d) / (1 - d**t)


@pytest.mark.few(1)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("debias, start, every", [(1, 0, 1), (0, 0, 1), (1, 3, 2)])
def test_the_average_is_that_of_the_formula(decay, debias, start, every):
    decay, p = DECAYS[decay], jnp.array([1.0, -2.0, 0.5])
    tx = stepax.averages(
        stepax.sgd(0.3), decay, debias=bool(debias), start=start, every=every
    )
    ps, states = train(tx, p)
    wanted = np.asarray(p, np.float64)
    for n, x in enumerate(np.asarray(ps, np.float64), 1):
        t, left = divmod(n - start, every)
        w = 1 if n <= start else 0 if left else weight(decay, debias, t)
        wanted = wanted + w * (x - wanted)
        # Twelve means, each rounded to float32, of numbers near 1.
        np.testing.assert_allclose(states.average[n - 1], wanted, rtol=3e-6, atol=1e-6)


def test_a_debiased_average_is_optax_s_mean_of_the_parameters():
    p = jnp.array([1.0, -2.0, 0.5])
    ps, states = train(stepax.averages(stepax.adam(0.1), 0.9), p)
    mean: Any = optax.ema(0.9)
    state = mean.init(p)
    for x, found in zip(ps, states.average, strict=True):
        with jax.numpy_dtype_promotion("standard"):
            wanted, state = mean.update(x, state)
        np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=1e-6)


@pytest.mark.slow
def test_a_uniform_average_is_pytorch_s():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    p = jnp.array([1.0, -2.0, 0.5])
    ps, states = train(stepax.averages(stepax.adam(0.1), None), p)
    model = torch.nn.Linear(3, 1, bias=False)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for x, found in zip(ps, states.average, strict=True):
        model.weight.data = torch.tensor(np.array(x))[None]
        averaged.update_parameters(model)
        (wanted,) = averaged.module.parameters()
        np.testing.assert_allclose(found, wanted.detach()[0], rtol=3e-6, atol=1e-6)


@pytest.mark.few(1)
@everyhow
def test_the_optimizer_is_as_it_was(run):
    p, gs = parameters(), many(3)
    inner = stepax.adamw(1e-2)
    u, state = run(stepax.averages(inner), gs, p)
    v, wanted = run(inner, gs, p)
    compare(close, (u, state.inner_state), (v, wanted))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_parameters_are_averaged_in_single_precision(dtype):
    p = jnp.ones(3, dtype)
    tx = stepax.averages(stepax.sgd(0.25), None)
    ps, states = train(tx, p)
    assert states.average.dtype == jnp.float32
    last = jax.tree.map(lambda x: x[-1], states)
    found = stepax.eval_params(last, p)
    assert found.dtype == dtype
    # What enters is p + u before it is rounded: half an ulp of numbers up to 2.
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(last.average, np.float32(ps).mean(0), atol=eps)


def test_what_has_no_average_is_that_of_the_parameters():
    model, key = mlp(), jax.random.key(0)
    p = {"model": model, "n": jnp.arange(3), "key": key, "none": None, "w": jnp.ones(2)}
    g = jax.tree.map(lambda x: None, p, is_leaf=lambda x: x is key)
    g["w"] = jnp.ones(2)
    tx = stepax.averages(stepax.sgd(0.5), None)
    u, state = tx.update(g, tx.init(p), p)
    new = stepax.apply_updates(p, u)
    found = stepax.eval_params(state, new | {"n": jnp.ones(3, jnp.int32)})
    equal(found["w"], [0.5, 0.5])
    equal(found["n"], [1, 1, 1])
    assert found["key"] is key and found["none"] is None
    assert found["model"].activation is model.activation


def test_the_average_is_found_wherever_it_is():
    p, gs = parameters(), many(4)
    averaged = stepax.averages(stepax.sgd(0.5), None)
    wanted = {k: p[k] - 0.5 * gs[0][k] for k in p}
    for tx, n in [
        (stepax.chain(stepax.clip(1e6), averaged), 1),
        (stepax.apply_if_finite(averaged, 2), 1),
        (stepax.partition({"a": averaged, "b": averaged}, {"w": "a", "b": "b"}), 1),
        (stepax.MultiSteps(averaged, 2), 2),
    ]:
        _, state = eager(tx, gs[:1] * n, p)
        compare(close, stepax.eval_params(state, p), wanted)
    tx = stepax.masked(averaged, {"w": True, "b": False})
    _, state = eager(tx, gs[:1], p)
    compare(close, stepax.eval_params(state, p), {"w": wanted["w"], "b": p["b"]})
    tx = stepax.averages(stepax.averages(stepax.sgd(0.5), 0.5), None)
    _, state = eager(tx, gs, p)
    with pytest.raises(ValueError, match=r"at the root and \.inner_state of Av"):
        stepax.eval_params(state, p)
    inner = stepax.eval_params(state.inner_state, p)
    equal(inner["w"], state.inner_state.average["w"])


def test_it_costs_no_pass_of_its_own():
    p = {str(i): jnp.ones(3) for i in range(50)}
    count = lambda tx: len(jax.make_jaxpr(tx.update)(p, tx.init(p), p).eqns)
    bare = stepax.adamw(1e-2)
    assert count(stepax.averages(bare)) <= count(bare) + 25


def test_errors_say_what_is_wrong():
    p, tx = parameters(), stepax.averages(stepax.sgd(0.1))
    none = stepax.adam(0.1).init(p)
    assert stepax.eval_params(none, p) is p
    with pytest.raises(ValueError, match=r"holds no average, so none named 'slow'"):
        stepax.eval_params(none, p, "slow")
    with pytest.raises(ValueError, match=r"\['w'\], but `average` in the state has"):
        stepax.eval_params(tx.init(p), p | {"w": jnp.ones(2)})
    with pytest.raises(ValueError, match="`average` differ in structure"):
        stepax.eval_params(tx.init(p), {"w": p["w"]})
    with pytest.raises(ValueError, match="`averages` needs a state"):
        tx.update(p, stepax.sgd(0.1).init(p), p)
    with pytest.raises(ValueError, match="`params` is missing"):
        tx.update(p, tx.init(p))
    not_called: Any = stepax.sgd
    with pytest.raises(TypeError, match="`inner` of `averages`"):
        stepax.averages(not_called)


def test_hyperparameters_are_injected():
    tx = stepax.inject_hyperparams(stepax.averages)(stepax.sgd(0.5), 0.9)
    p, gs = parameters(), many(3)
    _, state = jitted(tx, gs, p)
    _, wanted = jitted(stepax.averages(stepax.sgd(0.5), 0.9), gs, p)
    assert set(state.hyperparams) == {"decay"}
    compare(close, state.inner_state, wanted)

"""A short program for each library that ships no tests of its own use of Optax."""

import jax
import jax.numpy as jnp
import optax


X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def test_equinox():
    import equinox as eqx

    model = eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    loss = lambda model: jnp.mean(jax.vmap(model)(X) ** 2)

    @eqx.filter_jit
    def step(model, state):
        value, grads = eqx.filter_value_and_grad(loss)(model)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, state = tx.update(grads, state, params)
        return eqx.apply_updates(model, updates), state, value

    before = loss(model)
    for _ in range(20):
        model, state, _ = step(model, state)
    assert loss(model) < before / 2


def test_optimistix():
    import optimistix as optx

    rate = optax.exponential_decay(0.1, 100, 0.9)
    solver = optx.OptaxMinimiser(optax.adam(rate), rtol=1e-4, atol=0)
    square = lambda y, args: jnp.sum((y - 1.0) ** 2)
    found = optx.minimise(square, solver, jnp.zeros(2), max_steps=2000, throw=False)
    assert jnp.abs(found.value - 1).max() < 0.1


def test_keras():
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    values, fixed = [v.value for v in model.trainable_variables], []
    tx = optax.lion(1e-2)
    state = tx.init(values)
    loss = lambda values: jnp.mean(model.stateless_call(values, fixed, X)[0] ** 2)
    before = loss(values)
    for _ in range(20):
        updates, state = tx.update(jax.grad(loss)(values), state, values)
        values = optax.apply_updates(values, updates)
    assert loss(values) < before


def test_brax():
    """One update of its gradient functions, which take Optax's pair."""
    from brax.training import gradients

    tx, params = optax.adam(1e-2), {"w": jnp.ones((3, 2))}
    loss = lambda params, x: jnp.mean((x @ params["w"]) ** 2)
    update = gradients.gradient_update_fn(loss, tx, None)
    value, params, _ = update(params, X, optimizer_state=tx.init(params))
    assert loss(params, X) < value


def test_numpyro():
    from numpyro import distributions as dist, infer, sample

    def model():
        sample("data", dist.Normal(sample("mean", dist.Normal(0.0, 10.0)), 1.0), obs=3)

    guide = infer.autoguide.AutoNormal(model)
    svi = infer.SVI(model, guide, optax.adam(0.1), infer.Trace_ELBO())
    losses = svi.run(jax.random.key(0), 50, progress_bar=False).losses
    assert losses[-1] < losses[0]


def test_flax():
    from flax import nnx
    from flax.training.train_state import TrainState

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    loss = lambda model: jnp.mean(model(X) ** 2)
    before, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    assert loss(model) < before

    state = TrainState.create(apply_fn=None, params={"x": X}, tx=optax.sgd(0.1))
    moved = state.apply_gradients(grads={"x": X}).params["x"]
    assert jnp.allclose(moved, 0.9 * X)

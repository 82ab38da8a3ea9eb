"""Libraries that drive a transformation take ours, and train as they do with Optax."""

import re
from typing import Any

import cases
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import optimistix
import orbax.checkpoint
import pytest
from brax.training.agents.ppo import losses, networks
from brax.training.agents.ppo.optimizer import adaptive_kl_learning_rate
from flax import linen, nnx, serialization
from flax.training.train_state import TrainState
from numpyro import distributions as dist, infer

import stepax


# Type checkers do not see the fields that Flax gives this class.
PPONetworkParams: Any = losses.PPONetworkParams


# These libraries, Optax among them, need the usual promotion of dtypes and ranks.
@pytest.fixture(autouse=True)
def standard(strict):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


# One step differs by two ulps at most, 2e-7 of its size.  The gradients of up to ten
# steps are taken at parameters that differ so, which multiplies it by some ten.
RTOL, ATOL = 1e-5, 1e-7
inputs = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def assert_close(found, wanted):
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    for x, y in zip(found, wanted, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=RTOL, atol=ATOL)


def wants(library, *keywords):
    """A transformation that raises unless these keywords arrive."""

    def update(updates, state, params=None, **extra_args):
        missing = set(keywords) - set(extra_args)
        if missing:
            raise TypeError(f"the keywords {missing} did not arrive")
        return updates, state

    init = lambda params: library.EmptyState()
    return library.GradientTransformationExtraArgs(init, update)


# --- Flax ----------------------------------------------------------------------------


@pytest.mark.slow
def test_nnx_optimizer_trains_as_with_optax():
    def trained(o):
        tx = o.chain(o.clip_by_global_norm(1.0), o.adam(1e-2), wants(o, "value"))
        model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

        @nnx.jit
        def step(model, optimizer):
            value, grads = nnx.value_and_grad(lambda m: jnp.mean(m(inputs) ** 2))(model)
            optimizer.update(model, grads, value=value)

        for _ in range(3):
            step(model, optimizer)
        return nnx.state(model, nnx.Param), nnx.state(optimizer)

    assert_close(trained(stepax), trained(optax))


def test_flax_train_state_trains_as_with_optax():
    model = linen.Dense(2)
    params = model.init(jax.random.key(0), inputs)
    traces = []

    @jax.jit
    def step(state):
        traces.append(1)
        value = lambda p: jnp.mean(state.apply_fn(p, inputs) ** 2)
        return state.apply_gradients(grads=jax.grad(value)(state.params))

    def trained(tx) -> Any:
        state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
        for _ in range(3):
            state = step(state)
        return state

    found = trained(stepax.adamw(1e-2))
    trained(stepax.adamw(1e-2))
    assert len(traces) == 1  # a fresh transformation is an equal static field
    assert_close(found.params, trained(optax.adamw(1e-2)).params)
    assert isinstance(found.opt_state[0], optax.ScaleByAdamState)


@pytest.mark.slow
def test_a_train_state_is_saved_and_restored():
    """By Flax, with a state of Optax to start from, too."""
    params = linen.Dense(2).init(jax.random.key(0), inputs)

    def made(o):
        tx = o.chain(o.clip(1.0), o.inject_hyperparams(o.adam)(1e-2))
        return TrainState.create(apply_fn=jnp.dot, params=params, tx=tx)

    step = lambda state: state.apply_gradients(grads=params)
    ours, theirs = step(made(stepax)), step(made(optax))
    for saved in ours, theirs:
        again = serialization.from_bytes(made(stepax), serialization.to_bytes(saved))
        assert jax.tree.structure(again) == jax.tree.structure(ours)
        found, wanted = step(again), step(theirs)
        assert_close(found.params, wanted.params)
        assert_close(found.opt_state, wanted.opt_state)


@pytest.mark.slow
@pytest.mark.thinned
@pytest.mark.parametrize("row", cases.rows())
def test_a_printed_nnx_optimizer_says_what_it_steps_with(row):
    """NNX prints the pair as a tuple, whose functions bear the call that made them."""
    tx = cases.make(row)
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    (line,) = re.findall(r" tx=.*", repr(nnx.Optimizer(model, tx, wrt=nnx.Param)))
    # The tests leave vectors to another optimizer where one refuses them.
    if row.name == "lookahead":
        pytest.skip("the tests write a transformation of their own around it")
    name = "partition" if row.matrices_only else row.name
    assert re.search(rf"<function {name}\(.*\)\.update at ", line), line
    assert ".<locals>" not in line and len(line) < 400


INJECTED = stepax.inject_hyperparams(stepax.adamw)


@pytest.mark.parametrize(
    ("tx", "call"),
    [
        (
            stepax.chain(stepax.clip(1.0), stepax.adamw(1e-3)),
            "chain(clip(max_delta=1.0), adamw(learning_rate=0.001))",
        ),
        (INJECTED(1e-3), "inject_hyperparams(adamw)(0.001)"),
        (INJECTED(jnp.float32(1e-3)), "inject_hyperparams(...)"),  # not an array
        (
            stepax.MultiSteps(stepax.sgd(0.1), 2).gradient_transformation(),
            "MultiSteps(opt=sgd(learning_rate=0.1), every_k_schedule=2)"
            ".gradient_transformation()",
        ),
    ],
)
def test_a_printed_nnx_optimizer_names_the_call(tx, call):
    shown = str(nnx.Optimizer(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), tx, wrt=nnx.Param))
    assert f"<function {call}.init at" in shown
    assert f"<function {call}.update at" in shown


def test_an_nnx_state_is_a_tree_of_parameters():
    graph, params = nnx.split(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.Param)

    def trained(o):
        tx, p = (
            o.lion(1e-2, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
            params,
        )
        state = tx.init(p)
        value = lambda p: jnp.mean(nnx.merge(graph, p)(inputs) ** 2)
        for _ in range(3):
            updates, state = tx.update(jax.grad(value)(p), state, p)
            p = o.apply_updates(p, updates)
        return p, state

    assert_close(trained(stepax), trained(optax))
    assert type(trained(stepax)[0]) is nnx.State


# --- Equinox, Optimistix, NumPyro, Orbax ---------------------------------------------


@pytest.mark.slow
def test_equinox_takes_a_transformation_as_an_argument():
    model = eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0))
    traces = []

    @eqx.filter_jit
    def step(model, state, tx):
        traces.append(1)
        grads = eqx.filter_grad(lambda m: jnp.mean(jax.vmap(m)(inputs) ** 2))(model)
        updates, state = tx.update(grads, state)  # no parameters, as in Diffrax
        return eqx.apply_updates(model, updates), state

    def trained(tx):
        trained, state = model, tx.init(eqx.filter(model, eqx.is_array))
        for _ in range(3):
            trained, state = step(trained, state, tx)
        return eqx.filter(trained, eqx.is_array)

    found = trained(stepax.adam(1e-2))
    assert len(traces) == 1
    assert_close(found, trained(optax.adam(1e-2)))


RATES = {
    "number": lambda o: 0.1,
    "cosine": lambda o: o.cosine_decay_schedule(0.1, 300),
    "exponential": lambda o: o.exponential_decay(0.1, 100, 0.9),
    "warm up": lambda o: o.warmup_exponential_decay_schedule(0.0, 0.1, 5, 100, 0.9),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("rate", RATES.values(), ids=RATES)
def test_optimistix_minimises_with_every_schedule(rate):
    """Optax's exponential schedules crash there: it walks the cells of closures."""
    keywords = wants(stepax, "value", "grad", "value_fn")
    tx = stepax.chain(stepax.adam(rate(stepax)), keywords)
    solver = optimistix.OptaxMinimiser(tx, rtol=1e-5, atol=1e-5)
    target = jnp.array([1.0, -2.0])
    square = lambda y, args: jnp.sum((y - target) ** 2)
    found = optimistix.minimise(square, solver, jnp.zeros(2), max_steps=2000)
    # It stops when a step is below 1e-5; Adam's momentum may then still be under way.
    np.testing.assert_allclose(found.value, target, atol=1e-2)


@pytest.mark.slow
def test_numpyro_svi_accepts_a_transformation_and_hands_it_the_loss():
    data = jnp.array([1.0, 2.0, 3.0])

    def model():
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        numpyro.sample("data", dist.Normal(mean, 1.0), obs=data)

    def losses(o):
        tx = o.chain(o.adam(0.1), wants(o, "value"))
        guide = infer.autoguide.AutoNormal(model)
        svi = infer.SVI(model, guide, tx, infer.Trace_ELBO())
        return svi.run(jax.random.key(0), 10, progress_bar=False).losses

    assert_close(losses(stepax), losses(optax))


def test_orbax_saves_by_name_and_restores_what_optax_saved(tmp_path):
    params = {"w": jnp.ones((2, 3))}
    make = lambda o: o.chain(
        o.clip(1.0), o.masked(o.inject_hyperparams(o.adam)(0.1), {"w": True})
    )
    step = lambda tx: tx.update(params, tx.init(params), params)[1]
    ours, theirs = step(make(stepax)), step(make(optax))
    empty = make(stepax).init(params)
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        for name, state in (("ours", ours), ("theirs", theirs)):
            checkpointer.save(tmp_path / name, state)
            checkpointer.wait_until_finished()
            again = checkpointer.restore(tmp_path / name, empty)
            assert jax.tree.structure(again) == jax.tree.structure(ours)
            assert_close(again, state)


# --- Brax ----------------------------------------------------------------------------


def test_brax_changes_an_injected_rate_inside_a_trace():
    params = {"w": jnp.linspace(0.5, 1.0, 4)}

    def trained(o):
        adam = o.inject_hyperparams(o.adam)(learning_rate=0.1)
        tx = o.chain(o.clip_by_global_norm(1.0), adam)

        def step(carry, kl):
            params, state = carry
            state, rate = adaptive_kl_learning_rate(state, kl, desired_kl=0.01)
            updates, state = tx.update(params, state)  # Brax passes no parameters
            return (o.apply_updates(params, updates), state), rate

        kls = jnp.array([0.001, 0.03, 0.03, 0.01])
        carry = params, tx.init(params)
        return jax.jit(lambda c: jax.lax.scan(step, c, kls))(carry)

    (found, rates), (wanted, _) = trained(stepax), trained(optax)
    assert len(set(rates.tolist())) == 3  # down by the clip, down twice, then kept
    assert_close(found, wanted)


@pytest.fixture(scope="module")
def ppo_params():
    made = networks.make_ppo_networks(
        3, 1, policy_hidden_layer_sizes=(4,), value_hidden_layer_sizes=(4, 4)
    )
    policy, value = (
        net.init(jax.random.key(0)) for net in (made.policy_network, made.value_network)
    )
    return PPONetworkParams(policy=policy, value=value)


def learn(tx, params) -> Any:
    """The updates and the state after one step along the parameters."""
    return tx.update(params, tx.init(params))


def parts():
    return {"adam": stepax.adam(1e-3), "freeze": stepax.set_to_zero()}


same_type = PPONetworkParams(policy="adam", value="freeze")
by_module = {"hidden_0": "adam", "hidden_1": "adam"}
LABELS = {
    "a tree of the same type": same_type,
    "a function": lambda params: same_type,
    "names of fields": {"policy": "adam", "value": "freeze"},
    "modules of a field": {"policy": {"params": by_module}, "value": "freeze"},
    "modules at any depth": {"policy": by_module, "value": "freeze"},
    "patterns": {"policy/**": "adam", "**": "freeze"},
    "a pattern with a star": {
        "*/params/*/bias": "freeze",
        "policy": "adam",
        "**": "freeze",
    },
    "a function giving patterns": lambda params: {"value": "freeze", "**": "adam"},
}


@pytest.mark.slow
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("factory", [stepax.multi_transform, stepax.partition])
def test_labels_for_brax_parameters_in_every_spelling(factory, labels, ppo_params):
    tx = factory(parts(), labels)
    updates, state = learn(tx, ppo_params)
    kernels = lambda net: [m["kernel"] for m in net["params"].values()]
    assert all(map(jnp.any, kernels(updates.policy)))
    assert not any(map(jnp.any, jax.tree.leaves(updates.value)))
    assert not jax.tree.leaves(optax.tree_utils.tree_get(state, "mu").value)


@pytest.mark.slow
def test_labels_by_names_of_inner_modules(ppo_params):
    """The labels of the report: modules inside dictionaries inside a named root."""
    tx = stepax.multi_transform(parts(), {"hidden_1": "adam", "**": "freeze"})
    updates, _ = learn(tx, ppo_params)
    for net in (updates.policy, updates.value):
        learned = {name for name, m in net["params"].items() if jnp.any(m["kernel"])}
        assert learned == {"hidden_1"}


@pytest.mark.parametrize(
    "mask", [{"policy": True, "**": False}, {"policy": True, "value": False}]
)
def test_masks_for_brax_parameters_by_name(mask, ppo_params):
    tx = stepax.masked(stepax.adam(1e-3), mask)
    _, state = learn(tx, ppo_params)
    mu = optax.tree_utils.tree_get(state, "mu")
    assert jax.tree.structure(mu.policy) == jax.tree.structure(ppo_params.policy)
    assert not jax.tree.leaves(mu.value)


WRONG = {
    "a pattern for nothing": ({"actor/**": "adam", "**": "freeze"}, "actor"),
    "a leaf without label": ({"policy/**": "adam"}, "value/params/hidden_0/bias"),
    "an unknown label": ({"policy/**": "adam", "**": "frozen"}, "frozen"),
}


@pytest.mark.parametrize(("labels", "named"), WRONG.values(), ids=WRONG)
def test_wrong_labels_for_brax_parameters_are_named(labels, named, ppo_params):
    with pytest.raises(ValueError, match=named):
        stepax.multi_transform(parts(), labels).init(ppo_params)

"""A run of PyTorch goes on in Stepax from the state of its optimizer."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax.checkpoint import from_torch
from stepax.contrib import MuonDimensionNumbers, muon


torch = pytest.importorskip("torch", reason="PyTorch is not installed")

RATE, DECAY, STEPS = 0.05, 0.1, 5


def decayed(tx):
    return stepax.chain(stepax.add_decayed_weights(DECAY), tx)


def of_rmsprop(**options):
    return stepax.rmsprop(RATE, 0.9, 1e-8, eps_in_sqrt=False, **options)


def in_torch_s_order(**options):
    """The momentum before the rate."""
    rms = stepax.scale_by_rms(0.9, 1e-8, eps_in_sqrt=False)
    return stepax.chain(rms, stepax.trace(0.9), stepax.scale_by_learning_rate(RATE))


O = torch.optim
RMS = {"alpha": 0.9, "momentum": 0.9}
FAST = {"betas": (0.8, 0.95)}
NADAM = {"momentum_decay": 0.004}
PAIRS: dict[str, tuple[Any, dict, Any]] = {
    "SGD": (O.SGD, {}, stepax.sgd(RATE)),
    "SGD, momentum": (O.SGD, {"momentum": 0.9}, stepax.sgd(RATE, 0.9)),
    "SGD, Nesterov": (
        O.SGD,
        {"momentum": 0.9, "nesterov": True},
        stepax.sgd(RATE, 0.9, nesterov=True),
    ),
    "SGD, decay": (
        O.SGD,
        {"momentum": 0.9, "weight_decay": DECAY},
        decayed(stepax.sgd(RATE, 0.9)),
    ),
    "Adam": (O.Adam, {}, stepax.adam(RATE)),
    "Adam, decay": (O.Adam, {"weight_decay": DECAY}, decayed(stepax.adam(RATE))),
    "Adam, injected": (O.Adam, {}, stepax.inject_hyperparams(stepax.adam)(RATE)),
    "AdamW": (O.AdamW, {"weight_decay": DECAY}, stepax.adamw(RATE, weight_decay=DECAY)),
    "RMSprop": (O.RMSprop, {"alpha": 0.9}, of_rmsprop()),
    "RMSprop, momentum": (O.RMSprop, RMS, of_rmsprop(momentum=0.9)),
    "RMSprop, momentum first": (O.RMSprop, RMS, in_torch_s_order()),
    "RMSprop, centered": (
        O.RMSprop,
        RMS | {"centered": True, "weight_decay": DECAY},
        decayed(of_rmsprop(momentum=0.9, centered=True)),
    ),
    "Adagrad": (O.Adagrad, {}, stepax.adagrad(RATE, eps=1e-10, eps_in_sqrt=False)),
    # In the first steps rho is a small difference of large numbers, of which float32
    # leaves 1e-5 of the step; PyTorch computes it in float64.
    "RAdam": (O.RAdam, {"lr": 1e-3}, stepax.radam(1e-3)),
    "NAdam": (O.NAdam, {}, stepax.nadam(RATE, momentum_decay=4e-3)),
    "NAdam, decay": (
        O.NAdam,
        {"weight_decay": DECAY, "decoupled_weight_decay": True},
        stepax.nadam(RATE, momentum_decay=4e-3, weight_decay=DECAY),
    ),
    "RAdam, rectified": (O.RAdam, FAST, stepax.radam(RATE, 0.8, 0.95)),
    "RAdam, decay": (
        O.RAdam,
        FAST | {"weight_decay": DECAY},
        decayed(stepax.radam(RATE, 0.8, 0.95)),
    ),
}
PATHS = ["layer/kernel", "layer/bias", "head"]


def start(seed=0):
    random = np.random.RandomState(seed)
    return [random.randn(*shape).astype("float32") for shape in ((4, 3), (3,), (4,))]


def tree(arrays):
    kernel, bias, head = map(jnp.asarray, arrays)
    return {"layer": {"kernel": kernel, "bias": bias}, "head": head}


def run(optimizer, tensors, steps):
    for seed in steps:
        for p, g in zip(tensors, start(10 + seed), strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()


def in_torch(make, **options):
    tensors = [torch.nn.Parameter(torch.tensor(p)) for p in start()]
    optimizer = make(tensors, **({"lr": RATE} | options))
    run(optimizer, tensors, range(STEPS))
    return optimizer, tensors


def arrays(tensors):
    return tree([p.detach().numpy().copy() for p in tensors])


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_the_next_step_is_that_of_pytorch(name):
    make, options, tx = PAIRS[name]
    optimizer, tensors = in_torch(make, **options)
    params, saved = arrays(tensors), optimizer.state_dict()
    missing = "fresh" if "injected" in name else "error"  # its numbers are its own
    state = from_torch(saved, tx, params, names=PATHS, missing=missing)
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(params))
    run(optimizer, tensors, [STEPS])
    updates, _ = tx.update(tree(start(10 + STEPS)), state, params)
    found = stepax.apply_updates(params, updates)
    wanted = arrays(tensors)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)
    if jax.tree.leaves(tx.init(params)):  # whose first state makes another step
        first, _ = tx.update(tree(start(10 + STEPS)), tx.init(params), params)
        least = 0.05 * np.max(np.abs(updates["head"]))
        assert np.max(np.abs(first["head"] - updates["head"])) > least


def test_a_momentum_of_steps_is_that_of_pytorch_times_the_rate():
    test_the_next_step_is_that_of_pytorch("RMSprop, momentum")


MUONS = {
    "Nesterov": ({}, {}),
    "plain": ({"nesterov": False}, {"nesterov": False}),
    "as AdamW": ({"adjust_lr_fn": "match_rms_adamw"}, {"shape_factor": "rms"}),
    "other coefficients": ({"ns_coefficients": (2.0, -1.5, 0.5)},) * 2,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("is_turned", [True, False])
@pytest.mark.parametrize("name", MUONS)
def test_muon_goes_on_as_in_pytorch(name, is_turned):
    """It iterates in bfloat16: five steps of three products, each rounded by 2^-9."""
    theirs, ours = MUONS[name]
    random = np.random.RandomState(0)
    p, *gs = random.randn(STEPS + 2, 6, 4).astype("float32")
    w = torch.nn.Parameter(torch.tensor(p))
    optimizer = torch.optim.Muon([w], lr=RATE, weight_decay=DECAY, **theirs)
    turned = lambda x: jnp.asarray(x.T if is_turned else x)
    before, saved = p, {}
    for g in gs:
        before, saved = w.detach().numpy().copy(), optimizer.state_dict()
        saved = copy.deepcopy(saved)
        w.grad = torch.tensor(g)
        optimizer.step()
    coefficients = ours.get("ns_coefficients", (3.4445, -4.775, 2.0315))
    options = {k: x for k, x in ours.items() if k != "ns_coefficients"}
    # PyTorch's matrices are (outputs, inputs).
    axes = MuonDimensionNumbers(0, 1) if is_turned else MuonDimensionNumbers(1, 0)
    tx = muon(
        RATE,
        coefficients,
        eps=1e-7,
        weight_decay=DECAY,
        bias_correction=False,
        muon_weight_dimension_numbers=axes,
        **options,
    )
    params = {"w": turned(before)}
    at = {"names": ["w"], "transposed": ["w"] if is_turned else [], "step": STEPS}
    state = from_torch(saved, tx, params, **at)
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(params))
    u, _ = tx.update({"w": turned(gs[-1])}, state, params)
    wanted = turned(w.detach().numpy() - before)
    size = np.linalg.norm(wanted)
    assert np.linalg.norm(u["w"] - wanted) < 15 * 2.0**-9 * size
    first, _ = tx.update({"w": turned(gs[-1])}, tx.init(params), params)
    assert np.linalg.norm(first["w"] - wanted) > 0.2 * size


ADAM = stepax.adam(RATE)


def saved(make=O.Adam, **options):
    optimizer, tensors = in_torch(make, **options)
    return optimizer.state_dict(), arrays(tensors)


def named():
    """A linear layer, whose parameters PyTorch knows by name."""
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.named_parameters())
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    params = {"weight": jnp.zeros((2, 3)), "bias": jnp.zeros(2)}
    return optimizer.state_dict(), params, optimizer.state[layer.weight]["exp_avg"]


def test_names_of_pytorch_and_transposed_weights():
    state_dict, params, mean = named()
    mu = from_torch(
        state_dict, ADAM, {"weight": params["weight"], "bias": params["bias"]}
    )[0].mu
    np.testing.assert_array_equal(mu["weight"], mean)
    flax = {"dense": {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}}
    names = {"weight": "dense/kernel", "bias": "dense/bias"}
    how: Any = {"names": names, "transposed": ["**/kernel"]}
    mu = from_torch(state_dict, ADAM, flax, **how)[0].mu
    np.testing.assert_array_equal(mu["dense"]["kernel"], mean.T)
    with pytest.raises(
        ValueError, match=r"mu/dense/kernel` is \(2, 3\), expected \(3, 2\)"
    ):
        from_torch(state_dict, ADAM, flax, names=names)
    with pytest.raises(ValueError, match="`names` leads to `weight`, `bias`, expected"):
        from_torch(state_dict, ADAM, flax)


def test_half_precision_is_taken_over():
    p = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.Adam([p])
    run(optimizer, [p], [])
    p.grad = torch.ones(3, dtype=torch.bfloat16)
    optimizer.step()
    params = jnp.ones(3, jnp.bfloat16)
    state = from_torch(optimizer.state_dict(), ADAM, params)
    assert state[0].mu.dtype == jnp.bfloat16 and state[0].count == 1
    np.testing.assert_allclose(state[0].mu.astype("float32"), 0.1, rtol=4e-3)


def test_what_pytorch_does_otherwise_is_refused():
    state_dict, params = saved(amsgrad=True)
    with pytest.raises(ValueError, match="`amsgrad` of PyTorch.*`layer/kernel`"):
        from_torch(state_dict, ADAM, params, names=PATHS)
    state_dict, _ = saved(O.NAdam)
    with pytest.raises(ValueError, match=r"NAdam has .*`nadam\(.*momentum_decay=0.004"):
        from_torch(state_dict, stepax.nadam(RATE), params, names=PATHS)
    state_dict, _ = saved(O.SGD, momentum=0.9, dampening=0.1)
    with pytest.raises(ValueError, match="`dampening` of PyTorch"):
        from_torch(state_dict, stepax.sgd(RATE, 0.9), params, names=PATHS)


def test_what_does_not_fit_is_said():
    state_dict, params = saved()
    with pytest.raises(ValueError, match="`state_dict` is not that of a PyTorch"):
        from_torch({}, ADAM, params, names=PATHS)
    with pytest.raises(ValueError, match="no names, only an order: pass `names`"):
        from_torch(state_dict, ADAM, params)
    with pytest.raises(ValueError, match="2 paths for 3 parameters"):
        from_torch(state_dict, ADAM, params, names=PATHS[:2])
    for wrong in ["layer/kernel", "other"]:
        with pytest.raises(ValueError, match="`names` leads to .*expected"):
            from_torch(state_dict, ADAM, params, names=[*PATHS[:2], wrong])
    with pytest.raises(ValueError, match="missing: `ScaleByLionState.mu.*extra"):
        from_torch(state_dict, stepax.lion(RATE), params, names=PATHS)


def test_counts_are_one_for_all_parameters():
    state_dict, params = saved()
    state_dict["state"][0]["step"] = torch.tensor(2.0)
    with pytest.raises(ValueError, match="`step` differs.*2.0, 5.0.*one `count`"):
        from_torch(state_dict, ADAM, params, names=PATHS)
    falling = stepax.sgd(stepax.linear_schedule(RATE, 0.0, 9), 0.9)
    state_dict, params = saved(O.SGD, momentum=0.9)
    with pytest.raises(ValueError, match="no `step` for the `count`.*pass `step`"):
        from_torch(state_dict, falling, params, names=PATHS)
    state = from_torch(state_dict, falling, params, names=PATHS, step=7)
    assert state[1].count == 7


def test_frozen_parameters_may_have_no_slots():
    state_dict, params = saved()
    del state_dict["state"][2]
    with pytest.raises(ValueError, match="missing: `ScaleByAdamState.mu/head`"):
        from_torch(state_dict, ADAM, params, names=PATHS)
    with pytest.warns(UserWarning, match="count beside them is old: 0/mu/head, 0/nu/h"):
        state = from_torch(state_dict, ADAM, params, names=PATHS, missing="fresh")
    assert not state[0].mu["head"].any() and state[0].mu["layer"]["bias"].any()

"""An example of each of our own names whose docstring has none, for its page.

A factory is called with the arguments with which the tests call it; functions are in a
table.  They run in `tests/project/test_examples_of_names.py`, with these names known:
`params`, a dict of the matrix `w` and the vector `b`, `gradients` like them, `sharded`
parameters, a transformation `tx` and its `state`, and a function `f` of arrays.
"""

import inspect
from collections.abc import Callable

from stepax._engine.factories.registry import ROWS
from tests.arguments import EXAMPLES as ARGUMENTS

from .names import Name
from .tiers import tier


CALLS = {
    "checkpoint.apply_delta": "new = {}(params, changes)",
    "checkpoint.average": 'mean = {}([("run", 10), ("run", 20)], params)',
    "checkpoint.delta": "changes = {}(params, gradients)",
    "checkpoint.from_optax": "loaded = {}(saved, tx, params)",
    "checkpoint.from_torch": 'state = {}(state_dict, tx, params, names=["b", "w"])',
    "checkpoint.latest_step": 'step = {}("run")',
    "checkpoint.power_average_weights": "w = {}([(10, 0.05), (20, 0.05)], 20, 0.1)",
    "checkpoint.to_safetensors": '{}("model.safetensors", params)',
    "checkpoint.wait": "{}()",
    "contrib.cautious": "tx = {}(stepax.adamw(1e-3))",
    "contrib.diloco": "tx = {}(stepax.adamw(1e-3), stepax.sgd(0.7, 0.9))",
    "contrib.ema_nesterov": "tx = {}(stepax.adamw(1e-3), weight=0.5)",
    "contrib.gauss_newton": "tx = {}(damping=1e-3)",
    "contrib.gpa": "tx = {}(stepax.adamw(1e-3))",
    "contrib.lazy_rows": 'tx = {}(stepax.adamw(1e-3), {"w": True, "**": False})',
    "contrib.row_states": 'tx = {}(stepax.adamw(1e-3), {"w": True, "**": False})',
    "distributed.init_sharded": "state = {}(tx, sharded)",
    "distributed.plan": 'print({}(tx, params, {"data": 8}))',
    "distributed.state_sharding": "shardings = {}(tx, sharded)",
    "fused_scan": "scan = {}(lambda p, x: x @ p, tx)",
    "interop.optax.install": "{}()",
    "interop.optax.installed": "context = {}()",
    "interop.optax.main": '{}(["script.py"])',
    "interop.optax.to_optax": "optax_state = {}(state)",
    "interop.optax.to_stepax": "state = {}(optax_state)",
    "interop.optax.uninstall": "{}()",
    "lbfgsb": "tx = {}(lower=0.0, upper=1.0)",
    "metrics.by_layer": "metric = {}(stepax.metrics.rms())",
    "metrics.cosine_to_last": "metric = {}()",
    "metrics.gradient_noise": "noise = {}(4.0, 1.0, small_size=8, large_size=64)",
    "metrics.lost_updates": "metric = {}()",
    "metrics.noise_scale": "metric = {}(small_size=8, large_size=64)",
    "metrics.rms": 'metric = {}("updates")',
    "metrics.update_ratio": "metric = {}()",
    "observe": 'tx = {}(stepax.adamw(1e-3), {"rms": stepax.metrics.rms()})',
    "proximal": "tx = {}(stepax.solve.prox.l1(0.01), learning_rate=0.1)",
    "qk_clip": 'tx = {}(100.0, {"q": "k"})',
    "rollback": "tx = {}(stepax.adamw(1e-3), every=100)",
    "scale_by_depth": 'tx = {}(0.9, "layers/{}", before="embed")',
    "schedules.plot": '{}(stepax.linear_schedule(0.1, 0.0, 100), 100, "rate.png")',
    "schedules.power_average_decay": "decay = {}(width=0.1)",
    "schedules.warmup_cosine_restarts_schedule": "rate = {}(1e-3, cycle_steps=1000)",
    "schedules.warmup_inverse_sqrt_schedule": "rate = {}(1e-3, warmup_steps=100)",
    "schedules.warmup_stable_decay_schedule": "rate = {}(1e-3, 100, 800, 100)",
    "second_order.fisher_product": "Fv = {}(lambda p: p**2, x, x)",
    "second_order.ggn_product": "Gv = {}(jnp.sin, lambda y: jnp.sum(y**2), x, x)",
    "solve.constraints.equality": "on_sphere = {}(f, 1.0)",
    "solve.constraints.inequality": "in_ball = {}(f, upper=1.0)",
    "solve.fixed_point": "x = {}(jnp.cos, jnp.ones(2)).params",
    "solve.implicit": "decorator = {}(lambda x, a: x**2 - a)",
    "solve.least_squares": "fit = {}(lambda p, t: p[0] * t + p[1] - 1, x, args=(t,))",
    "solve.quadratic_program": "result = {}(jnp.eye(2), jnp.ones(2), bounds=(0, None))",
    "solve.root": "x = {}(lambda x: x**2 - 2, jnp.ones(2)).params",
    "solve.prox.box": "g = {}(0.0, 1.0)",
    "solve.prox.elastic_net": "g = {}(0.1, 0.01)",
    "solve.prox.from_projection": "g = {}(stepax.projections.projection_simplex)",
    "solve.prox.group_l2": "g = {}(0.1)",
    "solve.prox.l1": "result = stepax.minimize(f, x, prox={}(0.1))",
    "solve.prox.l1_ball": "g = {}(radius=1.0)",
    "solve.prox.l2_ball": "g = {}(radius=1.0)",
    "solve.prox.l2_squared": "g = {}(0.1)",
    "solve.prox.non_negative": "g = {}()",
    "solve.prox.nuclear": "g = {}(0.1)",
    "solve.prox.simplex": "g = {}()",
    "solve.prox.total_variation": "g = {}(0.1)",
    "stochastic_rounding": "tx = {}(stepax.adamw(1e-3), key=0)",
    "strict_keywords": "tx = {}(stepax.adamw(1e-3))",
    "sweep": 'result = {}(loss, init, stepax.adam, {"learning_rate": [1e-3, 1e-2]}, 5)',
    "testing.check": "{}(stepax.adam, 1e-3)",
    "transfer.batch": "moved = {}(params, size=512, base_size=128)",
    "transfer.depth": "moved = {}(params, layers=24, base_layers=6)",
    "transfer.horizon": "moved = {}(params, tokens=1e10, base_tokens=1e9)",
    "transfer.mup": "moved = {}(params, base_params)",
    "transfer.power_law": "law = {}({1.0: fit, 2.0: fit, 4.0: fit})",
    "transfer.spectral": "moved = {}(params, base_params)",
}  # fmt: skip


def example(name: Name) -> str:
    """How one of our own functions is called; "" if its docstring has an example."""
    if not is_needed(name):
        return ""
    path = name.path.removeprefix("stepax.")
    return (CALLS.get(path) or made(name.value, name.name)).replace("{}", name.path, 1)


def is_needed(name: Name) -> bool:
    is_function = callable(name.value) and not inspect.isclass(name.value)
    shown = ">>> " in (inspect.getdoc(name.value) or "")
    return is_function and not shown and tier(name) != "frozen"


def made(factory: Callable, name: str) -> str:
    """A factory with arguments of the tests, where it has no default."""
    parameters = inspect.signature(factory).parameters.items()
    kinds = [(k, p) for k, p in parameters if p.default is p.empty]
    given = [k for k, p in kinds if p.kind is not p.VAR_KEYWORD]
    assert name in ROWS and ARGUMENTS.keys() >= set(given), (
        f"`{name}` needs an example in its docstring, or a call in `CALLS` in "
        "website/examples.py"
    )
    return f"tx = {{}}({', '.join(f'{k}={ARGUMENTS[k]!r}' for k in given)})"

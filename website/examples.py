"""An example of each function whose docstring has none, for its page.

A factory is called with the arguments with which the tests call it, a function with
variables named as its arguments, or as a table says.  All run in
`tests/project/test_examples_of_names.py`, which has the variables: `params`, a dict of
the matrix `w` and the vector `b`, `gradients` like them, `sharded` parameters, a
transformation `tx` and its `state`, a function `f` of arrays, and arrays.
"""

import inspect
from collections.abc import Callable
from typing import get_origin

from stepax._engine.factories.registry import ROWS
from tests.arguments import EXAMPLES as ARGUMENTS

from .names import Name


CALLS = {
    "GradientTransformation": "tx = {}(tx.init, tx.update)",
    "GradientTransformationExtraArgs": "tx = {}(tx.init, tx.update)",
    "LookaheadParams": "pair = {}.init_synced(params)",
    "apply_updates": "params = {}(params, updates)",
    "assignment.base_hungarian_algorithm": "rows, columns = {}(costs)",
    "assignment.hungarian_algorithm": "rows, columns = {}(costs)",
    "checkpoint.apply_delta": "new = {}(params, changes)",
    "checkpoint.average": 'mean = {}([("run", 10), ("run", 20)], params)',
    "checkpoint.delta": "changes = {}(params, gradients)",
    "checkpoint.from_optax": "loaded = {}(saved, tx, params)",
    "checkpoint.from_torch": 'state = {}(state_dict, tx, params, names=["b", "w"])',
    "checkpoint.latest_step": 'step = {}("run")',
    "checkpoint.power_average_weights": "w = {}([(10, 0.05), (20, 0.05)], 20, 0.1)",
    "checkpoint.to_safetensors": '{}("model.safetensors", params)',
    "checkpoint.wait": "{}()",
    "contrib.GaLoreDimensionNumbers": "axes = {}(0, 1)",
    "contrib.MuonDimensionNumbers": "axes = {}(0, 1)",
    "contrib.cautious": "tx = {}(stepax.adamw(1e-3))",
    "contrib.differentially_private_aggregate":
        "tx = {}(1.0, noise_multiplier=1.0, key=0)",
    "contrib.diloco": "tx = {}(stepax.adamw(1e-3), stepax.sgd(0.7, 0.9))",
    "contrib.dpsgd": "tx = {}(1e-3, l2_norm_clip=1.0, noise_multiplier=1.0, key=0)",
    "contrib.ema_nesterov": "tx = {}(stepax.adamw(1e-3), weight=0.5)",
    "contrib.gauss_newton": "tx = {}(damping=1e-3)",
    "contrib.gpa": "tx = {}(stepax.adamw(1e-3))",
    "contrib.lazy_rows": 'tx = {}(stepax.adamw(1e-3), {"w": True, "**": False})',
    "contrib.mechanize": "tx = {}(stepax.adamw(1e-3))",
    "contrib.row_states": 'tx = {}(stepax.adamw(1e-3), {"w": True, "**": False})',
    "contrib.sam": "tx = {}(stepax.sgd(0.1), stepax.sgd(0.05))",
    "contrib.schedule_free": "tx = {}(stepax.sgd(0.1), learning_rate=0.1)",
    "contrib.schedule_free_eval_params": "params = {}(schedule_free_state, params)",
    "contrib.split_real_and_imaginary": "tx = {}(stepax.adam(1e-3))",
    "distributed.init_sharded": "state = {}(tx, sharded)",
    "distributed.plan": 'print({}(tx, params, {"data": 8}))',
    "distributed.state_sharding": "shardings = {}(tx, sharded)",
    "experimental.aggregating.accumulate_avg_updates": "tx = {}(4)",
    "experimental.aggregating.add_mean_variance_to_opt": "tx = {}(stepax.adam(1e-3))",
    "experimental.aggregating.average_incrementally_updates": "tx = {}(0, 4)",
    "experimental.aggregating.average_per_element_updates": "tx = {}()",
    "experimental.aggregating.get_batch_size_from_per_elt_updates":
        "n = {}(updates, 0)",
    "experimental.aggregating.get_per_element_mean_and_sum_sq_diff_grads": "tx = {}()",
    "experimental.aggregating.get_unbiased_mean_and_variance_ema":
        "moments = {}(ema_state)",
    "experimental.aggregating.process":
        "tx = {}(stepax.clip(1.0), mean, stepax.adam(1e-3))",
    "experimental.aggregating.track_per_element_mean_and_variance_with_ema":
        "tx = {}()",
    "fused_scan": "scan = {}(lambda p, x: x @ p, tx)",
    "incremental_update": "average = {}(params, average, 0.001)",
    "interop.optax.install": "{}()",
    "interop.optax.installed": "context = {}()",
    "interop.optax.main": '{}(["script.py"])',
    "interop.optax.to_optax": "optax_state = {}(state)",
    "interop.optax.to_stepax": "state = {}(optax_state)",
    "interop.optax.uninstall": "{}()",
    "lbfgsb": "tx = {}(lower=0.0, upper=1.0)",
    "lookahead": "tx = {}(stepax.adam(1e-3), sync_period=5, slow_step_size=0.5)",
    "losses.ctc_loss": "loss = {}(frames, padded, letters, letters_padded)",
    "losses.ctc_loss_with_forward_probs":
        "loss, *rest = {}(frames, padded, letters, letters_padded)",
    "losses.make_fenchel_young_loss": "loss = {}(jax.nn.logsumexp)(scores, targets)",
    "losses.multiclass_generalized_dice_loss": "loss = {}(probabilities, targets)",
    "losses.multiclass_hinge_loss": "loss = {}(scores, classes)",
    "losses.multiclass_perceptron_loss": "loss = {}(scores, classes)",
    "losses.multiclass_sparsemax_loss": "loss = {}(scores, classes)",
    "losses.ntxent": "loss = {}(embeddings, classes)",
    "losses.smooth_labels": "labels = {}(labels, alpha=0.1)",
    "losses.softmax_cross_entropy_with_integer_labels": "loss = {}(logits, classes)",
    "losses.triplet_margin_loss": "loss = {}(anchors, positives, negatives)",
    "matrix_inverse_pth_root": "root = {}(matrix, 4)",
    "metrics.by_layer": "metric = {}(stepax.metrics.rms())",
    "metrics.cosine_to_last": "metric = {}()",
    "metrics.gradient_noise": "noise = {}(4.0, 1.0, small_size=8, large_size=64)",
    "metrics.lost_updates": "metric = {}()",
    "metrics.noise_scale": "metric = {}(small_size=8, large_size=64)",
    "metrics.rms": 'metric = {}("updates")',
    "metrics.update_ratio": "metric = {}()",
    "microbatching.micro_grad": "gradient = {}(loss_of, microbatch_size=1)(params, x)",
    "microbatching.micro_vmap": "y = {}(f, microbatch_size=2)(batch)",
    "microbatching.microbatch": "y = {}(f, argnums=0, microbatch_size=2)(x)",
    "microbatching.reshape_batch_axis": "batches = {}(batch, 2)",
    "multi_normal": "distribution = {}(x, x)",
    "nnls": "x = {}(matrix, b, iters=100)",
    "noisy_sgd": "tx = {}(1e-3, key=0)",
    "observe": 'tx = {}(stepax.adamw(1e-3), {"rms": stepax.metrics.rms()})',
    "periodic_update": "target = {}(params, target, count, 100)",
    "perturbations.Gumbel": "noise = {}().sample(jax.random.key(0), (2,))",
    "perturbations.Normal": "noise = {}().sample(jax.random.key(0), (2,))",
    "perturbations.make_perturbed_fun":
        "y = {}(f, num_samples=10)(jax.random.key(0), x)",
    "power_iteration": "value, vector = {}(matrix)",
    "projections.projection_box": "params = {}(params, 0.0, 1.0)",
    "projections.projection_halfspace": "x = {}(x, x, 1.0)",
    "projections.projection_hyperplane": "x = {}(x, x, 1.0)",
    "projections.projection_l1_sphere": "x = {}(x)",
    "projections.projection_l2_sphere": "x = {}(x)",
    "projections.projection_simplex": "x = {}(x)",
    "projections.projection_vector": "x = {}(x, x)",
    "proximal": "tx = {}(stepax.solve.prox.l1(0.01), learning_rate=0.1)",
    "qk_clip": 'tx = {}(100.0, {"q": "k"})',
    "rollback": "tx = {}(stepax.adamw(1e-3), every=100)",
    "safe_norm": "norm = {}(x, min_norm=1e-6)",
    "safe_root_mean_squares": "rms = {}(x, min_rms=1e-6)",
    "scale_by_depth": 'tx = {}(0.9, "layers/{}", before="embed")',
    "scale_by_schedule": "tx = {}(lambda count: -0.1 / (1 + count))",
    "scale_gradient": "x = {}(x, 0.1)",
    "schedules.constant_schedule": "rate = {}(1e-3)",
    "schedules.cosine_decay_schedule": "rate = {}(1e-3, decay_steps=1000)",
    "schedules.cosine_onecycle_schedule": "rate = {}(1000, peak_value=1e-3)",
    "schedules.exponential_decay":
        "rate = {}(1e-3, transition_steps=100, decay_rate=0.9)",
    "schedules.inject_hyperparams": "tx = {}(stepax.adam)(learning_rate=1e-3)",
    "schedules.inject_stateful_hyperparams": "tx = {}(stepax.adam)(learning_rate=1e-3)",
    "schedules.join_schedules": "rate = {}([warm_up, decay], boundaries=[100])",
    "schedules.linear_onecycle_schedule": "rate = {}(1000, peak_value=1e-3)",
    "schedules.linear_schedule": "rate = {}(1e-3, 0.0, transition_steps=1000)",
    "schedules.piecewise_constant_schedule": "rate = {}(1e-3, {500: 0.1, 800: 0.1})",
    "schedules.piecewise_interpolate_schedule": 'rate = {}("cosine", 1e-3, {500: 0.1})',
    "schedules.plot": '{}(stepax.linear_schedule(0.1, 0.0, 100), 100, "rate.png")',
    "schedules.polynomial_schedule":
        "rate = {}(1e-3, 0.0, power=2, transition_steps=1000)",
    "schedules.power_average_decay": "decay = {}(width=0.1)",
    "schedules.sgdr_schedule": "rate = {}([cycle, cycle])",
    "schedules.warmup_constant_schedule": "rate = {}(0.0, 1e-3, warmup_steps=100)",
    "schedules.warmup_cosine_decay_schedule":
        "rate = {}(0.0, 1e-3, 100, decay_steps=1000)",
    "schedules.warmup_cosine_restarts_schedule": "rate = {}(1e-3, cycle_steps=1000)",
    "schedules.warmup_exponential_decay_schedule":
        "rate = {}(0.0, 1e-3, 100, 1000, 0.5)",
    "schedules.warmup_inverse_sqrt_schedule": "rate = {}(1e-3, warmup_steps=100)",
    "schedules.warmup_stable_decay_schedule": "rate = {}(1e-3, 100, 800, 100)",
    "second_order.fisher_diag": "diagonal = {}(loss_of, params, x, t)",
    "second_order.fisher_product": "Fv = {}(lambda p: p**2, x, x)",
    "second_order.ggn_product": "Gv = {}(jnp.sin, lambda y: jnp.sum(y**2), x, x)",
    "second_order.hessian_diag": "diagonal = {}(loss_of, params, x, t)",
    "second_order.hvp": "Hv = {}(loss_of, gradients, params, x, t)",
    "solve.Tolerances": "result = stepax.minimize(f, x, tol={}(gradient=1e-6))",
    "solve.constraints.equality": "on_sphere = {}(f, 1.0)",
    "solve.constraints.inequality": "in_ball = {}(f, upper=1.0)",
    "solve.fixed_point": "x = {}(jnp.cos, jnp.ones(2)).params",
    "solve.implicit": "decorator = {}(lambda x, a: x**2 - a)",
    "solve.least_squares": "fit = {}(lambda p, t: p[0] * t + p[1] - 1, x, args=(t,))",
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
    "solve.quadratic_program": "result = {}(jnp.eye(2), jnp.ones(2), bounds=(0, None))",
    "solve.root": "x = {}(lambda x: x**2 - 2, jnp.ones(2)).params",
    "stateless": "tx = {}(lambda updates, params: updates)",
    "stateless_with_tree_map": "tx = {}(lambda g, p: jnp.sign(g))",
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
    "transforms.MultiSteps": "tx = {}(stepax.adam(1e-3), every_k_schedule=4)",
    "transforms.add_noise": "tx = {}(eta=0.01, gamma=0.55, key=0)",
    "transforms.apply_if_finite":
        "tx = {}(stepax.adam(1e-3), max_consecutive_errors=5)",
    "transforms.chain": "tx = {}(stepax.clip_by_global_norm(1.0), stepax.adam(1e-3))",
    "transforms.conditionally_mask":
        "tx = {}(stepax.adam(1e-3), lambda step: step % 2 == 0)",
    "transforms.conditionally_transform":
        "tx = {}(stepax.clip(1.0), lambda step: step < 100)",
    "transforms.flatten": "tx = {}(stepax.adam(1e-3))",
    "transforms.freeze": 'tx = {}({"w": True, "b": False})',
    "transforms.masked": 'tx = {}(stepax.adam(1e-3), {"w": True, "b": False})',
    "transforms.measure_with_ema": "measure = {}(stepax.global_norm, decay=0.9)",
    "transforms.monitor": 'tx = {}({"norm": stepax.global_norm})',
    "transforms.named_chain":
        'tx = {}(("clip", stepax.clip(1.0)), ("adam", stepax.adam(1e-3)))',
    "transforms.partition":
        'tx = {}({"a": stepax.sgd(0.1), "b": stepax.adam(1e-3)}, labels_of)',
    "transforms.per_example_global_norm_clip": "clipped, count = {}(per_example, 1.0)",
    "transforms.per_example_layer_norm_clip": "clipped, count = {}(per_example, 1.0)",
    "transforms.selective_transform":
        'tx = {}(stepax.adam(1e-3), freeze_mask={"w": True, "b": False})',
    "transforms.skip_large_updates": "skip, seen = {}(updates, count, params, 100.0)",
    "transforms.skip_not_finite": "skip, seen = {}(updates, count, params)",
    "transforms.snapshot": 'tx = {}("norm", stepax.global_norm)',
    "transforms.unitwise_clip": "y = {}(x, x, x)",
    "transforms.unitwise_norm": "y = {}(matrix)",
    "tree.add_scale": "y = {}(params, -0.1, gradients)",
    "tree.allclose": "same = {}(params, params)",
    "tree.bias_correction": "y = {}(params, 0.9, count)",
    "tree.cast": "y = {}(params, jnp.bfloat16)",
    "tree.full_like": "y = {}(params, 0.5)",
    "tree.get_all_with_path": 'found = {}(state, "mu")',
    "tree.map_params": "state = {}(tx, lambda x: 0 * x, state)",
    "tree.random_like": "y = {}(jax.random.key(0), params)",
    "tree.scale": "y = {}(0.5, params)",
    "tree.split_key_like": "keys = {}(jax.random.key(0), params)",
    "tree.unwrap_random_key_data": "data = {}(jax.random.key(0))",
    "tree.update_infinity_moment": "y = {}(updates, moments, 0.999, 1e-8)",
    "tree.update_moment": "y = {}(updates, moments, 0.9, 1)",
    "tree.update_moment_per_elem_norm": "y = {}(updates, moments, 0.9, 2)",
    "tree.where": "y = {}(True, params, gradients)",
    "value_and_grad_from_state": "value_and_grad = {}(f)",
}  # fmt: skip


# What stands for an argument of a function, if not a variable of its name.
VALUES = {
    "input_tree": "params",
    "inputs": "x",
    "other_tree": "params",
    "predictor_outputs": "scores",
    "target_tree": "params",
    "tree": "params",
    "tree_x": "params",
    "tree_y": "gradients",
}


def example(name: Name) -> str:
    """How a function, or a class that users call, is called.

    "" if its docstring has an example.
    """
    if not is_needed(name):
        return ""
    call = CALLS.get(name.path.removeprefix("stepax.")) or made(name.value, name.name)
    return call.replace("{}", name.path, 1)


def is_needed(name: Name) -> bool:
    shown = ">>> " in (inspect.getdoc(name.value) or "")
    if inspect.isclass(name.value):
        return not shown and name.path.removeprefix("stepax.") in CALLS
    return callable(name.value) and not shown and get_origin(name.value) is None


def made(f: Callable, name: str) -> str:
    """A call with arguments of the tests, where it has no default, and with targets."""
    parameters = inspect.signature(f).parameters.items()
    kinds = [(k, p) for k, p in parameters if p.default is p.empty or k == "targets"]
    given = [k for k, p in kinds if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if name in ROWS and ARGUMENTS.keys() >= {*given} and f is ROWS[name].factory:
        return f"tx = {{}}({', '.join(f'{k}={ARGUMENTS[k]!r}' for k in given)})"
    result = "loss" if "/_losses/" in inspect.getfile(inspect.unwrap(f)) else "y"
    return f"{result} = {{}}({', '.join(VALUES.get(k, k) for k in given)})"

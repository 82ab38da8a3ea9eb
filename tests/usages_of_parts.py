"""Programs as people write them with Optax: wrappers, and what is around states."""

import jax
import jax.numpy as jnp
import numpy as np
from usages import P, X, loss, run, words


def noise_on_gradients(optax):
    """`add_noise` with a seed."""
    tx = optax.add_noise(0.01, 0.55, 0)
    updates, state = tx.update(P, tx.init(P))
    return jax.tree.map(jnp.shape, updates), state.count


def a_stateless_function(optax):
    """`stateless`, and `stateless_with_tree_map`."""
    first = optax.stateless(lambda u, p: jax.tree.map(jnp.sign, u))
    second = optax.stateless_with_tree_map(lambda u, p: u * p)
    return run(optax, optax.chain(first, second, optax.scale(-0.1)))


def a_condition(optax):
    """`conditionally_transform` and `conditionally_mask`."""
    late = lambda step, **extra: step >= 1
    first = optax.conditionally_transform(optax.scale(0.1), late)
    second = optax.conditionally_mask(optax.sgd(0.1), late)
    return run(optax, optax.chain(first, second))[0]


def a_centralized_step(optax):
    """`centralize`, `normalize_by_update_norm` and `zero_nans` in a chain."""
    parts = optax.zero_nans(), optax.centralize(), optax.normalize_by_update_norm()
    return run(optax, optax.chain(*parts, optax.scale(-0.1)))


def an_average_of_parameters(optax):
    """Target networks: `incremental_update` and `periodic_update`."""
    target = jax.tree.map(jnp.zeros_like, P)
    soft = optax.incremental_update(P, target, 0.1)
    return soft, optax.periodic_update(P, target, jnp.int32(4), 2)


def an_average_of_updates(optax):
    """`ema` behind an optimizer, with its accumulator."""
    tx = optax.chain(optax.sgd(0.1), optax.ema(0.9, debias=True))
    params, state = run(optax, tx)
    return params, state[1].ema


def a_switch_by_schedule(optax):
    """A part that starts after some steps: the schedule is a comparison."""
    tx = optax.chain(optax.sgd(0.1), optax.scale_by_schedule(lambda count: count >= 1))
    return run(optax, tx)


def a_missing_schedule(optax):
    """Scenic: a schedule of `None` is made, and fails where it is called."""
    tx = optax.scale_by_schedule(None)
    state = tx.init(P)
    try:
        return tx.update(P, state)
    except TypeError as error:
        return words(error)


def snapshots(optax):
    """`snapshot` of the gradients, read back by `tree_get`."""
    tx = optax.chain(optax.snapshot("norm", optax.global_norm), optax.sgd(0.1))
    _, state = run(optax, tx)
    return optax.tree_utils.tree_get(state, "norm")


# --- searches and second order --------------------------------------------------------


def a_search_by_lbfgs(optax):
    """Physics-informed networks: L-BFGS with its own line search."""
    tx, params = optax.lbfgs(), P
    state = tx.init(params)
    value_and_grad = optax.value_and_grad_from_state(loss)
    for _ in range(3):
        value, grad = value_and_grad(params, state=state)
        updates, state = tx.update(
            grad, state, params, value=value, grad=grad, value_fn=loss
        )
        params = optax.apply_updates(params, updates)
    return params, loss(params)


def a_search_by_backtracking(optax):
    """`scale_by_backtracking_linesearch` behind SGD."""
    tx = optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10))
    value, grad = jax.value_and_grad(loss)(P)
    state = tx.init(P)
    updates, state = tx.update(grad, state, P, value=value, grad=grad, value_fn=loss)
    return updates, optax.tree_utils.tree_get(state, "learning_rate")


def a_step_by_polyak(optax):
    """`polyak_sgd`, given the value."""
    return run(optax, optax.polyak_sgd(max_learning_rate=0.5), value=loss(P))


def a_product_with_the_hessian(optax):
    """`second_order.hvp` and diagonals, of a model and its data."""
    f = lambda p, x, y: jnp.sum((x @ p - y) ** 2)
    p, y = jnp.array([1.0, 2.0]), jnp.ones(3)
    return optax.second_order.hvp(f, jnp.ones(2), p, X, y)


def sharpness_aware(optax):
    """`contrib.sam` around SGD, in its transparent mode's first half."""
    adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    tx = optax.contrib.sam(optax.sgd(0.1), adversary, sync_period=2)
    return run(optax, tx)[0]


def without_a_schedule(optax):
    """`contrib.schedule_free_adamw`, evaluated at its averages."""
    params, state = run(optax, optax.contrib.schedule_free_adamw(1e-2))
    return params, optax.contrib.schedule_free_eval_params(state, params)


def without_a_rate(optax):
    """`contrib.prodigy`, `dog` and `mechanize`."""
    mechanic = optax.contrib.mechanize(optax.sgd(0.1))
    makers = optax.contrib.prodigy(), optax.contrib.dog(1.0), mechanic
    return [run(optax, tx)[0] for tx in makers]


def orthogonalized(optax):
    """`contrib.muon`, whose vectors are left to Adam."""
    return run(optax, optax.contrib.muon(1e-2))[0]


def contributed(optax):
    """Further optimizers of `contrib`."""
    c = optax.contrib
    made = c.ademamix(1e-2), c.adopt(1e-2), c.cocob(), c.madgrad(1e-2), c.sophia(1e-2)
    return [run(optax, tx, obj_fn=loss)[0] for tx in made[:4]]


# --- schedules ------------------------------------------------------------------------


def values(rate, steps=(0, 1, 2, 5, 9, 20)):
    return [rate(t) for t in steps]


def joined_schedules(optax):
    """A warm-up and a cosine that are joined, as in big_vision."""
    parts = optax.linear_schedule(0.0, 0.1, 3), optax.cosine_decay_schedule(0.1, 10)
    return values(optax.join_schedules(list(parts), [3]))


def stepped_schedules(optax):
    """ImageNet: rates that drop at given steps."""
    return values(optax.piecewise_constant_schedule(0.1, {2: 0.1, 8: 0.1}))


def interpolated_schedules(optax):
    """`piecewise_interpolate_schedule`, linear and cosine."""
    make = optax.piecewise_interpolate_schedule
    return [values(make(k, 0.1, {2: 2.0, 8: 0.1})) for k in ("linear", "cosine")]


def warm_restarts(optax):
    """`sgdr_schedule`, by a list of dictionaries."""
    cycle = {"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 2, "end_value": 0.0}
    cycles = [cycle | {"decay_steps": n} for n in (6, 12)]
    return values(optax.sgdr_schedule(cycles))


def one_cycle(optax):
    """`cosine_onecycle_schedule` and its linear sibling."""
    makers = optax.cosine_onecycle_schedule, optax.linear_onecycle_schedule
    return [values(make(20, 0.1)) for make in makers]


def traced_schedules(optax):
    """A schedule under `vmap`, to plot it."""
    rate = optax.warmup_exponential_decay_schedule(0.0, 0.1, 3, 5, 0.5, staircase=True)
    return jax.vmap(rate)(jnp.arange(12))


def polynomial_schedules(optax):
    """A polynomial decay after a delay, and a constant."""
    decay = optax.polynomial_schedule(0.1, 0.01, 2, 10, transition_begin=3)
    return values(decay) + values(optax.constant_schedule(0.3))


# --- losses and other functions -------------------------------------------------------


LOGITS = jnp.array([[2.0, -1.0, 0.5], [0.1, 0.2, -3.0]])


def classification_losses(optax):
    """Cross entropies by class, by distribution and by bit."""
    classes, soft = jnp.array([0, 2]), jax.nn.one_hot(jnp.array([0, 2]), 3)
    return (
        optax.softmax_cross_entropy_with_integer_labels(LOGITS, classes),
        optax.softmax_cross_entropy(LOGITS, optax.smooth_labels(soft, 0.1)),
        optax.sigmoid_binary_cross_entropy(LOGITS, soft),
        optax.losses.sigmoid_focal_loss(LOGITS, soft, alpha=0.25, gamma=2.0),
    )


def regression_losses(optax):
    """Huber, squared and cosine losses, by their names in both modules."""
    y = LOGITS + 0.5
    names = "huber_loss", "l2_loss", "squared_error", "log_cosh", "cosine_distance"
    return [getattr(optax.losses, k)(LOGITS, y) for k in names]


def sequence_losses(optax):
    """CTC, with paddings."""
    logits = jnp.sin(jnp.arange(40.0)).reshape(2, 5, 4)
    labels, zeros = jnp.array([[1, 2], [3, 1]]), jnp.zeros
    return optax.ctc_loss(logits, zeros((2, 5)), labels, zeros((2, 2)))


def ranking_losses(optax):
    """Losses of margins and of distributions."""
    a, b = LOGITS, LOGITS[::-1]
    poly = optax.losses.poly_loss_cross_entropy(a, jax.nn.softmax(b))
    hinge = optax.losses.hinge_loss(a, jnp.sign(b))
    return poly, hinge, optax.losses.kl_divergence(a, jnp.exp(b))


def the_mean_of_an_empty_batch(optax):
    """The last batch of an epoch, which may be empty: the mean of no losses."""
    empty = jnp.zeros((0, 3))
    return jnp.mean(optax.l2_loss(empty, empty)), optax.l2_loss(empty).shape


def projections_onto_sets(optax):
    """Projected gradient descent onto a simplex, a ball and a box."""
    p = optax.projections
    v = jnp.array([0.5, 2.0, -1.0])
    return (
        p.projection_simplex(v),
        p.projection_l2_ball(v, 1.0),
        p.projection_box(v, 0.0, 1.0),
        p.projection_non_negative({"v": v}),
        p.projection_hypercube(v),
    )


def an_assignment(optax):
    """DETR: the Hungarian algorithm on a matrix of costs."""
    costs = jnp.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])
    i, j = optax.assignment.hungarian_algorithm(costs)
    return costs[i, j].sum()


def a_perturbed_function(optax):
    """Perturbed optimizers: an argmax that has a gradient."""
    argmax = lambda v: jax.nn.one_hot(jnp.argmax(v), 3)
    soft = optax.perturbations.make_perturbed_fun(argmax, 1000, 0.5)
    found = soft(jax.random.key(0), jnp.array([0.1, 2.0, 0.3]))
    return found.shape, jnp.argmax(found)


def arithmetic_of_trees(optax):
    """`tree_utils`, under both of its names."""
    t, u = optax.tree, optax.tree_utils
    both = t.add_scale(P, 0.5, P), u.tree_scalar_mul(2.0, P), t.vdot(P, P)
    return (
        both,
        u.tree_l2_norm(P),
        t.zeros_like(P),
        t.sum(P),
        u.tree_cast(P, "bfloat16"),
    )


def norms(optax):
    """`global_norm` and `safe_norm`, as they are logged."""
    return optax.global_norm(P), jax.grad(optax.safe_norm)(jnp.zeros(2), 1e-3)


def counts_at_their_end(optax):
    """A count that does not overflow."""
    return optax.safe_increment(jnp.int32(2**31 - 1)), optax.safe_increment(
        jnp.int32(3)
    )


def half_precision(optax):
    """Moments in bfloat16 for parameters in float32."""
    _, state = run(optax, optax.adam(1e-2, mu_dtype=jnp.bfloat16))
    return [str(x.dtype) for x in jax.tree.leaves(state)]


def loops_of_steps(optax):
    """PureJaxRL: the steps inside of `lax.scan`."""
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2))

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), loss(params)

    return jax.lax.scan(step, (P, tx.init(P)), length=4)


def meta_gradients(optax):
    """MAML: a derivative through the inner optimizer."""

    def outer(rate):
        params, _ = run(optax, optax.sgd(rate), 2)
        return loss(params)

    return jax.grad(outer)(0.1)


def complex_parameters(optax):
    """Tensor networks: complex parameters, and a complex factor."""
    p = {"z": jnp.array([1.0 + 2.0j, -1.0j])}
    tx = optax.chain(optax.scale_by_adam(), optax.scale(1j), optax.scale(-0.1))
    updates, _ = tx.update(p, tx.init(p), p)
    return updates


def private_gradients(optax):
    """Differential privacy: clipped gradients of each example."""
    tx = optax.contrib.differentially_private_aggregate(1.0, 0.0, 0)
    each = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), P)
    return tx.update(each, tx.init(P), P)[0]


def numpy_numbers(optax):
    """Configurations of NumPy's numbers and arrays."""
    tx = optax.adamw(np.float64(1e-2), b1=np.float32(0.8), weight_decay=np.array(0.1))
    return run(optax, tx)

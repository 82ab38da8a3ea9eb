"""Mistakes that only show when a call fails, deep in JAX or in a function of the user.

`engine/test_first_mistakes.py` runs them, with those of `mistakes.py`.
"""

# What is wrong here is wrong for a type checker, too.
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false
# pyright: reportOperatorIssue=false

import jax
import jax.numpy as jnp
import numpy as np
from mistakes import (
    ARGUMENT,
    NAME,
    OTHER,
    RATE,
    STATE,
    TX,
    VALUE,
    G,
    Mistake,
    P,
    X,
    init,
    minimized,
    of,
    stepped,
)

import stepax
from stepax import checkpoint, contrib, losses, metrics, schedules, solve, tree


KEY = jax.random.key(0)
LOGITS = jnp.ones((4, 3))
ONE_HOT = jnp.eye(3)[jnp.array([0, 1, 2, 0])]
MULTI = stepax.MultiSteps(TX, 2)


def compiled(rate):
    """A step under `jit`, with a schedule of the user."""
    tx = stepax.sgd(rate)
    return lambda: jax.jit(tx.update)(G, tx.init(P), P)


def leaked():
    """A step with a state that a function under `jit` has stored."""
    kept = []
    jax.jit(lambda g: kept.append(TX.update(g, STATE, P)[1]))(G)
    return TX.update(G, kept[0], P)


# fmt: off
LATER: dict[str, Mistake] = {
    # --- trees of other structure or shape, and values in place of trees ---
    "a number added to a tree": (
        lambda: tree.add(P, 1.0),
        VALUE, ("`add`", "`tree_y`", "the root", "['dense']['bias']")),
    "a tree with a leaf less": (
        lambda: tree.sub(P, {"dense": {"bias": X}}),
        VALUE, ("`sub`", "`tree_y`", "only in `tree_x`: ['dense']['kernel']")),
    "a tree of other shapes": (
        lambda: tree.add(P, OTHER),
        ARGUMENT, ("`add`", "`tree_x` and `tree_y`", "(2, 3)", "['dense']['kernel']")),
    "a part of the moments": (
        lambda: tree.update_moment(G, P["dense"], 0.9, 2),
        VALUE, ("`update_moment`", "`moments`", "['dense']['bias']")),
    "a tree before its factor": (
        lambda: tree.scale(P, 2.0),
        ARGUMENT, ("`scale`", "`scalar` is a dict of 1", "(scalar: ArrayLike, tree:")),
    "a number before the trees": (
        lambda: tree.add_scale(0.1, P, P),
        VALUE, ("`add_scale`", "`scalar` is a dict of 1", "(tree_x: ArrayTree, sca")),
    "a factor in quotes": (
        lambda: tree.scale("2", P), ARGUMENT, ("`scale`", "`scalar` is a `str`")),
    "a dtype before its tree": (
        lambda: tree.cast("float32", P),
        VALUE, ("`cast`", "`dtype` is a dict of 1", "(tree: ArrayTree, dtype: DType")),
    "a dtype of a tree misspelt": (
        lambda: tree.zeros_like(P, "flot32"),
        ARGUMENT, ("`zeros_like`", "`dtype` is a `str`")),
    "bounds as a pair": (
        lambda: tree.clip(P, (-1.0, 1.0)),
        ARGUMENT, ("`clip`", "`min_value` is a tuple of 2", "max_value: ArrayLike")),
    "a seed for a key": (
        lambda: tree.random_like(0, P),
        ARGUMENT, ("`random_like`", "`rng_key` is a `int`", "rng_key: jax.Array")),
    "the name of a sampler": (
        lambda: tree.random_like(KEY, P, "normal"),
        ARGUMENT, ("`random_like`", "`sampler` is a `str`", "sampler: Callable")),
    "a number of a shape": (
        lambda: tree.batch_shape(P, 3),
        ARGUMENT, ("`batch_shape`", "`shape` is a `int`", "shape: tuple[int, ...]")),
    "a step size in quotes": (
        lambda: stepax.incremental_update(P, P, "0.1"),
        ARGUMENT, ("`incremental_update`", "`step_size` is a `str`")),
    "a norm in quotes": (
        lambda: stepax.safe_norm(X, "0"),
        ARGUMENT, ("`safe_norm`", "`min_norm` is a `str`", "min_norm: ArrayLike")),
    "`tree.map`": (of(tree, "map"), NAME, ("'map'", "`jax.tree.map`")),
    "an array of text": (
        lambda: TX.init({"w": np.array(["a", "b"])}),
        ARGUMENT, ("`adamw`", "['a' 'b']", "numeric types")),
    # --- functions of the user ---
    "a function of the updates alone": (
        stepped(lambda: stepax.stateless(lambda u: u)),
        ARGUMENT, ("`stateless`", "`f` is called", "takes 1 positional", "2 were")),
    "such a function in a chain": (
        stepped(lambda: stepax.chain(TX, stepax.stateless(lambda u: u))),
        ARGUMENT, ("`chain`", "`f` is called", "takes 1 positional", "2 were given")),
    "a condition without its step": (
        stepped(lambda: stepax.conditionally_transform(TX, lambda: True)),
        ARGUMENT, ("`conditionally_transform`", "`should_transform_fn`", "1 was")),
    "a reason to skip of one argument": (
        stepped(lambda: stepax.MultiSteps(TX, 2, should_skip_update_fn=lambda u: u)),
        ARGUMENT, ("`MultiSteps`", "`should_skip_update_fn`", "3 were given")),
    "a number of gradients without its step": (
        stepped(lambda: stepax.MultiSteps(TX, lambda: 2)),
        ARGUMENT, ("`MultiSteps`", "`every_k_schedule`", "1 was given")),
    "a metric of the updates alone": (
        init(lambda: stepax.observe(TX, {"size": lambda before: tree.norm(before)})),
        ARGUMENT, ("`observe`", "`metrics`", "3 were given")),
    "a map of two arguments": (
        lambda: tree.map_params(TX, lambda x, y: x, STATE),
        ARGUMENT, ("`map_params`", "`f` is called", "'y'")),
    "a callback without the result": (
        minimized(callback=lambda: None),
        ARGUMENT, ("`minimize`", "`callback`", "1 was given")),
    "a switch for a callback": (
        minimized(callback=True), ARGUMENT, ("`minimize`", "`callback` is a `bool`")),
    "a mask of one leaf": (
        init(lambda: stepax.adamw(1e-3, mask=lambda p: p.ndim > 1)),
        NAME, ("`adamw`", "`mask`", "a tree", "`jax.tree.map`")),
    "an `if` in a schedule": (
        compiled(lambda t: 0.1 if t < 10 else 0.01),
        ARGUMENT, ("`sgd`", "`learning_rate`", "jnp.where")),
    "NumPy in a schedule": (
        compiled(lambda t: np.cos(t)),
        ARGUMENT, ("`sgd`", "`learning_rate`", "`jax.numpy`")),
    "`float` in a schedule": (
        compiled(lambda t: 0.1 * float(t)),
        ARGUMENT, ("`sgd`", "`learning_rate`", "`float()`")),
    "a list of rates in a schedule": (
        compiled(lambda t: [0.1, 0.01][t]),
        ARGUMENT, ("`sgd`", "`learning_rate`", "`jax.numpy`")),
    "a state that was stored in `jit`": (
        leaked, ARGUMENT, ("`adamw`", "`jax.jit`", "return it")),
    # --- the function that was called, whatever is wrong inside ---
    "a kind of decay of Keras": (
        lambda: stepax.weight_decay(0.1, "L2"),
        VALUE, ("`weight_decay`", "`kind`", "'decoupled'")),
    "two coefficients": (
        lambda: contrib.muon(1e-3, ns_coeffs=(1.0, 2.0)),
        VALUE, ("`muon`", "`ns_coeffs`", "(2,)", "(3,)")),
    "the name of a line search": (
        lambda: stepax.lbfgs(0.1, linesearch="strong_wolfe"),
        ARGUMENT, ("`lbfgs`", "'strong_wolfe'", "gradient transformation")),
    "an optimizer as data": (
        lambda: stepax.to_config({"a": 3}), ARGUMENT, ("`to_config`", "is not data")),
    "a size in quotes": (
        lambda: metrics.noise_scale("8"),
        ARGUMENT, ("`noise_scale`", "`small_size` is a `str`")),
    "an axis by name": (
        lambda: losses.softmax_cross_entropy(LOGITS, ONE_HOT, axis="classes"),
        ARGUMENT, ("`softmax_cross_entropy`", "`axis` is a `str`")),
    "integer labels for a distribution": (
        lambda: losses.softmax_cross_entropy(LOGITS, jnp.arange(4)),
        VALUE, ("`softmax_cross_entropy`", "`labels`", "(4,)", "`jax.nn.one_hot(")),
    "integer labels to smooth": (
        lambda: losses.smooth_labels(jnp.arange(4), 0.1),
        ARGUMENT, ("`smooth_labels`", "`labels`", "`jax.nn.one_hot(")),
    "a distribution for integer labels": (
        lambda: losses.softmax_cross_entropy_with_integer_labels(LOGITS, ONE_HOT),
        ARGUMENT, ("_with_integer_labels`", "`labels`", "`jnp.argmax(labels, -1)`")),
    "the name of a reduction": (
        lambda: losses.ranking_softmax_loss(LOGITS, LOGITS, reduce_fn="mean"),
        ARGUMENT, ("`ranking_softmax_loss`", "`reduce_fn` is a `str`", "Callable")),
    "one boundary": (
        lambda: stepax.join_schedules([RATE, RATE], 10),
        ARGUMENT, ("`join_schedules`", "`boundaries` is a `int`", "Sequence[int]")),
    "a width in quotes": (
        lambda: schedules.power_average_decay("0.1"),
        ARGUMENT, ("`power_average_decay`", "`width` is a `str`")),
    # --- methods of other libraries ---
    "`scheduler.step()`": (
        of(RATE, "step"), NAME, ("a schedule", "`step`", "`schedule(count)`")),
    "a schedule times a number": (
        lambda: 2 * RATE, ARGUMENT, ("constant_schedule", "call it with the step")),
    "`MultiSteps.zero_grad()`": (
        of(MULTI, "zero_grad"), NAME, ("`MultiSteps`", "`zero_grad`", "tx.update(")),
    "parameters in place of a state": (
        lambda: MULTI.has_updated(P), VALUE, ("`has_updated`", "`MultiStepsState`")),
    # --- an optimizer in place of its state ---
    "the optimizer to evaluate": (
        lambda: stepax.eval_params(TX, P),
        ARGUMENT, ("`eval_params`", "what `adamw` returned", "`tx.init(params)`")),
    "the optimizer to migrate": (
        lambda: tree.migrate(TX, STATE),
        ARGUMENT, ("`migrate`", "what `adamw` returned", "`tx.init(params)`")),
    "what to do about missing arrays": (
        lambda: checkpoint.restore("run", TX, P, missing="ignore"),
        VALUE, ("`restore`", "`missing`", "'ignore'", "'fresh'")),
    "the optimizer to save": (
        lambda: checkpoint.save("run", 1, P, TX),
        ARGUMENT, ("`save`", "what `adamw` returned", "`tx.init(params)`")),
    "the optimizer for Optax": (
        lambda: stepax.interop.optax.to_optax(TX),
        ARGUMENT, ("`to_optax`", "what `adamw` returned", "`tx.init(params)`")),
    # --- minimizing ---
    "a tolerance in quotes": (
        minimized(tol="1e-6"), VALUE, ("`minimize`", "`tol`", "'1e-6'", "a number")),
    "a history of no steps": (
        minimized(history=-5), VALUE, ("`minimize`", "`history`", "positive integer")),
    "JAXopt's `OptaxSolver`": (
        of(solve, "OptaxSolver"), NAME, ("OptaxSolver", "`stepax.minimize`")),
}
# fmt: on

"""More mistakes of beginners: what was done, the error, and words that it has to have.

`engine/test_first_mistakes.py` runs them, after those that are made with a first step.
"""

# What is wrong here is wrong for a type checker, too.
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import stepax
from stepax import checkpoint, contrib, distributed, losses, metrics, solve


P = {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}}
G = jax.tree.map(jnp.ones_like, P)
X = jnp.ones(3)
TX = stepax.adamw(1e-3)
STATE = TX.init(P)
RATE = stepax.constant_schedule(0.1)
ARGUMENT, VALUE, NAME = TypeError, ValueError, AttributeError


def squares(x):
    return jnp.sum(x**2)


def init(tx):
    return lambda: tx().init(P)


def stepped(make):
    return lambda: make().update(G, make().init(P), P)


def minimized(fun=squares, x0=X, **more):
    return lambda: stepax.minimize(fun, x0, **more)


def of(module, name):
    return lambda: getattr(module, name)


def batched(g):
    return jnp.ones((8, *g.shape))


OTHER = {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(2)}}

Mistake = tuple[Callable[[], Any], type[Exception], tuple[str, ...]]
# fmt: off
MORE: dict[str, Mistake] = {
    # --- trees ---
    "a layer that the state does not have": (
        lambda: TX.update(G | {"new": X}, STATE, P | {"new": X}),
        VALUE, ("adamw", "`mu`", "only in the gradients: ['new']")),
    "a gradient missing": (
        lambda: TX.update({"dense": {"kernel": X}}, STATE, P),
        VALUE, ("adamw", "only in `mu`: ['dense']['bias']")),
    "gradients of each example": (
        lambda: TX.update(jax.tree.map(batched, G), STATE, P),
        VALUE, ("adamw", "['dense']['bias']", "(8, 2)", "(2,)")),
    "complex gradients": (
        lambda: TX.update(jax.tree.map(jnp.complex64, G), STATE, P),
        VALUE, ("adamw", "complex64", "['dense']['bias']")),
    "a string for a parameter": (
        lambda: TX.init({"w": "abc"}), ARGUMENT, ("adamw", "`str` at ['w']", "init(")),
    "no parameters": (lambda: TX.init(), ARGUMENT, ("adamw", "init()", "'params'")),
    "the function that returns both": (
        lambda: TX.update(jax.value_and_grad(squares), STATE, P),
        ARGUMENT, ("adamw", "the root", "has to be called")),
    "the state applied": (
        lambda: stepax.apply_updates(P, STATE),
        VALUE, ("`updates`", "is a state", "(gradients, state, params)")),
    "updates of other shapes": (
        lambda: stepax.apply_updates(P, OTHER),
        VALUE, ("`updates`", "['dense']['kernel']", "(2, 3)", "(3, 2)")),
    "three arguments of `apply_updates`": (
        lambda: stepax.apply_updates(P, G, STATE),
        ARGUMENT, ("apply_updates()", "3 were given")),
    "a keyword of another name": (
        lambda: TX.update(grads=G, state=STATE, params=P),
        ARGUMENT, ("adamw", "update()", "'updates'")),
    "a misspelt keyword of `update`": (
        lambda: stepax.strict_keywords(TX).update(G, STATE, P, valeu=1.0),
        ARGUMENT, ("adamw", "`valeu`", "read")),
    "packed gradients": (
        lambda: TX.update(stepax.tree.pack(G), STATE, P),
        ARGUMENT, ("`mu`", "stepax.tree.pack(params)")),
    "a list that is too short": (
        lambda: TX.update([X], TX.init([X, X]), [X, X]),
        VALUE, ("adamw", "only in `mu`: [1]")),
    # --- arguments ---
    "a list of learning rates": (
        lambda: stepax.adam([1e-3]), ARGUMENT, ("adam", "`learning_rate`", "`list`")),
    "a misspelt path of a learning rate": (
        init(lambda: stepax.adam({"biaz": 1e-3, "**": 1e-4})),
        VALUE, ("adam", "learning_rate", "`biaz`", "did you mean `bias`")),
    "a decay in quotes": (
        lambda: stepax.adamw(1e-3, weight_decay="0.1"),
        ARGUMENT, ("adamw", "`weight_decay`", "without quotes")),
    "momentum above 1": (
        lambda: stepax.sgd(0.1, momentum=1.5), VALUE, ("sgd", "`momentum`", "[-1, 1]")),
    "`eps` in quotes": (
        lambda: stepax.adam(1e-3, eps="1e-8"),
        ARGUMENT, ("adam", "`eps`", "without quotes")),
    "betas as a pair": (
        lambda: stepax.adam(1e-3, (0.9, 0.999)), ARGUMENT, ("adam", "`b1`", "number")),
    "a flag in quotes": (
        lambda: stepax.sgd(0.1, 0.9, nesterov="yes"),
        ARGUMENT, ("sgd", "`nesterov`", "True or False")),
    "a list of names as a mask": (
        init(lambda: stepax.adamw(1e-3, mask=["bias"])),
        VALUE, ("adamw", "`mask`", "['dense']['bias']")),
    "a name as a mask": (
        init(lambda: stepax.adamw(1e-3, mask="bias")),
        ARGUMENT, ("adamw", "`mask`", "['dense']['bias']", "boolean")),
    "a mask of two arguments": (
        init(lambda: stepax.adamw(1e-3, mask=lambda path, p: True)),
        ARGUMENT, ("`mask(params)`", "(path, p)")),
    "a mask that returns nothing": (
        init(lambda: stepax.adamw(1e-3, mask=lambda p: None)),
        ARGUMENT, ("adamw", "`mask`", "['dense']['bias']", "`None`", "boolean")),
    "labels of two arguments": (
        init(lambda: stepax.partition({"a": TX}, lambda path, p: "a")),
        ARGUMENT, ("(params)`", "(path, p)")),
    "a negative norm": (
        lambda: stepax.clip_by_global_norm(-1.0),
        VALUE, ("clip_by_global_norm", "`max_norm`", ">= 0")),
    "no norm": (
        lambda: stepax.clip_by_global_norm(),
        ARGUMENT, ("clip_by_global_norm()", "'max_norm'")),
    "`learning_rat`": (
        lambda: stepax.adam(learning_rat=1e-3),
        ARGUMENT, ("adam()", "did you mean `learning_rate`")),
    "`beta1`": (
        lambda: stepax.adam(1e-3, beta1=0.9), ARGUMENT, ("adam()", "mean `b1`")),
    "`beta_1` of Keras": (
        lambda: stepax.adam(1e-3, beta_1=0.9), ARGUMENT, ("adam()", "mean `b1`")),
    "`epsilon` of Keras": (
        lambda: stepax.adam(1e-3, epsilon=1e-8), ARGUMENT, ("adam()", "mean `eps`")),
    "`clipnorm` of Keras": (
        lambda: stepax.adam(1e-3, clipnorm=1.0),
        ARGUMENT, ("adam()", "'clipnorm'", "stepax.clip_by_global_norm(1.0)")),
    "`nestrov`": (
        lambda: stepax.sgd(0.1, nestrov=True), ARGUMENT, ("sgd()", "mean `nesterov`")),
    "`wd`": (lambda: stepax.adamw(1e-3, wd=0.1), ARGUMENT, ("adamw()", "weight_decay")),
    "`amsgrad=True`": (
        lambda: stepax.adam(1e-3, amsgrad=True), ARGUMENT, ("adam()", "`stepax.am")),
    "`fused=True`": (
        lambda: stepax.adam(1e-3, fused=True), ARGUMENT, ("adam()", "`jax.jit`")),
    "`maximize=True`": (
        lambda: stepax.sgd(0.1, maximize=True),
        ARGUMENT, ("sgd()", "stepax.scale(-1.0)")),
    "a decay of an average above 1": (
        lambda: stepax.averages(TX, 1.5), VALUE, ("averages", "`decay`", "[0, 1]")),
    "a decay of a named average in quotes": (
        lambda: stepax.averages(TX, {"ema": "0.9"}),
        ARGUMENT, ("averages", "'ema'", "without quotes")),
    "a window of no steps": (
        lambda: stepax.skip_spikes(TX, window=0),
        VALUE, ("skip_spikes", "`window`", ">= 1")),
    "a negative loss scale": (
        lambda: stepax.dynamic_loss_scale(TX, -1.0),
        VALUE, ("dynamic_loss_scale", "`initial`", "above 0")),
    "3 bits": (
        lambda: stepax.low_bit_states(TX, 3), VALUE, ("low_bit_states", "4, 8, or 32")),
    "a kind of decay misspelt": (
        lambda: stepax.weight_decay(0.1, "couple"),
        VALUE, ("`kind`", "'couple'", "'coupled'")),
    "a rule of clipping misspelt": (
        lambda: stepax.clip_by_recent_norm("zlcip"),
        VALUE, ("`rule`", "'zlcip'", "'zclip'")),
    # --- names of other libraries ---
    "`optax.Adam`": (of(stepax, "Adam"), NAME, ("Adam", "`stepax.adam`")),
    "`torch.optim.SGD`": (of(stepax, "SGD"), NAME, ("SGD", "`stepax.sgd`")),
    "`torch.optim.AdamW`": (of(stepax, "AdamW"), NAME, ("AdamW", "`stepax.adamw`")),
    "`torch.optim`": (of(stepax, "optim"), NAME, ("optim", "`stepax`")),
    "`lr_scheduler`": (
        of(stepax, "lr_scheduler"), NAME, ("lr_scheduler", "`stepax.schedules`")),
    "`clip_grad_norm_`": (
        of(stepax, "clip_grad_norm_"), NAME, ("clip_grad_norm_", "by_global_norm")),
    "`EMA`": (of(stepax, "EMA"), NAME, ("EMA", "`stepax.averages`")),
    "`CrossEntropyLoss`": (
        of(losses, "CrossEntropyLoss"),
        NAME, ("CrossEntropyLoss", "softmax_cross_entropy")),
    "`mse_loss`": (of(losses, "mse_loss"), NAME, ("mse_loss", "squared_error")),
    # --- combining ---
    "nothing in a chain": (
        lambda: stepax.chain(None, TX), ARGUMENT, ("argument 0 of `chain`", "`None`")),
    "a number in a chain": (
        lambda: stepax.chain(1.0, TX), ARGUMENT, ("argument 0 of `chain`", "`1.0`")),
    "a class in a chain": (
        lambda: stepax.chain(stepax.MultiSteps),
        ARGUMENT, ("argument 0 of `chain`", "did you mean `MultiSteps(...)`")),
    "no name in `named_chain`": (
        lambda: stepax.named_chain(TX), ARGUMENT, ("`named_chain`", "pair of a name")),
    "a name twice": (
        lambda: stepax.named_chain(("a", TX), ("a", TX)),
        VALUE, ("`named_chain`", "unique", "['a']")),
    "labels before transformations": (
        lambda: stepax.partition({"dense": "a"}, {"a": TX}),
        ARGUMENT, ("'dense'", "gradient transformation")),
    "no mask": (lambda: stepax.masked(TX), ARGUMENT, ("masked()", "'mask'")),
    "two gradients and a half": (
        lambda: stepax.MultiSteps(TX, 2.5),
        ARGUMENT, ("MultiSteps", "every_k_schedule", "2.5")),
    "a hyperparameter in the first call": (
        lambda: stepax.inject_hyperparams(stepax.adam, 1e-3),
        ARGUMENT, ("static_args", "`inject_hyperparams(adam)(0.001)`")),
    "a loss for Polyak's step": (
        stepped(lambda: stepax.polyak_sgd()),
        ARGUMENT, ("polyak_sgd", "`value`", "update(updates, state, params, value=")),
    "a loss for the plateau": (
        stepped(lambda: stepax.chain(TX, contrib.reduce_on_plateau())),
        ARGUMENT, ("reduce_on_plateau", "`value`")),
    "a vector for a matrix optimizer": (
        init(lambda: contrib.dion(1e-2)),
        VALUE, ("dion", "['dense']['bias']", "(2,)", "`partition`")),
    "a list of metrics": (
        lambda: stepax.observe(TX, [metrics.rms()]),
        ARGUMENT, ("observe", "`metrics`", "mapping")),
    "a stack that there is not": (
        init(lambda: stepax.stacked(TX, {"layers/**": 0})),
        VALUE, ("stacked", "`layers/**`", "dense/kernel")),
    "a field of a state misspelt": (
        init(lambda: stepax.with_state_dtypes(TX, {"nuu": "float32"})),
        VALUE, ("with_state_dtypes", "'nuu'", "'nu'")),
    "a dtype misspelt": (
        lambda: stepax.with_state_dtypes(TX, {"nu": "flot32"}),
        ARGUMENT, ("with_state_dtypes", "'nu'", "'flot32'")),
    "a number of devices": (
        lambda: distributed.zero(TX, 8), ARGUMENT, ("zero", "`jax.make_mesh`")),
    # --- schedules ---
    "no steps of a decay": (
        lambda: stepax.cosine_decay_schedule(1e-3, 0),
        VALUE, ("cosine_decay_schedule", "`decay_steps`", "positive")),
    "a schedule without its steps": (
        lambda: stepax.linear_schedule(1e-3, 0.0),
        ARGUMENT, ("linear_schedule()", "'transition_steps'")),
    "one schedule to join": (
        lambda: stepax.join_schedules(RATE, [3]),
        ARGUMENT, ("join_schedules", "`schedules`", "a list")),
    "`warmup_step`": (
        lambda: stepax.warmup_cosine_decay_schedule(0.0, 1e-3, warmup_step=9),
        ARGUMENT, ("warmup_cosine_decay_schedule()", "mean `warmup_steps`")),
    "a factory of schedules as a rate": (
        lambda: stepax.adam(stepax.linear_schedule),
        ARGUMENT, ("adam", "`linear_schedule`", "call it")),
    # --- reading ---
    "a path of a state misspelt": (
        lambda: stepax.tree.get(STATE, "mu/dense/kernle"),
        KeyError, ("`mu/dense/kernle`", "`mu/dense/kernel`")),
    "a name of two states": (
        lambda: stepax.tree.get(stepax.chain(TX, TX).init(P), "mu"),
        KeyError, ("`mu` names 2 values", "`filtering`")),
    "a field to set misspelt": (
        lambda: stepax.tree.set(STATE, cuont=1), KeyError, ("`cuont`", "`count`")),
    "a learning rate that is not in the state": (
        lambda: stepax.tree.set(STATE, learning_rate=0.1),
        KeyError, ("`learning_rate`", "`inject_hyperparams`")),
    "the state before the optimizer": (
        lambda: stepax.hyperparams(STATE, TX),
        ARGUMENT, ("`tx` of `hyperparams`", "`init` and `update`")),
    "a hyperparameter misspelt": (
        lambda: stepax.hyperparams(TX, STATE)["lerning_rate"],
        KeyError, ("`lerning_rate`", "2/learning_rate")),
    "an average that there is not": (
        lambda: stepax.eval_params(STATE, P, "ema"),
        VALUE, ("eval_params", "'ema'", "`averages`")),
    "parameters before the state": (
        lambda: stepax.eval_params(P, STATE),
        VALUE, ("`params`", "holds a state", "`eval_params(state, params)`")),
    "`every_k` of `MultiSteps`": (
        lambda: stepax.MultiSteps(TX, every_k=2),
        ARGUMENT, ("'every_k'", "did you mean `every_k_schedule`?")),
    "a list in a loss": (
        lambda: losses.squared_error([1.0, 2.0], X),
        ARGUMENT, ("`predictions`", "a list of 2", "expected an array")),
    "values to set in a dict": (
        lambda: stepax.tree.set(STATE, {"count": 1}),
        ARGUMENT, ("`filtering`", "a dict of 1", "by name")),
    "no average to swap": (
        lambda: stepax.swap_averages(STATE, P),
        VALUE, ("swap_averages", "another optimizer")),
    "parameters before the optimizer": (
        lambda: stepax.diagnose(P, TX), ARGUMENT, ("`tx` of `diagnose`", "`init` and")),
    # --- minimizing ---
    "a method misspelt": (
        minimized(method="lbgfs"), VALUE, ("`method`", "'lbgfs'", "'lbfgs'")),
    "a method of SciPy": (
        minimized(method="Nelder-Mead"), VALUE, ("`method`", "'Nelder-Mead'", "SciPy")),
    "a derivative of SciPy": (
        minimized(jac=squares), ARGUMENT, ("`minimize`", "`jac`", "differentiates")),
    "a factory as a method": (
        minimized(method=stepax.adam), ARGUMENT, ("`method`", "`adam(...)`")),
    "whole numbers to start from": (
        minimized(x0=jnp.ones(3, int)), ARGUMENT, ("`x0`", "integers", "jnp.asarray")),
    "bounds that cross": (minimized(bounds=(1.0, 0.0)), VALUE, ("bounds", "exchange")),
    "a pair for three numbers": (
        minimized(bounds=[(0, 1)]), VALUE, ("`bounds`", "1 pairs", "3 numbers")),
    "a pair returned": (
        minimized(lambda x: (squares(x), x)), ARGUMENT, ("`fun`", "`has_aux=True`")),
    "nothing returned": (minimized(lambda x: None), ARGUMENT, ("`fun`", "`None`")),
    "residuals and start swapped": (
        lambda: solve.least_squares(X, squares),
        ARGUMENT, ("`residuals`", "array of shape (3,)", "a function")),
    "a method of `least_squares`": (
        lambda: solve.least_squares(squares, X, method="lm"),
        ARGUMENT, ("`least_squares`", "`method`", "write nothing")),
    "fewer equations than unknowns": (
        lambda: solve.root(lambda x: x[:1], X),
        VALUE, ("`f`", "(1,)", "(3,)", "`least_squares`")),
    # --- files and data ---
    "a step after the parameters": (
        lambda: checkpoint.save("run", P, STATE, 3), VALUE, ("`step`", "whole number")),
    "a negative step": (
        lambda: checkpoint.save("run", -1, P, STATE), VALUE, ("`step` is -1", "0 or")),
    "no checkpoint": (
        lambda: checkpoint.restore("no_such_folder", TX, P),
        VALUE, ("no checkpoint", "no_such_folder")),
    "a template before the optimizer": (
        lambda: checkpoint.restore("run", P, TX), ARGUMENT, ("`tx` of `restore`",)),
    "a name in a configuration misspelt": (
        lambda: stepax.from_config({"_target_": "adamww"}),
        VALUE, ("`adamww`", "did you mean `adamw`")),
    "a configuration of nothing": (
        lambda: stepax.from_config({"learning_rate": 1e-3}), VALUE, ("`_target_`",)),
    "`lr` in a configuration": (
        lambda: stepax.from_config({"_target_": "adamw", "lr": 1e-3}),
        ARGUMENT, ("adamw()", "did you mean `learning_rate`", "the root")),
    "labels that are numbers": (
        lambda: losses.softmax_cross_entropy_with_integer_labels(jnp.eye(3), X),
        ARGUMENT, ("`labels`", "float32", "integers")),
}
# fmt: on

"""What beginners do wrong, and what they are told: a table of mistakes.

Each message has the name that was called, the path if a leaf is wrong, and what to
write; and no name of a class that users do not know.
"""

# What is wrong here is wrong for a type checker, too.
# pyright: reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false

import inspect
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from later_mistakes import LATER
from mistakes import MORE

import stepax
from stepax.rules import Rule, rule


PARAMS = {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}}
GRADIENTS = jax.tree.map(jnp.ones_like, PARAMS)
TX = stepax.adamw(1e-3)
STATE = TX.init(PARAMS)

# Classes of the engine, of JAX and of Python that say nothing to a beginner.
INTERNAL = re.compile(
    r"\b_[A-Z]\w+|NoneType|Undeclared|CheckedSchedule|MadeSchedule|ArrayImpl|\bTransform"
    r"ation\b|Composite|\w*Tracer\w*|<\w+ object|<function"
)


class OnlyNumbers:
    """A PyTorch parameter, as far as JAX sees: no array, and no tree."""


def update(tx, *args):
    return lambda: tx.update(*args)


def undecorated(learning_rate):
    return Rule(lambda g, p, ctx: (-learning_rate * g,))


def stepped(leaf):
    @rule()
    def mine(learning_rate: stepax.ScalarOrSchedule = 0.1):
        return Rule(lambda g, p, ctx: (leaf(learning_rate, g, p, ctx),))

    return lambda x=0.1: mine(x).update(GRADIENTS, mine(x).init(PARAMS), PARAMS)


def returning(value):
    @rule()
    def mine():
        return value

    return mine


def masked_by(spec):
    return lambda: stepax.adamw(1e-3, weight_decay=0.1, mask=spec).init(PARAMS)


def squares(x):
    return jnp.sum(x**2)


def of_minimize(name):
    return lambda: getattr(stepax.minimize(squares, jnp.ones(2)), name)


def cosine(*args):
    return lambda: stepax.cosine_decay_schedule(*args)


def loss_of(params, key):
    return squares(params)


def init_of(key):
    return X


RATES = {"learning_rate": [0.1]}
X = jnp.ones(3)
PARTIAL = {"dense": {"bias": False}}
BAD_LABELS = {"dense": {"bias": "a", "kernel": "c"}}
WRONG_SHAPE = {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(2)}}
SCHEDULE = stepax.cosine_decay_schedule(1e-3, 100)

# What was done, the kind of the error, and words that the message has to have.
MISTAKES = {
    "no state": (
        update(TX, GRADIENTS, None, PARAMS),
        ValueError, ("adamw", "`None`", "`update(gradients, state, params)`", "init"),
    ),
    "no state of a wrapper": (
        update(stepax.MultiSteps(TX, 2), GRADIENTS, None, PARAMS),
        ValueError, ("MultiSteps", "`None`", "`update(gradients, state, params)`"),
    ),
    "gradients and state swapped": (
        update(TX, STATE, GRADIENTS, PARAMS),
        ValueError, ("adamw", "swapped", "(gradients, state, params)"),
    ),
    "state and params swapped": (
        update(TX, GRADIENTS, PARAMS, STATE),
        ValueError, ("adamw", "swapped", "(gradients, state, params)"),
    ),
    "no params": (
        update(TX, GRADIENTS, STATE),
        ValueError, ("adamw", "`params` is missing", "update(updates, state, params)"),
    ),
    "the state of another": (
        update(stepax.sgd(1.0, momentum=0.9), GRADIENTS, STATE, PARAMS),
        ValueError, ("sgd", "another optimizer"),
    ),
    "the loss and the gradients": (
        update(TX, (jnp.float32(1), GRADIENTS), STATE, PARAMS),
        ValueError, ("adamw", "jax.value_and_grad", "['dense']['bias']"),
    ),
    "the loss": (
        update(TX, jnp.float32(1), STATE, PARAMS),
        ValueError, ("adamw", "the root", "are these not the gradients"),
    ),
    "a wrong shape": (
        update(TX, WRONG_SHAPE, STATE, PARAMS),
        ValueError, ("adamw", "['dense']['kernel']", "(2, 3)", "(3, 2)"),
    ),
    "what `update` returned": (
        lambda: stepax.apply_updates(PARAMS, TX.update(GRADIENTS, STATE, PARAMS)),
        ValueError, ("`updates`", "['dense']['bias']", "updates, state = tx.update("),
    ),
    "a factory in a chain": (
        lambda: stepax.chain(stepax.adamw),
        TypeError, ("chain", "did you mean `adamw(...)`"),
    ),
    "a list in a chain": (
        lambda: stepax.chain([TX]), TypeError, ("chain", "unpack a list with `*`")
    ),
    "a schedule in a chain": (
        lambda: stepax.chain(SCHEDULE), TypeError, ("chain", "scale_by_learning_rate"),
    ),
    "what holds no array": (
        lambda: TX.init({"weight": OnlyNumbers()}),
        TypeError, ("adamw", "['weight']", "OnlyNumbers", "`init(params)`"),
    ),
    "an iterator of parameters": (
        lambda: TX.init(x for x in [X]),
        TypeError, ("adamw", "`generator`", "`init(params)`"),
    ),
    "a function as parameters": (
        lambda: TX.init(squares), TypeError, ("adamw", "`function`", "`init(params)`")
    ),
    "`tx.step()`": (
        lambda: TX.step(GRADIENTS), AttributeError, ("adamw", "`step`", "tx.update("),
    ),
    "`tx.zero_grad()`": (
        lambda: TX.zero_grad(), AttributeError, ("adamw", "`zero_grad`", "tx.update("),
    ),
    "`lr`": (
        lambda: stepax.adam(lr=1e-3), TypeError, ("adam()", "`learning_rate`")
    ),
    "`betas`": (
        lambda: stepax.adam(1e-3, betas=(0.9, 0.99)), TypeError, ("adam()", "`b1`"),
    ),
    "a learning rate in quotes": (
        lambda: stepax.adam("1e-3"),
        TypeError, ("adam", "learning_rate", "without quotes"),
    ),
    "a decay out of range": (
        lambda: stepax.adam(1e-3, b2=1.5), ValueError, ("adam", "`b2`", "[0, 1]")
    ),
    "a name misspelt": (
        lambda: stepax.adamm, AttributeError, ("adamm", "did you mean `stepax.adam`")
    ),
    "a partial mask": (
        masked_by(PARTIAL), ValueError, ("adamw", "dense/kernel", "dense/bias", '"**"')
    ),
    "a mask with a leaf too much": (
        masked_by({"dense": {"bias": True, "kernel": True, "x": True}}),
        ValueError, ("adamw", "`dense/x`", "dense/kernel"),
    ),
    "a pattern misspelt": (
        masked_by({"biases": False, "**": True}),
        ValueError, ("adamw", "`biases`", "did you mean `bias`"),
    ),
    "a mask that is no boolean": (
        masked_by({"dense": {"bias": "no", "kernel": True}}),
        TypeError, ("adamw", "['dense']['bias']", "must be a boolean"),
    ),
    "an unknown label": (
        lambda: stepax.partition({"a": TX}, BAD_LABELS).init(PARAMS),
        ValueError, ("'c'", "['dense']['kernel']", "known labels are ['a']"),
    ),
    "partial labels": (
        lambda: stepax.partition({"a": TX}, {"dense": {"bias": "a"}}).init(PARAMS),
        ValueError, ("partition", "dense/kernel", '"**"'),
    ),
    "a rule that is not decorated": (
        lambda: undecorated(0.1).update(GRADIENTS, None, PARAMS),
        AttributeError, ("`Rule`", "`@rule()`"),
    ),
    "a rule in a chain": (
        lambda: stepax.chain(undecorated(0.1)), TypeError, ("chain", "`@rule()`")
    ),
    "`@rule` without a call": (lambda: rule(undecorated), TypeError, ("`@rule()`",)),
    "a factory that returns its function": (
        returning(squares), TypeError, ("mine", "`return Rule(squares)`")
    ),
    "a factory that returns nothing": (
        returning(None), TypeError, ("mine", "`return` missing")
    ),
    "`p` without `needs_params`": (
        stepped(lambda rate, g, p, ctx: g + 0.1 * p),
        ValueError, ("mine", "['dense']['bias']", "`needs_params=True`"),
    ),
    "`ctx` without `prepare`": (
        stepped(lambda rate, g, p, ctx: 2.0 * ctx * g),
        ValueError, ("mine", "['dense']['bias']", "`prepare`"),
    ),
    "a schedule used as a number": (
        lambda: stepped(lambda rate, g, p, ctx: -rate * g)(SCHEDULE),
        TypeError, ("mine", "learning_rate", "call it with the step count"),
    ),
    "arguments of a schedule swapped": (
        cosine(1000, 1e-3),
        ValueError, ("cosine_decay_schedule", "`decay_steps`", "swapped"),
    ),
    "a decay shorter than its warm-up": (
        lambda: stepax.warmup_cosine_decay_schedule(0.0, 1e-3, 1000, 100),
        ValueError, ("warmup_cosine_decay_schedule", "includes the warm-up"),
    ),
    "a line search without the value": (
        update(stepax.lbfgs(), GRADIENTS, stepax.lbfgs().init(PARAMS), PARAMS),
        TypeError, ("lbfgs", "value=..., grad=..., value_fn=..."),
    ),
    "NumPy in an objective": (
        lambda: stepax.minimize(lambda x: np.sum(np.sin(x)), X),
        TypeError, ("`fun`", "jax.numpy", "jnp.sum"),
    ),
    "`math` in an objective": (
        lambda: stepax.minimize(lambda x: math.sin(x), jnp.float32(1)),
        TypeError, ("`fun`", "jax.numpy"),
    ),
    "NumPy in a constraint": (
        lambda: stepax.minimize(squares, X, constraints=lambda x: np.sin(x)),
        TypeError, ("`constraints`", "jax.numpy"),
    ),
    "an `if` in an objective": (
        lambda: stepax.minimize(lambda x: x if x > 0 else -x, jnp.float32(1)),
        TypeError, ("`fun`", "jnp.where"),
    ),
    "the arguments of `minimize` swapped": (
        lambda: stepax.minimize(X, squares),
        TypeError, ("`fun`", "array of shape (3,)", "(fun, x0)"),
    ),
    "an objective of many values": (
        lambda: stepax.minimize(lambda x: x**2, X), ValueError, ("`fun`", "(3,)", "sum")
    ),
    "SciPy's `maxcv`": (of_minimize("maxcv"), AttributeError, ("`violation`",)),
    "SciPy's `cost`": (of_minimize("cost"), AttributeError, ("`value`",)),
    "SciPy's `hess_inv`": (of_minimize("hess_inv"), AttributeError, ("it has params",)),
    "SciPy's `maxiter`": (
        lambda: stepax.minimize(squares, X, options={"maxiter": 9}),
        TypeError, ("`minimize`", "`max_steps=9`"),
    ),
    "the gradients alone": (
        update(TX, GRADIENTS), TypeError, ("adamw(learning_rate=0.001).upd", "'state'")
    ),
    "a schedule without the count": (
        lambda: SCHEDULE(), TypeError, ("schedule()", "'count'")
    ),
    "parameters as in PyTorch": (
        lambda: stepax.adamw(PARAMS, 1e-3),
        TypeError, ("adamw", "learning_rate['dense']", "argument of `init`"),
    ),
    "the function that returns gradients": (
        update(TX, jax.grad(squares), STATE, PARAMS),
        TypeError, ("adamw", "the root", "has to be called"),
    ),
    "gradients of another library": (
        update(TX, {"dense": {"kernel": OnlyNumbers(), "bias": X}}, STATE, PARAMS),
        TypeError, ("adamw", "['dense']['kernel']", "OnlyNumbers", "jnp.asarray"),
    ),
    "a list of optimizers in `partition`": (
        lambda: stepax.partition([TX], {"dense": "a"}),
        TypeError, ("`partition`", "a list of 1", "a dict from labels"),
    ),
    "an optimizer in `inject_hyperparams`": (
        lambda: stepax.inject_hyperparams(TX),
        TypeError, ("inject_hyperparams", "what `adamw` returned", "(adam)("),
    ),
    "no gradients for a step": (
        lambda: stepax.MultiSteps(TX, 0), ValueError, ("MultiSteps", "every_k_schedule")
    ),
    "a switch for a number of gradients": (
        lambda: stepax.MultiSteps(TX, True),
        TypeError, ("MultiSteps", "every_k_schedule", "True"),
    ),
    "a spike of any size": (
        lambda: stepax.skip_spikes(TX, 0.0),
        ValueError, ("skip_spikes", "factor", "above 0"),
    ),
    "numbers in `join_schedules`": (
        lambda: stepax.join_schedules([1e-3, SCHEDULE], [10]),
        TypeError, ("join_schedules", "`schedules[0]`", "constant_schedule(0.001)"),
    ),
    "a boundary too few": (
        lambda: stepax.join_schedules([SCHEDULE, SCHEDULE], []),
        ValueError, ("join_schedules", "`boundaries`", "0 for 2 schedules"),
    ),
    "a list of boundaries": (
        lambda: stepax.piecewise_constant_schedule(0.1, [10, 20]),
        TypeError, ("piecewise_constant_schedule", "a list of 2", "{step: scale}"),
    ),
    "an optimizer in `sweep`": (
        lambda: stepax.sweep(loss_of, init_of, TX, {"learning_rate": [0.1]}, 5),
        TypeError, ("`make_tx`", "what `adamw` returned", "a function"),
    ),
    "a loss without a key": (
        lambda: stepax.sweep(squares, init_of, stepax.adam, RATES, 5),
        TypeError, ("`loss(params, key)`", "(x)"),
    ),
    "an `init` without a key": (
        lambda: stepax.sweep(loss_of, lambda: X, stepax.adam, RATES, 5),
        TypeError, ("`init(key)`", "()"),
    ),
    "`lr` in a grid": (
        lambda: stepax.sweep(loss_of, init_of, stepax.adam, {"lr": [0.1]}, 5),
        TypeError, ("adam()", "did you mean `learning_rate`"),
    ),
    "an objective of more arguments": (
        lambda: stepax.minimize(lambda x, scale: scale * squares(x), X),
        TypeError, ("`fun(params)`", "(x, scale)"),
    ),
    "SciPy's `jac`": (of_minimize("jac"), AttributeError, ("`grad_norm`", "jax.grad(")),
    "PyTorch's schedulers": (
        lambda: stepax.CosineAnnealingLR,
        AttributeError, ("CosineAnnealingLR", "stepax.cosine_decay_schedule"),
    ),
    "`torch.load`": (
        lambda: stepax.checkpoint.load,
        AttributeError, ("did you mean `stepax.checkpoint.restore`",),
    ),
    "a checkpoint without its parameters": (
        lambda: stepax.checkpoint.save("folder", STATE),
        TypeError, ("save()", "'state'"),
    ),
}  # fmt: skip


def told(do, kind) -> str:
    with pytest.raises(kind) as raised:
        print(do())  # shown if nothing is raised
    return str(raised.value).partition("\n---")[0]  # JAX adds a note about tracebacks


def test_each_mistake_is_told_in_the_words_of_its_author():
    wrong, every = [], MISTAKES | MORE | LATER
    for what, (do, kind, words) in every.items():
        said = told(do, kind)
        missing = [x for x in words if x not in said]
        internal = INTERNAL.findall(said)
        if missing or internal:
            wrong.append(f"{what}: {missing} {internal}: {said}")
    assert len(every) == sum(map(len, (MISTAKES, MORE, LATER))) >= 200
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_every_factory_names_itself_for_a_state_that_is_none_or_swapped():
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones((2, 2))}
    wrong, count = [], 0
    for param in rows():
        row = param.values[0]
        made = make(row)
        state = made.init(params)
        if not jax.tree.leaves(state):
            continue
        for args in ((params, None, params), (params, params, state)):
            said = told(update(made, *args), ValueError)
            count += 1
            # The tests leave vectors to another optimizer where one refuses them.
            name = "partition" if row.matrices_only else row.name
            if not (name in said and "update" in said):
                wrong.append(f"{row.name}: {said}")
    assert count > 100
    assert not wrong, "\n".join(wrong)


WRAPPED = {"inner", "opt", "optimizer", "base_optimizer"}


def test_an_optimizer_that_is_not_called_is_named_by_whatever_wraps_it():
    sgd = stepax.sgd
    calls = {
        "chain": lambda: stepax.chain(sgd),
        "named_chain": lambda: stepax.named_chain(("a", sgd)),
        "label 'a'": lambda: stepax.partition({"a": sgd}, "a"),
        "with_weight_decay": lambda: stepax.with_weight_decay(sgd, 0.1),
    }
    for param in rows():
        row = param.values[0]
        for name in WRAPPED & set(inspect.signature(row.factory).parameters):
            calls[row.name] = lambda row=row, name=name: make(row, **{name: sgd})
    said = {name: told(call, TypeError) for name, call in calls.items()}
    assert len(said) > 30
    words = lambda name: (name, "did you mean `sgd(...)`")
    wrong = {k: x for k, x in said.items() if not all(y in x for y in words(k))}
    assert not wrong, wrong


MASKS = "mask", "weight_decay_mask", "trust_ratio_mask", "where"


def test_every_factory_calls_a_mask_as_its_argument_is_called():
    wrong, count = [], 0
    for param in rows():
        row = param.values[0]
        known = inspect.signature(row.factory).parameters
        masks = [k for k in MASKS if k in known]
        for key in masks:
            decay = {"weight_decay": 0.1} if "weight_decay" in known else {}
            spec = {"kernels": True, "**": True}
            given = {k: spec if k == key else known[k].default for k in masks}
            made = make(row, **decay, **given)
            for tx in made, stepax.chain(stepax.clip(1.0), made):
                said = told(lambda tx=tx: tx.init(PARAMS), ValueError)
                count += 1
                if f"`kernels` in `{key}`" not in said:
                    wrong.append(f"{row.name}: {said}")
    assert count > 100
    assert not wrong, "\n".join(wrong)


def test_a_pattern_keeps_its_name_beside_that_of_the_mask():
    tx = stepax.lion(0.1, weight_decay_mask={"mask": True, "**": True})
    said = told(lambda: tx.init(PARAMS), ValueError)
    assert "`mask` in `weight_decay_mask`" in said

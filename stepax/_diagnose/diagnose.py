"""`diagnose` runs the rules: the code of each, its severity, needs, cure and thread.

`docs/mistakes.md` is made from their table.

Optax's transformations become Stepax's, so that rules know what they do: the closure of
an `update` of Optax holds the arguments of the factory that made it, by their names,
which are those of the factory of the same name here.
"""

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Literal, NamedTuple

import jax

from .._engine import rules as rx
from .._engine.base import call_of_pair
from .._engine.factories.ranges import whole_number
from .._engine.factories.registry import ROWS
from .._engine.functions import calls
from .._engine.inspect import Component, examine
from .._engine.trees.apply import map_pairs
from .._engine.trees.pack import unpack
from .._wrappers.accumulate import MultiSteps
from .._wrappers.chain import chain, named_chain
from .._wrappers.inject import inject_hyperparams
from . import micro_steps, rates, stacks, states, trial
from .findings import Diagnosis, Finding, Problem, Severity, collected
from .view import View


class Check(NamedTuple):
    """A rule.

    code: the name of what it finds.
    need: nothing else, the number of calls, gradients, or a trial step with them.
    over: the attribute of a `View` that lists what the rule is called for.
    rule: a function that yields problems.
    cure: what to write instead, where the rule does not say it.
    thread: where it was met: an issue as repository#number, or in words.
    """

    code: str
    severity: Severity
    need: Literal["static", "run", "gradients", "step"]
    over: str
    rule: Callable
    cure: str = ""
    thread: str = "common"


_FREEZE = "give a learning rate above 0, or `freeze` them, which says so"
_OF_NAN = (
    "put `zero_nans` inside of `stepax.MultiSteps`, which runs it on each gradient, or "
    "use `should_skip_update_fn=skip_not_finite`"
)
_MICRO_STEPS = "transformers, optax issues"
_INSIDE = "put it inside of `MultiSteps`"
# fmt: off
CHECKS = (
    Check("rate-never", "error", "static", "tracks", rates.rate_never,
          "end the chain with `scale_by_learning_rate(learning_rate)`",
          "optax discussions"),
    Check("uphill", "error", "static", "tracks", rates.uphill,
          "use `scale_by_learning_rate(...)`, which negates, or add `scale(-1.0)`",
          "optax discussions"),
    Check("rate-twice", "warning", "static", "tracks", rates.rate_twice,
          "apply it once: use `scale_by_adam()` and the like instead of an optimizer"),
    Check("never-updated", "warning", "static", "tracks", rates.never_updated,
          _FREEZE, "dion changelog"),
    Check("never-updated", "warning", "run", "tracks", rates.never_updated_in_run,
          _FREEZE),
    Check("never-updated", "warning", "static", "whole", states.nothing_trains,
          "compare the labels, or the mask, with the paths that `describe` prints"),
    Check("never-updated", "warning", "step", "trials", trial.never_moved,
          "`freeze` them, or let the gradient through", "vllm/speculators#1058"),
    Check("clip-before-orthogonalizer", "note", "static", "places",
          rates.clip_before_orthogonalizer,
          "clip only the other parameters, under their label of a `partition`",
          "DeepSpeed#7713, Megatron-LM#5394, xtuner#2001"),
    Check("clip-after-scaling", "warning", "static", "places",
          rates.clip_after_scaling, "put it first in the chain", "Megatron-LM#5394"),
    Check("matrix-left-out", "warning", "static", "tracks", states.matrix_left_out,
          "name their last two axes, with `MuonDimensionNumbers(-2, -1)` for these "
          "paths and `None` for the others",
          "goodfire-ai/spd#975, goodfire-ai/spd#982"),
    Check("matrix-taken-for-vectors", "warning", "static", "places",
          states.matrix_taken_for_vectors,
          "leave them to AdamW: with `None` as their dimension numbers, or another "
          "label in a `partition`", "goodfire-ai/spd#982, VeOmni#1093"),
    Check("layers-as-one", "warning", "static", "whole", stacks.layers_as_one,
          thread="marin#3902, optax#1660"),
    Check("decay-uphill", "error", "static", "places", rates.decay_uphill,
          "put it before the learning rate, or use the argument `weight_decay`",
          "google/flax: examples/sst2"),
    Check("decay-twice", "warning", "static", "places", rates.decay_twice,
          "leave one out; `adamw` decays by default: give it `weight_decay=0.0`"),
    Check("decay-before-preconditioner", "note", "static", "places",
          rates.decay_before_preconditioner,
          "put it between the scaling and the learning rate, as `adamw` does",
          "from_pytorch page"),
    Check("decay-on-vectors", "note", "static", "tracks", rates.decay_on_vectors,
          "mask them: `mask=lambda ps: jax.tree.map(lambda p: p.ndim > 1, ps)`"),
    Check("pattern-matches-nothing", "error", "static", "whole",
          states.pattern_matches_nothing,
          "compare the paths that it looks for with those that `describe` prints",
          "VeOmni#1093"),
    Check("integers", "error", "static", "integers", states.integers,
          "filter the model, or give them to `set_to_zero()` with `partition`"),
    Check("accumulation-of-nan", "warning", "static", "whole", states.nan_in_mean,
          _OF_NAN, "optax issues"),
    Check("accumulation-of-nan", "warning", "static", "places", states.nan_after_mean,
          _OF_NAN, "optax issues"),
    Check("narrow-mean", "warning", "static", "whole", states.narrow_mean),
    Check("eps-underflows", "warning", "static", "places", states.eps_underflows,
          "keep it in float32, or give a larger one", "pytorch issues"),
    Check("variance-of-nothing", "warning", "static", "whole",
          states.variance_of_nothing, "give a decay rate between 0 and 1"),
    Check("decay-rounded", "note", "static", "whole", states.decay_is_rounded),
    Check("not-opened", "note", "static", "whole", states.not_opened,
          "decorate the function that makes it with `stepax.rules.rule()`, or read it"),
    Check("update-rounds-away", "warning", "step", "trials", trial.rounds_away,
          "use `master_weights(tx)`, or `stochastic_rounding(tx, seed)`",
          "keras-hub#2629, SingLoRA#6"),
    Check("not-finite", "warning", "gradients", "whole", trial.not_finite,
          "find their origin; `zero_nans` and `apply_if_finite` let training go on"),
    Check("state-larger-than-parameters", "note", "static", "whole", states.large_state,
          "store moments in 8 bits with `low_bit_states(tx)`, or master weights as "
          "`master_weights(tx, remainder=16)`"),
    Check("averages-without-swap", "note", "static", "whole",
          states.averages_without_swap,
          "evaluate and save those of `stepax.eval_params`", "schedule_free issues"),
    Check("schedule-in-micro-steps", "warning", "static", "rates",
          rates.in_micro_steps, "put it inside of `MultiSteps`", _MICRO_STEPS),
    Check("schedule-in-micro-steps", "warning", "run", "curves",
          rates.needs_calls, thread=_MICRO_STEPS),
    *(Check(f"{kind}-in-micro-steps", "warning", "static", "places",
            micro_steps.of_stage(kind), _INSIDE, _MICRO_STEPS)
      for kind in ("momentum", "decay", "averages", "noise", "plateau")),
    Check("mechanize-in-micro-steps", "warning", "static", "whole",
          micro_steps.of_wrapper("mechanize"), _INSIDE, _MICRO_STEPS),
    Check("lookahead-in-micro-steps", "warning", "static", "whole",
          micro_steps.of_wrapper("lookahead"),
          "accumulate within a call, with `stepax.microbatching`", _MICRO_STEPS),
    Check("schedule-ends-early", "warning", "run", "curves", rates.ends_early),
    Check("schedule-never-ends", "note", "run", "curves", rates.never_ends),
    Check("warmup-longer-than-run", "warning", "run", "curves", rates.long_warmup,
          "warm up in fewer steps"),
    Check("first-step-zero", "note", "static", "rates", rates.first_step_zero,
          "start the warm-up above 0, as with `init_value=peak / steps`"),
    Check("part-of-a-step", "warning", "static", "rates", rates.part_of_step,
          "give a number of steps, such as a fraction times their total"),
    Check("boundary-without-schedule", "note", "static", "rates",
          rates.too_many_boundaries,
          "leave it out, or add the schedule that takes over there",
          "google/maxtext, where it is meant"),
)


def opened(tx: Any, params: rx.Params) -> Any:
    """A transformation in which ours replace the parts that Optax made.

    It is only to be read; one whose state would hold other arrays is left as it is.
    """

    def shapes(tx):
        return [x.shape for x in jax.tree.leaves(jax.eval_shape(tx.init, params))]

    try:
        made = _opened(tx)
        return made if made is tx or shapes(made) == shapes(tx) else tx
    except Exception:  # whatever others wrote
        return tx


def _opened(x: Any) -> Any:
    """The same for any argument of a factory; the object itself if nothing changes."""
    if type(x) is dict:
        found = {k: _opened(y) for k, y in x.items()}
        return x if all(found[k] is y for k, y in x.items()) else found
    if type(x) in (list, tuple):
        found = type(x)(map(_opened, x))
        return x if all(a is b for a, b in zip(found, x, strict=True)) else found
    if isinstance(x, type) or not calls.is_transformation(x):
        return x
    if (call := call_of_pair(x)) is not None:
        given = dict(call.bound.arguments)
        found, signature = _opened(given), call.bound.signature
        # Of ours in a chain of Optax only the two functions are left.
        is_whole = found is given and rx.call_of(x) is not None
        return x if is_whole else calls.call_with(call.factory, signature, found)
    name, held = _call(x)
    make = _MAKERS.get(name) or _ours(name)
    if make is None:
        return x
    known = inspect.signature(make).parameters
    try:
        return make(**{k: _opened(y) for k, y in held.items() if k in known})
    except Exception:  # an argument that ours does not take, for one
        return x


def _ours(name: str) -> Any:
    """Our factory of a name, if there is one."""
    if name and name not in ROWS:
        import_module("stepax.contrib")  # which registers its own
    return ROWS[name].factory if name in ROWS else None


def _call(tx: Any) -> tuple[str, dict[str, Any]]:
    """The factory of Optax that made a transformation, and its arguments."""
    owner = getattr(tx.update, "__self__", None)
    if not (getattr(tx.update, "__module__", None) or "").startswith("optax."):
        return "", {}
    if owner is not None:
        return type(owner).__name__, {k.strip("_"): x for k, x in vars(owner).items()}
    functions = [f for f in (tx.init, tx.update) if inspect.isfunction(f)]
    held = [inspect.getclosurevars(f).nonlocals for f in functions]
    name = tx.update.__qualname__.partition(".")[0]
    return name, {k: x for own in held for k, x in own.items()}


def _chain(init_fns: tuple, update_fns: tuple) -> Any:
    pairs = zip(init_fns, update_fns, strict=True)
    return chain(*(_opened(rx.GradientTransformation(*pair)) for pair in pairs))


def _injected(
    inner_factory: Callable, numeric_hps: dict, sched_hps: dict, other_hps: dict
) -> Any:
    schedules = {k: getattr(f, "schedule_fn", f) for k, f in sched_hps.items()}
    make = inject_hyperparams(_ours(inner_factory.__name__), [*other_hps])
    return make(**other_hps, **numeric_hps, **schedules)


def _multi_steps(opt: Any, every_k_schedule: Callable) -> Any:
    return MultiSteps(opt, every_k_schedule).gradient_transformation()


_MAKERS: dict[str, Callable] = {
    "MultiSteps": _multi_steps,
    "chain": _chain,
    "inject_hyperparams": _injected,
    "named_chain": lambda transforms: named_chain(*transforms),
    "with_extra_args_support": lambda tx: tx,
}


# What Optax does otherwise than ours of the same name: it computes in narrow dtypes,
# and its accumulation passes on only means of gradients.
_OF_OPTAX = ("eps-underflows", "accumulation-of-nan")


@rx.explain_misuse
def diagnose(
    tx: rx.TransformationLike,
    params: rx.Params,
    *,
    gradients: rx.Updates | None = None,
    steps: int | None = None,
    state: rx.OptState | None = None,
) -> Diagnosis:
    """Look for mistakes that train without an error, as in the first line of a script.

    Without `gradients` no step is run, and no array as large as a parameter is
    allocated.  Transformations of Optax are opened by what their closures hold; what is
    not known is not guessed, and a note says how many were not opened.

    tx: the transformation.
    params: the parameters, or `jax.ShapeDtypeStruct`s in their place.
    gradients: a tree like `params`.  With real parameters a trial step is taken, whose
        result is thrown away: it shows updates that are 0 or that are rounded away.
    steps: how many calls of `update` the run will have, at least 1, to compare with
        the lengths of schedules.
    state: the state from which to read injected hyperparameters and counts; the initial
        state if `None`.

    Raises a `TypeError` if `tx` is not a transformation, a `ValueError` if `steps` is
    not a whole number or below 1 and for gradients of another structure, and the errors
    of `tx.init`.
    Returns a tuple of findings, which prints as a table; `.require()` raises a
    `ValueError` if errors or warnings are among them.

    >>> stepax.diagnose(tx, params, steps=10_000).require()
    """
    rx.require_transformation(tx, "`tx` of `diagnose`")
    params, gradients, state = unpack((params, gradients, state))
    if gradients is not None:

        def require_alike(p, g, check):
            if rx.is_array(p) and g is not None:
                check()

        map_pairs(require_alike, ("params", "gradients"), params, gradients)
    if steps is not None:
        steps = whole_number("steps` of `diagnose", steps)
    known, kept = opened(tx, params), state
    if known is not tx and state is None:  # in its dtypes
        kept = jax.eval_shape(tx.init, params)
    view = examine(known, params, View, kept)
    view.steps, view.given = steps or 1, gradients
    found = [*_run("static", view), *(_run("run", view) if steps else ())]
    if known is not tx:
        own = _run("static", examine(tx, params, View, state))
        found += [x for x in own if x.code in _OF_OPTAX]
    leaves = jax.tree.leaves((params, gradients))
    is_real = not any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves)
    if gradients is not None and is_real:
        found += _tried(view, tx, params, state)
    return collected(found)


def static_findings(component: Component, gradients: rx.Gradients) -> Diagnosis:
    """What is found without a step in components that are examined; for `describe`."""
    try:
        view = View(component, gradients)
    except Exception:  # what is described does not depend on it
        return Diagnosis()
    with jax.ensure_compile_time_eval():  # functions of users may compute
        return collected(_run("static", view))


def _tried(view: View, tx: Any, params: rx.Params, state: rx.OptState) -> list[Finding]:
    """What gradients and a trial step with them show."""
    if found := list(_run("gradients", view)):
        return found
    try:
        view.trials = trial.trial(view, tx, params, state)
    except Exception as error:
        # Its keywords are not known.
        return [_failed("the trial step", error, "call `diagnose` without `gradients`")]
    return list(_run("step", view))


def _run(need: str, view: View) -> Iterator[Finding]:
    for check in (x for x in CHECKS if x.need == need):
        code, severity = check.code, check.severity
        try:
            for at in getattr(view, check.over):
                for found in check.rule(at):
                    x = found if isinstance(found, Problem) else Problem(found)
                    paths, cure = x.paths, x.cure or check.cure
                    paths = at.paths if paths is None else paths
                    yield Finding(code, severity, x.message, paths, cure)
        except Exception as error:  # never stop a training script
            yield _failed(f"the rule `{code}`", error, "please report it")


def _failed(what: str, error: Exception, cure: str) -> Finding:
    lines = str(error).splitlines() or [""]
    message = f"{what} failed with {type(error).__name__}: {lines[0][:200]}"
    return Finding("check-failed", "note", message, (), cure)

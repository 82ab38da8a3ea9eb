"""The rules: the code of each, how severe it is, what it needs, its cure and thread.

`docs/mistakes.md` is made from this table.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from . import micro_steps, rates, stacks, states, trial
from .findings import Severity


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
          "clip only the other parameters, in their part of a `partition`",
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
    Check("variance-of-nothing", "warning", "static", "places",
          states.variance_of_nothing, "give a decay rate above 0"),
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
          states.averages_without_swap, thread="schedule_free issues"),
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

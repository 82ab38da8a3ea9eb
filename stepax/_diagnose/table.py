"""The rules: the code of each, how severe it is, what it needs, its cure and thread.

`docs/diagnose.md` is made from this table.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from . import decay, matrices, rates, schedules, states, trial
from .findings import Severity


class Check(NamedTuple):
    """A rule.

    code: the name of what it finds.
    rule: a function from a `View`, and for "gradients" and "step" also from these, to
        problems.
    need: nothing else, the number of calls, gradients, or a trial step with them.
    thread: where it was met: an issue as repository#number, or in words.
    cure: what to write instead.
    """

    code: str
    severity: Severity
    need: Literal["static", "run", "gradients", "step"]
    rule: Callable
    thread: str
    cure: str


# fmt: off
CHECKS = (
    Check("rate-never", "error", "static", rates.rate_never, "optax discussions",
          "end the chain with `scale_by_learning_rate(learning_rate)`"),
    Check("uphill", "error", "static", rates.uphill, "optax discussions",
          "use `scale_by_learning_rate(...)`, which negates, or add `scale(-1.0)`"),
    Check("rate-twice", "warning", "static", rates.rate_twice, "common",
          "apply it once: use `scale_by_adam()` and the like instead of an optimizer"),
    Check("never-updated", "warning", "static", rates.never_updated, "dion changelog",
          "give a learning rate above 0, or `freeze` them, which says so"),
    Check("never-updated", "warning", "run", rates.never_updated_in_run, "common",
          "give a learning rate above 0, or `freeze` them, which says so"),
    Check("never-updated", "warning", "step", trial.never_moved,
          "vllm/speculators#1058", "`freeze` them, or let the gradient through"),
    Check("clip-before-orthogonalizer", "note", "static",
          matrices.clip_before_orthogonalizer,
          "DeepSpeed#7713, Megatron-LM#5394, xtuner#2001",
          "clip only the other parameters, in their part of a `partition`"),
    Check("clip-after-scaling", "warning", "static", matrices.clip_after_scaling,
          "Megatron-LM#5394", "put it first in the chain"),
    Check("matrix-left-out", "warning", "static", matrices.matrix_left_out,
          "goodfire-ai/spd#975, goodfire-ai/spd#982",
          "name their last two axes, with `MuonDimensionNumbers(-2, -1)` for these "
          "paths and `None` for the others"),
    Check("matrix-taken-for-vectors", "warning", "static",
          matrices.matrix_taken_for_vectors, "goodfire-ai/spd#982, VeOmni#1093",
          "leave them to AdamW: with `None` as their dimension numbers, or another "
          "label in a `partition`"),
    Check("decay-uphill", "error", "static", decay.decay_uphill,
          "google/flax: examples/sst2",
          "put it before the learning rate, or use the argument `weight_decay`"),
    Check("decay-twice", "warning", "static", decay.decay_twice, "common",
          "leave one out; `adamw` decays by default: give it `weight_decay=0.0`"),
    Check("decay-before-preconditioner", "note", "static",
          decay.decay_before_preconditioner, "from_pytorch page",
          "put it between the scaling and the learning rate, as `adamw` does"),
    Check("decay-on-vectors", "note", "static", decay.decay_on_vectors, "common",
          "mask them: `mask=lambda ps: jax.tree.map(lambda p: p.ndim > 1, ps)`"),
    Check("pattern-matches-nothing", "error", "static",
          states.pattern_matches_nothing, "VeOmni#1093",
          "compare the paths that it looks for with those that `describe` prints"),
    Check("integers", "error", "static", states.integers, "common",
          "filter the model, or give them to `set_to_zero()` with `partition`"),
    Check("accumulation-of-nan", "warning", "static", states.accumulation_of_nan,
          "optax issues", "put `zero_nans` inside of `stepax.MultiSteps`, which runs "
          "it on each gradient, or use `should_skip_update_fn=skip_not_finite`"),
    Check("narrow-mean", "warning", "static", states.narrow_mean, "common", ""),
    Check("eps-underflows", "warning", "static", states.eps_underflows,
          "pytorch issues", "keep it in float32, or give a larger one"),
    Check("update-rounds-away", "warning", "step", trial.rounds_away,
          "keras-hub#2629, SingLoRA#6",
          "use `master_weights(tx)`, or `stochastic_rounding(tx, seed)`"),
    Check("not-finite", "warning", "gradients", trial.not_finite, "common",
          "find their origin; `zero_nans` and `apply_if_finite` let training go on"),
    Check("state-larger-than-parameters", "note", "static", states.large_state,
          "common", "store moments in 8 bits with `low_bit_states(tx)`, or master "
          "weights as `master_weights(tx, remainder=16)`"),
    Check("averages-without-swap", "note", "static", states.averages_without_swap,
          "schedule_free issues", ""),
    Check("schedule-in-micro-steps", "warning", "static", schedules.in_micro_steps,
          "transformers, optax issues", "put it inside of `MultiSteps`"),
    Check("schedule-in-micro-steps", "warning", "run", schedules.needs_calls,
          "transformers, optax issues", ""),
    Check("schedule-ends-early", "warning", "run", schedules.ends_early, "common", ""),
    Check("schedule-never-ends", "note", "run", schedules.never_ends, "common", ""),
    Check("warmup-longer-than-run", "warning", "run", schedules.long_warmup, "common",
          "warm up in fewer steps"),
    Check("first-step-zero", "note", "static", schedules.first_step_zero, "common",
          "start the warm-up above 0, as with `init_value=peak / steps`"),
)

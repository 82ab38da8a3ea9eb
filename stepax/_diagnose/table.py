"""The rules: the code of each, how severe it is, what it needs, its cure and thread.

`docs/diagnose.md` is made from this table.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from . import rates, states, trial
from .findings import Severity


class Check(NamedTuple):
    """A rule.

    code: the name of what it finds.
    need: nothing else, the number of calls, gradients, or a trial step with them.
    over: the attribute of a `View` that lists what the rule is called for.
    rule: a function that yields problems.
    thread: where it was met: an issue as repository#number, or in words.
    cure: what to write instead.
    """

    code: str
    severity: Severity
    need: Literal["static", "run", "gradients", "step"]
    over: str
    rule: Callable
    thread: str
    cure: str


_FREEZE = "give a learning rate above 0, or `freeze` them, which says so"
_OF_NAN = (
    "put `zero_nans` inside of `stepax.MultiSteps`, which runs it on each gradient, or "
    "use `should_skip_update_fn=skip_not_finite`"
)
# fmt: off
CHECKS = (
    Check("rate-never", "error", "static", "tracks", rates.rate_never,
          "optax discussions",
          "end the chain with `scale_by_learning_rate(learning_rate)`"),
    Check("uphill", "error", "static", "tracks", rates.uphill, "optax discussions",
          "use `scale_by_learning_rate(...)`, which negates, or add `scale(-1.0)`"),
    Check("rate-twice", "warning", "static", "tracks", rates.rate_twice, "common",
          "apply it once: use `scale_by_adam()` and the like instead of an optimizer"),
    Check("never-updated", "warning", "static", "tracks", rates.never_updated,
          "dion changelog", _FREEZE),
    Check("never-updated", "warning", "run", "tracks", rates.never_updated_in_run,
          "common", _FREEZE),
    Check("never-updated", "warning", "step", "trials", trial.never_moved,
          "vllm/speculators#1058", "`freeze` them, or let the gradient through"),
    Check("clip-before-orthogonalizer", "note", "static", "places",
          rates.clip_before_orthogonalizer,
          "DeepSpeed#7713, Megatron-LM#5394, xtuner#2001",
          "clip only the other parameters, in their part of a `partition`"),
    Check("clip-after-scaling", "warning", "static", "places",
          rates.clip_after_scaling, "Megatron-LM#5394", "put it first in the chain"),
    Check("matrix-left-out", "warning", "static", "tracks", states.matrix_left_out,
          "goodfire-ai/spd#975, goodfire-ai/spd#982",
          "name their last two axes, with `MuonDimensionNumbers(-2, -1)` for these "
          "paths and `None` for the others"),
    Check("matrix-taken-for-vectors", "warning", "static", "places",
          states.matrix_taken_for_vectors, "goodfire-ai/spd#982, VeOmni#1093",
          "leave them to AdamW: with `None` as their dimension numbers, or another "
          "label in a `partition`"),
    Check("decay-uphill", "error", "static", "places", rates.decay_uphill,
          "google/flax: examples/sst2",
          "put it before the learning rate, or use the argument `weight_decay`"),
    Check("decay-twice", "warning", "static", "places", rates.decay_twice, "common",
          "leave one out; `adamw` decays by default: give it `weight_decay=0.0`"),
    Check("decay-before-preconditioner", "note", "static", "places",
          rates.decay_before_preconditioner, "from_pytorch page",
          "put it between the scaling and the learning rate, as `adamw` does"),
    Check("decay-on-vectors", "note", "static", "tracks", rates.decay_on_vectors,
          "common",
          "mask them: `mask=lambda ps: jax.tree.map(lambda p: p.ndim > 1, ps)`"),
    Check("pattern-matches-nothing", "error", "static", "whole",
          states.pattern_matches_nothing, "VeOmni#1093",
          "compare the paths that it looks for with those that `describe` prints"),
    Check("integers", "error", "static", "integers", states.integers, "common",
          "filter the model, or give them to `set_to_zero()` with `partition`"),
    Check("accumulation-of-nan", "warning", "static", "whole", states.nan_in_mean,
          "optax issues", _OF_NAN),
    Check("accumulation-of-nan", "warning", "static", "places", states.nan_after_mean,
          "optax issues", _OF_NAN),
    Check("narrow-mean", "warning", "static", "whole", states.narrow_mean,
          "common", ""),
    Check("eps-underflows", "warning", "static", "places", states.eps_underflows,
          "pytorch issues", "keep it in float32, or give a larger one"),
    Check("update-rounds-away", "warning", "step", "trials", trial.rounds_away,
          "keras-hub#2629, SingLoRA#6",
          "use `master_weights(tx)`, or `stochastic_rounding(tx, seed)`"),
    Check("not-finite", "warning", "gradients", "whole", trial.not_finite, "common",
          "find their origin; `zero_nans` and `apply_if_finite` let training go on"),
    Check("state-larger-than-parameters", "note", "static", "whole", states.large_state,
          "common", "store moments in 8 bits with `low_bit_states(tx)`, or master "
          "weights as `master_weights(tx, remainder=16)`"),
    Check("averages-without-swap", "note", "static", "whole",
          states.averages_without_swap, "schedule_free issues", ""),
    Check("schedule-in-micro-steps", "warning", "static", "rates",
          rates.in_micro_steps, "transformers, optax issues",
          "put it inside of `MultiSteps`"),
    Check("schedule-in-micro-steps", "warning", "run", "curves",
          rates.needs_calls, "transformers, optax issues", ""),
    Check("schedule-ends-early", "warning", "run", "curves", rates.ends_early,
          "common", ""),
    Check("schedule-never-ends", "note", "run", "curves", rates.never_ends,
          "common", ""),
    Check("warmup-longer-than-run", "warning", "run", "curves", rates.long_warmup,
          "common", "warm up in fewer steps"),
    Check("first-step-zero", "note", "static", "rates", rates.first_step_zero,
          "common", "start the warm-up above 0, as with `init_value=peak / steps`"),
)

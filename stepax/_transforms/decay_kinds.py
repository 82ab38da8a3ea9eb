"""The kinds of weight decay, for any optimizer.

Loshchilov and Hutter, 2019 (arXiv:1711.05101), for decay that is coupled to the
gradient, decay that is decoupled, and decay that is independent of the learning rate,
as in their equations; Defazio, 2025, Why Gradients Rapidly Increase Near the End of
Training (arXiv:2506.02285), for the corrected decay of AdamC; Chen et al., 2025,
Cautious Weight Decay (arXiv:2510.12402); Li, Grandvalet and Davoine, 2018, Explicit
Inductive Bias for Transfer Learning with Convolutional Networks (arXiv:1802.01483), for
the pull to the start, which is not coupled here.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import agreement
from .._engine.factories.argument_checks import scalar
from .._engine.factories.by_path import Wraps
from .._engine.functions.calls import frozen
from .._wrappers.chain import chain
from .._wrappers.partition import Partition, masked
from .decay import WeightDecaySchedule, add_decayed_weights, resolve_mask_alias
from .scale import following, value_at


Kind = Literal[
    "coupled", "decoupled", "independent", "corrected", "cautious", "to_start"
]


# The first kind acts before the step, and the second one stores arrays.
_ALONE = "coupled", "to_start"


@dataclass(frozen=True, eq=False, repr=False)
class Decay(Wraps):
    """What `weight_decay` returns: a weight decay of some kind.

    amount, kind, mask, peak: its arguments.
    """

    amount: rx.ScalarOrSchedule
    kind: Kind = "decoupled"
    mask: rx.MaskOrFn = None
    peak: rx.ArrayLike | None = None

    def __repr__(self) -> str:
        shown = [repr(self.amount), f"kind={self.kind!r}"]
        shown += [f"mask={self.mask!r}"] if self.mask is not None else []
        shown += [f"peak={self.peak!r}"] if self.peak is not None else []
        return f"weight_decay({', '.join(shown)})"

    @property
    def call(self) -> rx.Call:
        """The call that makes it, for configurations."""
        more = {"kind": self.kind, "mask": self.mask, "peak": self.peak}
        bound = inspect.signature(weight_decay).bind(self.amount, **more)
        return rx.Call(weight_decay, weight_decay, bound)

    def _key(self) -> object:
        return frozen((self.amount, self.kind, self.mask, self.peak))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decay) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def plain(self, amount: rx.ScalarOrSchedule) -> "Decay":
        return Decay(amount, mask=self.mask)

    def require_alike(self, subject: str, others: Sequence["Decay"]) -> None:
        kinds = list(dict.fromkeys(x.kind for x in others))
        if alone := [k for k in kinds if k in _ALONE and len(kinds) > 1]:
            raise ValueError(
                f"{subject} has the kinds {kinds} by path, but {alone[0]!r} cannot be "
                "combined with another kind: use `partition` with an optimizer for "
                "each group of parameters"
            )

    def around(
        self, make: Callable, given: inspect.BoundArguments
    ) -> rx.Transformation:
        name = f"`{make.__name__}`"
        if "learning_rate" not in given.arguments:
            raise TypeError(
                f"{name}: `weight_decay` must be a number or a schedule, as there is "
                "no `learning_rate`; use `with_weight_decay`"
            )
        values, mask = _without_decay(given, self.mask)
        call = inspect.BoundArguments(given.signature, OrderedDict(values))
        tx = make(*call.args, **call.kwargs)
        _require_followed(tx, self, name)
        stage = replace(self, mask=mask), values["learning_rate"], name
        # The other optimizer has its own decay.
        node = rx.node_of(tx)
        if "adam_weight_decay" in values and isinstance(node, Partition):
            first, *others = node.members
            members = _joined(first, *stage), *others
            return rx.build(node.changed(members=members))
        return _joined(tx, *stage)


def _without_decay(
    given: inspect.BoundArguments, mask: rx.MaskOrFn
) -> tuple[dict, rx.MaskOrFn]:
    """The arguments of a factory without those of its weight decay, and its mask."""
    values, parameters = dict(given.arguments), given.signature.parameters
    changed = {}
    for name in ("mask", "weight_decay_mask"):
        if name in values:
            if values[name] is not parameters[name].default:
                changed[name] = values[name]
            values[name] = parameters[name].default
    values["weight_decay"] = None if parameters["weight_decay"].default is None else 0.0
    own = resolve_mask_alias(changed.get("mask"), changed.get("weight_decay_mask"))
    if own is not None and mask is not None:
        raise ValueError(
            "the mask of the weight decay is given twice, to `weight_decay` and as "
            f"`{next(iter(changed))}`: give one of them"
        )
    return values, own if mask is None else mask


def _require_followed(tx: rx.TransformationLike, decay: Decay, name: str) -> None:
    """Raise if a part of `tx` would undo a decay after its step."""
    if decay.kind == "coupled":
        return
    for part in rx.node_of(tx).walk():
        if part.call and (why := part.call.shared.get("decay")):
            own = f"`{part.call.name}`"
            after = "" if own == name else f" after {own}"
            own = f"one inside of {own}" if after else "a number, as its authors do"
            raise ValueError(
                f"{name}: `weight_decay` cannot be `{decay}`{after}, as {why}: use the "
                f'kind "coupled", or {own}'
            )


def _joined(
    tx: Any,
    decay: Decay,
    learning_rate: rx.ScalarOrSchedule | None,
    name: str,
) -> Any:
    """A transformation and the weight decay before or after it."""
    if decay.kind == "coupled":
        return chain(add_decayed_weights(decay.amount, decay.mask), tx)
    if learning_rate is None and decay.kind != "independent":
        raise ValueError(
            f"{name}: the weight decay `{decay}` is multiplied by the learning rate, "
            "which is `None`: give `learning_rate`"
        )
    peak = 1.0 if decay.peak is None else decay.peak
    rate: Any = 1.0 if learning_rate is None else learning_rate
    stage: Any = _decay_by(rate, decay.amount, decay.kind, peak)
    return chain(tx, stage if decay.mask is None else masked(stage, decay.mask))


class DecayToStartState(NamedTuple):
    """count: steps taken.  start: the initial parameters."""

    count: jax.Array
    start: Any


@rx.recorded
def _decay_by(
    rate: rx.ScalarOrSchedule,
    amount: rx.ScalarOrSchedule,
    kind: str,
    peak: rx.ArrayLike,
) -> rx.Rule:
    """u - f p, with a factor f from the learning rate and the decay, after the step u.

    With a schedule there is a step count, whether the kind reads it or not, so that
    kinds may differ by path.
    """

    def factor(count):
        a: Any = 1.0 if kind == "independent" else value_at(rate, count)
        f = a * value_at(amount, count)
        return a / peak * f if kind == "corrected" else f

    def leaf(u, p, ctx, *start):
        f = constant if ctx is None else ctx
        if kind == "cautious":
            return (u - f * jnp.where(agreement(u, p) <= 0, p, 0),)
        return u - f * (p - start[0] if start else p), *start

    is_scheduled = callable(rate) or callable(amount)
    constant: Any = None if is_scheduled else factor(0)
    options: Any = {"needs_params": True, "elementwise": True, "in_steps": "leaf"}
    if kind != "to_start" and not is_scheduled:
        return rx.Rule(leaf, **options)
    slots = {"start": rx.START} if kind == "to_start" else {}
    State = DecayToStartState if slots else WeightDecaySchedule
    return rx.Rule(leaf, slots=slots, **options | following(factor, State))


@rx.explain_misuse
def weight_decay(
    amount: rx.ScalarOrSchedule,
    kind: Kind = "decoupled",
    *,
    mask: rx.MaskOrFn = None,
    peak: rx.ArrayLike | None = None,
) -> Any:  # so that type checkers accept it as a number
    """A weight decay of some kind, for the argument `weight_decay` of any optimizer.

        coupled        u = opt(g + w p)
        decoupled      u = opt(g) - a w p
        independent    u = opt(g) - w p
        corrected      u = opt(g) - (a² / peak) w p
        cautious       u = opt(g) - a w p where opt(g) p <= 0, otherwise opt(g)
        to_start       u = opt(g) - a w (p - p_0)

    a is the learning rate of the step, p_0 the first parameters, and opt(g) the update
    of the optimizer without decay; the formula replaces its own decay.

    amount: w, a scalar, at least 0, a schedule, or a mapping of path patterns.
    kind: one of these names.
    mask: parameters to decay; see `masked`.
    peak: the largest learning rate of the run, above 0; for "corrected" only.

    Raises a `ValueError` for an unknown kind, and for a `peak` that is missing or
    unused.

    >>> tx = stepax.adam(1e-3, weight_decay=stepax.weight_decay(0.1, "coupled"))
    """
    rx.require_one_of("kind", kind, get_args(Kind))
    if (kind == "corrected") != (peak is not None):
        raise ValueError(
            "`peak`, the largest learning rate of the run, belongs to the kind "
            f'"corrected", but `kind` is {kind!r} and `peak` is {peak}'
        )
    if peak is not None:
        peak = scalar("`weight_decay`: `peak`", peak, allowed=rx.POSITIVE)
    return Decay(amount, kind, mask, peak)


@rx.public("wrapper")
def with_weight_decay(
    inner: rx.TransformationLike,
    weight_decay: rx.ScalarOrSchedule | Decay,
    learning_rate: rx.ScalarOrSchedule | None = None,
) -> rx.GradientTransformationExtraArgs:
    """Let the parameters of any optimizer decay, as `weight_decay` describes.

    Use it for optimizers without an argument `weight_decay`, and for chains.

    inner: the optimizer, whose updates are added to the parameters.
    weight_decay: what `weight_decay` returns; a number is of the kind "decoupled".
    learning_rate: that of the optimizer, a scalar or a schedule; by default the
        argument of this name with which `inner` was made.

    Raises a `ValueError` if the learning rate is needed but unknown, and if `inner`
    cannot use this decay, with the reason.

    >>> tx = stepax.with_weight_decay(stepax.sgd(0.1), 1e-4)
    """
    rx.require_transformation(inner, "`inner` of `with_weight_decay`")
    made = rx.call_of(inner)
    if learning_rate is None and made is not None:
        learning_rate = made.bound.arguments.get("learning_rate")
        if isinstance(learning_rate, Mapping):
            return with_weight_decay(inner, weight_decay, learning_rate)
    held = weight_decay if isinstance(weight_decay, Decay) else Decay(weight_decay)
    _require_followed(inner, held, "`with_weight_decay`")
    return _joined(inner, held, learning_rate, "`with_weight_decay`")

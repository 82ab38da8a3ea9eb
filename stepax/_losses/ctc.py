"""Connectionist temporal classification (CTC): label sequences of unknown alignment.

Graves et al., 2006, Connectionist Temporal Classification: Labelling Unsegmented
Sequence Data with Recurrent Neural Networks (DOI:10.1145/1143844.1143891), section 4.1,
with logarithms of the forward variables, separately for blanks and labels.

Differences from Optax: probabilities are not rounded above 1, so that no loss is below
0; classes masked by logits of -inf give no NaN; padded labels may have any value.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.functions.calls import explain_misuse
from .inputs import floats, whole_labels
from .softmax import log_softmax


@explain_misuse
def ctc_loss(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: ArrayLike = -1e5,
) -> jax.Array:
    """Negative log-likelihood of label sequences, summed over alignments to the frames.

    logits: shape [batch, frames, classes], where one class is the blank.
    logit_paddings: 1 for padded frames, otherwise 0; shape [batch, frames].
    labels: shape [batch, labels], integers below the number of classes.
    label_paddings: 1 for padded labels, which come last, otherwise 0.
    blank_id: the class of blanks.
    log_epsilon: finite value that represents log 0.

    Returns the losses of `ctc_loss_with_forward_probs`, shape [batch].
    """
    given = logits, logit_paddings, labels, label_paddings
    loss, _, _ = ctc_loss_with_forward_probs(
        *given, blank_id=blank_id, log_epsilon=log_epsilon
    )
    return loss


@explain_misuse
def ctc_loss_with_forward_probs(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: ArrayLike = -1e5,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Negative log-likelihood of label sequences, and the forward variables.

    Arguments: those of `ctc_loss`.

    Returns, in float32 or wider: -log p, shape [batch], about -log_epsilon if there are
    too few frames; the log-probability of n labels so far, ending with a blank, or, in
    the last frame, with either; and that of ending with the n-th label; shapes
    [frames, batch, labels + 1] and [frames, batch, labels].

    Raises TypeError for dtypes, ValueError for shapes and known labels that do not fit.
    """
    x, _ = floats({}, {"logits": logits})
    frame_pads, label_pads = _paddings(x, logit_paddings, labels, label_paddings)
    y = _labels(labels, label_pads, x.shape[-1], blank_id)
    epsilon = jnp.asarray(log_epsilon, x.dtype)
    log_p = log_softmax(x, (2,))
    log_p = jnp.where(log_p == -jnp.inf, epsilon, log_p)
    label_p = jnp.take_along_axis(log_p, y[:, None, :], axis=2)
    first = jnp.ones_like(y[:, :1], bool)
    cannot_follow = jnp.concatenate([first, y[:, 1:] == y[:, :-1]], 1)[:, : y.shape[1]]

    def step(before, frame):
        blank, label = before
        is_pad, blank_p, label_p = frame
        previous = jnp.where(cannot_follow, -jnp.inf, jnp.roll(label, 1, axis=1))
        next_blank = blank_p[:, None] + _after(blank, label)
        stay = _log_add(label, blank[:, :-1])
        next_label = label_p + _log_add(stay, previous)
        is_pad = is_pad[:, None]
        now = jnp.where(is_pad, blank, next_blank), jnp.where(is_pad, label, next_label)
        return now, now

    count = y.shape[1]
    blank = jnp.full((len(y), count + 1), epsilon).at[:, 0].set(0)
    start = blank, jnp.full((len(y), count), epsilon)
    frames = frame_pads.T, log_p[..., blank_id].T, jnp.swapaxes(label_p, 0, 1)
    (blank, label), (blanks, label_ends) = jax.lax.scan(step, start, frames)
    ends = _at_most_0(_after(blank, label))
    length = count - jnp.sum(label_pads, axis=1, keepdims=True, dtype=jnp.int32)
    loss = -jnp.take_along_axis(ends, length, axis=1)[:, 0]
    return loss, _at_most_0(blanks).at[-1].set(ends), _at_most_0(label_ends)


def _log_add(x, y):
    """log(exp x + exp y), where not both are -inf.

    `jnp.logaddexp` in a scan gives wrong forward-over-reverse second derivatives.
    """
    is_larger = x > y
    high, low = jnp.where(is_larger, x, y), jnp.where(is_larger, y, x)
    return high + jnp.log1p(jnp.exp(low - high))


def _after(blank, label):
    """The log-probability of n labels so far, ending with a blank or the n-th label."""
    either = _log_add(blank[:, 1:], label)
    return jnp.concatenate([blank[:, :1], either], axis=1)


def _at_most_0(x):
    """Clip logarithms that rounding put above 0, without changing derivatives."""
    return x - jax.lax.stop_gradient(jnp.maximum(x, 0))


def _paddings(x, logit_paddings, labels, label_paddings):
    """The paddings as booleans, after a check of all shapes."""
    shapes = [jnp.shape(z) for z in (logit_paddings, labels, label_paddings)]
    fits = x.ndim == 3 and shapes[0] == x.shape[:2] and shapes[1] == shapes[2]
    if not (fits and len(shapes[1]) == 2 and len(x) == shapes[1][0] and x.shape[1]):
        raise ValueError(
            f"`logits` has shape {x.shape}, `logit_paddings` {shapes[0]}, "
            f"`labels` {shapes[1]} and `label_paddings` {shapes[2]}, expected "
            "[batch, frames, classes], [batch, frames] and twice [batch, labels], "
            "with at least one frame"
        )
    return jnp.asarray(logit_paddings) > 0, jnp.asarray(label_paddings) > 0


def _labels(labels, is_pad, classes, blank_id):
    """Integer labels in range; padded ones may be out of range."""
    if not 0 <= blank_id < classes:
        raise ValueError(
            f"`blank_id` is {blank_id}, expected at least 0 and below {classes}"
        )
    y = whole_labels(labels, classes, known=False)
    y = jnp.where(is_pad, jnp.clip(y, 0, classes - 1), y)
    return whole_labels(y, classes)

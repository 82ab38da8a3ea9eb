"""Learning rates, signs, weight decay, and clips."""

from .findings import Found, Problem
from .stages import Place, Track, product, value_of


def rate_never(track: Track) -> Found:
    """Parameters whose update no part scales."""
    is_still = product(track.stages) in (None, 0)
    if not track.stages:
        what = "no part sees these parameters, so that their update is the gradient"
        cure = "use `partition`, with an optimizer or `set_to_zero()` for them"
        yield Problem(f"{what} itself, and goes uphill", cure=cure)
    elif not is_still and not any(x.scales for x in track.stages):
        yield (
            "no part applies a learning rate or a negative scale, so that updates are "
            "of the size of gradients or of order 1, and go uphill"
        )


def uphill(track: Track) -> Found:
    """Parameters that move along the gradient."""
    # Gradients that are negated before anything else are meant to be climbed.
    is_meant = any(value_of(x.factor) == -1 for x in track.stages[:1])
    is_up = product(track.stages) == 1 and not is_meant
    if is_up and any(x.scales for x in track.stages):
        flips = " and ".join(str(x) for x in track.stages if x.sign == -1)
        what = f"{flips} negate them" if flips else "no part negates them"
        cure = "negate once: an optimizer already does" if flips else ""
        yield Problem(f"updates go uphill: {what}", cure=cure)


def rate_twice(track: Track) -> Found:
    """Parameters whose updates two parts multiply by a learning rate."""
    rates, is_complete = {}, False
    for x in track.stages:
        negates = is_complete and x.scales and x.owner is None and x.sign == -1
        # A factor of 1 or -1 is only a sign, which the rule about signs is for.
        if (x.is_rate or negates) and value_of(x.rate) not in (1, -1):
            # An optimizer may scale in several stages.
            rates[x.owner or x.part] = str(x)
        is_complete = is_complete or (x.owner is not None and x.scales)
    if len(rates) > 1:
        both = " and then ".join(rates.values())
        yield f"{both} each apply a learning rate, and steps are the product"


def never_updated(track: Track, in_run: bool = False) -> Found:
    """Parameters whose updates are always zero, without saying so."""
    zeros = [x for x in track.stages if x.sign == 0]
    # A number may be there only for `init`, unless it is said that the run begins.
    wrong = [x for x in zeros if callable(x.rate) != in_run]
    if wrong and not any(x.is_frozen for x in zeros):
        yield f"{wrong[0]} multiplies updates by 0, so that they never move"


def never_updated_in_run(track: Track) -> Found:
    """Parameters whose learning rate is 0 in a run of a known length."""
    return never_updated(track, in_run=True)


def clip_before_orthogonalizer(at: Place) -> Found:
    """Clipped gradients of matrices whose updates are normalized anyway."""
    clips = [x for x in at.before if "clips norms" in x.traits]
    if clips and at.matrices:
        what = (
            "normalizes them afterwards, and it only weighs gradients in the momentum"
        )
        message = f"does not bound the steps of these matrices: {at.stage} {what}"
        yield Problem(f"{clips[-1]} {message}", at.matrices)


def clip_after_scaling(at: Place) -> Found:
    """A gradient clip that comes after the part that scales gradients."""
    scaling = [x for x in at.before if x.normalizes or x.scales]
    # The clip of an optimizer is part of its algorithm.
    if "clips gradients" in at.stage.traits and not at.stage.owner and scaling:
        yield f"{at.stage} comes after {scaling[-1]}: it clips steps, not gradients"


def decay_before_preconditioner(at: Place) -> Found:
    """Decay that a preconditioner divides, as it does gradients."""
    # Some optimizers are defined so.
    scaling = [x for x in at.after if x.normalizes and not x.is_beside(at.stage)]
    if at.stage.name == "add_decayed_weights" and at.stage.decays and scaling:
        yield (
            f"{at.stage} comes before {scaling[0]}, which scales the decay as it does "
            "gradients: L2 regularization, not decoupled weight decay"
        )


def decay_twice(at: Place) -> Found:
    """Parameters on which two decays act."""
    first = [x for x in at.before if x.decays and not x.is_beside(at.stage)]
    if first and at.stage.decays:
        yield f"{first[0]} and {at.stage} both decay these parameters"


def decay_uphill(at: Place) -> Found:
    """Decay that is added to a finished step, and so lets parameters grow."""
    is_added = at.stage.name == "add_decayed_weights" and not at.stage.owner
    is_up = is_added and value_of(at.stage.given["weight_decay"], otherwise=1) > 0
    if is_up and product(at.before) == -1 and product(at.after) == 1:
        what = "comes after the learning rate, so that parameters grow in each step"
        yield f"{at.stage} {what}"


def decay_on_vectors(track: Track) -> Found:
    """Biases, norm scales and scalars that decay."""
    vectors = tuple(path for path, x in track.leaves.items() if len(x.shape) < 2)
    if vectors and any(x.decays for x in track.stages):
        message = "weight decay also acts on biases, norm scales or scalars"
        yield Problem(message, vectors)

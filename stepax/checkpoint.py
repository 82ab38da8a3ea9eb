"""Checkpoints: parameters, state and step, saved and restored by name.

Orbax writes the arrays.  An array is addressed by its names: a parameter by its path, a
slot of the state by the class of the state that it belongs to, its field, and the path
of its parameter.  So a checkpoint fits when a transformation has been added to a chain,
on another mesh and in another number of processes, and whether arrays are packed or not
(`stepax.tree.pack`); `renamed` follows a layer to its new name.

Needs `orbax-checkpoint`, and `safetensors` for its files: the extra `checkpoint`.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._checkpoint import foreign, of_torch, plain, steps, store, write
from ._checkpoint.assemble import assemble
from ._checkpoint.match import Policy
from ._checkpoint.order import require_order
from ._engine.base.protocol import (
    GradientTransformation,
    OptState,
    Params,
    require_transformation,
)
from ._engine.functions.calls import explain_misuse
from ._names import attributes


__all__ = [
    "Checkpoint", "from_optax", "from_torch", "latest_step", "restore", "save",
    "to_safetensors", "wait",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


class Checkpoint(NamedTuple):
    """What `restore` returns.

    params, state: as those that were saved.
    step: the step that they were saved under.
    """

    params: Any
    state: Any
    step: int


@explain_misuse
def save(
    directory: Any,
    step: int,
    params: Params,
    state: OptState,
    *,
    keep: int | None = None,
    wait: bool = True,
) -> None:
    """Write a checkpoint; it is whole, and on the disk, when this returns.

    Until then it has another name, so that a process killed at any moment leaves the
    checkpoints before it as they are.  In a run of several processes all of them call
    this, with the same step, and see the same directory.  Two runs cannot save to one
    directory at once.

    directory: of the checkpoints of one run; made if it is not there.
    step: its number, at least 0, higher than those that are there and whole.
    params: any tree; what is no array in it is not saved.
    state: of any transformation.
    keep: how many of the newest are kept; all, by default.
    wait: if false, this returns as soon as the arrays are copied, and a thread writes
        them.  The next call for this directory waits for it, as `wait` and the end of
        the process do, and raises what went wrong.  Python 3.12.0 and 3.12.1 need
        `wait` before the end.

    Raises a `ValueError` for a step that is not after those in the directory, where the
    names on the paths of two arrays are the same, where parameters and state are given
    in the wrong order, and while another process writes, which it names; a `TypeError`
    for arrays of no numbers.
    """
    step = _whole(step, "step", 0)
    keep = None if keep is None else _whole(keep, "keep", 1, ", or `None` for all")
    require_order(params, state)
    write.begin(directory, step, {"params": params, "state": state}, keep, wait)


def _whole(x: Any, name: str, least: int, more: str = "") -> int:
    """An integer of Python's; those of NumPy and JAX are taken, too."""
    try:
        is_truth = isinstance(x, bool) or getattr(x, "dtype", None) == np.dtype(bool)
        found = None if is_truth else operator.index(x)
    except TypeError:
        found = None
    if found is None or found < least:
        raise ValueError(
            f"`{name}` is {x!r}, expected a whole number of {least} or more{more}"
        )
    return found


@explain_misuse
def wait(directory: Any = None) -> None:
    """Wait for what is saved in the background; in all processes of a run.

    directory: of checkpoints; all, by default.

    Raises a `ValueError` for a step that could not be saved.
    """
    write.settle_all() if directory is None else write.settle(directory)


@explain_misuse
def latest_step(directory: Any) -> int | None:
    """The newest step that is whole; `None` if there is none.

    Warns of newer ones that are not whole, and says what they lack.

    directory: of checkpoints; need not be there.
    """
    write.join(directory)
    found, skipped = steps.newest(directory)
    steps.warn_of(directory, skipped, found)
    return found


@explain_misuse
def restore(
    directory: Any,
    tx: GradientTransformation,
    params: Params,
    *,
    step: int | None = None,
    renamed: Mapping[str, str] | None = None,
    missing: str = "error",
    extra: str = "error",
) -> Checkpoint:
    """Read a checkpoint, as `tx` and parameters like these need it.

    Arrays get the dtypes of the template.  On a mesh each process reads its own parts:
    parameters lie as in the template, the state as `stepax.distributed.state_sharding`
    and `tx.init` have it.

    directory: of checkpoints.
    tx: the transformation that will take the state; may differ from the one that made
        it in all that has no state.
    params: a template: arrays, or `jax.ShapeDtypeStruct`s, with or without a sharding.
    step: which one; the newest that is whole by default, see `latest_step`.
    renamed: from paths of parameters in the checkpoint to their new ones, as in
        `{"encoder/layer0": "encoder/first"}`; slots follow their parameters.
    missing: what becomes of arrays that the checkpoint lacks: "error" lists them,
        "fresh" takes slots from `tx.init`, and parameters from the template.
    extra: what becomes of those that have no place: "error" lists them, "drop" leaves
        them out.

    Raises a `ValueError` that lists what is missing, extra, and of another shape; for a
    step that is not there, is damaged, or of a later schema; a `TypeError` for numbers
    of another kind, such as floats for a count.
    """
    require_transformation(tx, "`tx` of `restore`")
    step = None if step is None else _whole(step, "step", 0)
    found = store.Step(directory, step).open()
    policy = Policy(missing, extra)
    new_params, state = assemble(found, tx, params, policy, renamed)
    return Checkpoint(new_params, state, found.step)


@explain_misuse
def from_optax(
    source: Any,
    tx: GradientTransformation,
    params: Params,
    *,
    step: int | None = None,
    keys: tuple[str, str] = ("params", "opt_state"),
    renamed: Mapping[str, str] | None = None,
    missing: str = "error",
    extra: str = "error",
) -> Checkpoint:
    """Take over what was saved in a run of Optax 0.2.8, or of any plain tree.

    source: a state, as it is unpickled; a dictionary or train state with parameters and
        a state; or the path of what Orbax made of one, or of a directory of these.
    params: a template, as in `restore`; where `source` has none, they are kept.
    step: which one of a directory; the newest by default.
    keys: the names of parameters and state in `source`.
    tx: the transformation that will take the state.
    renamed: from paths of parameters there to their paths in `params`.
    missing, extra: what becomes of arrays that only one side has: "error" lists them,
        "fresh" makes and "drop" leaves them out; see `restore`.

    Without classes, a slot is known by the fields beside it and its path.  The step is
    that of the directory or of a "step" in `source`, and else 0.

    Raises as `restore` does.
    """
    require_transformation(tx, "`tx` of `from_optax`")
    step = None if step is None else _whole(step, "step", 0)
    found, number = foreign.held(source, step, keys)
    policy = Policy(missing, extra)
    return Checkpoint(*assemble(found, tx, params, policy, renamed), number)


@explain_misuse
def from_torch(
    state_dict: Mapping[str, Any],
    tx: GradientTransformation,
    params: Params,
    *,
    names: Mapping[str, str] | Sequence[str] | None = None,
    transposed: Sequence[str] = (),
    step: int | None = None,
    missing: str = "error",
) -> OptState:
    """The state of `tx` from that of PyTorch's SGD, Adam, AdamW, RMSprop, Adagrad,
    NAdam or RAdam, so that the next step is PyTorch's.

    `tx` must do what PyTorch's optimizer does, with the numbers it has there:

        SGD      sgd(lr, momentum or None, nesterov=...)
        Adam     adam(lr, *betas, eps)
        AdamW    adamw(lr, *betas, eps, weight_decay=...)
        RMSprop  rmsprop(lr, alpha, eps, eps_in_sqrt=False, centered=..., momentum=...)
        Adagrad  adagrad(lr, eps=eps, eps_in_sqrt=False)
        NAdam    nadam(lr, *betas, eps, momentum_decay=...)
        RAdam    radam(lr, *betas, eps)

    and for the `weight_decay` of all but AdamW `chain(add_decayed_weights(...), ...)`.

    state_dict: of a `torch.optim` optimizer, `optimizer.state_dict()`.
    tx: what does the same here, as above.
    params: a template, as in `restore`.
    names: paths of the parameters here, in PyTorch's order; or from PyTorch's names to
        them, where the optimizer was given named parameters.  Those are taken as they
        are, with "/" for ".", if nothing is given.
    transposed: paths, which may have "*", of parameters that are the transpose of
        PyTorch's, as those of linear layers often are.
    step: how many steps were taken; for SGD, which does not count, before a schedule.
    missing: "fresh" if PyTorch's state may lack slots, as of frozen parameters.

    Raises a `ValueError` for `amsgrad` and `dampening`, which Stepax does not have in
    PyTorch's form, for paths that are not there, and for slots that do not fit.
    """
    require_transformation(tx, "`tx` of `from_torch`")
    found = of_torch.held(state_dict, tx, params, names, transposed, step)
    return assemble(found, tx, params, Policy(missing, "error"), None)[1]


@explain_misuse
def to_safetensors(
    file: Any, params: Params, state: OptState = (), *, separator: str = "."
) -> None:
    """Write arrays for programs without Stepax or JAX.

    A parameter has the names on its path, as `encoder.kernel`, and a slot those on its
    path in the state, as `state.0.mu.encoder.kernel`.  Such a file is for exchange:
    `save` and `restore` are for going on.

    file: its path; what is there is replaced once the new file is whole.
    params, state: any trees; random keys are written as their numbers.
    separator: between the names.

    Raises a `ValueError` for two arrays of one name, for an array that no process has
    whole, and for a dtype that the format lacks.
    """
    plain.write(file, {"": params, "state": state}, separator)

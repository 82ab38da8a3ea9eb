"""Checkpoints: save and restore parameters, state and step by name.

Orbax writes the arrays.  Arrays are identified by name: a parameter by its path, a slot
of the state by the class of its state, its field, and the path of its parameter.  Hence
a checkpoint still fits after a transformation was added to a chain, on another mesh,
with another number of processes, and whether or not arrays are packed
(`stepax.tree.pack`); `renamed` maps layers to new names.

Requires `orbax-checkpoint`, and `safetensors` for its files: the extra `checkpoint`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ._checkpoint import (
    foreign,
    of_torch,
    require_finite,
    require_order,
    steps,
    store,
    write,
)
from ._checkpoint.assemble import assemble, averaged
from ._checkpoint.delta import Delta, apply_delta, delta
from ._checkpoint.disk import Directory, write_trees
from ._checkpoint.match import Policy
from ._checkpoint.told import RestoreWarning, recipe_of
from ._engine import rules as rx
from ._engine.factories.ranges import whole_number
from ._names import attributes
from ._schedules.power_average import power_average_weights


__all__ = [
    "Checkpoint", "Delta", "RestoreWarning", "apply_delta", "average", "delta",
    "from_optax", "from_torch", "latest_step", "power_average_weights", "restore",
    "save", "to_safetensors", "wait",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


class Checkpoint(NamedTuple):
    """The result of `restore`.

    params, state: the saved parameters and state.
    step: the step at which they were saved.
    """

    params: rx.Params
    state: rx.OptState
    step: int


@rx.explain_misuse
def save(
    directory: Directory,
    step: int,
    params: rx.Params,
    state: rx.OptState,
    *,
    keep: int | None = None,
    wait: bool = True,
    finite: bool = False,
    tx: rx.TransformationLike | None = None,
) -> None:
    """Write a checkpoint; it is complete and on disk when this returns.

    Until then it has a temporary name, so that earlier checkpoints survive a process
    that is killed at any moment.  In a multi-process run all processes call this with
    the same step, and see the same directory.  Two runs cannot share one.

    directory: the directory for the checkpoints of one run; created if missing.
    step: the step, at least 0, later than all complete checkpoints in the directory.
    params: any tree; leaves that are not arrays are not saved.
    state: the state of any transformation.
    keep: number of the newest checkpoints to keep; all by default.
    wait: if false, this returns once the arrays are safe from changes, and a thread
        writes them.  The next call for this directory, `wait`, and process exit wait
        for the thread and raise its errors.  Python 3.12.0 and 3.12.1 need `wait`
        before exit.
    finite: whether to refuse NaN and infinities, so that a run that fails does not push
        its last good steps out of `keep`.  A scalar of the state may be infinite, as
        the best loss is before the first one.
    tx: the transformation, saved as by `to_config`; without it, `restore` cannot tell
        another one whose state has the same class.

    Raises a `ValueError` if the step is not later than those in the directory, if two
    arrays have the same name, if parameters and state are swapped, and if another
    process, which the error names, is writing; with `finite`, for arrays that are not;
    a `TypeError` for arrays that are not numeric.

    >>> stepax.checkpoint.save("run", 10, params, state)
    """

    def plan() -> tuple[int, int | None]:
        number = whole_number("step", step, least=0)
        if number >= 10**steps.DIGITS:
            raise ValueError(f"`step` has more than {steps.DIGITS} digits")
        rx.errors.refuse_transformation("save", state)
        require_order(params, state)
        if finite:
            require_finite({"params": params, "state": state})
        if keep is None:
            return number, None
        return number, whole_number("keep", keep, more=", or `None` for all")

    write.begin(
        directory, plan, {"params": params, "state": state}, wait, recipe_of(tx)
    )


@rx.explain_misuse
def wait(directory: Directory | None = None) -> None:
    """Wait for checkpoints saved in the background; call it in all processes of a run.

    directory: the directory to wait for; all by default.

    Raises a `ValueError` if a step could not be saved.
    """
    write.settle(directory)


@rx.explain_misuse
def latest_step(directory: Directory) -> int | None:
    """The newest step with a complete checkpoint; `None` if there is none.

    Warns of newer incomplete checkpoints, and says what is missing from them.

    directory: the directory of the checkpoints; may be missing.
    """
    write.join(directory)
    found, skipped = steps.newest(directory)
    steps.warn_of(directory, skipped, found)
    return found


@rx.explain_misuse
def restore(
    directory: Directory,
    tx: rx.TransformationLike,
    params: rx.Params,
    *,
    step: int | None = None,
    renamed: Mapping[str, str] | None = None,
    missing: str = "error",
    extra: str = "error",
) -> Checkpoint:
    """Read a checkpoint into the form that `tx` and `params` need.

    Arrays get the dtypes of the template.  On a mesh each process reads its own shards:
    parameters are sharded as in the template, and the state as
    `stepax.distributed.state_sharding` and `tx.init` would shard it.

    directory: the directory of the checkpoints.
    tx: the transformation that will use the state; may differ from the one that created
        it in parts without state.
    params: a template: arrays, or `jax.ShapeDtypeStruct`s, with or without a sharding.
    step: the step to restore; the newest complete one by default, see `latest_step`.
    renamed: a dict from paths of parameters in the checkpoint to their new paths, as in
        `{"encoder/layer0": "encoder/first"}`; state and labels follow, of groups, of a
        `named_chain` and of averages.
    missing: how to handle arrays missing from the checkpoint: "error" lists them,
        "fresh" takes states from `tx.init` and parameters from the template, and the
        step count from `tx.init` if all states beside it are fresh.
    extra: how to handle arrays without a place: "error" lists, "drop" ignores them.

    Warns with a `RestoreWarning` of an optimizer other than the `tx` of `save`, and of
    hyperparameters in the state that are not those of `tx`.

    Raises a `ValueError` that lists arrays that are missing, extra or of another shape,
    and for a step that is missing, damaged, or has a later schema; a `TypeError` for an
    incompatible dtype.

    >>> stepax.checkpoint.save("kept", 10, params, state)
    >>> stepax.checkpoint.restore("kept", tx, params).step
    10
    """
    rx.require_transformation(tx, "`tx` of `restore`")
    step = None if step is None else whole_number("step", step, least=0)
    policy = Policy(missing, extra)

    def read() -> Checkpoint:
        found = store.Step(directory, step).open()
        return Checkpoint(*assemble(found, tx, params, policy, renamed), found.step)

    return store.of_newest(read) if step is None else read()


@rx.explain_misuse
def average(
    sources: Sequence[Any], params: rx.Params, *, weights: Sequence[float] | None = None
) -> rx.Params:
    """The mean of the parameters of several checkpoints: a model soup.

        p = Σ w_i p_i,   w_i = 1 / n without weights

    in float32 or wider, rounded once.  Arrays are read one at a time, so that memory
    holds only one more than the result.  Wortsman et al., 2022 (arXiv:2203.05482).

    sources: directories of checkpoints, whose newest complete steps are used, or pairs
        of a directory and a step.
    params: a template, as in `restore`.  Integers and random keys are taken from the
        last checkpoint.
    weights: one for each checkpoint.  They are not divided by their sum, and may be
        negative, as those of `power_average_weights` are.

    Raises a `ValueError` that lists arrays that are missing, extra or of another shape
    in one of the checkpoints, and for weights that do not fit them.
    """
    return store.of_newest(lambda: averaged(sources, params, weights))


@rx.explain_misuse
def from_optax(
    source: Any,
    tx: rx.TransformationLike,
    params: rx.Params,
    *,
    step: int | None = None,
    keys: tuple[str, str] = ("params", "opt_state"),
    renamed: Mapping[str, str] | None = None,
    missing: str = "error",
    extra: str = "error",
) -> Checkpoint:
    """Load the state of a run with Optax 0.2.8, or any plain tree.

    source: an unpickled state; a dictionary or train state with parameters and state;
        the path where Orbax saved one of these; or a directory of such paths.
    params: a template, as in `restore`; returned unchanged if `source` has none.
    step: the step in a directory; the newest by default.
    keys: the names of parameters and state in `source`.
    tx: the transformation that will use the state.
    renamed: a dict from paths of parameters in `source` to their paths in `params`.
    missing, extra: how to handle arrays that only one side has: "error" lists them,
        "fresh" creates them and "drop" ignores them; see `restore`.

    Without classes, an array is known by its sibling fields and its path.  The step
    is that of the directory or of a "step" in `source`, otherwise 0.

    Raises the errors of `restore`.
    """
    rx.require_transformation(tx, "`tx` of `from_optax`")
    step = None if step is None else whole_number("step", step, least=0)
    found, number = foreign.held(source, step, keys)
    policy = Policy(missing, extra)
    return Checkpoint(*assemble(found, tx, params, policy, renamed), number)


@rx.explain_misuse
def from_torch(
    state_dict: Mapping[str, Any],
    tx: rx.TransformationLike,
    params: rx.Params,
    *,
    names: Mapping[str, str] | Sequence[str] | None = None,
    transposed: Sequence[str] = (),
    step: int | None = None,
    missing: str = "error",
) -> rx.OptState:
    """Convert the state of PyTorch's SGD, Adam, AdamW, RMSprop, Adagrad, NAdam, RAdam
    or Muon to that of `tx`, so that the next step is the same as PyTorch's.

    `tx` must match PyTorch's optimizer, with the same hyperparameters:

        SGD      sgd(lr, momentum or None, nesterov=...)
        Adam     adam(lr, *betas, eps)
        AdamW    adamw(lr, *betas, eps, weight_decay=...)
        RMSprop  rmsprop(lr, alpha, eps, eps_in_sqrt=False, centered=..., momentum=...)
        Adagrad  adagrad(lr, eps=eps, eps_in_sqrt=False)
        NAdam    nadam(lr, *betas, eps, momentum_decay=...)
        RAdam    radam(lr, *betas, eps)
        Muon     contrib.muon(lr, beta=momentum, eps=eps, weight_decay=weight_decay,
                     bias_correction=False, shape_factor="rms" for "match_rms_adamw")

    For `weight_decay`, except in AdamW, use `chain(add_decayed_weights(...), ...)`.

    state_dict: `optimizer.state_dict()` of a `torch.optim` optimizer.
    tx: the matching transformation, as above.
    params: a template, as in `restore`.
    names: paths of the parameters, in PyTorch's order; or a dict from PyTorch's names
        to paths, if the optimizer has named parameters.  By default PyTorch's names
        with "/" instead of ".".
    transposed: paths, which may contain "*", of parameters that are transposes of
        PyTorch's, often the case for linear layers.
    step: number of steps taken; needed for Muon and for SGD with a schedule, which have
        no count.
    missing: "fresh" if PyTorch's state may lack arrays, as for frozen parameters.

    Raises a `ValueError` for `amsgrad` and `dampening`, which Stepax does not have in
    PyTorch's form, for unknown paths, and for states that do not fit.
    """
    rx.require_transformation(tx, "`tx` of `from_torch`")
    found = of_torch.held(state_dict, tx, params, names, transposed, step)
    return assemble(found, tx, params, Policy(missing, "error"), None)[1]


@rx.explain_misuse
def to_safetensors(
    file: Directory, params: rx.Params, state: rx.OptState = (), *, separator: str = "."
) -> None:
    """Export arrays for programs without Stepax or JAX.

    Parameters are named by their path, such as `encoder.kernel`, and states by their
    path in the state, such as `state.0.mu.encoder.kernel`.  Such files are for
    exchange: use `save` and `restore` to resume training.

    file: path of the file; an existing file is replaced once the new one is complete.
    params, state: any trees; random keys are written as their integer data.
    separator: separator of the names.

    Raises a `ValueError` for two arrays with the same name, for an array that no
    process holds in full, and for a dtype that the format does not support.
    """
    write_trees(file, {"": params, "state": state}, separator)

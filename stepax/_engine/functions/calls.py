"""Calls: errors for arguments that do not fit, and copies of those that are stored.

In an error Python's own sentence comes first, because programs match it; a hint
follows.  Stored arguments are copied, so that they cannot change, and compared.
"""

import difflib
import functools as ft
import inspect
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.errors import JAXTypeError

from . import signatures


P = ParamSpec("P")
R = TypeVar("R")

# Names of arguments in other libraries, such as PyTorch and Keras, and their names
# here; the first that the function has is suggested, or the first pair.
_ELSEWHERE = {
    "alpha": ("decay", "learning_rate"),
    "beta": ("decay", "momentum", "b1"),
    "beta1": ("b1", "adam_b1", "betas", "beta"),
    "beta2": ("b2", "adam_b2", "betas"),
    "betas": ("b1 b2", "b1", "beta"),
    "boundaries": ("boundaries_and_scales",),
    "decayrate": ("decay",),
    "endlearningrate": ("end_value",),
    "epsilon": ("eps",),
    "etas": ("eta_minus eta_plus",),
    "excludefromweightdecay": ("mask", "weight_decay_mask"),
    "gamma": ("decay", "decay_rate"),
    "historysize": ("memory_size",),
    "initiallearningrate": ("init_value",),
    "l2": ("weight_decay",),
    "lr": ("learning_rate", "init_value", "value"),
    "mask": ("weight_decay_mask",),
    "maxlr": ("peak_value",),
    "milestones": ("boundaries", "boundaries_and_scales"),
    "momentum": ("b1", "decay", "beta"),
    "numtrainingsteps": ("decay_steps", "transition_steps"),
    "numwarmupsteps": ("warmup_steps",),
    "rho": ("decay", "b2"),
    "stepsize": ("transition_steps", "learning_rate"),
    "stepsizes": ("min_step_size max_step_size",),
    "tmax": ("decay_steps",),
    "totaliters": ("transition_steps",),
    "totalsteps": ("transition_steps", "decay_steps"),
    "wd": ("weight_decay",),
}

OF_INIT = "parameters are the argument of `init`, as in `state = tx.init(params)`"

# Arguments of optimizers of PyTorch and Keras that have no counterpart.
_INSTEAD = {
    "amsgrad": "use `stepax.amsgrad`",
    "capturable differentiable foreach fused jit_compile": "leave it out: `jax.jit` "
    "compiles the step",
    "clipnorm global_clipnorm max_grad_norm": "clip before it, as in "
    "`stepax.chain(stepax.clip_by_global_norm(1.0), tx)`",
    "clipvalue": "clip before it, as in `stepax.chain(stepax.clip(1.0), tx)`",
    "decay lr_decay": "a schedule decays the learning rate, such as "
    "`stepax.exponential_decay`, and `weight_decay` the parameters",
    "decoupled_weight_decay weight_decouple": "name the kind of decay, as in "
    '`weight_decay=stepax.weight_decay(0.1, "decoupled")`',
    "gradient_accumulation_steps": "wrap it, as in `stepax.MultiSteps(tx, 4)`",
    "loss_scale_factor": "wrap it, as in `stepax.dynamic_loss_scale(tx)`",
    "maximize": "negate the gradients, as in `stepax.chain(stepax.scale(-1.0), tx)`",
    "name": "leave it out: `stepax.named_chain` names its members",
    "params parameters": OF_INIT,
    "use_ema ema_momentum ema_overwrite_frequency": "wrap it, as in "
    "`stepax.averages(tx, 0.99)`",
}
_INSTEAD = {name: x for names, x in _INSTEAD.items() for name in names.split()}


def bind(
    f: Callable,
    name: str,
    signature: inspect.Signature,
    args: tuple,
    kwargs: Mapping[str, Any],
) -> inspect.BoundArguments:
    """The arguments of a call of `f`, defaults included; errors name `f` as `name`."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        # `bind` words its errors otherwise than a call, and does not name the function.
        hint = _hint(name, signature, args, kwargs)
        said = _said(f, args, kwargs).removesuffix(hint)  # `f` may be one of ours
        raise TypeError(f"{name}(){said}{hint}") from None
    bound.apply_defaults()
    return bound


def call_with(
    f: Callable, signature: inspect.Signature, arguments: Mapping[str, Any]
) -> Any:
    """The result of a function for arguments by the names of its parameters."""
    call = inspect.BoundArguments(signature, OrderedDict(arguments))
    return f(*call.args, **call.kwargs)


def _said(f: Callable, args: tuple, kwargs: Mapping[str, Any]) -> str:
    """Python's error for a call that does not fit, without the name of the function."""
    try:
        f(*args, **kwargs)
    except TypeError as error:
        # From Python 3.13 on it has a hint of its own.
        return str(error).partition("()")[2].partition(". Did you mean")[0]
    return " cannot be called with these arguments"


def require_takes(name: str, f: Callable, taken: tuple[str, ...]) -> None:
    """Raise unless a function of the user can be called with these arguments."""
    try:
        signature = signatures.signature(f)
    except (TypeError, ValueError):  # a function of C, for one
        return
    try:
        signature.bind(*taken)
    except TypeError:
        error = TypeError(
            f"`{name}` is called as `{name}({', '.join(taken)})`, but its arguments "
            f"are ({', '.join(signature.parameters)})"
        )
        vars(error)["of_step"] = str(error)  # as those of `trees.errors.of_step`
        raise error from None


# The context in which errors get the name of a call; `trees`, a layer above, adds it.
NAMED: list[Callable] = []


def explain_misuse(f: Callable[P, R]) -> Callable[P, R]:
    """`f`, with the errors of `bind` for calls that do not fit its signature."""

    signatures.share_explanations(f)
    signature = signatures.signature(f)

    @ft.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Bound only after a failure: binding costs more than most of these functions.
        try:
            return f(*args, **kwargs)
        except (TypeError, ValueError, AttributeError) as error:
            # Raises if it is the call.
            bound = bind(f, f.__qualname__, signature, args, kwargs)
            name = f.__qualname__.removesuffix(".__init__")
            with NAMED[0](name, f=f, given=bound.arguments):
                raise error

    vars(call)["__signature__"] = signature  # for tools that do not unwrap
    return call


def pass_on(f: Callable[..., R], arguments: Mapping[str, Any]) -> R:
    """Call `f` with the arguments that bear the names of all of its parameters.

    arguments: those of the caller, as `locals()` has them at its beginning.

    Raises a `KeyError` for a parameter without an argument, so that none is forgotten.
    """
    return f(**{k: arguments[k] for k in inspect.signature(f).parameters})


# Python looks these up on the type, and not by `__getattr__`.
_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
_OTHERS = """
    __lt__ __le__ __gt__ __ge__ __neg__ __pos__ __abs__ __invert__ __round__ __int__
    __float__ __complex__ __index__
"""


def refuse_operators(cls: type, more: str = "") -> None:
    """Let operators, conversions to a number, and `more` methods, call `refuse`."""

    def refused(self, *args):
        return self.refuse()

    names = [f"__{r}{x}__" for x in _BINARY.split() for r in ("", "r")]
    for name in (*names, *_OTHERS.split(), *more.split()):
        setattr(cls, name, refused)


def takes_a_count(f: Callable) -> bool:
    """Whether `f` takes a step count, as a schedule does."""
    try:
        return list(inspect.signature(f).parameters) == ["count"]
    except (TypeError, ValueError):  # a function of C, for one
        return False


def no_attribute(maker: str, name: str) -> AttributeError:
    """The error for a method that optimizers of other libraries have."""
    # Python itself asks for names with underscores, such as `__deepcopy__`.
    if not maker or name.startswith("_"):
        return AttributeError(name)
    return AttributeError(
        f"`{maker}` has no `{name}`: it has `init` and `update`; write "
        "`state = tx.init(params)` once, then for each step "
        "`updates, state = tx.update(gradients, state, params)` and "
        "`params = stepax.apply_updates(params, updates)`"
    )


@contextmanager
def explain_start(name: str, start: object) -> Iterator[None]:
    """Explain why a function that the user passed as `name` does not take its start."""
    try:
        yield
    except TypeError as error:
        if (
            isinstance(error, JAXTypeError)
            or type(start) not in (list, tuple)
            or any(map(np.ndim, jax.tree.leaves(start)))
        ):
            raise
        raise TypeError(
            f"{name} failed with `x0` as it was given, a {type(start).__name__} of "
            "numbers: pass `jnp.asarray(x0)` if it takes an array"
        ) from error


# The folder of the package, three levels up.
HOME = str(Path(__file__).parents[2]) + os.sep


def level_of_user() -> int:
    """The `stacklevel` with which a warning names the line that called the library."""
    # Counted at run time: the number of wrappers in between differs from call to call.
    frame, level = inspect.currentframe(), 0
    while frame and frame.f_code.co_filename.startswith(HOME):
        frame, level = frame.f_back, level + 1
    return level


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint at the intended name; empty if no similarity is above `cutoff`."""
    known = list(known)
    # Users of other libraries may write `learningRate` for `learning_rate`.
    plain = name.lower().replace("_", "")
    found = [k for k in _ELSEWHERE.get(plain, ()) if {*k.split()} <= {*known}]
    if plain not in _ELSEWHERE:
        alike = {k.lower().replace("_", ""): k for k in known}
        near = difflib.get_close_matches(plain, alike, 1, cutoff)
        # Or one of which it is the beginning, as `every_k` of `every_k_schedule`.
        near = near or [k for k in alike if len(plain) > 3 and k.startswith(plain)]
        found = [alike[k] for k in near]
    return f"; did you mean {_names(found[0].split(), ' and ')}?" if found else ""


def _hint(
    name: str, signature: inspect.Signature, args: tuple, kwargs: Mapping[str, Any]
) -> str:
    """What to write instead; of several errors, for the one that Python reports."""
    parameters = signature.parameters
    by_name = [k for k in signatures.by_name(parameters.values()) if k != "self"]
    by_position = [k for k, p in parameters.items() if p.kind < p.VAR_POSITIONAL]
    unknown = [k for k in kwargs if k not in by_name]
    if args and "rate" in "".join(by_position[:1]) and holds_parameters(args[0]):
        return f"; {OF_INIT}"
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        is_schedule = not {"init_value", "peak_value"}.isdisjoint(by_name)
        if not is_schedule and (instead := _INSTEAD.get(unknown[0])):
            return f"; {instead}"
        listed = f"its arguments are {_names(by_name)}" if by_name else ""
        return (
            nearest(unknown[0], by_name, 0.7)
            or f"; {listed or 'it takes none by name'}"
        )
    # `clip(updates, 1.0, max_delta=1.0)`: one value by position, one by name.
    twice = [k for k in by_position[: len(args)] if k in kwargs]
    if twice:
        return f"; it is also argument {by_position.index(twice[0]) + 1} by position"
    if len(args) <= len(by_position):
        return ""
    if not by_position and callable(args[0]):
        return f"; write `@{name}()`"
    only = [k for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    return f"; give {_names(only)} by name" if only else ""


def _names(names: Iterable[str], separator: str = ", ") -> str:
    return separator.join(f"`{k}`" for k in names)


def holds_parameters(x: object) -> bool:
    """Whether `x` is what PyTorch's optimizers take first: the parameters."""
    if isinstance(x, Iterator):
        return True
    least = 2 if jax.tree_util.all_leaves([x]) else 1
    return any(len(getattr(y, "shape", ())) >= least for y in jax.tree.leaves(x))


def refuse_uncalled(subject: str, f: Callable) -> None:
    """Raise if a function is not a schedule, such as a schedule factory."""
    home = getattr(f, "__module__", None) or ""
    is_factory = inspect.isfunction(f) and home.startswith("stepax._schedules")
    try:
        require_takes("schedule", f, ("count",))
    except TypeError:
        is_factory = True
    if is_factory:
        name = getattr(f, "__name__", type(f).__name__)
        raise TypeError(
            f"{subject} must be a function of the step, but is `{name}`, whose "
            f"arguments are ({', '.join(signatures.signature(f).parameters)}): call it"
        )


def is_transformation(x: object) -> bool:
    """Whether `x` has `init` and `update`, as transformations of all libraries do."""
    return hasattr(x, "init") and hasattr(x, "update")


# Types whose values contain nothing to copy, to check further or to replace by a traced
# array: most arguments are of these.
CONSTANTS = frozenset({type(None), bool, int, float, complex, str})


def copy_containers(x: Any) -> Any:
    """`x` with copies of all mutable containers and NumPy arrays in it.

    Functions, modules, transformations and JAX arrays are not copied.
    """
    if isinstance(x, np.ndarray):
        return x.copy()
    # A transformation is a tuple, but one that is compared by how it was made.
    if callable(x) or is_transformation(x):
        return x
    if type(x) is dict:  # JAX would sort it
        return {k: copy_containers(v) for k, v in x.items()}
    # One level of any container that JAX knows.
    children, treedef = jax.tree.flatten(x, is_leaf=lambda y: y is not x)
    if len(children) == 1 and children[0] is x:
        return x
    return treedef.unflatten(map(copy_containers, children))


def is_dtype(x: object) -> bool:
    """Whether `x` is a dtype or a class that names one, such as `jnp.float32`."""
    # Not Python's `float`, which is of the width that JAX is set to.
    kind = getattr(x, "dtype", None) if isinstance(x, type) else x
    is_scalar = isinstance(x, type) and issubclass(x, np.generic)
    return is_scalar or isinstance(kind, np.dtype)


def frozen(x: object) -> Hashable:
    """A hashable key, equal only for values that behave alike: 1 and 1.0 differ.

    Raises a `TypeError` for values that cannot be compared, such as a tracer.
    """
    # Types are part of each key, because Python's 1 == 1.0 == True share one hash, but
    # give different dtypes.
    if isinstance(x, dict):
        return dict, tuple((k, frozen(v)) for k, v in x.items())
    if isinstance(x, tuple | list) and not is_transformation(x):
        return type(x), tuple(map(frozen, x))
    if isinstance(x, jax.Array):
        return jax.Array, *_contents(x)
    if isinstance(x, np.ndarray):
        return np.ndarray, x.shape, x.dtype, x.tobytes()
    if is_dtype(x) and jnp.dtype(np.dtype(x).name) == x:  # type: ignore[call-overload]
        return str, np.dtype(x).name  # type: ignore[call-overload]
    hash(x)
    if isinstance(x, float) and x != x:
        return float, "nan"
    return type(x), x


def _contents(x: jax.Array) -> tuple:
    if isinstance(x, Tracer) or x.is_deleted() or not x.is_fully_addressable:
        raise TypeError("the elements of this array cannot be read")
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x.dtype, *_contents(jax.random.key_data(x))
    return x.shape, x.dtype, x.weak_type, np.asarray(x).tobytes()

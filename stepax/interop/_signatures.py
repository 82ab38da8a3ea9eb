"""Functions with Optax's signatures: without the parameters that we added.

Configuration tools inspect the parameters of a function, and set `weight_decay`
wherever they find the name.  The added parameters still work if they are passed.
"""

import functools as ft
import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from .._engine.functions.signatures import ORIGINALS


# From parameters that Optax does not have to the functions that have them.
ADDED = {
    "adam_eps": "muon",
    "adam_nesterov": "muon",
    "argnums": "value_and_grad_from_state",
    "axis_name": (
        "adafactor adaptive_grad_clip clip_by_block_rms clip_by_global_norm fromage "
        "lamb lars microbatch muon normalize_by_update_norm novograd "
        "scale_by_factored_rms scale_by_muon scale_by_novograd "
        "scale_by_param_block_norm scale_by_param_block_rms scale_by_trust_ratio"
    ),
    "bias_correction": (
        "dadapt_adamw muon prodigy scale_by_muon scale_by_yogi sophia yogi"
    ),
    "center_late": "acprop scale_by_acprop",
    "change_factor": "adan scale_by_adan",
    "eps_in_sqrt": "adagrad scale_by_rss",
    "first_step": "schedule_free_adamw schedule_free_sgd",
    "growth_rate": "prodigy",
    "has_aux": "value_and_grad_from_state",
    "immediate": "rprop scale_by_rprop",
    "inner_momentum": "schedule_free_adamw",
    "key": "dpsgd",
    "momentum_decay": "nadam",
    "ns_dtype": "muon scale_by_muon",
    "positive_only": "lbfgs scale_by_lbfgs",
    "proximal_decay": "adan momo momo_adam",
    "sampler": "hutchinson_estimator_diag_hessian",
    "shape_factor": "muon",
    "sharding": "muon scale_by_muon",
    "side": "galore scale_by_galore",
    "stagger": "galore scale_by_galore",
    "slice_p": "prodigy",
    "use_new_curvature": "sophia",
    "weight_decay": (
        "adabelief adafactor adagrad adam adamax adopt amsgrad dpsgd fromage nadam "
        "noisy_sgd optimistic_adam optimistic_adam_v2 optimistic_gradient_descent "
        "polyak_sgd radam rmsprop rprop sgd sign_sgd signum sm3 yogi"
    ),
    "weight_decay_mask": (
        "acprop adabelief adagrad adam adamax adamaxw adamw adan ademamix adopt "
        "amsgrad cocob dadapt_adamw dog dowg dpsgd fromage galore lamb lion madgrad "
        "momo momo_adam nadam nadamw noisy_sgd novograd optimistic_adam "
        "optimistic_adam_v2 optimistic_gradient_descent polyak_sgd prodigy radam "
        "rmsprop rprop scale_by_novograd schedule_free_adamw schedule_free_sgd sgd "
        "sign_sgd signum simplified_ademamix sm3 yogi"
    ),
    "where": "clip_by_global_norm",
    "weight_step_power": "schedule_free schedule_free_adamw schedule_free_sgd",
}


def like_optax(x: Any) -> Any:
    """`x`, or for a function with added parameters, a copy that hides them."""
    is_ours = isinstance(x, FunctionType) and x.__module__.startswith("stepax.")
    return _twin(x) if is_ours else x


def prepare(modules: Iterable[Any]) -> None:
    """Create all copies, so that pickles find them in a fresh process."""
    names = {name for names in ADDED.values() for name in names.split()}
    for module in modules:
        for name in names & vars(module).keys():
            like_optax(vars(module)[name])


@ft.cache
def _twin(f: FunctionType) -> FunctionType:
    """The same code with another signature, without an additional call."""
    hidden = {k for k, names in ADDED.items() if f.__name__ in names.split()}
    if not hidden:
        return f
    twin: Any = FunctionType(f.__code__, f.__globals__, f.__name__, None, f.__closure__)
    signature = inspect.signature(f)
    kept = [p for k, p in signature.parameters.items() if k not in hidden]
    twin.__doc__, twin.__module__ = f.__doc__, f.__module__
    twin.__qualname__ = f"{f.__name__}.like_optax"  # where `pickle` finds it
    named: Any = f
    named.like_optax = twin
    twin.__annotations__ = {
        k: x for k, x in f.__annotations__.items() if k not in hidden
    }
    twin.__kwdefaults__ = {p.name: p.default for p in kept if p.kind is p.KEYWORD_ONLY}
    twin.__signature__ = signature.replace(parameters=kept)
    ORIGINALS[twin] = f
    return twin

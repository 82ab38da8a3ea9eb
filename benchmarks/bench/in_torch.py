"""The same optimizers in PyTorch, where available."""

import gc
from collections.abc import Callable
from typing import Any

from .cases import RATE


HOW = {
    "torch fused": {"fused": True},
    "torch foreach": {"foreach": True},
    "torch loop": {"foreach": False},
}


def sgd(torch: Any, params: list, how: dict) -> Any:
    return torch.optim.SGD(params, RATE, momentum=0.9, **how)


def adam(torch: Any, params: list, how: dict) -> Any:
    return torch.optim.Adam(params, RATE, **how)


def adamw(torch: Any, params: list, how: dict) -> Any:
    return torch.optim.AdamW(params, RATE, weight_decay=1e-4, **how)


def masked_adamw(torch: Any, params: list, how: dict) -> Any:
    vectors = [p for p in params if p.ndim < 2]
    groups = [{"params": [p for p in params if p.ndim > 1], "weight_decay": 1e-4}]
    groups += [{"params": vectors, "weight_decay": 0.0}] if vectors else []
    return torch.optim.AdamW(groups, RATE, **how)


def adafactor(torch: Any, params: list, how: dict) -> Any:
    return torch.optim.Adafactor(params, RATE, **how)


class _Both:
    """Two optimizers in one."""

    def __init__(self, *optimizers: Any):
        self.optimizers, self.state = optimizers, {}

    def step(self) -> None:
        for each in self.optimizers:
            each.step()


def muon(torch: Any, params: list, how: dict) -> Any:
    """Muon for matrices, the only ones that it takes, and AdamW for the others."""
    matrices = torch.optim.Muon([p for p in params if p.ndim == 2], RATE)
    others = [p for p in params if p.ndim != 2]
    return _Both(matrices, torch.optim.AdamW(others, RATE, fused=True))


# The only way of those that are not written in three.
LOOP = "torch loop"
ONLY = {muon: LOOP}

# The optimizer, whether gradients are clipped, and whether the rate is scheduled.
MADE: dict[str, tuple[Callable, bool, bool]] = {
    "sgd, momentum": (sgd, False, False),
    "adam": (adam, False, False),
    "adamw": (adamw, False, False),
    "clip + adamw": (adamw, True, False),
    "clip + scheduled adamw, mask": (masked_adamw, True, True),
    "adafactor": (adafactor, False, False),
    "muon": (muon, False, False),
    "muon, bfloat16": (muon, False, False),
}


def steps(case: str, params: list, gradients: list) -> tuple[list, dict[str, Callable]]:
    """The parameters, and a function that takes a step for each PyTorch implementation.

    params, gradients: NumPy arrays, which are copied.  All implementations share the
        tensors and the state, in turn.
    """
    import torch

    make, is_clipped, is_scheduled = MADE[case]
    place = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = [torch.nn.Parameter(torch.tensor(p, device=place)) for p in params]
    for p, g in zip(tensors, gradients, strict=True):
        p.grad = torch.tensor(g, device=place)
    found: dict[str, Callable] = {}
    state = None
    for name, how in HOW.items():
        if place == "cuda" and name == LOOP and make not in ONLY:
            continue  # waits for the host, many times as long as the others
        if make is adafactor and "fused" in how:
            continue  # the optimizer lacks this implementation
        if ONLY.get(make, name) != name:
            continue
        optimizer = make(torch, tensors, how)
        optimizer.state = optimizer.state if state is None else state
        state = optimizer.state
        found[name] = _step(torch, optimizer, tensors, is_clipped, is_scheduled)
    return tensors, found


def wait() -> None:
    """Wait until the GPU has finished all steps."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def release() -> None:
    """Give the memory of tensors that are no longer used back to the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _step(torch, optimizer, tensors, is_clipped, is_scheduled):
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR
    scheduler = cosine(optimizer, 10_000) if is_scheduled else None

    def step():
        if is_clipped:
            torch.nn.utils.clip_grad_norm_(tensors, 1.0)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()

    return step

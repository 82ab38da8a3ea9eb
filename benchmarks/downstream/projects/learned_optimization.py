"""Learned Optimization: its wrappers of Optax's optimizers, converted back."""

import inspect
from functools import partial

from ..project import STEPS, Project


PROJECT = Project(
    repository="google/learned_optimization",
    commit="32186aa46a96f26ba0625755f93c55659adcd523",
    packages="absl-py chex dm-haiku flax gin-config optax-shampoo tensorflow-cpu",
    tests=(
        "learned_optimization/optimizers/optax_opts_test.py",
        "learned_optimization/optimizers/opt_to_optax_test.py",
        "learned_optimization/optimizers/base_test.py",
        "learned_optimization/optimizers/gradient_accumulator_test.py",
        "learned_optimization/optimizers/nadamw_test.py",
        "learned_optimization/optimizers/shampoo_test.py",
    ),
    patched=("`jax.tree_map` is `jax.tree.map`",),
)
# For arguments without a default.
GIVEN = {"learning_rate": 1e-2, "block_size": 128}


def patch():
    import jax

    jax.tree_map = jax.tree.map


def optimizers():
    from learned_optimization.optimizers import (
        alias,
        base,
        optax_opts as known,
        shampoo,
    )

    kinds = {k: x for k, x in {**vars(known), **vars(shampoo)}.items() if is_kind(x)}
    kinds |= {k: x for k, x in vars(alias).items() if k.startswith("Adam")}
    makers = {k: partial(made, x) for k, x in kinds.items()}
    makers["clipped"] = lambda: base.GradientClipOptimizer(known.Adam())
    makers["grafted"] = lambda: base.GraftedOptimizer(known.SGDM(), known.Adam())
    return {k: partial(converted, x) for k, x in makers.items()}


def is_kind(x):
    from learned_optimization.optimizers.optax_opts import OptaxOptimizer as Kind

    return inspect.isclass(x) and issubclass(x, Kind) and x is not Kind


def made(kind):
    wanted = inspect.signature(kind).parameters.values()
    wanted = [x.name for x in wanted if x.default is x.empty]
    return kind(**{k: GIVEN[k] for k in wanted})


def converted(make):
    from learned_optimization.optimizers.opt_to_optax import opt_to_optax_opt

    return opt_to_optax_opt(make(), num_steps=STEPS)

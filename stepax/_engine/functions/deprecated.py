"""Deprecated names, in one table, and the warning for them."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from .calls import level_of_user


class Successor(NamedTuple):
    """new: the replacement.

    since: the version of Optax that deprecated the old name.
    advice: the wording, which is Optax's where programs match it.
    """

    new: str
    since: str
    advice: str = "use `{}`"


# Names of Optax that we keep as long as it does, for which our `__getattr__`s and
# factories warn.  A name without a row is not deprecated.
DEPRECATED = {
    "DifferentiallyPrivateAggregateState": Successor(
        "contrib.DifferentiallyPrivateAggregateState", "0.1.8"
    ),
    "convex_kl_divergence": Successor(
        "generalized_kl_divergence", "0.2.8", "use {} instead"
    ),
    "differentially_private_aggregate": Successor(
        "contrib.differentially_private_aggregate", "0.1.8"
    ),
    "dpsgd": Successor("contrib.dpsgd", "0.1.8"),
    "fisher_diag": Successor("jnp.square(jax.grad(loss)(params, ...))", "0.2.8"),
    "global_norm": Successor("tree.norm", "0.2.8"),
    "hessian_diag": Successor("jnp.diag(jax.hessian(loss)(...))", "0.2.8"),
    "hvp": Successor("jax.jvp(jax.grad(loss), (params,), (v,))[1]", "0.2.8"),
    "inject_stateful_hyperparams": Successor("inject_hyperparams", "0.2.8"),
    "optimistic_adam": Successor("optimistic_adam_v2", "0.2.8", "use `{}` instead"),
    "seed": Successor("key", "0.2.8"),
    "tree_add_scalar_mul": Successor("tree.add_scale", "0.2.5"),
    "tree_l1_norm": Successor("tree.norm(..., ord=1)", "0.2.5"),
    "tree_l2_norm": Successor("tree.norm", "0.2.5"),
    "tree_linf_norm": Successor('tree.norm(..., ord="inf")', "0.2.5"),
    "tree_scalar_mul": Successor("tree.scale", "0.2.5"),
}


def is_replaced(name: str) -> bool:
    """Whether the name itself is deprecated, and not only its old home."""
    # `stepax.dpsgd` moved to `stepax.contrib.dpsgd`: the factory must not warn there.
    return name in DEPRECATED and DEPRECATED[name].new.rpartition(".")[2] != name


def warn_deprecated(name: str) -> None:
    """Warn the caller of the library that `name` is deprecated."""
    new, since, advice = DEPRECATED[name]
    message = f"`{name}` is deprecated since Optax {since}; {advice.format(new)}"
    warnings.warn(message, DeprecationWarning, stacklevel=level_of_user())


def deprecated_attributes(
    old: dict[str, Any], other: Callable
) -> Callable[[str], object]:
    """A module's `__getattr__` that finds old names, with a warning."""

    # Warns when the name is looked up: `from stepax.tree_utils import old` warns too.
    def find(name: str) -> object:
        if name not in old:
            return other(name)
        warn_deprecated(name)
        return old[name]

    return find

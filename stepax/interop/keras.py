"""Stepax's transformations as Keras optimizers, for models that run on JAX.

`model.compile(KerasOptimizer(stepax.adamw(1e-3)), loss="mse")` is all that is needed:
`fit`, callbacks, distribution and `model.save` work as with any Keras optimizer.  The
parameters are a tree of the model's variables by their paths, without the common
prefix, so that masks and labels are patterns such as `"hidden/kernel"`.
"""

import os
import typing as _typing
from collections.abc import Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import keras

import stepax

from .._engine.base import OptState, require_transformation
from .._names import attributes as _attributes


__all__ = ["KerasOptimizer"]


@keras.saving.register_keras_serializable(package="stepax")
class KerasOptimizer(keras.optimizers.Optimizer):
    """A Keras optimizer that takes the steps of a transformation.

    The arrays of the state are variables of the optimizer, so that Keras saves,
    restores and distributes them.  Other options of Keras's optimizers are wrappers
    here: `MultiSteps` for accumulation, `clip_by_global_norm`, `averages`.

    tx: a transformation, such as `stepax.adamw(1e-3)`.  Its `update` receives gradients
        and parameters, but no keywords, since Keras does not pass a loss.
    name: the name of the optimizer, the prefix of its variables.

    Raises a `TypeError` if `tx` is not a transformation, and a `RuntimeError` if Keras
    does not run on JAX.
    """

    def __init__(
        self,
        tx: stepax.GradientTransformation | stepax.MultiSteps,
        name: str = "stepax",
    ):
        if keras.backend.backend() != "jax":
            raise RuntimeError(
                f"Keras runs on {keras.backend.backend()}; set the environment "
                "variable `KERAS_BACKEND` to `jax` before it is imported"
            )
        require_transformation(tx, "`tx` of `KerasOptimizer`")
        # A function: for a number Keras would store a learning rate that nothing reads.
        super().__init__(learning_rate=lambda step: 0.0, name=name)
        self._stepax = _Stepax(tx)

    def build(self, variables: Sequence[Any]) -> None:
        """Make the state for these variables of a model; Keras calls it."""
        if self.built:
            return
        super().build(variables)
        trained = [x for x in variables if not _is_overwritten(x)]
        self._stepax.variables = _by_path(trained)
        state = self._stepax.tx.init(self._stepax.params())
        leaves, self._stepax.structure = jax.tree.flatten_with_path(state)
        self._stepax.slots = [_Slot(self, path, x) for path, x in leaves]

    @property
    def state(self) -> Any:
        """The state of the transformation, for `stepax.tree.get` and the like."""
        self._check_built("state")
        return self._stepax.state()

    def set_state(self, state: OptState) -> None:
        """Replace the state, for example with a result of `stepax.tree.set`.

        Raises a `ValueError` for a state of another structure.
        """
        # No setter of `state`: Keras would replace the dictionaries it finds in it.
        self._check_built("set_state")
        leaves, structure = jax.tree.flatten(state)
        if structure != self._stepax.structure:
            raise ValueError(
                "the state must have the structure of the current one, "
                f"{self._stepax.structure}, not {structure}"
            )
        for slot, x in zip(self._stepax.slots, leaves, strict=True):
            slot.assign(x)

    @property
    def learning_rate(self) -> Any:
        """The last learning rate; it can be set if `inject_hyperparams` keeps it."""
        self._check_built("learning_rate")
        found = stepax.hyperparams(self._stepax.tx, self.state)
        rates = {k: x for k, x in found.items() if k.endswith("learning_rate")}
        if len(rates) != 1:
            names = ", ".join(f"`{x}`" for x in rates)
            listed = f" ({names})" if rates else ""
            raise AttributeError(
                f"the optimizer has {len(rates)} learning rates{listed}, not one; see "
                "`stepax.hyperparams(tx, optimizer.state)`"
            )
        return next(iter(rates.values()))

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        try:
            self.set_state(stepax.tree.set(self.state, learning_rate=value))
        except KeyError as error:
            raise ValueError(
                "the learning rate is not part of the state, so it cannot be set; "
                "construct the optimizer with `stepax.inject_hyperparams`, as in "
                "`stepax.inject_hyperparams(stepax.adamw)(learning_rate=1e-3)`"
            ) from error

    def apply(
        self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None
    ) -> None:
        """Take a step; Keras calls it.

        grads: a gradient, or `None`, for each variable.
        trainable_variables: variables of the model; all, in the order of `build`, if
            `None`.

        Raises a `ValueError` for a variable that `build` has not seen.
        """
        if trainable_variables is None:
            self._check_built("apply")
            given = [*self._trainable_variables]
        else:
            given = [*trainable_variables]
            self.build(given)
        by_id = {id(v): g for v, g in zip(given, grads, strict=True)}
        known = {id(v) for v in self._trainable_variables}
        for v in given:
            if id(v) not in known:
                raise ValueError(
                    f"the variable `{v.path}` is not one of the variables that the "
                    "optimizer was built with; make a new optimizer for it"
                )
        for v in filter(_is_overwritten, given):
            v.assign(by_id[id(v)])
        self._stepax.step(by_id)
        iterations: Any = self.iterations
        iterations.assign_add(1)

    def get_config(self) -> dict[str, Any]:
        """The name and the transformation, by `stepax.to_config`, for `model.save`."""
        return {"tx": stepax.to_config(self._stepax.tx), "name": self.name}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> "KerasOptimizer":
        """The optimizer of `get_config`, without its state."""
        return cls(stepax.from_config(config["tx"]), name=config["name"])

    def _check_built(self, name: str) -> None:
        if not self.built:
            raise AttributeError(
                f"`{name}` needs the state, which does not exist yet: fit the model, "
                "or call `optimizer.build(model.trainable_variables)`"
            )


class _Stepax:
    """A transformation and the variables it works on, as a tree.

    A separate class, since Keras wraps the lists that it finds in attributes.
    """

    variables: Any
    slots: list["_Slot"]
    structure: Any

    def __init__(self, tx: stepax.GradientTransformation | stepax.MultiSteps):
        self.tx: Any = tx

    def params(self) -> Any:
        return jax.tree.map(lambda v: v.value, self.variables)

    def state(self) -> Any:
        return jax.tree.unflatten(self.structure, [x.value() for x in self.slots])

    def step(self, by_id: dict[int, Any]) -> None:
        """A step with the gradients of the variables of these ids."""
        params = self.params()
        gradients = jax.tree.map(lambda v: by_id.get(id(v)), self.variables)
        updates, state = self.tx.update(gradients, self.state(), params)
        new = stepax.apply_updates(params, updates)
        pairs = zip(*map(jax.tree.leaves, (self.variables, new)), strict=True)
        for v, x in pairs:
            v.assign(x if v.constraint is None else v.constraint(x))
        for slot, x in zip(self.slots, jax.tree.leaves(state), strict=True):
            slot.assign(x)


class _Slot:
    """An array of the state in a variable; for a random key, its data."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, path: tuple, x: Any):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        self.key = jax.random.key_impl(x) if is_key else None
        data = self._data(x)
        place = data.sharding
        self.variable = optimizer.add_variable(
            data.shape,
            cast(Any, lambda shape, dtype=None: data),
            dtype=data.dtype.name,
            # Keras accepts a sharding of JAX, and otherwise replicates.
            layout=place if isinstance(place, jax.sharding.NamedSharding) else None,
            name=jax.tree_util.keystr(path, simple=True, separator="_"),
        )

    def value(self) -> Any:
        data = self.variable.value
        if self.key is None:
            return data
        return jax.random.wrap_key_data(data, impl=self.key)

    def assign(self, x: Any) -> None:
        self.variable.assign(self._data(x))

    def _data(self, x: Any) -> Any:
        return x if self.key is None else jax.random.key_data(x)


def _is_overwritten(variable: Any) -> bool:
    """Whether its gradient is its new value, as for Keras's scales of float8."""
    return getattr(variable, "overwrite_with_gradient", False)


def _by_path(variables: Sequence[Any]) -> Any:
    """The variables in dictionaries of dictionaries.

    The common prefix is removed: it may be the name of the model, which a loaded model
    does not have.
    """
    paths = [variable.path.split("/") for variable in variables]
    shared = len(os.path.commonprefix([path[:-1] for path in paths]))
    tree = {}
    for variable, path in zip(variables, paths, strict=True):
        *folders, name = path[shared:]
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict) or name in node:
            raise ValueError(
                f"the path `{variable.path}` of a variable, or a part of it, is "
                "also the path of another one; rename one of them, or its layer"
            )
        node[name] = variable
    return tree


if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)

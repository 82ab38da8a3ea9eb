"""The functions of `stepax.tree` under their long Optax names."""

import functools as ft
from typing import TYPE_CHECKING

from . import tree
from ._engine.functions import deprecations
from ._engine.trees.search import NamedTupleKey as NamedTupleKey
from ._names import attributes


__all__ = [
    "NamedTupleKey", "tree_add", "tree_add_scale", "tree_allclose", "tree_batch_shape",
    "tree_bias_correction", "tree_cast", "tree_cast_like", "tree_clip", "tree_conj",
    "tree_div", "tree_dtype", "tree_full_like", "tree_get", "tree_get_all_with_path",
    "tree_map_params", "tree_max", "tree_min", "tree_mul", "tree_norm",
    "tree_ones_like", "tree_random_like", "tree_real", "tree_scale", "tree_set",
    "tree_size", "tree_split_key_like", "tree_sub", "tree_sum",
    "tree_unwrap_random_key_data", "tree_update_infinity_moment", "tree_update_moment",
    "tree_update_moment_per_elem_norm", "tree_vdot", "tree_where", "tree_zeros_like",
]  # fmt: skip


tree_add = tree.add
tree_add_scale = tree.add_scale
tree_allclose = tree.allclose
tree_batch_shape = tree.batch_shape
tree_bias_correction = tree.bias_correction
tree_cast = tree.cast
tree_cast_like = tree.cast_like
tree_clip = tree.clip
tree_conj = tree.conj
tree_div = tree.div
tree_dtype = tree.dtype
tree_full_like = tree.full_like
tree_get = tree.get
tree_get_all_with_path = tree.get_all_with_path
tree_map_params = tree.map_params
tree_max = tree.max
tree_min = tree.min
tree_mul = tree.mul
tree_norm = tree.norm
tree_ones_like = tree.ones_like
tree_random_like = tree.random_like
tree_real = tree.real
tree_scale = tree.scale
tree_set = tree.set
tree_size = tree.size
tree_split_key_like = tree.split_key_like
tree_sub = tree.sub
tree_sum = tree.sum
tree_unwrap_random_key_data = tree.unwrap_random_key_data
tree_update_infinity_moment = tree.update_infinity_moment
tree_update_moment = tree.update_moment
tree_update_moment_per_elem_norm = tree.update_moment_per_elem_norm
tree_vdot = tree.vdot
tree_where = tree.where
tree_zeros_like = tree.zeros_like

if not TYPE_CHECKING:
    __dir__, _other = attributes(__name__)
    __getattr__ = deprecations.attributes(
        {
            "tree_scalar_mul": tree_scale,
            "tree_add_scalar_mul": tree_add_scale,
            "tree_l1_norm": ft.partial(tree_norm, ord=1),
            "tree_l2_norm": ft.partial(tree_norm, ord=2),
            "tree_linf_norm": ft.partial(tree_norm, ord="inf"),
        },
        _other,
    )

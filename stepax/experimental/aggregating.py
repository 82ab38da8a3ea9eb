"""Aggregation of per-example gradients; this module only lists names."""

import typing as _typing

from .._engine.trees.packed import register_states as _register_states
from .._names import attributes as _attributes
from ._aggregate import (
    AccumulateAvgUpdatesState as AccumulateAvgUpdatesState,
    Aggregator as Aggregator,
    AggregatorUpdateFn as AggregatorUpdateFn,
    accumulate_avg_updates as accumulate_avg_updates,
    average_incrementally_updates as average_incrementally_updates,
    average_per_element_updates as average_per_element_updates,
    get_batch_size_from_per_elt_updates as get_batch_size_from_per_elt_updates,
    process as process,
)
from ._variance import (
    PerElementMeanAndSumSqDiffGradsState as PerElementMeanAndSumSqDiffGradsState,
    PerElementMeanAndVarianceEMAState as PerElementMeanAndVarianceEMAState,
    add_mean_variance_to_opt as add_mean_variance_to_opt,
    get_per_element_mean_and_sum_sq_diff_grads as get_per_element_mean_and_sum_sq_diff_grads,  # noqa: E501
    get_unbiased_mean_and_variance_ema as get_unbiased_mean_and_variance_ema,
    track_per_element_mean_and_variance_with_ema as track_per_element_mean_and_variance_with_ema,  # noqa: E501
)


_register_states()

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (known when it runs)
    name for name in globals() if not name.startswith("_")
]

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)

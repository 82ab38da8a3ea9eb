"""The door for authors: what optimizers, transforms and wrappers are written with.

They take it by one line, `from .._engine import rules as rx`, and only arithmetic by
name, so that it reads like the paper: `from .._engine.arrays.moments import ema`.  A
name is here if several files need it; this module only lists names.
"""

from jax.typing import ArrayLike, DTypeLike

from .arrays.coding import holds_codes
from .arrays.placement import replicated, whole_on_mesh_of, with_sharding_of
from .arrays.precision import (
    compute_dtype,
    computed_wide,
    is_inexact,
    promote_freely,
    real_dtype,
    require_floating,
    scalar_dtype,
)
from .base import (
    ArrayTree,
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskedNode,
    MaskOrFn,
    OptState,
    Params,
    ScalarOrSchedule,
    Schedule,
    TransformationLike,
    Updates,
    as_array,
    init_empty_state,
    is_array,
    is_none,
    optax,
    optax_compatible,
    require_transformation,
)
from .base.call import Call, call_of
from .base.node import (
    Closure,
    Transformation,
    init_of,
    node_of,
    titled,
    transformation,
    with_extra_args_support,
    with_init,
    with_keywords,
)
from .factories.ranges import (
    AT_LEAST_0,
    AT_LEAST_1,
    CAP,
    MOMENTUM,
    POSITIVE,
    POSITIVE_CAP,
    UP_TO_1,
    Range,
)
from .factories.recorded import recorded, traits
from .factories.registry import public
from .factories.scheduled import scheduled
from .functions.calls import explain_misuse, is_transformation, pass_on
from .step import Gradients, has_no_gradient, is_float0
from .step.array_split import ArraySplit, AxisName, floored_norm
from .step.batched import Batched
from .step.leafwise import (
    all_finite,
    check_gradients,
    is_absent,
    keep_dtypes,
    map_gradients,
    map_stored,
    require_floats,
    zeros_like_updates,
)
from .step.nest import Composite, like_updates
from .step.plan import build, step_if
from .step.rule import (
    COUNT,
    MAXIMUM,
    MEAN_SQUARE,
    REAL,
    REDUCED,
    SQUARES,
    START,
    Rule,
    Slot,
    Varied,
    copy_of,
    from_count,
    from_step,
    is_trainable,
    real_scalar,
    unchanged,
    zeros_for,
    zeros_like,
)
from .step.turns import Renewal, once_in
from .trees import errors, selection
from .trees.apply import apply_updates
from .trees.errors import require_one_of
from .trees.migrate import dequantize, stored_like
from .trees.pack import by_leaf, pack
from .trees.packed import Packed, holds_packed
from .trees.search import Part, get_all_with_path, slots_like_params
from .xla import branch, kept_or, varying

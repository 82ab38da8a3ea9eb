"""The door for authors: what optimizers, transforms and wrappers are written with.

They take it by one line, `from .._engine import rules as rx`, and only arithmetic by
name, so that it reads like the paper: `from .._engine.arrays.moments import ema`.  A
name is here if several files need it; this module only lists names.
"""

from jax.typing import ArrayLike as ArrayLike, DTypeLike as DTypeLike

from .arrays.coding import holds_codes as holds_codes
from .arrays.placement import (
    replicated as replicated,
    whole_on_mesh_of as whole_on_mesh_of,
    with_sharding_of as with_sharding_of,
)
from .arrays.precision import (
    compute_dtype as compute_dtype,
    computed_wide as computed_wide,
    is_inexact as is_inexact,
    promote_freely as promote_freely,
    real_dtype as real_dtype,
    require_floating as require_floating,
    scalar_dtype as scalar_dtype,
)
from .base import (
    ArrayTree as ArrayTree,
    EmptyState as EmptyState,
    GradientTransformation as GradientTransformation,
    GradientTransformationExtraArgs as GradientTransformationExtraArgs,
    MaskedNode as MaskedNode,
    MaskOrFn as MaskOrFn,
    OptState as OptState,
    Params as Params,
    ScalarOrSchedule as ScalarOrSchedule,
    Schedule as Schedule,
    TransformationLike as TransformationLike,
    Updates as Updates,
    Whole as Whole,
    as_array as as_array,
    init_empty_state as init_empty_state,
    is_array as is_array,
    is_none as is_none,
    optax as optax,
    optax_compatible as optax_compatible,
    require_transformation as require_transformation,
)
from .base.call import Call as Call, call_of as call_of
from .base.node import (
    Closure as Closure,
    Transformation as Transformation,
    init_of as init_of,
    node_of as node_of,
    titled as titled,
    transformation as transformation,
    with_extra_args_support as with_extra_args_support,
    with_init as with_init,
    with_keywords as with_keywords,
)
from .factories.ranges import (
    AT_LEAST_0 as AT_LEAST_0,
    AT_LEAST_1 as AT_LEAST_1,
    CAP as CAP,
    MOMENTUM as MOMENTUM,
    POSITIVE as POSITIVE,
    POSITIVE_CAP as POSITIVE_CAP,
    UP_TO_1 as UP_TO_1,
    Range as Range,
)
from .factories.recorded import recorded as recorded, traits as traits
from .factories.registry import public as public
from .factories.scheduled import scheduled as scheduled
from .functions.calls import (
    explain_misuse as explain_misuse,
    is_transformation as is_transformation,
    pass_on as pass_on,
)
from .step import (
    Gradients as Gradients,
    has_no_gradient as has_no_gradient,
    is_float0 as is_float0,
)
from .step.array_split import (
    ArraySplit as ArraySplit,
    AxisName as AxisName,
    floored_norm as floored_norm,
)
from .step.batched import Batched as Batched
from .step.leafwise import (
    all_finite as all_finite,
    check_gradients as check_gradients,
    is_absent as is_absent,
    keep_dtypes as keep_dtypes,
    map_gradients as map_gradients,
    map_stored as map_stored,
    require_floats as require_floats,
    zeros_like_updates as zeros_like_updates,
)
from .step.nest import Composite as Composite, like_updates as like_updates
from .step.plan import build as build, step_if as step_if
from .step.rule import (
    COUNT as COUNT,
    MAXIMUM as MAXIMUM,
    MEAN_SQUARE as MEAN_SQUARE,
    REAL as REAL,
    REDUCED as REDUCED,
    SQUARES as SQUARES,
    START as START,
    Rule as Rule,
    Slot as Slot,
    Varied as Varied,
    copy_of as copy_of,
    from_count as from_count,
    from_step as from_step,
    is_trainable as is_trainable,
    real_scalar as real_scalar,
    unchanged as unchanged,
    zeros_for as zeros_for,
    zeros_like as zeros_like,
)
from .step.turns import Renewal as Renewal, once_in as once_in
from .trees import errors as errors, selection as selection
from .trees.apply import apply_updates as apply_updates
from .trees.errors import require_one_of as require_one_of
from .trees.migrate import dequantize as dequantize, stored_like as stored_like
from .trees.pack import by_leaf as by_leaf, pack as pack
from .trees.packed import Packed as Packed, holds_packed as holds_packed
from .trees.search import (
    Part as Part,
    get_all_with_path as get_all_with_path,
    slots_like_params as slots_like_params,
)
from .xla import branch as branch, kept_or as kept_or, varying as varying

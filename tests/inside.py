"""What tests need of the inside of Stepax: the one list to change when it moves.

A test that can be written with public names imports none of these, and one that needs a
name that no other test needs imports it itself.
"""

from stepax._checkpoint.match import (
    Policy as Policy,
    match as match,
)
from stepax._diagnose.diagnose import (
    CHECKS as CHECKS,
    Check as Check,
)
from stepax._distributed.audit import (
    bytes_of as bytes_of,
    collectives as collectives,
)
from stepax._engine.arrays.coding import (
    Coded as Coded,
    holds_codes as holds_codes,
    is_coded as is_coded,
)
from stepax._engine.arrays.moments import percentile as percentile
from stepax._engine.base import (
    COMPATIBLE as COMPATIBLE,
    as_array as as_array,
    is_array as is_array,
    is_none as is_none,
)
from stepax._engine.base.node import (
    Closure as Closure,
    node_of as node_of,
    transformation as transformation,
    with_call as with_call,
    with_init as with_init,
)
from stepax._engine.factories.argument_checks import (
    BY_PATH as BY_PATH,
    checks_of as checks_of,
)
from stepax._engine.factories.ranges import (
    ANY as ANY,
    RANGES as RANGES,
    share as share,
)
from stepax._engine.factories.registry import (
    ROWS as ROWS,
    Row as Row,
)
from stepax._engine.factories.scheduled import (
    SCHEDULES as SCHEDULES,
)
from stepax._engine.functions.signatures import (
    NAMES as NAMES,
    members as members,
    of_parameters as of_parameters,
    original as original,
    text as text,
)
from stepax._engine.inspect import (
    examine as examine,
    open_components as open_components,
)
from stepax._engine.step import (
    batched as batched,
    coded_slots as coded_slots,
    leaf_program as leaf_program,
)
from stepax._engine.step.array_split import (
    ArraySplit as ArraySplit,
)
from stepax._engine.step.plan import (
    build as build,
)
from stepax._engine.trees import (
    selection as selection,
)
from stepax._engine.trees.migrate import (
    named as named,
)
from stepax._engine.trees.packed import (
    EXPORTED as EXPORTED,
    register_states as register_states,
)
from stepax._engine.trees.search import (
    open_node as open_node,
    slots_like_params as slots_like_params,
    spell as spell,
)
from stepax._engine.xla import (
    order as order,
    programs as programs,
)
from stepax._names import (
    _MODULES as _MODULES,
    HOMES as HOMES,
    INSTALLS as INSTALLS,
    MOVED as MOVED,
)
from stepax._optimizers import (
    orthogonal as orthogonal,
)
from stepax._optimizers.orthogonal import (
    NORMS as NORMS,
    coefficients as coefficients,
    newton_schulz as newton_schulz,
    orthogonalize as orthogonalize,
)
from stepax.solve._minimize import (
    bundle as bundle,
    implicit as implicit,
    progress as progress,
    quasi_newton as quasi_newton,
    watch as watch,
)

"""Transformations, states and public names come back from a pickle as they were."""

import functools as ft
import inspect
import pickle
import re
import subprocess
import sys
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import ROWS, TREES, make, ndim
from compare import assert_same_tree

import stepax
import stepax.contrib
import stepax.distributed
import stepax.experimental.aggregating
import stepax.microbatching
import stepax.perturbations
import stepax.projections
import stepax.second_order


pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")


# Functions of a module, because pickles hold them by name.


def is_matrix(params: Any) -> Any:
    return jax.tree.map(lambda p: ndim(p) > 1, params)


def a_or_b(params: Any) -> Any:
    return jax.tree.map(lambda p: "a" if ndim(p) > 1 else "b", params)


def is_even(step: Any, **extra: Any) -> Any:
    return step % 2 == 0


def unchanged(updates: Any, params: Any = None) -> Any:
    return updates


def norm_after(before: Any, after: Any, params: Any) -> Any:
    return stepax.tree.norm(after)


def first_layer(path: Any) -> int:
    return 0


def clipped_sgd(learning_rate: Any, max_norm: Any) -> Any:
    return stepax.chain(
        stepax.clip_by_global_norm(max_norm), stepax.sgd(learning_rate, momentum=0.9)
    )


FUNCTIONS = {
    "mask": is_matrix,
    "freeze_mask": is_matrix,
    "param_labels": a_or_b,
    "should_transform_fn": is_even,
    "f": unchanged,
    "layers": first_layer,
    "metrics": {"norm": norm_after},
}


def factory(row: Any) -> Any:
    """What a factory of the registry makes; its functions can be pickled."""
    taken = inspect.signature(row.factory).parameters.values()
    names = [p.name for p in taken if p.kind is not p.KEYWORD_ONLY or p.default]
    more = {k: FUNCTIONS[k] for k in names if k in FUNCTIONS}
    if "seed" in names:  # the former name of `key`
        more["key"] = 0
    return make(row, **more)


def _steps(tx: Any, k: int = 2, **options: Any) -> Any:
    return stepax.MultiSteps(tx, k, **options)


def _matrices() -> Any:
    inner = {"a": stepax.contrib.muon(1e-2), "b": stepax.adamw(1e-2, mask=is_matrix)}
    return stepax.partition(inner, a_or_b)


NESTS: dict[str, Any] = {
    "injected": lambda: stepax.inject_hyperparams(stepax.adamw)(SCHEDULES["cosine"]()),
    "injected, own factory": lambda: stepax.inject_hyperparams(clipped_sgd)(0.1, 1.0),
    "injected, array": lambda: stepax.inject_hyperparams(stepax.adam)(
        learning_rate=jnp.float32(0.1), b1=0.8
    ),
    "injected, stateful": lambda: stepax.inject_hyperparams(stepax.sgd)(
        stepax.schedules.WrappedSchedule(SCHEDULES["linear"]())
    ),
    "steps": lambda: _steps(stepax.adamw(1e-2)).gradient_transformation(),
    "steps, skipping": lambda: _steps(
        clipped_sgd(0.1, 1.0), should_skip_update_fn=stepax.skip_not_finite
    ).gradient_transformation(),
    "named": lambda: stepax.named_chain(
        ("clip", stepax.clip(1.0)), ("adam", stepax.adam(1e-2))
    ),
    "nest": lambda: stepax.chain(
        stepax.zero_nans(), _matrices(), stepax.masked(stepax.ema(0.9), is_matrix)
    ),
    "nest, deep": lambda: stepax.partition(
        {"a": _matrices(), "b": stepax.named_chain(("x", stepax.lion(1e-3)))}, a_or_b
    ),
    "with extra args": lambda: stepax.with_extra_args_support(stepax.adamw(1e-2)),
    "scheduled": lambda: stepax.adamw(SCHEDULES["join"](), weight_decay=0.1),
}

SCHEDULES: dict[str, Any] = {
    "constant": lambda: stepax.constant_schedule(0.1),
    "linear": lambda: stepax.linear_schedule(0.1, 0.0, 10),
    "polynomial": lambda: stepax.polynomial_schedule(0.1, 0.0, 2, 10, 1),
    "exponential": lambda: stepax.exponential_decay(0.1, 5, 0.9, staircase=True),
    "piecewise": lambda: stepax.piecewise_constant_schedule(0.1, {3: 0.5}),
    "interpolate": lambda: stepax.piecewise_interpolate_schedule(
        "cosine", 0.1, {4: 0.5}
    ),
    "cosine": lambda: stepax.cosine_decay_schedule(0.1, 10),
    "onecycle": lambda: stepax.cosine_onecycle_schedule(10, 0.1),
    "linear onecycle": lambda: stepax.linear_onecycle_schedule(10, 0.1),
    "sgdr": lambda: stepax.sgdr_schedule(
        [{"init_value": 0.0, "peak_value": 0.1, "decay_steps": 9, "warmup_steps": 3}]
    ),
    "join": lambda: stepax.join_schedules(
        [stepax.linear_schedule(0.0, 0.1, 3), stepax.constant_schedule(0.1)], [3]
    ),
    "warmup constant": lambda: stepax.warmup_constant_schedule(0.0, 0.1, 5),
    "warmup cosine": lambda: stepax.warmup_cosine_decay_schedule(0.0, 0.1, 3, 9),
    "warmup exponential": lambda: stepax.warmup_exponential_decay_schedule(
        0.0, 0.1, 3, 5, 0.9
    ),
}

MODULES = (
    stepax, stepax.contrib, stepax.losses, stepax.schedules, stepax.transforms,
    stepax.tree, stepax.tree_utils, stepax.distributed, stepax.microbatching,
    stepax.perturbations, stepax.projections, stepax.second_order,
    stepax.experimental.aggregating,
)  # fmt: skip


def parameters(name: str) -> Any:
    """Parameters for a transformation; those of "packed" ones are packed."""
    params = {k: TREES["dict"]()[k] for k in "wb"}
    return stepax.tree.pack(params) if name.startswith("packed") else params


@ft.cache
def transformations() -> dict[str, Any]:
    """Each factory of the registry, nests, and transformations of packed parameters."""
    made = {row.name: factory(row) for row in ROWS.values()}
    made |= {f"nest: {name}": f() for name, f in NESTS.items()}
    return made | {f"packed: {n}": made[n] for n in ("adamw", "lion", "masked", "sgd")}


def others() -> dict[str, Any]:
    """Things that are no transformations."""
    params = parameters("dict")
    made = {f"schedule: {name}": f() for name, f in SCHEDULES.items()}
    made |= {
        "wrapped schedule": stepax.schedules.WrappedSchedule(SCHEDULES["linear"]()),
        "MultiSteps": _steps(stepax.adamw(1e-2)),
        "packed": parameters("packed"),
        "layout": parameters("packed").layout,
        "lookahead parameters": stepax.LookaheadParams.init_synced(params),
        "muon dimensions": stepax.contrib.MuonDimensionNumbers(),
        "normal": stepax.perturbations.Normal(),
        "gumbel": stepax.perturbations.Gumbel(),
        "empty": stepax.EmptyState(),
        "masked node": stepax.MaskedNode(),
        "accumulation": stepax.microbatching.AccumulationType.MEAN,
    }
    for name in ("nest", "injected", "named"):
        tx = NESTS[name]()
        made[f"description: {name}"] = stepax.describe(tx, params)
    return made


def public() -> dict[str, Any]:
    """Every public function and class, which a pickle may hold by name."""
    pairs = ((module, name) for module in MODULES for name in module.__all__)
    found = {f"{m.__name__}.{name}": getattr(m, name) for m, name in pairs}
    return {k: x for k, x in found.items() if isinstance(x, type | FunctionType)}


def printed(x: Any) -> str:
    """Without where in memory it is."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(x))


def again(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


def test_transformations_come_back_as_the_calls_they_were():
    made = transformations()
    assert {k: x for k, x in made.items() if again(x) != x} == {}
    assert {k: x for k, x in made.items() if printed(again(x)) != printed(x)} == {}


@pytest.mark.slow("test_every_wrapper_works_in_every_other")
def test_states_come_back():
    for name, tx in transformations().items():
        state = tx.init(parameters(name))
        assert_same_tree(again(state), state)


def test_other_things_come_back():
    for name, x in others().items():
        assert type(again(x)) is type(x), name
        assert printed(again(x)) == printed(x), name


def test_public_functions_and_classes_are_pickled_by_name():
    assert len(public()) > 400
    assert {k: x for k, x in public().items() if again(x) is not x} == {}


def test_a_pickle_loads_where_nothing_is_imported_yet(tmp_path):
    """Also a layout, whose hash is another one in that process."""
    tx = transformations()["nest: injected"]
    packed = parameters("packed")
    saved = tx.init(parameters("dict")), packed
    (tmp_path / "saved").write_bytes(pickle.dumps(saved))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
    assert "\n".join(done.stdout.splitlines()[:-1]) == repr(saved[0])


PROGRAM = """
import pickle, sys
state, packed = pickle.load(open(sys.argv[1], "rb"))
print(state)
from stepax import tree
new = tree.pack(tree.unpack(packed))
print(new.layout == packed.layout and hash(new.layout) == hash(packed.layout))
"""

"""Random nests of transformations, as text in which `o` is either library."""

import math
from typing import Any

from hypothesis import strategies as st

from fuzz.arguments import FACTORIES, calls, masks
from fuzz.runs import Program
from fuzz.trees import show, trees, trees_of


CONDITIONS = ["always", "at_even_steps", "if_small"]
OTHERS = [
    "o.monitor({'norm': o.global_norm})",
    "o.monitor({'mean': o.measure_with_ema(o.global_norm, 0.9)})",
    "o.snapshot('norm', o.global_norm)",
    "o.stateless(lambda u, p: jax.tree.map(lambda x: x + x, u))",
    "o.stateless_with_tree_map(lambda u, p: u + p)",
    "o.set_to_zero()",
    "o.identity()",
]
# Wrappers around one transformation, which is `{}`.
TEMPLATES = [
    "o.flatten({})",
    "o.with_extra_args_support({})",
    "o.contrib.split_real_and_imaginary({})",
    "o.contrib.mechanize({})",
    "o.contrib.mechanize({}, weight_decay=0.1, num_betas=2)",
    "o.contrib.schedule_free({}, 0.1)",
    "o.contrib.schedule_free({}, falling, b1=0.5, weight_lr_power=1.0)",
    "o.contrib.sam({}, o.contrib.normalize())",
    "o.contrib.sam({}, o.sgd(0.1), sync_period=3, reset_state=False)",
    "o.apply_if_finite({}, 0)",
    "o.apply_if_finite({}, 2)",
    "o.MultiSteps({}, 2).gradient_transformation()",
    "o.MultiSteps({}, 3, use_grad_mean=False).gradient_transformation()",
    "o.MultiSteps({}, lambda t: 1 + t % 2).gradient_transformation()",
    "o.MultiSteps({}, 1, should_skip_update_fn=o.skip_not_finite)"
    ".gradient_transformation()",
    "o.MultiSteps({}, 2, should_skip_update_fn=ft.partial(o.skip_large_updates, "
    "max_squared_norm=2.0)).gradient_transformation()",
    "o.inject_hyperparams(lambda r: o.chain({}, o.scale(r)))(r=0.5)",
    "o.inject_hyperparams(lambda r: o.chain({}, o.scale(r)))(r=falling)",
    "o.inject_stateful_hyperparams(lambda r: o.chain({}, o.scale(r)))(r=lambda t: 0.5)",
]


def members() -> st.SearchStrategy:
    return st.sampled_from(FACTORIES)


@st.composite
def single(draw: st.DrawFn, spec: Any) -> str:
    """A factory called, with its numbers injected now and then."""
    if draw(st.integers(0, 9)) == 9:
        return draw(st.sampled_from(OTHERS))
    call = draw(calls(draw(members()), spec))
    if draw(st.integers(0, 4)) == 4:
        name, arguments = call.split("(", 1)
        if arguments != ")":
            return f"o.inject_hyperparams({name})({arguments}"
    return call


@st.composite
def nests(draw: st.DrawFn, spec: Any, size: int) -> str:
    """A nest of at most `size` members and as many wrappers."""
    inside = lambda n: draw(nests(spec, n))
    if size <= 1:
        return draw(single(spec))
    left = draw(st.integers(1, size - 1))
    kind = draw(st.sampled_from(KINDS))
    match kind:
        case "single":
            return draw(single(spec))
        case "chain":
            return f"o.chain({inside(left)}, {inside(size - left)})"
        case "named_chain":
            return f"o.named_chain(('x', {inside(left)}), ('y', {inside(size - left)}))"
        case "masked":
            return f"o.masked({inside(size - 1)}, {draw(masks(spec))})"
        case "partition":
            labels = draw(
                st.one_of(st.just("matrix_or_not"), trees_of(spec, ["'a'", "'b'"]))
            )
            two = f"{{'a': {inside(left)}, 'b': {inside(size - left)}}}"
            return f"o.partition({two}, {labels})"
        case "freeze":
            return f"o.chain({inside(size - 1)}, o.freeze({draw(masks(spec))}))"
        case "selective_transform":
            mask = draw(masks(spec))
            return f"o.selective_transform({inside(size - 1)}, freeze_mask={mask})"
        case "condition":
            name = draw(st.sampled_from(["transform", "mask"]))
            when = draw(st.sampled_from(CONDITIONS))
            more = ", forward_extra_args=True" if when == "if_small" else ""
            return f"o.conditionally_{name}({inside(size - 1)}, {when}{more})"
    return kind.format(inside(size - 1))


KINDS = ["single", "chain", "chain", "named_chain", "masked", "masked", "partition"]
KINDS += ["partition", "freeze", "selective_transform", "condition", *TEMPLATES]


# What lets a step pass whose gradient is no number.
GUARDS = {
    "o.chain(o.zero_nans(), {})": [math.nan],
    "o.apply_if_finite({}, 2)": [math.nan, math.inf],
    "o.MultiSteps({}, 2, should_skip_update_fn=o.skip_not_finite)"
    ".gradient_transformation()": [math.nan, math.inf],
}


def gradients(*more: float) -> st.SearchStrategy:
    """The sizes of five gradients, some of them 0 or `more`."""
    size = st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.01, 100.0, 0.0, *more])
    return st.tuples(*[size] * 5)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A nest, a tree for it and five gradients."""
    spec = draw(trees())
    tx = draw(nests(spec, draw(st.integers(1, 4))))
    sizes = draw(st.one_of(st.just((1.0,) * 5), gradients()))
    around = draw(st.integers(0, 11))
    if around == 11:
        guard = draw(st.sampled_from(list(GUARDS)))
        tx, sizes = guard.format(tx), draw(gradients(*GUARDS[guard]))
    elif around == 10:
        tx = f"o.lookahead({tx}, 2, 0.5, reset_state={draw(st.booleans())})"
    also = draw(st.sampled_from([""] * 28 + ["scan", "eager", "numpy", "migrated"]))
    return Program(show(spec), tx, sizes, also)

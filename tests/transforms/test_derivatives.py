"""First and second derivatives of functions of arrays, at all scales."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import optax.perturbations
import optax.projections
import optax.second_order
import pytest

import stepax
import stepax.contrib
import stepax.perturbations
import stepax.projections
import stepax.second_order


def of(name, *arguments, home=""):
    """The updates of a transformation, as a function of the gradient."""

    def maker(o):
        tx = getattr(getattr(o, home) if home else o, name)(*arguments)
        return lambda x: tx.update(x, tx.init(x), jnp.asarray(OTHER, x.dtype))[0]

    return maker


def filled(x, arguments):
    return [f(x) if callable(f) else f for f in arguments]


def on(home, name, *arguments):
    name = name.split()[0]
    return lambda o: lambda x: getattr(getattr(o, home), name)(x, *filled(x, arguments))


def of_target(name):
    return lambda o: lambda x: getattr(o.losses, name)(other(x), x)


def schedule(name, *arguments):
    """The values of a schedule, as a function of its arguments."""

    def maker(o):
        made = lambda x: getattr(o, name)(*filled(x, arguments))
        return lambda x: jnp.stack([made(x)(count) for count in (0, 3, 50)])

    return maker


def of_count(name, *arguments):
    return lambda o: lambda x: jax.vmap(getattr(o, name)(*arguments))(jnp.abs(x))


def of_matrix(name, **options):
    """The updates of a transformation, as a function of a matrix of gradients."""

    def maker(o):
        tx = getattr(o.contrib, name)(**options)
        return lambda x: tx.update(square(x), tx.init(square(x)), square(x))[0]

    return maker


def second_order(name, loss, *, of="params"):
    """A product with, or a diagonal of, a matrix of second derivatives."""
    product = name == "hvp"

    def maker(o):
        f = getattr(o.second_order, name)
        if of == "v":
            return lambda x: f(loss, x, other(x), chances(x), other(x))
        start = (lambda x: (loss, other(x))) if product else (lambda x: (loss,))
        return lambda x: f(*start(x), x, chances(x), other(x))

    return maker


def losses(p, inputs, targets):
    """Of the first example, whose derivatives exist up to the fourth."""
    return jnp.sum(jnp.tanh(p * inputs) * targets)


def residuals(p, inputs, targets):
    return jnp.sum((p * inputs - targets) ** 2) / 2


def triplet(**options):
    """Whose positives are further away than negatives, at any scale."""

    def maker(o):
        loss = o.losses.triplet_margin_loss
        return lambda x: loss(x, -x, x[::-1], **options)

    return maker


OTHER = np.random.default_rng(1).normal(size=4)
# fmt: off
square = lambda x: x.reshape(2, 2)
positive = lambda x: jnp.stack([jnp.stack([2 * x[2], x[1]]), x[1:3]])
other = lambda x: jnp.asarray(OTHER, x.dtype)
labels = lambda x: jnp.asarray([0.0, 1.0, 0.0, 1.0], x.dtype)
first, second = (lambda x: x[0]), (lambda x: x[1])
chances = lambda x: jax.nn.softmax(other(x))
# Right wherever float32 holds the derivative.
SAFE = {
    "tree.norm": on("tree", "norm"),
    "tree.norm of 1": on("tree", "norm", 1),
    "safe_norm": lambda o: lambda x: o.safe_norm(x, 0.0),
    "safe_norm of 2": lambda o: lambda x: o.safe_norm(x, 1e-38, ord=2),
    "safe_norm of a matrix": lambda o: lambda x: o.safe_norm(square(x), 0.0, "fro"),
    "safe_root_mean_squares": lambda o: lambda x: o.safe_root_mean_squares(x, 0.0),
    "clip_by_global_norm": of("clip_by_global_norm", 1.0),
    "adaptive_grad_clip": of("adaptive_grad_clip", 0.01),
    "normalize_by_update_norm": of("normalize_by_update_norm"),
    "normalize": of("normalize", home="contrib"),
    **{f"projection_{k}": on("projections", f"projection_{k}") for k in (
        "l2_ball", "l2_sphere", "linf_ball", "l1_ball", "simplex", "non_negative",
    )},
    **{f"{k} of {loss.__name__}": second_order(k, loss) for loss in (residuals,)
       for k in ("hvp", "hessian_diag", "fisher_diag")},
    "hvp of v": second_order("hvp", losses, of="v"),
    **{f"scale_by_muon by {k}": of_matrix("scale_by_muon", preconditioning=k)
       for k in ("frobenius", "spectral", "aol", "schatten")},
    "nnls": lambda o: lambda x: o.nnls(square(x), jnp.ones(2, x.dtype), 20),
    "nnls of b": lambda o: lambda x: o.nnls(
        jnp.stack([other(x), other(x)[::-1]]).T, x, 20),
    "triplet_margin_loss far away": triplet(),
    "cosine_similarity": on("losses", "cosine_similarity", other),
    "huber_loss": on("losses", "huber_loss", other),
    **{k: on("losses", k, labels) for k in (
        "squared_error", "log_cosh", "hinge_loss", "sparsemax_loss",
        "sigmoid_binary_cross_entropy", "sigmoid_focal_loss", "ranking_softmax_loss",
    )},
    **{k: on("losses", k, chances) for k in (
        "softmax_cross_entropy", "safe_softmax_cross_entropy",
        "poly_loss_cross_entropy", "kl_divergence",
    )},
}
# At least as right as Optax's.
ALIKE = {
    "clip": of("clip", 1.0),
    "clip_by_block_rms": of("clip_by_block_rms", 1.0),
    **{k: of(k) for k in (
        "scale_by_trust_ratio", "scale_by_param_block_norm", "scale_by_stddev",
        "scale_by_adam", "scale_by_rms", "scale_by_rss", "scale_by_adamax",
        "scale_by_yogi", "scale_by_belief", "scale_by_novograd", "scale_by_amsgrad",
        "scale_by_adan", "scale_by_sm3", "scale_by_factored_rms",
        "scale_by_adadelta", "scale_by_radam", "scale_by_lion", "scale_by_sign",
    )},
    **{f"{k} of losses": second_order(k, losses)
       for k in ("hvp", "hessian_diag", "fisher_diag")},
    "nnls with an identity": lambda o: lambda x: o.nnls(
        jnp.concatenate([square(x), jnp.eye(2, dtype=x.dtype)]), other(x), 20),
    "triplet_margin_loss of degree 3": triplet(norm_degree=3),
    "ntxent": lambda o: lambda x: o.losses.ntxent(
        jnp.stack([x, x[::-1], other(x), other(x) - x]), jnp.array([0, 0, 1, 1])),
    "triplet_margin_loss": lambda o: lambda x: o.losses.triplet_margin_loss(
        x, other(x), -other(x)),
    "dice_loss": on("losses", "dice_loss", labels),
    **{f"{k} as a target": of_target(k) for k in (
        "cosine_similarity", "huber_loss", "log_cosh", "softmax_cross_entropy",
        "safe_softmax_cross_entropy", "ranking_softmax_loss", "squared_error",
    )},
    **{k: on("losses", k, 1) for k in (
        "multiclass_hinge_loss", "multiclass_perceptron_loss",
        "softmax_cross_entropy_with_integer_labels",
    )},
    **{k: on("losses", k, labels) for k in (
        "l2_loss", "perceptron_loss", "binary_dice_loss", "cosine_distance",
    )},
    "generalized_kl_divergence": on("losses", "generalized_kl_divergence", chances),
    "kl_divergence_with_log_targets": on(
        "losses", "kl_divergence_with_log_targets", lambda x: jnp.log(chances(x))),
    "ctc_loss": lambda o: lambda x: o.losses.ctc_loss(
        jnp.stack([x, x[::-1], x / 2])[None], jnp.zeros((1, 3), x.dtype),
        jnp.array([[1, 2]]), jnp.zeros((1, 2), x.dtype)),
    "smooth_labels": on("losses", "smooth_labels", 0.1),
    **{f"projection_{k}": on("projections", f"projection_{k}", *a) for k, a in {
        "box": (-1.0, 1.0), "hypercube": (), "halfspace": (other, 0.3),
        "hyperplane": (other, 0.3), "l1_sphere": (), "vector": (other,),
    }.items()},
    **{f"tree.{k}": on("tree", k, *a) for k, a in {
        "norm of infinity": (np.inf,), "vdot": (other,), "max": (), "min": (),
        "sum": (), "clip": (-1.0, 1.0), "update_moment": (other, 0.9, 3),
        "update_moment_per_elem_norm": (other, 0.9, 2), "bias_correction": (0.9, 3),
    }.items()},
    **{f"{k} of its values": schedule(k, *a) for k, a in {
        "linear_schedule": (first, second, 10), "constant_schedule": (first,),
        "polynomial_schedule": (first, second, 2.0, 10),
        "cosine_decay_schedule": (first, 10, 0.1, 1.5),
        "exponential_decay": (first, 10, 0.5), "cosine_onecycle_schedule": (40, first),
        "piecewise_constant_schedule": (first, lambda x: {2: 0.5}),
        "warmup_constant_schedule": (first, second, 5),
        "warmup_exponential_decay_schedule": (first, second, 2, 20, 0.5),
    }.items()},
    **{f"{k} of its count": of_count(k, *a) for k, a in {
        "linear_schedule": (1.0, 0.1, 10), "polynomial_schedule": (1.0, 0.1, 0.5, 10),
        "cosine_decay_schedule": (1.0, 10, 0.0, 0.5),
        "exponential_decay": (1.0, 10, 0.5, 2),
        "warmup_cosine_decay_schedule": (0.0, 1.0, 5, 20),
    }.items()},
    "Normal": lambda o: o.perturbations.Normal().log_prob,
    "Gumbel": lambda o: o.perturbations.Gumbel().log_prob,
    "per_example_global_norm_clip": lambda o: lambda x: (
        o.per_example_global_norm_clip([jnp.stack([x, x[::-1]])], 1.0)[0][0]),
    "per_example_layer_norm_clip": lambda o: lambda x: (
        o.per_example_layer_norm_clip([jnp.stack([x, x[::-1]])], 1.0)[0][0]),
}
# By loops whose length the matrix says, which JAX differentiates forward.  Where the
# value of a root has converged, its second derivative is a few per cent off still.
FORWARD = {
    **{f"matrix_inverse_pth_root of {p}": lambda o, p=p: lambda x: (
        o.matrix_inverse_pth_root(positive(x), p)[0]) for p in (1, 2, 4)},
    **{f"power_iteration: {k}": lambda o, i=i: lambda x: o.power_iteration(
        positive(x), v0=jnp.asarray([1.0, 0.5], x.dtype))[i]
        for i, k in enumerate(("eigenvalue", "eigenvector"))},
}
# What Optax lacks.
OWN = {
    "ggn_product": lambda o: lambda x: o.second_order.ggn_product(
        jnp.square, lambda y: jnp.vdot(y * other(x), y), x, chances(x)),
    "fisher_product": lambda o: lambda x: o.second_order.fisher_product(
        lambda p: jnp.square(p) * other(x), x, chances(x)),
    "scale_by_normuon": of_matrix("scale_by_normuon"),
}
# fmt: on
MODES = {"reverse": jax.jacrev, "forward": jax.jacfwd, "second": jax.hessian}
MODES["forward twice"] = lambda f: jax.jacfwd(jax.jacfwd(f))
SCALES = [1e-30, 1e-24, 1e-20, 1e-15, 1e-10, 1e-5, 1.0, 1e5, 1e10, 1e15, 3e19, 1e22]
SCALES += [1e25, 1e30]
BASE = np.random.default_rng(0).normal(size=4)
POINTS = [*np.multiply.outer(SCALES, BASE), np.zeros(4), np.array([np.inf, 1, 2, 3])]
POINTS = np.array(POINTS, np.float32)


def derivatives(f, mode, dtype):
    """At all points; those of a vector are of a sum with different weights."""
    weights = np.linspace(0.5, 1.5, 12)

    def of_sum(x):
        y = jnp.ravel(f(x))
        return y @ jnp.asarray(weights[: y.size], y.dtype)

    is_second = mode in ("second", "forward twice")
    g = MODES[mode](of_sum if is_second else lambda x: jnp.ravel(f(x)))
    found = jax.jit(jax.vmap(g))(jnp.asarray(POINTS, dtype))
    return np.asarray(found, float).reshape(len(POINTS), -1)


def errors(found, wanted):
    """Of each point, relative to the largest; infinite where something is missing.

    Where what is wanted underflows in float32, it is only asked whether all is finite;
    where it overflows, nothing finite is right, and nothing is asked.
    """
    size = np.abs(wanted).max(1)
    holds = (size == 0) | ((size > 1e-36) & (size < 1e37))
    with np.errstate(invalid="ignore"):
        found = np.abs(found - wanted).max(1) / np.where(size > 0, size, 1)
    found = np.where(holds, found, np.where(np.isfinite(found) | (size >= 1e37), 0, 1))
    return np.where(np.isfinite(found), found, np.inf), holds


def modes_of(name):
    if name.startswith("matrix_inverse_pth_root"):
        return ["forward"]
    return ["forward", "forward twice"] if name in FORWARD else list(MODES)[:3]


ALL = SAFE | ALIKE | FORWARD | OWN
CASES = [(mode, name) for name in ALL for mode in modes_of(name)]


@pytest.mark.few(3)
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("mode, name", CASES)
def test_derivatives_at_any_scale_are_never_worse_than_those_of_optax(name, mode):
    f, jax_numpy = ALL[name], jax.numpy_dtype_promotion("standard")
    with jax_numpy, jax.numpy_rank_promotion("allow"):
        ours = derivatives(f(stepax), mode, jnp.float32)
        theirs = np.nan * ours  # of what it lacks
        if name not in OWN:
            theirs = derivatives(f(optax), mode, jnp.float32)
        with jax.enable_x64(True):
            wanted = derivatives(f(stepax), mode, jnp.float64)
    finite = np.isfinite(wanted).all(1)
    ours, theirs, wanted = ours[finite], theirs[finite], wanted[finite]
    (found, holds), (other, _) = errors(ours, wanted), errors(theirs, wanted)
    # What is left of a difference of equal numbers is off by any factor.
    assert (found <= np.maximum(1e-2, 100 * other)).all(), (found, other)
    if name in SAFE | OWN:
        assert (found[holds] <= 1e-2).all(), found


ERRORS = [0.0, 0.5, 1.0, -2.0, 1e30, -1e30, np.inf, -np.inf]


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0, 1e10])
def test_huber_loss_has_its_derivatives_at_any_error(delta):
    def loss(x):
        return stepax.huber_loss(x, delta=delta)

    for x in ERRORS:
        slope, bend = (f(jnp.float32(x)) for f in (jax.grad(loss), jax.hessian(loss)))
        assert slope == np.clip(x, -delta, delta)
        assert bend == float(abs(x) <= delta)
    slope = jax.grad(lambda d: stepax.huber_loss(jnp.float32(5.0), delta=d))(delta)
    np.testing.assert_allclose(slope, max(5.0 - delta, 0.0), rtol=1e-6)


@pytest.mark.parametrize("name", ["huber_loss", "l2_loss", "squared_error", "log_cosh"])
def test_losses_of_infinite_errors_have_a_slope(name):
    loss = getattr(stepax, name)
    for p, t in [(np.inf, 0.0), (-np.inf, 0.0), (3e38, -3e38), (0.0, np.inf)]:
        for of_target in (0, 1):
            slope = jax.grad(loss, of_target)(jnp.float32(p), jnp.float32(t))
            assert not jnp.isnan(slope)
            assert jnp.sign(slope) == (
                np.sign(p - t) if of_target == 0 else -np.sign(p - t)
            )

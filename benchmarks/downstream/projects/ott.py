"""OTT: the solvers that build an optimizer themselves, for 20 iterations each."""

from functools import partial

from ..project import STEPS, Project


PROJECT = Project(
    repository="ott-jax/ott",
    commit="6aace50f673b877cc3394d0b53a24da0bbf11308",
    packages="chex diffrax flax jaxopt lineax matplotlib networkx scikit-learn tqdm",
    path="src",
    tests=(
        "tests/solvers/linear/semidiscrete_test.py",
        "tests/neural/methods/monge_gap_test.py",
        "-m",
        "fast",
    ),
)
MEMORY = {"": {}, ", memory 3": {"memory_size": 3}, ", rate": {"learning_rate": 0.1}}


def optimizers():
    found = {f"lbfgs{k}": partial(partial, lbfgs, x) for k, x in MEMORY.items()}
    found |= {f"legendre{k}": partial(partial, legendre, x) for k, x in MEMORY.items()}
    names = ("neuraldual.W2NeuralDual", "expectile_neural_dual.ExpectileNeuralDual")
    for name in names:
        found[name.partition(".")[2]] = partial(partial, neural_dual, name)
    return found | {
        "MongeGapEstimator": lambda: monge_gap,
        "MetaInitializer": lambda: meta,
        "fit_gmm_pair": lambda: mixture,
    }


def train(run):
    return run()


def points(shift):
    import jax.numpy as jnp

    return jnp.sin(1.3 * jnp.arange(32.0) + shift).reshape(16, 2)


def batches():
    """Of source and target, for training and for validation."""
    import itertools

    return [itertools.repeat(points(x)) for x in (0.0, 2.0, 0.0, 2.0)]


def lbfgs(settings):
    import jax.numpy as jnp
    from ott.math import lbfgs

    fun = lambda x: jnp.sum((x[1:] - x[:-1] ** 2) ** 2) + jnp.sum((1 - x) ** 2)
    return lbfgs(fun, jnp.linspace(-1.0, 1.0, 5), max_iter=STEPS, tol=0.0, **settings)[
        0
    ]


def legendre(settings):
    import jax
    import jax.numpy as jnp
    from ott.math import legendre

    fun = lambda x: jnp.sum(jnp.cosh(x) + x**4)
    conjugate = legendre(fun, max_iter=STEPS, **settings)
    return jax.vmap(jax.value_and_grad(conjugate))(points(0.0))


def neural_dual(name):
    from importlib import import_module

    from ott.neural.networks.potentials import PotentialMLP

    module, _, kind = name.partition(".")
    kind = getattr(import_module(f"ott.neural.methods.{module}"), kind)
    nets = {x: PotentialMLP(dim_hidden=[8]) for x in ("neural_f", "neural_g")}
    if module == "expectile_neural_dual":
        from ott.neural.methods.expectile_neural_dual import PotentialModelWrapper

        nets = {
            "neural_f": PotentialModelWrapper(nets["neural_f"]),
            "neural_g": PotentialModelWrapper(nets["neural_g"], is_potential=False),
        }
    solver = kind(2, **nets, num_train_iters=STEPS, valid_freq=STEPS)
    solver(*batches())
    return {"f": solver.state_f.params, "g": solver.state_g.params}


def monge_gap():
    import jax.numpy as jnp
    from ott.neural.methods.monge_gap import MongeGapEstimator
    from ott.neural.networks.potentials import PotentialMLP

    fit = lambda samples, mapped: (jnp.mean((samples - mapped) ** 2), None)
    model = PotentialMLP(dim_hidden=[8], is_potential=False)
    solver = MongeGapEstimator(2, model, fitting_loss=fit, num_train_iters=STEPS)
    return solver.train_map_estimator(*batches())[0].params


def meta():
    import jax.numpy as jnp
    from flax.linen import Dense
    from ott.geometry.pointcloud import PointCloud
    from ott.initializers.neural.meta_initializer import MetaInitializer

    geometry = PointCloud(points(0.0), points(2.0))
    initializer = MetaInitializer(geometry, Dense(16))
    state, weights = initializer.state, jnp.full(16, 1 / 16)
    for _ in range(STEPS):
        *_, state = initializer.update(state, weights, weights)
    return state.params


def mixture():
    import jax
    from ott.tools.gaussian_mixture import fit_gmm_pair, gaussian_mixture_pair
    from ott.tools.gaussian_mixture.gaussian_mixture import GaussianMixture

    keys = jax.random.split(jax.random.key(0))
    made = [GaussianMixture.from_random(k, 2, 2) for k in keys]
    pair = gaussian_mixture_pair.GaussianMixturePair(*made, epsilon=0.1, tau=1.0)
    fit = fit_gmm_pair.get_fit_model_em_fn(weight_transport=0.1)
    weights = [None, None]
    return fit(pair, points(0.0), points(2.0), *weights, em_steps=2, m_steps=10)

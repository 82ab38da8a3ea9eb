"""NeMoS: the solvers of its registry, each of which fits a Poisson regression."""

from functools import partial

from ..project import STEPS, Project


NEAR = (
    "near the minimum a decrease is below the rounding of the loss; the first eight "
    "steps, and all 20 in float64, are the same bits"
)
PROJECT = Project(
    repository="flatironinstitute/nemos",
    commit="c80170b0588f897c461b3ae7e3e44b960cdb05ec",
    packages=(
        "lazy_loader matplotlib optimistix pynapple scikit-learn scipy statsmodels"
    ),
    path="src",
    tests=(
        "tests/test_optimistix_dtype.py",
        "tests/test_custom_solver_integration.py",
        "tests/test_solver_validation.py",
    ),
    explained={
        "GradientDescent[optax+optimistix]": NEAR,
        "GradientDescent[optax+optimistix], no acceleration": NEAR,
    },
)
KINDS = {
    "": {},
    ", momentum": {"momentum": 0.9},
    ", no acceleration": {"acceleration": False},
    ", fixed step": {"stepsize": 0.01},
}


def optimizers():
    plain = ("GradientDescent", "LBFGS", "BFGS", "NonlinearCG", "SVRG")
    found = {x: partial(regression, x, {}) for x in plain}
    for kind, settings in KINDS.items():
        solver = "GradientDescent[optax+optimistix]"
        found[f"{solver}{kind}"] = partial(regression, solver, settings)
    found["LBFGS, fixed step"] = partial(regression, "LBFGS", {"stepsize": 0.1})
    found["LBFGS, short memory"] = partial(regression, "LBFGS", {"memory_size": 2})
    return found


def regression(solver, settings):
    from nemos import solvers
    from nemos.glm import GLM
    from nemos.solvers import _optax_optimistix_solvers as on_optax

    kind = on_optax.OptimistixOptaxGradientDescent
    solvers.register("GradientDescent", kind, "optax+optimistix", replace=True)
    settings = {"maxiter": STEPS, **settings}
    return GLM(solver_name=solver, solver_kwargs=settings)


def train(model):
    import numpy as np

    inputs = np.sin(1.7 * np.arange(120, dtype=np.float32)).reshape(40, 3)
    counts = np.floor(np.exp(inputs @ [0.5, -0.3, 0.8] + 0.5)).astype(np.float32)
    model.fit(inputs, counts)
    return {"coef": model.coef_, "intercept": model.intercept_}

"""T5X: the optimizers that it wraps, and the axes that it derives for their states."""

from functools import partial

from ..project import STEPS, Project


PROJECT = Project(
    repository="google-research/t5x",
    commit="cc342d419ec3e3e9c4bf1df33c82330cafdc1e16",
    packages="chex clu fiddle flax gin-config orbax-checkpoint tensorflow-cpu",
    tests=("t5x/optimizers_test.py", "-k", "BasicTest"),
    stubs=("airio", "cached_property", "jestimator", "seqio", "t5", "tensorboard"),
)

NAMES = (
    "adabelief adagrad adam adamw fromage lamb lars lion noisy_sgd radam rmsprop sgd "
    "yogi"
).split()


def optimizers():
    from t5x import optimizers

    return {k: partial(getattr(optimizers, k), 1e-2) for k in NAMES}


def train(optimizer):
    """By its own `Optimizer`, with the axes that it derives by the class of a state."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    from ..child import loss, small_model

    @jax.jit
    def step(made, t):
        value, grads = jax.value_and_grad(loss)(made.target, t)
        return made.apply_gradient(grads), value

    made, losses = optimizer.create(small_model()), []
    axes = jax.tree.map(lambda _: PartitionSpec("x"), made.target)
    derived = optimizer.derive_logical_axes(made, axes)
    for t in range(STEPS):
        made, value = step(made, t)
        losses.append(value)
    count = jnp.asarray(len(jax.tree.leaves(derived, is_leaf=lambda x: x is None)))
    return {"params": made.target, "losses": jnp.stack(losses), "axes": count}

"""NumPyro: stochastic variational inference."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import optax_to_numpyro

import stepax


def model(x: jax.Array) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


x = jnp.array([0.5, 1.5])
svi = SVI(model, AutoNormal(model), stepax.adam(1e-2), Trace_ELBO())
converted = SVI(
    model, AutoNormal(model), optax_to_numpyro(stepax.adamw(1e-2)), Trace_ELBO()
)
trained = svi.run(jax.random.key(0), 3, x, progress_bar=False).losses

"""L-BFGS and Adam on a neural differential equation for hares and lynxes.

The model is an Equinox module, passed to the optimizer as a whole, including functions;
diffrax solves the equation.  With a file name as argument, matplotlib plots the result.
"""

import sys

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

import stepax


# Thousands of pelts that the Hudson's Bay Company bought, 1900 to 1920: C. G. Hewitt,
# 1921, The Conservation of the Wild Life of Canada.
PELTS = """
30 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22 25.4 27.1 40.3 57 76.6 52.3 19.5 11.2 7.6 14.6
16.2 24.7   4 6.1 9.8 35.2 59.4 41.7 19 13 8.3 9.1 7.4 8 12.3 19.5 45.7 51.1 29.7 15.8
9.7 10.1 8.6"""  # hares, then lynxes
pelts = jnp.array([float(x) for x in PELTS.split()]).reshape(2, 21).T
logs = jnp.log(pelts / pelts.mean(0))
windows = jnp.stack([logs[i : i + 6] for i in range(16)])  # five years from each
BUDGET = 200  # evaluations of the loss and its gradient
LBFGS = stepax.lbfgs()
ADAM = stepax.inject_hyperparams(stepax.adam)(learning_rate=0.03)


def solve(mlp, start, years):
    """The logarithm for each year; the network computes its rate of change."""
    term, heun = diffrax.ODETerm(lambda t, y, mlp: mlp(y)), diffrax.Heun()
    save = diffrax.SaveAt(ts=jnp.arange(years + 1.0))
    return diffrax.diffeqsolve(term, heun, 0.0, years, 0.5, start, mlp, saveat=save).ys


def loss(mlp):
    found = jax.vmap(solve, (None, 0, None))(mlp, windows[:, 0], 5)
    return jnp.mean((found - windows) ** 2)


@eqx.filter_jit
def lbfgs_step(mlp, state):
    value, grad = stepax.value_and_grad_from_state(loss)(mlp, state=state)
    known = {"value": value, "grad": grad, "value_fn": loss}
    updates, state = LBFGS.update(grad, state, mlp, **known)
    trials = stepax.tree.get(state, "info").num_linesearch_steps
    return value, trials, stepax.apply_updates(mlp, updates), state


@eqx.filter_jit
def adam_step(mlp, state):
    value, grad = eqx.filter_value_and_grad(loss)(mlp)
    updates, state = ADAM.update(grad, state, mlp)
    return value, 1, stepax.apply_updates(mlp, updates), state


def train(step, state, mlp):
    """The value at each evaluation, and the final network."""
    values = []
    while len(values) < BUDGET:
        value, trials, mlp, state = step(mlp, state)
        values += [float(value)] * int(trials)
    return values[:BUDGET], mlp


def draw(runs, path):
    from matplotlib.figure import Figure

    figure = Figure((11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, (values, _) in runs.items():
        left.semilogy(values, label=name)
    left.set(xlabel="evaluations", ylabel="mean square error", ylim=(0.02, 2))
    found = jnp.exp(solve(runs["L-BFGS"][1], logs[0], 20)) * pelts.mean(0)
    years = range(1900, 1921)
    right.plot(years, pelts, "o", label=("hares", "lynxes"))
    right.set_prop_cycle(None)  # for the same two colors
    right.plot(years, found)
    right.set(xticks=years[::5], title="thousands of pelts, solved from 1900 on")
    figure.legend(loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=120)


def main():
    mlp = eqx.nn.MLP(2, 2, 16, 2, jnp.tanh, key=jax.random.key(0))
    runs = {"L-BFGS": train(lbfgs_step, LBFGS.init(mlp), mlp)}
    for rate in (0.01, 0.03, 0.1):
        state = stepax.tree.set(ADAM.init(mlp), learning_rate=rate)
        runs[f"Adam, {rate}"] = train(adam_step, state, mlp)
    for name, (values, _) in runs.items():
        print(f"{name}: {values[0]:.3f} -> {min(values):.4f} in {BUDGET} evaluations")
    for path in sys.argv[1:]:
        draw(runs, path)


if __name__ == "__main__":
    main()

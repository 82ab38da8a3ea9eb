"""Reinforcement learning: PPO learns to hold a pole upright.

The environment is a pole on a hinge, in twenty lines of JAX; `examples/brax_ppo.py`
does the same with Brax.
"""

import jax
import jax.numpy as jnp
import numpy as np

import stepax

from .shared import Canvas, apply, dense, run


STEPS, POLES = 64, 32


def move(state, push):
    """The angle and the speed of a pole after a push; the reward is to stand."""
    angle, speed = state[..., 0], state[..., 1]
    speed = speed + 0.05 * (10.0 * jnp.sin(angle) + 4.0 * jnp.clip(push, -2, 2))
    angle = angle + 0.05 * speed
    fell = jnp.abs(angle) > 1.0
    angle, speed = (jnp.where(fell, x, y) for x, y in ((0.5, angle), (0.0, speed)))
    return jnp.stack([angle, speed], -1), jnp.where(fell, -1.0, jnp.cos(angle))


def log_density(params, seen, pushes):
    mean = apply(params["policy"], seen)[..., 0]
    return -0.5 * ((pushes - mean) / 0.5) ** 2


def collect(params, state, key):
    def step(state, key):
        mean = apply(params["policy"], state)[..., 0]
        push = mean + 0.5 * jax.random.normal(key, mean.shape)
        after, reward = move(state, push)
        return after, (state, push, reward)

    return jax.lax.scan(step, state, jax.random.split(key, STEPS))


def returns(rewards, last):
    back = lambda later, r: (r + 0.97 * later,) * 2
    return jax.lax.scan(back, last, rewards, reverse=True)[1]


def loss(params, old, seen, pushes, goals):
    values = apply(params["value"], seen)[..., 0]
    gain = jax.lax.stop_gradient(goals - values)
    gain = (gain - gain.mean()) / (gain.std() + 1e-6)
    ratio = jnp.exp(log_density(params, seen, pushes) - old)
    clipped = jnp.clip(ratio, 0.8, 1.2)
    policy = jnp.minimum(ratio * gain, clipped * gain).mean()
    return -policy + 0.5 * jnp.mean((values - goals) ** 2)


def main(small: bool) -> Canvas:
    first, second, last = jax.random.split(jax.random.key(0), 3)
    params = {"policy": dense(first, 2, 16, 1), "value": dense(second, 2, 16, 1)}
    tx = stepax.chain(stepax.clip_by_global_norm(0.5), stepax.adam(3e-3))
    opt_state, state, scores = tx.init(params), jnp.full((POLES, 2), 0.5), []

    @jax.jit
    def round_of(params, opt_state, state, key):
        state, (seen, pushes, rewards) = collect(params, state, key)
        goals = returns(rewards, apply(params["value"], state)[..., 0])
        old = log_density(params, seen, pushes)
        for _ in range(4):
            gradient = jax.grad(loss)(params, old, seen, pushes, goals)
            updates, opt_state = tx.update(gradient, opt_state, params)
            params = stepax.apply_updates(params, updates)
        return params, opt_state, state, rewards.mean()

    for key in jax.random.split(last, 10 if small else 150):
        params, opt_state, state, score = round_of(params, opt_state, state, key)
        scores.append(float(score))
    print(f"mean reward {scores[0]:.2f} -> {np.mean(scores[-5:]):.2f} of 1")
    return Canvas(title="Mean reward").curves(
        {"reward, at most 1": scores}, labels=("round of training", "mean reward")
    )


if __name__ == "__main__":
    run(main)

"""Gradient accumulation that survives a NaN: the cost of a bad micro-batch, four ways.

There are ten micro-batches, two per window; in the third, the second entry is NaN.
Gradients are small integers, so means are exact and results are compared bitwise.
"""

import jax
import jax.numpy as jnp
import numpy as np

import stepax


gradients = np.arange(1.0, 31.0, dtype=np.float32).reshape(10, 3) * 2
bad, coordinate = 2, 1
gradients[bad, coordinate] = np.nan


def run(tx):
    """The update of each micro-batch, and the final state, by one jitted scan."""

    @jax.jit
    def scan(params, state):
        def step(carry, g):
            params, state = carry
            updates, state = tx.update(g, state, params)
            return (stepax.apply_updates(params, updates), state), updates

        return jax.lax.scan(step, (params, state), jnp.asarray(gradients))

    params = jnp.zeros(3)
    (_, state), updates = scan(params, tx.init(params))
    return np.asarray(updates), state


def windows(micro_batches):
    """The mean of each pair of micro-batches."""
    return micro_batches.reshape(-1, 2, 3).mean(1)


def accumulated(tx, **options):
    return stepax.MultiSteps(
        tx, every_k_schedule=2, **options
    ).gradient_transformation()


def check(name, tx, expected):
    """Run and compare the updates of all windows; steps in between return zeros."""
    updates, state = run(tx)
    given = -updates[updates.any(axis=1)]
    waiting = len(updates) - len(given)
    assert np.isfinite(updates).all(), name
    np.testing.assert_array_equal(given, expected, err_msg=name)
    print(f"{name}: windows {len(given)}, waiting steps {waiting}, all finite")
    return state


def main():
    # `zero_nans`, inside or outside, costs only the entry that it replaces by zero.
    expected = windows(np.nan_to_num(gradients))
    inside = accumulated(stepax.chain(stepax.zero_nans(), stepax.sgd(1.0)))
    state = check("zero_nans inside", inside, expected)
    assert not any(map(np.any, jax.tree.leaves(state.acc_grads)))
    outside = stepax.chain(stepax.zero_nans(), accumulated(stepax.sgd(1.0)))
    check("zero_nans outside", outside, expected)

    # `apply_if_finite` drops the window with the bad micro-batch.
    tx = accumulated(stepax.apply_if_finite(stepax.sgd(1.0), max_consecutive_errors=3))
    state = check("apply_if_finite", tx, np.delete(windows(gradients), bad // 2, 0))
    print(f"  refused windows: {stepax.tree.get(state, 'total_notfinite')}")
    assert stepax.tree.get(state, "total_notfinite") == 1

    # `skip_not_finite` does not count the micro-batch: the window waits for another.
    kept = np.delete(gradients, bad, 0)
    tx = accumulated(stepax.sgd(1.0), should_skip_update_fn=stepax.skip_not_finite)
    state = check("skip_not_finite", tx, windows(kept[:8]))
    assert state.mini_step == 1  # nine good micro-batches: four windows and one over


if __name__ == "__main__":
    main()

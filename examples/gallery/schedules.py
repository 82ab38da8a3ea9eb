"""Learning-rate schedules: each of them, drawn over a thousand steps."""

import jax.numpy as jnp
import numpy as np

import stepax

from .shared import COLORS, GRAY, Canvas, run


STEPS = 1000
CYCLE = {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 50, "decay_steps": 500}
SCHEDULES = {
    "constant": stepax.constant_schedule(0.7),
    "linear": stepax.linear_schedule(1.0, 0.0, STEPS),
    "polynomial": stepax.polynomial_schedule(1.0, 0.0, 3, STEPS),
    "exponential_decay": stepax.exponential_decay(1.0, 200, 0.5),
    "cosine_decay": stepax.cosine_decay_schedule(1.0, STEPS),
    "piecewise_constant": stepax.piecewise_constant_schedule(1.0, {400: 0.4, 700: 0.4}),
    "piecewise_interpolate": stepax.piecewise_interpolate_schedule(
        "cosine", 1.0, {300: 0.3, 1000: 0.1}
    ),
    "warmup_constant": stepax.warmup_constant_schedule(0.0, 1.0, 200),
    "warmup_cosine_decay": stepax.warmup_cosine_decay_schedule(0.0, 1.0, 100, STEPS),
    "warmup_exponential_decay": stepax.warmup_exponential_decay_schedule(
        0.0, 1.0, 100, 300, 0.5
    ),
    "warmup_stable_decay": stepax.schedules.warmup_stable_decay_schedule(
        1.0, 100, 600, 300
    ),
    "warmup_inverse_sqrt": stepax.schedules.warmup_inverse_sqrt_schedule(1.0, 100),
    "warmup_cosine_restarts": stepax.schedules.warmup_cosine_restarts_schedule(
        1.0, 333, 30, factor=0.8
    ),
    "sgdr": stepax.sgdr_schedule([CYCLE, CYCLE]),
    "cosine_onecycle": stepax.cosine_onecycle_schedule(STEPS, 1.0),
    "linear_onecycle": stepax.linear_onecycle_schedule(STEPS, 1.0),
}


def main(small: bool) -> Canvas:
    columns, wide, high = 4, 182, 84
    rows = -(-len(SCHEDULES) // columns)
    canvas = Canvas(
        columns * wide, rows * high, "The shapes of learning-rate schedules"
    )
    count = jnp.linspace(0, STEPS, 20 if small else 101)
    for i, (name, schedule) in enumerate(SCHEDULES.items()):
        left, top = wide * (i % columns) + 6, high * (i // columns)
        y = np.asarray(schedule(count), float)
        assert y.shape == count.shape and y.min() >= 0
        x = left + np.arange(len(y)) * (wide - 16) / len(y)
        path = "L".join(
            f"{a:.0f} {top + 78 - 54 * b:.1f}" for a, b in zip(x, y, strict=True)
        )
        canvas.text(left, top + 16, name)
        canvas.parts.append(
            f'<path d="M{left} {top + 78}h{wide - 16}" stroke="{GRAY}" opacity="0.4"/>'
            f'<path d="M{path}" fill="none" stroke="{COLORS[0]}" stroke-width="2"/>'
        )
    return canvas


if __name__ == "__main__":
    run(main)

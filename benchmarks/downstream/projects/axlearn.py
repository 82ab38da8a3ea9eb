"""AXLearn: its optimizers, whose parts are Optax's, and its schedules."""

from functools import partial

from ..project import Project


NARROW = (
    "an EMA kept in bfloat16 is computed in float32 and rounded once, with a third of "
    "the error of Optax's, from which these tests allow 0.1%"
)
PROJECT = Project(
    repository="apple/axlearn",
    commit="34aed43c1b6e581c4753d06d7cbeedd5010ef26b",
    python="3.12",
    packages="attrs chex flax jaxtyping scipy tensorflow-cpu toml typing-extensions "
    "orbax-checkpoint einops",
    tests=("axlearn/common/optimizers_test.py", "axlearn/common/schedule_test.py"),
    explained={f"test_ema_parity{i}": NARROW for i in range(4, 8)},
)

ADAM = {"b1": 0.9, "b2": 0.99, "eps": 1e-8}


def optimizers():
    from axlearn.common import optimizers, schedule

    warm = {"peak_lr": 0.1, "max_step": 100, "warmup_steps": 5}
    rate = schedule.cosine_with_linear_warmup(**warm)
    decay = {"weight_decay": 0.01}
    adam = partial(optimizers.adamw_optimizer, rate, **ADAM, **decay)
    factored = {"b1": 0.9, "b2": 0.99, "multiply_by_parameter_scale": True}
    star = {
        "gradient_ema_decay": 0.9,
        "gradient_ema_debias": True,
        "gradient_square_ema_decay": 0.99,
        "gradient_square_ema_debias": True,
        "eps": 1e-8,
        "eps_square": 1e-30,
        "raw_update_clipping_threshold": 1.0,
        "update_ema_decay": None,
        "update_ema_debias": False,
        "update_schedule": 1.0,
    }

    def clipped():
        inner = optimizers.clip_by_global_norm(max_norm=1.0)
        return optimizers.chain(inner, adam())

    def skipped():
        return optimizers.skip_and_clip_by_global_norm(
            adam(), drop_norm=100, max_norm=1
        )

    return {
        "sgd": partial(
            optimizers.sgd_optimizer, rate, decouple_weight_decay=True, momentum=0.9
        ),
        "sgd, coupled": partial(
            optimizers.sgd_optimizer, rate, decouple_weight_decay=False, **decay
        ),
        "adamw": adam,
        "adamw, clipped": clipped,
        "adamw, skipped": skipped,
        "adamw, decoupled": partial(
            optimizers.adamw_decoupled_optimizer,
            0.01,
            **ADAM,
            **decay,
            update_schedule=1.0,
        ),
        "adam": partial(
            optimizers.adam_optimizer, rate, **ADAM, l2_regularizer_weight=0.01
        ),
        "adafactor": partial(
            optimizers.adafactor_optimizer, rate, **factored, clipping_threshold=1.0
        ),
        "lion": partial(optimizers.lion_optimizer, rate, b1=0.9, b2=0.99, **decay),
        "adastar": partial(optimizers.adastar_optimizer, 0.01, **star, **decay),
    }


def schedules():
    from axlearn.common import schedule

    warm = {"peak_lr": 0.1, "max_step": 1000, "warmup_steps": 100}
    return {
        "cosine": partial(schedule.cosine_with_linear_warmup, **warm),
        "linear": partial(schedule.linear_schedule_with_warmup, **warm),
        "stable": partial(schedule.warmup_stable_decay, **warm, decay_begin_step=500),
        "constant": partial(schedule.constant_with_linear_warmup, 0.1),
        "adafactor's rate": partial(schedule.adafactor, scale=1.0, warmup_steps=10),
    }


def train(optimizer):
    import jax
    from axlearn.common.optimizer_base import OptParam

    from .. import child

    def seen(params):
        more = {"factorization_spec": None, "weight_decay_scale": 1.0}
        return jax.tree.map(lambda p: OptParam(p, **more), params)

    return child.train(optimizer, seen)

"""The runs of the leaderboard: rules, trials, and rows that go on."""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.board import (
    __main__ as command,
    engine,
    probes,
    rules,
    run,
    store,
    tasks,
    timing,
)


def bowl(steps=20, worst=10.0):
    """A quadratic with noise, which loses its number where it is left too far."""

    def loss(params, key):
        noise = 0.1 * jax.random.normal(key, (3,))
        return jnp.sum(jnp.square(params["x"] - 1 + noise))

    def validate(params):
        found = jnp.sum(jnp.square(params["x"] - 1))
        return jnp.where(found > 4, jnp.nan, found + 1e-3)

    init = lambda key: {"x": 0.1 * jax.random.normal(key, (3,))}
    return tasks.Task(steps, init, loss, validate, worst, (np.arange(3),))


compiled = engine.compiled


@functools.cache
def program():
    """Compiled once: each row would compile it again."""
    return compiled(bowl(), "sgd")


def finished(folder, report=lambda row: None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "compiled", lambda task, name: program())
        return run.run_row("digits", "sgd", folder, report, bowl())


def measured(row):
    return {k: v for k, v in row.items() if k != "processor_seconds"}


@pytest.fixture(scope="module")
def row(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("board"))


class Stop(Exception):
    pass


@pytest.mark.slow
def test_a_row_goes_on_after_interruptions_and_is_the_same(tmp_path, row, monkeypatch):
    monkeypatch.setattr(run, "_SAVE_EVERY", 0.0)

    def stop_after(phase, count):
        def report(row):
            if len(row[phase]) == count:
                raise Stop

        return report

    for phase, count in ("tuning", 40), ("seeds", 7), ("curve", 3):
        with pytest.raises(Stop):
            finished(tmp_path, report=stop_after(phase, count))
        kept = store.Rows(tmp_path).read("digits", "sgd")
        assert (
            kept is not None
            and len(kept[phase]) >= count - 1
            and not store.is_complete(kept)
        )
    assert measured(finished(tmp_path)) == measured(row)
    assert measured(store.Rows(tmp_path).read("digits", "sgd")) == measured(row)
    assert [x.name for x in (tmp_path / "digits").iterdir()] == ["sgd.json"]


def test_a_complete_row_is_not_run_again(tmp_path, row):
    store.Rows(tmp_path).write({**row, "seeds": [[0.5]] * 40})
    assert finished(tmp_path)["seeds"] == [[0.5]] * 40


def test_a_row_with_other_rules_is_run_from_the_start(tmp_path, row):
    store.Rows(tmp_path).write({**row, "rules": "others", "seeds": [[0.0]] * 40})
    assert measured(finished(tmp_path)) == measured(row)


def test_a_run_that_diverges_gets_the_worst_loss(row):
    losses = np.reshape(row["curve"], (rules.CURVE_RATES, -1))
    assert (losses[-1] == 10).all()  # the highest rate leaves what has a number
    assert (losses.min(1) < 1).any()
    assert (
        engine.bounded(np.array([1, np.nan, 11, np.inf]), 10).tolist() == [1] + [10] * 3
    )


def test_the_best_draw_has_the_lowest_mean_and_fresh_seeds(row):
    best = int(np.argmin(store.tuned(row)))
    assert list((store.best_of(row) or {}).values()) == row["draws"][best]
    assert not set(row["fresh_seeds"]) & set(row["tuning_seeds"] + row["curve_seeds"])
    assert [len(row[x]) for x in store.PHASES] == [128, 40, 40]


def test_a_program_gives_the_same_losses_for_the_same_seed():
    point = rules.draws("sgd")[3]
    first, other = program()(point, 3), program()(point, 4)
    assert first == program()(point, 3) != other
    assert len(first) == rules.MARKS


@pytest.mark.slow
def test_what_a_trial_computes_has_not_changed():
    """If it has, on purpose, then rows are stale: change a rule with it."""
    adamw = engine.compiled(bowl(), "adamw")
    point = {"rate": 0.1, "one_minus_b1": 0.1, "one_minus_b2": 0.01, "decay": 0.1}
    # To four digits, as other processors round otherwise.
    assert adamw(point, 1)[::5] == pytest.approx(
        [2.319341, 0.5542012, 0.07958637, 0.02077544], rel=1e-4
    )


@pytest.mark.parametrize("kind", ["cosine", "constant"])
def test_the_rate_rises_and_then_falls_or_stays(kind):
    at = engine.schedule(kind, 2.0, 100)
    rates = np.asarray([at(t) for t in range(100)])
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    end = (1 + np.cos(np.pi * 94 / 95)) if kind == "cosine" else 2.0
    assert rates[-1] == pytest.approx(end, rel=1e-3)


def test_draws_are_the_same_each_time_within_the_ranges_and_as_many_for_all():
    for name, entry in rules.ENTRIES.items():
        drawn = rules.draws(name)
        assert len(drawn) == rules.DRAWS and drawn == rules.draws(name)
        for key, (low, high) in entry.ranges.items():
            values = [point[key] for point in drawn]
            assert low * 0.999 < min(values) < low * (high / low) ** 0.05
            assert high * 1.001 > max(values) > low * (high / low) ** 0.95
        low, high = entry.ranges["rate"]
        assert high / low == pytest.approx(1000)


def test_each_entry_takes_what_is_tuned():
    for name, entry in rules.ENTRIES.items():
        assert entry.names[0] == "rate" and entry.names[-1] == "decay"
        point = {k: (low * high) ** 0.5 for k, (low, high) in entry.ranges.items()}
        assert engine.transformation(name, point, 10).init({"w": jnp.ones((2, 2))})


def test_what_has_changed_since_a_row_was_run_is_named(row):
    now = {"sgd": probes.probe("sgd")}
    row = {**row, "source": store.source("digits")}
    assert store.stale(row, now) == []
    near = [x * (1 + 1e-5) for x in row["probe"]]
    assert store.stale({**row, "probe": near}, now) == []
    other = [x * 1.01 for x in row["probe"]]
    assert store.stale({**row, "probe": other}, now) == ["optimizer"]
    changed = {**row, "rules": "", "source": ""}
    assert store.stale(changed, now) == ["rules", "task"]
    assert store.stale({**row, "optimizer": "gone"}, now) == ["rules"]


def test_a_comment_does_not_change_the_source_of_a_task(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "__file__", str(tmp_path / "__init__.py"))
    file = tmp_path / "some.py"
    digests = []
    for text in ('"""A."""\nx = 1\n', '"""B."""\n# why\nx = 1\n', "x = 2\n"):
        file.write_text(text)
        digests.append(store.source("some"))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    "arguments",
    [["--task", "digit"], ["--optimizer", "adam"], ["--jobs", "0"], ["--jobs", "two"]],
)
def test_bad_names_are_refused_with_what_exists(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["board", *arguments])
    with pytest.raises(SystemExit):
        command.main()
    message = capsys.readouterr().err
    assert arguments[0] in message and repr(arguments[1]) in message
    known = {"--task": "sequence", "--optimizer": "soap", "--jobs": "above 0"}
    assert known[arguments[0]] in message


def test_a_task_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no task 'digit', only digits, factor"):
        tasks.make("digit")


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.NAMES)
def test_a_task_can_be_trained_and_starts_about_where_nothing_is_known(name):
    task = tasks.make(name)
    # Tasks are written as users' programs are, which may leave promotion to JAX.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        params = task.init(jax.random.key(0))
        first = float(task.validate(params))
        grads = jax.eval_shape(jax.grad(task.loss), params, jax.random.key(1))
    assert task.worst / 3 < first < 3 * task.worst
    assert jax.tree.map(jnp.shape, grads) == jax.tree.map(jnp.shape, params)
    assert task.steps % rules.MARKS == 0
    assert store.hash_of(task.data) == store.hash_of(tasks.make(name).data)


def test_steps_are_timed_beside_the_reference_and_added_to_the_file(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tasks, "make", lambda name: bowl())
    monkeypatch.setattr(engine, "compiled", lambda task, name: lambda point, seed: [])
    timing.measure("digits", ["sgd"], tmp_path)
    timing.measure("digits", ["adamw"], tmp_path)
    found = json.loads((tmp_path / "time/digits.json").read_text())
    assert list(found["optimizers"]) == ["sgd", "adamw"]
    assert found["optimizers"]["sgd"].keys() == {"seconds", "ratio"}
    assert found["command"] == "python -m benchmarks.board --time --task digits"

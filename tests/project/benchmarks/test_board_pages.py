"""What the leaderboard says of its rows: statistics, and pages made of them."""

import itertools
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from benchmarks.board import (
    leaderboard,
    pages,
    probes,
    results,
    rules,
    statistics,
    store,
    which,
)
from website.build import stale_figures


def test_holm_of_a_case_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.04.
    found = statistics.holm([0.01, 0.04, 0.03, 0.02])
    assert found == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert statistics.holm([0.5, 0.9]) == [1.0, 1.0]


def test_the_test_is_the_paired_one_of_logarithms():
    draw = np.random.default_rng(0)
    reference = draw.lognormal(0, 0.3, 40)
    losses = reference * draw.lognormal(-0.1, 0.2, 40)
    ratio, lower, higher = statistics.paired(losses, reference)
    logs = np.log(losses), np.log(reference)
    assert ratio == pytest.approx(np.exp(np.mean(logs[0]) - np.mean(logs[1])))
    for p, way in (lower, "less"), (higher, "greater"):
        assert p == pytest.approx(stats.ttest_rel(*logs, alternative=way).pvalue)
    # By hand: t of the mean over its standard error, with 39 degrees of freedom.
    d = logs[0] - logs[1]
    t = d.mean() / (d.std(ddof=1) / 40**0.5)
    assert lower == pytest.approx(stats.t.cdf(t, 39))


def test_losses_that_never_differ_show_no_difference():
    assert statistics.paired(np.full(40, 2.0), np.full(40, 1.0)) == (2, 1, 1)


def test_the_expected_best_is_the_mean_over_all_choices():
    losses = [0.3, 0.1, 0.7, 0.2, 0.2]
    for k in range(1, 6):
        choices = [min(x) for x in itertools.combinations(losses, k)]
        assert statistics.expected_best(losses, k) == pytest.approx(np.mean(choices))


def test_the_share_of_steps_until_a_loss():
    curves = np.array([[3, 1, 0.5, 0.2], [3, 2, 0.9, 0.8], [3, 2, 2, 2], [1, 1, 1, 1]])
    assert statistics.share_until(curves, 1.0) == (0.625, 3)
    assert statistics.share_until(curves, 0.4) == (np.inf, 1)


def test_the_span_of_rates_around_the_best():
    rates = [1, 10, 100, 1000]
    assert statistics.span(rates, [4, 1, 1, 1.1], 2) == pytest.approx(
        (10**0.5, 1000, False, True)
    )
    # What is good again beyond a bad rate does not count.
    low, high, *is_open = statistics.span(rates, [1, 9, 9, 1.1], 3)
    assert (low, is_open) == (1, [True, False]) and high == pytest.approx(10**0.5)


def test_the_profile_counts_tasks_within_a_factor():
    ratios = np.array([[1, 2, 1], [1.5, 1, 4]])
    expected = [2 / 3, 1, 1 / 3, 2 / 3]
    assert statistics.profile(ratios, [1, 2]).ravel() == pytest.approx(expected)


def made(task, name, level):
    """A row as if run: losses about a level, the lowest at the middle of the rates."""
    draw = np.random.default_rng([len(task), *name.encode()])
    noise = lambda *shape: level * draw.lognormal(0, 0.05, shape)
    drawn = rules.draws(name)
    away = np.abs(np.linspace(-3, 3, rules.CURVE_RATES))[:, None]
    fall = np.linspace(3, 1, rules.MARKS)
    seeds = len(rules.TUNING_SEEDS), len(rules.CURVE_SEEDS)
    return {
        "task": task,
        "optimizer": name,
        "rules": rules.digest(name),
        "source": store.source(task),
        "data": "same",
        "probe": [1.0],
        "versions": {"python": "3"},
        "machine": {"cores": 2},
        "steps": 300,
        "worst": 10.0,
        "parameters": 100,
        "state_bytes": 400 if name in ("sgd", "lion") else 800,
        "names": list(drawn[0]),
        "draws": [list(x.values()) for x in drawn],
        "tuning_seeds": list(rules.TUNING_SEEDS),
        "fresh_seeds": list(rules.SEEDS),
        "curve_rates": rules.curve_rates(name),
        "curve_seeds": list(rules.CURVE_SEEDS),
        "tuning": noise(rules.DRAWS * seeds[0]).tolist(),
        "seeds": (noise(len(rules.SEEDS), 1) * fall).tolist(),
        "curve": (noise(rules.CURVE_RATES, seeds[1]) * (1 + away)).ravel().tolist(),
    }


LEVELS = {"muon": 0.5, "sgd": 2.0}
DONE = "digits", "factor", "pinn"


@pytest.fixture
def folder(tmp_path):
    """Three complete tasks, and one that lacks an optimizer."""
    rows = store.Rows(tmp_path)
    for task in (*DONE, "patches"):
        for name in rules.ENTRIES:
            if (task, name) != ("patches", "soap"):
                rows.write(made(task, name, LEVELS.get(name, 1.0)))
    return tmp_path


def changed(folder, task, name, **values):
    rows = store.Rows(folder)
    rows.write((rows.read(task, name) or {}) | values)


@pytest.mark.slow
def test_complete_tasks_are_ranked_and_incomplete_ones_never(folder):
    found = results.read(folder)
    assert [task.name for task in leaderboard.ranked(found)] == list(DONE)
    assert found["digits"].comparisons["muon"].verdict == "better"
    assert found["digits"].comparisons["sgd"].verdict == "worse"
    assert found["digits"].comparisons["mars"].verdict == "no difference shown"
    assert found["patches"].comparisons == {}
    text = "\n".join(leaderboard.all_tasks(found))
    assert "Not complete yet: `soap`." in text
    assert "Nothing has been run yet." in text
    over = leaderboard.over(found)
    assert over[0] == "Over 3 ranked tasks: digits, factor, pinn."
    assert over[4].startswith("| `muon` | 0.5") and "| 3 | 0 |" in over[4]
    assert "patches" not in "\n".join(over)


@pytest.mark.slow
def test_a_decision_has_a_figure_and_its_n(folder):
    lines = which.decisions(results.read(folder))
    assert lines[0] == "Over 3 tasks with 40 seeds each."
    assert lines[4].startswith("| there is time to tune | `muon`: median loss ")
    small = next(line for line in lines if "one number for each" in line)
    assert re.findall(r"\| `(\w+)`", small) == ["lion", "sgd"]


def test_a_choice_asks_for_three_ranked_tasks(folder):
    (folder / "digits" / "soap.json").unlink()
    lines = which.decisions(results.read(folder))
    assert lines == [
        "The leaderboard has ranked 2 of 7 tasks so far; a choice needs 3."
    ]


@pytest.mark.slow
def test_a_stale_row_is_shown_and_compared_with_none(folder):
    changed(folder, "digits", "muon", rules="others")
    found = results.read(folder)
    assert "muon" not in found["digits"].comparisons
    text = "\n".join(leaderboard.all_tasks(found))
    assert "`muon` is stale, because its rules changed, and is not compared." in text
    assert "| `muon` (stale) |" in text
    assert "| 16 of 16, 1 stale |" in "\n".join(leaderboard.state(found))
    changed(folder, "digits", "adamw", source="another")
    task = results.read(folder)["digits"]
    assert not task.is_ranked and task.comparisons == {}


@pytest.mark.slow
def test_a_changed_optimizer_makes_its_rows_stale(folder):
    now = dict.fromkeys(rules.ENTRIES, [1.0]) | {"lion": [2.0]}
    found = results.read(folder, now)
    stale = [x for x, r in found["digits"].results.items() if r.stale]
    assert stale == ["lion"]
    assert found["digits"].results["lion"].stale == ("optimizer",)


@pytest.mark.slow
def test_runs_on_other_data_are_not_compared(folder):
    changed(folder, "digits", "lion", data="other")
    found = results.read(folder)
    assert "lion" not in found["digits"].comparisons
    text = "\n".join(leaderboard.all_tasks(found))
    assert "`lion` was run on other data, and is not compared." in text


def test_a_task_that_tells_nothing_apart_is_not_ranked(folder):
    for name in rules.ENTRIES:
        changed(folder, "digits", name, seeds=made("digits", name, 1.0)["seeds"])
    task = results.read(folder)["digits"]
    assert task.is_complete and not task.is_ranked
    assert "asked" in "\n".join(leaderboard.state({"digits": task}))


def test_numbers_to_start_with(folder):
    found = results.numbers_to_start_with("lion", folder)
    assert list(found) == [*DONE, "patches"]
    digits = found["digits"]
    assert digits["low"] < rules.ENTRIES["lion"].usual < digits["high"]
    assert digits["rate"] == digits["point"]["rate"] and not digits["at_least"]
    assert results.numbers_to_start_with("soap", folder / "nowhere") == {}
    assert results.numbers_to_start_with("another", folder) == {}


def test_a_picture_is_a_small_svg(folder):
    text = pages.pictures(results.read(folder))["docs/assets/board/digits.svg"]
    root = ElementTree.fromstring(text)
    assert len(root) == len(rules.ENTRIES) and len(text) < 40_000


@pytest.mark.slow
def test_a_stale_figure_is_named_with_its_file_and_line(folder, tmp_path):
    root = tmp_path / "copy"
    (root / "docs" / "evidence").mkdir(parents=True)
    for page in pages.PAGES:
        shutil.copy(results.ROOT / page, root / page)
    found = results.read(folder)
    pages.write(found, root)
    assert list(pages.wrong(found, root)) == []
    page = root / "docs/leaderboard.md"
    lines = page.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("| `muon` |"))
    lines[at] = lines[at].replace("better", "worse").replace("| 3 |", "| 4 |")
    page.write_text("\n".join(lines))
    (error,) = pages.wrong(found, root)
    assert error.startswith(f"docs/leaderboard.md:{at + 1}: says '| `muon` |")
    (root / "docs/assets/board/digits.svg").unlink()
    assert len(list(pages.wrong(found, root))) == 2


@pytest.mark.slow
def test_the_pages_say_what_the_rows_say():
    """If this fails, run `make board ARGS=--pages` and read what has changed."""
    assert stale_figures() == []


def test_probes_are_kept_until_a_source_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "probe", lambda name: [float(len(name))])
    first = probes.probes(tmp_path)
    monkeypatch.setattr(probes, "probe", None)
    assert probes.probes(tmp_path) == first and first["lion"] == [4.0]
    assert len(list(tmp_path.iterdir())) == 1

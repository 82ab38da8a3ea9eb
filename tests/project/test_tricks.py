"""A trick that XLA no longer needs is reported, and fails nothing."""

import pytest

import stepax
from benchmarks import tricks
from benchmarks.tricks import TRICKS, Built, Trick, build, is_needed


@pytest.mark.parametrize(
    ("temporaries", "copies", "ratio", "needed"),
    [(4, 2, 1, True), (0, 3, 1, True), (0, 2, 1.4, True), (0.05, 2, 1, False)],
)
def test_fewer_bytes_or_copies_or_less_time(temporaries, copies, ratio, needed):
    found, without = (
        Built(None, tuple, *x) for x in ((0, 2), (temporaries, copies))
    )  # fmt: skip
    assert is_needed(found, without, ratio) == needed


def test_what_changes_nothing_is_named(monkeypatch, capsys):
    idle = Trick("idle", "cpu", (), lambda: stepax.sgd(0.1), 4)
    monkeypatch.setattr(tricks, "TRICKS", [idle])
    monkeypatch.setattr("sys.argv", ["tricks", "--exact"])
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    tricks.main()
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.endswith("no longer needs `idle`: try to delete it")


@pytest.mark.slow
@pytest.mark.parametrize(
    "trick", [x for x in TRICKS if x.platform == "cpu"], ids=lambda x: x.name
)
def test_a_step_without_a_trick_is_another_program(trick, optimized):
    """So the report compares what it says, whatever this version of XLA needs."""
    texts = {build(trick, is_on).run.as_text() for is_on in (True, False)}
    assert len(texts) == 2

"""Each program of the museum is found, its cure is silent, and the page shows them."""

import jax
import pytest
from inside import CHECKS
from museum.page import (
    EVIDENCE,
    PAGE,
    TABLE,
    key,
    measured,
    museum,
    page,
    stored,
    table,
)
from museum.programs import EXHIBITS


@pytest.mark.project
def test_every_code_has_a_program_of_at_most_ten_lines():
    assert {x.code for x in EXHIBITS} == {check.code for check in CHECKS}
    assert len(EXHIBITS) >= 40
    assert max(len(x.program.splitlines()) for x in EXHIBITS) <= 10


@pytest.mark.few(8)
@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda x: x.code)
def test_programs_are_found_where_they_are_wrong(exhibit):
    found = exhibit.diagnosis(exhibit.program)
    paths = {path for x in found if x.code == exhibit.code for path in x.paths}
    assert paths == set(exhibit.paths), f"{exhibit.program}: {found.codes}"


@pytest.mark.slow("test_optimizers_of_the_registry_are_right")
def test_cures_are_silent():
    loud = []
    for exhibit in EXHIBITS:
        found = exhibit.diagnosis(exhibit.cure)
        stays = exhibit.code in found.codes and not exhibit.remains
        if found.alarms or stays or "check-failed" in found.codes:
            loud.append(f"{exhibit.cure}: {found.codes}")
    assert not loud, "\n".join(loud)


@pytest.mark.project
def test_cures_are_better_as_the_page_says():
    evidence = stored()
    pairs = {k: [float(x) for x in values] for k, values in evidence.items()}
    assert set(pairs) == {key(x) for x in EXHIBITS}, "run `python -m tests.museum`"
    assert [k for k, (before, after) in pairs.items() if not after < before] == []


@pytest.mark.slow
@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda x: x.code)
def test_cures_are_better_when_measured_again(exhibit):
    # As users run them.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        before, after = measured(exhibit)
    assert after < before
    was = float(stored()[key(exhibit)][1])
    # Other machines round in another order, which a hundred steps amplify.
    assert after == pytest.approx(was, rel=0.1, abs=1e-5)


@pytest.mark.project
def test_the_page_is_made_from_the_table():
    for file, made in ((PAGE, museum(stored())), (TABLE, table())):
        text = file.read_text()
        assert page(text, made) == text, "run `python -m tests.museum --page`"
    assert EVIDENCE.exists()

"""Where there are several ways, one page says which to take."""

import re

import pytest
from pages import ROOT


# The families, and the ways of each.
FAMILIES = {
    "weight_decay": "weight_decay with_weight_decay decoupled independent corrected",
    "averages": "averages schedule_free gpa_adamw lookahead checkpoint.average ema",
    "bounds": "bounds= lbfgsb proximal prox.box projections constraints= "
    "keep_params_nonnegative least_squares quadratic_program",
    "bad_steps": "zero_nans apply_if_finite skip_not_finite dynamic_loss_scale "
    "clip_by_recent_norm skip_spikes rollback MultiSteps",
    "accumulation": "MultiSteps microbatch apply_every weight=",
    "precision": "with_state_dtypes master_weights low_bit_states stochastic_rounding",
    "logging": "observe monitor snapshot measure_with_ema diagnose",
}


@pytest.mark.parametrize("page", FAMILIES)
def test_a_page_compares_the_ways_of_a_family(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    ways = set(FAMILIES[page].split())
    assert not {x for x in ways if x not in text}
    rows = re.findall(r"^\|.*\|$", text, re.M)
    compared = {x for x in ways if any(x in row for row in rows)}
    assert len(compared) >= 3, "a table compares them"
    assert re.search(r"\b(take|use|put)\b", text, re.I), "and it says which to take"

"""What is promised of each name is what `docs/stability.md` says."""

import pytest

from website.names import homes
from website.tiers import stable, tier


NAMES = list({home.path: home for home in homes().values()}.values())


def test_every_name_has_a_tier_and_each_tier_has_names():
    found = {name.path: tier(name) for name in NAMES}
    assert {*found.values()} == {"frozen", "stable", "may change"}


@pytest.mark.parametrize("path", stable())
def test_what_is_called_stable_is_there(path):
    modules = {name.module for name in NAMES}
    assert path in homes() or path in modules


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("stepax.adamw", "frozen"),
        ("stepax.contrib.muon", "frozen"),
        ("stepax.contrib.soap", "stable"),
        ("stepax.eval_params", "stable"),
        ("stepax.AverageState", "stable"),
        ("stepax.solve.root", "may change"),
        ("stepax.contrib.diloco", "stable"),
        ("stepax.rollback", "may change"),
    ],
)
def test_tiers(path, wanted):
    assert tier(homes()[path]) == wanted

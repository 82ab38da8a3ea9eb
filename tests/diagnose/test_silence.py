"""Where nothing is wrong, `diagnose` is silent."""

import cases
import jax
import pytest
from diagnose_recorded import recorded
from fuzz.programs import programs
from hypothesis import HealthCheck, Phase, given, seed, settings
from models import MODELS, is_for_matrices, optimizer
from pages import ROOT, WITHOUT, pages, run_page

import stepax
import stepax.contrib


OPTIMIZERS = [case.values[0] for case in cases.rows(kind="optimizer")]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MODELS)
def test_optimizers_of_the_registry_are_right(name):
    params, loud = MODELS[name](), []
    shapes = jax.eval_shape(lambda: params) if name != "Equinox" else params
    for row in OPTIMIZERS:
        tx = optimizer(row)
        if name == "scanned" and is_for_matrices(tx):
            continue  # its labels would leave all to the other optimizer
        found = stepax.diagnose(tx, shapes, steps=1000)
        if found.alarms or "check-failed" in found.codes:
            loud.append(f"{row.name}: {found}")
    assert not loud, "\n".join(loud)


@pytest.mark.few(3)
@pytest.mark.parametrize("row", cases.rows(kind="optimizer"))
def test_a_trial_step_finds_nothing_either(row):
    params = {"kernel": cases.TREES["dict"]()["w"], "bias": cases.TREES["dict"]()["b"]}
    found = stepax.diagnose(cases.make(row), params, gradients=cases.gradients(params))
    assert not found.alarms


@pytest.mark.few(2)
@pytest.mark.parametrize("page", [x for x in pages() if x not in WITHOUT])
def test_programs_of_pages_are_right(page):
    meant = MEANT.get(page, ())
    with recorded() as made:
        run_page(ROOT / page)
    loud = [(tx, found) for tx, params in made if (found := _alarms(tx, params, meant))]
    assert not loud, loud


# What pages show on purpose.
MEANT: dict[str, tuple[str, ...]] = {}


def _alarms(tx, params, meant):
    alarms = stepax.diagnose(tx, params).alarms
    return [x for x in alarms if x.code not in meant]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of deprecated names
def test_random_nests_raise_nothing_and_all_rules_run():
    wrong = []

    @seed(0)
    @settings(
        max_examples=20,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        phases=[Phase.generate],
    )
    @given(programs())
    def check(program):
        with jax.enable_x64(True):  # some of the arrays have 64 bits
            tx, params = program.make(stepax), program.tree(stepax)
            try:
                tx.init(params)
            except (TypeError, ValueError):
                return
            found = stepax.diagnose(tx, params, steps=100)
        if "check-failed" in found.codes:
            wrong.append((program.tx, found))

    check()
    assert not wrong

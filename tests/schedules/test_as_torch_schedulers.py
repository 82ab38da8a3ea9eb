"""Each of PyTorch's schedulers, as the page for its users translates it."""

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from pages import ROOT

import stepax


PAGE = (ROOT / "docs/from_pytorch.md").read_text()
TABLE = PAGE.partition("## Schedulers")[2].partition("\n## ")[0]
ROWS: list[tuple[str, str]] = re.findall(
    r"^\| `(\w+\(.*\))` \| `(.*)` \|$", TABLE, re.M
)
BASE = 1e-2


@pytest.mark.few(3)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].partition("(")[0])
def test_a_schedule_has_the_learning_rates_of_the_scheduler(row):
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    opt = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=BASE)
    scheduler = eval(row[0], vars(torch.optim.lr_scheduler) | {"opt": opt, "r": BASE})
    schedule = eval(row[1], {"stepax": stepax, "jnp": jnp, "r": BASE})
    theirs = []
    for _ in range(100):
        theirs.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    ours = [float(schedule(jnp.float32(n))) for n in range(100)]
    # Ours are float32, with an ulp in each of a few operations.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * BASE)


def test_all_schedulers_are_translated():
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    module = torch.optim.lr_scheduler
    known = {
        x for x in vars(module) if re.match(r"[A-Z]\w*(LR|Restarts|Scheduler)$", x)
    }
    known -= {"LRScheduler", "_LRScheduler"}
    assert {x for x, _ in ((row[0].partition("(")[0], row) for row in ROWS)} == known
    assert "`ReduceLROnPlateau(" in TABLE

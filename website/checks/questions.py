"""What users type, and the page that each finds among the first two.

The theme's own search answers, its web worker, in the Node.js of Playwright.
"""

import json
import subprocess
from pathlib import Path

from playwright._impl._driver import compute_driver_executable

from .report import Row


RANKING = Path(__file__).parent.parent / "ranking.js"
FIRST = 2
HOW = "how/"  # has a few lines for what is asked in many words

QUESTIONS = {
    # of users of Optax
    "adamw": "cards/adamw/",
    "multi_transform": "masks/",
    "masked": "masks/",
    "MultiSteps": "accumulation/",
    "inject_hyperparams": "hyperparameters/",
    "clip_by_global_norm": "reference/transformations/",
    "cosine_decay_schedule": "reference/schedules/",
    "apply_updates": "reference/steps/",
    "EMA": "averages/",
    "weight decay": "weight_decay/",
    "gradient accumulation": "accumulation/",
    "mixed precision": "precision/",
    "bfloat16": "precision/",
    "freeze": "masks/",
    "layerwise learning rate": "rates/",
    "shard": "distributed/",
    "NaN": "bad_steps/",
    "muon": "cards/muon/",
    "lookahead": "reference/wrappers/",
    "sam": "reference/wrappers/",
    "mu_dtype": "precision/",
    "params=None": "faq/",
    "target network": "averages/",
    "type hints": "from_optax/",
    # of users of PyTorch
    "zero_grad": HOW,
    "no_grad": HOW,
    "lr scheduler": "schedules/",
    "CosineAnnealingLR": "from_pytorch/",
    "ReduceLROnPlateau": "schedules/",
    "GradScaler": "precision/",
    "state_dict": "checkpoints/",
    "SWA": "averages/",
    "save checkpoint": "checkpoints/",
    "freeze layer": "masks/",
    "log gradient norm": "logging/",
    "learning rate finder": "sweep/",
    "early stopping": HOW,
    "EarlyStopping": HOW,
    "optimizer.step()": HOW,
    "clip_grad_norm_": "clipping/",
    "exploding gradients": "clipping/",
    "warm up": "schedules/",
    "cosine annealing": "schedules/",
    "fp16": "precision/",
    "multi gpu": "distributed/",
    "different learning rates": "rates/",
    "wandb": "logging/",
    "momentum": "cards/sgd/",
    "default learning rate": "which/",
    # of users of SciPy
    "curve_fit": "from_scipy/",
    "least_squares": "solving/",
    "standard errors": "solving/",
    "multistart": "minimize/",
    "bounds": "bounds/",
    "constraints": "bounds/",
    "SLSQP": "bounds/",
    "L-BFGS-B": "minimize/",
    "float64": "precision/",
    "fsolve": "from_scipy/",
    "root finding": "solving/",
    "proximal gradient": "reference/solving/",
    "Nelder-Mead": "from_scipy/",
    "convergence tolerance": "minimize/",
    # of everybody
    "install": "start/",
    "choose optimizer": "which/",
    "optimiser": "which/",
    "hyperparameter tuning": "sweep/",
    "out of memory": "memory/",
    "tree structure mismatch": "faq/",
    "change learning rate": "hyperparameters/",
    "resume": "start/",
    "write my own": "rules/",
    "memory": "memory/",
    "semver": "stability/",
    "cite": "citing/",
    "gallery": "gallery/",
    "from optax": "from_optax/",
    "changelog": "changelog/",
}


def ranked(site: Path, queries: list[str]) -> list[list[str]]:
    """For each query the places that the site's search finds, the best first."""
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    node, _ = compute_driver_executable()
    command = [node, RANKING, worker, site / "search.json", *queries]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def questions(site: Path) -> Row:
    """Each question finds its page; see `FIRST`."""
    wrong = []
    found = ranked(site, [*QUESTIONS])
    for (words, page), places in zip(QUESTIONS.items(), found, strict=True):
        first = [x.partition("#")[0] for x in places[:FIRST]]
        if page not in first:
            wrong.append(f"`{words}` finds {', '.join(places[:FIRST])}, and not {page}")
    return Row("questions find their pages", len(QUESTIONS), wrong)

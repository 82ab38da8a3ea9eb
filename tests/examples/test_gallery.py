"""Each program of the gallery runs in its small form, draws, and is on the page."""

import re
import xml.etree.ElementTree as ElementTree
from importlib import import_module
from pathlib import Path

import jax
import pytest


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "gallery"
PROGRAMS = sorted(
    x.stem for x in FOLDER.glob("*.py") if x.stem not in ("__init__", "shared")
)
NEEDS = {"one_nan": "optax", "resumed": "orbax.checkpoint", "vision": "sklearn"}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_in_its_small_form_and_draws(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    # As for its users, whose arrays promote.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        canvas = import_module(f"examples.gallery.{name}").main(True)
    picture = ElementTree.fromstring(canvas.svg())
    assert picture.findtext("{*}title")
    assert len(picture.findall("{*}path")) > 0


@pytest.mark.project
def test_the_page_shows_each_program_with_its_picture():
    page = (ROOT / "docs" / "gallery.md").read_text()
    shown = re.findall(
        r"^- \[!\[[^\]]+\]\(assets/gallery/(\w+)\.svg\)\]"
        r"\(\.\./examples/gallery/(\w+)\.py\)",
        page,
        re.MULTILINE,
    )
    assert all(picture == program for picture, program in shown)
    assert sorted(program for _, program in shown) == PROGRAMS
    assert len(PROGRAMS) >= 14


@pytest.mark.project
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_picture_is_small(name):
    picture = ROOT / "docs" / "assets" / "gallery" / f"{name}.svg"
    assert picture.stat().st_size < 25_000
    ElementTree.parse(picture)

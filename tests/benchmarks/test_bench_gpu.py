"""The commands for a GPU: they go on where they ended, and read profiles rightly."""

import json
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import compiled, gpu, kernels
from benchmarks.bench import ahead, in_torch, measure, results
from benchmarks.bench.measure import WAYS
from benchmarks.bench.rounds import Limits
from benchmarks.bench.shapes import SHAPES, Shape


PROGRAM = """
%region (x: f32[]) -> f32[] {
  %x = f32[] parameter(0)
}

ENTRY %main (p: f32[10,4], c: s8[40]) -> (f32[10,4], bf16[40]) {
  %p = f32[10,4]{1,0} parameter(0), sharding={replicated}
  %c = s8[40]{0} parameter(1)
  %flag = pred[] constant(true)
  %sum_fusion = f32[] fusion(%p, %flag), kind=kInput, calls=%region
  ROOT %loop_fusion.12 = (f32[10,4]{1,0}, bf16[40]) fusion(%p, %c, %sum_fusion)
}
"""


def test_traffic_is_that_of_arguments_and_results():
    found = kernels.traffic_of(PROGRAM)
    assert found["sum_fusion"] == 160 + 1 + 4
    assert found["loop_fusion.12"] == (160 + 40 + 4) + (160 + 80)


def test_a_program_is_summed_up_outside_of_its_branches():
    _, lines = compiled.table(PROGRAM, 40)
    assert lines == [
        ["loop_fusion", "1", "11.10"],
        ["sum_fusion", "1", "4.12"],
        ["all", "2", "15.22"],
    ]


def test_kernels_are_grouped_by_name_and_rated():
    events = [("loop_fusion.12", 2e-6), ("loop_fusion.3", 1e-6), ("MemcpyD2D", 7e-6)]
    traffic = {"loop_fusion.12": 3_000_000, "loop_fusion.3": 1_500_000}
    found = kernels.grouped(events * 4, 2, traffic)
    assert [x.name for x in found] == ["MemcpyD2D", "loop_fusion"]
    assert found[0].traffic is None and found[1].operations == 2
    _, (copy, loop) = kernels.table(found)
    assert copy == ["MemcpyD2D", "1", "2", "0.014", "70%", "", ""]
    assert loop == ["loop_fusion", "2", "4", "0.006", "30%", "9.0", "1.50"]


def event(name, **stats):
    return SimpleNamespace(name=name, duration_ns=1e3, stats=list(stats.items()))


def test_of_a_device_only_its_streams_count():
    line = lambda name, *events: SimpleNamespace(name=name, events=events)
    plane = lambda name, *lines: SimpleNamespace(name=name, lines=lines)
    host = plane("/host:CPU", line("worker", event("x", hlo_op="x"), event("wait")))
    streams = line("Stream #7", event("loop_1", hlo_op="loop.1"), event("MemcpyD2D"))
    device = plane("/device:GPU:0", streams, line("XLA Modules", event("all")))
    names = lambda *planes: [
        x for x, _ in kernels.events_of(SimpleNamespace(planes=planes))
    ]
    assert names(host) == ["x"]
    assert names(host, device) == ["loop.1", "MemcpyD2D"]


# JAX 0.12 makes a class without a module, and aborts if a warning of that is an error.
reads_profiles = pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")


@pytest.mark.slow
@reads_profiles
def test_a_profile_has_the_kernels_of_the_program():
    f = jax.jit(lambda x: jnp.sin(x @ x))
    x = jnp.ones((64, 64))
    program: Any = f.lower(x).compile()

    def run(n):
        for _ in range(n):
            program(x).block_until_ready()

    found = kernels.profiled(run, 3, program.as_text())
    assert found and all(k.seconds >= 0 and k.name in program.as_text() for k in found)
    assert any(k.traffic for k in found)


@pytest.fixture
def tiny(monkeypatch):
    tree = {"w": (6, 4), "b": (4,), "v": (3, 8)}
    monkeypatch.setitem(SHAPES, "gpt2", Shape("tiny", lambda n: tree))


@pytest.mark.slow
@reads_profiles
def test_a_case_is_profiled_into_files(tiny, tmp_path, capsys):
    args = ["profile", "clip + adamw", "--tree", "gpt2", "--out", str(tmp_path)]
    assert gpu.main([*args, "--way", "stepax"]) == 0
    told = capsys.readouterr().out
    assert "for each parameter: bytes" in told and "TB/s" in told
    names = {x.name for x in tmp_path.iterdir()}
    stem = "clip_adamw_gpt2_stepax"
    assert names == {f"{stem}.txt", f"{stem}.hlo.txt"}
    assert "ENTRY" in (tmp_path / f"{stem}.hlo.txt").read_text()


@pytest.fixture
def measured(monkeypatch):
    """Cases that are compiled and measured at once; their names, in order."""
    seen = []

    def measure_one(shape, name, plan):
        assert (shape, name) in plan.programs
        seen.append((shape, name))
        if name == "lion":
            raise RuntimeError("out of memory")
        found = {way: measure.Measured({"step": [1e-3] * 9}, {}) for way in WAYS}
        about = {"shape": shape, "case": name}
        yield "done", measure._rows(about, SHAPES[shape].make(1), 0.0, found)

    compiled = lambda pairs, plan, threads: dict.fromkeys(pairs, {})
    monkeypatch.setattr(gpu.ahead, "compiled", compiled)
    monkeypatch.setattr(gpu.command, "measure", measure_one)
    return seen


def test_measuring_goes_on_and_names_what_failed(measured, tmp_path, capsys):
    path = tmp_path / "out.json"
    assert gpu.main(["measure", str(path)]) == 1
    told = capsys.readouterr().out
    assert "step 1.00 ms, 1.00 fused" in told
    assert "gpt2: lion: RuntimeError: out of memory" in told
    assert measured == gpu.pairs() and len(measured) > 40
    assert json.loads(path.read_text())["about"]["commands"] == [
        "python -m benchmarks.gpu measure"
    ]
    measured.clear()
    gpu.main(["measure", str(path)])
    assert {name for _, name in measured} == {"lion"}


def test_measuring_ends_in_time(measured, tmp_path, capsys):
    assert gpu.main(["measure", str(tmp_path / "out.json"), "--minutes", "0"]) == 0
    assert not measured
    assert f"{len(gpu.pairs())} left" in capsys.readouterr().out


def test_only_what_is_asked_for_is_measured(measured, tmp_path):
    gpu.main(["measure", str(tmp_path / "out.json"), "--only", "small: *", "*: adam"])
    assert measured == [x for x in gpu.pairs() if x[0] == "small" or x[1] == "adam"]


@pytest.mark.slow
def test_programs_that_are_compiled_before_are_measured(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "LIMITS", Limits(1, 1, 0.0, 0.05))
    path = tmp_path / "out.json"
    only = "--only", "gpt2: multi*", "gpt2: adamw, packed"
    assert gpu.main(["measure", str(path), "--threads", "2", *only]) == 0
    _, rows = results.read(path)
    assert {row["case"] for row in rows} == {"multi_steps(adamw, 4)", "adamw, packed"}
    waiting = {row["library"] for row in rows if measure.WAITING in row}
    assert waiting == {"stepax.step"}
    assert not any("compile" in row for row in rows)
    assert all(row["step"] > 0 for row in rows)


def test_a_case_that_cannot_be_compiled_is_an_error_of_its_own(monkeypatch):
    def build(way, tx, params):
        raise MemoryError("too large")

    monkeypatch.setattr(measure.Way, "build", build)
    plan = measure.Plan(1, Limits(1, 1, 0.0, 0.05), ("stepax",))
    pair = "gpt256", "soap"
    programs = ahead.compiled([pair], plan, 2)
    with pytest.raises(MemoryError, match="too large"):
        next(measure.measure(*pair, plan._replace(programs=programs)))


def test_what_is_slower_than_others_is_profiled_before_what_has_no_rival():
    def row(shape, name, **ratios):
        ratios = {k.replace("_", " "): {"step": [x]} for k, x in ratios.items()}
        return {"shape": shape, "case": name, "ratios": ratios}

    rows = [
        row("gpt2", "adamw, 8 bits"),
        row("gpt2", "adamw", optax=1.01, torch_fused=1.2),
        row("large", "lamb", optax=0.8),
        row("gpt1b", "muon", optax=1.5),
        row("gpt256", "soap"),
    ]
    found = gpu.slower(rows)
    assert found == [("gpt1b", "muon"), ("gpt2", "adamw"), ("gpt2", "adamw, 8 bits")]


@pytest.mark.slow
def test_torch_takes_a_step_of_muon():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    arrays = [np.ones((4, 3), np.float32), np.ones(3, np.float32)]
    params, steps = in_torch.steps("muon", arrays, [0.1 * x for x in arrays])
    assert list(steps) == ["torch loop"]
    steps["torch loop"]()
    assert all((p.detach().numpy() != 1).all() for p in params)


def test_the_trees_of_a_gpu_have_all_that_is_to_be_measured():
    found = gpu.pairs()
    both = {name for shape, name in found if shape == "gpt1b"}
    assert both | {"soap"} <= {name for shape, name in found if shape == "gpt2"}
    assert {"adamw", "adamw, 8 bits", "adamw, float32 masters", "muon"} <= both
    assert {"adamw, 4 bits", "lamb"} <= {x for shape, x in found if shape == "large"}
    assert [shape for shape, _ in found[-2:]] == ["gpt2", "gpt2"]
    assert found[-1][1] == "soap, staggered"

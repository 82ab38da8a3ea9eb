"""`python -m stepax diagnose`: what it prints, and its exit status."""

import json

import pytest

import stepax
from stepax.__main__ import main


SHAPES = {"layers": [{"kernel": [16, 16]}, {"kernel": [16, 16]}], "scalar": []}
RATE = stepax.cosine_decay_schedule(1e-3, 100)


@pytest.fixture
def run(tmp_path, capsys):
    """The exit status of the command, and what it printed."""

    def status(config, shapes, *more):
        files = tmp_path / "config.json", tmp_path / "shapes.json"
        for file, content in zip(files, (config, shapes), strict=True):
            text = content if isinstance(content, str) else json.dumps(content)
            file.write_text(text)
        code = main(["diagnose", str(files[0]), "--params", str(files[1]), *more])
        out, err = capsys.readouterr()
        return code, out + err

    return status


def test_a_right_configuration_exits_with_0(run):
    config = stepax.to_config(stepax.adam(RATE))
    assert run(config, SHAPES) == (0, "nothing found\n")
    assert run(config, SHAPES, "--steps", "100")[0] == 0


def test_errors_and_warnings_exit_with_1(run):
    code, text = run(stepax.to_config(stepax.scale_by_adam()), SHAPES)
    assert code == 1
    assert "rate-never" in text
    assert "layers/0/kernel" in text
    code, text = run(stepax.to_config(stepax.adam(RATE)), SHAPES, "--steps", "1000")
    assert code == 1
    assert "schedule-ends-early" in text


def test_notes_exit_with_0(run):
    code, text = run(stepax.to_config(stepax.adamw(1e-3)), {"bias": [16]})
    assert code == 0
    assert "decay-on-vectors" in text


def test_dtypes_of_parameters_are_read(run):
    half = {"kernel": {"shape": [16, 16], "dtype": "bfloat16"}}
    code, text = run(stepax.to_config(stepax.adam(1e-3)), half)
    assert code == 1
    assert "narrow-mean" in text


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000 + "]" * 100_000, "is nested too deeply"),
        ('{"a":' * 2000 + "[1]" + "}" * 2000, "is nested too deeply"),
        ({"kernel": "16x16"}, "expected a shape such as"),
        ({"kernel": [-1, 2]}, "expected a shape such as"),
        ({"kernel": {"shape": [2], "dtype": "float99"}}, "float99"),
    ],
)
def test_wrong_files_exit_with_2(run, shapes, words):
    code, text = run(stepax.to_config(stepax.adam(1e-3)), shapes)
    assert code == 2
    assert words in text

"""The file of a run: its surroundings, and a row for each tree, case and library."""

import datetime
import json
import os
import platform
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

import stepax

from .rounds import Limits


PACKAGES = ("stepax", "jax", "jaxlib", "optax", "torch", "numpy")
COMMAND = "python -m benchmarks.bench"
FILES = ("--json", "--png", "--markdown")


def surroundings(command: list[str], divisor: int, limits: Limits) -> dict[str, Any]:
    """The environment of a result: versions, machine, trees, limits, and command."""
    return {
        "commands": [" ".join([COMMAND, *_without_files(command)])],
        "date": datetime.date.today().isoformat(),
        "divisor": divisor,
        "limits": limits._asdict(),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "machine": machine(),
        "source": _source(),
    }


def _source():
    """A digest of the library and of this folder: rows of two states are not mixed."""
    folders = Path(stepax.__file__).parent, Path(__file__).parent
    files = (path for x in folders for path in sorted(x.rglob("*.py")))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def _without_files(command):
    """The words of a command but for its options with files, which change no result."""
    is_file = lambda word: word.partition("=")[0] in FILES
    pairs = zip(["", *command], command, strict=False)
    return [x for before, x in pairs if not is_file(x) and before not in FILES]


def machine() -> dict[str, Any]:
    """This machine in words, without its name."""
    kinds = [device.device_kind for device in jax.devices()]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory, GB": _memory(),
        "devices": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
    }


def _processor():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [x.partition(":")[2].strip() for x in lines if x.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory():
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9)
    except (AttributeError, ValueError, OSError):  # not everywhere
        return None


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def read(path: Path) -> tuple[dict[str, Any], list[dict]]:
    """The surroundings and the rows of a file.

    Raises a `ValueError` if it is not one that `save` has written.
    """
    try:
        found = json.loads(path.read_text())
        about, rows = found["about"], found["rows"]
        lacking = {"limits", "machine", "versions"} - set(about)
        if lacking:
            raise KeyError(*lacking)
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a file of this benchmark, as `--json` writes: "
            f"{type(error).__name__}: {error}"
        ) from error
    return about, rows


def kept(path: Path | None, about: dict[str, Any]) -> list[dict]:
    """The rows of an earlier run that this one may continue, if there is one.

    Its commands are put before that of this run.  Raises a `ValueError` if the file is
    from a different environment, or of other code.
    """
    if path is None or not path.exists():
        return []
    old, rows = read(path)
    for name in ("versions", "source", "machine", "limits", "divisor"):
        if old.get(name) != about[name]:
            raise ValueError(
                f"{path} is of a run with other {name}, {old.get(name)}; "
                "give another name, or remove it"
            )
    about["commands"] = list(dict.fromkeys(old["commands"] + about["commands"]))
    return rows


def save(rows: list[dict], about: dict, path: Path) -> None:
    """Write a file, a row on each line, and at once, so that none is ever half."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{\n"about": {json.dumps(about)},\n"rows": [\n{lines}\n]\n}}\n'
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(text)
    os.replace(beside, path)

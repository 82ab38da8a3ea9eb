"""Writes the bill of materials of a wheel, in CycloneDX's JSON.

`python .ci/sbom.py dist/*.whl > stepax.cdx.json` lists the wheel with its hash, and the
packages that it needs at run time, with their ranges.  The same wheel gives the same
bytes.  It needs nothing but Python.
"""

import email
import hashlib
import json
import re
import sys
import uuid
import zipfile
from email.message import Message
from pathlib import Path


def metadata(wheel: Path) -> Message:
    """The fields of METADATA."""
    with zipfile.ZipFile(wheel) as found:
        (name,) = [x for x in found.namelist() if x.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(found.read(name))


def needed(fields: Message) -> list[dict]:
    """A component for each package that is needed without extras."""
    lines = fields.get_all("Requires-Dist", [])
    return [component(x) for x in lines if "extra ==" not in x]


def component(requirement: str) -> dict:
    name, versions = re.fullmatch(r"([\w.-]+)\s*(.*)", requirement).groups()
    purl = f"pkg:pypi/{name.lower()}"
    found = {"type": "library", "bom-ref": purl, "name": name, "purl": purl}
    # A wheel allows a range; which version is installed is decided where it is.
    if versions:
        found["properties"] = [{"name": "python:requirement", "value": versions}]
    return found


def bill(wheel: Path) -> dict:
    """The bill of materials of a wheel."""
    fields = metadata(wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    name, version, parts = fields["Name"], fields["Version"], needed(fields)
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"{purl}#{digest}").urn,
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "licenses": [{"expression": fields["License-Expression"]}],
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
        },
        "components": parts,
        "dependencies": [{"ref": purl, "dependsOn": [x["bom-ref"] for x in parts]}],
    }


if __name__ == "__main__":
    print(json.dumps(bill(Path(sys.argv[1])), indent=2))

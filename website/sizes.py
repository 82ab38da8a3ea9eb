"""How large the site is and how long its build took, beside the limits."""

import gzip
from pathlib import Path
from typing import NamedTuple


class Figure(NamedTuple):
    """One measured number; `of` says of what, if not of the whole site."""

    what: str
    value: float
    limit: float
    unit: str
    of: str = ""

    @property
    def holds(self) -> bool:
        # Bytes are exact; seconds depend on the machine, so they are only shown.
        return self.unit == "s" or self.value <= self.limit

    def __str__(self) -> str:
        said = f"{self.value:.{1 if self.unit == 's' else 0}f} {self.unit}"
        return (
            f"{said} of at most {self.limit:g} {self.unit}{self.of and ', '}{self.of}"
        )


def sizes(site: Path) -> list[Figure]:
    """Bytes of the site, and of its heaviest page as servers send it."""
    files = [file for file in site.rglob("*") if file.is_file()]
    whole = sum(file.stat().st_size for file in files) / 1e6
    packed = {x: len(gzip.compress(x.read_bytes())) / 1e3 for x in site.rglob("*.html")}
    heaviest = max(packed, key=lambda x: packed[x])
    largest = max(packed, key=lambda x: x.stat().st_size)
    place = lambda page: page.relative_to(site).as_posix()
    where = place(heaviest)
    sent = sum(len(gzip.compress(file.read_bytes(), 6)) for file in files) / 1e3
    return [
        # 5 MB was the goal for 49 cards, 410 names and 17 pages, 8 MB for 74, 545 and
        # 70.  What a reader loads is packed.
        Figure("site", whole * 1e3, 8e3, "kB"),
        Figure("site, packed", sent, 2.3e3, "kB"),
        Figure("largest page", largest.stat().st_size / 1e3, 300, "kB", place(largest)),
        Figure("heaviest page, packed", packed[heaviest], 150, "kB", where),
    ]


def seconds(spent: dict[str, float]) -> list[Figure]:
    """Processor seconds of the build; those of the cards apart, which a hash keeps."""
    cards = sum(x for name, x in spent.items() if ".cards" in name)
    return [
        Figure("build without cards", sum(spent.values()) - cards, 40, "s"),
        Figure("build", sum(spent.values()), 90, "s"),
    ]

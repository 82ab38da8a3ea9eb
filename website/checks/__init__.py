"""Checks of the built site, in files and in a browser.

The exit status is the sum of 2 for files, 4 for sizes, 8 for the browser; 1 is a build
that failed.
"""

from ..build import SITE
from ..sizes import Figure
from .browser import chromium, in_browser
from .evidence import figures as of_leaderboard
from .files import in_files
from .planted import planted
from .programs import programs
from .questions import questions
from .report import Row, show


FILES, SIZES, BROWSER = 2, 4, 8


def check(sources: dict[str, str], figures: list[Figure]) -> int:
    """Check the site that was built of `sources`; returns the exit status."""
    found: dict[int, list[Row]] = {
        FILES: [
            *in_files(SITE, sources),
            programs(),
            of_leaderboard(),
            planted(),
            questions(SITE),
        ]
    }
    found[SIZES] = [
        Row(x.what, 1, [] if x.holds else [f"{x.what}: {x}"], str(x)) for x in figures
    ]
    path = chromium()
    if path:
        found[BROWSER] = in_browser(path, sources)
    show([row for rows in found.values() for row in rows])
    if not path:
        print("no browser: checks that need one were not done; install Chromium, or")
        print("name one, as in CHROMIUM=/path/to/chromium make docs ARGS=--check")
    wrong = lambda rows: any(row.wrong for row in rows)
    return sum(status for status, rows in found.items() if wrong(rows))

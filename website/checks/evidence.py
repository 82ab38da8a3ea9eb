"""Whether the pages of the leaderboard say what its rows say."""

from benchmarks.board import pages, results

from .report import Row


def figures() -> Row:
    """Each line of a table, and each picture, is made from the rows there are."""
    found = results.read()
    count = sum(len(x) for parts in pages.PAGES.values() for x in parts(found).values())
    return Row("figures of the leaderboard", count, list(pages.wrong(found)))

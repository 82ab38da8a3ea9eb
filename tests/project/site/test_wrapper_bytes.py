"""The table of what wrappers cost in bytes names all of them, and is current."""

import pytest
from cases import ROWS

from website.tables.wrapper_bytes import CALLS, MARKS, PAGE, lines


@pytest.mark.slow
def test_the_table_is_what_the_code_costs():
    start, end = MARKS
    _, rest = PAGE.read_text().split(f"<!-- {start} -->\n")
    assert rest.split(f"<!-- {end} -->")[0].splitlines() == "\n".join(lines()).split(
        "\n"
    )


def test_every_wrapper_has_a_row():
    shown = {x.partition("(")[0].removeprefix("contrib.") for x in CALLS}
    wrappers = {row.name for row in ROWS.values() if row.kind == "wrapper"}
    assert wrappers - shown == set()

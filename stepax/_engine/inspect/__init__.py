"""Tables, as plain text and in color."""

from typing import TYPE_CHECKING, TypeAlias


if TYPE_CHECKING:
    from rich.console import Group


Table: TypeAlias = tuple[list[str], list[list[str]]]  # a header, and rows


class Printable:
    """Base of classes that print as tables: as text, or in color by `rich`."""

    def tables(self) -> list[Table]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(_text(*table) for table in self.tables())

    __repr__ = __str__

    def __rich__(self) -> "Group":
        # Only `rich` itself calls this, so it is installed; nothing else needs it.
        from rich.console import Group
        from rich.table import Table

        shown = []
        for header, rows in self.tables():
            table = Table()
            for name in header:
                table.add_column(name, overflow="fold")
            for row in rows:
                # Otherwise `rich` takes `['w']` in a path for markup.
                table.add_row(*(cell.replace("[", r"\[") for cell in row))
            shown.append(table)
        return Group(*shown)


def _text(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * n for n in widths]
    lines = [header, rule, *rows]
    padded = [map(str.ljust, row, widths) for row in lines]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def show_bytes(n: int) -> str:
    # In integers: a logarithm of 1024**k may round to either side.
    power = min(max(n, 1).bit_length() - 1, 40) // 10
    return f"{n / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"

"""A public name for mkdocstrings, which explains it from the files."""

from .examples import example
from .names import Name, homes
from .tiers import tier


CALLED = """    options:
      members: [__call__]
      show_if_no_docstring: true"""


def entry(name: Name) -> list[str]:
    """A name for mkdocstrings, its tier, an example and other names."""
    lines = [f"::: {name.path}"]
    lines += [CALLED] if getattr(name.value, "_is_protocol", False) else []
    said = ["May change."] if tier(name) == "may change" else []
    said += [f"Example: `{x}`."] if (x := example(name)) else []
    again = [f"`{x}`" for x, home in homes().items() if home == name and x != name.path]
    said += [f"Also {', '.join(again)}."] if again else []
    return [*lines, "", *said, ""]

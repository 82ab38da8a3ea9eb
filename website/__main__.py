"""The documentation site: `python -m website`, or `make docs`.

build    build it strictly into `.cache/site`
serve    build it, serve it, and print the address; done if nothing is said
check    build it, and check it, in a browser if there is one; also `--check`
"""

import argparse
import sys

from .build import build
from .serve import serve


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "website", description=__doc__, formatter_class=form
    )
    commands = ["build", "serve", "check"]
    parser.add_argument("command", nargs="?", choices=commands, default="serve")
    parser.add_argument("--check", action="store_true", help="the same as `check`")
    parser.add_argument("--port", type=int, default=8000, help="where to serve")
    asked = parser.parse_args()
    built = build()
    if asked.check or asked.command == "check":
        from .checks import check

        sys.exit(check(*built))
    elif asked.command == "serve":
        serve(asked.port)


if __name__ == "__main__":
    main()

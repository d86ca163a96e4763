"""`labkit html`: write notebooks as pages."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from labkit.export import to_html


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="+", type=Path, help="notebooks; each page is written beside its notebook")


def run(arguments: Namespace) -> int:
    try:
        for notebook in arguments.notebooks:
            if not notebook.is_file():
                raise FileNotFoundError(f"there is no notebook {notebook}")
            print(to_html(notebook))
    except (OSError, ValueError) as error:
        print(f"labkit html: {error}", file=sys.stderr)
        return 2
    return 0

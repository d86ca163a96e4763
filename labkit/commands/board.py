"""`labkit board`: show a class what it predicts, as it commits."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="learners' folders, each with the journal of its notebooks")
    parser.add_argument("--grades", type=Path, metavar="KEPT", help="grades.csv.kept, for lesson 12's leader board")
    parser.add_argument(
        "--address", default="127.0.0.1", help="0.0.0.0 for the class's network (default: this machine)"
    )
    parser.add_argument("--port", type=int, default=8790, help="default: 8790")


def run(arguments: Namespace) -> int:
    """Serve until it is interrupted."""
    from labkit.classroom.board import serve

    try:
        if not arguments.folder.is_dir():
            raise FileNotFoundError(f"there is no folder {arguments.folder}")
        server = serve(arguments.folder, arguments.grades, arguments.address, arguments.port)
    except OSError as error:
        print(f"labkit board: {error}", file=sys.stderr)
        return 2
    if arguments.address != "127.0.0.1":
        print(
            "Whoever reaches this machine sees counts of guesses, and with --grades names and points.", file=sys.stderr
        )
    print(f"http://{arguments.address}:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0

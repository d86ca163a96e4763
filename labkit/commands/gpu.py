"""`labkit gpu`: run every check and recording that needs a GPU."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu rehearses (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="on a GPU: in 3 minutes, the parts that fill the lessons' "
                        "figures; with --device cpu: small cases of every part, to see "
                        "whether everything runs")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=None, help="where results are kept (default: data; where "
                        "there is no checkout, fp16-lab/data in the home folder)")  # fmt: skip
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--passport", type=Path, metavar="FILE", help="write into a new FILE a line for each thing that "
                     "this GPU does, in 3 minutes and 2 of timings, to be sent to the lab's maintainers")  # fmt: skip
    one.add_argument("--read", type=Path, metavar="FILE", help="say what in such a FILE differs from expectation; "
                     "status 0: it is whole, 1: a part is missing, 2: it is no passport")  # fmt: skip
    one.add_argument("--only", nargs="+", type=_known_part, default=None, metavar="PART",
                     help='one or more parts, "speed" for instance; a name that is none lists them')  # fmt: skip
    parser.add_argument("--seconds", type=float, default=None,
                        help="for everything (default: 520; quick on a GPU: 180)")  # fmt: skip
    parser.add_argument(
        "--since", type=float, default=None, metavar="TIME", help="when those seconds began (Unix time)"
    )
    parser.add_argument("--here", action="store_true", help="run the parts in this process, not in one each")


def run(arguments: Namespace) -> int:
    from labkit import gpu

    return gpu.run(arguments)


def _known_part(name: str) -> str:
    from labkit.gpu import PARTS

    if name not in PARTS:
        raise ArgumentTypeError(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    return name

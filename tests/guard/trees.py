"""The environment in which a program of this guard uses the labkit of another checkout.

`tests` is a namespace package: its parts may lie in several folders of the path. The first folder
of the path holds only `tests/guard`, a link to this folder, and the second is the checkout. So the
guard is this one, while labkit and all other tests are the checkout's.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
OWN_TREE = HERE.parents[1]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def environment(tree: Path) -> Iterator[dict[str, str]]:
    """Yield the environment variables of a program that uses a checkout's labkit.

    The program has one thread, and its sets have the same order in each run.

    Raises:
        SystemExit: the folder has no labkit.
    """
    if not (tree / "labkit" / "__init__.py").is_file():
        raise SystemExit(f"expected a checkout of the lab, got {tree}, which has no labkit")
    with TemporaryDirectory(prefix="guard-") as folder:
        link = Path(folder) / "tests" / "guard"
        link.parent.mkdir()
        link.symlink_to(HERE)
        paths = [folder, str(tree), str(tree / "notebooks")]
        yield {
            **os.environ,
            **dict.fromkeys(THREADS, "1"),
            "PYTHONPATH": os.pathsep.join(paths),
            # Without it, the current folder would come before these paths.
            "PYTHONSAFEPATH": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "",
            "LABKIT_GUARDED_TREE": str(tree),
        }


def guarded_tree() -> Path:
    """Return the checkout that this process measures, after a check that labkit is its.

    Raises:
        SystemExit: labkit was imported from another place.
    """
    import labkit

    tree = Path(os.environ["LABKIT_GUARDED_TREE"])
    actual = Path(labkit.__file__).resolve().parents[1]
    if actual != tree.resolve():
        raise SystemExit(f"expected the labkit of {tree}, got that of {actual} in {sys.path}")
    return tree

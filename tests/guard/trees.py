"""Programs of the guard, run with the labkit of any checkout.

Idea: `tests` is a namespace package. A folder that holds nothing but `tests/guard`, a link to this
folder, comes first on the path, then the checkout. So the guard is this one; labkit and all other
tests are the checkout's.
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
    """Yield the environment of a program that uses a checkout's labkit: one thread, and no random
    order of sets.
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
            "PYTHONSAFEPATH": "1",  # the folder that the guard was started in does not come first
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "",
            "LABKIT_GUARDED_TREE": str(tree),
        }


def guarded_tree() -> Path:
    """Return the checkout that this process measures, once its labkit is imported from there.

    Raises:
        SystemExit: labkit was imported from another place.
    """
    import labkit

    tree = Path(os.environ["LABKIT_GUARDED_TREE"])
    found = Path(labkit.__file__).resolve().parents[1]
    if found != tree.resolve():
        raise SystemExit(f"expected the labkit of {tree}, got that of {found} in {sys.path}")
    return tree

"""Where are the lab's data and its notebooks? At the top of a checkout, or inside the package that was installed.

Idea: there is one copy of each. A wheel carries them in the package (setup.py), a checkout beside it.

Invariant: what travels with the lab is read where it lies and never written there by a lesson.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def checkout() -> Path | None:
    """Return the top of the checkout that labkit runs from, or None where it was installed without one."""
    top = PACKAGE.parent
    return top if (top / "pyproject.toml").is_file() and (top / "notebooks").is_dir() else None


def notebooks_folder() -> Path:
    """Return the folder of the learners' notebooks as they are handed out."""
    return (checkout() or PACKAGE) / "notebooks"


def data_folder() -> Path:
    """Return the lab's `data/` folder: $LABKIT_DATA, or the one of the checkout, or that of the installed package.

    Raises:
        FileNotFoundError: it is not there; the message says what to do.
    """
    folder = Path(os.environ.get("LABKIT_DATA") or (checkout() or PACKAGE) / "data")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the lab's data folder was looked for at {folder} and is not there. Install the lab again, or set "
            "LABKIT_DATA to the folder that holds digits.npz."
        )
    return folder

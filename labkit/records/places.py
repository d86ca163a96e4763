"""Where are the lab's data and its notebooks? At the top of a checkout, or inside the package that was installed.

Idea: there is one copy of each. A wheel carries them in the package (setup.py), a checkout beside it.

Invariant: what travels with the lab is read where it lies and never written there by a lesson; and nothing at all is
written into an installed package.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
OWN_FOLDER = "fp16-lab"  # in the home folder: what is recorded where the lab has no checkout


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


def results_folder() -> Path:
    """Return where new records are written: `data_folder()`, or the user's own folder where that is the package's."""
    folder = data_folder()
    return Path.home() / OWN_FOLDER / "data" if folder == PACKAGE / "data" else folder


def refuse_simulated(device: str, path: Path) -> None:
    """Keep what a simulated device did out of the checkout's `data/`, where everything was measured.

    Raises:
        ValueError: the device's name says that it is simulated, and the path lies there.

    >>> refuse_simulated("Tesla T4", data_folder() / "runs")
    >>> refuse_simulated("Tesla T4 (simulated)", Path("elsewhere"))
    """
    measured = ((checkout() or PACKAGE) / "data").resolve()
    if "simulated" in device and path.resolve().is_relative_to(measured):
        raise ValueError(
            f"expected a real device for records in {measured}, got {device!r}; write them to another folder, e.g. "
            "labkit race or labkit gpu with --folder simulated"
        )


def on_record(pattern: str) -> dict[str, Path]:
    """Return the files of this pattern, by their place in the folder: those that travel with the lab, and one's own.

    >>> on_record("runs/digits/fp32-seed[01].json").keys()
    dict_keys(['runs/digits/fp32-seed0.json', 'runs/digits/fp32-seed1.json'])
    """
    folders = (data_folder(), results_folder())
    return {path.relative_to(f).as_posix(): path for f in folders for path in sorted(f.glob(pattern))}

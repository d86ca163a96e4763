"""A JupyterHub for a class on one machine, on loopback.

The hub, its proxy and its single-user servers are Jupyter's own; this module configures them. If
root starts it, each learner is a system user with a control group, and can neither read nor write
other learners' files. All data of the classroom is in one folder:

    hub/        passwords, the hub's own files; for the teacher only
    lab/        the learners' lab, without solutions, read-only
    homes/      one for each learner, with fp16-lab/, the notebooks
    hand-in/    one for each learner; `labkit grade FOLDER/hand-in` reads them
    feedback/   one for each learner to read; `labkit grade --feedback FOLDER/feedback` writes them

Invariant: a notebook that a learner changed is never overwritten (labkit.records.notebook_copies).
Passwords are created once.

Source: JupyterHub 6, configuration reference; cgroups(7).
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.classroom.tables import read_table, write_table
from labkit.grading.sandbox.limits import create_control_group, remove_empty_groups
from labkit.records import write_atomic

# Startup code of a kernel, which returns freed memory after each cell.
STARTUP = """\
import ctypes, functools
get_ipython().events.register("post_execute", functools.partial(ctypes.CDLL(None).malloc_trim, 0))
del ctypes, functools
"""
# Run as the learner: copy the notebooks, then start Jupyter's server.
START = f"""
import os, sys
from pathlib import Path
import labkit
from labkit.records import notebooks_folder
from labkit.records.notebook_copies import copy_notebooks
copy_notebooks(notebooks_folder(), Path.home() / "fp16-lab", labkit.__version__)
if sys.platform == "linux":
    startup = Path.home() / ".ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    (startup / "labkit-memory.py").write_text({STARTUP!r})
os.chdir(Path.home())
os.execv(sys.executable, [sys.executable, "-m", "jupyterhub.singleuser", *sys.argv[1:]])
"""
CONFIG = (
    "from labkit.classroom.hub_config import configure\n\nconfigure(get_config(), {folder!r})\n"
)
# Saves memory: one thread and one heap for each kernel, and no huge pages for numpy.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "NUMPY_MADVISE_HUGEPAGE": "0"}
# without letters that look alike, and without signs that begin a formula in a spreadsheet
PASSWORD_LETTERS = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
# Of 56 letters each: 58 bits.
PASSWORD_LENGTH = 10
USERADD = ("useradd", "--create-home", "--shell", "/bin/bash", "--home-dir")


@dataclass(frozen=True)
class Classroom:
    """A classroom: its learners, and the limits of each.

    Attributes:
        folder: the folder of all data of the classroom.
        learners: the names of the learners.
        port: the hub's port on loopback; it uses the next two as well.
        memory: MiB for a learner's server and kernels together.
        cores: cores of the CPU for a learner's server and kernels together.
        idle: seconds after which an idle kernel is ended.
        guess_first: whether the answer to a prediction stays hidden until the learner commits.

    Raises:
        ValueError: `learners` is empty, or a limit is not a positive number.
    """

    folder: str
    learners: tuple[str, ...]
    port: int = 8000
    memory: int = 1500
    cores: float = 1.0
    idle: int = 1800
    guess_first: bool = False

    def __post_init__(self) -> None:
        if not self.learners:
            raise ValueError("expected at least one learner, got none")
        limits = {"memory": self.memory, "cores": self.cores, "idle": self.idle}
        for name, limit in limits.items():
            if not 0 < limit < math.inf:
                raise ValueError(f"{name}: expected a number above 0, got {limit:g}")

    def passwords(self) -> dict[str, str]:
        """Return each learner's password; create and save missing ones."""
        path = Path(self.folder) / "hub" / "passwords.csv"
        known: dict[str, str] = {}
        if path.is_file():
            known = {line["learner"]: line["password"] for line in read_table(path, guarded=True)}
        missing = [name for name in self.learners if name not in known]
        if missing:
            for name in missing:
                letters = (secrets.choice(PASSWORD_LETTERS) for _ in range(PASSWORD_LENGTH))
                known[name] = "".join(letters)
            rows = [{"learner": name, "password": password} for name, password in known.items()]
            write_table(path, ("learner", "password"), rows, guarded=True)
        return {name: known[name] for name in self.learners}


def learners_named(count: int) -> tuple[str, ...]:
    """Return names for this many learners.

    >>> learners_named(2)
    ('learner01', 'learner02')
    """
    return tuple(f"learner{number:02}" for number in range(1, count + 1))


def set_up(classroom: Classroom) -> Path:
    """Create the folders, the users if this is root, and the hub's configuration; return its file.

    Raises:
        OSError: a folder cannot be created, or learners cannot reach it.
    """
    top = Path(classroom.folder)
    is_root = os.geteuid() == 0
    # Learners pass through the folders, but cannot list them; the hub's is closed to them.
    modes = {"": 0o711, "hub": 0o700, "homes": 0o711, "hand-in": 0o711, "feedback": 0o711}
    for name, mode in modes.items():
        (top / name).mkdir(parents=True, exist_ok=True)
        (top / name).chmod(mode)
    if is_root:
        for needed in (top, Path(sys.prefix), Path(sys.base_prefix)):
            _require_reachable(needed)
    # A hub that was killed leaves its groups behind.
    remove_unused_groups(classroom)
    for name in classroom.learners:
        _create_learner(top, name, is_root)
    classroom.passwords()
    write_atomic(top / "hub" / "room.json", json.dumps(asdict(classroom)).encode())
    return write_atomic(
        top / "hub" / "jupyterhub_config.py", CONFIG.format(folder=str(top)).encode()
    )


def _require_reachable(path: Path) -> None:
    """Require that other users may enter all folders above a path."""
    for folder in path.resolve().parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise PermissionError(
                f"learners cannot reach {path}: {folder} is not open to them; choose another folder"
            )


def describe_isolation(classroom: Classroom, solutions: Sequence[Path]) -> str:
    """Test the isolation of learners from each other; return one line on it.

    Args:
        classroom: a classroom that was set up.
        solutions: files that no learner may read.
    """
    if os.geteuid() != 0:
        return (
            "isolation of learners: none. They all run as your user, since this is not root; "
            "use it for a trial only."
        )
    tried = {
        "files separated": _is_isolated(classroom),
        "memory and CPU limited": bool(groups_of(classroom, "probe")),
    }
    remove_empty_groups("labkit/probe")
    readable = [path for path in solutions if _can_read(classroom.learners[0], path)]
    tried["solutions hidden"] = not readable
    holding = [name for name, holds in tried.items() if holds]
    missing = [name for name, holds in tried.items() if not holds]
    line = f"isolation of learners: {', '.join(holding) or 'none'}."
    if missing:
        remedies = "".join(f"; chmod -R o-rwx {path}" for path in readable)
        line += f" Missing here: {', '.join(missing)}{remedies}."
    return line


def groups_of(classroom: Classroom, learner: str) -> list[Path]:
    """Return the files by which a learner's process enters its control groups, if any."""
    try:
        return create_control_group(f"labkit/{learner}", classroom.memory << 20, classroom.cores)
    except OSError:
        return []


def remove_unused_groups(classroom: Classroom) -> None:
    """Remove the control groups of learners without a process, and that of the test."""
    for name in (*classroom.learners, "probe"):
        remove_empty_groups(f"labkit/{name}")


def _create_learner(top: Path, name: str, is_root: bool) -> None:
    """Create a learner's user, home and folders, if missing."""
    home = top / "homes" / name
    if is_root and subprocess.run(["id", name], capture_output=True, check=False).returncode:
        done = subprocess.run(
            [*USERADD, str(home), name], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise OSError(f"the user {name} cannot be created: {done.stderr.strip()}")
    hand_in = top / "hand-in" / name
    feedback = top / "feedback" / name
    # The teacher writes feedback, and the learner reads it as a member of the learner's own group.
    for folder, owner, mode in (
        (home, name, 0o700),
        (hand_in, name, 0o700),
        (feedback, "root", 0o750),
    ):
        folder.mkdir(exist_ok=True)
        if is_root:
            shutil.chown(folder, owner, name)
        folder.chmod(mode)
    for folder in (hand_in, feedback):
        link = home / folder.parent.name
        if not link.is_symlink() and not link.exists():
            link.symlink_to(folder)


def _is_isolated(classroom: Classroom) -> bool:
    """Return whether a learner can read neither the folders of another one nor the hub's.

    With a single learner, only the hub's folder is tried.
    """
    one = classroom.learners[0]
    other = classroom.learners[-1]
    top = Path(classroom.folder)
    private = [top / "hub"]
    if other != one:
        private += [top / name / other for name in ("homes", "hand-in", "feedback")]
    return not any(_can_read(one, folder) for folder in private)


def _can_read(learner: str, path: Path) -> bool:
    done = subprocess.run(
        ["test", "-r", str(path)], user=learner, group=learner, extra_groups=[], check=False
    )
    return done.returncode == 0


def classroom_in(folder: str) -> Classroom:
    """Return the classroom that was set up in a folder."""
    stored: Mapping[str, Any] = json.loads(
        (Path(folder) / "hub" / "room.json").read_text(encoding="utf-8")
    )
    return Classroom(**{**stored, "learners": tuple(stored["learners"])})

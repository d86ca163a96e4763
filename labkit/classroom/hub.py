"""How do thirty learners share one machine? A JupyterHub, set up for the lab, on loopback.

Idea: the hub, its proxy and its single-user servers are Jupyter's own; here is what they are told. Where root starts
it, each learner is a system user in a control group of their own, and what is not theirs they cannot read or write.
All that the classroom keeps lies in one folder:

    hub/        passwords, the hub's own files; for the teacher alone
    lab/        the learners' lab, without solutions, read-only
    homes/      one for each learner; in it fp16-lab/, the notebooks
    hand-in/    one for each learner; `labkit grade FOLDER/hand-in` reads them
    feedback/   one for each learner, who can read it; `labkit grade --feedback FOLDER/feedback` writes them

Invariant: a notebook that a learner changed is never overwritten (labkit.records.notebook_copies), and a password is
made once.

Source: JupyterHub 6, configuration reference; cgroups(7).
"""

from __future__ import annotations

import json
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
from labkit.records import write_atomic
from labkit.records.linux import create_control_group

# What a kernel does before its first cell: from then on it gives freed memory back after each one.
STARTUP = """\
import ctypes, functools
get_ipython().events.register("post_execute", functools.partial(ctypes.CDLL(None).malloc_trim, 0))
del ctypes, functools
"""
# What a learner's server runs, as the learner: copies of the notebooks, then Jupyter's own server.
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
CONFIG = "from labkit.classroom.hub_config import configure\n\nconfigure(get_config(), {folder!r})\n"
# What saves memory, too: one thread and one heap to a kernel; pages of numpy's that nobody wrote to are not there.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "NUMPY_MADVISE_HUGEPAGE": "0"}
PASSWORD_LETTERS = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
USERADD = ("useradd", "--create-home", "--shell", "/bin/bash", "--home-dir")


@dataclass(frozen=True)
class Room:
    """A classroom: who is in it, and what each may take.

    memory   MiB for a learner's server and kernels together
    cores    of the CPU, for the same
    idle     seconds after which a kernel that does nothing is ended
    """

    folder: str
    learners: tuple[str, ...]
    port: int = 8000
    memory: int = 1500
    cores: float = 1.0
    idle: int = 1800

    def passwords(self) -> dict[str, str]:
        """Return each learner's password; one that is missing is made, and kept for the next start."""
        path = Path(self.folder) / "hub" / "passwords.csv"
        lines = read_table(path, guarded=True) if path.is_file() else []
        known = {line["learner"]: line["password"] for line in lines}
        known |= {name: _password() for name in self.learners if name not in known}
        rows = [{"learner": name, "password": password} for name, password in known.items()]
        write_table(path, ("learner", "password"), rows, guarded=True)
        return {name: known[name] for name in self.learners}


def _password() -> str:
    """Return a new password: nothing in it is taken for a formula, or for another letter."""
    return "".join(secrets.choice(PASSWORD_LETTERS) for _ in range(10))


def learners_named(count: int) -> tuple[str, ...]:
    """Return names for so many learners.

    >>> learners_named(2)
    ('learner01', 'learner02')
    """
    return tuple(f"learner{number:02}" for number in range(1, count + 1))


def set_up(room: Room) -> Path:
    """Make the folders, the users where this is root, and the hub's configuration; return its file.

    Raises:
        OSError: a folder cannot be made, or learners could not reach it.
    """
    top, is_root = Path(room.folder), os.geteuid() == 0
    for name, mode in (("", 0o711), ("hub", 0o700), ("homes", 0o711), ("hand-in", 0o711), ("feedback", 0o711)):
        (top / name).mkdir(parents=True, exist_ok=True)
        (top / name).chmod(mode)
    for needed in (top, Path(sys.prefix), Path(sys.base_prefix)) if is_root else ():
        closed = next((path for path in needed.resolve().parents if not path.stat().st_mode & stat.S_IXOTH), None)
        if closed:
            raise PermissionError(f"learners cannot reach {needed}: {closed} is closed to them; it takes another place")
    for name in room.learners:
        _place_of(top, name, is_root)
    room.passwords()
    write_atomic(top / "hub" / "room.json", json.dumps(asdict(room)).encode())
    return write_atomic(top / "hub" / "jupyterhub_config.py", CONFIG.format(folder=str(top)).encode())


def walls(room: Room, solutions: Sequence[Path]) -> str:
    """Return one line that says which walls stand between learners, each tried now, and which do not.

    solutions   what no learner shall read
    """
    if os.geteuid() != 0:
        return "walls between learners: none. They all run as your user, for this is not root; so use it for a trial."
    tried = {"files apart": _is_closed(room), "memory and CPU limited": bool(groups_of(room, "probe"))}
    open_ones = [path for path in solutions if _can_read(room.learners[0], path)]
    tried["solutions out of sight"] = not open_ones
    standing = ", ".join(name for name, stands in tried.items() if stands) or "none"
    missing = ", ".join(name for name, stands in tried.items() if not stands)
    cure = "".join(f"; chmod -R o-rwx {path}" for path in open_ones)
    return f"walls between learners: {standing}." + (f" Missing here: {missing}{cure}." if missing else "")


def groups_of(room: Room, learner: str) -> list[Path]:
    """Return the files that a process of this learner enters its control groups by; [] where there are none."""
    try:
        return create_control_group(f"labkit/{learner}", room.memory << 20, room.cores)
    except OSError:
        return []


def _place_of(top: Path, name: str, is_root: bool) -> None:
    """Make a learner's user, home and folders, where they are not there."""
    home = top / "homes" / name
    if is_root and subprocess.run(["id", name], capture_output=True, check=False).returncode:
        done = subprocess.run([*USERADD, str(home), name], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"the user {name} cannot be made: {done.stderr.strip()}")
    home.mkdir(exist_ok=True)
    for folder, mode in ((home, 0o700), (top / "hand-in" / name, 0o700), (top / "feedback" / name, 0o750)):
        if not folder.is_dir():
            folder.mkdir()
        if is_root:
            shutil.chown(folder, "root" if mode == 0o750 else name, name)
        folder.chmod(mode)
    for folder in (top / "hand-in" / name, top / "feedback" / name):
        link = home / folder.parent.name
        if not link.is_symlink() and not link.exists():
            link.symlink_to(folder)


def _is_closed(room: Room) -> bool:
    """Return whether one learner cannot list another's home, hand-in and feedback, nor the hub's folder."""
    one, other = room.learners[0], room.learners[-1]
    top = Path(room.folder)
    places = [top / "hub"] + [top / kind / other for kind in ("homes", "hand-in", "feedback") if other != one]
    return not any(_can_read(one, place) for place in places)


def _can_read(learner: str, path: Path) -> bool:
    asked = subprocess.run(["test", "-r", str(path)], user=learner, group=learner, extra_groups=[], check=False)
    return asked.returncode == 0


def room_in(folder: str) -> Room:
    """Return the room that was set up in a folder."""
    stored: Mapping[str, Any] = json.loads((Path(folder) / "hub" / "room.json").read_text(encoding="utf-8"))
    return Room(**{**stored, "learners": tuple(stored["learners"])})

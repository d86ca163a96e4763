"""What is JupyterHub told? Its configuration for a classroom; the hub's process reads it, nobody else.

Invariant: nothing here asks what is the learner's: who logs in, which user a server runs as and what it may take come
from the room (labkit.classroom.hub).
"""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyterhub.auth import Authenticator
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner

import labkit
from labkit.classroom.hub import ENVIRONMENT, START, Room, groups_of, room_in
from labkit.machine.front_end import JUPYTER_CONFIG, with_lab_settings


class LearnersAuthenticator(Authenticator):
    """Lets a learner of the room in by the password that was made for them."""

    room: Room

    async def authenticate(self, handler: object, data: dict[str, str]) -> str | None:
        """Return the learner's name, or None where name and password do not belong together."""
        right = self.room.passwords().get(data["username"])
        same = right is not None and hmac.compare_digest(right.encode(), data["password"].encode())
        return data["username"] if same else None


class GroupSpawner(LocalProcessSpawner):
    """Starts a learner's server as the learner, in a control group of its own where there is one."""

    room: Room

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        """Return what the new process does first: it enters its group as root, and then is root no more."""
        become, groups = super().make_preexec_fn(name), groups_of(self.room, name)

        def enter() -> None:
            for group in groups:
                group.write_text(str(os.getpid()))
            become()

        return enter


def configure(c: Any, folder: str) -> None:
    """Fill in JupyterHub's configuration for the room in this folder."""
    room, own = room_in(folder), Path(folder) / "hub"
    LearnersAuthenticator.room = GroupSpawner.room = room
    c.JupyterHub.authenticator_class = LearnersAuthenticator
    c.Authenticator.allowed_users = set(room.learners)
    c.JupyterHub.spawner_class = GroupSpawner if os.geteuid() == 0 else SimpleLocalProcessSpawner
    c.SimpleLocalProcessSpawner.home_dir_template = str(Path(folder) / "homes" / "{username}")
    c.JupyterHub.bind_url = f"http://127.0.0.1:{room.port}"
    c.JupyterHub.hub_port = room.port + 1  # the same at each start: servers that outlive the hub know it
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{room.port + 2}"
    c.ConfigurableHTTPProxy.pid_file = str(own / "proxy.pid")
    c.JupyterHub.db_url = f"sqlite:///{own / 'hub.sqlite'}"
    c.JupyterHub.cookie_secret_file = str(own / "cookie_secret")
    c.JupyterHub.cleanup_servers = False  # who restarts the hub interrupts nobody
    c.Spawner.cmd = [sys.executable, "-c", START]
    c.Spawner.default_url = "/lab/tree/fp16-lab/00_start.ipynb"
    settings = Path(folder) / "lab" / JUPYTER_CONFIG.relative_to(Path(labkit.__file__).parents[1])
    c.Spawner.environment = with_lab_settings({"PYTHONPATH": str(Path(folder) / "lab"), **ENVIRONMENT}, settings)
    c.Spawner.args = [
        f"--MappingKernelManager.cull_idle_timeout={room.idle}",
        f"--MappingKernelManager.cull_interval={max(5, room.idle // 6)}",
        "--MappingKernelManager.cull_connected=True",
        "--LabApp.expose_app_in_browser=True",
    ]
    c.Spawner.start_timeout = c.Spawner.http_timeout = 180

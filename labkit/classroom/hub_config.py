"""The configuration of JupyterHub for a classroom; only the hub's process imports it.

Invariant: logins, users and limits come from the classroom's settings (labkit.classroom.hub), never
from learners.
"""

from __future__ import annotations

import atexit
import hmac
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyterhub.auth import Authenticator
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner

import labkit
from labkit.classroom.hub import (
    ENVIRONMENT,
    START,
    Classroom,
    classroom_in,
    groups_of,
    remove_unused_groups,
)
from labkit.machine.jupyter import CONFIG, with_lab_settings


class LearnersAuthenticator(Authenticator):
    """Admits the learners of the classroom by the passwords that the lab made for them."""

    classroom: Classroom

    async def authenticate(self, handler: object, data: dict[str, str]) -> str | None:
        """Return the learner's name, or None if the name or the password is wrong."""
        name = data["username"]
        password = self.classroom.passwords().get(name)
        if password is None:
            return None
        # a comparison whose time does not depend on the password
        same = hmac.compare_digest(password.encode(), data["password"].encode())
        return name if same else None


class GroupSpawner(LocalProcessSpawner):
    """Starts a learner's server as the learner, in the learner's control group if one exists."""

    classroom: Classroom

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        """Return what the new process does first: enter its group as root, then drop root."""
        become = super().make_preexec_fn(name)
        groups = groups_of(self.classroom, name)

        def enter() -> None:
            for group in groups:
                group.write_text(str(os.getpid()))
            become()

        return enter


def configure(c: Any, folder: str) -> None:
    """Fill in JupyterHub's configuration for the classroom in this folder.

    Args:
        c: the configuration object of traitlets, which JupyterHub passes to its file.
        folder: the classroom's folder.
    """
    classroom = classroom_in(folder)
    hub_folder = Path(folder) / "hub"
    # Learners' servers outlive the hub, and their groups stay until they are removed here.
    atexit.register(remove_unused_groups, classroom)
    LearnersAuthenticator.classroom = classroom
    GroupSpawner.classroom = classroom
    c.JupyterHub.authenticator_class = LearnersAuthenticator
    c.Authenticator.allowed_users = set(classroom.learners)
    c.JupyterHub.spawner_class = GroupSpawner if os.geteuid() == 0 else SimpleLocalProcessSpawner
    c.SimpleLocalProcessSpawner.home_dir_template = str(Path(folder) / "homes" / "{username}")
    c.JupyterHub.bind_url = f"http://127.0.0.1:{classroom.port}"
    # The same port at each start, since servers that outlive the hub know only this one.
    c.JupyterHub.hub_port = classroom.port + 1
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{classroom.port + 2}"
    c.ConfigurableHTTPProxy.pid_file = str(hub_folder / "proxy.pid")
    c.JupyterHub.db_url = f"sqlite:///{hub_folder / 'hub.sqlite'}"
    c.JupyterHub.cookie_secret_file = str(hub_folder / "cookie_secret")
    # Learners go on working while the hub restarts.
    c.JupyterHub.cleanup_servers = False
    c.Spawner.cmd = [sys.executable, "-c", START]
    c.Spawner.default_url = "/lab/tree/fp16-lab/00_start.ipynb"
    settings = Path(folder) / "lab" / CONFIG.relative_to(Path(labkit.__file__).parents[1])
    environment = {"PYTHONPATH": str(Path(folder) / "lab"), **ENVIRONMENT}
    if classroom.guess_first:
        environment["LABKIT_GUESS_FIRST"] = "1"
    c.Spawner.environment = with_lab_settings(environment, settings)
    # Culling looks six times within the time of idleness, but not more than every 5 seconds.
    c.Spawner.args = [
        f"--MappingKernelManager.cull_idle_timeout={classroom.idle}",
        f"--MappingKernelManager.cull_interval={max(5, classroom.idle // 6)}",
        "--MappingKernelManager.cull_connected=True",
        "--LabApp.expose_app_in_browser=True",
    ]
    # seconds: many servers start at once when a class begins
    c.Spawner.start_timeout = 180
    c.Spawner.http_timeout = 180

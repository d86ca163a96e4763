"""Configuration of JupyterLab and its server for the lab, and the extension that it enables.

JupyterLab saves widgets with the notebook and makes no requests to the network. Cells have no
buttons in their corner: Tab would stop there before the widget, and Enter would duplicate the cell.

`with_lab_settings` applies these settings to the lab's own JupyterLab and to that of a classroom.
For other JupyterLabs of the environment, pip installs only the setting that saves widgets, and the
server extension that keeps them (pyproject.toml).

Invariant: a user's own settings take precedence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.machine.jupyter.saved_widgets import STATES, VIEW, install_on, keep_shown_widgets

__all__ = ["CONFIG", "STATES", "VIEW", "keep_shown_widgets", "with_lab_settings"]

CONFIG = Path(__file__).parent / "config"


def with_lab_settings(environment: Mapping[str, str], config: Path = CONFIG) -> dict[str, str]:
    """Return an environment in which Jupyter's server uses the lab's settings.

    >>> settings = with_lab_settings({"JUPYTER_CONFIG_PATH": "/etc/mine"}, Path("lab"))
    >>> settings["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    ['/etc/mine', 'lab']
    """
    paths = [*filter(None, [environment.get("JUPYTER_CONFIG_PATH")]), str(config)]
    return {**environment, "JUPYTER_CONFIG_PATH": os.pathsep.join(paths)}


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "labkit.machine.jupyter"}]


def _load_jupyter_server_extension(server: Any) -> None:
    install_on(server.contents_manager)

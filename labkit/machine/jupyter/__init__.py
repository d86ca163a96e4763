"""Settings of JupyterLab and its server for the lab, as a folder of configuration, and the hook that they name.

Widgets are saved with the notebook. No call goes to the network. A cell has no buttons in its corner, where Tab would
stop before the widget and Enter would duplicate the cell.

Invariant: a user's own settings take precedence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parent / "config"
VIEW, STATES = (
    "application/vnd.jupyter.widget-view+json",
    "application/vnd.jupyter.widget-state+json",
)


def with_lab_settings(environment: Mapping[str, str], config: Path = CONFIG) -> dict[str, str]:
    """Return an environment in which Jupyter's server uses the lab's settings.

    >>> with_lab_settings({"JUPYTER_CONFIG_PATH": "/etc/mine"}, Path("lab"))["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    ['/etc/mine', 'lab']
    """
    paths = [*filter(None, [environment.get("JUPYTER_CONFIG_PATH")]), str(config)]
    return {**environment, "JUPYTER_CONFIG_PATH": os.pathsep.join(paths)}


def keep_shown_widgets(model: dict[str, Any], **_: Any) -> None:
    """Remove from a notebook that is being saved the widgets that no output shows, such as those of earlier runs.

    model   what Jupyter's contents manager saves (its `pre_save_hook`); changed in place
    """
    if model["type"] != "notebook":
        return
    saved = model["content"].get("metadata", {}).get("widgets", {}).get(STATES)
    if saved is None:
        return
    outputs = [output for cell in model["content"]["cells"] for output in cell.get("outputs", ())]
    pending = [
        output["data"][VIEW]["model_id"] for output in outputs if VIEW in output.get("data", {})
    ]
    shown = set[str]()
    while pending:
        widget = pending.pop()
        if widget in saved["state"] and widget not in shown:
            shown.add(widget)
            pending += re.findall(r"IPY_MODEL_(\w+)", json.dumps(saved["state"][widget]))
    saved["state"] = {widget: state for widget, state in saved["state"].items() if widget in shown}

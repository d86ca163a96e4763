"""Does JupyterHub's chart take our values, and do its learners get what those of the hub on one machine get?

The chart refuses a key that it does not know. KNOWN has, of the chart's own schema, the keys that we give.
Source: jupyterhub/values.schema.yaml of zero-to-jupyterhub-k8s (BSD-3-Clause), commit 02dd73d; restated, not copied.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.classroom.hub import ENVIRONMENT, START

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "hub" / "values.yaml").read_text(encoding="utf-8"))
KNOWN = {
    "hub": {"config": dict},
    "singleuser": {
        "image": {"name": str, "tag": str},
        "uid": int, "fsGid": int, "defaultUrl": str, "startTimeout": int, "extraEnv": dict, "extraFiles": dict,
        "cmd": list,
        "memory": {"limit": str, "guarantee": str},
        "cpu": {"limit": float, "guarantee": float},
        "storage": {"type": str, "homeMountPath": str, "capacity": str},
    },
    "cull": {"enabled": bool, "timeout": int, "every": int},
}  # fmt: skip


def unknown(values: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    """Yield the keys that the chart does not know, or whose values have another type."""
    for key, value in values.items():
        if isinstance(known.get(key), dict):
            yield from unknown(value, known[key])
        elif key not in known or not isinstance(value, (known[key], int if known[key] is float else known[key])):
            yield key


def test_the_chart_takes_every_value() -> None:
    assert list(unknown(VALUES, KNOWN)) == []
    assert VALUES["singleuser"]["storage"]["type"] in ("dynamic", "static", "none")
    files = VALUES["singleuser"].get("extraFiles", {}).values()
    assert all({"mountPath"} <= file.keys() <= {"mountPath", "data", "stringData"} for file in files)


def test_a_learner_gets_the_notebooks_and_the_memory_of_the_hub_on_one_machine() -> None:
    learner = VALUES["singleuser"]
    assert learner["cmd"] == ["python", "-c", START.lstrip("\n")]
    assert learner["extraEnv"] == {**ENVIRONMENT, "HOME": learner["storage"]["homeMountPath"]}
    assert all(isinstance(value, str) for value in learner["extraEnv"].values()), "Kubernetes takes texts only"


def test_the_image_is_the_projects_with_the_wheel_that_a_release_writes() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert {"ARG LAB=.", f"ARG NB_UID={VALUES['singleuser']['uid']}"} <= set(lines)
    assert any("${LAB}[lab]" in line for line in lines)

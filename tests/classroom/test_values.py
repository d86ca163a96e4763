"""Does JupyterHub's chart take our values, and do its learners get what those of the hub on one machine get?

The chart refuses a key that it does not know. SCHEMA says, of the keys that we give, what the chart's own schema says.
Source: jupyterhub/values.schema.yaml of zero-to-jupyterhub-k8s (BSD-3-Clause), commit 02dd73d; restated, not copied.
"""

from pathlib import Path
from typing import Any

import pytest

from labkit.classroom.hub import ENVIRONMENT, START

jsonschema = pytest.importorskip("jsonschema")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "hub" / "values.yaml").read_text(encoding="utf-8"))


def known(*required: str, **properties: object) -> dict[str, object]:
    return {"type": "object", "additionalProperties": False, "required": [*required], "properties": properties}


def of(*kinds: str) -> dict[str, object]:
    return {"type": [*kinds, "null"]}


ANYTHING = {"type": "object"}
FILE = known("mountPath", mountPath={"type": "string"}, data=ANYTHING, stringData={"type": "string"})
SCHEMA = known(
    hub=known(config=ANYTHING),
    singleuser=known(
        image=known("name", "tag", name={"type": "string"}, tag={"type": "string"}),
        uid=of("integer"),
        fsGid=of("integer"),
        memory=known(limit=of("number", "string"), guarantee=of("number", "string")),
        cpu=known(limit=of("number"), guarantee=of("number")),
        storage=known(
            "type", "homeMountPath", capacity=of("string"), homeMountPath={"type": "string"},
            type={"enum": ["dynamic", "static", "none"]},
        ),
        defaultUrl=of("string"),
        startTimeout=of("integer"),
        extraEnv={"type": ["object", "array"]},
        extraFiles={"type": "object", "patternProperties": {".*": FILE}},
        cmd=of("array", "string"),
    ),
    cull=known("enabled", enabled={"type": "boolean"}, timeout=of("integer"), every=of("integer")),
)  # fmt: skip


def test_the_chart_takes_every_value_and_refuses_a_key_that_it_does_not_know() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)
    wrong = ({"cull": {"timeout": 60}}, {"singleuser": {"memory": {"max": "1G"}}}, {"singleuser": {"culling": True}})
    for values in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft7Validator(SCHEMA).validate(values)


def test_a_learner_gets_the_notebooks_and_the_memory_of_the_hub_on_one_machine() -> None:
    learner = VALUES["singleuser"]
    assert learner["cmd"] == ["python", "-c", START.lstrip("\n")]
    assert learner["extraEnv"] == {**ENVIRONMENT, "HOME": learner["storage"]["homeMountPath"]}
    assert all(isinstance(value, str) for value in learner["extraEnv"].values()), "Kubernetes takes texts only"


def test_the_image_is_the_projects_with_the_wheel_that_a_release_writes() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert {"ARG LAB=.", f"ARG NB_UID={VALUES['singleuser']['uid']}"} <= set(lines)
    assert any("${LAB}[lab]" in line for line in lines)

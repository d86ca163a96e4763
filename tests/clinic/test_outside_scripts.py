"""Diagnosis of healthy and faulty scripts that were written independently of it.

`tests/guard/scripts` has the scripts, and `repairs.toml` there the edits that repair each faulty
one.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.clinic.trainings import has_half_lstm

SCRIPTS = Path(__file__).parents[1] / "guard" / "scripts"
REPAIRS: dict[str, list[list[str]]] = tomllib.loads(
    (SCRIPTS / "repairs.toml").read_text(encoding="utf-8")
)
HEALTHY = sorted(
    path.stem
    for path in SCRIPTS.glob("*.py")
    if path.read_text(encoding="utf-8").startswith('"""Healthy')
)
# Script -> the name of its first finding.
CAUSES = {
    "adam_eps_above_gradients": "epsilon above what it guards",
    "backbone_never_cleared": "gradients of an earlier step",
    "clip_every_micro_batch": "scaled gradients after unscale_",
    "dpo_logps_bf16": "difference of rounded numbers",
    "finetune_bf16_weights": "optimizer state cannot decay",
    "grad_norm_guard": "exception",
    "hand_scaler_growth": "scale changed between",
    "l2sp_after_clip": "scaled gradients after unscale_",
    "linear_attention": "overflow",
    "lit_heatmaps": "underflow",
    "masked_pixel_mean": "sum overflows",
    "moco_queue": "exception",
    "nan_guard_hides_all": "softmax of a masked row",
    "pose_geodesic": "inf or NaN in the backward pass",
    "stft_vocoder": "exception",
    "style_eps_half": "log of 0",
    "vae_decode_half": "overflow",
    "vit_adapter_checkpoint": "parameters without a gradient",
    "xvector_silence": "inf or NaN in an FP32 derivative",
}


def diagnosed(script: Path, command: str = "diagnose") -> dict[str, object]:
    """Return the JSON that `labkit diagnose` or `labkit watch` prints about a script."""
    options = ["--json", "--strict"] if command == "watch" else ["--json"]
    completed = subprocess.run(
        [sys.executable, "-m", "labkit", command, *options, str(script)],
        cwd=script.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.stdout, completed.stderr
    return dict(json.loads(completed.stdout))


def faults_in(result: dict[str, object]) -> list[str]:
    reports: list[dict[str, list[dict[str, str]]]] = result["reports"]
    return [f["name"] for report in reports for f in report["findings"] if f["status"] == "bad"]


def copy_script(name: str, folder: Path, edits: list[list[str]]) -> Path:
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_faulty_script_has_its_cause() -> None:
    # "autocast_of_another_device" runs in FP32, which the headline of the report says.
    assert CAUSES.keys() | {"autocast_of_another_device"} == REPAIRS.keys()


def test_each_script_is_healthy_or_has_a_repair() -> None:
    names = {path.stem for path in SCRIPTS.glob("*.py")}
    assert names == set(HEALTHY) | REPAIRS.keys()
    assert len(HEALTHY) == 20


@pytest.mark.slow
@pytest.mark.parametrize("command", ["diagnose", "watch"])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_script_has_no_finding(name: str, command: str, tmp_path: Path) -> None:
    if name == "lstm_tagger" and not has_half_lstm():
        pytest.skip("torch computes no LSTM in BF16 on this processor")
    result = diagnosed(copy_script(name, tmp_path, []), command)
    assert faults_in(result) == []
    assert result["exit_status"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSES)
def test_first_finding_of_a_faulty_script_is_its_cause(name: str, tmp_path: Path) -> None:
    result = diagnosed(copy_script(name, tmp_path, []))
    assert faults_in(result)[:1] == [CAUSES[name]]
    assert result["exit_status"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", REPAIRS)
def test_repaired_script_has_no_finding(name: str, tmp_path: Path) -> None:
    result = diagnosed(copy_script(name, tmp_path, REPAIRS[name]))
    assert faults_in(result) == []
    assert result["exit_status"] == 0

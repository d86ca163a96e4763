"""Failures inside of a diagnosis: they are reported, and the script runs on unchanged."""

from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main
from labkit.clinic import events, operations, script_diagnosis
from labkit.clinic.diagnosis import Diagnosis
from labkit.clinic.events import TrainingObserver
from labkit.clinic.script_diagnosis import ScriptDiagnosis
from labkit.instrument import Watch
from labkit.instrument.script import run_script
from tests.instrument.test_guard import plant

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
model.register_parameter("unused", None)
for _ in range(4):
    optimizer.zero_grad()
    inputs = torch.randn(16, 8, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(inputs), torch.arange(16) % 3)
    torch.autograd.grad(loss, inputs, retain_graph=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    print("loss", loss.item())
"""

# The functions of a row fail in one run. None of them calls another, and of a pair such as enter
# and exit a row has only one, so that all failures happen.
ROWS: list[list[tuple[Any, str]]] = [
    [
        (ScriptDiagnosis, "before_module"),
        (ScriptDiagnosis, "backward_begins"),
        (TrainingObserver, "parameter_registered"),
        (TrainingObserver, "before_optimizer"),
        (TrainingObserver, "before_grad"),
        (TrainingObserver, "scaled_by"),
        (TrainingObserver, "autocast_begins"),
        (TrainingObserver, "report_non_finite"),
    ],
    [
        (TrainingObserver, "after_module"),
        (TrainingObserver, "after_optimizer"),
        (TrainingObserver, "before_unscale"),
        (TrainingObserver, "autocast_ends"),
        (TrainingObserver, "before_backward"),
        (TrainingObserver, "end_step"),
        (TrainingObserver, "before_schedule"),
        (TrainingObserver, "report_merged_integers"),
        (Diagnosis, "_final_checks"),
        (events, "scale_of"),
    ],
    [
        (ScriptDiagnosis, "next_step"),
        (TrainingObserver, "scaler_begins"),
        (TrainingObserver, "scaled_parameter_gradients"),
        (Diagnosis, "add_model"),
        (Diagnosis, "_watch_findings"),
    ],
    [
        (TrainingObserver, "optimized_parameters"),
        (TrainingObserver, "forward_begins"),
        (TrainingObserver, "step_begins"),
        (TrainingObserver, "report_misuse"),
        (Diagnosis, "finish_step"),
        (script_diagnosis, "model_of"),
    ],
    [(operations, "_worst"), (operations, "floats"), (events, "finite"), (Watch, "_around_call")],
    [(operations, "tree_leaves"), (script_diagnosis, "leaves")],
]
ONE_BY_ONE = [[function] for row in ROWS for function in row]


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    "rows", [ROWS, pytest.param(ONE_BY_ONE, marks=pytest.mark.slow)], ids=["together", "alone"]
)
def test_failures_of_diagnose_are_reported_separately(
    rows: list[list[tuple[Any, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    assert run_script(path, []) == 0
    alone = capsys.readouterr().out
    assert alone.count("loss") == 4
    for row in rows:
        with pytest.MonkeyPatch.context() as patch:
            calls = [plant(patch, owner, name) for owner, name in row]
            for owner, name in row:
                # The report distinguishes failures by the name of the function.
                getattr(owner, name).__name__ = name
            main(["diagnose", str(path)])
        printed = capsys.readouterr()
        assert printed.out.startswith(alone), row
        assert "ended" not in printed.err, row
        assert "not looked at" in printed.out, printed.out
        for (_, name), calls_of_function in zip(row, calls, strict=True):
            assert calls_of_function, f"{name} was not called"
            assert f"PlantedError: {name}" in printed.out, printed.out

"""The doctor never ends a run either: what fails in it stands in its report, and the script goes on unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.cli import main
from labkit.clinic import diagnose as _diagnose  # noqa: F401  # the modules below are in place
from labkit.clinic import listen, operations, script
from labkit.clinic.diagnose import Examined
from labkit.clinic.listen import Listener
from labkit.clinic.operations import Operations
from labkit.clinic.script import ScriptListener
from labkit.instrument import Watch
from labkit.instrument.script import run_script
from tests.instrument.test_guard import planted

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 3))
optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu", init_scale=2.0**20)
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

PLANTS: list[tuple[Any, str]] = [
    *((ScriptListener, name) for name in ("before_module", "attempted", "next_step", "before_backward")),
    *((Listener, name) for name in (
        "after_module", "registered", "before_optimizer", "after_optimizer", "backward", "grad", "scale", "unscale",
        "scaler_step", "schedule", "enter", "exit", "end_step", "still_scaled", "held",
    )),
    *((Examined, name) for name in ("after_step", "look_at", "_looked_at", "_by_watch")),
    *((Operations, name) for name in ("conversion", "use", "first_bad")),
    *((operations, name) for name in ("_worst", "floats", "tree_leaves")),
    (listen, "loss_scale"), (listen, "finite"), (script, "model_of"), (script, "leaves"), (Watch, "_around_call"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(("owner", "name"), PLANTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_failure_in_the_doctor_is_reported_and_the_script_is_its_own(
    owner: Any, name: str, tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    assert run_script(path, []) == 0
    alone = capsys.readouterr().out
    calls = planted(monkeypatch, owner, name)
    main(["diagnose", str(path)])
    said = capsys.readouterr()
    assert said.out.startswith(alone)
    assert alone.count("loss") == 4
    assert calls
    assert "not looked at" in said.out, said.out
    assert "PlantedError" in said.out
    assert "ended" not in said.err

"""The verdict follows the window: a scale below it is a finding, and each finding comes with a repair."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from labkit.cli import main
from labkit.clinic import Status, diagnose
from labkit.instrument import Report, watch

LABKIT = """
import sys, torch, torch.nn.functional as F
from functools import partial
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
X, Y = torch.randn(16, 8), torch.arange(16) % 3
if sys.argv[1] == "engine":
    from labkit.amp import RECIPES, Engine
    engine = Engine(model, partial(torch.optim.SGD, lr=0.1), RECIPES["O1"])
else:
    from labkit.frameworks import GradScaler
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu")
for number in range(12):
    factor = float("inf") if number % 3 == 0 or sys.argv[2] == "all" else 1.0
    if sys.argv[1] == "engine":
        engine.zero_grad()
        with engine.forward():
            loss = F.cross_entropy(engine(X), Y) * factor
        engine.backward(loss)
        engine.step()
        continue
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(X), Y) * factor
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_steps_that_labkit_itself_skips_are_counted(tmp_path, capsys) -> None:
    path = tmp_path / "train.py"
    path.write_text(LABKIT, encoding="utf-8")
    for by, (which, taken) in itertools.product(("scaler", "engine"), (("some", 8), ("all", 0))):
        status = main(["diagnose", str(path), "--steps", "12", by, which])
        said = capsys.readouterr().out
        assert f"12 steps were run; {taken} optimizer steps were taken and {12 - taken} skipped" in said
        if which == "all":
            assert status == 1
            assert "scale falls" in said
            assert "optimizer holds other parameters" not in said


def penalty(scaled: bool | None) -> Report:
    """A gradient penalty: without a scaler (None), of the unscaled loss, of the scaled loss divided by the scale."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled is not None)
    with watch(model, every=1) as w:
        for _ in range(3):
            points = torch.randn(32, 2).requires_grad_()
            optimizer.zero_grad()
            loss = model(points).mean()
            root = scaler.scale(loss) if scaled else loss
            (gradient,) = torch.autograd.grad(root, points, create_graph=True)
            gradient = gradient / (scaler.get_scale() if scaled else 1.0)
            scaler.scale(loss + 10 * ((32 * gradient).norm(dim=1) - 1).pow(2).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    return w.report()


def test_safe_scales_of_a_gradient_penalty_are_those_without_a_scaler() -> None:
    """The scale is a power of two, so it may move no histogram: the run without a scaler is the oracle."""
    without = penalty(None).safe_scales()
    assert without == penalty(False).safe_scales() == penalty(True).safe_scales()
    assert len(without) == 7


def half_without_scaler(factor: float, scale: float | None = None) -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1]) * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, model, optimizer, scaler, [(torch.randn(256, 8), torch.randint(3, (256,))) for _ in range(5)]


def test_a_scale_below_the_window_is_no_clean_bill_and_one_inside_it_is_well() -> None:
    for factor, scale in ((2.0**-6, None), (2.0**-12, None), (2.0**-10, 2.0**3)):
        step, model, optimizer, scaler, batches = half_without_scaler(factor, scale)
        report = diagnose(step, model, optimizer, scaler, batches)
        assert not report.healthy, report
        assert {finding.name for finding in report.of(Status.BAD)} & {"scale too low", "underflow"}
        step, model, optimizer, scaler, batches = half_without_scaler(factor, scale)
        with watch(model, every=1) as w:
            for batch in batches:
                step(batch)
        assert "nothing wrong was found" not in str(w.report())
        assert ": Scale the loss" in str(w.report())
    assert diagnose(*half_without_scaler(2.0**-6, 2.0**16)).healthy

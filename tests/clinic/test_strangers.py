"""Diagnosis of unusual training loops: healthy ones have no finding, silent faults have one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit import cli
from labkit.clinic import diagnose
from labkit.clinic.diagnose import diagnose_script
from labkit.instrument import watch
from labkit.machine import Status


class Weighted(nn.Module):
    """A product by weights of which three in a thousand are tiny, and so are their gradients."""

    def __init__(self) -> None:
        super().__init__()
        weights = torch.full((1000,), 1e-3)
        weights[:3] = 2.0**-32
        self.register_buffer("weights", weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() * self.weights


def test_a_layer_just_below_its_safe_scales_is_a_note() -> None:
    """As in small GPTs, where the query of the first position has gradients of rounding noise."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 1000), Weighted())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = net(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    batches = [torch.randn(8, 4) for _ in range(6)]
    report = diagnose(step, net, optimizer, scaler, batches=batches, steps=6)
    assert [f for f in report.findings if f.status is not Status.OK] == []
    [note] = [f for f in report.findings if f.name == "small gradients"]
    assert note.what.startswith("0.15% of its activation gradients underflow in FP16 at a scale")
    assert note.layer == "0"
    assert note.remedy == ""
    assert note.faults == ()


class Wrapper(nn.Module):
    """A model whose forward is never called, as with a LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))

    def loss(self, x: torch.Tensor, size: float) -> torch.Tensor:
        return ((self.net(x).squeeze(-1) - x[:, 0]) * size).square().mean()


def zero_gradients(size: float) -> list[str]:
    torch.manual_seed(0)
    wrapper = Wrapper()
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = wrapper.loss(x, size)
        loss.backward()
        optimizer.step()

    batches = [torch.randn(32, 32) for _ in range(5)]
    report = diagnose(step, wrapper, optimizer, batches=batches, steps=5)
    return [f.name for f in report.findings if f.status is Status.BAD]


def test_gradients_that_are_all_zero_are_a_fault() -> None:
    assert zero_gradients(1e-4) == ["all gradients are zero"]


def test_gradients_that_are_not_zero_are_not_a_fault() -> None:
    assert zero_gradients(1.0) == []


def test_a_decay_that_is_added_to_the_gradient_is_not_lost() -> None:
    """RMSprop and SGD add the decay to the gradient; AdamW multiplies the weight by 1 - 1e-5.

    FP32 represents that factor, and BF16 rounds it to 1.
    """
    for make, dtype, lost in (
        (torch.optim.RMSprop, torch.bfloat16, False),
        (torch.optim.SGD, torch.bfloat16, False),
        (torch.optim.AdamW, torch.float32, False),
        (torch.optim.AdamW, torch.bfloat16, True),
    ):
        torch.manual_seed(0)
        net = nn.Linear(8, 8).to(dtype)
        optimizer = make(net.parameters(), lr=1e-3, weight_decay=1e-2)
        with watch(net) as watching:
            for _ in range(3):
                optimizer.zero_grad()
                net(torch.randn(4, 8, dtype=dtype)).square().mean().backward()
                optimizer.step()
        names = [f.name for f in watching.report().findings]
        assert ("weight decay lost" in names) is lost, (make, dtype, names)


DEEP_SUPERVISION = """
import torch
from torch import nn
torch.manual_seed(0)
parts = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
optimizer = torch.optim.SGD(parts.parameters(), lr=1e-2)
for step in range(6):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    for weight, part in zip([64, 128, 256], parts):
        with torch.autocast("cpu", dtype=torch.float16):
            x = part(x.detach()).float()
        (weight * x.square().mean()).backward()
    for p in parts.parameters():
        p.grad /= 448
    optimizer.step()
"""
MEMORY_OF_GRADIENTS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(6):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(16, 8)).float().square().mean()
    loss.backward()
    optimizer.step()
    for p in model.parameters():
        p.grad.mul_(0.9)
"""
EVALUATED_IN_A_THREAD = """
import threading
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
opened, done = threading.Event(), threading.Event()
def evaluate():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        opened.set()
        done.wait()
thread = threading.Thread(target=evaluate)
thread.start()
opened.wait()
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
done.set()
thread.join()
"""
TWO_EPSILONS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adafactor(model.parameters())
for step in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(16, 8)).float().square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "text",
    [DEEP_SUPERVISION, MEMORY_OF_GRADIENTS, EVALUATED_IN_A_THREAD, TWO_EPSILONS],
    ids=["deep supervision", "memory of gradients", "thread", "Adafactor"],
)
def test_unusual_healthy_loop_is_quiet(text: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    with torch.random.fork_rng(devices=[]):
        report = diagnose_script(path, [])
    assert [f.name for f in report.findings if f.status is Status.BAD] == []
    assert report.exit_status == 0


def test_report_ignores_a_replaced_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import io, sys\nsys.stdout = io.StringIO()\n{TWO_EPSILONS}", encoding="utf-8")
    assert cli.main(["diagnose", str(path)]) == 0
    assert "Nothing wrong was found" in capsys.readouterr().out


def test_stdout_has_only_json_if_the_script_prints(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import os\nprint('a')\nos.write(1, b'b')\n{TWO_EPSILONS}", encoding="utf-8")
    completed = subprocess.run(
        [sys.executable, "-m", "labkit", "diagnose", "--json", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(completed.stdout)["exit_status"] == 0
    assert sorted(completed.stderr.split()) == ["a", "b"]


def test_a_head_in_no_optimizer_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "from torch import nn\n"
        "model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "model[1] = nn.Linear(4, 2)\n"
        "for _ in range(4):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n",
        encoding="utf-8",
    )
    with torch.random.fork_rng(devices=[]):
        report = diagnose_script(path, [])
    found = [f for f in report.findings if f.status is not Status.OK]
    assert [(f.name, f.status, f.layer) for f in found] == [
        ("parameters in no optimizer", Status.WARN, "1.bias")
    ]

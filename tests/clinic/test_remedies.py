"""Remedies of a diagnosis: a faulty script that is edited as its remedy says becomes healthy."""

from pathlib import Path

import pytest
import torch

from labkit.clinic.diagnose import diagnose_script
from labkit.clinic.remedies import DERIVATIVES, DOMAINS
from labkit.findings import Status
from labkit.instrument import Report

LOOP = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for step in range(12):
    x = torch.randn(16, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        h = model(x)
        LOSS
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
AS_FP32 = "h = h.float(); zero = h.square().sum(1) * 0; "
# A term that keeps gradients from being all zero, which would be another fault.
WITH_GRADIENTS = " + h.square().mean()"
# Operation that leaves its domain, or the domain of its derivative -> the faulty line, the text
# that the remedy replaces, and the replacement.
DOMAIN_EDITS: dict[str, tuple[str, str, str]] = {
    "log": ("loss = -zero.log().mean()", "zero.log", "zero.clamp(min=1e-6).log"),
    "log2": ("loss = -zero.log2().mean()", "zero.log2", "zero.clamp(min=1e-6).log2"),
    "log10": ("loss = -zero.log10().mean()", "zero.log10", "zero.clamp(min=1e-6).log10"),
    "log1p": ("loss = (zero - 2).log1p().mean()", "(zero - 2)", "(zero - 2).clamp(min=-0.5)"),
    "sqrt": ("loss = zero.sqrt().mean() + h.mean()", "zero.sqrt", "(zero + 1e-6).sqrt"),
    "rsqrt": ("loss = zero.rsqrt().mean()", "zero.rsqrt", "(zero + 1e-6).rsqrt"),
    "reciprocal": ("loss = zero.reciprocal().mean()", "zero.reci", "(zero + 1e-3).reci"),
    "div": ("loss = (h[:, 0] / zero).mean()", "/ zero", "/ (zero + 1e-3)"),
    "pow": ("loss = zero.pow(0.5).mean() + h.mean()", "zero.pow", "(zero + 1e-6).pow"),
    "hypot": (
        "loss = torch.hypot(zero, zero).mean() + h.mean()",
        "hypot(zero",
        "hypot(zero + 1e-6",
    ),
    "xlogy": ("loss = torch.xlogy(zero, zero).mean()", "zero, zero", "zero, zero + 1e-6"),
    "acos": ("loss = (zero + 1).acos().mean()", "1).acos", "1).clamp(-1 + 1e-6, 1 - 1e-6).acos"),
    "asin": ("loss = (zero + 1).asin().mean()", "1).asin", "1).clamp(-1 + 1e-6, 1 - 1e-6).asin"),
    "atanh": (
        "loss = (zero + 1).atanh().mean()",
        "1).atanh",
        "1).clamp(-1 + 1e-6, 1 - 1e-6).atanh",
    ),
    "acosh": ("loss = (zero + 1).acosh().mean()", "1).acosh", "1).clamp(min=1 + 1e-6).acosh"),
    "logit": ("loss = torch.logit(zero).mean()", "logit(zero)", "logit(zero, eps=1e-6)"),
    "exp": (
        "loss = (h * 0 + 100).exp().sum(1).log().mean()",
        "(h * 0 + 100).exp().sum(1).log()",
        "(h * 0 + 100).logsumexp(1)",
    ),
    "expm1": ("loss = (h * 0 + 100).expm1().mean()", "+ 100)", "+ 100).clamp(max=10)"),
    "_softmax": (
        "loss = h.masked_fill(x[:, :1] > 0, -torch.inf).softmax(1).square().mean()",
        "x[:, :1] > 0, -torch.inf",
        "torch.arange(4) > 0, -torch.inf",
    ),
    "_log_softmax": (
        "loss = h.masked_fill(x[:, :1] > 0, -torch.inf).log_softmax(1)[:, 0].mean()",
        "x[:, :1] > 0, -torch.inf",
        "torch.arange(4) > 0, -torch.inf",
    ),
    "linalg_svd": (
        "loss = torch.linalg.svd(h.T @ h * 0 + torch.eye(4))[0].sum()",
        "torch.eye(4)",
        "torch.eye(4) + 1e-1 * torch.randn(4, 4)",
    ),
    "linalg_eigh": (
        "loss = torch.linalg.eigh(h.T @ h * 0 + torch.eye(4))[1].sum()",
        "torch.eye(4)",
        "torch.eye(4) + torch.diag(torch.rand(4))",
    ),
}
# Only torch's attention calls it, and no line of Python.
INSIDE_TORCH = {"_safe_softmax"}

# Name of the finding -> the faulty script, the text that the remedy replaces, and the replacement.
SCRIPTS: dict[str, tuple[str, str, str]] = {
    "gradients of an earlier step": (
        LOOP.replace("    optimizer.zero_grad()\n", "    pass  # clear\n").replace(
            "LOSS", "loss = h.square().mean()"
        ),
        "    pass  # clear\n",
        "    optimizer.zero_grad()\n",
    ),
    "the loss was not scaled": (
        LOOP.replace("scaler.scale(loss).backward()", "loss.backward()").replace(
            "LOSS", "loss = h.square().mean(); scaler.scale(loss.detach())"
        ),
        "    loss.backward()",
        "    scaler.scale(loss).backward()",
    ),
    "scaled gradients after unscale_": (
        LOOP.replace(
            "    scaler.step(optimizer)\n",
            "    scaler.unscale_(optimizer)\n    second()\n    scaler.step(optimizer)\n",
        )
        .replace("LOSS", "loss = h.square().mean()")
        .replace("for step", "second = lambda: scaler.scale(model(x).mean()).backward()\nfor step"),
        "    scaler.unscale_(optimizer)\n    second()\n",
        "    second()\n    scaler.unscale_(optimizer)\n",
    ),
    "a second pass that is not unscaled": (
        LOOP.replace(
            "    scaler.step(optimizer)\n",
            "    scaler.unscale_(optimizer)\n    optimizer.zero_grad()\n    second()\n"
            "    scaler.step(optimizer)\n",
        )
        .replace("LOSS", "loss = h.square().mean()")
        .replace("for step", "second = lambda: scaler.scale(model(x).mean()).backward()\nfor step"),
        "    second()\n",
        "    scaler.update()\n    second()\n",
    ),
    "divided by another number": (
        """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer, scale = torch.optim.SGD(model.parameters(), lr=1e-3), 2.0**10
for step in range(8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(16, 8)).float().square().mean()
    (loss * scale).backward()
    scale = min(2 * scale, 2.0**14)
    for p in model.parameters():
        p.grad.div_(scale)
    optimizer.step()
""",
        "    scale = min(2 * scale, 2.0**14)\n",
        "",
    ),
    "parameters without a gradient": (
        """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
first, second = nn.Linear(8, 8), nn.Linear(8, 1)
model = nn.Sequential(first, second)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(8):
    optimizer.zero_grad()
    h = checkpoint(first, torch.randn(16, 8), use_reentrant=True)
    model[1](h).square().mean().backward()
    optimizer.step()
""",
        "use_reentrant=True",
        "use_reentrant=False",
    ),
    "difference of rounded numbers": (
        """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(8):
    optimizer.zero_grad()
    x = torch.randn(16, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        new = model(x).squeeze(1) - 700
    old = (new.detach() + 2).to(new.dtype)
    (new - old).exp().mean().backward()
    optimizer.step()
""",
        "model(x).squeeze(1) - 700",
        "model(x).squeeze(1).float() - 700",
    ),
    "epsilon above what it guards": (
        """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-2)
for step in range(8):
    optimizer.zero_grad()
    (1e-4 * model(torch.randn(16, 8)).square().mean()).backward()
    optimizer.step()
""",
        "eps=1e-2",
        "eps=1e-8",
    ),
    "no parameter moved": (
        """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(8):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
""",
        "lr=0.0",
        "lr=0.1",
    ),
    "no step was taken": (
        """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer, scale = torch.optim.SGD(model.parameters(), lr=1e-3), 2.0**40
for step in range(60):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(16, 8)).float().square().mean()
    (loss * scale).backward()
    if all(p.grad.isfinite().all() for p in model.parameters()):
        for p in model.parameters():
            p.grad.div_(scale)
        optimizer.step()
    else:
        pass
""",
        "        pass\n",
        "        scale /= 2\n",
    ),
}


def diagnosed(text: str, folder: Path) -> Report:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    with torch.random.fork_rng(devices=[]):
        return diagnose_script(path, [], steps=60)


def test_each_domain_and_derivative_has_its_case() -> None:
    assert DOMAIN_EDITS.keys() | INSIDE_TORCH == DOMAINS.keys() | DERIVATIVES.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operation", DOMAIN_EDITS)
def test_remedy_of_an_operation_outside_its_domain_repairs(operation: str, tmp_path: Path) -> None:
    line, old, new = DOMAIN_EDITS[operation]
    assert line.count(old) == 1
    faulty = diagnosed(LOOP.replace("LOSS", AS_FP32 + line + WITH_GRADIENTS), tmp_path)
    printed = [f.remedy for f in faulty.findings if f.status is not Status.OK]
    expected = [DOMAINS.get(operation), DERIVATIVES.get(operation)]
    assert any(remedy in expected for remedy in printed), printed
    repaired = diagnosed(
        LOOP.replace("LOSS", AS_FP32 + line.replace(old, new) + WITH_GRADIENTS), tmp_path
    )
    assert [f.name for f in repaired.findings if f.status is not Status.OK] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCRIPTS)
def test_remedy_of_a_finding_repairs(name: str, tmp_path: Path) -> None:
    text, old, new = SCRIPTS[name]
    assert text.count(old) == 1
    faulty = diagnosed(text, tmp_path)
    assert [f.name for f in faulty.findings if f.status is Status.BAD] == [name]
    repaired = diagnosed(text.replace(old, new), tmp_path)
    assert [f.name for f in repaired.findings if f.status is Status.BAD] == []

"""Constants in the source that FP16 cannot represent, and that meet a tensor."""

import functools
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from labkit.clinic import Report, Status, diagnose
from labkit.clinic.constants import constants_in, constants_of
from labkit.clinic.diagnose import diagnose_script


def test_worked_example_of_an_epsilon_that_is_zero_in_fp16() -> None:
    (found,) = constants_in("import torch\nloss = -torch.log(p + 1e-8).mean()", "train.py")
    assert found.where == "train.py:2"
    assert found.value == 1e-8
    assert found.says == "`p + 1e-08`: 1e-08 is 0 in FP16, and 1.001e-08 in BF16"
    assert torch.tensor(1e-8, dtype=torch.float16) == 0
    assert f"{torch.tensor(1e-8, dtype=torch.bfloat16).item():.4g}" == "1.001e-08"


MEETS_A_TENSOR = [
    "scores.masked_fill(mask, -1e9)",
    "scores.masked_fill(mask, value=-(2**30))",
    "x.clamp(min=1e-12)",
    "torch.clamp(x, 1e-8, 1.0)",
    "scores + (1 - mask) * -1e9",
    "torch.full((3, 3), -1e10)",
    "torch.where(keep, scores, -100000)",
    "x / (x.norm() + 1e-12)",
    "nn.LayerNorm(64, eps=1e-9)",
    "F.normalize(x, eps=1e-12)",
    "positions.new_full((1,), 70000)",
    "EPSILON = 1e-8\ny = x.sum() + EPSILON",
    "eps: float\neps = 1e-8\ny = x + eps",
    "x += 1e-8",
    "self.total -= 1e-8",
    "mask *= -1e9",
    "x.add_(1e-8)",
    "scores[mask] = -1e9",
    "scores[:, 0] = -1e5",
    "scores[distance > 8] = -1e9",
    "scores[~keep] = best[~keep] = -1e30",
    "nn.LayerNorm(64, 1e-12)",
    "F.normalize(x, 2.0, 1, 1e-12)",
    "def dice(p, t, eps=1e-8):\n    return (p * t).sum() / (p.sum() + eps)",
    "class Norm:\n    def __init__(self, eps=1e-10): self.eps = eps\n"
    "    def f(self, x): return x + self.eps",
]
MEETS_NO_TENSOR_OR_FITS = [
    "torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-8)",
    "torch.optim.Adam(net.parameters(), eps=1e-8)",
    "opt = AdamW(groups, betas=(0.9, 0.95), eps=1e-8, weight_decay=1e-8)",
    "best = 1e9\nbest = min(best, loss)",
    "for step in range(100000): pass",
    "torch.randint(0, 70000, (64,))",
    "scaler = torch.amp.GradScaler(init_scale=2.0**40)",
    "nn.Embedding(100_000, 64)",
    "x + 1e-6",
    "x += 1e-6",
    "x.add_(1e-6)",
    "seen.add(100000)",
    "scores[mask] = -1e4",
    "worst[mask] = 1e9",
    "limits['loss'] = -1e9",
    "limits[0] = -1e9",
    "best[name] = -1e9",
    "table[row, column] = -1e9",
    "nn.LayerNorm(64, 1e-5)",
    "nn.Linear(64, 100_000)",
    "torch.optim.Adam(net.parameters(), 1e-3, (0.9, 0.95), 1e-8)",
    "x *= -1e-8",
    "x + 0**-1",
    "milliseconds *= 1e6",
    "scores.masked_fill(mask, float('-inf'))",
    "scores.masked_fill(mask, -1e4)",
    "milliseconds = seconds * 1e6",
    "nn.LayerNorm(64, eps=1e-5)",
    "eps = 1e-8\neps = 1e-4\ny = x + eps",
    "eps = 1e-8\neps *= 1e4\ny = x + eps",
    "eps = 1e-8\nfor eps in (1e-4, 1e-3): y = x + eps",
    "eps = 1e-8\neps, steps = config\ny = x + eps",
    "eps = 1e-8\nif (eps := 1e-4): y = x + eps",
    "2**40 + 1",
    "True + x",
]


def test_constant_that_does_not_fit_and_meets_a_tensor_is_found() -> None:
    assert [line for line in MEETS_A_TENSOR if len(constants_in(line)) != 1] == []


def test_constant_that_fits_or_meets_no_tensor_is_ignored() -> None:
    assert [line for line in MEETS_NO_TENSOR_OR_FITS if constants_in(line)] == []


SMALL = 1e-10


class Ratio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return x / (x.norm() + SMALL) if self.training else x.clamp_min(1e-9)


def unused(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(x > 0, -1e9)


def training(dtype: torch.dtype) -> Report:
    torch.manual_seed(0)
    model = Ratio()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8)

    def step(inputs: torch.Tensor, *, never: bool) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            outputs = unused(model(inputs)) if never else model(inputs)
        F.mse_loss(outputs.float(), torch.ones(8, 3)).backward()
        optimizer.step()

    return diagnose(
        functools.partial(step, never=False), model, optimizer, batches=[torch.randn(8, 4)] * 2
    )


def notes(report: Report) -> list[str]:
    return [finding.where for finding in report.findings if finding.name == "in the source"]


def lines_of(*texts: str) -> list[str]:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return [
        f"test_constants.py:{n}"
        for n, line in enumerate(lines, 1)
        if line.strip().startswith(texts)
    ]


def test_constant_in_code_that_did_not_run_is_a_note() -> None:
    executed, skipped = lines_of("return x / (x.norm() + SMALL)", "return x.masked_fill(x > 0")
    report = training(torch.float32)
    assert notes(report) == [executed, skipped]
    assert report.healthy
    assert list(report.of(Status.WARN)) == []
    report = training(torch.float16)
    (warned,) = report.of(Status.WARN)
    assert warned.name == "constant"
    assert warned.where.split(",")[0] == executed
    assert notes(report) == [skipped]


class ScaledStep:
    """A step that is an object, as of a class of trainers."""

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        return batch + 1e-8


def test_constants_of_a_callable_object_are_found() -> None:
    for step in (ScaledStep(), functools.partial(ScaledStep()), ScaledStep().__call__):
        assert [constant.value for constant in constants_of(step, None)] == [1e-8]


def test_constants_in_the_code_of_torch_are_ignored() -> None:
    model = nn.TransformerEncoderLayer(8, 2)
    assert constants_of(lambda batch: F.normalize(batch), model) == []


SCRIPT = """
import torch
if False:
    torch.zeros(3).half().add(1e-8), torch.zeros(3) + 1e-8
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters(), eps=1e-8)
for _ in range(9):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


def test_constants_in_unexecuted_lines_of_a_script_are_notes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    report = diagnose_script(script, [], steps=2)
    assert notes(report) == ["train.py:4"]
    assert report.healthy


def faults_of(operation: Callable[[torch.Tensor], torch.Tensor]) -> tuple[str, ...]:
    """Return the faults that the first finding of a step in FP16 names."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = operation(net(x)).float().nan_to_num().sum()
        loss.backward()
        optimizer.step()

    report = diagnose(step, net, optimizer, batches=[torch.ones(2, 4)] * 2, steps=2)
    return next(finding.faults for finding in report.findings if finding.faults)


def test_an_epsilon_of_zero_names_logarithms_and_quotients() -> None:
    names = faults_of(lambda y: (y.abs() + 1e-8).log())
    assert names[:2] == ("log_of_epsilon", "denominator_underflows")


def test_a_constant_beyond_fp16_names_the_mask_alone() -> None:
    assert faults_of(lambda y: y.clamp(max=1e9)) == ("mask_constant",)


def test_a_logarithm_where_autocast_is_off_names_that_first() -> None:
    def switched_off(y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return (0 * y).log()

    assert faults_of(switched_off)[0] == "switched_off_but_half"


LARGE_KEY = 10**400


def test_whole_numbers_beyond_all_floats_are_ignored() -> None:
    def step(batch: torch.Tensor) -> torch.Tensor:
        return batch + 1e-8 if LARGE_KEY else batch

    assert constants_in(f"x = x + {LARGE_KEY}") == []
    assert [constant.value for constant in constants_of(step, None)] == [1e-8]


class Step:
    """A training step as an object."""

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.log(batch + 1e-8)


def test_constants_of_a_callable_object_are_those_of_its_class() -> None:
    assert [constant.text for constant in constants_of(Step(), None)] == ["batch + 1e-08"]


def test_numbers_that_fp16_rounds_to_its_largest_are_ignored() -> None:
    assert constants_in("x = x + 65519.0") == []
    assert [constant.value for constant in constants_in("x = x + 65520.0")] == [65520.0]


def test_a_script_in_another_encoding_is_diagnosed(tmp_path: Path) -> None:
    script = tmp_path / "latin.py"
    text = "# -*- coding: latin-1 -*-\nimport torch\n# é\nlayer = torch.nn.Linear(2, 1)\n"
    script.write_bytes(f"{text}layer(torch.ones(1, 2)) + 1e-8\n".encode("latin-1"))
    assert notes(diagnose_script(script, [])) == ["latin.py:5"]

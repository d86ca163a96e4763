"""The line that a finding names: the user's, and no line of labkit or torch that it calls."""

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit import amp, faults, train
from labkit.amp import RECIPES, Engine
from labkit.clinic import diagnose
from labkit.frameworks import torch_amp
from labkit.instrument.user_code import LAB, is_library, line_of_error, line_of_user
from labkit.train import networks, tasks
from labkit_lessons.lesson_10_clinic import look

HERE = Path(__file__).name
Loop = Callable[[nn.Module], tuple[Callable[[torch.Tensor], float], torch.optim.Optimizer]]


class Overflowing(nn.Module):
    """A network with an overflow in FP16, in a line of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.outer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x) * 300.0
        h = h * h  # the overflow
        return self.outer(h)


LINE = next(
    number
    for number, line in enumerate(Path(__file__).read_text().splitlines(), start=1)
    if line.endswith("# the overflow")
)


def by_engine(recipe: str) -> Loop:
    def loop(model: nn.Module) -> tuple[Callable[[torch.Tensor], float], torch.optim.Optimizer]:
        engine = Engine(model, functools.partial(torch.optim.AdamW, lr=1e-3), RECIPES[recipe])

        def step(batch: torch.Tensor) -> float:
            engine.zero_grad()
            with engine.forward():
                loss = (engine(batch) - 1).square().mean()
            engine.backward(loss)
            engine.step()
            return loss.item()

        return step, engine.optimizer

    return loop


def by_torch_amp(autocast: type, scaler_class: type) -> Loop:
    def loop(model: nn.Module) -> tuple[Callable[[torch.Tensor], float], torch.optim.Optimizer]:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        scaler = scaler_class("cpu")

        def step(batch: torch.Tensor) -> float:
            optimizer.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = (model(batch) - 1).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.item()

        return step, optimizer

    return loop


LOOPS: dict[str, Loop] = {
    **{name: by_engine(name) for name in ("O1", "O1 graph", "O2", "O3", "FP16 dynamic")},
    "drop-in": by_torch_amp(torch_amp.autocast, torch_amp.GradScaler),
    "torch.amp": by_torch_amp(torch.autocast, torch.amp.GradScaler),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.filterwarnings("ignore")
def test_an_overflow_is_named_by_the_line_of_the_script(loop: str) -> None:
    torch.manual_seed(0)
    model = Overflowing()
    step, optimizer = LOOPS[loop](model)
    batches = [torch.randn(16, 8) for _ in range(4)]
    report = diagnose(step, model, optimizer, batches=batches, steps=4)
    found = [finding for finding in report.findings if finding.name == "overflow"]
    assert [finding.line for finding in found] == [f"{HERE}:{LINE}"]


@pytest.mark.parametrize("module", [amp.engine, train.run, torch_amp, nn.Linear])
def test_a_file_of_the_lab_or_of_torch_is_a_library(module: object) -> None:
    assert is_library(inspect.getsourcefile(module))


def test_a_file_of_the_standard_library_is_not_of_the_lab() -> None:
    assert not is_library(inspect.getsourcefile(dataclasses))


@pytest.mark.parametrize("module", [faults.weights, networks, tasks, sys.modules[__name__]])
def test_models_tasks_and_faults_are_user_code(module: object) -> None:
    assert not is_library(inspect.getsourcefile(module))


def test_a_package_with_the_prefix_of_torch_is_not_torch() -> None:
    assert not is_library(f"{Path(torch.__file__).parent}vision/models/resnet.py")


@pytest.mark.parametrize(
    "name", ["<stdin>", "<python-input-3>", "<console>", "<input>", "<doctest model[0]>"]
)
def test_typed_code_is_user_code(name: str) -> None:
    assert not is_library(name)


@pytest.mark.parametrize("name", ["<string>", "<eval_with_key>.0", "<frozen runpy>"])
def test_generated_code_is_not_user_code(name: str) -> None:
    assert is_library(name)


def test_a_line_typed_into_python_is_named() -> None:
    names: dict[str, object] = {"line_of_user": line_of_user, "sys": sys}
    exec(compile("\nline = line_of_user(sys._getframe())", "<stdin>", "exec"), names)
    assert names["line"] == "<stdin>:2"


def test_a_lesson_is_user_code() -> None:
    assert not is_library(inspect.getsourcefile(look))


def test_a_folder_with_the_prefix_of_labkit_is_user_code() -> None:
    assert not is_library(f"{LAB}_of_mine/train.py")


def test_error_below_torch_names_the_calling_line() -> None:
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(2, 3)(torch.ones(2, 3))
    line = inspect.currentframe().f_lineno - 1
    assert line_of_error(caught.value) == f"{HERE}:{line}"


def test_a_frame_of_the_user_names_its_line() -> None:
    line = inspect.currentframe().f_lineno + 1
    assert line_of_user(sys._getframe()) == f"{HERE}:{line}"


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_line_of_a_package_names_the_users_line(tmp_path: Path, folder: str) -> None:
    package = tmp_path / folder / "models" / "attention.py"
    package.parent.mkdir(parents=True)
    package.write_text("import sys\ndef forward(see):\n    return see(sys._getframe())\n")
    names: dict[str, Callable[..., object]] = {}
    exec(compile(package.read_text(), str(package), "exec"), names)
    line = inspect.currentframe().f_lineno + 1
    assert names["forward"](line_of_user) == f"models/attention.py:3 (called at {HERE}:{line})"


def test_a_place_in_a_file_of_any_name_can_be_written() -> None:
    # Python reads bytes of a name that are not UTF-8 as lone surrogates.
    scope: dict[str, object] = {"line_of_user": line_of_user, "sys": sys}
    exec(compile("place = line_of_user(sys._getframe())", "tr\udcffain.py", "exec"), scope)
    assert scope["place"] == "tr\\udcffain.py:1"


def test_a_frame_of_the_standard_library_is_not_a_users_line() -> None:
    found: list[str | None] = []
    with contextlib.ExitStack() as stack:
        # Frame 1, the caller of the lambda, is in contextlib.
        stack.callback(lambda: found.append(line_of_user(sys._getframe(1))))
        line = inspect.currentframe().f_lineno - 3
    assert found == [f"{HERE}:{line}"]

"""Answers of Tensor Cores that `labkit gpu` saves, with the emulator in place of the GPU."""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labkit import gpu
from labkit.gemm import SPECS
from labkit.gpu import job as gpu_job
from tests.gpu.capture import tiles
from tests.gpu.capture.kernel import INSTRUCTIONS, Instruction
from tests.gpu.capture.test_capture import HOPPER, stand_in
from tests.gpu.capture.tiles import load_capture
from tests.gpu.checks import test_checks
from tests.gpu.conftest import CheckRun
from tests.gpu.rehearsal import job_of, lines_of

# The program of a worker process that serves saved lines.
SERVE_SAVED_LINES = """
import json, sys
from pathlib import Path
from labkit.gpu.worker import Item, Kind, serve
items = []
for line in json.loads(Path(sys.argv[1]).read_text()):
    items.append(Item(line["item"], Kind.CAPTURE, lambda _, into, line=line: into.update(line)))
serve(items, "cpu")
"""
# The instruction that the stand-in executes wrongly.
WRONG = "mma.sync.m16n8k8.f32.f16.f16.f32"
ROWS = [row for row in INSTRUCTIONS if row.runs_on((9, 0)) and not row.grouped]


@pytest.fixture(scope="module")
def checked() -> dict[str, CheckRun]:
    """Instruction -> its check on the stand-in; only that of WRONG fails."""
    right = stand_in(SPECS["H100"])
    wrong = stand_in(SPECS["H100"], wrong=(5,))

    def capture(row: Instruction, *words: Any) -> Any:
        answers: Callable[..., Any] = wrong if row.name == WRONG else right
        return answers(row, *words)

    runs = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "capture", capture)
        patch.setattr(tiles, "device_report", lambda _: HOPPER)
        for row in ROWS:
            runs[row.name] = CheckRun(thorough=False)
            with pytest.raises(AssertionError) if row.name == WRONG else nullcontext():
                test_checks.test_a_real_tensor_core_equals_the_emulator(runs[row.name], row)
    return runs


@dataclass(frozen=True)
class SavedPart:
    """A finished part "mma": its folder, and the lines that it printed."""

    folder: Path
    printed: list[str]


@pytest.fixture
def saved(
    checked: dict[str, CheckRun],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> SavedPart:
    lines = [
        {"item": f"capture {name}", "kind": "capture", **check.found}
        for name, check in checked.items()
    ]
    served = tmp_path / "served.json"
    served.write_text(json.dumps(lines))
    command = [sys.executable, "-c", SERVE_SAVED_LINES, str(served)]
    monkeypatch.setattr(gpu.command, "worker_command", lambda _: command)
    monkeypatch.setattr(gpu_job, "device_report", lambda _: HOPPER)
    assert gpu.command.run_part(job_of(tmp_path, "mma", "cuda"), 60.0) == "done"
    return SavedPart(tmp_path, capsys.readouterr().out.splitlines())


def test_only_the_wrong_instruction_has_mismatches(checked: dict[str, CheckRun]) -> None:
    differing = [name for name, check in checked.items() if check.found["mismatches"]]
    assert differing == [WRONG]


def test_answers_of_each_instruction_have_a_file_of_their_own(saved: SavedPart) -> None:
    files = sorted((saved.folder / "mma" / "a-stand-in").iterdir())
    assert [file.stem for file in files] == sorted(row.name for row in ROWS)
    assert load_capture(files[-1]).device == "A stand-in"


def test_lines_of_a_part_have_no_answers(saved: SavedPart) -> None:
    lines = lines_of(saved.folder, "mma")
    assert len(lines) == len(ROWS)
    assert not any("npz" in line for line in lines.values())


def test_a_part_prints_the_mismatches_of_each_instruction(saved: SavedPart) -> None:
    right = [line for line in saved.printed if ": 0 of " in line]
    assert len(right) == len(ROWS) - 1
    (wrong,) = [line for line in saved.printed if line.startswith(f"capture {WRONG}: ")]
    assert wrong not in right

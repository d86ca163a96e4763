"""The commands where things go wrong in a terminal: an interrupt, a broken package, a second run, a wrong path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from labkit.cli import SUBCOMMANDS, main
from labkit.clinic.doctor import packages
from labkit.clinic.findings import Status
from labkit.records.system import import_problem

ROOT = Path(__file__).parents[1]


def environment(*first: Path) -> dict[str, str]:
    paths = os.pathsep.join(map(str, [*first, ROOT]))
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def test_no_help_takes_torch() -> None:
    script = f"""
import contextlib, io, sys
from labkit.cli import main
for name in {list(SUBCOMMANDS)!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([name, "--help"])
    assert "torch" not in sys.modules, name
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def broken(folder: Path, package: str) -> Path:
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    return folder


def test_doctor_says_that_torch_cannot_be_imported_and_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "labkit", "doctor"]
    done = subprocess.run(
        command, env=environment(broken(tmp_path, "torch")), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "torch cannot be imported: ImportError: libcudart.so.12" in done.stdout
    assert "make setup" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_package_is_ok_if_it_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(broken(tmp_path, "anywidget")))
    assert import_problem("json") == ""
    assert "libcudart" in import_problem("anywidget")
    needed, installed = {"anywidget": "0.9", "numpy": "2"}, {"labkit": "1", "anywidget": "0.11", "numpy": "2.4"}
    found = list(packages(needed, installed.get, lambda names: {n: p for n in names if (p := import_problem(n))}))
    assert [(finding.name, finding.status) for finding in found] == [
        ("labkit", Status.OK), ("anywidget", Status.BAD), ("numpy", Status.OK),
    ]  # fmt: skip
    assert "cannot be imported: ImportError: libcudart" in found[1].what


@pytest.mark.skipif(os.name == "nt", reason="an interrupt is sent otherwise on Windows")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_race_says_what_begins_and_when_interrupted_what_is_kept(tmp_path: Path, workers: str) -> None:
    command = [sys.executable, "-m", "labkit", "race", "digits", "--recipes", "FP32", "--seeds", *map(str, range(200)),
               "--folder", str(tmp_path), "--device", "cpu", "--workers", workers]  # fmt: skip
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a background job's parent may ignore it
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "metric" in line or " skipped " in line:
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = process.communicate()
    assert any("seed 0  begins" in line for line in lines)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    told = [line for line in [*lines, *out.splitlines()] if "interrupted: " in line]
    assert len(told) == 1
    kept = int(told[0].split("interrupted: ")[1].split(" of ")[0])
    assert 1 <= kept <= len(list(tmp_path.rglob("*.json"))) < 200


SCRIPT = """
import sys, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print("arguments", sys.argv[1:])
"""


def test_a_second_watch_keeps_the_first_report_and_our_options_after_the_script_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["watch", "--every", "1", "--folder", str(tmp_path / "seen"), str(tmp_path / "train.py")]
    assert main(words) == 0
    first = (tmp_path / "seen" / "report.html").read_bytes()
    assert main([*words, "--every=3", "--own"]) == 0
    output = capsys.readouterr()
    assert "arguments ['--every=3', '--own']" in output.out
    assert "--every=3 stands after" in output.err
    assert "--own stands" not in output.err
    assert (tmp_path / "seen" / "report.html").read_bytes() == first
    assert (tmp_path / "seen-2" / "report.html").is_file()


def test_grade_names_the_path_that_is_not_there_before_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", "/nonexistent"]) == 2
    assert "there is no /nonexistent" in capsys.readouterr().err
    assert main(["grade", str(ROOT / "notebooks")]) == 2
    assert "expected --csv FILE" in capsys.readouterr().err


def test_the_readme_s_grading_command_follows_its_sentence() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.split("and grade them:")[1].lstrip().startswith("labkit grade ")

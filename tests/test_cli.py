"""The commands: output, and replies to wrong paths, broken packages, interrupts and second runs."""

import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest

import labkit
from labkit import cli
from labkit.commands import notebooks
from labkit.machine import Finding, Report, Status
from labkit.machine.check import import_error, packages

ROOT = Path(__file__).parents[1]


def environment(*first: Path) -> dict[str, str]:
    """Return the environment of a command that finds packages in the first folders, then this
    checkout.
    """
    paths = os.pathsep.join(map(str, [*first, ROOT]))
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def test_python_dash_m_is_the_same_command():
    command = [sys.executable, "-m", "labkit", "version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"labkit {labkit.__version__} ")
    if os.name == "nt":
        return
    # `labkit version | head -0`: the pipe is closed before a word is written
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        command, stdout=writes, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    os.close(writes)
    assert done.returncode == 0
    assert done.stderr == ""


def test_every_help_has_a_valid_example(capsys) -> None:
    for name, row in cli.COMMANDS.items():
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        lines = capsys.readouterr().out.splitlines()
        assert lines[:3] == [f"{row.summary}.", "", "Examples:"]
        assert lines[3].startswith(f"  labkit {name}")
        for example in row.examples:
            cli.parser_of(name).parse_args(shlex.split(example)[2:])


def test_neither_the_version_nor_any_help_imports_torch() -> None:
    script = f"""
import contextlib, io, sys
from labkit.cli import main
for words in [["version"], *([name, "--help"] for name in {list(cli.COMMANDS)!r})]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(words)
    assert "torch" not in sys.modules, words
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_a_command_all_are_listed(capsys):
    assert cli.main([]) == 2
    out = capsys.readouterr().out
    for name, row in cli.COMMANDS.items():
        assert f"  {name} " in out, name
        assert row.summary in out, name


def test_an_old_python_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    with pytest.raises(SystemExit, match=r"The lab needs Python 3\.11 or newer; this is "):
        runpy.run_path(str(ROOT / "labkit" / "__main__.py"), run_name="__main__")


def test_what_does_not_exist_is_named_with_what_does(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answers = {
        "progress missing": "labkit progress: there is no folder missing\n",
        "compare digit": "invalid task: 'digit' (choose from all, autoencoder, ",
        "chek": "unknown command 'chek'. Did you mean 'check'?",
        "lab mine.ipynb": "mine.ipynb",
        "grade /nonexistent": "there is no /nonexistent",
        f"grade {ROOT / 'notebooks'}": "expected --csv FILE",
        "restore --folder missing": "there is no folder missing",
        "lab notes.txt": "expected a notebook (.ipynb) or a folder, got the file notes.txt",
        "compare digitz": "Did you mean 'digits'?",
    }
    Path("notes.txt").touch()
    for words, answer in answers.items():
        try:
            status = cli.main(words.split())
        except SystemExit as ended:
            status = ended.code
        err = capsys.readouterr().err
        assert status == 2, words
        assert answer in err
        assert "[]" not in err


def refusal(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints that ends with status 2 while it reads its arguments."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_only_arguments_that_a_call_needs_are_called_missing(capsys) -> None:
    for name, needed in {
        "diagnose": "SCRIPT",
        "watch": "SCRIPT",
        "grade": "SUBMISSIONS",
        "tolerance": "TEXT",
    }.items():
        assert refusal(name, capsys).endswith(f"the following arguments are required: {needed}")


def test_a_port_outside_of_its_range_is_refused(capsys) -> None:
    for command, last in {"lab": 65535, "board .": 65535, "classroom": 65533}.items():
        for port in ("0", str(last + 1), "eighty"):
            message = refusal(f"{command} --port {port}", capsys)
            assert message.endswith(f"expected a port from 1 to {last}, got {port!r}")


def test_unwritable_output_is_refused_at_once(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    files = (
        "watch --record PLACE train.py",
        "diff a b --page PLACE",
        "vectors NVFP4 --out PLACE",
        "gpu --passport PLACE",
        "gpu --progress PLACE",
        "site --playground PLACE",
        "grade . --csv PLACE",
        "grade . --report PLACE",
        "grade . --gradebook PLACE",
        "release new --questions PLACE",
        "release new --gradescope PLACE",
        "exercises --csv PLACE",
    )
    for words in files:
        message = refusal(words.replace("PLACE", "folder"), capsys)
        assert message.endswith("expected a file to write, got the folder folder")
        message = refusal(words.replace("PLACE", "file/new"), capsys)
        assert message.endswith("expected a folder, got the file file")
    folders = (
        "compare digits --folder PLACE",
        "gpu --folder PLACE",
        "site --widgets PLACE",
        "grade . --feedback PLACE",
        "grade . --anonymous PLACE",
        "release PLACE",
        "classroom --folder PLACE",
    )
    for words in folders:
        for place in ("file", "file/new"):
            message = refusal(words.replace("PLACE", place), capsys)
            assert message.endswith("expected a folder, got the file file")


def test_restore_says_where_no_answer_is_saved(capsys, tmp_path: Path) -> None:
    for words in ([], ["--write"]):
        assert cli.main(["restore", "--folder", str(tmp_path), *words]) == 0
        assert capsys.readouterr().out == f"No answers are saved for the notebooks in {tmp_path}.\n"


def test_check_prints_the_report_and_fails_when_something_is_red(monkeypatch, capsys):
    for level, remedy, status in [
        (Status.OK, "", 0),
        (Status.WARN, "close one", 0),
        (Status.BAD, "close all", 1),
    ]:
        finding = Finding("memory", level, "1.5 GiB available", remedy)
        monkeypatch.setattr(
            "labkit.machine.check_machine", lambda finding=finding: Report((finding,))
        )
        assert cli.main(["check"]) == status
        out = capsys.readouterr().out
        assert finding.what in out
        assert finding.remedy in out


def test_missing_package_is_named_with_its_remedy(monkeypatch, capsys):
    def needs(name: str, _: Namespace) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("labkit.commands.machine.check", partial(needs, "torch"))
    assert cli.main(["check"]) == 2
    err = capsys.readouterr().err
    assert "needs the package torch" in err
    assert "make setup" in err
    monkeypatch.setattr("labkit.commands.machine.check", partial(needs, "labkit.gone"))
    with pytest.raises(ModuleNotFoundError, match=r"labkit\.gone"):
        cli.main(["check"])


@pytest.mark.skipif(
    os.name == "nt", reason="Windows cannot replace a process; JupyterLab is started there"
)
def test_lab_opens_the_notebook_in_jupyterlab(monkeypatch, tmp_path):
    notebook = tmp_path / "mine.ipynb"
    notebook.write_text("{}")
    started = []
    monkeypatch.setattr(
        os, "execve", lambda path, words, environment: started.append((words, environment))
    )
    monkeypatch.setattr(subprocess, "call", lambda words, env: 0)
    cli.main(["lab", "--no-browser", "--port", "9999", str(notebook)])
    ((words, environment),) = started
    first, *others = environment["PATH"].split(os.pathsep)
    assert shutil.which("labkit", path=first)
    assert os.pathsep.join(others).endswith(os.environ["PATH"]), "and all else as before"
    assert "" not in notebooks.lab_environment({})["PATH"].split(os.pathsep)
    assert words[:3] == [sys.executable, "-m", "jupyterlab"]
    assert {"--no-browser", "--ServerApp.port=9999", f"--ServerApp.root_dir={tmp_path}"} <= set(
        words
    )
    assert "--LabApp.default_url=/lab/tree/mine.ipynb" in words
    assert notebooks.lab_flags(
        notebooks.notebook_to_open(None), is_root=False, browser=True, port=8888
    ) == [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.port=8888",
        "--LabApp.default_url=/lab/tree/notebooks/00_start.ipynb",
        *(f"--ContentsManager.hide_globs={hidden}" for hidden in notebooks.HIDDEN),
    ]
    assert "labkit_lessons" in notebooks.HIDDEN, "a lesson's folder holds its answers"


def test_a_browser_opens_only_where_there_is_a_screen(monkeypatch):
    monkeypatch.setattr("webbrowser.get", lambda: None)
    for is_root, platform, environment, opens in [
        (False, "linux", {"DISPLAY": ":0"}, True),
        (False, "linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        (False, "darwin", {}, True),
        (False, "win32", {}, True),
        (True, "linux", {"DISPLAY": ":0"}, False),
        (False, "linux", {}, False),
        (False, "darwin", {"SSH_CONNECTION": "far away"}, False),
    ]:
        assert notebooks.can_open_browser(is_root, platform, environment) is opens, (
            is_root,
            platform,
            environment,
        )


def test_compare_says_what_lies_in_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    race = (
        f"compare small_targets --recipes FP32 O1 --seeds 0 --workers 1 --folder {tmp_path}".split()
    )
    assert cli.main(race) == 0
    said = capsys.readouterr().out
    assert "O1: one seed" in said
    record = tmp_path / "small_targets" / "fp32-seed0.json"
    record.write_text(record.read_text().replace('"fingerprint": "', '"fingerprint": "x'))
    assert cli.main(race) == 1
    assert "delete the record" in capsys.readouterr().err


def broken(folder: Path, package: str) -> Path:
    (folder / package).mkdir()
    error = "libcudart.so.12: cannot open shared object file"
    (folder / package / "__init__.py").write_text(f"raise ImportError({error!r})")
    return folder


def test_check_names_packages_that_fail_to_import(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(broken(tmp_path, "anywidget")))
    assert import_error("json") == ""
    needed = {"anywidget": "0.9", "numpy": "2"}
    installed = {"fp16-lab": "1", "anywidget": "0.11", "numpy": "2.4"}
    found = list(
        packages(
            needed, installed.get, lambda names: {n: p for n in names if (p := import_error(n))}
        )
    )
    assert [(finding.name, finding.status) for finding in found] == [
        ("labkit", Status.OK),
        ("anywidget", Status.BAD),
        ("numpy", Status.OK),
    ]
    assert "cannot be imported: ImportError: libcudart" in found[1].what
    command = [sys.executable, "-m", "labkit", "check"]
    without_torch = environment(broken(tmp_path, "torch"))
    done = subprocess.run(command, env=without_torch, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "torch cannot be imported: ImportError: libcudart.so.12" in done.stdout
    assert "make setup" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.skipif(os.name == "nt", reason="an interrupt is sent otherwise on Windows")
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_interrupted_compare_reports_what_it_kept(tmp_path: Path, workers: str) -> None:
    command = [
        sys.executable,
        "-m",
        "labkit",
        "compare",
        "digits",
        "--recipes",
        "FP32",
        "--seeds",
        *map(str, range(200)),
        "--folder",
        str(tmp_path),
        "--device",
        "cpu",
        "--workers",
        workers,
    ]
    process = subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a background job's parent may ignore it
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
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


def test_options_after_the_script_are_passed_to_it_and_reported(tmp_path: Path, capsys) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('arguments', sys.argv[1:])\n")
    cli.main(
        [
            "watch",
            "--folder",
            str(tmp_path / "seen"),
            str(tmp_path / "train.py"),
            "--every=3",
            "--own",
        ]
    )
    output = capsys.readouterr()
    assert "arguments ['--every=3', '--own']" in output.out
    assert "--every=3 is after" in output.err
    assert "--own stands" not in output.err


@pytest.mark.parametrize("command", ["diagnose", "watch"])
def test_a_folder_in_place_of_a_script_is_named_as_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, str(tmp_path)]) == 2
    assert "expected a script, got the folder" in capsys.readouterr().err

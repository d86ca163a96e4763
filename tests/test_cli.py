"""The commands: output, and replies to wrong paths, broken packages, interrupts and second runs."""

import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable
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
    """Return the environment of a command.

    It finds packages in the first folders, then in this checkout.
    """
    paths = os.pathsep.join(map(str, [*first, ROOT]))
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


VERSION = [sys.executable, "-m", "labkit", "version"]


def test_python_dash_m_is_the_same_command():
    done = subprocess.run(VERSION, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"labkit {labkit.__version__} ")


@pytest.mark.skipif(os.name == "nt", reason="Windows reports a closed pipe differently")
def test_a_closed_pipe_ends_a_command_silently():
    # As in `labkit version | head -0`: the pipe is closed before anything is written.
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        VERSION, stdout=write_end, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    os.close(write_end)
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("progress missing", "labkit progress: there is no folder missing\n"),
        ("compare digit", "invalid task: 'digit' (choose from all, autoencoder, "),
        ("compare digitz", "Did you mean 'digits'?"),
        ("chek", "unknown command 'chek'. Did you mean 'check'?"),
        ("lab mine.ipynb", "there is no notebook mine.ipynb"),
        ("lab notes.txt", "expected a notebook (.ipynb) or a folder, got the file notes.txt"),
        ("grade /nonexistent", "there is no /nonexistent"),
        (f"grade {ROOT / 'notebooks'}", "expected --csv FILE"),
        ("grade . --csv g.csv --seconds 0", "--seconds: expected a number above 0, got 0.0"),
        ("grade . --csv g.csv --seconds nan", "--seconds: expected a number above 0, got nan"),
        ("grade . --csv g.csv --memory -1", "--memory: expected a number above 0, got -1"),
        ("grade . --csv g.csv --workers 0", "--workers: expected a number above 0, got 0"),
        ("grade . --csv g.csv --late 101", "--late: expected 0 to 100 percent, got 101"),
        ("grade . --csv g.csv --late 10", "--late is a deduction after the deadline"),
        ("grade . --csv g.csv --late-cap -1", "--late-cap: expected 0 to 100 percent, got -1"),
        ("grade . --csv g.csv --grace nan", "--grace: expected minutes from 0 on, got nan"),
        ("gpu --seconds nan", "expected a number of seconds above 0, got 'nan'"),
        ("gpu --seconds soon", "expected a number of seconds above 0, got 'soon'"),
        ("restore --folder missing", "there is no folder missing"),
        ("restore scaling.advance --write", "expected EXERCISE, whose answer is printed, or"),
        ("site --widgets w --serve", "--serve is for pages: expected a folder for them"),
        ("site --playground p.html --lessons 01", "--lessons is for pages: expected a folder"),
        ("site pages mine.ipynb --lessons 01", "expected notebooks or --lessons, got both"),
        ("site pages --pyodide folder", "--pyodide is for --live, which is missing"),
        ("vectors --out v.npz", "--out is a file for vectors: name their format"),
        ("vectors NVFP4 --check v.npz", "it takes neither a format nor --out"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_expected(
    words: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").touch()
    try:
        status = cli.main(words.split())
    except SystemExit as exit:
        # argparse refuses an argument.
        status = exit.code
    assert status == 2
    assert message in capsys.readouterr().err


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


# Commands that write a file, and commands that write into a folder.
TO_A_FILE = [
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
]
TO_A_FOLDER = [
    "compare digits --folder PLACE",
    "gpu --folder PLACE",
    "site --widgets PLACE",
    "grade . --feedback PLACE",
    "grade . --anonymous PLACE",
    "release PLACE",
    "classroom --folder PLACE",
]


@pytest.fixture
def _file_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder that has a file named file and a folder named folder."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()


@pytest.mark.usefixtures("_file_and_folder")
@pytest.mark.parametrize("words", TO_A_FILE)
def test_a_folder_in_place_of_a_file_is_refused(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(words.replace("PLACE", "folder"), capsys)
    assert message.endswith("expected a file to write, got the folder folder")


@pytest.mark.usefixtures("_file_and_folder")
@pytest.mark.parametrize("words", [*TO_A_FILE, *TO_A_FOLDER])
def test_a_path_below_a_file_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(words.replace("PLACE", "file/new"), capsys)
    assert message.endswith("expected a folder, got the file file")


@pytest.mark.usefixtures("_file_and_folder")
@pytest.mark.parametrize("words", TO_A_FOLDER)
def test_a_file_in_place_of_a_folder_is_refused(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(words.replace("PLACE", "file"), capsys)
    assert message.endswith("expected a folder, got the file file")


def test_restore_says_where_no_answer_is_saved(capsys, tmp_path: Path) -> None:
    for words in ([], ["--write"]):
        assert cli.main(["restore", "--folder", str(tmp_path), *words]) == 0
        assert capsys.readouterr().out == f"No answers are saved for the notebooks in {tmp_path}.\n"


@pytest.mark.parametrize(
    ("level", "remedy", "exit_status"),
    [(Status.OK, "", 0), (Status.WARN, "close one", 0), (Status.BAD, "close all", 1)],
)
def test_check_prints_the_report_and_fails_if_one_line_is_bad(
    level: Status,
    remedy: str,
    exit_status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finding = Finding("memory", level, "1.5 GiB available", remedy)
    monkeypatch.setattr("labkit.machine.check_machine", lambda: Report((finding,)))
    assert cli.main(["check"]) == exit_status
    out = capsys.readouterr().out
    assert finding.what in out
    assert remedy in out


def fail_to_import(name: str, _: Namespace) -> None:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_an_open_quote_is_refused_before_the_set_up(monkeypatch, capsys) -> None:
    def fail(*_: object, **__: object) -> int:
        pytest.fail("the checkout was set up")

    monkeypatch.setattr("labkit.commands.machine.set_up", fail)
    assert cli.main(["test", "--pytest=-k 'autocast"]) == 2
    assert "--pytest: expected arguments as in a shell" in capsys.readouterr().err


def test_missing_package_is_named_with_its_remedy(monkeypatch, capsys):
    monkeypatch.setattr("labkit.commands.machine.check", partial(fail_to_import, "torch"))
    assert cli.main(["check"]) == 2
    err = capsys.readouterr().err
    assert "needs the package torch" in err
    assert "make setup" in err


def test_a_missing_module_of_the_lab_itself_is_an_error(monkeypatch):
    monkeypatch.setattr("labkit.commands.machine.check", partial(fail_to_import, "labkit.gone"))
    with pytest.raises(ModuleNotFoundError, match=r"labkit\.gone"):
        cli.main(["check"])


@pytest.mark.skipif(
    os.name == "nt", reason="Windows cannot replace a process; JupyterLab is started there"
)
def test_lab_opens_the_notebook_in_jupyterlab(monkeypatch, tmp_path):
    notebook = tmp_path / "mine.ipynb"
    notebook.write_text("{}")
    calls = []
    monkeypatch.setattr(
        os, "execve", lambda path, words, variables: calls.append((words, variables))
    )
    # The replaced execve returns, so the command goes on to its way of starting a process.
    monkeypatch.setattr(subprocess, "call", lambda words, env: 0)
    cli.main(["lab", "--no-browser", "--port", "9999", str(notebook)])
    ((words, variables),) = calls
    assert variables == notebooks.lab_environment(os.environ)
    assert words[:3] == [sys.executable, "-m", "jupyterlab"]
    assert "--no-browser" in words
    assert "--ServerApp.port=9999" in words
    assert f"--ServerApp.root_dir={tmp_path}" in words
    assert "--LabApp.default_url=/lab/tree/mine.ipynb" in words


def test_the_lab_s_path_begins_with_the_folder_of_the_command() -> None:
    path = notebooks.lab_environment({"PATH": "others"})["PATH"].split(os.pathsep)
    assert shutil.which("labkit", path=path[0])
    assert path[-1] == "others"


def test_the_lab_s_path_has_no_empty_folder() -> None:
    # An empty folder in PATH is the current one.
    assert "" not in notebooks.lab_environment({})["PATH"].split(os.pathsep)


def test_a_checkout_opens_at_the_first_lesson() -> None:
    first = notebooks.notebook_to_open(None)
    flags = notebooks.lab_flags(first, is_root=False, browser=True, port=8888)
    assert flags == [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.port=8888",
        "--LabApp.default_url=/lab/tree/notebooks/00_start.ipynb",
        *(f"--ContentsManager.hide_globs={hidden}" for hidden in notebooks.HIDDEN),
    ]


def test_a_notebook_in_the_home_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "mine.ipynb").touch()
    assert notebooks.notebook_to_open(Path("~/mine.ipynb")) == (tmp_path / "mine.ipynb").resolve()


def test_folders_with_answers_are_hidden() -> None:
    assert "labkit_lessons" in notebooks.HIDDEN


@pytest.mark.parametrize(
    ("is_root", "platform", "environment", "opens"),
    [
        (False, "linux", {"DISPLAY": ":0"}, True),
        (False, "linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        (False, "darwin", {}, True),
        (False, "win32", {}, True),
        (True, "linux", {"DISPLAY": ":0"}, False),
        (False, "linux", {}, False),
        (False, "darwin", {"SSH_CONNECTION": "far away"}, False),
    ],
)
def test_a_browser_opens_only_on_a_screen_and_not_as_root(
    is_root: bool,
    platform: str,
    environment: dict[str, str],
    opens: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("webbrowser.get", lambda: None)
    assert notebooks.can_open_browser(is_root, platform, environment) is opens


def test_compare_names_a_record_of_another_fingerprint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    race = (
        f"compare small_targets --recipes FP32 O1 --seeds 0 --workers 1 --folder {tmp_path}".split()
    )
    assert cli.main(race) == 0
    assert "O1: one seed" in capsys.readouterr().out
    record = tmp_path / "small_targets" / "fp32-seed0.json"
    record.write_text(record.read_text().replace('"fingerprint": "', '"fingerprint": "x'))
    assert cli.main(race) == 1
    assert "delete the record" in capsys.readouterr().err


def folder_with_broken(package: str, folder: Path) -> Path:
    """Write a package that cannot be imported to a folder, and return the folder."""
    (folder / package).mkdir()
    error = "libcudart.so.12: cannot open shared object file"
    (folder / package / "__init__.py").write_text(f"raise ImportError({error!r})")
    return folder


def import_errors(names: Iterable[str]) -> dict[str, str]:
    """Return the packages that cannot be imported, with the error of each."""
    errors = {name: import_error(name) for name in names}
    return {name: error for name, error in errors.items() if error}


def test_an_installed_package_that_fails_to_import_is_bad(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(folder_with_broken("anywidget", tmp_path)))
    needed = {"anywidget": "0.9", "numpy": "2"}
    installed = {"fp16-lab": "1", "anywidget": "0.11", "numpy": "2.4"}
    findings = list(packages(needed, installed.get, import_errors))
    assert [(finding.name, finding.status) for finding in findings] == [
        ("labkit", Status.OK),
        ("anywidget", Status.BAD),
        ("numpy", Status.OK),
    ]
    assert "cannot be imported: ImportError: libcudart" in findings[1].what


def test_check_runs_with_a_torch_that_fails_to_import(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "labkit", "check"]
    without_torch = environment(folder_with_broken("torch", tmp_path))
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
        # A shell starts background jobs with SIGINT ignored, and a child inherits that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "metric" in line or " skipped " in line:
            break
    # As a terminal does: to all processes of the group.
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    assert any("seed 0  begins" in line for line in lines)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    reports = [line for line in [*lines, *out.splitlines()] if "interrupted: " in line]
    assert len(reports) == 1
    kept = int(reports[0].split("interrupted: ")[1].split(" of ")[0])
    records = len(list(tmp_path.rglob("*.json")))
    assert kept >= 1
    assert kept <= records
    assert records < 200


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
    assert "--own is after" not in output.err


@pytest.mark.parametrize("command", ["diagnose", "watch"])
def test_a_folder_in_place_of_a_script_is_named_as_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, str(tmp_path)]) == 2
    assert "expected a script, got the folder" in capsys.readouterr().err

"""What does the terminal answer? Well-asked questions get an answer, others a line that says what would do."""

import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from argparse import Namespace
from pathlib import Path

import pytest
import websocket

import labkit
from labkit import cli
from labkit.clinic import Finding, Report, Status
from labkit.commands import lab

ROOT = Path(__file__).parents[1]


def test_version_says_it_and_needs_no_torch():
    program = "import sys; from labkit.cli import main; main(['version']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith(f"labkit {labkit.__version__} ")
    assert second == "False"


def test_python_dash_m_is_the_same_command():
    command = [sys.executable, "-m", "labkit", "version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"labkit {labkit.__version__} ")


def test_an_old_python_is_answered_in_words(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    with pytest.raises(SystemExit, match=r"The lab needs Python 3\.11 or newer; this is "):
        runpy.run_module("labkit.__main__", run_name="__main__")


def test_without_a_command_it_lists_them(capsys):
    assert cli.main([]) == 2
    out = capsys.readouterr().out
    for name, row in cli.SUBCOMMANDS.items():
        assert name in out
        assert row.help in out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["html", "missing.ipynb"], "labkit html: there is no notebook missing.ipynb\n"),
        (["progress", "missing"], "labkit progress: there is no folder missing\n"),
    ],
)
def test_what_is_not_there_is_named(asked, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(asked) == 2
    assert capsys.readouterr().err == said


def test_a_task_that_there_is_not_is_told_those_that_there_are(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["race", "digit"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "there is no task 'digit'; there are all, autoencoder, " in err
    assert "[]" not in err


def test_a_mistyped_command_is_answered_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["docter"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "there is no command 'docter'. Did you mean 'doctor'?" in err


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (Finding("memory", Status.OK, "8.0 GiB available"), 0),
        (Finding("memory", Status.WARN, "1.5 GiB available", "close something"), 0),
        (Finding("memory", Status.BAD, "0.5 GiB available", "close something"), 1),
    ],
)
def test_doctor_prints_the_report_and_fails_when_something_is_red(monkeypatch, capsys, finding, status):
    monkeypatch.setattr("labkit.clinic.check_machine", lambda: Report((finding,)))
    assert cli.main(["doctor"]) == status
    out = capsys.readouterr().out
    assert finding.what in out
    assert finding.remedy in out


def test_a_missing_package_is_answered_with_how_to_get_it(monkeypatch, capsys):
    def needs_torch(_: Namespace) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("labkit.commands.doctor.run", needs_torch)
    assert cli.main(["doctor"]) == 2
    err = capsys.readouterr().err
    assert "needs the package torch" in err
    assert "make setup" in err


def test_a_missing_module_of_our_own_is_not_hidden(monkeypatch):
    def broken(_: Namespace) -> None:
        raise ModuleNotFoundError("No module named 'labkit.gone'", name="labkit.gone")

    monkeypatch.setattr("labkit.commands.doctor.run", broken)
    with pytest.raises(ModuleNotFoundError, match=r"labkit\.gone"):
        cli.main(["doctor"])


def test_lab_says_which_notebook_it_did_not_find(capsys, tmp_path):
    missing = tmp_path / "mine.ipynb"
    assert cli.main(["lab", str(missing)]) == 2
    assert str(missing) in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot replace a process; JupyterLab is started there")
def test_lab_becomes_jupyterlab_on_the_notebook(monkeypatch, tmp_path):
    notebook = tmp_path / "mine.ipynb"
    notebook.write_text("{}")
    started = []
    monkeypatch.setattr(os, "execve", lambda path, words, environment: started.append((words, environment)))
    monkeypatch.setattr(subprocess, "call", lambda words, env: 0)
    cli.main(["lab", "--no-browser", "--port", "9999", str(notebook)])
    ((words, environment),) = started
    assert shutil.which("labkit", path=environment["PATH"].split(os.pathsep)[0])
    assert words[:3] == [sys.executable, "-m", "jupyterlab"]
    assert {"--no-browser", "--ServerApp.port=9999", f"--ServerApp.root_dir={tmp_path}"} <= set(words)
    assert "--LabApp.default_url=/lab/tree/mine.ipynb" in words


def test_lab_shows_the_whole_checkout_for_a_lesson():
    flags = lab.lab_flags(lab.notebook_to_open(None), is_root=False, browser=True, port=8888)
    assert flags == [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.port=8888",
        "--LabApp.default_url=/lab/tree/notebooks/00_start.ipynb",
    ]


def test_what_the_lab_starts_finds_labkit_first_and_all_else_as_before():
    environment = lab.lab_environment({"PATH": "/usr/bin", "LANG": "C"})
    first, *others = environment["PATH"].split(os.pathsep)
    assert shutil.which("labkit", path=first)
    assert others[-1] == "/usr/bin"
    assert environment["LANG"] == "C"
    assert os.pathsep + os.pathsep not in lab.lab_environment({})["PATH"] + os.pathsep


@pytest.mark.skipif(os.name == "nt", reason="the shell and the PATH are those of Unix")
@pytest.mark.slow
def test_a_terminal_of_the_lab_knows_the_command_that_lessons_name(tmp_path):
    """A real server, started by the full path of its Python, with a PATH that has nothing of ours; a real terminal."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folders = ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    environment = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "JUPYTER_TOKEN": "secret", "PYTHONPATH": str(ROOT)}
    environment |= dict.fromkeys(folders, str(tmp_path))
    (tmp_path / "mine.ipynb").write_text("{}")
    command = [sys.executable, "-m", "labkit", "lab", "--no-browser", "--port", str(port), str(tmp_path / "mine.ipynb")]
    log = tmp_path / "log"
    with log.open("w") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as server:
        try:
            terminal = open_terminal(server, f"127.0.0.1:{port}", log)
            terminal.send(json.dumps(["stdin", "labkit version\r"]))
            said = ""
            while f"labkit {labkit.__version__} on Python" not in said and "not found" not in said:
                said += "".join(str(part) for part in json.loads(terminal.recv())[1:])
            assert "not found" not in said
            terminal.close()
        finally:
            server.terminate()


def open_terminal(server: subprocess.Popen, address: str, log: Path) -> websocket.WebSocket:
    """Ask the server for a terminal as soon as it answers, and connect to it."""
    asked = urllib.request.Request(f"http://{address}/api/terminals?token=secret", method="POST", data=b"")
    while server.poll() is None:
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                name = json.load(answer)["name"]
        except urllib.error.HTTPError as error:
            pytest.fail(f"{error}: {error.read()}\n{log.read_text()[-3000:]}")
        except OSError:
            time.sleep(0.2)  # nothing listens yet, and nothing else will say when it does
        else:
            return websocket.create_connection(f"ws://{address}/terminals/websocket/{name}?token=secret", timeout=60)
    pytest.fail(f"JupyterLab ended; its log:\n{log.read_text()[-3000:]}")


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
def test_a_browser_opens_only_where_there_is_a_screen(monkeypatch, is_root, platform, environment, opens):
    monkeypatch.setattr("webbrowser.get", lambda: None)
    assert lab.can_open_browser(is_root, platform, environment) is opens


def test_race_says_what_lies_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    race = f"race small_targets --recipes FP32 O1 --seeds 0 --workers 1 --folder {tmp_path}".split()
    assert cli.main(race) == 0
    said = capsys.readouterr().out
    assert "O1: one seed" in said
    record = tmp_path / "small_targets" / "fp32-seed0.json"
    record.write_text(record.read_text().replace('"fingerprint": "', '"fingerprint": "x'))
    assert cli.main(race) == 1
    assert "delete the record" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="a pipe that nobody reads is of Unix")
def test_a_reader_that_has_had_enough_is_no_error():
    """`labkit version | head -0`: the pipe is closed before a word is written."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "labkit", "version"]
    told = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    os.close(writes)
    assert (told.returncode, told.stderr) == (0, "")

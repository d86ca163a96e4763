"""The commands: what they print, and what they answer to a wrong path, a broken package, an interrupt, a second run."""

import json
import os
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
import websocket

import labkit
from labkit import cli
from labkit.commands import notebooks
from labkit.machine import Finding, Report, Status
from labkit.machine.check import packages
from labkit.records.system import import_error

ROOT = Path(__file__).parents[1]


def environment(*first: Path) -> dict[str, str]:
    """Return the environment of a command that finds packages in the first folders, then this checkout."""
    paths = os.pathsep.join(map(str, [*first, ROOT]))
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def test_python_dash_m_is_the_same_command_and_a_closed_pipe_is_no_error():
    command = [sys.executable, "-m", "labkit", "version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"labkit {labkit.__version__} ")
    if os.name == "nt":
        return
    reads, writes = os.pipe()  # `labkit version | head -0`: the pipe is closed before a word is written
    os.close(reads)
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_help_opens_with_what_the_command_does_and_an_example_that_it_takes(capsys) -> None:
    for name, row in cli.COMMANDS.items():
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        lines = capsys.readouterr().out.splitlines()
        assert lines[:3] == [f"{row.summary}.", "", "Examples:"]
        assert lines[3].startswith(f"  labkit {name}")
        for example in row.examples:
            cli.parser_of(name).parse_args(shlex.split(example)[2:])


def test_an_alias_is_the_command(capsys) -> None:
    assert cli.ALIASES == {"doctor": "check", "race": "compare"}
    for alias, name in cli.ALIASES.items():
        with pytest.raises(SystemExit):
            cli.main([alias, "--help"])
        assert f"usage: labkit {name}" in capsys.readouterr().out


def test_neither_the_version_nor_any_help_imports_torch() -> None:
    script = f"""
import contextlib, io, sys
from labkit.cli import main
for words in [["version"], *([name, "--help"] for name in {list(cli.COMMANDS)!r})]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(words)
    assert "torch" not in sys.modules, words
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_old_python_is_answered_in_words(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    with pytest.raises(SystemExit, match=r"The lab needs Python 3\.11 or newer; this is "):
        runpy.run_module("labkit.__main__", run_name="__main__")


def test_without_a_command_it_lists_them(capsys):
    assert cli.main([]) == 2
    out = capsys.readouterr().out
    for name, row in cli.COMMANDS.items():
        assert (f"  {name} " in out and row.summary in out) != row.deprecated, name


def test_what_does_not_exist_is_named_with_what_does(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answers = {
        "html missing.ipynb": "labkit html: there is no notebook missing.ipynb\n",
        "progress missing": "labkit progress: there is no folder missing\n",
        "compare digit": "invalid task: 'digit' (choose from all, autoencoder, ",
        "chek": "unknown command 'chek'. Did you mean 'check'?",
        "lab mine.ipynb": "mine.ipynb",
        "grade /nonexistent": "there is no /nonexistent",
        f"grade {ROOT / 'notebooks'}": "expected --csv FILE",
    }
    for words, answer in answers.items():
        try:
            status = cli.main(words.split())
        except SystemExit as ended:
            status = ended.code
        err = capsys.readouterr().err
        assert status == 2, words
        assert answer in err
        assert "[]" not in err


def test_check_prints_the_report_and_fails_when_something_is_red(monkeypatch, capsys):
    for finding, status in [
        (Finding("memory", Status.OK, "8.0 GiB available"), 0),
        (Finding("memory", Status.WARN, "1.5 GiB available", "close something"), 0),
        (Finding("memory", Status.BAD, "0.5 GiB available", "close something"), 1),
    ]:
        monkeypatch.setattr("labkit.machine.check_machine", lambda finding=finding: Report((finding,)))
        assert cli.main(["check"]) == status
        out = capsys.readouterr().out
        assert finding.what in out
        assert finding.remedy in out


def test_a_missing_package_is_answered_with_how_to_get_it_and_one_of_our_own_is_not_hidden(monkeypatch, capsys):
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
    flags = notebooks.lab_flags(notebooks.notebook_to_open(None), is_root=False, browser=True, port=8888)
    assert flags == [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.port=8888",
        "--LabApp.default_url=/lab/tree/notebooks/00_start.ipynb",
        *(f"--ContentsManager.hide_globs={hidden}" for hidden in notebooks.HIDDEN),
    ]
    assert "lessons" in notebooks.HIDDEN, "a lesson's folder holds its answers"


def test_what_the_lab_starts_finds_labkit_first_and_all_else_as_before():
    first, *others = notebooks.lab_environment({"PATH": "/usr/bin"})["PATH"].split(os.pathsep)
    assert shutil.which("labkit", path=first)
    assert others[-1] == "/usr/bin"
    assert "" not in notebooks.lab_environment({})["PATH"].split(os.pathsep)


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
        assert notebooks.can_open_browser(is_root, platform, environment) is opens, (is_root, platform, environment)


def test_compare_says_what_lies_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    race = f"compare small_targets --recipes FP32 O1 --seeds 0 --workers 1 --folder {tmp_path}".split()
    assert cli.main(race) == 0
    said = capsys.readouterr().out
    assert "O1: one seed" in said
    record = tmp_path / "small_targets" / "fp32-seed0.json"
    record.write_text(record.read_text().replace('"fingerprint": "', '"fingerprint": "x'))
    assert cli.main(race) == 1
    assert "delete the record" in capsys.readouterr().err


def broken(folder: Path, package: str) -> Path:
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    return folder


def test_check_says_that_torch_cannot_be_imported_and_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "labkit", "check"]
    done = subprocess.run(
        command, env=environment(broken(tmp_path, "torch")), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "torch cannot be imported: ImportError: libcudart.so.12" in done.stdout
    assert "make setup" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_package_is_ok_if_it_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(broken(tmp_path, "anywidget")))
    assert import_error("json") == ""
    assert "libcudart" in import_error("anywidget")
    needed, installed = {"anywidget": "0.9", "numpy": "2"}, {"fp16-lab": "1", "anywidget": "0.11", "numpy": "2.4"}
    found = list(packages(needed, installed.get, lambda names: {n: p for n in names if (p := import_error(n))}))
    assert [(finding.name, finding.status) for finding in found] == [
        ("labkit", Status.OK), ("anywidget", Status.BAD), ("numpy", Status.OK),
    ]  # fmt: skip
    assert "cannot be imported: ImportError: libcudart" in found[1].what


@pytest.mark.skipif(os.name == "nt", reason="an interrupt is sent otherwise on Windows")
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_compare_reports_what_begins_and_when_interrupted_what_is_kept(tmp_path: Path, workers: str) -> None:
    command = [sys.executable, "-m", "labkit", "compare", "digits", "--recipes", "FP32",
               "--seeds", *map(str, range(200)),
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


def test_a_second_watch_keeps_the_first_report_and_misplaced_options_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["watch", "--every", "1", "--folder", str(tmp_path / "seen"), str(tmp_path / "train.py")]
    assert cli.main(words) == 0
    first = (tmp_path / "seen" / "report.html").read_bytes()
    assert cli.main([*words, "--every=3", "--own"]) == 0
    output = capsys.readouterr()
    assert "arguments ['--every=3', '--own']" in output.out
    assert "--every=3 stands after" in output.err
    assert "--own stands" not in output.err
    assert (tmp_path / "seen" / "report.html").read_bytes() == first
    assert (tmp_path / "seen-2" / "report.html").is_file()

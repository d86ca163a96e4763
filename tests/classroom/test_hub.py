"""A class on one machine: the real JupyterHub with two browsers, from log-in to feedback.

The tests that start a hub are slow, and need root, JupyterHub and its proxy. LABKIT_HUB is the path
of the Python of an environment with these and the lab, which every user can read. Without it, these
tests are skipped.
"""

import asyncio
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from labkit.classroom.hub import (
    ENVIRONMENT,
    START,
    Classroom,
    describe_isolation,
    learners_named,
    remove_unused_groups,
    set_up,
)
from labkit.classroom.tables import read_table, write_table
from labkit.cli import main
from labkit.grading.sandbox.limits import create_control_group
from tests.grading.hand_ins import put
from tests.slowness import slowness

SOLUTION = """def my_smallest(exponent_bits, significand_bits):
    return 2.0 ** (2 - 2 ** (exponent_bits - 1) - significand_bits)
"""
PORT = 8921
ROOT = Path(__file__).parents[2]


def test_control_group_has_its_limits_in_both_versions(tmp_path: Path) -> None:
    top = tmp_path / "2"
    put(top / "cgroup.controllers", "cpu memory")
    for name, cores, cpu, handed in (
        ("ada", 0.5, "50000 100000", "+memory +cpu"),
        ("one", None, "", "+memory"),
    ):
        group = top / "labkit" / name
        assert create_control_group(f"labkit/{name}", 1 << 30, cores, top) == [
            group / "cgroup.procs"
        ]
        assert (group / "memory.max").read_text() == str(1 << 30)
        assert ((group / "cpu.max").read_text() if (group / "cpu.max").exists() else "") == cpu
        assert {(up / "cgroup.subtree_control").read_text() for up in (top, top / "labkit")} == {
            handed
        }
        assert not (group / "cgroup.subtree_control").exists(), "it may hold processes"
    entered = create_control_group("labkit/ada", 1 << 30, 2, tmp_path / "1")
    assert entered == [
        tmp_path / "1" / kind / "labkit" / "ada" / "cgroup.procs" for kind in ("memory", "cpu")
    ]
    assert (tmp_path / "1" / "cpu" / "labkit" / "ada" / "cpu.cfs_quota_us").read_text() == "200000"


def test_without_jupyterhub_the_command_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    if shutil.which("jupyterhub"):
        pytest.skip("JupyterHub is installed here")
    assert main(["classroom"]) == 2
    assert "needs the package jupyterhub" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes users")
def test_unreachable_folder_is_refused_before_users_are_made(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(PermissionError, match="learners cannot reach"):
        set_up(Classroom(str(closed / "room"), ("labkit-nobody-01",)))
    assert (
        subprocess.run(["id", "labkit-nobody-01"], capture_output=True, check=False).returncode != 0
    )


@pytest.fixture
def classroom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Classroom:
    """Set up a classroom without root."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    classroom = Classroom(str(tmp_path), learners_named(2), idle=600, guess_first=True)
    set_up(classroom)
    return classroom


@pytest.fixture
def configuration(classroom: Classroom, monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Return the configuration of the hub for the classroom.

    The classes of JupyterHub that hub_config extends are stand-ins, so that JupyterHub need not be
    installed.
    """
    names = {
        "": [],
        ".auth": ["Authenticator"],
        ".spawner": ["LocalProcessSpawner", "SimpleLocalProcessSpawner"],
    }
    for module, classes in names.items():
        stand_in = SimpleNamespace(**{name: type(name, (), {}) for name in classes})
        monkeypatch.setitem(sys.modules, f"jupyterhub{module}", stand_in)
    # hub_config is imported again, with the stand-ins; `setitem` restores the module at the end.
    monkeypatch.setitem(sys.modules, "labkit.classroom.hub_config", None)
    del sys.modules["labkit.classroom.hub_config"]
    at_exit: list[tuple[Any, ...]] = []
    monkeypatch.setattr("atexit.register", lambda *call: at_exit.append(call))
    c = MagicMock()
    importlib.import_module("labkit.classroom.hub_config").configure(c, classroom.folder)
    assert at_exit == [(remove_unused_groups, classroom)]
    return c


def test_without_root_no_isolation_is_claimed(classroom: Classroom) -> None:
    assert describe_isolation(classroom, []).startswith(
        "isolation of learners: none. They all run as your user"
    )


@pytest.mark.parametrize("limit", ["memory", "cores", "idle"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_is_not_positive_is_refused(limit: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{limit}: expected a number above 0"):
        Classroom("room", learners_named(2), **{limit: value})


def test_a_classroom_without_learners_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one learner"):
        Classroom("room", learners_named(0))


def test_the_hub_is_configured_for_the_classroom(configuration: MagicMock) -> None:
    c = configuration
    assert c.JupyterHub.spawner_class.__name__ == "SimpleLocalProcessSpawner"
    assert c.Authenticator.allowed_users == {"learner01", "learner02"}
    assert "--MappingKernelManager.cull_idle_timeout=600" in c.Spawner.args
    assert c.Spawner.environment["LABKIT_GUESS_FIRST"] == "1"


def test_passwords_are_saved_once(classroom: Classroom) -> None:
    path = Path(classroom.folder) / "hub" / "passwords.csv"
    os.utime(path, (0, 0))
    assert classroom.passwords() == classroom.passwords()
    assert path.stat().st_mtime == 0, "it is not written again"


def test_only_the_right_password_lets_in(
    classroom: Classroom, configuration: MagicMock, tmp_path: Path
) -> None:
    right = classroom.passwords()["learner01"]
    rows = [
        # A password that the teacher chose, which looks like a formula.
        {"learner": "learner02", "password": "=1+1"},
        {"learner": "learner01", "password": right},
    ]
    write_table(tmp_path / "hub" / "passwords.csv", ("learner", "password"), rows, guarded=True)
    authenticator = configuration.JupyterHub.authenticator_class()
    pairs = [("learner01", right), ("learner02", "=1+1"), ("learner01", "?"), ("ada", right)]
    names = [
        asyncio.run(authenticator.authenticate(None, {"username": name, "password": password}))
        for name, password in pairs
    ]
    assert names == ["learner01", "learner02", None, None]


class Hub:
    """`labkit classroom`, started as a teacher does."""

    def __init__(self, python: str, folder: Path) -> None:
        self.folder = folder
        self.python = python
        self.start()

    def start(self) -> None:
        """Start, and wait until the log-in page answers."""
        words = [
            "classroom",
            "--users",
            "2",
            "--folder",
            str(self.folder),
            "--lessons",
            "00",
            "--port",
            str(PORT),
        ]
        log = (self.folder.parent / "hub.log").open("ab")
        command = [self.python, "-m", "labkit", *words]
        home = {**os.environ, "HOME": str(self.folder.parent)}
        self.process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log, env=home)
        until = time.monotonic() + 180 * slowness()
        while not self.answers():
            assert self.process.poll() is None, self.log()[-3000:]
            assert time.monotonic() < until, self.log()[-3000:]
            # No event tells from outside that a port is open.
            time.sleep(0.5)

    def answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/hub/login", timeout=10)
        except (OSError, urllib.error.URLError):
            return False
        return True

    def log(self) -> str:
        return (self.folder.parent / "hub.log").read_text(errors="replace")

    def passwords(self) -> dict[str, str]:
        lines = read_table(self.folder / "hub" / "passwords.csv")
        return {line["learner"]: line["password"] for line in lines}

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60 * slowness())
        for name in self.passwords():
            subprocess.run(["pkill", "-KILL", "-u", name], check=False)


@pytest.fixture
def hub() -> Iterator[Hub]:
    python = os.environ.get("LABKIT_HUB")
    if not python or os.geteuid() != 0:
        pytest.skip(
            "no hub: LABKIT_HUB=/path/to/python with jupyterhub and the lab, as root, runs this "
            "test"
        )
    top = Path(tempfile.mkdtemp(prefix="labkit-classroom-"))
    top.chmod(0o755)
    started = Hub(python, top / "room")
    yield started
    started.end()
    for name in learners_named(2):
        subprocess.run(["userdel", name], check=False)
    shutil.rmtree(top, ignore_errors=True)


def log_in(browser: Any, name: str, password: str) -> Any:
    page = browser.new_context(viewport={"width": 1280, "height": 720}).new_page()
    page.set_default_timeout(300_000 * slowness())
    page.goto(f"http://127.0.0.1:{PORT}/")
    page.fill("#username_input", name)
    page.fill("#password_input", password)
    page.click("#login_submit", no_wait_after=True)
    return page


IDLE = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return context?.session?.kernel?.status === "idle";
}"""
RUN = """async (code) => {
  const { kernel } = jupyterapp.shell.currentWidget.sessionContext.session;
  const future = kernel.requestExecute({ code });
  let said = "";
  future.onIOPub = (message) => { said += message.content.text ?? message.content.evalue ?? ""; };
  await future.done;
  return said;
}"""
HAND_IN = """
import json, pathlib, shutil
path = pathlib.Path.home() / "fp16-lab" / "00_start.ipynb"
notebook = json.loads(path.read_text())
for cell in notebook["cells"]:
    if "exercise-start.smallest" in cell["metadata"].get("tags", ()):
        cell["source"] = ANSWER
path.write_text(json.dumps(notebook))
shutil.copy(path, pathlib.Path.home() / "hand-in")
"""
READ = """
import pathlib, os
for kind in ("homes", "hand-in", "feedback"):
    try: print(kind, os.listdir(pathlib.Path({top!r}) / kind / {other!r}))
    except PermissionError: print(kind, "closed")
try: pathlib.Path({top!r}, "lab", "labkit", "x").write_text(""); print("lab open")
except PermissionError: print("lab closed")
try: print(open(pathlib.Path({top!r}, "hub", "passwords.csv")).read())
except PermissionError: print("hub closed")
import labkit.grading; print(labkit.grading.__file__)
"""


@pytest.mark.slow
@pytest.mark.timeout(1500 * slowness())
def test_two_learners_work_at_once_on_the_hub(hub: Hub, browser: Any) -> None:
    answers = {"learner01": SOLUTION, "learner02": SOLUTION.replace("(2 - ", "(3 - ")}
    pages = {name: log_in(browser, name, password) for name, password in hub.passwords().items()}
    for name, page in pages.items():
        page.wait_for_function(IDLE)
        other = next(each for each in pages if each != name)
        printed = page.evaluate(RUN, READ.format(top=str(hub.folder), other=other)).splitlines()
        assert printed[:5] == [
            "homes closed",
            "hand-in closed",
            "feedback closed",
            "lab closed",
            "hub closed",
        ]
        assert Path(printed[5]).is_relative_to(hub.folder / "lab"), "the lab without solutions"
        assert page.evaluate(RUN, f"ANSWER = {answers[name]!r}\n{HAND_IN}") == ""
    marked = ["grade", str(hub.folder / "hand-in"), "--csv", str(hub.folder / "hub" / "grades.csv")]
    assert main([*marked, "--feedback", str(hub.folder / "feedback")]) == 0
    for name, points in (("learner01", "2 of 2"), ("learner02", "0 of 2")):
        code = "print(open(pathlib.Path.home() / 'feedback' / 'feedback.html').read())"
        printed = pages[name].evaluate(RUN, f"import pathlib\n{code}")
        assert f"Feedback for {name}" in printed
        assert f"{points} points" in printed
    os.kill(hub.process.pid, signal.SIGKILL)
    hub.process.wait()
    assert pages["learner01"].evaluate(RUN, "print(len(ANSWER))").strip() == str(len(SOLUTION)), (
        "kernels go on"
    )
    hub.start()
    pages["learner01"].reload()
    pages["learner01"].wait_for_function(IDLE)
    assert pages["learner01"].evaluate(RUN, "print(len(ANSWER))").strip() == str(len(SOLUTION)), (
        "the same kernel"
    )


STANDS = """() => document.querySelectorAll(".labkit > .lk-saved").length > 0 &&
  !document.querySelector(".jp-Notebook").innerText.includes("not saved with the notebook")"""
CHANGE_AND_SAVE = """async () => {
  const { content, context, model } = jupyterapp.shell.currentWidget;
  content.widgets[0].model.sharedModel.setSource("# Another title");
  await context.save();
  const saved = await jupyterapp.serviceManager.contents.get(context.path);
  const { widgets } = saved.content.metadata;
  const { state } = widgets["application/vnd.jupyter.widget-state+json"];
  return Object.keys(state).length;
}"""


@pytest.mark.slow
@pytest.mark.timeout(1500 * slowness())
def test_learners_widgets_survive_each_day_with_a_new_server(hub: Hub, browser: Any) -> None:
    page = log_in(browser, "learner01", hub.passwords()["learner01"])
    page.wait_for_function(IDLE)
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_selector(".labkit-number-line, .labkit-underflow, .labkit-bits")
    page.wait_for_function(IDLE)
    states = page.evaluate(CHANGE_AND_SAVE)
    assert states > 2
    for _ in range(2):
        page.goto(f"http://127.0.0.1:{PORT}/hub/home")
        page.click("#stop")
        page.wait_for_selector("#stop", state="hidden")
        page.goto(f"http://127.0.0.1:{PORT}/hub/spawn/learner01")
        page.wait_for_function(IDLE)
        page.wait_for_function(STANDS)
        assert page.evaluate(CHANGE_AND_SAVE) == states


# --- JupyterHub's chart ---

# The keys that we give, of the chart's own schema; it refuses a key that it does not know. Restated
# from jupyterhub/values.schema.yaml of zero-to-jupyterhub-k8s (BSD-3-Clause), commit 02dd73d.
KNOWN = {
    "hub": {"config": dict},
    "singleuser": {
        "image": {"name": str, "tag": str},
        "uid": int,
        "fsGid": int,
        "defaultUrl": str,
        "startTimeout": int,
        "extraEnv": dict,
        "extraFiles": dict,
        "cmd": list,
        "memory": {"limit": str, "guarantee": str},
        "cpu": {"limit": float, "guarantee": float},
        "storage": {"type": str, "homeMountPath": str, "capacity": str},
    },
    "cull": {"enabled": bool, "timeout": int, "every": int},
}


def unknown(values: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    """Yield the keys that the chart does not know, or whose values have another type."""
    for key, value in values.items():
        if isinstance(known.get(key), dict):
            yield from unknown(value, known[key])
        elif key not in known or not isinstance(
            value, (known[key], int if known[key] is float else known[key])
        ):
            yield key


def test_chart_gives_what_the_hub_on_one_machine_gives() -> None:
    yaml = pytest.importorskip("yaml")
    values = yaml.safe_load((ROOT / "docker" / "hub" / "values.yaml").read_text(encoding="utf-8"))
    learner = values["singleuser"]
    assert list(unknown(values, KNOWN)) == []
    assert learner["storage"]["type"] in ("dynamic", "static", "none")
    files = learner.get("extraFiles", {}).values()
    assert all(
        {"mountPath"} <= file.keys() <= {"mountPath", "data", "stringData"} for file in files
    )
    assert learner["cmd"] == ["python", "-c", START.lstrip("\n")]
    assert learner["extraEnv"] == {**ENVIRONMENT, "HOME": learner["storage"]["homeMountPath"]}
    assert all(isinstance(value, str) for value in learner["extraEnv"].values()), (
        "Kubernetes takes texts only"
    )
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert {"ARG LAB=.", f"ARG NB_UID={learner['uid']}"} <= set(image)
    assert any("pip wheel" in line and "${LAB}" in line for line in image), (
        "the wheel that a release writes"
    )

"""Does a class share one machine? The real JupyterHub, two browsers at once, from log-in to feedback.

What starts a hub is slow and needs root, JupyterHub and its proxy. LABKIT_HUB names the python of an environment that
has them and the lab, in a place that every user can read; without it that test is skipped, loudly.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from labkit.classroom.hub import Classroom, learners_named, set_up
from labkit.classroom.tables import read_table
from labkit.cli import main
from labkit.records.linux import create_control_group
from tests.grading.hand_ins import put
from tests.slowness import slowness

SOLUTION = """def my_smallest(exponent_bits, significand_bits):
    return 2.0 ** (2 - 2 ** (exponent_bits - 1) - significand_bits)
"""
PORT = 8921


def test_a_control_group_has_its_limits_in_both_versions_and_only_parents_hand_controllers_down(tmp_path: Path) -> None:
    top = tmp_path / "2"
    put(top / "cgroup.controllers", "cpu memory")
    for name, cores, cpu, handed in (("ada", 0.5, "50000 100000", "+memory +cpu"), ("one", None, "", "+memory")):
        group = top / "labkit" / name
        assert create_control_group(f"labkit/{name}", 1 << 30, cores, top) == [group / "cgroup.procs"]
        assert (group / "memory.max").read_text() == str(1 << 30)
        assert ((group / "cpu.max").read_text() if (group / "cpu.max").exists() else "") == cpu
        assert {(up / "cgroup.subtree_control").read_text() for up in (top, top / "labkit")} == {handed}
        assert not (group / "cgroup.subtree_control").exists(), "it may hold processes"
    entered = create_control_group("labkit/ada", 1 << 30, 2, tmp_path / "1")
    assert entered == [tmp_path / "1" / kind / "labkit" / "ada" / "cgroup.procs" for kind in ("memory", "cpu")]
    assert (tmp_path / "1" / "cpu" / "labkit" / "ada" / "cpu.cfs_quota_us").read_text() == "200000"


def test_without_jupyterhub_the_command_says_how_to_install_it(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("jupyterhub"):
        pytest.skip("JupyterHub is installed here")
    assert main(["classroom"]) == 2
    assert "needs the package jupyterhub" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes users")
def test_a_folder_that_learners_cannot_reach_is_refused_before_a_user_is_made(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(PermissionError, match="learners cannot reach"):
        set_up(Classroom(str(closed / "room"), ("labkit-nobody-01",)))
    assert subprocess.run(["id", "labkit-nobody-01"], capture_output=True, check=False).returncode != 0


class Hub:
    """`labkit classroom`, started as a teacher does."""

    def __init__(self, python: str, folder: Path, *more: str, user: str = "") -> None:
        self.folder, self.python, self.more = folder, python, more
        self.as_user = ["runuser", "-u", user, "--"] if user else []
        self.start()

    def start(self) -> None:
        """Start, and wait until the log-in page answers."""
        words = ["classroom", "--users", "2", "--folder", str(self.folder), "--lessons", "00", "--port", str(PORT)]
        words += self.more
        log = (self.folder.parent / "hub.log").open("ab")
        command = [*self.as_user, self.python, "-m", "labkit", *words]
        home = {**os.environ, "HOME": str(self.folder.parent)}
        self.process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log, env=home)
        until = time.monotonic() + 180 * slowness()
        while not self.answers():
            assert self.process.poll() is None, self.log()[-3000:]
            assert time.monotonic() < until, self.log()[-3000:]
            time.sleep(0.5)  # no event tells from outside that a port is open

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
        pytest.skip("no hub: LABKIT_HUB=/path/to/python with jupyterhub and the lab, as root, runs this test")
    top = Path(tempfile.mkdtemp(prefix="labkit-classroom-"))
    top.chmod(0o755)
    started = Hub(python, top / "room")
    yield started
    started.end()
    for name in learners_named(2):
        subprocess.run(["userdel", name], check=False)
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def trial() -> Iterator[Hub]:
    """A hub of a user who is not root, in which a kernel may rest for two seconds."""
    psutil = pytest.importorskip("psutil")
    python = os.environ.get("LABKIT_HUB")
    if not python:
        pytest.skip("no hub: LABKIT_HUB=/path/to/python with jupyterhub and the lab runs this test")
    top = Path(tempfile.mkdtemp(prefix="labkit-classroom-"))
    is_root = os.geteuid() == 0
    if is_root:
        shutil.chown(top, "nobody")
    started = Hub(python, top / "room", "--idle", "2", user="nobody" if is_root else "")
    yield started
    for process in psutil.Process(started.process.pid).children(recursive=True):
        process.kill()
    started.process.wait(60 * slowness())
    shutil.rmtree(top, ignore_errors=True)


class Visitor:
    """A learner's browser, without a window: pages by their path, with cookies."""

    def __init__(self) -> None:
        self.cookies = CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def ask(self, path: str, data: bytes | None = None, under: str = "/hub/") -> bytes:
        """Return what a path answers; `under` is whose token stands for us."""
        tokens = [cookie.value or "" for cookie in self.cookies if (cookie.name, cookie.path) == ("_xsrf", under)]
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"X-XSRFToken": "".join(tokens)})
        with self.opener.open(request, timeout=60 * slowness()) as answer:
            return bytes(answer.read())

    def log_in(self, name: str, password: str) -> None:
        """Log in, and wait until the learner's server is there."""
        self.ask("/hub/login")
        token = next(cookie.value for cookie in self.cookies if cookie.name == "_xsrf")
        form = {"username": name, "password": password, "_xsrf": token}
        self.ask("/hub/login?next=%2Fhub%2Fspawn", urllib.parse.urlencode(form).encode())
        while b"started" not in self.status(name):
            time.sleep(0.5)  # the hub tells nobody from outside

    def status(self, name: str) -> bytes:
        try:
            self.ask(f"/user/{name}/files/fp16-lab/00_start.ipynb")  # logs in at the server, too
            return self.ask(f"/user/{name}/api/status")
        except (OSError, urllib.error.HTTPError):
            return b""


@pytest.mark.slow
@pytest.mark.timeout(900 * slowness())
def test_without_root_the_missing_sandbox_is_reported_and_an_idle_kernel_ends(trial: Hub) -> None:
    assert "isolation of learners: none. They all run as your user, since this is not root" in trial.log()
    visitor = Visitor()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        Visitor().log_in("learner01", "a guess")
    visitor.log_in("learner01", trial.passwords()["learner01"])
    home, place = trial.folder / "homes" / "learner01", "/user/learner01/"
    assert (home / "fp16-lab" / "00_start.ipynb").is_file()
    assert "malloc_trim" in (home / ".ipython" / "profile_default" / "startup" / "labkit-memory.py").read_text()
    (kernel,) = [json.loads(visitor.ask(f"{place}api/kernels", b"{}", under=place))]
    while kernel["id"] in visitor.ask(f"{place}api/kernels").decode():
        time.sleep(0.5)  # no event tells it either
    assert json.loads(visitor.ask(f"{place}api/kernels")) == []
    assert (home / "fp16-lab" / "00_start.ipynb").is_file()


def log_in(browser: Any, name: str, password: str) -> Any:
    page = browser.new_context(viewport={"width": 1280, "height": 720}).new_page()
    page.set_default_timeout(300_000 * slowness())
    page.goto(f"http://127.0.0.1:{PORT}/")
    page.fill("#username_input", name)
    page.fill("#password_input", password)
    page.click("#login_submit", no_wait_after=True)
    return page


IDLE = """() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === "idle" """
RUN = """async (code) => {
  const future = jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({ code });
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
def test_two_learners_work_at_once_from_log_in_to_feedback_and_neither_reads_the_others_files(
    hub: Hub, browser: Any
) -> None:
    answers = {"learner01": SOLUTION, "learner02": SOLUTION.replace("(2 - ", "(3 - ")}
    pages = {name: log_in(browser, name, password) for name, password in hub.passwords().items()}
    for name, page in pages.items():
        page.wait_for_function(IDLE)
        other = next(each for each in pages if each != name)
        said = page.evaluate(RUN, READ.format(top=str(hub.folder), other=other)).splitlines()
        assert said[:5] == ["homes closed", "hand-in closed", "feedback closed", "lab closed", "hub closed"]
        assert Path(said[5]).is_relative_to(hub.folder / "lab"), "the lab without solutions"
        assert page.evaluate(RUN, f"ANSWER = {answers[name]!r}\n{HAND_IN}") == ""
    marked = ["grade", str(hub.folder / "hand-in"), "--csv", str(hub.folder / "hub" / "grades.csv")]
    assert main([*marked, "--feedback", str(hub.folder / "feedback")]) == 0
    for name, points in (("learner01", "2 of 2"), ("learner02", "0 of 2")):
        code = "print(open(pathlib.Path.home() / 'feedback' / 'feedback.html').read())"
        told = pages[name].evaluate(RUN, f"import pathlib\n{code}")
        assert f"Feedback for {name}" in told
        assert f"{points} points" in told
    os.kill(hub.process.pid, signal.SIGKILL)
    hub.process.wait()
    assert pages["learner01"].evaluate(RUN, "print(len(ANSWER))").strip() == str(len(SOLUTION)), "kernels go on"
    hub.start()
    pages["learner01"].reload()
    pages["learner01"].wait_for_function(IDLE)
    assert pages["learner01"].evaluate(RUN, "print(len(ANSWER))").strip() == str(len(SOLUTION)), "the same kernel"

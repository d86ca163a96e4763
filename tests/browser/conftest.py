"""Fixtures for tests in a real JupyterLab and a real Chromium.

Tests with the fixture `lab` share a server, on a free port, with its own settings and folder. `lab`
has this server and the browser of a module. `lab.notebook(cells)` opens a notebook and waits until
its kernel is idle. The `Notebook` has the page with its widgets, and `python("expression")`
evaluates an expression in the kernel without the browser.
"""

import ast
import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import jupyter_client
import nbformat
import pytest

from labkit.machine.jupyter import with_lab_settings

ROOT = Path(__file__).parents[2]
# Numbers of the notebooks that a test does not name.
NUMBERS = itertools.count()
SERVER_OPTIONS = {
    "ServerApp.open_browser": False,
    "ServerApp.allow_root": True,
    "ServerApp.port_retries": 0,
    # Tests run commands by `jupyterapp` in the page, without menus.
    "LabApp.expose_app_in_browser": True,
    "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
}
SETTINGS = {
    # Every cell is in the page, also outside the visible part.
    "notebook-extension/tracker": {"windowingMode": "none"},
}
# The time limit for what a page shall show: long, since a busy machine is slow and the limit only
# ends what hangs.
PATIENCE_MS = 90_000
# Whether the kernel of the open notebook is ready and idle.
IDLE = """() => {
  const panel = jupyterapp.shell.currentWidget;
  const session = panel && panel.sessionContext;
  return session && session.isReady && session.session?.kernel?.status === "idle";
}"""
# Whether the kernel has handled all messages that widgets of the page have sent. A widget sends its
# next message only after that.
ANSWERED = """() => {
  const { kernel } = jupyterapp.shell.currentWidget.sessionContext.session;
  const futures = [...kernel._futures.values()];
  return futures.every((future) => future.msg.header.msg_type !== "comm_msg");
}"""
NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# anywidget reports this if a model takes more than 2 s, as it may on a busy machine.
SLOW_MODEL = "[anywidget] Failed to initialize model."
COUNT_PIXELS = """([canvas, name, left, right, below, tolerance]) => {
  // Pixels near a colour of the theme, in a part of the canvas (shares of its width and height).
  const colour = getComputedStyle(canvas.closest(".labkit")).getPropertyValue(name).trim();
  const [r, g, b] = colour.match(/\\w\\w/g).map((x) => parseInt(x, 16));
  const [x, end] = [left, right].map((share) => Math.round(share * canvas.width));
  const { data } = canvas.getContext("2d").getImageData(x, 0, end - x, canvas.height * below);
  const near = (i) => {
    const distance =
      Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b);
    return distance < tolerance;
  };
  let count = 0;
  for (let i = 0; i < data.length; i += 4) count += data[i + 3] > 200 && near(i);
  return count;
}"""
# Whether every cell with code has run.
ALL_RUN = """() => {
  const cells = jupyterapp.shell.currentWidget.content.widgets.map((cell) => cell.model);
  const code = cells.filter(
    (model) => model.type === "code" && model.sharedModel.getSource().trim(),
  );
  return code.every((model) => model.executionCount && model.executionState !== "running");
}"""


@dataclass
class Notebook:
    """An open notebook.

    Attributes:
        page: The page in the browser.
        kernel_id: The id of its kernel.
        kernel: A client of the kernel beside that of the page.
        errors: The messages of the errors that scripts of the page have thrown.
    """

    page: object
    kernel_id: str
    kernel: jupyter_client.BlockingKernelClient
    errors: list[str] = field(default_factory=list)

    def run_all(self, timeout_s: float = PATIENCE_MS / 1000) -> None:
        """Run every cell and wait until all have run and the kernel is idle."""
        self.page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
        self.page.wait_for_function(ALL_RUN, timeout=1000 * timeout_s)
        self.page.wait_for_function(IDLE, timeout=1000 * timeout_s)

    def python(self, expression: str, timeout_s: float = 20) -> object:
        """Return the value of a Python expression in the kernel.

        The value must have a literal as its repr.
        """
        reply = self.kernel.execute_interactive(
            "",
            user_expressions={"answer": expression},
            timeout=timeout_s,
            output_hook=lambda _message: None,
        )
        answer = reply["content"]["user_expressions"]["answer"]
        assert answer["status"] == "ok", answer
        return ast.literal_eval(answer["data"]["text/plain"])

    def until(self, expression: str, timeout_s: float = PATIENCE_MS / 1000) -> None:
        """Wait until a Python expression is true in the kernel."""
        end = time.monotonic() + timeout_s
        while not self.python(f"bool({expression})"):
            assert time.monotonic() < end, f"still not true after {timeout_s} s: {expression}"

    def settle(self) -> None:
        """Wait until the kernel has handled all messages of the page.

        A late message could otherwise undo what a test sets.
        """
        self.page.evaluate(NEXT_FRAME)
        self.page.wait_for_function(ANSWERED, polling="raf")

    def widget(self, kind: str) -> object:
        """Return the locator of the first widget of a kind, such as "number-line"."""
        return self.page.locator(f".labkit-{kind}").first

    def sentence(self, kind: str) -> str:
        """Return the sentence that a widget shows."""
        return self.widget(kind).locator(".lk-sentence").first.get_attribute("data-text")

    def until_said(self, kind: str, words: str) -> None:
        """Wait until the sentence of a widget has these words."""
        self.page.wait_for_selector(f".labkit-{kind} .lk-sentence[data-text*='{words}']")

    def until_data(self, kind: str, condition: str) -> None:
        """Wait until a JavaScript expression is true of `d`, the data of a widget's root."""
        data = f"document.querySelector('.labkit-{kind}')?.dataset ?? {{}}"
        self.page.wait_for_function(f"() => {{ const d = {data}; return {condition}; }}")

    def pixels(
        self,
        kind: str,
        colour: str,
        left: float = 0,
        right: float = 1,
        below: float = 1,
        *,
        canvas: int = 0,
        tolerance: int = 24,
    ) -> int:
        """Count the pixels near a colour of the theme in a part of a widget's canvas.

        Args:
            kind: The kind of the widget.
            colour: The name of the colour, a CSS variable without its prefix --lk-.
            left: The left edge of the part, as a share of the canvas's width.
            right: The right edge of the part, as a share of the canvas's width.
            below: The lower edge of the part, as a share of the canvas's height.
            canvas: The index of the canvas in the widget.
            tolerance: The largest distance to the colour, the sum over red, green and blue.
        """
        self.page.evaluate(NEXT_FRAME)
        element = self.widget(kind).locator("canvas").nth(canvas).element_handle()
        return self.page.evaluate(
            COUNT_PIXELS, [element, f"--lk-{colour}", left, right, below, tolerance]
        )

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def theme(self, name: str) -> None:
        """Switch to "JupyterLab Light" or "JupyterLab Dark" and wait until the page shows it."""
        self.page.evaluate(
            "name => jupyterapp.commands.execute('apputils:change-theme', {theme: name})", name
        )
        self.page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=name)
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def cells(self) -> int:
        """Return the number of cells."""
        return self.page.evaluate("jupyterapp.shell.currentWidget.content.widgets.length")


@dataclass(frozen=True)
class Server:
    """A running JupyterLab: its address, its token, and its folders of notebooks and kernels."""

    address: str
    token: str
    folder: Path
    runtime: Path


@dataclass
class Lab:
    """A running JupyterLab and a browser."""

    server: Server
    browser: object
    opened: list[Notebook] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.server.folder

    def notebook(
        self, cells: list[str], *, name: str | None = None, width: int = 1280, height: int = 1000
    ) -> Notebook:
        """Write a notebook of cells, or of their code, open it, and wait for its kernel."""
        name = name or f"test-{next(NUMBERS)}"
        cells = [
            nbformat.v4.new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells
        ]
        document = nbformat.v4.new_notebook(cells=cells)
        document.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        return self.open(document, name, width=width, height=height)

    def open(
        self, document: nbformat.NotebookNode, name: str, *, width: int = 1280, height: int = 1000
    ) -> Notebook:
        """Open a notebook that exists as a document, and wait for its kernel."""
        nbformat.write(document, self.folder / f"{name}.ipynb")
        return self.visit(name, width=width, height=height)

    def visit(self, name: str, *, width: int = 1280, height: int = 1000) -> Notebook:
        """Open a notebook of the folder as it was saved, and wait for its kernel."""
        page = self.browser.new_context(viewport={"width": width, "height": height}).new_page()
        page.set_default_timeout(PATIENCE_MS)
        errors: list[str] = []

        def note_error(error: object) -> None:
            if SLOW_MODEL not in str(error):
                errors.append(str(error))

        page.on("pageerror", note_error)
        page.goto(f"{self.server.address}/doc/tree/{name}.ipynb?token={self.server.token}&reset")
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext")
        page.wait_for_function(IDLE)
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        kernel_id = page.evaluate("jupyterapp.shell.currentWidget.sessionContext.session.kernel.id")
        connection = self.server.runtime / f"kernel-{kernel_id}.json"
        client = jupyter_client.BlockingKernelClient(connection_file=str(connection))
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        notebook = Notebook(page, kernel_id, client, errors)
        self.opened.append(notebook)
        # The server keeps the theme that an earlier test has chosen.
        if page.evaluate("document.body.dataset.jpThemeName") != "JupyterLab Light":
            notebook.theme("JupyterLab Light")
        return notebook

    @contextmanager
    def shown(
        self, cells: list[str], *selectors: str, name: str | None = None, **page: float
    ) -> Iterator[Notebook]:
        """Open a notebook, run it, and close it after the block, if that does not raise.

        After an error the page and the kernel stay until the end of the tests, so that the error
        of the block is the one that is reported.

        Args:
            cells: The sources of its code cells, or cells.
            *selectors: Selectors of elements that the page must show before the block begins.
            name: The name of its file.
            **page: The width and the height of the page, in CSS pixels.
        """
        notebook = self.notebook(cells, name=name, **page)
        notebook.run_all()
        for selector in selectors:
            notebook.page.wait_for_selector(selector)
        yield notebook
        self.close(notebook)

    def close(self, notebook: Notebook) -> None:
        """Require that the page has thrown no error, and end the page and its kernel."""
        assert notebook.errors == []
        notebook.page.context.close()
        notebook.kernel.stop_channels()
        address = (
            f"{self.server.address}/api/kernels/{notebook.kernel_id}?token={self.server.token}"
        )
        urllib.request.urlopen(urllib.request.Request(address, method="DELETE"), timeout=20).close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("jupyter")) as running:
        yield running


@pytest.fixture(scope="module")
def lab(server: Server, browser: object) -> Iterator[Lab]:
    lab = Lab(server, browser)
    yield lab
    for notebook in lab.opened:
        notebook.kernel.stop_channels()


@contextmanager
def serving(home: Path, autosave: bool = False) -> Iterator[Server]:
    """Run a JupyterLab while the block runs.

    Args:
        home: The folder of its settings, its configuration and its notebooks.
        autosave: Whether a changed notebook is saved by itself after a second.
    """
    folder = home / "notebooks"
    runtime = home / "runtime"
    folder.mkdir(exist_ok=True)
    saving = {"docmanager-extension/plugin": {"autosave": autosave, "autosaveInterval": 1}}
    for plugin, values in {**SETTINGS, **saving}.items():
        file = home / "lab" / "user-settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    token = secrets.token_hex(16)
    port = free_port()
    options = {
        **SERVER_OPTIONS,
        "ServerApp.root_dir": folder,
        "IdentityProvider.token": token,
        "ServerApp.port": port,
    }
    environment = {
        **with_lab_settings(os.environ),
        "JUPYTER_CONFIG_DIR": str(home),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "lab" / "user-settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "lab" / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    log = home / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=folder
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_answers(server, f"{address}/api/status?token={token}", log)
        yield Server(address, token, folder, runtime)
    finally:
        server.terminate()
        server.wait(timeout=20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_it_answers(
    server: subprocess.Popen[bytes], address: str, log: Path, timeout_s: float = 60
) -> None:
    """Wait for the server's first answer.

    The test fails with the server's log if the server ends or does not answer in time.
    """
    end = time.monotonic() + timeout_s
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            # The server does not listen yet.
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start; its log:\n{log.read_text()[-3000:]}", pytrace=False)

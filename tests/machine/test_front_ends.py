"""Findings about front ends of widgets: missing, damaged, disabled, or of another server."""

import json
import re
from pathlib import Path

import pytest

from labkit.machine import Status, front_end
from tests.machine.test_check import require


def extension(folder: Path, name: str, version: str) -> None:
    """Install a front end of JupyterLab into a folder of extensions."""
    (folder / name).mkdir(parents=True)
    (folder / name / "package.json").write_text(json.dumps({"name": name, "version": version}))


def test_a_missing_front_end_is_named(tmp_path):
    extension(tmp_path, "anywidget", "0.11.0")
    finding = front_end.front_end([tmp_path])
    require(finding, Status.BAD, "jupyterlab_widgets")
    assert "anywidget" not in finding.remedy


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_front_end_counts_as_missing(tmp_path, text):
    for name in front_end.EXTENSIONS:
        extension(tmp_path, name, "1.0")
    (tmp_path / "anywidget" / "package.json").write_text(text)
    require(front_end.front_end([tmp_path]), Status.BAD, "no front end for anywidget")


def test_front_ends_may_be_in_several_folders(tmp_path):
    extension(tmp_path / "environment", "anywidget", "0.11.0")
    extension(tmp_path / "user", "@jupyter-widgets/jupyterlab-manager", "5.0.16")
    finding = front_end.front_end([tmp_path / "environment", tmp_path / "user"])
    require(finding, Status.OK, "anywidget 0.11.0", "jupyterlab-manager 5.0.16")


def test_a_host_with_a_manager_of_its_own_needs_no_front_end(tmp_path):
    host = front_end.host({"COLAB_RELEASE_TAG": "x"})
    assert front_end.front_end([tmp_path], hosted=host).what.startswith("Colab shows")


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        (b"/somewhere/lab/bin/python3\0-m\0jupyterlab", Path("/somewhere/lab")),
        (b"/srv/hub/bin/python3.12\0-m\0jupyterlab\0", Path("/srv/hub")),
        (b"/python3\0-m\0jupyterlab", None),
        (b"python3\0-m\0jupyterlab", None),
        (b"jupyter-lab\0", None),
    ],
)
def test_the_prefix_of_a_server_is_that_of_its_python(monkeypatch, tmp_path, command, prefix):
    """A Python without a folder `bin` above it has no known prefix."""
    monkeypatch.setenv("JPY_PARENT_PID", "7")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(command)
    assert front_end.server_prefix(tmp_path) == prefix


def test_without_a_server_there_is_no_prefix(monkeypatch, tmp_path):
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert front_end.server_prefix(tmp_path) is None


@pytest.fixture
def page_config(tmp_path, monkeypatch):
    """The file in which JupyterLab notes disabled extensions; both front ends are installed."""
    for name in front_end.EXTENSIONS:
        extension(tmp_path / "extensions", name, "1.0")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    page = tmp_path / "config" / "labconfig" / "page_config.json"
    page.parent.mkdir(parents=True)
    return page


@pytest.mark.parametrize(
    "text",
    [
        '{"disabledExtensions": {"anywidget": false}}',
        '{"disabledExtensions": ["anywidget"]}',
        "{",
    ],
    ids=["enabled", "a list", "not JSON"],
)
def test_a_front_end_that_is_not_disabled_counts_as_enabled(page_config, tmp_path, text):
    page_config.write_text(text)
    assert front_end.front_end([tmp_path / "extensions"]).status is Status.OK


def test_a_disabled_front_end_is_named_with_its_remedy(page_config, tmp_path):
    """`jupyter labextension disable anywidget` leaves the extension's files where they are."""
    page_config.write_text('{"disabledExtensions": {"anywidget": true}}')
    remedy = "`jupyter labextension enable anywidget`, then restart JupyterLab"
    require(front_end.front_end([tmp_path / "extensions"]), Status.BAD, remedy)


@pytest.fixture
def kernel_extensions(tmp_path, monkeypatch):
    """The kernel's folder of extensions, which has both; the server in `hub` has one of them."""
    monkeypatch.setattr("sys.prefix", str(tmp_path / "kernel"))
    folder = tmp_path / "kernel" / "share" / "jupyter" / "labextensions"
    for name in front_end.EXTENSIONS:
        extension(folder, name, "1.0")
    of_hub = tmp_path / "hub" / "share" / "jupyter" / "labextensions"
    extension(of_hub, "@jupyter-widgets/jupyterlab-manager", "5.0")
    return folder


def test_extensions_of_the_kernel_count_without_a_server(kernel_extensions):
    assert front_end.front_end([kernel_extensions]).status is Status.OK


def test_a_server_without_anywidget_is_named_with_its_remedy(kernel_extensions, tmp_path):
    server = tmp_path / "hub"
    finding = front_end.front_end([kernel_extensions], server)
    words = f"no front end for anywidget in {server}, whose server shows this page"
    require(finding, Status.BAD, words)
    command = r"hub.*python -m pip install --force-reinstall --no-deps anywidget`"
    assert re.search(command, finding.remedy)


def test_an_extension_of_the_user_counts_for_the_server(kernel_extensions, tmp_path):
    extension(tmp_path / "user", "anywidget", "0.9.21")
    folders = [kernel_extensions, tmp_path / "user"]
    assert front_end.front_end(folders, tmp_path / "hub").status is Status.OK


@pytest.fixture
def no_extensions(monkeypatch):
    """Neither a host that shows widgets itself, nor any folder of extensions."""
    monkeypatch.setattr(front_end, "extension_folders", list)
    monkeypatch.setattr(front_end, "host", lambda environment: None)


@pytest.mark.usefixtures("no_extensions")
def test_without_a_server_nothing_is_said_of_widgets(monkeypatch):
    monkeypatch.setattr(front_end, "server_prefix", lambda: None)
    assert front_end.why_not_shown() is None


@pytest.mark.usefixtures("no_extensions")
def test_a_server_without_front_ends_is_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(front_end, "server_prefix", lambda: tmp_path)
    finding = front_end.why_not_shown()
    assert "no front end for jupyterlab_widgets or anywidget" in finding.what

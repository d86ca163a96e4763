"""The sources of Pyodide, their errors, and the server of a site."""

import socket
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from labkit.site import (
    LiveFiles,
    PyodideError,
    address_of,
    pyodide_of_folder,
    pyodide_of_npm,
    server_of,
)
from labkit.site.pyodide import FILES, VERSION, cache_folder


def test_only_an_absolute_path_replaces_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    default = cache_folder()
    for ignored in ("", "caches"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == default, ignored
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fp16-lab"


def test_without_npm_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        PyodideError, match=r"install Node.js, or name a folder .* --pyodide FOLDER"
    ):
        pyodide_of_npm(tmp_path)


def test_another_package_in_the_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / f"pyodide-{VERSION}.tgz").write_bytes(b"another one")
    with pytest.raises(PyodideError, match="expected npm"):
        pyodide_of_npm(tmp_path)


def test_a_package_with_another_checksum_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = tmp_path / "npm"
    npm.write_text('#!/bin/sh\necho changed > "$4/pyodide.tgz"\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(PyodideError, match=r"is not Pyodide .* as it was published"):
        pyodide_of_npm(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_file_that_the_folder_lacks_is_named(tmp_path: Path) -> None:
    for name in FILES[1:]:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(PyodideError, match=f"which lacks {FILES[0]}"):
        pyodide_of_folder(tmp_path)


def test_a_complete_folder_has_the_files_of_pyodide(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(b"x")
    assert pyodide_of_folder(tmp_path) == dict.fromkeys(FILES, b"x")


@pytest.fixture
def python_elsewhere() -> LiveFiles:
    """The files of live exercises whose Pyodide is on another server."""
    return LiveFiles({}, {}, b"", "https://python.example/v1/")


def test_a_python_elsewhere_is_allowed_by_the_policy(python_elsewhere: LiveFiles) -> None:
    policy = python_elsewhere.policy("'self'")
    assert "connect-src 'self' https://python.example;" in policy
    assert "script-src 'self' https://python.example 'unsafe-inline'" in policy


def test_a_python_elsewhere_is_a_setting_of_the_page(python_elsewhere: LiveFiles) -> None:
    assert '"python":"https://python.example/v1/"' in python_elsewhere.settings()


def test_a_python_elsewhere_is_not_copied(python_elsewhere: LiveFiles) -> None:
    assert set(python_elsewhere.contents()) == {"live/labkit.zip", "live/worker.js"}


# Name of a file of Pyodide -> the type that the server sends.
TYPES = {"a.mjs": "text/javascript", "b.wasm": "application/wasm", "c.json": "application/json"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A server of a page and of three files of Pyodide."""
    folder = tmp_path / "live" / f"pyodide-{VERSION}"
    folder.mkdir(parents=True)
    for name in TYPES:
        (folder / name).write_bytes(b"")
    (tmp_path / "index.html").write_text("<p>here")
    with server_of(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def address_of_pyodide(server: ThreadingHTTPServer, name: str) -> str:
    """Return the address of a file of Pyodide."""
    root = address_of(server).removesuffix("/index.html")
    return f"{root}/live/pyodide-{VERSION}/{name}"


def test_the_server_is_reached_from_this_computer_only(server: ThreadingHTTPServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_page_is_not_cached(server: ThreadingHTTPServer) -> None:
    with urlopen(address_of(server)) as response:
        assert response.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize("name", TYPES)
def test_a_file_of_pyodide_has_its_type_and_is_cached(
    server: ThreadingHTTPServer, name: str
) -> None:
    with urlopen(address_of_pyodide(server, name)) as response:
        assert response.headers["Content-Type"] == TYPES[name]
        assert "immutable" in response.headers["Cache-Control"]


def test_a_missing_file_of_pyodide_is_not_cached(server: ThreadingHTTPServer) -> None:
    with pytest.raises(HTTPError) as raised:
        urlopen(address_of_pyodide(server, "absent.mjs"))
    with raised.value as error:
        assert error.code == 404
        assert error.headers["Cache-Control"] == "no-cache"


def test_a_request_that_is_not_http_gets_a_400(server: ThreadingHTTPServer) -> None:
    with socket.create_connection(server.server_address) as connection:
        # The beginning of a TLS handshake.
        connection.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        with connection.makefile("rb") as file:
            response = file.read()
    # Without a version of HTTP in the request, the answer may be a page without headers.
    assert b"400" in response.splitlines()[0] or b"Error code: 400" in response

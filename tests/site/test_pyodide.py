"""The sources of Pyodide, their errors, and the server of a site."""

import socket
import threading
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
from labkit.site.pyodide import FILES, VERSION


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


def test_a_folder_that_lacks_a_file_is_named(tmp_path: Path) -> None:
    for name in FILES[1:]:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(PyodideError, match=f"which lacks {FILES[0]}"):
        pyodide_of_folder(tmp_path)
    (tmp_path / FILES[0]).write_bytes(b"x")
    assert pyodide_of_folder(tmp_path) == dict.fromkeys(FILES, b"x")


def test_a_python_elsewhere_is_allowed_by_the_policy() -> None:
    live = LiveFiles({}, {}, b"", "https://python.example/v1/")
    policy = live.policy("'self'")
    assert "connect-src 'self' https://python.example;" in policy
    assert "script-src 'self' https://python.example 'unsafe-inline'" in policy
    assert '"python":"https://python.example/v1/"' in live.settings()
    assert set(live.contents()) == {"live/labkit.zip", "live/worker.js"}


def test_the_server_is_of_this_computer_and_names_the_types(tmp_path: Path) -> None:
    folder = tmp_path / "live" / f"pyodide-{VERSION}"
    folder.mkdir(parents=True)
    types = {"a.mjs": "text/javascript", "b.wasm": "application/wasm", "c.json": "application/json"}
    for name in types:
        (folder / name).write_bytes(b"")
    (tmp_path / "index.html").write_text("<p>here")
    with server_of(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert server.server_address[0] == "127.0.0.1"
        root = address_of(server).removesuffix("/index.html")
        with urlopen(address_of(server)) as answer:
            assert answer.headers["Cache-Control"] == "no-cache"
        for name, kind in types.items():
            with urlopen(f"{root}/live/pyodide-{VERSION}/{name}") as answer:
                assert answer.headers["Content-Type"] == kind
                assert "immutable" in answer.headers["Cache-Control"]
        server.shutdown()


def test_a_missing_file_of_pyodide_is_asked_for_again(tmp_path: Path) -> None:
    with server_of(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = address_of(server).removesuffix("/index.html")
        with pytest.raises(HTTPError) as raised:
            urlopen(f"{root}/live/pyodide-{VERSION}/absent.mjs")
        server.shutdown()
    assert raised.value.code == 404
    assert raised.value.headers["Cache-Control"] == "no-cache"
    raised.value.close()


def test_a_request_that_cannot_be_read_gets_a_400(tmp_path: Path) -> None:
    with server_of(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with socket.create_connection(server.server_address) as connection:
            connection.sendall(b"\x16\x03\x01 not http\r\n\r\n")
            answer = connection.makefile("rb").read()
        server.shutdown()
    assert b"400" in answer.splitlines()[0] or b"Error code: 400" in answer

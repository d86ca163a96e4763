"""A server of a site for browsers on this computer, with the headers that its pages need."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from labkit.site.live_files import FOLDER

LOOPBACK = "127.0.0.1"
# MIME types that the tables of some systems lack, or map to other types
TYPES = {
    ".ipynb": "application/json",
    ".js": "text/javascript",
    ".json": "application/json",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
}


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, **TYPES}  # noqa: RUF012
    succeeded = False

    def send_response(self, code: int, message: str | None = None) -> None:
        self.succeeded = code in (HTTPStatus.OK, HTTPStatus.NOT_MODIFIED)
        super().send_response(code, message)

    def end_headers(self) -> None:
        self.send_header("X-Content-Type-Options", "nosniff")
        # The folder of Pyodide is named by its version, so that its files never change; a browser
        # keeps them for a year. It asks for all other files again, which are sent if they changed.
        # A file that is missing may be added. (A request that cannot be read has no path.)
        caching = "no-cache"
        if self.succeeded and self.path.startswith(f"/{FOLDER}/pyodide-"):
            caching = "max-age=31536000, immutable"
        self.send_header("Cache-Control", caching)
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: each page requests a dozen files."""


def server_of(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of a folder on the loopback interface; call its `serve_forever`.

    Args:
        folder: The folder of a site.
        port: Its port; 0 is any free port.

    Raises:
        OSError: The port is taken.
    """
    handler = partial(_Handler, directory=str(folder))
    return ThreadingHTTPServer((LOOPBACK, port), handler)


def address_of(server: ThreadingHTTPServer) -> str:
    """Return the address of a server's index."""
    return f"http://{LOOPBACK}:{server.server_address[1]}/index.html"

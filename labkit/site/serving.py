"""A server of a site on this computer alone, with the headers that its pages need."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from labkit.site.live_files import FOLDER

LOOPBACK = "127.0.0.1"
# which some systems' tables lack, or have otherwise
TYPES = {
    ".ipynb": "application/json",
    ".js": "text/javascript",
    ".json": "application/json",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
}


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, **TYPES}  # noqa: RUF012

    def end_headers(self) -> None:
        self.send_header("X-Content-Type-Options", "nosniff")
        # a folder named by its version never changes; all else is asked for again, and sent if new
        fixed = self.path.startswith(f"/{FOLDER}/pyodide-")
        self.send_header("Cache-Control", "max-age=31536000, immutable" if fixed else "no-cache")
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: each page asks for a dozen files."""


def server_of(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of a folder, which answers once `serve_forever` runs.

    Args:
        folder: The folder of a site.
        port: Its port on the loopback interface; 0: a free one.

    Raises:
        OSError: The port is taken.
    """
    handler = partial(_Handler, directory=str(folder))
    return ThreadingHTTPServer((LOOPBACK, port), handler)


def address_of(server: ThreadingHTTPServer) -> str:
    """Return the address of a server's index."""
    return f"http://{LOOPBACK}:{server.server_address[1]}/index.html"

"""Pyodide, Python for browsers: its pinned package, from npm, a folder or an address.

Nothing of it is part of the lab. The first call gets the package from npm and keeps it in the cache
of this user, as it came. Each call compares its checksum.

Source: https://pyodide.org; the version names Python's and is that of the package in npm.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit.records.files import write_atomic

VERSION = "314.0.7"
SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
FILES = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "pyodide-lock.json",
    "python_stdlib.zip",
)
SECONDS = 300.0  # for 6.5 MB


class PyodideError(ValueError):
    """Pyodide cannot be had; the message says why, and what to do."""


def cache_folder() -> Path:
    """Return the folder of this user for what can be fetched again."""
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"]) / "fp16-lab"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "fp16-lab"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/fp16-lab"
    return Path.home() / ".cache/fp16-lab"


def pyodide_of_npm(cache: Path | None = None) -> dict[str, bytes]:
    """Return the files of the pinned package, by name, from the cache or from npm.

    Args:
        cache: Where the package is kept; None: in this user's cache.

    Raises:
        PyodideError: npm is missing or fails, or the package is another one.
    """
    kept = (cache or cache_folder()) / f"pyodide-{VERSION}.tgz"
    if kept.is_file() and _checksum(kept.read_bytes()) == SHA256:
        return _unpacked(kept.read_bytes())
    npm = shutil.which("npm")
    if npm is None:
        raise PyodideError(
            "expected npm, which has Pyodide, found none; install Node.js, or name a folder "
            "with the "
            f"files of Pyodide {VERSION} by --pyodide FOLDER, or an address by --pyodide URL"
        )
    with TemporaryDirectory() as folder:
        command = [npm, "pack", f"pyodide@{VERSION}", "--pack-destination", folder, "--silent"]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            raise PyodideError(f"npm did not answer within {SECONDS:.0f} s; try again") from error
        found = sorted(Path(folder).glob("*.tgz"))
        if run.returncode or not found:
            said = (run.stderr.strip().splitlines() or ["no reason"])[-1]
            raise PyodideError(
                f"expected pyodide@{VERSION} from npm, got: {said}; look whether this machine "
                "reaches "
                "npm's registry, or name a folder by --pyodide FOLDER"
            )
        package = found[0].read_bytes()
    if _checksum(package) != SHA256:
        raise PyodideError(
            f"expected a package with the SHA-256 {SHA256}, got {_checksum(package)}; it is not "
            f"Pyodide {VERSION} as it was published, and is not used"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(kept, package)
    return _unpacked(package)


def pyodide_of_folder(folder: Path) -> dict[str, bytes]:
    """Return the files of Pyodide from a folder, by name.

    Raises:
        PyodideError: One of them is missing.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise PyodideError(
            f"expected the files of Pyodide {VERSION} in {folder}, which lacks {', '.join(missing)}"
        )
    return {name: (folder / name).read_bytes() for name in FILES}


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _unpacked(package: bytes) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=BytesIO(package), mode="r:gz") as archive:
        for name in FILES:
            member = archive.extractfile(f"package/{name}")
            assert member is not None, f"expected the file {name} in the package"
            found[name] = member.read()
    return found

"""Pyodide, Python for browsers: its pinned package, from npm or a folder.

Pyodide is not part of the lab. The first call gets the package from npm and stores it unchanged in
the cache of this user. Each call compares its checksum.

Source: https://pyodide.org. The version is that of the package in npm; it begins with Python's
version, 314 for 3.14.
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
# The time limit for a download of 6.5 MB.
SECONDS = 300.0


class PyodideError(ValueError):
    """Pyodide is not available; the message says why, and what to do."""


def cache_folder() -> Path:
    """Return the cache folder of this user, by the convention of the operating system.

    An XDG_CACHE_HOME that is empty or a relative path does not count.

    Source: XDG Base Directory Specification 0.8.
    """
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):
        return Path(chosen) / "fp16-lab"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "fp16-lab"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/fp16-lab"
    return Path.home() / ".cache/fp16-lab"


def pyodide_of_npm(cache: Path | None = None) -> dict[str, bytes]:
    """Return the files of the pinned package, by name, from the cache or from npm.

    Args:
        cache: The folder where the package is stored; None: this user's cache.

    Raises:
        PyodideError: npm is missing or fails, or the package has another checksum.
    """
    cached = (cache or cache_folder()) / f"pyodide-{VERSION}.tgz"
    if cached.is_file() and _checksum(cached.read_bytes()) == SHA256:
        return _unpacked(cached.read_bytes())
    package = _from_npm()
    if _checksum(package) != SHA256:
        raise PyodideError(
            f"expected a package with the SHA-256 {SHA256}, got {_checksum(package)}; it is not "
            f"Pyodide {VERSION} as it was published, and is not used"
        )
    cached.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(cached, package)
    return _unpacked(package)


def _from_npm() -> bytes:
    """Return the package as npm has it, a gzipped tar archive."""
    npm = shutil.which("npm")
    if npm is None:
        raise PyodideError(
            "expected npm, which has Pyodide, found none; install Node.js, or name a folder with "
            f"the files of Pyodide {VERSION} by --pyodide FOLDER, or an address by --pyodide URL"
        )
    with TemporaryDirectory() as folder:
        command = [npm, "pack", f"pyodide@{VERSION}", "--pack-destination", folder, "--silent"]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            raise PyodideError(f"npm did not answer within {SECONDS:.0f} s; try again") from error
        packages = sorted(Path(folder).glob("*.tgz"))
        if run.returncode or not packages:
            lines = run.stderr.strip().splitlines()
            reason = lines[-1] if lines else "no reason"
            raise PyodideError(
                f"expected pyodide@{VERSION} from npm, got: {reason}; check whether this machine "
                "reaches npm's registry, or name a folder by --pyodide FOLDER"
            )
        return packages[0].read_bytes()


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
    files = {}
    with tarfile.open(fileobj=BytesIO(package), mode="r:gz") as archive:
        for name in FILES:
            member = archive.extractfile(f"package/{name}")
            assert member is not None, f"expected the file {name} in the package"
            files[name] = member.read()
    return files

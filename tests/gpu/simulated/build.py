"""Compilation of the simulated card, once for each version of torch and of the sources.

The library is `simulated-cuda/KEY.so` in the virtual environment. Processes that need it at the
same time wait for the first one. It is written to a temporary file and renamed, so that no process
loads an incomplete library.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).with_name("cpp")
CACHE = Path(sys.prefix) / "simulated-cuda"
FLAGS = ("-O1", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-w", "-DAT_PER_OPERATOR_HEADERS")
LIBRARIES = ("torch", "torch_cpu", "torch_python", "c10")
# The path to torch is relative to the library, so that an environment may be moved.
RPATH_ORIGIN = "$ORIGIN"


def torch_folder() -> Path:
    spec = find_spec("torch")
    assert spec is not None, "torch is not installed"
    assert spec.origin is not None
    return Path(spec.origin).parent


def reason_against() -> str | None:
    """Return why the card cannot be simulated here, or None."""
    if sys.platform != "linux":
        return f"a simulated GPU needs Linux, this is {sys.platform}"
    if (torch_folder() / "lib" / "libtorch_cuda.so").exists():
        return "a simulated GPU needs a torch without CUDA, this one has it"
    if library_path().exists():
        return None
    if not (torch_folder() / "include" / "ATen").exists():
        return "a simulated GPU needs torch's C++ headers, which are not installed"
    if shutil.which("g++") is None:
        return "a simulated GPU needs g++, which is not installed (Debian: apt-get install g++)"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return (
            "a simulated GPU needs Python's C headers, which are not installed (Debian: "
            "apt-get install python3-dev)"
        )
    return None


def library_path() -> Path:
    """Return where the library of this torch, this Python and these sources lies, or will lie."""
    digest = hashlib.sha256(
        repr((version("torch"), sys.version, FLAGS, RPATH_ORIGIN, _torch_from_here())).encode()
    )
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return CACHE / f"{digest.hexdigest()[:20]}.so"


def _torch_from_here() -> str:
    return os.path.relpath((torch_folder() / "lib").resolve(), CACHE.resolve())


def library() -> Path:
    """Return the path of the library, built now where it was not."""
    path = library_path()
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _compile(path)
    return path


def _compile(path: Path) -> None:
    """Compile all sources as one, since most of the time goes into torch's headers."""
    torch = torch_folder()
    includes = [
        torch / "include",
        torch / "include/torch/csrc/api/include",
        Path(sysconfig.get_paths()["include"]),
    ]
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        combined = Path(folder, "all.cpp")
        linked = Path(folder, path.name)
        combined.write_text(
            "".join(f'#include "{source}"\n' for source in sorted(SOURCES.glob("*.cpp")))
        )
        _run(
            "g++",
            *FLAGS,
            *(f"-I{path}" for path in includes),
            "-shared",
            combined,
            "-o",
            linked,
            f"-L{torch / 'lib'}",
            *(f"-l{name}" for name in LIBRARIES),
            f"-Wl,-rpath,{RPATH_ORIGIN}/{_torch_from_here()}",
        )
        os.replace(linked, path)


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the simulated GPU could not be compiled:\n{done.stderr[:8000]}")


if __name__ == "__main__":
    try:
        print(reason_against() or library())
    # The tests that need the library report the error, too.
    except RuntimeError as error:
        print(error)

"""Check of the widgets' front ends: whether the page's server finds their browser extensions.

Idea: the kernel and the server that shows the page may run in two environments. The kernel's
extensions are found by Jupyter's own paths, the server's by the command that started it. Some hosts
have a widget manager of their own.

Invariant: a missing part is reported with the command that installs it into the right environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from labkit.findings import Finding, Status

# folder of the extension -> the package that installs it
EXTENSIONS = {"@jupyter-widgets/jupyterlab-manager": "jupyterlab_widgets", "anywidget": "anywidget"}
EXTENSIONS_FOLDER = Path("share", "jupyter", "labextensions")
# Environment variable that a host sets -> the host's name. These hosts show widgets by a manager of
# their own, loaded from the network.
HOSTS = {"COLAB_RELEASE_TAG": "Colab", "KAGGLE_KERNEL_RUN_TYPE": "Kaggle", "VSCODE_PID": "VS Code"}


def host(environment: Mapping[str, str]) -> str | None:
    """Return the name of the host that shows this notebook; None if it is not one of HOSTS.

    >>> host({"COLAB_RELEASE_TAG": "release-colab"}), host({})
    ('Colab', None)
    """
    for variable, name in HOSTS.items():
        if variable in environment:
            return name
    return None


def extension_folders() -> list[Path]:
    """Return where JupyterLab looks for front-end extensions, nearest first."""
    try:
        from jupyter_core.paths import jupyter_path
    except ImportError:
        return [Path(sys.prefix) / EXTENSIONS_FOLDER]
    return [Path(path) for path in jupyter_path("labextensions")]


def front_end(
    folders: list[Path], server: Path | None = None, hosted: str | None = None
) -> Finding:
    """Judge whether the parts of the widgets that run in the browser are installed.

    Whether they answer is checked by the pulse cell of lesson 00.

    Args:
        folders: folders in which this environment's JupyterLab looks for extensions.
        server: environment of the server that shows the page; None if unknown.
        hosted: name of the host whose own manager shows widgets, or None.
    """
    if hosted is not None:
        return Finding("widgets", Status.OK, f"{hosted} shows widgets by a manager of its own")
    prefix = Path(sys.prefix)
    places = list(folders)
    if server is not None and _differ(server, prefix):
        # both environments share the user's and the system's folders
        shared = [folder for folder in folders if not folder.is_relative_to(prefix)]
        places = [server / EXTENSIONS_FOLDER, *shared]
        prefix = server
    off = switched_off(prefix)
    if off:
        what = (
            f"the front end of {' and '.join(off)} is switched off in the server that shows this "
            "page"
        )
        remedy = f"`jupyter labextension enable {' '.join(off)}`, then restart JupyterLab"
        return Finding("widgets", Status.BAD, what, remedy)
    versions = []
    missing = []
    for extension, package in EXTENSIONS.items():
        files = [folder / extension / "package.json" for folder in places]
        # JupyterLab takes the nearest one
        nearest = next((file for file in files if file.is_file()), None)
        version = _version_in(nearest) if nearest is not None else None
        if version is not None:
            versions.append(f"{extension} {version}")
        else:
            missing.append(package)
    if not missing:
        return Finding("widgets", Status.OK, f"front ends installed: {', '.join(versions)}")
    lacks = f"no front end for {' or '.join(missing)} in {prefix}"
    pip = "pip install --force-reinstall --no-deps"
    if prefix == server:
        lacks += f", whose server shows this page; the kernel runs in {sys.prefix}"
        python = str(server / ("Scripts" if os.name == "nt" else "bin") / "python")
        pip = f'"{python}" -m {pip}' if " " in python else f"{python} -m {pip}"
    return Finding(
        "widgets", Status.BAD, lacks, f"`{pip} {' '.join(missing)}`, then restart JupyterLab"
    )


def _version_in(file: Path) -> str | None:
    """Return the version in an extension's package.json; None if the file is damaged."""
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def silent(seconds: float, hosted: str | None = None) -> Finding:
    """Return the finding for a page that has not answered a widget's message.

    Args:
        seconds: time since the message.
        hosted: name of the host whose own manager shows widgets, or None.

    >>> silent(15).what
    'the page has not answered for 15 s: nothing draws widgets there, or no message gets through'
    """
    known = why_not_shown()
    if known is not None:
        return known
    again = "reload the page and run this cell again"
    if hosted is None:
        remedy = f"{again}; if it stays silent, stop JupyterLab and start it with `labkit lab`"
    elif hosted == "VS Code":
        remedy = (
            "trust this notebook, and set jupyter.widgetScriptSources to jsdelivr.com and unpkg.com"
        )
    else:
        remedy = f"{again}; {hosted} loads its widget manager from the network"
    what = (
        f"the page has not answered for {seconds:g} s: nothing draws widgets there, or no message "
        "gets through"
    )
    return Finding(
        "widgets", Status.BAD, what, f"{remedy}. Until then the lessons show still pictures"
    )


def switched_off(prefix: Path) -> list[str]:
    """Return the front ends that are disabled in this environment or in the user's settings."""
    folders = [prefix / "etc" / "jupyter"]
    with contextlib.suppress(ImportError):
        from jupyter_core.paths import jupyter_config_dir

        folders.append(Path(jupyter_config_dir()))
    off = set[str]()
    for folder in folders:
        file = folder / "labconfig" / "page_config.json"
        # a missing file or one of another form disables nothing
        with contextlib.suppress(OSError, ValueError, AttributeError):
            settings = json.loads(file.read_text(encoding="utf-8"))
            disabled = settings.get("disabledExtensions", {})
            off |= {name for name, is_off in disabled.items() if is_off}
    return [extension for extension in EXTENSIONS if extension in off]


def server_prefix(proc: Path = Path("/proc")) -> Path | None:
    """Return the environment prefix of the Jupyter server that started this kernel.

    It is None if unknown. JPY_PARENT_PID is the server's process id, and its command line begins
    with its Python.
    """
    try:
        words = (proc / os.environ["JPY_PARENT_PID"] / "cmdline").read_bytes().split(b"\0")
    except (OSError, KeyError):
        return None
    python = Path(os.fsdecode(words[0]))
    # PREFIX/bin/python
    if not python.is_absolute() or "python" not in python.name or len(python.parents) < 2:
        return None
    return python.parents[1]


def why_not_shown() -> Finding | None:
    """Return why the page in front of this kernel cannot show widgets.

    It is None if it can, or if it is unknown. It is known only if a Jupyter server started this
    kernel; the check reads a few files.
    """
    server = server_prefix()
    if server is None:
        return None
    finding = front_end(extension_folders(), server, host(os.environ))
    return finding if finding.status is Status.BAD else None


def _differ(a: Path, b: Path) -> bool:
    return os.path.normcase(os.path.abspath(a)) != os.path.normcase(os.path.abspath(b))

"""The steps of the Dockerfile, run one by one in a Debian that debootstrap makes.

First a virtual environment is made in /venv, since Debian's own pip may not install packages. Each
step runs behind `unshare`, with a /proc of its own; nothing stays mounted. After the Dockerfile,
pip installs the packages of environment.yml.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

PACKAGES = "python3,python3-venv,ca-certificates,git,procps"
PATH = "/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass
class Container:
    """A system in a folder, and what the steps of a Dockerfile change.

    Attributes:
        root: The folder that is the system's /.
        variables: The environment variables.
        folder: The working directory, as a path inside.
        user: The name of the user.
    """

    root: Path
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    folder: str = "/"
    user: str = "root"

    def command(self, *command: str) -> list[str]:
        """Return the command that runs a command inside, as the user and in the folder."""
        variables = {"LC_ALL": "C.UTF-8", **self.variables}
        for name in ("PIP_DEFAULT_TIMEOUT", "OMP_NUM_THREADS"):
            if name in os.environ:
                variables.setdefault(name, os.environ[name])
        assignments = [f"{name}={value}" for name, value in variables.items()]
        inside = ["env", "-i", "-C", self.folder, *assignments, *command]
        if self.user != "root":
            ids = [f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"]
            inside = ["setpriv", *ids, *inside]
        spaces = ["--mount", "--pid", "--fork", f"--root={self.root}", "--mount-proc"]
        return ["unshare", *spaces, *inside]

    def shell(self, line: str) -> None:
        """Run a line of shell inside.

        Raises:
            RuntimeError: the line failed; the message has the end of what it printed.
        """
        command = self.command("sh", "-ec", line)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError(f"{line}: {done.stdout.strip()[-400:]}")


def follow(container: Container, source: Path, dockerfile: str) -> int:
    """Do the steps of a Dockerfile in a container, and return how many RUN steps there were.

    Args:
        container: The container, which the steps change.
        source: The checkout that COPY copies.
        dockerfile: The text of the Dockerfile.
    """
    runs = 0
    without_comments = re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE)
    joined_lines = without_comments.replace("\\\n", "")
    for line in joined_lines.splitlines():
        name, _, rest = line.partition(" ")
        value = Template(rest.strip()).safe_substitute(container.variables)
        if name in ("ARG", "ENV"):
            variable, _, content = value.partition("=")
            container.variables[variable] = content
        elif name == "WORKDIR":
            container.folder = value
            Path(f"{container.root}{value}").mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            container.user = value
        elif name == "FROM":
            # A later stage begins at the root. All stages share one root here, so what one copies
            # from another is already there.
            container.folder = "/"
            container.user = "root"
        elif name == "COPY" and not value.startswith("--from="):
            copy_checkout(source, Path(f"{container.root}{container.folder}"))
        elif name == "RUN":
            container.shell(rest.strip())
            runs += 1
    return runs


def copy_checkout(source: Path, target: Path) -> None:
    """Copy the files that belong to the checkout, as .dockerignore would have it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0"):
        # An empty name is after the last \0; a deleted file may still be listed.
        if name and (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def bare(folder: Path, release: str) -> Container:
    """Make a Debian in a folder, with a virtual environment, unless it was made before."""
    if not (folder / "usr" / "bin" / "python3").exists():
        command = [
            "debootstrap",
            "--variant=minbase",
            f"--include={PACKAGES}",
            release,
            str(folder),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for file in (Path("/etc/resolv.conf"), CERTIFICATES):
        if file.exists():
            shutil.copy(file, f"{folder}{file}")
    container = Container(folder)
    container.shell("[ -x /venv/bin/pip ] || python3 -m venv /venv")
    container.variables["PIP_CERT"] = str(CERTIFICATES)
    return container


def made(folder: Path, release: str, source: Path) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """Make the environment of the Dockerfile, and then that of environment.yml in the same /venv.

    Returns:
        The command of its Python, and a row (what, result) of the table for each of the two.
    """
    image = bare(folder, release)
    for leftover in (folder / "home" / "learner", folder / "lab"):
        shutil.rmtree(leftover, ignore_errors=True)
    image.shell("id learner >/dev/null 2>&1 && userdel learner || true")
    lab = Container(folder, folder="/lab", variables={**image.variables, "HOME": "/root"})
    lines = re.findall(
        r"^ {6}- (.*)$", (source / "environment.yml").read_text(encoding="utf-8"), re.MULTILINE
    )

    def dockerfile() -> str:
        count = follow(image, source, (source / "Dockerfile").read_text(encoding="utf-8"))
        image.shell("labkit check && jupyter lab --version && test -w notebooks/00_start.ipynb")
        return f"{count} steps passed; as its user, labkit check finds nothing to mend"

    def conda() -> str:
        copy_checkout(source, folder / "lab")
        lab.shell(f"pip install --no-cache-dir {' '.join(lines)}")
        return "1 step passed"

    rows = [
        ("the Dockerfile", outcome(dockerfile)),
        ("what environment.yml gives pip", outcome(conda)),
    ]
    return tuple(lab.command("python")), rows


def outcome(steps: Callable[[], str]) -> str:
    """Return what steps say, or their error, as a cell of a table has room for it."""
    try:
        return steps()
    except RuntimeError as error:
        return " ".join(f"failed: {error}".replace("|", "/").split())

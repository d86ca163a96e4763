"""Environments like those of hosts, in which lessons and classrooms are tried.

    python tests/hosts/run.py [HOST ...] [--rooms records] [--lessons 00 06] [--processes 2]
    [--python BIN/python]

Without a name, all of hosts.toml, one after another; with --python an environment that is there
already is asked. Its rows in data/hosts.md are replaced by the new ones. A host that this machine
cannot make is left out, in words, and its rows stay.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from tests.hosts import container  # noqa: E402

HOSTS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("hosts.toml").read_text(encoding="utf-8")
)
TABLE = ROOT / "data" / "hosts.md"
TESTERS = [
    "pytest>=8.2",
    "pytest-timeout",
    "pytest-xdist",
    "nbclient",
    "nbconvert",
    "nbformat",
    "jupytext",
    "gfloat",
    "ml_dtypes",
    "expecttest",
    "pyyaml",
]
LESSONS = ["00", "01", "05", "06"]
# What asks most of versions comes first; then the other rooms. Browser tests need more than a
# host's packages.
FIRST = ["records", "clinic", "frameworks", "instrument", "amp", "modes", "formats"]
FOLDERS = {test.parent.name for test in (ROOT / "tests").glob("*/test_*.py")}
ROOMS = FIRST + sorted(FOLDERS - {*FIRST, "browser", "hosts"})
MINUTES = 15  # for all that is tried on a host, once it is made
VERSIONS = """
import importlib.metadata, sys
found = [f"{name} {importlib.metadata.version(name)}" for name in sys.argv[1:]]
print("Python " + sys.version.split()[0], *found, sep=", ")
"""


@dataclass(frozen=True)
class Host:
    """An environment, the command that runs its Python, and the packages whose versions the table
    gives.
    """

    name: str
    python: tuple[str, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        brings = HOSTS[self.name].get(
            "pip", ["torch", "triton", "ipywidgets", "anywidget", "ipykernel"]
        )
        return tuple(re.split("[=<>]", each)[0] for each in brings)

    def run(
        self, *arguments: str, seconds: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run its Python from the top of the lab."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [*self.python, *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
        )

    def versions(self) -> str:
        done = self.run("-c", VERSIONS, *self.shown)
        return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def made(name: str) -> tuple[Host, list[tuple[str, str]]]:
    """Make an environment like a host's; return it, with rows (what, result) of what its making
    showed.
    """
    row = HOSTS[name]
    folder = ROOT / "out" / "hosts" / name
    if "debian" in row:
        python, rows = container.made(folder, row["debian"], ROOT)
        return Host(name, python), rows
    python = (str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")),)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [*python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *row["pip"]], check=True)
    kept = subprocess.run([*pip[:3], "freeze"], check=True, capture_output=True, text=True).stdout
    Path(folder, "kept.txt").write_text(kept, encoding="utf-8")  # what a host has is not replaced
    subprocess.run(
        [*pip, "--constraint", str(folder / "kept.txt"), "--editable", str(ROOT), *TESTERS],
        check=True,
    )
    return Host(name, python), []


def cannot(name: str) -> str | None:
    """Return why this machine cannot make a host, in words; None where it can."""
    if "debian" not in HOSTS[name]:
        return None
    if shutil.which("debootstrap") is None or shutil.which("unshare") is None:
        return (
            "there is no debootstrap or no unshare: it is made on Linux alone (apt install "
            "debootstrap)"
        )
    return None if os.geteuid() == 0 else "only root may make a system in a folder"


def tried(host: Host, asked: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Try what is to be tried on a host, until its time is up; yield (what, result)."""
    end = time.monotonic() + 60 * asked.minutes
    if "tests" in HOSTS[host.name]:
        yield (
            ", ".join(HOSTS[host.name]["tests"]),
            tests(host, [HOSTS[host.name]["tests"]], end, asked.processes),
        )
        return
    if asked.lessons:  # one after another: a kernel each
        named = "runs_from_top_to_bottom and "
        runs = [["tests/test_notebooks.py", "-k", f"{named}{lesson}_"] for lesson in asked.lessons]
        yield "lessons " + ", ".join(asked.lessons), tests(host, runs, end, 0)
    if asked.rooms:
        rooms = [[f"tests/{room}"] for room in asked.rooms]
        yield "rooms: " + ", ".join(asked.rooms), tests(host, rooms, end, asked.processes)


def tests(host: Host, parts: Sequence[Sequence[str]], end: float, processes: int) -> str:
    """Run tests part by part until the time is up; return how many passed and failed, which, and
    what was not run.
    """
    counts = Counter[str]()
    failed = list[str]()
    left = list[str]()
    many = ["-n", str(processes), "--dist", "loadfile"] if processes > 1 else []
    for part in parts:
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *many, *part]
        try:
            done = host.run(*command, seconds=max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            left.append(part[-1].split()[-1].removeprefix("tests/"))
            continue
        last = (
            done.stdout.strip().splitlines()[-1]
            if done.stdout.strip()
            else f"1 error: {done.stderr[-300:]}"
        )
        for count, what in re.findall(r"(\d+) (passed|failed|error|skipped)", last):
            counts[what] += int(count)
        named = re.findall(r"^(?:FAILED|ERROR) ((?:tests|labkit)/.*)", done.stdout, re.MULTILINE)
        failed += [line.split(" - ")[0] for line in named]
        Path(ROOT, "out", "hosts", f"{host.name}-{Path(part[0]).stem}.log").write_text(
            done.stdout, encoding="utf-8"
        )
    result = ", ".join(
        f"{counts[what]} {what}"
        for what in ("failed", "error", "passed", "skipped")
        if counts[what]
    )
    which = f" ({', '.join(each.split('::')[-1] for each in failed)})" if failed else ""
    return "; ".join(
        filter(None, [result + which, f"no time left: {', '.join(left)}" if left else ""])
    )


def write(name: str, versions: str, rows: Sequence[tuple[str, str]]) -> None:
    """Put a host's rows into the table, in place of the old ones about the same:
    lessons, rooms ...
    """
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    new = [f"| {name} | {versions} | {what} | {result} | {day} |" for what, result in rows]
    about = tuple(what.split()[0] for what, _ in rows)
    mine = [
        (number, line.split(" | "))
        for number, line in enumerate(lines)
        if line.startswith(f"| {name} |")
    ]
    old = [number for number, cells in mine if cells[2].startswith(about)]
    place = (
        old[0]
        if old
        else max(number for number, line in enumerate(lines) if line.startswith("|")) + 1
    )
    kept = [line for number, line in enumerate(lines) if number not in old]
    TABLE.write_text("\n".join([*kept[:place], *new, *kept[place:]]) + "\n", encoding="utf-8")


def main() -> int:
    """Try the hosts that are asked for; return 1 where something failed."""
    parser = argparse.ArgumentParser(description="Test the lab where classes are held.")
    parser.add_argument("hosts", nargs="*", help=f"of {', '.join(HOSTS)} (default: all)")
    parser.add_argument("--rooms", nargs="*", default=ROOMS)
    parser.add_argument("--lessons", nargs="*", default=LESSONS)
    parser.add_argument(
        "--python", help="of an environment that is there already, with the lab installed"
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="for a host's tests (default: %(default)s)"
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="that run the tests of a room (default: 1)"
    )
    asked = parser.parse_args()
    if unknown := sorted(set(asked.hosts) - set(HOSTS)):
        parser.error(f"no host is called {', '.join(unknown)}; there are: {', '.join(HOSTS)}")
    failed = False
    for name in asked.hosts or HOSTS:
        print(f"{name}: {HOSTS[name]['about']}", flush=True)
        if not asked.python and (reason := cannot(name)):
            print(f"  left out: {reason}", flush=True)
            continue
        try:
            host, rows = (Host(name, (asked.python,)), []) if asked.python else made(name)
        except subprocess.CalledProcessError as error:
            print(f"  could not be made: {error}", flush=True)
            failed = True
            continue
        for what, result in tried(host, asked):
            print(f"  {what}: {result}", flush=True)
            rows.append((what, result))
        write(name, host.versions(), rows)
        failed |= any(re.search(r"\d+ (failed|error)|failed:", result) for _, result in rows)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

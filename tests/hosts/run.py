"""Environments like those of hosts, in which lessons and classrooms are tried.

    python tests/hosts/run.py [HOST ...] [--folders records] [--lessons 00 06] [--processes 2]
    [--python BIN/python]

Without a name, all hosts of hosts.toml are tried, one after another. With --python, an existing
environment is tried instead of a new one. The rows of the host in data/hosts.md are replaced by the
new ones. If this machine cannot make a host, it prints why, and the rows of that host stay.
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
# The folders of tests that are run. Those that depend most on versions come first. Browser tests
# need more than a host's packages.
FIRST = ["records", "clinic", "frameworks", "instrument", "amp", "modes", "formats"]
FOLDERS = {test.parent.name for test in (ROOT / "tests").glob("*/test_*.py")}
TRIED = FIRST + sorted(FOLDERS - {*FIRST, "browser", "hosts"})
# For all tests on a host, once it is made.
MINUTES = 15
# A program that prints its Python's version, and those of the packages in its arguments.
VERSIONS = """
import importlib.metadata, sys
found = [f"{name} {importlib.metadata.version(name)}" for name in sys.argv[1:]]
print("Python " + sys.version.split()[0], *found, sep=", ")
"""


@dataclass(frozen=True)
class Host:
    """An environment like that of a host.

    Attributes:
        name: Its name in hosts.toml.
        python: The command that runs its Python.
    """

    name: str
    python: tuple[str, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """The packages whose versions the table gives."""
        default = ["torch", "triton", "ipywidgets", "anywidget", "ipykernel"]
        requirements = HOSTS[self.name].get("pip", default)
        return tuple(re.split("[=<>]", requirement)[0] for requirement in requirements)

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
        """Return the versions of Python and of the packages, or the error of asking for them."""
        done = self.run("-c", VERSIONS, *self.shown)
        return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def made(name: str) -> tuple[Host, list[tuple[str, str]]]:
    """Make an environment like a host's.

    Returns:
        The environment, and rows (what, result) of the table about steps that made it.
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
    # The lab must not replace the packages that the host has.
    Path(folder, "kept.txt").write_text(kept, encoding="utf-8")
    subprocess.run(
        [*pip, "--constraint", str(folder / "kept.txt"), "--editable", str(ROOT), *TESTERS],
        check=True,
    )
    return Host(name, python), []


def cannot(name: str) -> str | None:
    """Return the reason why this machine cannot make a host, or None if it can."""
    if "debian" not in HOSTS[name]:
        return None
    if shutil.which("debootstrap") is None or shutil.which("unshare") is None:
        return (
            "there is no debootstrap or no unshare: it is made on Linux alone (apt install "
            "debootstrap)"
        )
    return None if os.geteuid() == 0 else "only root may make a system in a folder"


def results_on(host: Host, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Run the tests of a host until its time is up, and yield rows (what, result)."""
    end = time.monotonic() + 60 * options.minutes
    own_tests = HOSTS[host.name].get("tests")
    if own_tests is not None:
        yield ", ".join(own_tests), tests(host, [own_tests], end, options.processes)
        return
    if options.lessons:
        # One after another, since each starts a kernel.
        expressions = [f"runs_from_top_to_bottom and {lesson}_" for lesson in options.lessons]
        parts = [["tests/test_notebooks.py", "-k", expression] for expression in expressions]
        yield "lessons " + ", ".join(options.lessons), tests(host, parts, end, 0)
    if options.folders:
        parts = [[f"tests/{folder}"] for folder in options.folders]
        yield "folders: " + ", ".join(options.folders), tests(host, parts, end, options.processes)


def tests(host: Host, parts: Sequence[Sequence[str]], end: float, processes: int) -> str:
    """Run tests part by part until the time is up.

    Args:
        host: The environment.
        parts: The arguments of pytest for each part.
        end: The time of `time.monotonic` at which the host's time is up.
        processes: How many processes run the tests of a part.

    Returns:
        How many tests passed and failed, which ones failed, and which parts were not run.
    """
    counts = Counter[str]()
    failed = list[str]()
    not_run = list[str]()
    distribution = ["-n", str(processes), "--dist", "loadfile"] if processes > 1 else []
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *distribution]
    for part in parts:
        try:
            done = host.run(*pytest, *part, seconds=max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            not_run.append(part[-1].split()[-1].removeprefix("tests/"))
            continue
        log = Path(ROOT, "out", "hosts", f"{host.name}-{Path(part[0]).stem}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.stdout.strip():
            # The last line of pytest is such as "1 failed, 9 passed in 3.21s".
            last = done.stdout.strip().splitlines()[-1]
        else:
            # Without pytest, Python prints an error only, which is in the log.
            last = "1 error"
        for count, outcome in re.findall(r"(\d+) (passed|failed|error|skipped)", last):
            counts[outcome] += int(count)
        lines = re.findall(r"^(?:FAILED|ERROR) ((?:tests|labkit)/.*)", done.stdout, re.MULTILINE)
        failed += [line.split(" - ")[0].split("::")[-1] for line in lines]
    outcomes = [name for name in ("failed", "error", "passed", "skipped") if counts[name]]
    result = ", ".join(f"{counts[name]} {name}" for name in outcomes)
    if failed:
        result += f" ({', '.join(failed)})"
    sentences = [result] if result else []
    if not_run:
        sentences.append(f"no time left: {', '.join(not_run)}")
    return "; ".join(sentences)


def write(name: str, versions: str, rows: Sequence[tuple[str, str]]) -> None:
    """Put the rows of a host into the table.

    They replace its old rows about the same: of which the first words, such as "lessons" or
    "folders:", are equal. Without old rows, they come after the last row of the table.
    """
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    new = [f"| {name} | {versions} | {what} | {result} | {day} |" for what, result in rows]
    first_words = tuple(what.split()[0] for what, _ in rows)
    old = [
        number
        for number, line in enumerate(lines)
        if line.startswith(f"| {name} |") and line.split(" | ")[2].startswith(first_words)
    ]
    if old:
        place = old[0]
    else:
        place = 1 + max(number for number, line in enumerate(lines) if line.startswith("|"))
    kept = [line for number, line in enumerate(lines) if number not in old]
    TABLE.write_text("\n".join([*kept[:place], *new, *kept[place:]]) + "\n", encoding="utf-8")


def command_line() -> argparse.Namespace:
    """Return the options of the command line; an unknown host is refused."""
    parser = argparse.ArgumentParser(description="Test the lab where classes are held.")
    parser.add_argument("hosts", nargs="*", help=f"of {', '.join(HOSTS)} (default: all)")
    parser.add_argument("--folders", nargs="*", default=TRIED)
    parser.add_argument("--lessons", nargs="*", default=LESSONS)
    parser.add_argument(
        "--python", help="of an environment that is there already, with the lab installed"
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="for a host's tests (default: %(default)s)"
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="that run the tests of a folder (default: 1)"
    )
    options = parser.parse_args()
    unknown = sorted(set(options.hosts) - set(HOSTS))
    if unknown:
        parser.error(f"no host is called {', '.join(unknown)}; there are: {', '.join(HOSTS)}")
    return options


def try_host(name: str, options: argparse.Namespace) -> bool:
    """Make a host, run its tests and write its rows; return whether nothing failed."""
    rows: list[tuple[str, str]] = []
    if options.python:
        host = Host(name, (options.python,))
    else:
        reason = cannot(name)
        if reason is not None:
            print(f"  left out: {reason}", flush=True)
            return True
        try:
            host, rows = made(name)
        except (subprocess.CalledProcessError, RuntimeError) as error:
            print(f"  could not be made: {error}", flush=True)
            return False
    for what, result in results_on(host, options):
        print(f"  {what}: {result}", flush=True)
        rows.append((what, result))
    write(name, host.versions(), rows)
    return not any(re.search(r"\d+ (failed|error)|failed:", result) for _, result in rows)


def main() -> int:
    """Try the hosts of the command line, and return the exit status: 1 if something failed."""
    options = command_line()
    succeeded = True
    for name in options.hosts or HOSTS:
        print(f"{name}: {HOSTS[name]['about']}", flush=True)
        if not try_host(name, options):
            succeeded = False
    return 0 if succeeded else 1


if __name__ == "__main__":
    raise SystemExit(main())

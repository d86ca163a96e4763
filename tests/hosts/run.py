"""Does the lab work with a host's versions? An environment like it is made, lessons and rooms are tried in it.

    python tests/hosts/run.py colab-versions [--python ENVIRONMENT/bin/python] [--rooms records] [--lessons 00 06]

With --python an environment that is there already is asked. The rows that it prints go to data/hosts.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOSTS = tomllib.loads(Path(__file__).with_name("hosts.toml").read_text(encoding="utf-8"))
TESTERS = ["pytest>=8.2", "pytest-timeout", "pytest-xdist", "nbclient", "nbformat", "jupytext", "gfloat", "ml_dtypes"]
TESTERS += ["expecttest", "pyyaml"]
SECONDS = 900
VERSIONS = """
import importlib.metadata, sys
names = ("torch", "ipywidgets", "anywidget", "ipykernel")
print("Python " + sys.version.split()[0], *[f"{name} {importlib.metadata.version(name)}" for name in names], sep=", ")
"""


def made(host: str) -> str:
    """Make an environment like a host's, and return its Python."""
    folder = ROOT / "out" / "hosts" / host
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    subprocess.run([python, "-m", "pip", "install", "--quiet", *HOSTS[host]["pip"], *TESTERS], check=True)
    return python


def row(host: str, python: str, what: str, chosen: list[str]) -> str:
    """Run some tests in an environment and return a row of the table: host, versions, what ran, result, date."""
    versions = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout.strip()
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *chosen]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
        print(*re.findall(r"^(?:FAILED|ERROR).*", done.stdout, re.M), sep="\n", file=sys.stderr)
        result = re.sub(r" in .*|, \d+ (?:warnings?|deselected)", "", done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        result = f"not finished in {SECONDS} s"
    return f"| {host} | {versions} | {what} | {result} | {datetime.now(UTC):%Y-%m-%d} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Test the lab with a host's versions.")
    parser.add_argument("host", choices=HOSTS)
    parser.add_argument("--python", help="an environment that is there already")
    parser.add_argument("--rooms", nargs="*", default=["records", "clinic", "widgets"])
    parser.add_argument("--lessons", nargs="*", default=["00", "01", "05", "06"])
    asked = parser.parse_args()
    python = asked.python or made(asked.host)
    for lesson in asked.lessons:  # one after another: a kernel each
        runs = ["tests/test_notebooks.py", "-k", f"runs_from_top_to_bottom and {lesson}_"]
        print(row(asked.host, python, f"lesson {lesson}", runs), flush=True)
    if asked.rooms:
        rooms = [f"tests/{room}" for room in asked.rooms]
        print(row(asked.host, python, ", ".join(asked.rooms), rooms), flush=True)

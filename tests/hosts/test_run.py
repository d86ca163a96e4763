"""`tests.hosts.run` and `tests.hosts.container`, without making an environment."""

import argparse
import re
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.hosts import container, run

ROOT = Path(__file__).parents[2]
TABLE = """# Hosts

| host | versions | what ran | result | date |
|---|---|---|---|---|
| colab | torch 2.11.0 | lessons 00, 01 | 2 passed | 2026-01-01 |
| colab | torch 2.11.0 | folders: records | 1 failed | 2026-01-01 |
| debian | | | not tried | |

Below the table.
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A file with TABLE, into which the rows are written."""
    path = tmp_path / "hosts.md"
    path.write_text(TABLE, encoding="utf-8")
    monkeypatch.setattr(run, "TABLE", path)
    return path


def today():
    return f"{datetime.now(UTC):%Y-%m-%d}"


def test_a_new_row_replaces_the_row_about_the_same(table):
    run.write("colab", "torch 2.12.0", [("folders: records, amp", "9 passed")])
    lines = TABLE.splitlines()
    lines[5] = f"| colab | torch 2.12.0 | folders: records, amp | 9 passed | {today()} |"
    assert table.read_text(encoding="utf-8").splitlines() == lines


def test_the_row_of_a_new_host_comes_last(table):
    run.write("kaggle", "torch 2.10.0", [("lessons 00", "1 passed")])
    lines = TABLE.splitlines()
    lines.insert(7, f"| kaggle | torch 2.10.0 | lessons 00 | 1 passed | {today()} |")
    assert table.read_text(encoding="utf-8").splitlines() == lines


each_host = pytest.mark.parametrize("name", run.HOSTS)


@each_host
def test_each_host_is_described(name):
    assert run.HOSTS[name]["about"]


@each_host
def test_each_host_is_made_by_pip_or_is_a_debian(name):
    row = run.HOSTS[name]
    assert ("pip" in row) != ("debian" in row)


@each_host
def test_the_tests_of_a_host_exist(name):
    tests = run.HOSTS[name].get("tests", [])
    assert [test for test in tests if not (ROOT / test).is_file()] == []


@each_host
def test_each_host_has_packages_with_versions(name):
    assert run.Host(name, ()).shown


def test_no_folder_is_tried_twice():
    assert len(run.TRIED) == len(set(run.TRIED))


@pytest.mark.parametrize("folder", run.TRIED)
def test_each_folder_has_tests(folder):
    assert list((ROOT / "tests" / folder).glob("test_*.py"))


def test_a_host_of_packages_can_be_made_anywhere():
    assert run.cannot("colab-versions") is None


@pytest.mark.parametrize(
    ("program", "user_id", "reason"),
    [(None, 0, "no debootstrap"), ("/usr/sbin/program", 1000, "only root")],
    ids=["without programs", "not as root"],
)
def test_a_host_that_cannot_be_made_is_explained(monkeypatch, program, user_id, reason):
    monkeypatch.setattr(run.shutil, "which", lambda name: program)
    monkeypatch.setattr(run.os, "geteuid", lambda: user_id, raising=False)
    assert reason in run.cannot("debian-13")


@pytest.fixture
def output_of_pytest(tmp_path, monkeypatch):
    """A function that makes every run of pytest on a host print these texts, and tests a part."""
    monkeypatch.setattr(run, "ROOT", tmp_path)

    def test(stdout="", stderr=""):
        done = subprocess.CompletedProcess([], 1, stdout, stderr)
        monkeypatch.setattr(run.Host, "run", lambda *_, **__: done)
        host = run.Host("colab-versions", ("python",))
        result = run.tests(host, [["tests/amp"]], time.monotonic() + 60, 1)
        log = tmp_path / "out" / "hosts" / "colab-versions-amp.log"
        return result, log.read_text(encoding="utf-8")

    return test


def test_failed_tests_are_counted_and_named(output_of_pytest):
    printed = "FAILED tests/amp/test_a.py::test_b - Error\n1 failed, 9 passed in 3.21s\n"
    assert output_of_pytest(printed) == ("1 failed, 9 passed (test_b)", printed)


def test_why_pytest_did_not_start_is_in_the_log(output_of_pytest):
    why = "No module named pytest\n"
    assert output_of_pytest(stderr=why) == ("1 error", why)


def test_a_host_that_could_not_be_made_fails(monkeypatch, capsys):
    def fails(name):
        raise RuntimeError("apt-get: no network")

    monkeypatch.setattr(run, "cannot", lambda name: None)
    monkeypatch.setattr(run, "made", fails)
    assert not run.try_host("debian-13", argparse.Namespace(python=None))
    assert "could not be made: apt-get: no network" in capsys.readouterr().out


DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """The container after the Dockerfile, and its RUN steps as (user, folder, line), not run."""
    lines = []
    monkeypatch.setattr(
        container.Container,
        "shell",
        lambda self, line: lines.append((self.user, self.folder, line)),
    )
    image = container.Container(tmp_path)
    assert container.follow(image, ROOT, DOCKERFILE) == len(lines)
    return image, lines


def test_each_run_of_the_dockerfile_is_a_step(steps):
    _, lines = steps
    assert len(lines) == len(re.findall(r"^RUN ", DOCKERFILE, re.MULTILINE))


def test_the_first_step_builds_wheels_in_the_checkout(steps):
    user, folder, line = steps[1][0]
    assert (user, folder) == ("root", "/lab")
    assert "pip wheel --no-cache-dir -c constraints.txt" in line


def test_two_steps_install_by_the_pins(steps):
    _, lines = steps
    installs = [step for step in lines if "pip install" in step[2]]
    assert len(installs) == 2
    for user, folder, line in installs:
        assert (user, folder) == ("root", "/")
        assert "-c /parts/constraints.txt" in line


def test_the_image_ends_as_the_learner_at_home(steps):
    image, _ = steps
    assert image.user == "learner"
    assert image.folder == "/home/learner"


def test_the_checkout_is_copied_into_the_image(steps):
    image, _ = steps
    assert (image.root / "lab" / "notebooks" / "00_start.ipynb").is_file()


def test_a_command_in_the_image_has_its_own_mounts(steps):
    image, _ = steps
    assert image.command("true")[:2] == ["unshare", "--mount"]

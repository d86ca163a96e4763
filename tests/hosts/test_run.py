"""The description and creation of hosts' environments, without creating one."""

import re
from datetime import UTC, datetime
from pathlib import Path

from tests.hosts import container, run

ROOT = Path(__file__).parents[2]
TABLE = """# Hosts

| host | versions | what ran | result | date |
|---|---|---|---|---|
| colab | torch 2.11.0 | lessons 00, 01 | 2 passed | 2026-01-01 |
| colab | torch 2.11.0 | rooms: records | 1 failed | 2026-01-01 |
| debian | | | not tried | |

Below the table.
"""


def test_new_rows_take_the_place_of_those_about_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "TABLE", tmp_path / "hosts.md")
    run.TABLE.write_text(TABLE, encoding="utf-8")
    run.write("colab", "torch 2.12.0", [("rooms: records, amp", "9 passed")])
    run.write("kaggle", "torch 2.10.0", [("lessons 00", "1 passed")])
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    rows = TABLE.splitlines()
    rows[5] = f"| colab | torch 2.12.0 | rooms: records, amp | 9 passed | {today} |"
    rows.insert(7, f"| kaggle | torch 2.10.0 | lessons 00 | 1 passed | {today} |")
    assert run.TABLE.read_text(encoding="utf-8").splitlines() == rows


def test_each_host_states_what_it_is():
    for name, row in run.HOSTS.items():
        assert row["about"], name
        assert ("pip" in row) != ("debian" in row), name
        assert [test for test in row.get("tests", []) if not (ROOT / test).is_file()] == []
        assert run.Host(name, ()).shown
    assert len(run.ROOMS) == len(set(run.ROOMS))
    assert all(list((ROOT / "tests" / room).glob("test_*.py")) for room in run.ROOMS)


def test_a_host_that_cannot_be_made_is_explained(monkeypatch):
    assert run.cannot("colab-versions") is None
    for there, user, why in ((None, 0, "no debootstrap"), ("/usr/sbin/it", 1000, "only root")):
        monkeypatch.setattr(run.shutil, "which", lambda name, there=there: there)
        monkeypatch.setattr(run.os, "geteuid", lambda user=user: user, raising=False)
        assert why in run.cannot("debian-13")


def test_the_dockerfile_s_steps_are_taken_one_by_one(tmp_path, monkeypatch):
    did = []
    monkeypatch.setattr(
        container.Container, "shell", lambda self, line: did.append((self.user, self.folder, line))
    )
    image = container.Container(tmp_path)
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert (
        container.follow(image, ROOT, text)
        == len(re.findall(r"^RUN ", text, re.MULTILINE))
        == len(did)
    )
    assert did[0][:2] == ("root", "/lab")
    assert "pip wheel --no-cache-dir -c constraints.txt" in did[0][2]
    installs = [step for step in did if "pip install" in step[2]]
    assert [step[:2] for step in installs] == [("root", "/")] * 2
    assert all("-c /parts/constraints.txt" in step[2] for step in installs)
    assert image.user == "learner"
    assert image.folder == f"/home/{image.user}"
    assert (tmp_path / "lab" / "notebooks" / "00_start.ipynb").is_file()
    assert image.command("true")[:2] == ["unshare", "--mount"]

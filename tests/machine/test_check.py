"""The check of the machine: each finding with its remedy."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit.machine import Finding, Report, Status, check, check_machine, resources

GIB = 2**30


def require(finding: Finding, status: Status, *words: str) -> None:
    """Require that a finding has this status, and these words in its text or its remedy."""
    assert finding.status is status
    text = f"{finding.what} {finding.remedy}"
    for part in words:
        assert part in text


def test_worked_example_of_a_report():
    little = Finding("memory", Status.BAD, "0.5 GiB available", "close other programs")
    report = Report((Finding("torch", Status.OK, "2.13.0"), little))
    assert not report.healthy
    assert str(report).splitlines() == [
        "✓ ok    torch   2.13.0",
        "✗ bad   memory  0.5 GiB available",
        "                -> close other programs",
        "To do before the lab works: 1 of 2, marked ✗ bad.",
    ]


def test_a_warning_leaves_the_lab_working():
    report = Report((Finding("memory", Status.WARN, "1.5 GiB available", "close other programs"),))
    assert report.healthy
    assert report.summary == "The lab works. Optional improvements: 1 of 1."


@pytest.mark.parametrize("status", [Status.WARN, Status.BAD])
def test_a_problem_needs_a_remedy(status):
    with pytest.raises(ValueError, match="has no remedy"):
        Finding("memory", status, "little")


@pytest.fixture
def html():
    """A report of a problem as HTML."""
    return Report((Finding("disk", Status.BAD, "<full>", "free & try"),))._repr_html_()


def test_a_report_as_html_is_escaped(html):
    assert "&lt;full&gt;" in html
    assert "free &amp; try" in html


def test_a_report_as_html_has_the_status_as_a_word(html):
    """Not only as a colour."""
    assert "✗ bad" in html


def test_a_report_as_html_has_colours_of_the_theme(html):
    """Others would be invisible in one of the two themes."""
    assert "var(--jp-error-color1" in html
    assert not re.search(r"background|color: (black|white|#)", html)


def test_the_machine_of_these_tests_is_healthy():
    """It has all that the lab needs."""
    report = check_machine()
    assert report.healthy, str(report)
    names = {"Python", "torch", "device", "threads", "memory", "widgets", "data", "disk"}
    assert names <= {finding.name for finding in report.findings}


def test_a_check_that_raises_is_a_finding_beside_the_others(monkeypatch):
    def raising() -> Finding:
        raise RuntimeError("the driver is asleep")

    monkeypatch.setattr(check, "device", raising)
    # The imports take seconds.
    monkeypatch.setattr(check, "import_problems", lambda names: {})
    findings = {finding.name: finding for finding in check_machine().findings}
    require(findings["device"], Status.BAD, "RuntimeError: the driver is asleep")
    assert "disk" in findings


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10, 14), "bad"), ((3, 11, 0), "ok"), ((3, 13, 5), "ok"), ((3, 14, 0), "warn")],
)
def test_python_is_judged_by_its_version(version, status):
    finding = check.python(version, "python3")
    assert finding.status == status
    assert finding.what == f"{'.'.join(map(str, version))} (python3)"


@pytest.mark.parametrize(
    ("free", "status"),
    [(None, "warn"), (GIB - 1, "bad"), (GIB, "warn"), (2 * GIB - 1, "warn"), (2 * GIB, "ok")],
)
def test_memory_is_judged_by_what_is_free(free, status):
    assert check.memory(free).status == status


@pytest.mark.parametrize(
    ("free", "limit", "status"), [(GIB // 2, 1, "bad"), (GIB, 1, "warn"), (3 * GIB, 4, "ok")]
)
def test_the_limit_of_a_container_is_a_part_of_the_finding(free, limit, status):
    finding = check.memory(free, limit * GIB)
    assert finding.status == status
    assert f"in a container that may use {limit}.0 GiB" in finding.what
    is_advised = "give the container 2 GiB or more" in finding.remedy
    assert is_advised == (status != "ok")


@pytest.mark.parametrize(
    ("cores", "seconds", "status", "words"),
    [
        (2, {1: 0.010, 64: 0.900}, Status.WARN, "OMP_NUM_THREADS=2"),
        (8, {1: 0.010, 8: 0.002}, Status.OK, "LABKIT_THREADS=8"),
        (8, {1: 0.010, 8: 1.5}, Status.OK, "1500.0 ms on 8 (150 times as long). "),
        (1, {1: 0.010}, Status.OK, "1 core; a tiny step takes 10.0 ms on 1 thread. "),
    ],
    ids=["too many", "faster with more", "much slower with more", "one core"],
)
def test_threads_are_judged_by_their_times(cores, seconds, status, words):
    require(check.judge_threads(cores, seconds), status, words)


def test_an_old_package_is_bad_with_the_command_that_replaces_it():
    installed = {"fp16-lab": "0.1.0", "torch": "2.9.1+cu128"}
    *_, finding = check.packages({"torch": "2.11"}, installed.get)
    assert finding.status == "bad"
    assert finding.remedy == "`pip install -U 'torch>=2.11'`"


def test_a_new_package_is_ok_with_its_version():
    *_, finding = check.packages({"numpy": "2"}, {"fp16-lab": "0.1.0", "numpy": "2.4.6"}.get)
    assert finding.status == "ok"
    assert finding.what == "2.4.6"


def test_a_missing_package_is_bad():
    *_, finding = check.packages({"anywidget": "0.9.13"}, {"fp16-lab": "0.1.0"}.get)
    assert finding.status == "bad"
    assert finding.what == "is not installed"


@pytest.mark.parametrize(
    ("version", "status"),
    [("0.9.9", "bad"), ("0.9.13", "ok"), ("0.10", "ok"), ("1.0rc1", "ok")],
)
def test_versions_are_compared_by_number_not_by_text(version, status):
    installed = {"fp16-lab": "0.1.0", "anywidget": version}
    *_, finding = check.packages({"anywidget": "0.9.13"}, installed.get)
    assert finding.status == status


def test_a_labkit_that_is_not_installed_is_bad():
    (finding,) = check.packages(None, lambda name: None)
    require(finding, Status.BAD, "pip install -e .")


def test_a_distribution_listed_twice_is_not_another_labkit():
    assert not list(check.other_labkit(["fp16-lab", "fp16-lab"]))


def test_another_distribution_with_a_package_labkit_is_named(tmp_path, monkeypatch):
    (tmp_path / "labkit-9.dist-info").mkdir()
    (tmp_path / "labkit-9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: labkit\nVersion: 9\n"
    )
    (tmp_path / "labkit-9.dist-info" / "top_level.txt").write_text("labkit\n")
    monkeypatch.syspath_prepend(tmp_path)
    findings = check.check_machine().findings
    (finding,) = [finding for finding in findings if "another package" in finding.what]
    require(finding, Status.WARN, "`pip uninstall labkit`, then install the lab again")


def test_an_import_that_ends_python_is_named_with_its_status(tmp_path, monkeypatch):
    (tmp_path / "ends_python.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert check.import_error("ends_python") == "Python exited with status 3 and no message"


def test_missing_data_are_a_finding(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "nowhere"))
    require(check.data(), Status.BAD, str(tmp_path / "nowhere"))


def test_a_folder_that_cannot_be_written_is_a_finding(tmp_path):
    # Nobody, not even root, can make a file inside a file.
    file = tmp_path / "a-file"
    file.touch()
    require(check.disk(file), Status.BAD, str(file))


def test_little_space_on_the_disk_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(check.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10 * 2**20))
    assert check.disk(tmp_path).status is Status.WARN


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 truncated", b"no archive"])
def test_damaged_data_are_a_finding_with_a_remedy(content, monkeypatch, tmp_path):
    (tmp_path / "digits.npz").write_bytes(content)
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    finding = check.data()
    assert finding.status is Status.BAD
    assert "git checkout -- data" in finding.remedy


def test_timing_a_tiny_step_restores_the_random_numbers():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    check.seconds_per_tiny_step(1, budget=0.0)
    assert torch.equal(torch.rand(3), expected)


def test_timing_a_tiny_step_restores_the_threads():
    before = torch.get_num_threads()
    assert check.seconds_per_tiny_step(threads=before + 1, budget=0) > 0
    assert torch.get_num_threads() == before


def test_without_files_of_a_container_there_is_no_limit(tmp_path):
    assert resources.container_memory(tmp_path) is None


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("memory.max", "max\n", None),
        ("memory.max", f"{GIB}\n", GIB),
        # What the first version of cgroups has without a limit.
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
    ],
    ids=["no limit", "a limit", "no limit in version 1"],
)
def test_the_limit_of_a_container_is_read(tmp_path, file, text, limit):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert resources.container_memory(tmp_path) == limit


@pytest.fixture
def required(monkeypatch):
    """Package -> the least version that the installed labkit requires, as pip writes it down."""
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    # pip sorts the limits of a version: "<3,>=2.10".
    lines = [re.sub(r">=([\d.]+),<(\d)", r"<\2,>=\1", line) for line in project["dependencies"]]
    extras = [f'{line}; extra == "lab"' for line in project["optional-dependencies"]["lab"]]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: lines + extras)
    return check.requirements()


def test_the_least_version_of_torch_is_read(required):
    assert required["torch"] == "2.10"


def test_an_extra_is_not_required(required):
    assert "jupyterlab" not in required


def test_a_zero_at_the_end_makes_no_newer_version() -> None:
    findings = check.packages({"numpy": "2.10.0"}, {"fp16-lab": "1", "numpy": "2.10"}.get)
    assert [finding.status for finding in findings] == [Status.OK, Status.OK]


@pytest.mark.parametrize(
    ("version", "status"), [("7.5.1", "bad"), ("7.7.1", "ok"), ("8.1.9", "ok")]
)
def test_ipywidgets_is_judged_by_the_required_version(required, version, status):
    installed = {"fp16-lab": "1", "ipywidgets": version}
    *_, finding = check.packages({"ipywidgets": required["ipywidgets"]}, installed.get)
    assert finding.status == status

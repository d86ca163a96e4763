"""Does the doctor see what is wrong, and say what to do? Each check is asked for its rare answers, too."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit import bench, train
from labkit.clinic import Finding, Report, Status, check_machine, doctor, machine

GIB = 2**30


def test_worked_example_of_a_report():
    report = Report(
        (
            Finding("torch", Status.OK, "2.13.0"),
            Finding("memory", Status.BAD, "0.5 GiB available", "close other programs"),
        )
    )
    assert not report.healthy
    assert str(report).splitlines() == [
        "✓ ok    torch   2.13.0",
        "✗ bad   memory  0.5 GiB available",
        "                -> close other programs",
        "To do before the lab works: 1 of 2, marked ✗ bad.",
    ]


def test_checking_this_machine_finds_it_ready():
    """The machine that runs these tests has all that the lab needs, so nothing may be red."""
    report = check_machine()
    assert report.healthy, str(report)
    assert {"Python", "torch", "device", "threads", "memory", "widgets", "data", "disk"} <= {
        finding.name for finding in report.findings
    }


def test_warnings_do_not_stop_the_lab():
    report = Report((Finding("memory", Status.WARN, "1.5 GiB available", "close other programs"),))
    assert report.healthy
    assert report.summary == "The lab works. To look at when you like: 1 of 1."


def test_html_shows_every_word_escaped_and_in_the_theme_s_colours():
    shown = Report((Finding("disk", Status.BAD, "<full>", "free & try"),))._repr_html_()
    assert "&lt;full&gt;" in shown
    assert "free &amp; try" in shown
    assert "✗ bad" in shown  # not by colour alone
    assert "var(--jp-error-color1" in shown
    assert not re.search(r"background|color: (black|white|#)", shown)  # would vanish in one of the two themes


@pytest.mark.parametrize("status", [Status.WARN, Status.BAD])
def test_what_is_not_well_needs_a_remedy(status):
    with pytest.raises(ValueError, match="says no remedy"):
        Finding("memory", status, "little")


def test_a_check_that_fails_is_a_finding_and_the_others_still_run(monkeypatch):
    def broken() -> Finding:
        raise RuntimeError("the driver is asleep")

    monkeypatch.setattr(doctor, "device", broken)
    findings = {finding.name: finding for finding in check_machine().findings}
    assert findings["device"].status is Status.BAD
    assert "RuntimeError: the driver is asleep" in findings["device"].what
    assert "disk" in findings


# Each check, with what was measured given


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10, 14), "bad"), ((3, 11, 0), "ok"), ((3, 13, 5), "ok"), ((3, 14, 0), "warn")],
)
def test_python(version, status):
    finding = doctor.python(version, "python3")
    assert finding.status == status
    assert finding.what == f"{'.'.join(map(str, version))} (python3)"


def test_a_package_is_missing_too_old_or_well():
    asked = {"torch": "2.11", "numpy": "2", "anywidget": "0.9.13"}
    found = {"labkit": "0.1.0", "torch": "2.9.1+cu128", "numpy": "2.4.6"}
    _, torch_, numpy_, anywidget_ = doctor.packages(asked, found.get)
    assert (torch_.status, torch_.remedy) == ("bad", "`pip install -U 'torch>=2.11'`")
    assert (numpy_.status, numpy_.what) == ("ok", "2.4.6")
    assert (anywidget_.status, anywidget_.what) == ("bad", "is not installed")


@pytest.mark.parametrize(("version", "status"), [("0.9.9", "bad"), ("0.9.13", "ok"), ("0.10", "ok"), ("1.0rc1", "ok")])
def test_versions_compare_as_numbers_not_as_text(version, status):
    *_, finding = doctor.packages({"anywidget": "0.9.13"}, {"labkit": "0.1.0", "anywidget": version}.get)
    assert finding.status == status


def test_labkit_that_is_not_installed_says_how_to_install_it():
    (finding,) = doctor.packages(None, lambda name: None)
    assert finding.status is Status.BAD
    assert "pip install -e ." in finding.remedy


@pytest.mark.parametrize(
    ("available", "status"),
    [(None, "warn"), (GIB - 1, "bad"), (GIB, "warn"), (2 * GIB - 1, "warn"), (2 * GIB, "ok")],
)
def test_memory(available, status):
    assert doctor.memory(available).status == status


def test_more_threads_than_usable_cores_is_a_warning_that_names_the_number():
    finding = doctor.judge_threads(2, {1: 0.010, 64: 0.900})
    assert finding.status is Status.WARN
    assert "OMP_NUM_THREADS=2" in finding.remedy


def test_where_threads_pay_the_doctor_says_how_to_ask_for_them():
    finding = doctor.judge_threads(8, {1: 0.010, 8: 0.002})
    assert finding.status is Status.OK
    assert "LABKIT_THREADS=8" in finding.remedy


def test_one_core_compares_nothing():
    assert doctor.judge_threads(1, {1: 0.010}).what.startswith("1 core; a tiny step takes 10.0 ms on 1 thread. ")


def extension(folder: Path, name: str, version: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "package.json").write_text(json.dumps({"name": name, "version": version}))


def test_front_ends_are_found_in_any_of_the_folders(tmp_path):
    extension(tmp_path / "environment", "anywidget", "0.11.0")
    extension(tmp_path / "user", "@jupyter-widgets/jupyterlab-manager", "5.0.16")
    finding = doctor.front_end([tmp_path / "environment", tmp_path / "user"])
    assert finding.status is Status.OK
    assert "anywidget 0.11.0" in finding.what
    assert "jupyterlab-manager 5.0.16" in finding.what


def test_a_missing_front_end_names_the_package_that_brings_it(tmp_path):
    extension(tmp_path, "anywidget", "0.11.0")
    finding = doctor.front_end([tmp_path])
    assert finding.status is Status.BAD
    assert "jupyterlab_widgets" in finding.remedy
    assert "anywidget" not in finding.remedy


def test_data_that_is_not_there_says_where_it_was_looked_for(monkeypatch, tmp_path):
    from labkit.train import digits

    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "nowhere"))
    for kept in (digits.single_digits, digits._digits):
        kept.cache_clear()
    try:
        finding = doctor.data()
    finally:
        monkeypatch.undo()
    assert finding.status is Status.BAD
    assert str(tmp_path / "nowhere") in finding.what


def test_a_folder_that_cannot_be_written(tmp_path):
    file = tmp_path / "a-file"
    file.touch()
    finding = doctor.disk(file)  # nobody, not even root, can make a file inside a file
    assert finding.status is Status.BAD
    assert str(file) in finding.what


def test_little_free_space_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: os.statvfs_result)
    monkeypatch.setattr(os.statvfs_result, "free", 10 * 2**20, raising=False)
    assert doctor.disk(tmp_path).status is Status.WARN


# The machine


def test_timing_a_step_puts_the_thread_count_back():
    before = torch.get_num_threads()
    assert machine.seconds_per_tiny_step(threads=before + 1, budget=0) > 0
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("name", "capability", "says"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0), "has Hopper Tensor Cores for FP16, BF16"),
        ("Tesla T4", (7, 5), "has Turing Tensor Cores for FP16."),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5), "has no Tensor Cores, unlike"),
        ("NVIDIA GeForce GTX 1080", (6, 1), "has no Tensor Cores (those came with 7.0)"),
    ],
)
def test_a_gpu_is_told_apart_by_its_tensor_cores(monkeypatch, name, capability, says):
    properties = SimpleNamespace(name=name, major=capability[0], minor=capability[1], total_memory=8 * GIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    what = doctor.device().what
    assert name in what
    assert says in what


def test_a_gpu_that_this_torch_has_no_programs_for_is_named(monkeypatch):
    """A V100 before a torch for CUDA 13: torch sees it, and every product would fail."""
    report = bench.DeviceReport("cuda", "Tesla V100", 0, 80, (7, 0))
    monkeypatch.setattr(bench, "device_report", lambda: report)
    monkeypatch.setattr(train.devices, "gpus", tuple)
    finding = doctor.device()
    assert finding.status is Status.WARN
    assert "Tesla V100 is here, but torch" in finding.what
    assert "trains on the CPU" in finding.what

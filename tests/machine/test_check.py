"""The check of the machine: each check returns each of its findings, the rare ones too, with what to do."""

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit.machine import Finding, Report, Status, check, check_machine, device, front_end
from labkit.records import system

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


def test_warnings_do_not_stop_the_lab_and_need_a_remedy():
    report = Report((Finding("memory", Status.WARN, "1.5 GiB available", "close other programs"),))
    assert report.healthy
    assert report.summary == "The lab works. Optional improvements: 1 of 1."
    for status in (Status.WARN, Status.BAD):
        with pytest.raises(ValueError, match="has no remedy"):
            Finding("memory", status, "little")


def test_html_shows_every_word_escaped_and_in_the_theme_s_colours():
    shown = Report((Finding("disk", Status.BAD, "<full>", "free & try"),))._repr_html_()
    assert "&lt;full&gt;" in shown
    assert "free &amp; try" in shown
    assert "✗ bad" in shown  # not by colour alone
    assert "var(--jp-error-color1" in shown
    assert not re.search(r"background|color: (black|white|#)", shown)  # would vanish in one of the two themes


def test_a_check_that_fails_is_a_finding_and_the_others_still_run(monkeypatch):
    def broken() -> Finding:
        raise RuntimeError("the driver is asleep")

    monkeypatch.setattr(check, "device", broken)
    monkeypatch.setattr(check, "import_problems", lambda names: {})  # which takes seconds
    findings = {finding.name: finding for finding in check_machine().findings}
    assert findings["device"].status is Status.BAD
    assert "RuntimeError: the driver is asleep" in findings["device"].what
    assert "disk" in findings


# Each check, with what was measured given


def test_python_memory_and_threads_by_what_was_measured():
    for version, status in (((3, 10, 14), "bad"), ((3, 11, 0), "ok"), ((3, 13, 5), "ok"), ((3, 14, 0), "warn")):
        finding = check.python(version, "python3")
        assert finding.status == status
        assert finding.what == f"{'.'.join(map(str, version))} (python3)"
    for free, status in ((None, "warn"), (GIB - 1, "bad"), (GIB, "warn"), (2 * GIB - 1, "warn"), (2 * GIB, "ok")):
        assert check.memory(free).status == status, free
    for free, container, status in ((GIB // 2, 1, "bad"), (GIB, 1, "warn"), (3 * GIB, 4, "ok")):
        finding = check.memory(free, container * GIB)
        assert finding.status == status
        assert f"in a container that may use {container}.0 GiB" in finding.what
        assert ("give the container 2 GiB or more" in finding.remedy) == (status != "ok")
    slower, faster = check.judge_threads(2, {1: 0.010, 64: 0.900}), check.judge_threads(8, {1: 0.010, 8: 0.002})
    assert (slower.status, faster.status) == (Status.WARN, Status.OK)
    assert "OMP_NUM_THREADS=2" in slower.remedy
    assert "LABKIT_THREADS=8" in faster.remedy
    assert check.judge_threads(1, {1: 0.010}).what.startswith("1 core; a tiny step takes 10.0 ms on 1 thread. ")


def test_a_package_is_missing_too_old_or_well_by_numbers_not_by_text():
    asked = {"torch": "2.11", "numpy": "2", "anywidget": "0.9.13"}
    found = {"fp16-lab": "0.1.0", "torch": "2.9.1+cu128", "numpy": "2.4.6"}
    _, torch_, numpy_, anywidget_ = check.packages(asked, found.get)
    assert (torch_.status, torch_.remedy) == ("bad", "`pip install -U 'torch>=2.11'`")
    assert (numpy_.status, numpy_.what) == ("ok", "2.4.6")
    assert (anywidget_.status, anywidget_.what) == ("bad", "is not installed")
    for version, status in (("0.9.9", "bad"), ("0.9.13", "ok"), ("0.10", "ok"), ("1.0rc1", "ok")):
        *_, finding = check.packages({"anywidget": "0.9.13"}, {"fp16-lab": "0.1.0", "anywidget": version}.get)
        assert finding.status == status, version
    (finding,) = check.packages(None, lambda name: None)  # labkit itself is not installed
    assert finding.status is Status.BAD
    assert "pip install -e ." in finding.remedy


def test_another_distribution_with_a_package_labkit_is_named(tmp_path, monkeypatch):
    assert not list(check.other_labkit(["fp16-lab", "fp16-lab"]))
    (tmp_path / "labkit-9.dist-info").mkdir()
    (tmp_path / "labkit-9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: labkit\nVersion: 9\n")
    (tmp_path / "labkit-9.dist-info" / "top_level.txt").write_text("labkit\n")
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = (f for f in check.check_machine().findings if "another package" in f.what)
    assert (finding.name, finding.status) == ("labkit", "warn")
    assert "`pip uninstall labkit`, then install the lab again" in finding.remedy


def extension(folder: Path, name: str, version: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "package.json").write_text(json.dumps({"name": name, "version": version}))


def test_front_ends_are_found_in_any_of_the_folders_and_a_missing_one_names_its_package(tmp_path):
    extension(tmp_path / "environment", "anywidget", "0.11.0")
    missing = front_end.front_end([tmp_path / "environment"])
    assert missing.status is Status.BAD
    assert "jupyterlab_widgets" in missing.remedy
    assert "anywidget" not in missing.remedy
    extension(tmp_path / "user", "@jupyter-widgets/jupyterlab-manager", "5.0.16")
    finding = front_end.front_end([tmp_path / "environment", tmp_path / "user"])
    assert finding.status is Status.OK
    assert "anywidget 0.11.0" in finding.what
    assert "jupyterlab-manager 5.0.16" in finding.what
    hosted = front_end.front_end([tmp_path], hosted=front_end.host({"COLAB_RELEASE_TAG": "x"}))
    assert hosted.what.startswith("Colab shows"), "a host with a manager of its own needs no extension"


def test_data_that_is_not_there_says_where_it_was_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "nowhere"))
    finding = check.data()
    assert finding.status is Status.BAD
    assert str(tmp_path / "nowhere") in finding.what


def test_a_folder_that_cannot_be_written_or_has_little_space(monkeypatch, tmp_path):
    file = tmp_path / "a-file"
    file.touch()
    finding = check.disk(file)  # nobody, not even root, can make a file inside a file
    assert finding.status is Status.BAD
    assert str(file) in finding.what
    monkeypatch.setattr(check.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10 * 2**20))
    assert check.disk(tmp_path).status is Status.WARN


# The machine


def test_timing_a_step_puts_the_thread_count_back():
    before = torch.get_num_threads()
    assert check.seconds_per_tiny_step(threads=before + 1, budget=0) > 0
    assert torch.get_num_threads() == before


def test_a_gpu_is_described_and_one_that_this_torch_has_no_programs_for_is_named(monkeypatch):
    """A V100 before a torch for CUDA 13: torch sees it, and every product would fail."""
    report = device.DeviceReport("cuda", "Tesla V100", 16 * GIB, 80, (7, 0), device.generation_of("", (7, 0)))
    monkeypatch.setattr(device, "device_report", lambda: report)
    monkeypatch.setattr(device, "usable_gpus", lambda: [(0, "Tesla V100")])
    assert check.device() == Finding("device", Status.OK, f"{report.facts}. {report.meaning}")
    monkeypatch.setattr(device, "usable_gpus", list)
    finding = check.device()
    assert finding.status is Status.WARN
    assert "Tesla V100 is here, but torch" in finding.what
    assert "trains on the CPU" in finding.what


# Faked machines: what each is good for, and where its widgets come from

T4 = device.DeviceReport("cuda", "Tesla T4", 15 * GIB, 40, (7, 5), device.generation_of("Tesla T4", (7, 5)))
H100 = device.DeviceReport("cuda", "H100", 80 * GIB, 132, (9, 0), device.generation_of("H100", (9, 0)))
PASCAL = device.DeviceReport("cuda", "GTX 1080", 8 * GIB, 20, (6, 1))
CPU = device.DeviceReport("cpu", "Some CPU", 0, 2)


def test_what_a_machine_is_good_for():
    for report, mps, says in (
        (T4, False, "only fast 16-bit format"),
        (T4, False, "is_bf16_supported(including_emulation=False) says False"),
        (H100, False, "live, with FP16, BF16"),
        (PASCAL, False, "gains little speed"),
        (CPU, False, "what others published"),
        (CPU, True, "no FP64, and its fused optimizers ignored found_inf"),
    ):
        finding = check.good_for(report, mps)
        assert finding.status is Status.OK
        assert says in finding.what


def test_a_container_says_its_limit(tmp_path):
    assert system.container_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert system.container_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    assert system.container_memory(tmp_path) == GIB
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert system.container_memory(tmp_path) is None


def test_a_front_end_that_was_switched_off_is_named_with_how_to_switch_it_on(tmp_path, monkeypatch):
    """`jupyter labextension disable anywidget` leaves the files where they are, and notes it in a file of its own."""
    for name in front_end.EXTENSIONS:
        extension(tmp_path / "extensions", name, "1.0")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    page = tmp_path / "config" / "labconfig" / "page_config.json"
    page.parent.mkdir(parents=True)
    for on in ('{"disabledExtensions": {"anywidget": false}}', '{"disabledExtensions": ["anywidget"]}', "{"):
        page.write_text(on)  # or what cannot be read
        assert front_end.front_end([tmp_path / "extensions"]).status is Status.OK, on
    page.write_text('{"disabledExtensions": {"anywidget": true}}')
    finding = front_end.front_end([tmp_path / "extensions"])
    assert finding.status is Status.BAD
    assert finding.remedy == "`jupyter labextension enable anywidget`, then restart JupyterLab"


def test_why_nothing_is_shown_is_known_where_a_server_started_this(monkeypatch, tmp_path):
    monkeypatch.setattr(front_end, "extension_folders", list)
    monkeypatch.setattr(front_end, "host", lambda environment: None)
    for server, reason in ((None, None), (tmp_path, "no front end for jupyterlab_widgets or anywidget")):
        monkeypatch.setattr(front_end.system, "server_prefix", lambda it=server: it)
        found = front_end.why_not_shown()
        assert found is None if reason is None else reason in found.what


def test_a_server_without_anywidget_is_named_with_its_own_cure(tmp_path, monkeypatch):
    """The kernel has both extensions, the hub's server only one of them."""
    kernel, server = tmp_path / "kernel", tmp_path / "hub"
    monkeypatch.setattr("sys.prefix", str(kernel))
    for name in front_end.EXTENSIONS:
        extension(kernel / "share" / "jupyter" / "labextensions", name, "1.0")
    extension(server / "share" / "jupyter" / "labextensions", "@jupyter-widgets/jupyterlab-manager", "5.0")
    folders = [kernel / "share" / "jupyter" / "labextensions"]
    assert front_end.front_end(folders).status is Status.OK
    finding = front_end.front_end(folders, server)
    assert finding.status is Status.BAD
    assert f"no front end for anywidget in {server}, whose server shows this page" in finding.what
    assert re.search(r"hub.*python -m pip install --force-reinstall --no-deps anywidget`", finding.remedy)
    extension(tmp_path / "user", "anywidget", "0.9.21")
    assert front_end.front_end([*folders, tmp_path / "user"], server).status is Status.OK, (
        "a user's extensions are shared"
    )


def test_the_server_is_recognised_by_its_command(tmp_path, monkeypatch):
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert system.server_prefix(tmp_path) is None
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cmdline").write_bytes(b"/srv/hub/bin/python3.12\0-m\0jupyterlab\0")
    monkeypatch.setenv("JPY_PARENT_PID", "77")
    assert system.server_prefix(tmp_path) == Path("/srv/hub")
    (tmp_path / "77" / "cmdline").write_bytes(b"jupyter-lab\0")
    assert system.server_prefix(tmp_path) is None


def test_old_ipywidgets_by_the_requirements_that_pip_writes_down(monkeypatch):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [re.sub(r">=([\d.]+),<(\d)", r"<\2,>=\1", line) for line in project["dependencies"]]
    extras = [f'{line}; extra == "lab"' for line in project["optional-dependencies"]["lab"]]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: lines + extras)
    asked = check.requirements()
    assert asked["torch"] == "2.10"
    assert "jupyterlab" not in asked, "an extra is no requirement"
    for version, status in (("7.5.1", "bad"), ("7.7.1", "ok"), ("8.1.9", "ok")):
        *_, finding = check.packages({"ipywidgets": asked["ipywidgets"]}, {"fp16-lab": "1", "ipywidgets": version}.get)
        assert finding.status == status, version

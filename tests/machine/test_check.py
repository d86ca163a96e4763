"""The check of the machine: each finding with its remedy, for simulated GPUs and CPUs."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit.machine import (
    Finding,
    Report,
    Status,
    check,
    check_machine,
    device,
    front_end,
    resources,
)
from labkit.machine.device import DeviceReport, device_report, generation_of, has_programs
from labkit.records import provenance

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


def extension(folder: Path, name: str, version: str) -> None:
    """Install a front end of JupyterLab into a folder of extensions."""
    (folder / name).mkdir(parents=True)
    (folder / name / "package.json").write_text(json.dumps({"name": name, "version": version}))


def test_a_missing_front_end_is_named(tmp_path):
    extension(tmp_path, "anywidget", "0.11.0")
    finding = front_end.front_end([tmp_path])
    require(finding, Status.BAD, "jupyterlab_widgets")
    assert "anywidget" not in finding.remedy


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_front_end_counts_as_missing(tmp_path, text):
    for name in front_end.EXTENSIONS:
        extension(tmp_path, name, "1.0")
    (tmp_path / "anywidget" / "package.json").write_text(text)
    require(front_end.front_end([tmp_path]), Status.BAD, "no front end for anywidget")


def test_front_ends_may_be_in_several_folders(tmp_path):
    extension(tmp_path / "environment", "anywidget", "0.11.0")
    extension(tmp_path / "user", "@jupyter-widgets/jupyterlab-manager", "5.0.16")
    finding = front_end.front_end([tmp_path / "environment", tmp_path / "user"])
    require(finding, Status.OK, "anywidget 0.11.0", "jupyterlab-manager 5.0.16")


def test_a_host_with_a_manager_of_its_own_needs_no_front_end(tmp_path):
    host = front_end.host({"COLAB_RELEASE_TAG": "x"})
    assert front_end.front_end([tmp_path], hosted=host).what.startswith("Colab shows")


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


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        (b"/somewhere/lab/bin/python3\0-m\0jupyterlab", Path("/somewhere/lab")),
        (b"/srv/hub/bin/python3.12\0-m\0jupyterlab\0", Path("/srv/hub")),
        (b"/python3\0-m\0jupyterlab", None),
        (b"python3\0-m\0jupyterlab", None),
        (b"jupyter-lab\0", None),
    ],
)
def test_the_prefix_of_a_server_is_that_of_its_python(monkeypatch, tmp_path, command, prefix):
    """A Python without a folder `bin` above it has no known prefix."""
    monkeypatch.setenv("JPY_PARENT_PID", "7")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(command)
    assert front_end.server_prefix(tmp_path) == prefix


def test_without_a_server_there_is_no_prefix(monkeypatch, tmp_path):
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert front_end.server_prefix(tmp_path) is None


@pytest.fixture
def v100(monkeypatch):
    """The report of a V100, which torch sees."""
    report = DeviceReport("cuda", "Tesla V100", 16 * GIB, 80, (7, 0), generation_of("", (7, 0)))
    monkeypatch.setattr(device, "device_report", lambda: report)
    return report


def test_a_gpu_with_programs_for_it_is_described(v100, monkeypatch):
    monkeypatch.setattr(device, "usable_gpus", lambda: [(0, "Tesla V100")])
    assert check.device() == Finding("device", Status.OK, f"{v100.facts}. {v100.meaning}")


@pytest.mark.usefixtures("v100")
def test_a_gpu_without_programs_for_it_is_named(monkeypatch):
    """A V100 before a torch for CUDA 13: torch sees it, and every product would fail."""
    monkeypatch.setattr(device, "usable_gpus", list)
    require(check.device(), Status.WARN, "Tesla V100 is here, but torch", "trains on the CPU")


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


T4 = DeviceReport("cuda", "Tesla T4", 15 * GIB, 40, (7, 5), generation_of("Tesla T4", (7, 5)))
H100 = DeviceReport("cuda", "H100", 80 * GIB, 132, (9, 0), generation_of("H100", (9, 0)))
PASCAL = DeviceReport("cuda", "GTX 1080", 8 * GIB, 20, (6, 1))
CPU = DeviceReport("cpu", "Some CPU", 0, 2)


def published_speeds(name, capability):
    """Return the findings about a card's published speeds as one text, "" if there are none."""
    findings = check.published_speeds(DeviceReport("cuda", name, 8 * GIB, 20, capability))
    return " ".join(finding.what for finding in findings)


def test_published_speeds_of_a_fast_card_have_a_source():
    says = published_speeds("NVIDIA H200", (9, 0))
    assert "FP16 15 times as fast as FP32" in says
    assert "zzc0721/torch-performance-test-data/database.md" in says


def test_published_speeds_say_where_fp16_is_slower():
    assert "FP16 slower than FP32" in published_speeds("NVIDIA GeForce GTX 1660 Ti", (7, 5))


def test_published_speeds_say_where_bf16_is_emulated():
    says = published_speeds("NVIDIA GeForce RTX 2080 Ti", (7, 5))
    assert "FP16 4.5 times as fast" in says
    assert "this card emulates BF16" in says


def test_of_many_published_products_the_largest_counts():
    says = published_speeds("Tesla T4", (7, 5))
    assert "FP16 9.6 times as fast as FP32" in says
    assert says.count("FP16") == 1
    assert says.count("BF16 slower") == 1


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 3080 Ti", "NVIDIA GeForce RTX 4060 Laptop GPU", "Imaginary 9000"]
)
def test_published_speeds_of_another_card_are_not_given(name):
    assert published_speeds(name, (8, 6)) == ""


def test_a_card_without_its_name_in_the_source_is_not_found():
    assert published_speeds("NVIDIA RTX PRO 4000 Blackwell", (12, 0)) == ""


def test_published_speeds_of_a_cpu_are_those_of_its_model():
    report = DeviceReport("cpu", "Intel(R) Xeon(R) Gold 6459C", 0, 32)
    assert "BF16 5.8 times as fast" in check.published_speeds(report)[0].what


@pytest.mark.parametrize(
    ("report", "mps", "words"),
    [
        (T4, False, "only fast 16-bit format"),
        (T4, False, "is_bf16_supported(including_emulation=False) says False"),
        (H100, False, "live, with FP16, BF16"),
        (PASCAL, False, "gains little speed"),
        (CPU, False, "what others published"),
        (CPU, True, "no FP64, and its fused optimizers ignored found_inf"),
    ],
    ids=["T4", "T4 and BF16", "H100", "Pascal", "CPU", "CPU with MPS"],
)
def test_the_check_says_what_a_machine_is_good_for(report, mps, words):
    require(check.good_for(report, mps), Status.OK, words)


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
def page_config(tmp_path, monkeypatch):
    """The file in which JupyterLab notes disabled extensions; both front ends are installed."""
    for name in front_end.EXTENSIONS:
        extension(tmp_path / "extensions", name, "1.0")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    page = tmp_path / "config" / "labconfig" / "page_config.json"
    page.parent.mkdir(parents=True)
    return page


@pytest.mark.parametrize(
    "text",
    [
        '{"disabledExtensions": {"anywidget": false}}',
        '{"disabledExtensions": ["anywidget"]}',
        "{",
    ],
    ids=["enabled", "a list", "not JSON"],
)
def test_a_front_end_that_is_not_disabled_counts_as_enabled(page_config, tmp_path, text):
    page_config.write_text(text)
    assert front_end.front_end([tmp_path / "extensions"]).status is Status.OK


def test_a_disabled_front_end_is_named_with_its_remedy(page_config, tmp_path):
    """`jupyter labextension disable anywidget` leaves the extension's files where they are."""
    page_config.write_text('{"disabledExtensions": {"anywidget": true}}')
    remedy = "`jupyter labextension enable anywidget`, then restart JupyterLab"
    require(front_end.front_end([tmp_path / "extensions"]), Status.BAD, remedy)


@pytest.fixture
def kernel_extensions(tmp_path, monkeypatch):
    """The kernel's folder of extensions, which has both; the server in `hub` has one of them."""
    monkeypatch.setattr("sys.prefix", str(tmp_path / "kernel"))
    folder = tmp_path / "kernel" / "share" / "jupyter" / "labextensions"
    for name in front_end.EXTENSIONS:
        extension(folder, name, "1.0")
    of_hub = tmp_path / "hub" / "share" / "jupyter" / "labextensions"
    extension(of_hub, "@jupyter-widgets/jupyterlab-manager", "5.0")
    return folder


def test_extensions_of_the_kernel_count_without_a_server(kernel_extensions):
    assert front_end.front_end([kernel_extensions]).status is Status.OK


def test_a_server_without_anywidget_is_named_with_its_remedy(kernel_extensions, tmp_path):
    server = tmp_path / "hub"
    finding = front_end.front_end([kernel_extensions], server)
    words = f"no front end for anywidget in {server}, whose server shows this page"
    require(finding, Status.BAD, words)
    command = r"hub.*python -m pip install --force-reinstall --no-deps anywidget`"
    assert re.search(command, finding.remedy)


def test_an_extension_of_the_user_counts_for_the_server(kernel_extensions, tmp_path):
    extension(tmp_path / "user", "anywidget", "0.9.21")
    folders = [kernel_extensions, tmp_path / "user"]
    assert front_end.front_end(folders, tmp_path / "hub").status is Status.OK


@pytest.fixture
def no_extensions(monkeypatch):
    """Neither a host that shows widgets itself, nor any folder of extensions."""
    monkeypatch.setattr(front_end, "extension_folders", list)
    monkeypatch.setattr(front_end, "host", lambda environment: None)


@pytest.mark.usefixtures("no_extensions")
def test_without_a_server_nothing_is_said_of_widgets(monkeypatch):
    monkeypatch.setattr(front_end, "server_prefix", lambda: None)
    assert front_end.why_not_shown() is None


@pytest.mark.usefixtures("no_extensions")
def test_a_server_without_front_ends_is_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(front_end, "server_prefix", lambda: tmp_path)
    finding = front_end.why_not_shown()
    assert "no front end for jupyterlab_widgets or anywidget" in finding.what


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


@pytest.fixture
def gpu(monkeypatch):
    """A function that lets torch and nvidia-smi report a GPU; without a driver, smi is missing."""

    def report_gpu(name, capability, driver="580.1"):
        major, minor = capability
        properties = SimpleNamespace(
            name=name,
            major=major,
            minor=minor,
            total_memory=80 * GIB,
            multi_processor_count=132,
        )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)

        def smi(command, **_):
            if driver is None:
                raise FileNotFoundError(command[0])
            # A line for each of two GPUs.
            return SimpleNamespace(stdout=f"{driver}\n{driver}\n")

        monkeypatch.setattr(subprocess, "run", smi)

    return report_gpu


def test_worked_example_of_a_gpu(gpu):
    gpu("NVIDIA H100 80GB HBM3", (9, 0))
    report = device_report()
    assert report.facts == (
        "NVIDIA H100 80GB HBM3, 80 GiB, compute capability 9.0, has Hopper Tensor Cores for "
        "FP16, BF16, TF32, E4M3, E5M2, FP64"
    )
    assert "`make gpu`" in report.meaning
    assert report.slug == "nvidia-h100-80gb-hbm3"
    assert report.driver == "580.1"
    assert report.spec == "H100"


@pytest.mark.parametrize(
    ("name", "capability", "words", "spec"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), "has Volta Tensor Cores for FP16", "V100"),
        ("Tesla T4", (7, 5), "has Turing Tensor Cores for FP16", "T4"),
        (
            "NVIDIA A100-SXM4-40GB",
            (8, 0),
            "has Ampere Tensor Cores for FP16, BF16, TF32, FP64",
            "A100",
        ),
        (
            "NVIDIA GeForce RTX 4090",
            (8, 9),
            "has Ada Tensor Cores for FP16, BF16, TF32, E4M3, E5M2",
            "Ada",
        ),
        ("NVIDIA H200", (9, 0), "has Hopper", "H200"),
        ("NVIDIA B200", (10, 0), "has Blackwell", "B200"),
        (
            "NVIDIA GeForce GTX 1660 Ti",
            (7, 5),
            "has no Tensor Cores, unlike most of its generation",
            None,
        ),
        ("NVIDIA GeForce GTX 1080", (6, 1), "has no Tensor Cores (those came with 7.0)", None),
        ("NVIDIA Next", (15, 0), "is newer than the lab's table of Tensor Cores", None),
    ],
)
def test_the_generation_of_a_gpu_is_described(gpu, name, capability, words, spec):
    gpu(name, capability)
    report = device_report("cuda")
    assert words in report.facts
    assert report.spec == spec


def test_a_gpu_without_tensor_cores_gains_little(gpu):
    gpu("NVIDIA GeForce GTX 1080", (6, 1))
    assert "gains little or nothing" in device_report().meaning


@pytest.mark.parametrize(
    ("name", "capability", "hip"),
    [("AMD Instinct MI300X", (9, 4), "7.0"), ("NVIDIA Next", (15, 0), None)],
)
def test_a_gpu_outside_of_the_table_is_described(gpu, monkeypatch, name, capability, hip):
    gpu(name, capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    report = device_report()
    assert "table" in report.facts
    assert "Every timing of the lab can be measured here, but" in report.meaning
    assert report.tensor_cores == ()


def test_without_nvidia_smi_the_kernels_module_names_the_driver(gpu, monkeypatch, tmp_path):
    gpu("NVIDIA B200", (10, 0), driver=None)
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    )
    monkeypatch.setattr(provenance, "DRIVER", version)
    assert device_report().driver == "580.95.05"


def test_without_nvidia_smi_and_module_the_driver_is_unknown(gpu, monkeypatch, tmp_path):
    gpu("NVIDIA B200", (10, 0), driver=None)
    monkeypatch.setattr(provenance, "DRIVER", tmp_path / "missing")
    assert device_report().driver is None


@pytest.mark.parametrize(
    ("key", "flags", "instructions", "meaning"),
    [
        (
            "flags",
            "fpu avx512_bf16 avx2",
            ("AVX512-BF16",),
            "and BF16 can multiply large matrices faster than FP32",
        ),
        (
            "flags",
            "avx512_fp16 amx_bf16",
            ("AVX512-FP16", "AMX-BF16"),
            "and FP16 and BF16 can multiply",
        ),
        ("flags", "avx2 fma", (), "but no format is faster than FP32"),
        (
            "Features",
            "fp asimdhp bf16 sve",
            ("Arm BF16", "Arm FP16"),
            "and FP16 and BF16 can multiply",
        ),
    ],
    ids=["BF16", "FP16 and AMX", "neither", "Arm"],
)
def test_a_cpu_is_described_by_its_flags(monkeypatch, key, flags, instructions, meaning):
    """The key is that of Linux: "flags" of x86, "Features" of Arm."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    monkeypatch.setattr(resources, "cpuinfo", lambda: {"model name": "Some CPU", key: flags})
    report = device_report("cpu")
    assert report.instructions == instructions
    assert report.facts.startswith("Some CPU: ")
    assert meaning in report.meaning


def test_without_cpuinfo_a_cpu_is_described_by_torch(monkeypatch):
    capabilities = {"avx512_bf16": True, "avx512_fp16": False, "cpu_name": "Some CPU"}
    monkeypatch.setattr(resources, "cpuinfo", dict)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert device_report("cpu").instructions == ("AVX512-BF16",)


@pytest.mark.parametrize("device", ["mps", "toaster"])
def test_an_unknown_device_is_refused(device):
    with pytest.raises(ValueError, match=f'expected "cpu" or "cuda", got {device!r}'):
        device_report(device)


def test_cuda_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match='got "cuda", but torch reaches no GPU'):
        device_report("cuda")


@pytest.mark.parametrize(
    ("capability", "programs", "runs"),
    [
        # A program of the same generation, and not of a later card or an earlier generation.
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((8, 0), ["sm_75"], False),
        # A V100 before a torch for CUDA 13.
        ((7, 0), ["sm_75", "sm_80", "sm_90", "compute_120"], False),
        # The driver translates "compute_90" for cards that came later.
        ((12, 0), ["sm_90", "compute_90"], True),
        ((10, 0), ["sm_100a"], True),
        # The letter a: this card only.
        ((10, 3), ["sm_100a"], False),
        # Torch does not say what it was built for.
        ((9, 0), [], True),
    ],
    ids=[
        "older",
        "newer",
        "another generation",
        "V100",
        "translated",
        "suffix",
        "another card",
        "unknown",
    ],
)
def test_a_gpu_runs_programs_by_nvidias_rules(capability, programs, runs):
    assert has_programs(capability, programs) == runs

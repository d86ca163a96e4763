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


def hold(finding: Finding, status: Status, *words: str) -> None:
    """Require that a finding has this status, and these words in its text or its remedy."""
    assert finding.status is status
    assert [each for each in words if each not in f"{finding.what} {finding.remedy}"] == []


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
    assert (report.healthy, report.summary) == (
        True,
        "The lab works. Optional improvements: 1 of 1.",
    )


def test_a_problem_needs_a_remedy():
    for status in (Status.WARN, Status.BAD):
        with pytest.raises(ValueError, match="has no remedy"):
            Finding("memory", status, "little")


def test_a_report_as_html_is_escaped_and_readable_in_both_themes():
    shown = Report((Finding("disk", Status.BAD, "<full>", "free & try"),))._repr_html_()
    # The status is a word, too, not only a colour.
    for words in ("&lt;full&gt;", "free &amp; try", "✗ bad", "var(--jp-error-color1"):
        assert words in shown
    # Such a colour would be invisible in one of the two themes.
    assert not re.search(r"background|color: (black|white|#)", shown)


def test_failing_check_is_a_finding_beside_the_others(
    monkeypatch,
):
    """The machine that runs these tests has all that the lab needs, so nothing may be red."""
    report = check_machine()
    assert report.healthy, str(report)
    names = {"Python", "torch", "device", "threads", "memory", "widgets", "data", "disk"}
    assert names <= {finding.name for finding in report.findings}

    def broken() -> Finding:
        raise RuntimeError("the driver is asleep")

    monkeypatch.setattr(check, "device", broken)
    # The imports take seconds.
    monkeypatch.setattr(check, "import_problems", lambda names: {})
    findings = {finding.name: finding for finding in check_machine().findings}
    hold(findings["device"], Status.BAD, "RuntimeError: the driver is asleep")
    assert "disk" in findings


def test_python_is_judged_by_its_version():
    for version, status in (
        ((3, 10, 14), "bad"),
        ((3, 11, 0), "ok"),
        ((3, 13, 5), "ok"),
        ((3, 14, 0), "warn"),
    ):
        finding = check.python(version, "python3")
        assert finding.status == status
        assert finding.what == f"{'.'.join(map(str, version))} (python3)"


def test_memory_is_judged_by_what_is_free_and_by_the_container():
    for free, status in (
        (None, "warn"),
        (GIB - 1, "bad"),
        (GIB, "warn"),
        (2 * GIB - 1, "warn"),
        (2 * GIB, "ok"),
    ):
        assert check.memory(free).status == status, free
    for free, container, status in ((GIB // 2, 1, "bad"), (GIB, 1, "warn"), (3 * GIB, 4, "ok")):
        finding = check.memory(free, container * GIB)
        assert finding.status == status
        assert f"in a container that may use {container}.0 GiB" in finding.what
        assert ("give the container 2 GiB or more" in finding.remedy) == (status != "ok")


def test_threads_are_judged_by_their_times():
    hold(check.judge_threads(2, {1: 0.010, 64: 0.900}), Status.WARN, "OMP_NUM_THREADS=2")
    hold(check.judge_threads(8, {1: 0.010, 8: 0.002}), Status.OK, "LABKIT_THREADS=8")
    assert check.judge_threads(1, {1: 0.010}).what.startswith(
        "1 core; a tiny step takes 10.0 ms on 1 thread. "
    )


def test_versions_are_compared_by_number_not_by_text():
    asked = {"torch": "2.11", "numpy": "2", "anywidget": "0.9.13"}
    found = {"fp16-lab": "0.1.0", "torch": "2.9.1+cu128", "numpy": "2.4.6"}
    _, torch_, numpy_, anywidget_ = check.packages(asked, found.get)
    assert torch_.status == "bad"
    assert torch_.remedy == "`pip install -U 'torch>=2.11'`"
    assert numpy_.status == "ok"
    assert numpy_.what == "2.4.6"
    assert anywidget_.status == "bad"
    assert anywidget_.what == "is not installed"
    for version, status in (("0.9.9", "bad"), ("0.9.13", "ok"), ("0.10", "ok"), ("1.0rc1", "ok")):
        *_, finding = check.packages(
            {"anywidget": "0.9.13"}, {"fp16-lab": "0.1.0", "anywidget": version}.get
        )
        assert finding.status == status, version
    (finding,) = check.packages(None, lambda name: None)  # labkit itself is not installed
    hold(finding, Status.BAD, "pip install -e .")


def test_another_distribution_with_a_package_labkit_is_named(tmp_path, monkeypatch):
    assert not list(check.other_labkit(["fp16-lab", "fp16-lab"]))
    (tmp_path / "labkit-9.dist-info").mkdir()
    (tmp_path / "labkit-9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: labkit\nVersion: 9\n"
    )
    (tmp_path / "labkit-9.dist-info" / "top_level.txt").write_text("labkit\n")
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = (f for f in check.check_machine().findings if "another package" in f.what)
    hold(finding, Status.WARN, "`pip uninstall labkit`, then install the lab again")


def extension(folder: Path, name: str, version: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "package.json").write_text(json.dumps({"name": name, "version": version}))


def test_front_ends_are_found_in_any_folder(tmp_path):
    extension(tmp_path / "environment", "anywidget", "0.11.0")
    missing = front_end.front_end([tmp_path / "environment"])
    hold(missing, Status.BAD, "jupyterlab_widgets")
    assert "anywidget" not in missing.remedy
    extension(tmp_path / "user", "@jupyter-widgets/jupyterlab-manager", "5.0.16")
    both = front_end.front_end([tmp_path / "environment", tmp_path / "user"])
    hold(both, Status.OK, "anywidget 0.11.0", "jupyterlab-manager 5.0.16")
    hosted = front_end.front_end([tmp_path], hosted=front_end.host({"COLAB_RELEASE_TAG": "x"}))
    assert hosted.what.startswith("Colab shows"), (
        "a host with a manager of its own needs no extension"
    )


def test_missing_data_and_unwritable_folders_are_findings(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "nowhere"))
    hold(check.data(), Status.BAD, str(tmp_path / "nowhere"))
    file = tmp_path / "a-file"
    file.touch()
    # nobody, not even root, can make a file inside a file
    hold(check.disk(file), Status.BAD, str(file))
    monkeypatch.setattr(check.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10 * 2**20))
    assert check.disk(tmp_path).status is Status.WARN


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 truncated", b"no archive"])
def test_damaged_data_are_a_finding_with_a_remedy(content, monkeypatch, tmp_path):
    (tmp_path / "digits.npz").write_bytes(content)
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    finding = check.data()
    assert finding.status is Status.BAD
    assert "git checkout -- data" in finding.remedy


def test_a_server_of_an_unusual_python_has_no_known_prefix(monkeypatch, tmp_path):
    monkeypatch.setenv("JPY_PARENT_PID", "7")
    (tmp_path / "7").mkdir()
    for command, prefix in (
        (b"/somewhere/lab/bin/python3\0-m\0jupyterlab", Path("/somewhere/lab")),
        (b"/python3\0-m\0jupyterlab", None),
        (b"python3\0-m\0jupyterlab", None),
    ):
        (tmp_path / "7" / "cmdline").write_bytes(command)
        assert front_end.server_prefix(tmp_path) == prefix


def test_gpu_without_programs_for_it_is_named(monkeypatch):
    """A V100 before a torch for CUDA 13: torch sees it, and every product would fail."""
    report = DeviceReport("cuda", "Tesla V100", 16 * GIB, 80, (7, 0), generation_of("", (7, 0)))
    monkeypatch.setattr(device, "device_report", lambda: report)
    monkeypatch.setattr(device, "usable_gpus", lambda: [(0, "Tesla V100")])
    assert check.device() == Finding("device", Status.OK, f"{report.facts}. {report.meaning}")
    monkeypatch.setattr(device, "usable_gpus", list)
    hold(check.device(), Status.WARN, "Tesla V100 is here, but torch", "trains on the CPU")
    before = torch.get_num_threads()
    assert check.seconds_per_tiny_step(threads=before + 1, budget=0) > 0
    assert torch.get_num_threads() == before, "it is put back"


T4 = DeviceReport("cuda", "Tesla T4", 15 * GIB, 40, (7, 5), generation_of("Tesla T4", (7, 5)))
H100 = DeviceReport("cuda", "H100", 80 * GIB, 132, (9, 0), generation_of("H100", (9, 0)))
PASCAL = DeviceReport("cuda", "GTX 1080", 8 * GIB, 20, (6, 1))
CPU = DeviceReport("cpu", "Some CPU", 0, 2)


def published_speeds(name, capability):
    """Return what the check says of a card's published speeds; "" if it says nothing."""
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


def test_what_a_machine_is_good_for():
    for report, mps, says in (
        (T4, False, "only fast 16-bit format"),
        (T4, False, "is_bf16_supported(including_emulation=False) says False"),
        (H100, False, "live, with FP16, BF16"),
        (PASCAL, False, "gains little speed"),
        (CPU, False, "what others published"),
        (CPU, True, "no FP64, and its fused optimizers ignored found_inf"),
    ):
        hold(check.good_for(report, mps), Status.OK, says)


def test_container_states_its_limit(tmp_path, monkeypatch):
    assert resources.container_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert resources.container_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    assert resources.container_memory(tmp_path) == GIB
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert resources.container_memory(tmp_path) is None
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert front_end.server_prefix(tmp_path) is None
    monkeypatch.setenv("JPY_PARENT_PID", "77")
    (tmp_path / "77").mkdir()
    for command, prefix in (
        (b"/srv/hub/bin/python3.12\0-m\0jupyterlab\0", Path("/srv/hub")),
        (b"jupyter-lab\0", None),
    ):
        (tmp_path / "77" / "cmdline").write_bytes(command)
        assert front_end.server_prefix(tmp_path) == prefix


def test_disabled_front_end_is_named_with_its_remedy(tmp_path, monkeypatch):
    """`jupyter labextension disable anywidget` leaves the files where they are, and notes it in a
    file of its own.
    """
    for name in front_end.EXTENSIONS:
        extension(tmp_path / "extensions", name, "1.0")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    page = tmp_path / "config" / "labconfig" / "page_config.json"
    page.parent.mkdir(parents=True)
    for on in (
        '{"disabledExtensions": {"anywidget": false}}',
        '{"disabledExtensions": ["anywidget"]}',
        "{",
    ):
        page.write_text(on)  # or what cannot be read
        assert front_end.front_end([tmp_path / "extensions"]).status is Status.OK, on
    page.write_text('{"disabledExtensions": {"anywidget": true}}')
    cure = "`jupyter labextension enable anywidget`, then restart JupyterLab"
    hold(front_end.front_end([tmp_path / "extensions"]), Status.BAD, cure)


def test_a_server_without_anywidget_is_named_with_its_own_cure(tmp_path, monkeypatch):
    """The kernel has both extensions, the hub's server only one of them."""
    kernel = tmp_path / "kernel"
    server = tmp_path / "hub"
    monkeypatch.setattr("sys.prefix", str(kernel))
    for name in front_end.EXTENSIONS:
        extension(kernel / "share" / "jupyter" / "labextensions", name, "1.0")
    extension(
        server / "share" / "jupyter" / "labextensions", "@jupyter-widgets/jupyterlab-manager", "5.0"
    )
    folders = [kernel / "share" / "jupyter" / "labextensions"]
    assert front_end.front_end(folders).status is Status.OK
    finding = front_end.front_end(folders, server)
    hold(
        finding, Status.BAD, f"no front end for anywidget in {server}, whose server shows this page"
    )
    assert re.search(
        r"hub.*python -m pip install --force-reinstall --no-deps anywidget`", finding.remedy
    )
    extension(tmp_path / "user", "anywidget", "0.9.21")
    shared = [*folders, tmp_path / "user"]  # a user's extensions
    assert front_end.front_end(shared, server).status is Status.OK
    monkeypatch.setattr(front_end, "extension_folders", list)
    monkeypatch.setattr(front_end, "host", lambda environment: None)
    for started_by, reason in (
        (None, None),
        (tmp_path, "no front end for jupyterlab_widgets or anywidget"),
    ):
        monkeypatch.setattr(front_end, "server_prefix", lambda it=started_by: it)
        found = front_end.why_not_shown()
        assert found is None if reason is None else reason in found.what


def test_old_ipywidgets_by_the_requirements_that_pip_writes_down(monkeypatch):
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    lines = [re.sub(r">=([\d.]+),<(\d)", r"<\2,>=\1", line) for line in project["dependencies"]]
    extras = [f'{line}; extra == "lab"' for line in project["optional-dependencies"]["lab"]]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: lines + extras)
    asked = check.requirements()
    assert asked["torch"] == "2.10"
    assert "jupyterlab" not in asked, "an extra is no requirement"
    for version, status in (("7.5.1", "bad"), ("7.7.1", "ok"), ("8.1.9", "ok")):
        *_, finding = check.packages(
            {"ipywidgets": asked["ipywidgets"]}, {"fp16-lab": "1", "ipywidgets": version}.get
        )
        assert finding.status == status, version


@pytest.fixture
def gpu(monkeypatch):
    """Let torch and nvidia-smi say that there is a GPU."""

    def there_is(name, capability, driver="580.1"):
        properties = SimpleNamespace(
            name=name,
            major=capability[0],
            minor=capability[1],
            total_memory=80 * GIB,
            multi_processor_count=132,
        )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)

        def smi(command, **_):
            if driver is None:
                raise FileNotFoundError(command[0])
            return SimpleNamespace(stdout=f"{driver}\n{driver}\n")

        monkeypatch.setattr(subprocess, "run", smi)

    return there_is


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


def test_generations_are_distinguished(gpu):
    for name, capability, has, spec in (
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
    ):
        gpu(name, capability)
        report = device_report("cuda")
        assert has in report.facts
        assert report.spec == spec, name


def test_gpu_outside_of_the_table_is_described(gpu, monkeypatch, tmp_path):
    gpu("NVIDIA GeForce GTX 1080", (6, 1))
    assert "gains little or nothing" in device_report().meaning
    for name, capability, hip in (
        ("AMD Instinct MI300X", (9, 4), "7.0"),
        ("NVIDIA Next", (15, 0), None),
    ):
        gpu(name, capability)
        monkeypatch.setattr(torch.version, "hip", hip)
        report = device_report()
        assert "table" in report.facts
        assert "Every timing of the lab can be measured here, but" in report.meaning
        assert report.tensor_cores == (), name
    gpu("NVIDIA B200", (10, 0), driver=None)  # the kernel module tells the driver
    version = tmp_path / "version"
    monkeypatch.setattr(provenance, "DRIVER", version)
    assert device_report().driver is None
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    )
    assert device_report().driver == "580.95.05"


def test_a_cpu_is_recognised_by_its_flags(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    for flags, instructions, means in (
        (
            "flags: fpu avx512_bf16 avx2",
            ("AVX512-BF16",),
            "and BF16 can multiply large matrices faster than FP32",
        ),
        (
            "flags: avx512_fp16 amx_bf16",
            ("AVX512-FP16", "AMX-BF16"),
            "and FP16 and BF16 can multiply",
        ),
        ("flags: avx2 fma", (), "but no format is faster than FP32"),
        (
            "Features: fp asimdhp bf16 sve",
            ("Arm BF16", "Arm FP16"),
            "and FP16 and BF16 can multiply",
        ),
    ):
        name, words = flags.split(": ")
        monkeypatch.setattr(
            resources,
            "cpuinfo",
            lambda name=name, words=words: {"model name": "Some CPU", name: words},
        )
        report = device_report("cpu")
        assert report.instructions == instructions, flags
        assert report.facts.startswith("Some CPU: ")
        assert means in report.meaning
    monkeypatch.setattr(resources, "cpuinfo", dict)
    told = {"avx512_bf16": True, "avx512_fp16": False, "cpu_name": "Some CPU"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    assert device_report("cpu").instructions == ("AVX512-BF16",), (
        "what torch knows counts where there is no cpuinfo"
    )


def test_unusable_devices_are_refused(monkeypatch):
    """NVIDIA's compatibility rules, by hand."""
    with pytest.raises(ValueError, match='expected "cpu" or "cuda", got \'mps\''):
        device_report("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match='got "cuda", but torch reaches no GPU'):
        device_report("cuda")
    for capability, built, runs in (
        ((8, 6), ["sm_80"], True),  # a program of the same generation, not newer
        ((8, 0), ["sm_86"], False),
        # a V100 before torch for CUDA 13
        ((7, 0), ["sm_75", "sm_80", "sm_90", "compute_120"], False),
        ((12, 0), ["sm_90", "compute_90"], True),  # translated for what came later
        ((10, 0), ["sm_100a"], True),
        ((9, 0), [], True),  # nobody says
    ):
        assert has_programs(capability, built) == runs, (capability, built)

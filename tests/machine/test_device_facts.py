"""Facts about simulated GPUs and CPUs, and findings about them."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from labkit.machine import Finding, Status, check, device, resources
from labkit.machine.device import DeviceReport, device_report, generation_of, has_programs
from labkit.records import provenance
from tests.machine.test_check import GIB, require


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

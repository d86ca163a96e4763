"""A machine is described by what it has: real ones by their flags and capabilities, without having any of them."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from labkit.machine.device import device_report, has_programs
from labkit.records import system

GIB = 2**30


@pytest.fixture
def gpu(monkeypatch):
    """Let torch and nvidia-smi say that there is a GPU."""

    def there_is(name, capability, driver="580.1"):
        properties = SimpleNamespace(
            name=name, major=capability[0], minor=capability[1], total_memory=80 * GIB, multi_processor_count=132
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
    assert (report.slug, report.driver, report.spec) == ("nvidia-h100-80gb-hbm3", "580.1", "H100")


def test_generations_are_distinguished(gpu):
    for name, capability, has, spec in (
        ("Tesla V100-SXM2-16GB", (7, 0), "has Volta Tensor Cores for FP16", "V100"),
        ("Tesla T4", (7, 5), "has Turing Tensor Cores for FP16", "T4"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), "has Ampere Tensor Cores for FP16, BF16, TF32, FP64", "A100"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "has Ada Tensor Cores for FP16, BF16, TF32, E4M3, E5M2", "Ada"),
        ("NVIDIA H200", (9, 0), "has Hopper", "H200"),
        ("NVIDIA B200", (10, 0), "has Blackwell", "B200"),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5), "has no Tensor Cores, unlike most of its generation", None),
        ("NVIDIA GeForce GTX 1080", (6, 1), "has no Tensor Cores (those came with 7.0)", None),
        ("NVIDIA Next", (15, 0), "is newer than the lab's table of Tensor Cores", None),
    ):
        gpu(name, capability)
        report = device_report("cuda")
        assert has in report.facts
        assert report.spec == spec, name


def test_a_gpu_without_tensor_cores_or_outside_of_the_table(gpu, monkeypatch):
    gpu("NVIDIA GeForce GTX 1080", (6, 1))
    assert "gains little or nothing" in device_report().meaning
    for name, capability, hip in (("AMD Instinct MI300X", (9, 4), "7.0"), ("NVIDIA Next", (15, 0), None)):
        gpu(name, capability)
        monkeypatch.setattr(torch.version, "hip", hip)
        report = device_report()
        assert "table" in report.facts
        assert "Every timing of the lab can be measured here, but" in report.meaning
        assert report.tensor_cores == (), name


def test_where_nvidia_smi_is_not_on_the_path_the_kernel_module_tells_the_driver(gpu, monkeypatch, tmp_path):
    gpu("NVIDIA B200", (10, 0), driver=None)
    version = tmp_path / "version"
    monkeypatch.setattr(system, "DRIVER", version)
    assert device_report().driver is None
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    assert device_report().driver == "580.95.05"


def test_a_cpu_is_recognised_by_its_flags(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    for flags, instructions, means in (
        ("flags: fpu avx512_bf16 avx2", ("AVX512-BF16",), "and BF16 can multiply large matrices faster than FP32"),
        ("flags: avx512_fp16 amx_bf16", ("AVX512-FP16", "AMX-BF16"), "and FP16 and BF16 can multiply"),
        ("flags: avx2 fma", (), "but no format is faster than FP32"),
        ("Features: fp asimdhp bf16 sve", ("Arm BF16", "Arm FP16"), "and FP16 and BF16 can multiply"),
    ):
        name, words = flags.split(": ")
        monkeypatch.setattr(system, "cpuinfo", lambda name=name, words=words: {"model name": "Some CPU", name: words})
        report = device_report("cpu")
        assert report.instructions == instructions, flags
        assert report.facts.startswith("Some CPU: ")
        assert means in report.meaning
    monkeypatch.setattr(system, "cpuinfo", dict)
    told = {"avx512_bf16": True, "avx512_fp16": False, "cpu_name": "Some CPU"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    assert device_report("cpu").instructions == ("AVX512-BF16",), "what torch knows counts where there is no cpuinfo"


def test_other_devices_are_refused(monkeypatch):
    with pytest.raises(ValueError, match='expected "cpu" or "cuda", got \'mps\''):
        device_report("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match='got "cuda", but torch reaches no GPU'):
        device_report("cuda")


def test_a_gpu_counts_only_with_programs_for_it() -> None:
    """NVIDIA's compatibility rules, by hand."""
    for capability, built, runs in (
        ((8, 6), ["sm_80"], True),  # a program of the same generation, not newer
        ((8, 0), ["sm_86"], False),
        ((7, 0), ["sm_75", "sm_80", "sm_90", "compute_120"], False),  # a V100 before torch for CUDA 13
        ((12, 0), ["sm_90", "compute_90"], True),  # translated for what came later
        ((10, 0), ["sm_100a"], True),
        ((9, 0), [], True),  # nobody says
    ):
        assert has_programs(capability, built) == runs, (capability, built)

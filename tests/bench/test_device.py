"""Is a machine described by what it has? Real ones by their flags and capabilities, without having any of them."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from labkit.bench import DeviceReport, device_report
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


@pytest.mark.parametrize(
    ("name", "capability", "has", "spec"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), "has Volta Tensor Cores for FP16", "V100"),
        ("Tesla T4", (7, 5), "has Turing Tensor Cores for FP16", "T4"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), "has Ampere Tensor Cores for FP16, BF16, TF32, FP64", "A100"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "has Ada Tensor Cores for FP16, BF16, TF32, E4M3, E5M2", "Ada"),
        ("NVIDIA H200", (9, 0), "has Hopper", "H200"),
        ("NVIDIA B200", (10, 0), "has Blackwell", "B200"),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5), "has no Tensor Cores, unlike most of its generation", None),
        ("NVIDIA GeForce GTX 1080", (6, 1), "has no Tensor Cores (those came with 7.0)", None),
        ("NVIDIA Next", (15, 0), "is newer than the lab's table of Tensor Cores", None),
    ],
)
def test_generations_are_told_apart(gpu, name, capability, has, spec):
    gpu(name, capability)
    report = device_report("cuda")
    assert has in report.facts
    assert report.spec == spec


def test_a_gpu_without_tensor_cores_is_promised_nothing(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(system, "DRIVER", tmp_path / "nothing")
    gpu("NVIDIA GeForce GTX 1080", (6, 1), driver=None)
    report = device_report()
    assert "gains little or nothing" in report.meaning
    assert report.driver is None


def test_where_nvidia_smi_is_not_on_the_path_the_kernel_module_tells_the_driver(gpu, monkeypatch, tmp_path):
    gpu("NVIDIA B200", (10, 0), driver=None)
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    monkeypatch.setattr(system, "DRIVER", version)
    assert device_report().driver == "580.95.05"


@pytest.mark.parametrize("make", [("AMD Instinct MI300X", (9, 4), "7.0"), ("NVIDIA Next", (15, 0), None)])
def test_a_gpu_that_the_table_does_not_know_is_told_so_and_not_called_slow(gpu, monkeypatch, make):
    name, capability, hip = make
    gpu(name, capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    report = device_report()
    assert "table" in report.facts
    assert "Every timing of the lab can be measured here, but" in report.meaning
    assert report.tensor_cores == ()


@pytest.mark.parametrize(
    ("flags", "instructions", "means"),
    [
        ("flags: fpu avx512_bf16 avx2", ("AVX512-BF16",), "and BF16 can multiply large matrices faster than FP32"),
        ("flags: avx512_fp16 amx_bf16", ("AVX512-FP16", "AMX-BF16"), "and FP16 and BF16 can multiply"),
        ("flags: avx2 fma", (), "but no format is faster than FP32"),
        ("Features: fp asimdhp bf16 sve", ("Arm BF16", "Arm FP16"), "and FP16 and BF16 can multiply"),
    ],
)
def test_a_cpu_is_told_by_its_flags(monkeypatch, flags, instructions, means):
    name, words = flags.split(": ")
    monkeypatch.setattr(system, "cpuinfo", lambda: {"model name": "Some CPU", name: words})
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    report = device_report("cpu")
    assert report.instructions == instructions
    assert report.facts.startswith("Some CPU: ")
    assert means in report.meaning


def test_what_torch_knows_of_a_cpu_counts_where_there_is_no_cpuinfo(monkeypatch):
    monkeypatch.setattr(system, "cpuinfo", dict)
    told = {"avx512_bf16": True, "avx512_fp16": False, "cpu_name": "Some CPU"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    assert device_report("cpu").instructions == ("AVX512-BF16",)
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert device_report("cpu").instructions == ()


def test_the_report_is_two_sentences_about_this_machine():
    report = device_report("cpu")
    assert str(report) == f"{report.facts}. {report.meaning}."
    assert f"{report.cores} core" in report.facts
    assert report.slug.startswith("cpu-")


def test_bf16_is_not_promised_where_it_was_measured_to_be_slow():
    """A CPU without an instruction for BF16 says nothing of BF16 being faster."""
    assert "BF16" not in DeviceReport("cpu", "Some CPU", 0, 2).meaning


def test_other_devices_are_refused(monkeypatch):
    with pytest.raises(ValueError, match='knows "cpu" and "cuda"; it was given \'mps\''):
        device_report("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match='asked for "cuda", and torch reaches no GPU here'):
        device_report("cuda")

"""Facts of a device for low precision, and what they mean for the lab.

Idea: a GPU reports its compute capability, and a table lists the operands that the Tensor Cores of
that generation take. A CPU reports its instruction sets. Two sentences describe these facts and
their consequences.

Invariant: a report contains only what the machine reports about itself; nothing is timed or
guessed.

Source: CUDA C++ Programming Guide, "Compute Capabilities" (Tensor Core data types of each); Intel
SDM, CPUID leaf 7; Arm ARM, HWCAP_ASIMDHP and HWCAP2_BF16.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from labkit.machine import resources
from labkit.records.provenance import gpu_driver

GIB = 2**30
# A flag of `cpuinfo`, or a word of torch -> the instruction set.
CPU_INSTRUCTIONS = {
    "avx512_bf16": "AVX512-BF16",
    "avx512_fp16": "AVX512-FP16",
    "amx_bf16": "AMX-BF16",
    "amx_fp16": "AMX-FP16",
    "bf16": "Arm BF16",
    "asimdhp": "Arm FP16",
    "fp16_arith": "Arm FP16",
}


@dataclass(frozen=True)
class Generation:
    """A generation of Tensor Cores: its GPUs, its operands, and the row of SPECS that models it."""

    name: str
    capabilities: tuple[tuple[int, int], ...]
    formats: tuple[str, ...]
    spec: str | None = None


GENERATIONS = (
    Generation("Volta", ((7, 0), (7, 2)), ("FP16",), "V100"),
    Generation("Turing", ((7, 5),), ("FP16",), "T4"),
    Generation("Ampere", ((8, 0),), ("FP16", "BF16", "TF32", "FP64"), "A100"),
    Generation("Ampere", ((8, 6), (8, 7)), ("FP16", "BF16", "TF32")),
    Generation("Ada", ((8, 9),), ("FP16", "BF16", "TF32", "E4M3", "E5M2"), "Ada"),
    Generation("Hopper", ((9, 0),), ("FP16", "BF16", "TF32", "E4M3", "E5M2", "FP64"), "H100"),
    Generation(
        "Blackwell", ((10, 0), (10, 3)), ("FP16", "BF16", "TF32", "E4M3", "E5M2", "FP64"), "B200"
    ),
    Generation("Blackwell", ((11, 0), (12, 0), (12, 1)), ("FP16", "BF16", "TF32", "E4M3", "E5M2")),
)
# Cards with the chips TU116 and TU117, which have compute capability 7.5 and no Tensor Cores.
WITHOUT_CORES = re.compile(r"GTX 16|\bMX[45]50\b|\bT(400|500|550|600|1000|1200|2000)\b")


@dataclass(frozen=True)
class DeviceReport:
    """Facts of a device.

    Attributes:
        kind: "cuda" or "cpu".
        name: the manufacturer's name of the device.
        memory: bytes of a GPU's memory; 0 for a CPU, whose memory does not limit speed.
        cores: number of a CPU's cores that this process may use, or of a GPU's multiprocessors.
        capability: compute capability of a GPU, None elsewhere.
        generation: generation of its Tensor Cores, or None without any that the table knows.
        instructions: a CPU's instruction sets for low precision; empty on a GPU.
        driver: version of the GPU's driver; None elsewhere, or if it does not report it.

    >>> print(DeviceReport("cpu", "Some CPU", 0, 2, instructions=("AVX512-BF16",)).facts)
    Some CPU: 2 cores, no GPU that torch can use; for low precision it has AVX512-BF16
    """

    kind: str
    name: str
    memory: int
    cores: int
    capability: tuple[int, int] | None = None
    generation: Generation | None = None
    instructions: tuple[str, ...] = ()
    driver: str | None = None

    @property
    def slug(self) -> str:
        """The name, in a form for folders.

        >>> DeviceReport("cuda", "NVIDIA H100 80GB HBM3", 0, 132).slug
        'nvidia-h100-80gb-hbm3'
        """
        words = self.name if self.kind == "cuda" else f"CPU {self.name}"
        return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")

    @property
    def tensor_cores(self) -> tuple[str, ...]:
        """The operand formats of its Tensor Cores; empty without any."""
        return self.generation.formats if self.generation else ()

    @property
    def spec(self) -> str | None:
        """The row of SPECS that models its Tensor Cores, or None."""
        if self.generation and self.generation.spec == "H100" and "H200" in self.name:
            return "H200"
        return self.generation.spec if self.generation else None

    @property
    def facts(self) -> str:
        """The first sentence: the device."""
        if self.kind == "cuda":
            return f"{self.name}, {self.memory / GIB:.0f} GiB, {self._capability}, {self._cores}"
        low = " and ".join(self.instructions) or "nothing of its own"
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.name}: {cores}, no GPU that torch can use; for low precision it has {low}"

    @property
    def meaning(self) -> str:
        """The second sentence: the consequences for the lab."""
        if self.tensor_cores:
            return (
                "Every timing of the lab can be measured here, and `make gpu` records them all; "
                "training in FP16 can be faster than in FP32, in layers that are large enough"
            )
        if self._unknown:
            return (
                "Every timing of the lab can be measured here, but what its matrix units do to the "
                "last bit is not among what the lab emulates"
            )
        if self.kind == "cuda":
            return (
                "Every lesson works, and FP16 halves the bytes here, but a matrix product gains "
                "little or nothing from it: what Tensor Cores do is shown from records"
            )
        bf16 = any("BF16" in name for name in self.instructions)
        fp16 = any("FP16" in name for name in self.instructions)
        if not fp16 and not bf16:
            gain = "but no format is faster than FP32: speed is shown from records"
        else:
            formats = [name for name, found in (("FP16", fp16), ("BF16", bf16)) if found]
            faster = " and ".join(formats)
            gain = (
                f"and {faster} can multiply large matrices faster than FP32, which can be measured "
                "here"
            )
            if not fp16:
                gain += "; for FP16's own speed there are records"
        return f"Every lesson works, with FP16 rounded exactly as a GPU rounds, {gain}"

    def __str__(self) -> str:
        return f"{self.facts}. {self.meaning}."

    @property
    def _capability(self) -> str:
        if self.capability is None:
            return "not CUDA's"
        major, minor = self.capability
        return f"compute capability {major}.{minor}"

    @property
    def _cores(self) -> str:
        if self.generation:
            return f"has {self.generation.name} Tensor Cores for {', '.join(self.tensor_cores)}"
        if self.capability is None:
            return "has matrix units, if any, that are not in the lab's table"
        if self.capability < (7, 0):
            return "has no Tensor Cores (those came with 7.0)"
        if self._unknown:
            return "is newer than the lab's table of Tensor Cores"
        return "has no Tensor Cores, unlike most of its generation"

    @property
    def _unknown(self) -> bool:
        """Whether it is a GPU that is not in the table: of another vendor, or newer."""
        newer = self.capability is None or (
            self.capability >= (7, 0) and not WITHOUT_CORES.search(self.name)
        )
        return self.kind == "cuda" and self.generation is None and newer


def device_report(device: torch.device | str | None = None) -> DeviceReport:
    """Return the facts of a device; None for the first GPU that torch can use, or else the CPU.

    Raises:
        ValueError: the device is neither a CPU nor a GPU that torch reaches through CUDA.

    >>> device_report("cpu").kind
    'cpu'
    """
    try:
        wanted = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ValueError(f'device_report: expected "cpu" or "cuda", got {device!r}') from error
    if wanted.type == "cpu":
        return DeviceReport(
            "cpu",
            resources.cpu_name(),
            0,
            resources.usable_cores(),
            instructions=_cpu_instructions(),
        )
    if wanted.type != "cuda":
        raise ValueError(
            f'device_report: expected "cpu" or "cuda", got {str(wanted)!r}; leave it out for the '
            "default."
        )
    if not torch.cuda.is_available():
        raise ValueError('device_report: got "cuda", but torch reaches no GPU; use "cpu".')
    properties = torch.cuda.get_device_properties(wanted)
    capability = None if torch.version.hip else (properties.major, properties.minor)
    return DeviceReport(
        "cuda",
        properties.name,
        properties.total_memory,
        getattr(properties, "multi_processor_count", 0),
        capability,
        generation_of(properties.name, capability),
        driver=gpu_driver(),
    )


def generation_of(name: str, capability: tuple[int, int] | None) -> Generation | None:
    """Return the generation of a GPU's Tensor Cores.

    It is None if the GPU has none, or if the table does not list it.

    >>> generation_of("Tesla T4", (7, 5)).name, generation_of("NVIDIA GeForce GTX 1660", (7, 5))
    ('Turing', None)
    """
    if WITHOUT_CORES.search(name) and capability == (7, 5):
        return None
    for row in GENERATIONS:
        if capability in row.capabilities:
            return row
    return None


def usable_gpus() -> list[tuple[int, str]]:
    """Return number and name of each GPU that torch reaches and has programs for."""
    if not torch.cuda.is_available():
        return []
    built = torch.cuda.get_arch_list() if torch.version.cuda else []
    usable = []
    for i in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(i)
        if has_programs((card.major, card.minor), built):
            usable.append((i, card.name))
    return usable


def has_programs(capability: tuple[int, int], built: Sequence[str]) -> bool:
    """Return whether a torch built for some targets runs on a GPU of this compute capability.

    A program "sm_XY" runs on every GPU of generation X that is not older, and "sm_XYa" on XY alone;
    "compute_XY" is translated for all later GPUs.

    Args:
        capability: compute capability of the GPU.
        built: targets such as "sm_75" or "compute_90"; an empty list means unknown, and is
            accepted.

    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".

    >>> has_programs((7, 5), ["sm_75", "sm_80"]), has_programs((7, 0), ["sm_75", "sm_80"])
    (True, False)
    """
    generation, version = capability
    for name in built:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)(a?)\w*", name)
        if match is None:
            continue
        target = int(match[2]), int(match[3])
        if match[4]:
            runs = target == capability
        elif match[1] == "sm":
            runs = target[0] == generation and target[1] <= version
        else:
            runs = target <= capability
        if runs:
            return True
    return not built


def _cpu_instructions() -> tuple[str, ...]:
    """Return the CPU's instruction sets among CPU_INSTRUCTIONS, by `cpuinfo` (Linux) and torch."""
    entries = resources.cpuinfo()
    flags = set(f"{entries.get('flags', '')} {entries.get('Features', '')}".split())
    # the oldest supported torch lacks this function
    ask_torch = getattr(torch.cpu, "get_capabilities", None)
    if ask_torch is not None:
        flags |= {name for name, there in ask_torch().items() if there is True}
    return tuple(dict.fromkeys(says for flag, says in CPU_INSTRUCTIONS.items() if flag in flags))

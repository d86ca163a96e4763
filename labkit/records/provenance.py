"""Origin of a number, which every record carries: where, when and with what it was made.

Idea: no curve can pass for one made elsewhere, since its record names the device, the versions and the time.

Invariant: each answer is what torch, Python and the clock say at the moment of asking, as plain text.
"""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from labkit.records import system

if TYPE_CHECKING:
    import torch


def device_name(device: torch.device) -> str:
    """Return a device's name as a person knows it.

    >>> import torch
    >>> device_name(torch.device("cpu")).startswith("CPU (")
    True
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()})"


def versions(device: torch.device | None = None) -> dict[str, str]:
    """Return the versions that can change a run's numbers; on a CUDA device those of CUDA, cuDNN and the driver too.

    What cannot be asked for is left out: a torch without cuDNN has no version of it.

    >>> sorted(versions())
    ['python', 'torch']
    """
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__}
    if device is None or device.type != "cuda":
        return found
    cudnn = torch.backends.cudnn.version()
    gpu = {"cuda": torch.version.cuda, "hip": torch.version.hip, "cudnn": cudnn, "driver": system.gpu_driver()}
    return found | {name: str(version) for name, version in gpu.items() if version}


def arithmetic_settings(device: torch.device, *, tf32: bool = False) -> dict[str, str]:
    """Return how products are computed on a device now: the switches of torch that can change a run's numbers.

    Args:
        tf32: the run rounds operands to TF32 itself, where no switch says "tf32".

    >>> import torch
    >>> sorted(arithmetic_settings(torch.device("cpu")))
    ['FP32 conv', 'FP32 matmul', 'FP32 rnn', 'deterministic algorithms']
    >>> arithmetic_settings(torch.device("cpu"), tf32=True)["FP32 matmul"]
    'tf32, emulated'
    """
    import torch

    backend = "cuda" if device.type == "cuda" else "mkldnn"
    found = {"deterministic algorithms": _word(torch.are_deterministic_algorithms_enabled())}
    for operation in ("matmul", "conv", "rnn"):
        precision = str(torch._C._get_fp32_precision_getter(backend, operation))
        precision = "ieee" if precision == "none" else precision  # what applies where nobody set anything
        found[f"FP32 {operation}"] = "tf32, emulated" if tf32 and precision != "tf32" else precision
    if device.type == "cuda":
        cudnn = torch.backends.cudnn
        found |= {"cuDNN deterministic": _word(cudnn.deterministic), "cuDNN benchmark": _word(cudnn.benchmark)}
    return found


def _word(flag: bool) -> str:
    return "yes" if flag else "no"


def now() -> str:
    """Return the time, UTC, as ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")

"""Provenance of records: device, versions, settings and time.

Idea: no curve can pass for one made elsewhere, since its record names the device, the versions and
the time.

Invariant: values are read from torch, Python, the driver and the clock at the time of the call, as
plain text.
"""

from __future__ import annotations

import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# NVRM version: NVIDIA UNIX ... Kernel Module  580.95.05 ...
DRIVER = Path("/proc/driver/nvidia/version")


def device_name(device: torch.device) -> str:
    """Return a device's human-readable name.

    >>> import torch
    >>> device_name(torch.device("cpu")).startswith("CPU (")
    True
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()})"


def versions(device: torch.device | None = None) -> dict[str, str]:
    """Return the versions that can change a run's numbers.

    For a CUDA device, also CUDA, cuDNN and the driver. An unknown version is omitted, such as
    cuDNN's where torch has none.

    >>> sorted(versions())
    ['python', 'torch']
    """
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__}
    if device is None or device.type != "cuda":
        return found
    cudnn = torch.backends.cudnn.version()
    gpu = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": cudnn,
        "driver": gpu_driver(),
    }
    return found | {name: str(version) for name, version in gpu.items() if version}


def gpu_driver() -> str | None:
    """Return the version of NVIDIA's driver from nvidia-smi or the kernel module.

    It is None if unknown.
    """
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        pass
    try:
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[0] if found else None


def arithmetic_settings(device: torch.device, *, tf32: bool = False) -> dict[str, str]:
    """Return the torch settings that can change a run's numbers on a device.

    Args:
        device: the device of the run.
        tf32: the run emulates TF32, which no setting of torch shows.

    >>> import torch
    >>> sorted(arithmetic_settings(torch.device("cpu")))
    ['FP32 conv', 'FP32 matmul', 'FP32 rnn', 'deterministic algorithms']
    >>> arithmetic_settings(torch.device("cpu"), tf32=True)["FP32 matmul"]
    'tf32, emulated'
    """
    import torch

    backend = "cuda" if device.type == "cuda" else "mkldnn"
    found = {"deterministic algorithms": _yes_no(torch.are_deterministic_algorithms_enabled())}
    for operation in ("matmul", "conv", "rnn"):
        precision = str(torch._C._get_fp32_precision_getter(backend, operation))
        precision = "ieee" if precision == "none" else precision  # torch's default
        found[f"FP32 {operation}"] = "tf32, emulated" if tf32 and precision != "tf32" else precision
    if device.type == "cuda":
        cudnn = torch.backends.cudnn
        found |= {
            "cuDNN deterministic": _yes_no(cudnn.deterministic),
            "cuDNN benchmark": _yes_no(cudnn.benchmark),
        }
    return found


def _yes_no(flag: bool) -> str:
    return "yes" if flag else "no"


def made_on(device: str, versions: dict[str, str], date: str) -> str:
    """Return where and when a record was made, for a caption.

    >>> made_on("CPU (x86_64)", {"torch": "2.13.0"}, "2026-11-21T17:31:09+00:00")
    'CPU (x86_64), torch 2.13.0, 2026-11-21'
    """
    return f"{device}, torch {versions.get('torch', '?')}, {date[:10]}"


def now() -> str:
    """Return the current UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")

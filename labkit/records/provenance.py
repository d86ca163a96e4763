"""Provenance of records: device, versions, settings and time.

Idea: a record holds the device, the versions and the time of a run, so that no curve can be
mistaken for one that was made elsewhere.

Invariant: the functions ask torch, Python, the driver and the clock at the time of the call, and
return plain text.
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
    """Return the name of a device as its maker gives it, or torch's name for it.

    >>> import torch
    >>> device_name(torch.device("cpu")).startswith("CPU (")
    True
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"CPU ({platform.machine()})"
    return str(device)


def versions(device: torch.device | None = None) -> dict[str, str]:
    """Return the versions that can change a run's numbers.

    For a CUDA device, they include CUDA, cuDNN and the driver. An unknown version is omitted.

    >>> sorted(versions())
    ['python', 'torch']
    """
    import torch

    result = {"python": platform.python_version(), "torch": torch.__version__}
    if device is None or device.type != "cuda":
        return result
    gpu = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
        "driver": gpu_driver(),
    }
    for name, version in gpu.items():
        if version:
            result[name] = str(version)
    return result


def gpu_driver() -> str | None:
    """Return the version of NVIDIA's driver, by nvidia-smi or the kernel module; else None."""
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        # a line for each GPU
        return done.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        # as in a container without the program: ask the kernel module
        pass
    try:
        match = re.search(r"\b\d+\.\d+(\.\d+)?\b", DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return None
    return match[0] if match else None


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
    settings = {"deterministic algorithms": _yes_no(torch.are_deterministic_algorithms_enabled())}
    for operation in ("matmul", "conv", "rnn"):
        precision = str(torch._C._get_fp32_precision_getter(backend, operation))
        # nothing was set: torch's default
        if precision == "none":
            precision = "ieee"
        if tf32 and precision != "tf32":
            precision = "tf32, emulated"
        settings[f"FP32 {operation}"] = precision
    if device.type == "cuda":
        cudnn = torch.backends.cudnn
        settings["cuDNN deterministic"] = _yes_no(cudnn.deterministic)
        settings["cuDNN benchmark"] = _yes_no(cudnn.benchmark)
    return settings


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

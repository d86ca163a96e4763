"""What is this machine good for in the lab? One line, by what multiplies 16-bit numbers here.

Invariant: it follows from what the machine says of itself; nothing is timed.

Source: torch.cuda.is_bf16_supported(including_emulation=False), which asks for compute capability 8.0.
"""

from __future__ import annotations

from labkit.bench import DeviceReport
from labkit.clinic.findings import Finding, Status

NAME = "good for"


def machine_facts() -> tuple[DeviceReport, bool]:
    """Return what the device reports, and whether torch reaches an Apple GPU."""
    import torch

    from labkit.bench import device_report

    return device_report(), torch.backends.mps.is_available()


def good_for(report: DeviceReport, mps: bool = False) -> Finding:
    """Say what the lab's lessons can show on this machine.

    >>> good_for(DeviceReport("cpu", "Some CPU", 0, 2)).what
    'every lesson; how fast a GPU is, is shown from records and from what others published'
    """
    if report.kind == "cpu" and mps:
        return Finding(
            NAME,
            Status.OK,
            "every lesson, on the CPU. On the Apple GPU beside it torch has autocast and a GradScaler, but no FP64, "
            "and its fused optimizers ignored found_inf until mid-2026: the lab does not train there",
        )
    if report.kind == "cpu":
        what = "every lesson; how fast a GPU is, is shown from records and from what others published"
        return Finding(NAME, Status.OK, what)
    if report.tensor_cores and "BF16" not in report.tensor_cores:
        return Finding(
            NAME,
            Status.OK,
            "every lesson, live; FP16 is this card's only fast 16-bit format, which makes loss scaling a must. It "
            "emulates BF16: is_bf16_supported() says True, is_bf16_supported(including_emulation=False) says False",
        )
    if report.tensor_cores:
        return Finding(NAME, Status.OK, f"every lesson, live, with {', '.join(report.tensor_cores)} on Tensor Cores")
    return Finding(NAME, Status.OK, "every lesson; FP16 saves memory here, and gains little speed")

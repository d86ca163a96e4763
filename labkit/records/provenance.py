"""Where, when and with what was a number made? Three answers that every record carries.

Idea: no curve can pass for one made elsewhere, since its record names the device, the versions and the time.

Invariant: each answer is what torch, Python and the clock say at the moment of asking, as plain text.
"""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

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


def versions() -> dict[str, str]:
    """Return the versions that can change a run's numbers.

    >>> sorted(versions())
    ['python', 'torch']
    """
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__}


def now() -> str:
    """Return the time, UTC, as ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")

"""Devices for training: the usable GPUs, and the CPU.

Idea: a `Place` is a device with its names for widgets, sentences and records.

Invariant: a GPU is listed only if the installed torch has kernels for it; the CPU is always last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from labkit.formats.arguments import require_kind
from labkit.machine.device import usable_gpus
from labkit.records import device_name

EMULATED = (
    "FP16 products are emulated on this CPU: every number is rounded as a GPU rounds it. A step "
    "takes as long as in FP32 or longer, so FP16 gains no speed."
)
NATIVE = (
    "FP16 products run on this device's hardware: their gain in steps a second is measured, not "
    "assumed."
)


@dataclass(frozen=True)
class Place:
    """A device to train on.

    Attributes:
        device: torch's device.
        name: name in records: "Tesla T4", "CPU (x86_64)".
        key: short name for widgets and commands: "cpu", "gpu"; further GPUs are "gpu:1", "gpu:2".

    >>> place("cpu").label, place("cpu").key, place("cpu").device
    ('CPU, emulated', 'cpu', device(type='cpu'))
    """

    device: torch.device
    name: str
    key: str

    @property
    def emulated(self) -> bool:
        """Whether FP16 products are emulated on it; FP32 never is."""
        return self.key == "cpu"

    @property
    def label(self) -> str:
        """Label in a list: "this GPU: Tesla T4", "CPU, emulated", or "this device: meta"."""
        if self.emulated:
            return "CPU, emulated"
        if self.key.startswith("gpu"):
            return f"this GPU: {self.name}"
        return f"this device: {self.name}"

    @property
    def slug(self) -> str:
        """The name, in a form for folders.

        >>> Place(torch.device("cuda"), "NVIDIA H100 80GB HBM3", "gpu").slug
        'nvidia-h100-80gb-hbm3'
        """
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def sentence(self) -> str:
        """Description of training in FP16 on it."""
        return EMULATED if self.emulated else NATIVE

    def __str__(self) -> str:
        return self.label


def places() -> tuple[Place, ...]:
    """Return the devices of this machine that can train: its GPUs, then the CPU.

    >>> places()[-1].key
    'cpu'
    """
    cpu = torch.device("cpu")
    return (*gpus(), Place(cpu, device_name(cpu), "cpu"))


def place(device: str | torch.device | Place | None = None) -> Place:
    """Return the place for a device.

    Args:
        device: a key ("gpu", "cpu"), a torch device or its name ("cuda", "cuda:1"), or a place.
            None for the first of `places`, which is a GPU if this machine has one. Other devices
            that torch can use ("meta") are accepted but not listed.

    Raises:
        ValueError: this machine has no such device.
    """
    if isinstance(device, Place):
        return device
    available = places()
    if device is None:
        return available[0]
    require_kind(device, (str, torch.device), "device", 'For example: "cpu" or "gpu"')
    for each in available:
        if str(device) == each.key:
            return each
    try:
        requested = torch.device(device)
    except RuntimeError:
        # neither a key nor a name that torch knows
        requested = None
    if requested is not None:
        for each in available:
            # a name without an index, such as "cuda", means the first device of its type, and torch
            # has one CPU, whatever its index
            first = requested.index is None or requested.type == "cpu"
            same_index = first or requested.index == (each.device.index or 0)
            if requested.type == each.device.type and same_index:
                return each
        if requested.type != "cuda" and _is_usable(requested):
            return Place(requested, str(requested), str(requested))
    hint = ""
    if len(available) == 1:
        hint = " torch reaches no GPU: `labkit check` says why."
        if torch.cuda.is_available():
            name = torch.cuda.get_device_name(0)
            hint = (
                f" torch {torch.__version__} has no kernels for this machine's GPU ({name}): "
                "install a torch that has them, see https://pytorch.org/get-started"
            )
    listing = ", ".join(f'"{each.key}" ({each.name})' for each in available)
    raise ValueError(f'expected a device of this machine, {listing}, got "{device}".{hint}')


def _is_usable(device: torch.device) -> bool:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        # torch raises one of these, depending on the kind of device
        return False
    return True


def gpus() -> tuple[Place, ...]:
    """Return the GPUs that torch can use through CUDA or ROCm and has kernels for."""
    found = []
    for number, (index, name) in enumerate(usable_gpus()):
        key = "gpu" if number == 0 else f"gpu:{number}"
        found.append(Place(torch.device("cuda", index), name, key))
    return tuple(found)

"""The devices that a training can run on: the GPUs where there are any, and the CPU always.

Idea: a place is a device with the words for it. What a knob, a sentence and a record say of it comes from here, and
`gpus` alone asks torch what is there.

Invariant: a GPU is named only if this torch has programs for it; the CPU is always there, and always last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from labkit.machine.device import usable_gpus
from labkit.records import device_name

EMULATED = (
    "FP16 products are emulated on this CPU: every number is rounded as a GPU rounds it, and a step takes as long as "
    "FP32's or longer, so nothing is gained in speed."
)
NATIVE = "FP16 products are the device's own here: how many steps a second they gain is measured, not assumed."


@dataclass(frozen=True)
class Place:
    """A device to train on.

    device  what torch calls it
    name    as a record says it: "Tesla T4", "CPU (x86_64)"
    key     a short word for a knob and a command line: "cpu", "gpu"; further GPUs are "gpu:1", "gpu:2"

    >>> place("cpu").label, place("cpu").key, place("cpu").device
    ('CPU, emulated', 'cpu', device(type='cpu'))
    """

    device: torch.device
    name: str
    key: str

    @property
    def emulated(self) -> bool:
        """Say whether FP16 products are emulated there; FP32 never is."""
        return self.key == "cpu"

    @property
    def label(self) -> str:
        """What a choice of devices calls it: "this GPU: Tesla T4" or "CPU, emulated"."""
        if self.emulated:
            return "CPU, emulated"
        return f"this GPU: {self.name}" if self.key.startswith("gpu") else f"this device: {self.name}"

    @property
    def slug(self) -> str:
        """The name as a folder's name.

        >>> Place(torch.device("cuda"), "NVIDIA H100 80GB HBM3", "gpu").slug
        'nvidia-h100-80gb-hbm3'
        """
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def sentence(self) -> str:
        """What training in FP16 means there."""
        return EMULATED if self.emulated else NATIVE

    def __str__(self) -> str:
        return self.label


def places() -> tuple[Place, ...]:
    """Return where a run can happen on this machine: its GPUs first, and the CPU always.

    >>> places()[-1].key
    'cpu'
    """
    cpu = torch.device("cpu")
    return (*gpus(), Place(cpu, device_name(cpu), "cpu"))


def place(device: str | torch.device | Place | None = None) -> Place:
    """Return the place that is meant; None means the first of `places`: the GPU where there is one.

    Args:
        device: a key ("gpu", "cpu"), one of torch's devices or its name ("cuda", "cuda:1"), or a place, which is
            returned as it is. What else torch reaches ("meta") is taken at its word, but not offered.

    Raises:
        ValueError: there is no such place here; the message says what there is.
    """
    if isinstance(device, Place):
        return device
    here = places()
    if device is None:
        return here[0]
    keys = {each.key: each for each in here}
    if str(device) in keys:
        return keys[str(device)]
    try:
        wanted = torch.device(device)
    except RuntimeError:  # no word of torch's either
        wanted = None
    for each in here:
        if wanted is not None and wanted.type == each.device.type and wanted.index in (None, each.device.index or 0):
            return each
    if wanted is not None and wanted.type != "cuda" and _reached(wanted):
        return Place(wanted, str(wanted), str(wanted))
    why = "" if len(here) > 1 else " torch reaches no GPU: `labkit check` says why."
    if why and torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        why = (
            f" torch {torch.__version__} has no programs for the GPU that is there ({name}): install a torch that has "
        )
        why += "them, see https://pytorch.org/get-started"
    listed = ", ".join(f'"{each.key}" ({each.name})' for each in here)
    raise ValueError(f'there is no device "{device}" to train on here; this machine has {listed}.{why}')


def _reached(device: torch.device) -> bool:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):  # torch says it in any of these
        return False
    return True


def gpus() -> tuple[Place, ...]:
    """Return the GPUs that torch reaches through CUDA (or ROCm, which it calls so too) and has programs for."""
    usable = usable_gpus()
    keys = ["gpu", *(f"gpu:{n}" for n in range(1, len(usable)))]
    return tuple(Place(torch.device("cuda", i), name, key) for (i, name), key in zip(usable, keys, strict=False))

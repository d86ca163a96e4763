"""How do we stand between a call and torch? Modes that see a call, and what it is made of."""

from labkit.modes.arguments import are_plain, mapped, mapped_anywhere, require_one_device, tensors_in
from labkit.modes.composites import body_of, calls_any, is_composite
from labkit.modes.mode import ATTRIBUTE, LabMode, as_now, break_graph, open_modes, together, under

__all__ = [
    "ATTRIBUTE", "LabMode", "are_plain", "as_now", "body_of", "break_graph", "calls_any", "is_composite", "mapped",
    "mapped_anywhere", "open_modes", "require_one_device", "tensors_in", "together", "under",
]  # fmt: skip

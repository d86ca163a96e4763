"""Torch function modes of the lab, and the operations inside torch's Python functions."""

from labkit.modes.arguments import (
    are_plain,
    mapped,
    require_one_device,
    tensors_in,
)
from labkit.modes.composites import (
    body_in_graphs,
    body_of,
    call_in_graph,
    calls_any,
    constant_in_graphs,
    is_composite,
    name_in_graphs,
)
from labkit.modes.containers import Copied, closed_values, mapped_anywhere
from labkit.modes.mode import (
    ATTRIBUTE,
    LabMode,
    as_now,
    break_graph,
    call_unseen,
    nested_contexts,
    open_modes,
    require_traceable,
    run_uncompiled,
    runs_graph,
    under,
)

__all__ = [
    "ATTRIBUTE",
    "Copied",
    "LabMode",
    "are_plain",
    "as_now",
    "body_in_graphs",
    "body_of",
    "break_graph",
    "call_in_graph",
    "call_unseen",
    "calls_any",
    "closed_values",
    "constant_in_graphs",
    "is_composite",
    "mapped",
    "mapped_anywhere",
    "name_in_graphs",
    "nested_contexts",
    "open_modes",
    "require_one_device",
    "require_traceable",
    "run_uncompiled",
    "runs_graph",
    "tensors_in",
    "under",
]

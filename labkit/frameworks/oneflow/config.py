"""What is a graph told besides its computation?

Source: oneflow.nn.graph, graph_config.py.
"""

from __future__ import annotations

from typing import Any

import torch


class GraphConfig:
    """What a graph is told besides its computation."""

    def __init__(self) -> None:
        self.training = False
        self.amp_dtype: torch.dtype | None = None
        self.gradient_accumulation_steps = 1

    def enable_amp(self, mode: bool = True, *, dtype: torch.dtype = torch.float16) -> None:
        """Cast operations to FP16 or BF16, or stop it.

        Raises:
            TypeError: mode is no bool.
            ValueError: dtype is another one.
        """
        if type(mode) is not bool:
            raise TypeError(f"enable_amp(True) or enable_amp(False); it was given {mode!r}")
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"dtype is float16 or bfloat16; it was given {dtype}")
        self.amp_dtype = dtype if mode else None

    def set_gradient_accumulation_steps(self, value: int) -> None:
        """Cut each batch into micro-batches, whose gradients are added up.

        Raises:
            ValueError: value is no whole number from 1 on.
        """
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"a batch is cut into 1 micro-batch or more; it was given {value!r}")
        self.gradient_accumulation_steps = value

    def allow_fuse_model_update_ops(self, mode: bool = True) -> None:
        """Accept, and do nothing: these three change how fast a compiled graph is, not what it computes."""

    allow_fuse_add_to_output = allow_fuse_cast_scale = allow_fuse_model_update_ops

    def enable_zero(self, mode: bool = True, **_: Any) -> None:
        """Refuse what takes several devices.

        Raises:
            NotImplementedError: mode is True.
        """
        if mode:
            raise NotImplementedError("ZeRO shards an optimizer's state over devices. A graph here has one: drop it.")

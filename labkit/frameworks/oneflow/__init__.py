"""How does OneFlow's nn.Graph train in FP16? `import labkit.frameworks.oneflow as flow`, and its tutorial runs.

`flow.nn` has Graph, `flow.amp` the scalers; every other name is torch's, whose names OneFlow took over.
"""

from typing import Any

import torch

from labkit.frameworks.oneflow import amp, nn

__all__ = ["amp", "nn"]


def __getattr__(name: str) -> Any:
    return getattr(torch, name)

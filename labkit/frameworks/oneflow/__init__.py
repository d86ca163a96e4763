"""OneFlow's nn.Graph on the lab's engine: `import labkit.frameworks.oneflow as flow`.

`flow.nn` has Graph, and `flow.amp` the scalers. Every other name is torch's, since OneFlow uses the
names of torch.
"""

from typing import Any

import torch

from labkit.frameworks.oneflow import amp, nn

__all__ = ["amp", "nn"]


def __getattr__(name: str) -> Any:
    return getattr(torch, name)

"""OneFlow's nn.Graph on the lab's engine.

`import labkit.frameworks.oneflow as flow` runs its tutorial.

`flow.nn` has Graph, `flow.amp` the scalers; every other name is torch's, since OneFlow has the same
names.
"""

from typing import Any

import torch

from labkit.frameworks.oneflow import amp, nn

__all__ = ["amp", "nn"]


def __getattr__(name: str) -> Any:
    return getattr(torch, name)

"""Which parts of a network move to FP16? Everything but its normalisation layers.

Idea: normalisation sums squares over many elements and divides by the result; its own weights are few, so keeping them
in FP32 costs nothing.

Source: apex `convert_network` (opt level O2; it keeps batch norm, we keep every normalisation layer);
arXiv:1710.03740, section 3.3.
"""

from __future__ import annotations

from torch import nn

from labkit.formats import Format
from labkit.interop import dtype_of

NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def to_model_format(model: nn.Module, format: Format, *, keep_norms: bool = True) -> nn.Module:
    """Convert a network's floating-point parameters and buffers to `format`, in place; return it.

    keep_norms leaves normalisation layers as they are.

    >>> from labkit.formats import FP16
    >>> net = to_model_format(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)), FP16)
    >>> net[0].weight.dtype, net[1].weight.dtype
    (torch.float16, torch.float32)
    """
    dtype = dtype_of(format)
    for module in model.modules():
        if keep_norms and isinstance(module, NORM_LAYERS):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.to(dtype))
    return model

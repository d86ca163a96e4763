"""Which parts of a network move to FP16? Everything but its normalisation layers.

Idea: normalisation sums squares over many elements and divides by the result; its own weights are few, so keeping them
in FP32 costs nothing. Parameters are converted where they stand: they stay the objects they are, so that ties, hooks
and what others hold on to survive.

Invariant: to_fp32 undoes the dtypes, not the rounding; complex numbers, integers and booleans are never touched.

Source: apex `convert_network` (opt level O2; it keeps batch norm, we keep every normalisation layer);
arXiv:1710.03740, section 3.3.
"""

from __future__ import annotations

from torch import Tensor, nn

from labkit.formats import FP32, Format
from labkit.interop import dtype_of

NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def to_model_format(model: nn.Module, format: Format, *, keep_norms: bool = True) -> nn.Module:
    """Convert a network's floating-point parameters and buffers to `format`, in place; return it.

    keep_norms leaves normalisation layers as they are, and a parameter that one of them shares with another layer.

    >>> from labkit.formats import FP16
    >>> net = to_model_format(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)), FP16)
    >>> net[0].weight.dtype, net[1].weight.dtype
    (torch.float16, torch.float32)
    """
    dtype = dtype_of(format)
    norms = [m for m in model.modules() if keep_norms and isinstance(m, NORM_LAYERS)]
    done = {t: t for m in norms for t in (*m.parameters(recurse=False), *m.buffers(recurse=False))}

    def convert(tensor: Tensor) -> Tensor:
        if tensor not in done:
            done[tensor] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        return done[tensor]  # once each, so that a buffer which two modules share is still shared

    for module in model.modules():
        module._apply(convert, recurse=False)  # torch's own: it knows what else a module keeps, as an LSTM does
    return model


def to_fp32(model: nn.Module) -> nn.Module:
    """Convert a network back to FP32, norms included, in place; return it. What FP16 has rounded stays rounded.

    >>> from labkit.formats import FP16
    >>> to_fp32(to_model_format(nn.Linear(1, 1), FP16)).weight.dtype
    torch.float32
    """
    return to_model_format(model, FP32, keep_norms=False)


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` wrapped, whose parameters have the plain names; any other as it is."""
    return getattr(model, "_orig_mod", model)

"""The simulated card's operations against the CPU's: torch's own samples (OpInfo), forward and backward."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

NOT_COMPARED = (  # random numbers, memory that nobody wrote, and CUDA source compiled at run time
    "rand", "normal", "bernoulli", "multinomial", "uniform", "exponential", "cauchy", "geometric", "log_normal",
    "empty",
    "new_empty", "nn.functional.dropout", "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool", "nn.functional.rrelu", "nn.functional.scaled_dot_product_attention",
    "nn.functional.multi_head_attention_forward", "jiterator",
)  # fmt: skip

# What the card cannot do, or does otherwise than the CPU by intention, each with its reason.
DIFFERENT = {
    "sparse.mm.reduce": "CSR tensors",
    "sparse.sampled_addmm": "CSR tensors",
    "as_strided.partial_views": "the sample is a view of a storage that is not moved with it",
    "tensor_split": "the sample's indices belong on the CPU",
    "nn.functional.ctc_loss": "not simulated: CUDA has kernels of its own",
    "native_layer_norm": "FP32 statistics beside a half input, as on CUDA",
    "native_batch_norm": "FP32 statistics beside a half input, as on CUDA",
    "nn.functional.conv_transpose3d": "half sums in FP32, the CPU's does not",
}
DTYPES = (torch.float32, torch.float16)
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2}


def on_card(value: object) -> object:
    return value.detach().cuda().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def difference(operation, sample, dtype: torch.dtype) -> str:
    """Return how the card's result, or its gradients, differ from the CPU's; "" where they do not."""
    here = (sample.input, sample.args, sample.kwargs)
    there = tree_map(on_card, here)
    if there[2].get("device") == "cpu":
        there[2]["device"] = "cuda"
    try:
        results = [operation(values[0], *values[1], **values[2]) for values in (here, there)]
        expected, got = ([t for t in tree_leaves(result) if isinstance(t, torch.Tensor)] for result in results)
        values = [[t.to_dense() if t.layout != torch.strided else t for t in list_] for list_ in (expected, got)]
        if dtype == torch.float32 and any(t.requires_grad for t in values[0]):
            for inputs, outputs in zip((here, there), values, strict=True):
                leaves = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
                total = sum(t.abs().sum() for t in outputs if t.requires_grad)
                outputs += [g for g in torch.autograd.grad(total, leaves, allow_unused=True) if g is not None]
        for a, b in zip(*values, strict=True):
            tolerance = TOLERANCE[dtype]
            torch.testing.assert_close(
                b.cpu(), a, rtol=tolerance, atol=tolerance, equal_nan=True, check_layout=False, check_stride=False
            )
    except (AssertionError, RuntimeError) as error:
        return str(error).splitlines()[0][:200] or type(error).__name__
    return ""


def differences() -> dict[str, str]:
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for operation in op_db:
        if operation.name.startswith(NOT_COMPARED) or operation.full_name in DIFFERENT:
            continue
        for dtype in DTYPES:
            if dtype in operation.dtypes & operation.dtypesIfCUDA:
                gradients = dtype == torch.float32 and operation.supports_autograd
                samples = operation.sample_inputs("cpu", dtype, requires_grad=gradients)
                for sample in islice(samples, 4):
                    if said := difference(operation, sample, dtype):
                        found[f"{operation.full_name} {dtype}"] = said
                        break
    return found


@pytest.mark.slow
def test_all_operations_agree_with_the_cpu(simulated_gpu) -> None:
    assert simulated_gpu("A100", differences) == {}

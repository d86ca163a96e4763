"""Formats that torch does not compute in, on the sums of a GPU: what is multiplied, forward and backward, and refused.

The oracle is `mma_reference`, dot product by dot product, and ml_dtypes for what is stored.
"""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from labkit.amp import autocast
from labkit.formats import BF16, E2M1, E4M3, E5M2, FP16, TF32, Format, round_to
from labkit.gemm import EXACT, SPECS, accumulate
from labkit.gemm.product import Emulated
from tests.oracles import mma_reference

STORED = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}


def stored(values: np.ndarray, format: Format) -> np.ndarray:
    return values.astype(np.float32).astype(STORED[format]).astype(np.float64)


def dots(a: np.ndarray, b: np.ndarray, formats: tuple[Format, Format], *row: int) -> np.ndarray:
    """a @ b, each element by the reference; `row` is block length, fraction bits and significand bits of a result."""
    length, fraction_bits, result_bits = row
    names = [format.name for format in formats]
    return np.array([
        [
            mma_reference.dot(
                left.tolist(), right.tolist(), 0.0, names[0], length, fraction_bits, "FP32", result_bits,
                operands_b=names[1],
            )
            for right in b.T
        ]
        for left in a
    ])  # fmt: skip


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_worked_example_hopper_loses_what_its_fp16_units_keep() -> None:
    # 1 + 2^-14, in FP8: wgmma keeps 13 bits behind the point, and FP32 results as many.
    a, b = torch.tensor([[1.0, 2.0**-7]]), torch.tensor([[1.0], [2.0**-7]])
    with autocast(E4M3, accumulator=SPECS["H100"]) as region:
        assert isinstance(region.accumulator, Emulated)
        assert region.accumulator(a, b).item() == 1.0
    assert Emulated(SPECS["B200"], E4M3, E4M3)(a, b).item() == 1 + 2.0**-14


def test_a_layer_in_fp8_forward_and_backward() -> None:
    # E4M3 forward, E5M2 gradients: dX = dY W multiplies E5M2 by E4M3, dW = dY^T X, which is (X^T dY)^T, the other way.
    for gpu, row in (("H100", (32, 13, 13)), ("Ada", (16, 13, 13)), ("B200", (32, 25, 23))):
        x, w, dy = drawn(5, 70).requires_grad_(), drawn(4, 70, seed=1).requires_grad_(), drawn(5, 4, seed=2)
        with autocast(E4M3, gradient_format=E5M2, accumulator=SPECS[gpu]):
            y = F.linear(x, w)
        y.backward(dy)
        x8, w8 = (stored(t.detach().numpy(), E4M3) for t in (x, w))
        dy8 = stored(dy.numpy(), E5M2)
        assert np.array_equal(y.detach().numpy(), stored(dots(x8, w8.T, (E4M3, E4M3), *row), E4M3)), gpu
        assert np.array_equal(x.grad.numpy(), stored(dots(dy8, w8, (E5M2, E4M3), *row), E5M2)), gpu
        assert np.array_equal(w.grad.numpy(), stored(dots(dy8.T, x8, (E5M2, E4M3), *row), E5M2)), gpu


def test_tf32_forward_and_backward() -> None:
    x, w = (torch.from_numpy(round_to(drawn(3, 11, seed=s).double().numpy(), TF32)).float() for s in (3, 4))
    x, w = (t * 2.0**60 for t in (x, w))  # beyond FP16
    d = Emulated(SPECS["A100"], TF32, TF32)(x.requires_grad_(), w.T)
    assert np.array_equal(d.detach().numpy(), dots(x.detach().numpy(), w.T.numpy(), (TF32, TF32), 4, 24, 23))
    d.backward(torch.ones(3, 3))
    assert np.array_equal(x.grad.numpy(), dots(np.ones((3, 3)), w.numpy(), (TF32, TF32), 4, 24, 23))


def test_attention_rounds_its_weights_before_it_multiplies() -> None:
    # Softmax's outputs are no E4M3 numbers; a Tensor Core multiplies numbers that are.
    q, k, v = (drawn(1, 2, 6, 8, seed=s).requires_grad_() for s in (5, 6, 7))
    with autocast(E4M3, gradient_format=E5M2, accumulator=SPECS["H100"]):
        y = F.scaled_dot_product_attention(q, k, v)
    y.sum().backward()
    assert torch.equal(y, torch.from_numpy(stored(y.detach().numpy(), E4M3)).float())
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_what_a_gpu_does_not_multiply_is_refused_at_once() -> None:
    for message, gpu, format, of_gradients in (
        ("V100 Tensor Cores take FP16 operands; asked for E4M3", "V100", E4M3, None),
        ("T4 Tensor Cores take FP16 operands; asked for TF32", "T4", TF32, None),
        ("A100 Tensor Cores take FP16, BF16, TF32 operands; asked for E5M2", "A100", E5M2, None),
        ("H100 Tensor Cores take FP16, BF16, TF32, E4M3, E5M2 operands; asked for E2M1", "H100", E2M1, None),
        ("one format, or E4M3 by E5M2 where they take those; asked for E5M2 by BF16", "H100", BF16, E5M2),
    ):
        with pytest.raises(ValueError, match=message):
            autocast(format, gradient_format=of_gradients, accumulator=SPECS[gpu])


def test_tensors_of_both_fp8_dtypes_find_their_instruction() -> None:
    a, b = drawn(3, 40).to(torch.float8_e4m3fn), drawn(40, 2, seed=1).to(torch.float8_e5m2)
    d = accumulate(a, b, None, SPECS["H100"])
    assert np.array_equal(d.numpy(), dots(a.double().numpy(), b.double().numpy(), (E4M3, E5M2), 32, 13, 13))
    other_way = accumulate(b.mT.contiguous(), a.mT.contiguous(), None, SPECS["H100"])
    assert torch.equal(other_way.T, d)
    assert torch.equal(accumulate(a, b, None, EXACT, FP16), (a.double() @ b.double()).half())
    with pytest.raises(ValueError, match=r"of one dtype.*float8_e4m3fn and torch.float16"):
        accumulate(a, b.half(), None, EXACT)

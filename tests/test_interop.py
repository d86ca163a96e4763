"""Rounding of torch tensors, bit by bit as that of arrays."""

import itertools

import numpy as np
import pytest
import torch

from labkit.formats import (
    BF16,
    E4M3,
    E5M2,
    FORMATS,
    FP16,
    FP32,
    Format,
    Overflow,
    Rounding,
    decode,
    round_to,
    ulp,
)
from labkit.interop import PARALLEL_FROM, dtype_of, format_of, round_tensor
from tests.oracles.operations import operations

E2M1, TF32, FP64 = (FORMATS[name] for name in ("E2M1", "TF32", "FP64"))
MINE = Format("mine", exponent_bits=4, significand_bits=7)
WIDE = Format("wide", exponent_bits=8, significand_bits=20)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def random_floats(count, seed=0):
    """Uniform over FP32 codes: subnormals, infinities and NaNs included."""
    return np.random.default_rng(seed).integers(2**32, size=count, dtype=np.uint32).view(np.float32)


def ties(format, dtype):
    """Values, half-way points, and the numbers of `dtype` next to each; beyond max as well; both
    signs.
    """
    values = decode(
        np.random.default_rng(1).integers(format.max_code, size=20_000, dtype=np.uint64), format
    )
    with np.errstate(over="ignore"):
        values = np.concatenate(
            [values, [0, format.max, format.max + ulp(format.max, format) / 2, np.inf, np.nan]]
        )
        points = np.concatenate([values, values + ulp(values, format) / 2]).astype(dtype)
        near = [points, np.nextafter(points, dtype(0)), np.nextafter(points, dtype(np.inf))]
    return np.concatenate([*near, *(-part for part in near)])


def assert_equal_bits(tensor, wanted, what=""):
    got = tensor.cpu().numpy()
    assert got.dtype == wanted.dtype
    assert got.tobytes() == wanted.tobytes(), what  # NaNs as well: both give the default one


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rounding", Rounding, ids=lambda mode: mode.name)
def test_every_format_and_mode_equals_the_numpy_rounding(rounding, device):
    stochastic = rounding is Rounding.STOCHASTIC
    for format, dtype in itertools.product(
        (*FORMATS.values(), MINE, WIDE), (np.float32, np.float64)
    ):
        with np.errstate(invalid="ignore"):  # signalling NaNs
            values = np.concatenate([ties(format, dtype), random_floats(20_000).astype(dtype)])
        values = values if format.nan_code is not None else np.nan_to_num(values, nan=1.0)
        bits = np.random.default_rng(2).integers(2**32, size=values.shape) if stochastic else None
        tensor_bits = torch.from_numpy(bits).to(device) if stochastic else None
        for overflow in Overflow:
            got = round_tensor(
                torch.from_numpy(values).to(device), format, rounding, overflow, tensor_bits
            )
            assert_equal_bits(got, round_to(values, format, rounding, overflow, bits), format.name)


def test_a_million_random_floats_as_numpy_and_as_torchs_own_cast():
    for format in (FP16, BF16, E5M2, E4M3, MINE):
        values = random_floats(1_000_000, seed=format.bits)
        for device in DEVICES:
            got = round_tensor(torch.from_numpy(values).to(device), format)
            assert_equal_bits(got, round_to(values, format), format.name)
        if format in (FP16, BF16):
            numbers = torch.from_numpy(np.nan_to_num(values, nan=1.0))
            assert_equal_bits(
                round_tensor(numbers, format),
                numbers.to(dtype_of(format)).float().numpy(),
                format.name,
            )


def test_tensors_keep_their_dtype():
    value = torch.tensor([1 + 2.0**-11 + 2.0**-30], dtype=torch.float64)
    assert round_tensor(value, FP16).item() == 1 + 2**-10, "rounded once: value.half() gives 1"
    assert round_tensor(torch.tensor([0.1]), FP64).item() == torch.tensor(0.1).item(), (
        "never widened"
    )
    for dtype, format in itertools.product(
        (torch.float16, torch.bfloat16), (E5M2, TF32, FP32, E2M1)
    ):
        values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
        values = values if format.nan_code is not None else values.nan_to_num(nan=1.0)
        rounded = round_tensor(values, format)
        assert rounded.dtype == dtype
        assert np.array_equal(
            rounded.float().numpy(), round_to(values.float().numpy(), format), equal_nan=True
        )


def test_shapes_strides_and_memory():
    grid = torch.linspace(0, 1, 20).reshape(4, 5)
    before = grid.clone()
    for format in (FP16, E4M3, FP32):
        rounded = round_tensor(grid.T[::2], format)
        assert np.array_equal(rounded.numpy(), round_to(before.numpy(), format).T[::2])
        rounded.fill_(7)
        assert torch.equal(grid, before)
    assert round_tensor(torch.tensor(0.1), MINE).shape == ()
    assert round_tensor(torch.empty(0, 3), E4M3).shape == (0, 3)
    assert round_tensor(grid.T.expand(2, 5, 4), E5M2).shape == (2, 5, 4)


def test_a_large_tensor_is_rounded_in_pieces_that_fit_together():
    values = random_floats(3 * PARALLEL_FROM, seed=8).reshape(3, -1).T
    bits = np.random.default_rng(9).integers(2**32, size=values.shape)
    got = round_tensor(
        torch.from_numpy(values), E4M3, Rounding.STOCHASTIC, random_bits=torch.from_numpy(bits)
    )
    assert_equal_bits(
        got.contiguous(), round_to(values, E4M3, Rounding.STOCHASTIC, random_bits=bits)
    )


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_what_is_rounded_in_pieces_wakes_no_threads(two_threads):
    # torch works in parallel above 2^15 elements, and MKL, which it asks for whole numbers, from
    # 2^12. A dozen such operations on each piece wait for all threads each time; on a busy machine
    # that is milliseconds.
    modes = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]
    for dtype, rounding in itertools.product((torch.float32, torch.float64), modes):
        largest = operations(round_tensor, torch.randn(2**17, dtype=dtype), E4M3, rounding)
        assert max(largest.values()) <= 2**15, (dtype, rounding)
        by_mkl = [
            largest[name]
            for name in ("round_", "trunc_", "ceil_", "floor_", "trunc")
            if name in largest
        ]
        assert by_mkl
        assert max(by_mkl) < 2**12, (dtype, rounding)


def test_dtypes_and_formats_name_each_other():
    for format, dtype in {
        FP64: torch.float64,
        FP32: torch.float32,
        FP16: torch.float16,
        BF16: torch.bfloat16,
    }.items():
        assert dtype_of(format) is dtype
        assert format_of(dtype) == format
    for format in (E5M2, E4M3):
        values = (
            torch.arange(256, dtype=torch.int32)
            .to(torch.uint8)
            .view(dtype_of(format))
            .double()
            .numpy()
        )
        assert np.array_equal(values, decode(np.arange(256), format), equal_nan=True)
    for format in (FP64, FP32, FP16, BF16, E5M2, E4M3):
        info = torch.finfo(dtype_of(format))
        assert info.max == format.max
        assert info.smallest_normal == format.smallest_normal
        assert info.eps == format.epsilon
    with pytest.raises(
        ValueError, match=r"torch has no dtype for mine; .* round_tensor\(tensor, mine\)"
    ):
        dtype_of(MINE)
    with pytest.raises(ValueError, match=r"expected a dtype of .*got torch\.int64"):
        format_of(torch.int64)


def test_what_cannot_be_rounded_is_explained():
    weights = torch.ones(3, requires_grad=True)
    for tensor, format, error, explanation in [
        (torch.ones(2, dtype=torch.int32), FP16, TypeError, "torch.int32"),
        (torch.ones(2, dtype=torch.complex64), FP16, TypeError, "torch.complex64"),
        (torch.ones(2).half(), BF16, ValueError, "BF16 has values that FP16 cannot hold"),
        (torch.tensor([torch.nan]), E2M1, ValueError, "E2M1 has no NaN"),
        (weights, FP16, ValueError, r"no gradient.*\.detach\(\)"),
    ]:
        with pytest.raises(error, match=explanation):
            round_tensor(tensor, format)
    with torch.no_grad():
        assert not round_tensor(weights, FP16).requires_grad
    for rounding, bits in [
        (Rounding.STOCHASTIC, None),
        (Rounding.STOCHASTIC, torch.zeros(2, dtype=torch.int64)),
        (Rounding.STOCHASTIC, torch.zeros(3)),
        (Rounding.STOCHASTIC, torch.zeros(3, dtype=torch.bool)),
        # int32 holds only half of them
        (Rounding.STOCHASTIC, torch.tensor([0, 1, -1], dtype=torch.int32)),
        (Rounding.STOCHASTIC, torch.tensor([0, 1, 2**32])),
        (Rounding.NEAREST_EVEN, torch.zeros(3, dtype=torch.int64)),
    ]:
        with pytest.raises(ValueError, match="random_bits"):
            round_tensor(torch.ones(3), FP16, rounding, random_bits=bits)

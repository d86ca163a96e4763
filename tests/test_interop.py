"""Rounding of torch tensors equals the rounding of numpy arrays, bit by bit."""

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
    """Return values of a format, the points halfway between them, and their neighbours in `dtype`.

    They have both signs, and some are beyond the format's maximum.
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
    """Compare bit by bit; NaNs too, since both functions return the default NaN."""
    got = tensor.cpu().numpy()
    assert got.dtype == wanted.dtype
    assert got.tobytes() == wanted.tobytes(), what


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rounding", Rounding, ids=lambda mode: mode.name)
def test_every_format_and_mode_equals_the_numpy_rounding(rounding, device):
    for format, dtype in itertools.product(
        (*FORMATS.values(), MINE, WIDE), (np.float32, np.float64)
    ):
        # numpy warns of signalling NaNs among the random floats
        with np.errstate(invalid="ignore"):
            values = np.concatenate([ties(format, dtype), random_floats(20_000).astype(dtype)])
        if format.nan_code is None:
            values = np.nan_to_num(values, nan=1.0)
        bits = None
        tensor_bits = None
        if rounding is Rounding.STOCHASTIC:
            bits = np.random.default_rng(2).integers(2**32, size=values.shape)
            tensor_bits = torch.from_numpy(bits).to(device)
        for overflow in Overflow:
            got = round_tensor(
                torch.from_numpy(values).to(device), format, rounding, overflow, tensor_bits
            )
            assert_equal_bits(got, round_to(values, format, rounding, overflow, bits), format.name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", [FP16, BF16, E5M2, E4M3, MINE], ids=lambda each: each.name)
def test_a_million_random_floats_equal_the_numpy_rounding(format: Format, device: str) -> None:
    values = random_floats(1_000_000, seed=format.bits)
    got = round_tensor(torch.from_numpy(values).to(device), format)
    assert_equal_bits(got, round_to(values, format))


@pytest.mark.parametrize("format", [FP16, BF16], ids=lambda each: each.name)
def test_a_million_random_floats_equal_torchs_own_cast(format: Format) -> None:
    values = random_floats(1_000_000, seed=format.bits)
    numbers = torch.from_numpy(np.nan_to_num(values, nan=1.0))
    cast = numbers.to(dtype_of(format)).float().numpy()
    assert_equal_bits(round_tensor(numbers, format), cast)


def test_fp64_is_rounded_once():
    value = torch.tensor([1 + 2.0**-11 + 2.0**-30], dtype=torch.float64)
    assert round_tensor(value, FP16).item() == 1 + 2**-10
    # torch rounds to FP32 first, which makes a tie of it
    assert value.half().item() == 1


def test_rounding_to_a_wider_format_changes_nothing():
    value = torch.tensor([0.1])
    assert torch.equal(round_tensor(value, FP64), value)


@pytest.mark.parametrize("format", [E5M2, TF32, FP32, E2M1], ids=lambda each: each.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_tensors_keep_their_dtype(dtype: torch.dtype, format: Format) -> None:
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    if format.nan_code is None:
        values = values.nan_to_num(nan=1.0)
    rounded = round_tensor(values, format)
    assert rounded.dtype == dtype
    wanted = round_to(values.float().numpy(), format)
    assert np.array_equal(rounded.float().numpy(), wanted, equal_nan=True)


@pytest.mark.parametrize("format", [FP16, E4M3, FP32], ids=lambda each: each.name)
def test_a_tensor_with_strides_is_rounded_into_new_memory(format: Format) -> None:
    grid = torch.linspace(0, 1, 20).reshape(4, 5)
    before = grid.clone()
    rounded = round_tensor(grid.T[::2], format)
    assert np.array_equal(rounded.numpy(), round_to(before.numpy(), format).T[::2])
    rounded.fill_(7)
    assert torch.equal(grid, before)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 5, 4)], ids=str)
def test_rounding_keeps_the_shape(shape: tuple[int, ...]) -> None:
    tensor = torch.tensor(0.1).expand(shape)
    assert round_tensor(tensor, E4M3).shape == shape


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
    # torch works in parallel above 2^15 elements. MKL, which torch calls to round to whole numbers,
    # does from 2^12. Each of the dozen operations on a piece would wait for all threads; on a busy
    # machine that takes milliseconds.
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


@pytest.mark.parametrize(
    ("format", "dtype"),
    [
        (FP64, torch.float64),
        (FP32, torch.float32),
        (FP16, torch.float16),
        (BF16, torch.bfloat16),
    ],
    ids=str,
)
def test_dtypes_and_formats_name_each_other(format: Format, dtype: torch.dtype) -> None:
    assert dtype_of(format) is dtype
    assert format_of(dtype) == format


@pytest.mark.parametrize("format", [E5M2, E4M3], ids=lambda each: each.name)
def test_codes_of_8_bits_decode_as_torch_decodes_them(format: Format) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values = codes.view(dtype_of(format)).double().numpy()
    assert np.array_equal(values, decode(np.arange(256), format), equal_nan=True)


@pytest.mark.parametrize("format", [FP64, FP32, FP16, BF16, E5M2, E4M3], ids=lambda each: each.name)
def test_limits_of_a_format_equal_those_of_torch(format: Format) -> None:
    info = torch.finfo(dtype_of(format))
    assert info.max == format.max
    assert info.smallest_normal == format.smallest_normal
    assert info.eps == format.epsilon


def test_a_format_without_a_dtype_is_refused():
    message = r"torch has no dtype for mine; .* round_tensor\(tensor, mine\)"
    with pytest.raises(ValueError, match=message):
        dtype_of(MINE)


def test_a_dtype_without_a_format_is_refused():
    with pytest.raises(ValueError, match=r"expected a dtype of .*got torch\.int64"):
        format_of(torch.int64)


@pytest.mark.parametrize(
    ("tensor", "format", "error", "explanation"),
    [
        (torch.ones(2, dtype=torch.int32), FP16, TypeError, "torch.int32"),
        (torch.ones(2, dtype=torch.complex64), FP16, TypeError, "torch.complex64"),
        (
            torch.ones(2, 2).to_sparse(),
            E4M3,
            TypeError,
            r"expected a dense tensor, got one of torch\.sparse_coo",
        ),
        (torch.ones(2).half(), BF16, ValueError, "BF16 has values that FP16 cannot hold"),
        (torch.tensor([torch.nan]), E2M1, ValueError, "E2M1 has no NaN"),
        (torch.ones(3, requires_grad=True), FP16, ValueError, r"no gradient.*\.detach\(\)"),
    ],
    ids=["integers", "complex", "sparse", "narrower", "NaN", "requires_grad"],
)
def test_a_tensor_that_cannot_be_rounded_is_explained(
    tensor: torch.Tensor, format: Format, error: type[Exception], explanation: str
) -> None:
    with pytest.raises(error, match=explanation):
        round_tensor(tensor, format)


def test_weights_can_be_rounded_without_gradients():
    weights = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not round_tensor(weights, FP16).requires_grad


@pytest.mark.parametrize(
    ("bits", "got"),
    [
        (None, "None"),
        (torch.zeros(2, dtype=torch.int64), r"shape \(2,\)"),
        (torch.zeros(3), r"a tensor of torch\.float32"),
        (torch.zeros(3, dtype=torch.bool), r"a tensor of torch\.bool"),
        # int32 holds only half of the numbers from 0 to 2^32 - 1
        (torch.tensor([0, 1, -1], dtype=torch.int32), "a number outside this range"),
        (torch.tensor([0, 1, 2**32]), "a number outside this range"),
    ],
    ids=["none", "shape", "floats", "booleans", "negative", "too large"],
)
def test_wrong_random_bits_are_refused(bits: torch.Tensor | None, got: str) -> None:
    with pytest.raises(ValueError, match=rf"random_bits: expected .*, got {got}\. For example"):
        round_tensor(torch.ones(3), FP16, Rounding.STOCHASTIC, random_bits=bits)


def test_random_bits_may_be_unsigned():
    values = torch.full((2,), 1 + 2.0**-11)
    bits = torch.tensor([0, 2**32 - 1], dtype=torch.uint32)
    rounded = round_tensor(values, FP16, Rounding.STOCHASTIC, random_bits=bits)
    assert rounded.tolist() == [1 + 2.0**-10, 1.0]


def test_random_bits_of_numpy_are_refused():
    with pytest.raises(TypeError, match=r"random_bits: expected a Tensor, got an? ndarray"):
        round_tensor(
            torch.ones(3), FP16, Rounding.STOCHASTIC, random_bits=np.zeros(3, dtype=np.int64)
        )


def test_random_bits_without_stochastic_rounding_are_refused():
    bits = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="random_bits"):
        round_tensor(torch.ones(3), FP16, Rounding.NEAREST_EVEN, random_bits=bits)

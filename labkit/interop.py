"""Conversion between formats and torch dtypes, and rounding of tensors to any format.

Idea: a torch dtype is a format with a storage type. A tensor is rounded in torch as by
`formats.round_to`: divided by the ulp, rounded to an integer, and multiplied by the ulp. The ulp
follows from the exponent bits.

Invariant: `round_tensor` equals `round_to` bit for bit, on any device. Its result is representable
in the tensor's dtype.
"""

import math
from collections.abc import Callable
from math import ldexp

import torch

from labkit.formats import BF16, E4M3, E5M2, E8M0, FP16, FP32, FP64, Format, Overflow, Rounding
from labkit.formats.arguments import FormatLike, as_format, as_member, describe_value, require_kind
from labkit.formats.rounding import RANDOM_BITS, common_format, no_nan, overflow_values

_DTYPES = {
    FP64: torch.float64,
    FP32: torch.float32,
    FP16: torch.float16,
    BF16: torch.bfloat16,
    E5M2: torch.float8_e5m2,
    E4M3: torch.float8_e4m3fn,
    E8M0: torch.float8_e8m0fnu,
}
_FORMATS = {dtype: format for format, dtype in _DTYPES.items()}
# half-way between E4M3's max of 448 and the next multiple of its ulp; a tie rounds to 448, whose
# last bit is 0
_E4M3_ENDS = 464.0
# dtypes in which tensors are rounded -> integers of their size
_CARRIERS = {torch.float64: torch.int64, torch.float32: torch.int32}
# elements: for more, MKL, which torch uses to round, starts threads of its own (observed at 2^12)
MKL_PARALLEL_FROM = 2**11
# elements: for more, torch uses several threads (at::internal::GRAIN_SIZE)
PARALLEL_FROM = 2**15
_WHOLE: dict[Rounding, Callable[[torch.Tensor], torch.Tensor]] = {
    Rounding.NEAREST_EVEN: torch.Tensor.round_,
    Rounding.TOWARD_ZERO: torch.Tensor.trunc_,
    Rounding.TOWARD_POSITIVE: torch.Tensor.ceil_,
    Rounding.TOWARD_NEGATIVE: torch.Tensor.floor_,
}


def dtype_of(format: FormatLike) -> torch.dtype:
    """Return the torch dtype that stores a format.

    Raises:
        ValueError: torch has no dtype for the format.

    >>> dtype_of(FP16)
    torch.float16
    """
    format = as_format(format)
    if format not in _DTYPES:
        raise ValueError(
            f"torch has no dtype for {format.name}; it has "
            f"{', '.join(row.name for row in _DTYPES)}. round_tensor(tensor, {format.name}) keeps "
            "its values in a wider dtype."
        )
    return _DTYPES[format]


def format_of(dtype: torch.dtype) -> Format:
    """Return the format of a torch dtype.

    >>> format_of(torch.bfloat16).name
    'BF16'
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype: expected a torch.dtype, got {describe_value(dtype)}")
    if dtype not in _FORMATS:
        raise ValueError(f"expected a dtype of {', '.join(map(str, _FORMATS))}, got {dtype}")
    return _FORMATS[dtype]


def as_device(device: torch.device | str) -> torch.device:
    """Return a torch device; "gpu" is the current accelerator of torch.

    Raises:
        TypeError: the argument is neither a device nor a name.
        ValueError: torch has no device of this name, or finds no GPU.

    >>> as_device("cpu")
    device(type='cpu')
    """
    if isinstance(device, torch.device):
        return device
    if not isinstance(device, str):
        raise TypeError(
            f"device: expected a torch.device or a name, got {describe_value(device)}. For "
            'example: "cuda".'
        )
    if device == "gpu":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            raise ValueError(
                'device: expected a device of this machine, got "gpu", and torch reaches none. '
                'Take "cpu"; `labkit check` says why.'
            )
        return accelerator
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f'device: expected "cpu", "gpu", "cuda" or another device of torch, got {device!r}'
        ) from error


def round_tensor(
    tensor: torch.Tensor,
    format: FormatLike,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
    random_bits: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a tensor rounded to a format, of the same shape, dtype and device.

    The arguments are those of `formats.round_to`.

    Raises:
        TypeError: the tensor is not float16, bfloat16, float32 or float64, or it is sparse; or
            random_bits is not a tensor.
        ValueError: as for `formats.round_to`; or the tensor requires a gradient, which a step
            function does not have.

    >>> round_tensor(torch.tensor([0.1, 65520.0]), FP16)
    tensor([0.1000,    inf])
    """
    require_kind(tensor, torch.Tensor, "tensor", "round_to rounds NumPy arrays")
    format = as_format(format)
    rounding = as_member(Rounding, rounding, "rounding")
    overflow = as_member(Overflow, overflow, "overflow")
    if tensor.dtype not in (*_CARRIERS, torch.float16, torch.bfloat16):
        raise TypeError(f"expected float16, bfloat16, float32 or float64, got {tensor.dtype}")
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"tensor: expected a dense tensor, got one of {tensor.layout}. Round the numbers that "
            "it stores: tensor.coalesce().values()"
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "expected a tensor without requires_grad, since rounding has no gradient. Round "
            "tensor.detach(), or under torch.no_grad(), or in a torch.autograd.Function that "
            "defines a gradient."
        )
    target = common_format(format_of(tensor.dtype), format)
    values = tensor.detach()
    if values.dtype not in _CARRIERS:
        # exact: FP32 contains FP16 and BF16
        values = values.float()
    if target.nan_code is None and values.isnan().any():
        raise no_nan(target)
    _check_random_bits(random_bits, rounding, values.shape)
    if random_bits is not None:
        # torch does not compare unsigned 32-bit numbers with int64
        random_bits = random_bits.long()
    as_torch_casts = rounding is Rounding.NEAREST_EVEN and overflow is Overflow.TO_INFINITY
    if as_torch_casts and target in (FP16, BF16) and values.dtype == torch.float32:
        # torch's cast is faster, and has the same result for all 2^32 inputs
        rounded = _one_nan(values.to(_DTYPES[target]).to(torch.float32))
    else:
        rounded = _in_pieces(values, target, rounding, overflow, random_bits)
    return rounded.to(tensor.dtype)


def round_keeping_infinity(values: torch.Tensor, format: FormatLike) -> torch.Tensor:
    """Round to nearest as `round_tensor`, but keep infinities in formats without them, for masks.

    Args:
        values: FP32 numbers without autograd history.
        format: the format. E4M3 and E5M2 are rounded by torch's casts where these round once.

    >>> round_keeping_infinity(torch.tensor([1.06, 500.0, math.inf]), E4M3)
    tensor([1., nan, inf])
    """
    format = as_format(format)
    if format is E5M2 and casts_to_8_bits(values):
        return values.to(torch.float8_e5m2).to(torch.float32)
    if format is E4M3 and casts_to_8_bits(values):
        magnitudes = values.abs()
        rounded = values.to(torch.float8_e4m3fn).to(torch.float32)
        # casts of larger numbers differ between devices and versions of torch
        rounded.masked_fill_(magnitudes > _E4M3_ENDS, math.nan)
        return torch.where(magnitudes == math.inf, values, rounded)
    rounded = round_tensor(values, format)
    if format.infinity_code is not None:
        return rounded
    return torch.where(values.isinf(), values, rounded)


def casts_to_8_bits(values: torch.Tensor) -> bool:
    """Return whether torch rounds these values to E4M3 and E5M2 once.

    It does so for FP32, except on Apple's GPUs.
    """
    return values.dtype == torch.float32 and values.device.type != "mps"


def random_bits_like(
    tensor: torch.Tensor, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Draw a random whole number below 2^32 for each element, for stochastic rounding."""
    return torch.randint(2**RANDOM_BITS, tensor.shape, generator=generator, device=tensor.device)


def round_with_bits(
    tensor: torch.Tensor, format: FormatLike, random_bits: torch.Tensor
) -> torch.Tensor:
    """Round FP32 or FP64 stochastically as `round_tensor`, with bits of `random_bits_like`.

    The bits are not validated, since the validation would wait for a GPU.
    """
    format = as_format(format)
    target = common_format(format_of(tensor.dtype), format)
    return _in_pieces(tensor, target, Rounding.STOCHASTIC, Overflow.TO_INFINITY, random_bits)


def _in_pieces(
    values: torch.Tensor,
    format: Format,
    rounding: Rounding,
    overflow: Overflow,
    random_bits: torch.Tensor | None,
) -> torch.Tensor:
    """Round on a CPU piece by piece, and on another device all at once.

    The intermediate results of a piece stay in the cache. A piece is so small that torch uses one
    thread: with more, each of a dozen operations would wait for all threads, which is slow on a
    busy machine.
    """
    flat = values.reshape(-1)
    flat_bits = None if random_bits is None else random_bits.reshape(-1)
    size = PARALLEL_FROM if values.is_cpu else max(1, flat.numel())
    rounded = torch.empty_like(flat)
    for first in range(0, flat.numel(), size):
        piece = slice(first, first + size)
        bits = None if flat_bits is None else flat_bits[piece]
        unlimited = _round(flat[piece], format, rounding, bits)
        rounded[piece] = _one_nan(_limit(unlimited, flat[piece], format, rounding, overflow))
    return rounded.view(values.shape)


def _round(
    values: torch.Tensor, format: Format, rounding: Rounding, random_bits: torch.Tensor | None
) -> torch.Tensor:
    """Round in a carrier dtype with an unbounded exponent."""
    integers = _CARRIERS[values.dtype]
    # the code of infinity is the mask of the exponent bits
    exponent_mask = torch.tensor(float("inf"), dtype=values.dtype).view(integers).item()
    # the exponent bits alone are 2^exponent; 0 for the carrier's subnormals
    power = (values.view(integers) & exponent_mask).view(values.dtype)
    power.clamp_(ldexp(1.0, format.emin), ldexp(1.0, format.emax))
    spacing = power.mul_(format.epsilon)
    return _to_whole(values / spacing, rounding, random_bits).mul_(spacing)


def _to_whole(
    ratio: torch.Tensor, rounding: Rounding, random_bits: torch.Tensor | None
) -> torch.Tensor:
    """Round to integers; `ratio` may be overwritten."""
    if rounding in _WHOLE:
        return _in_one_thread(_WHOLE[rounding], ratio)
    whole = _in_one_thread(torch.Tensor.trunc_, ratio.clone())
    fraction = (ratio - whole).abs_()
    if random_bits is None:
        # to nearest, a tie away from zero
        away = fraction >= 0.5
    else:
        # away from zero with probability `fraction`, cut to the bits of the random numbers
        away = random_bits < fraction.mul_(2.0**RANDOM_BITS).long()
    return whole.add_(torch.copysign(away.to(ratio.dtype), ratio))


def _in_one_thread(
    function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor
) -> torch.Tensor:
    """Round values [n] to integers, in place, without other threads."""
    alone = not values.is_cpu or torch.get_num_threads() == 1
    if alone:
        function(values)
        return values
    for piece in values.split(MKL_PARALLEL_FROM):
        function(piece)
    return values


def _limit(
    rounded: torch.Tensor,
    values: torch.Tensor,
    format: Format,
    rounding: Rounding,
    overflow: Overflow,
) -> torch.Tensor:
    """Replace, in place, the values that the format does not represent.

    These are values beyond its max, negative values if it has no sign, and zero if it has none.

    Args:
        rounded: numbers rounded with an unbounded exponent; it is overwritten.
        values: the same numbers before rounding.
        format: the format.
        rounding: the rounding mode.
        overflow: result for numbers beyond max.
    """
    above, below, infinity = overflow_values(format, rounding, overflow)
    # the first number beyond max, with the ulp of max
    end = format.max + ldexp(1.0, format.emax - format.significand_bits)
    # in the carrier dtype, that number may be infinity
    if end > torch.finfo(values.dtype).max:
        end = float("inf")
    # threshold_ replaces numbers at or below a limit. So the numbers are limited from below,
    # negated, limited again and negated back; a mask would take longer than these four passes.
    torch.threshold_(rounded, -end, below).neg_()
    torch.threshold_(rounded, -end, -above).neg_()
    # with a directed rounding, finite numbers stop at max, but infinities stay
    stops_at_max = format.max in (above, -below)
    if stops_at_max and infinity != format.max:
        rounded.masked_fill_(values == float("inf"), infinity)
        rounded.masked_fill_(values == float("-inf"), -infinity)
    if not format.has_zero:
        rounded.clamp_(min=format.smallest_normal)
        rounded.masked_fill_(values == 0, float("nan"))
    if not format.signed:
        rounded.masked_fill_(values < 0, float("nan"))
    return rounded


def _one_nan(rounded: torch.Tensor) -> torch.Tensor:
    """Make every NaN the default one, in place."""
    return rounded.nan_to_num_(nan=float("nan"), posinf=float("inf"), neginf=float("-inf"))


def _fault_of_bits(bits: torch.Tensor | None, shape: torch.Size) -> str:
    """Return what was got in place of integers from 0 to below 2^32 of a shape, or ""."""
    if bits is None:
        return "None"
    if bits.dtype.is_floating_point or bits.dtype.is_complex or bits.dtype == torch.bool:
        return f"a tensor of {bits.dtype}"
    if bits.shape != shape:
        return f"shape {tuple(bits.shape)}"
    if bits.numel() == 0:
        return ""
    whole = bits.long()
    if int(whole.min()) < 0 or int(whole.max()) >= 2**RANDOM_BITS:
        return "a number outside this range"
    return ""


def _check_random_bits(
    random_bits: torch.Tensor | None, rounding: Rounding, shape: torch.Size
) -> None:
    if random_bits is not None:
        require_kind(random_bits, torch.Tensor, "random_bits", "round_to takes NumPy's arrays")
    if rounding is not Rounding.STOCHASTIC:
        if random_bits is not None:
            raise ValueError(
                f"random_bits are for Rounding.STOCHASTIC; {rounding} takes none. Leave them out."
            )
        return
    got = _fault_of_bits(random_bits, shape)
    if got:
        raise ValueError(
            f"random_bits: expected a random whole number from 0 to 2^{RANDOM_BITS} - 1 for each "
            f"value, shape {tuple(shape)}, for stochastic rounding, got {got}. For example: "
            f"random_bits=torch.randint(2**{RANDOM_BITS}, tensor.shape, device=tensor.device)"
        )

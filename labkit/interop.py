"""How do formats and torch dtypes say the same thing?

Idea: a torch dtype is a format with a storage type. Rounding a tensor is `formats.round_to` spelled for torch: divide
by the ulp, round to a whole number, multiply back; the ulp is read off the exponent bits.

Invariant: `round_tensor` equals `round_to` bit for bit, on any device, and never leaves the tensor's precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import ldexp

import torch

from labkit.formats import BF16, E4M3, E5M2, E8M0, FP16, FP32, FP64, Format, Overflow, Rounding
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
_E4M3_ENDS = 464.0  # half-way between 448 and what would be the next number; a tie goes to 448, whose last bit is 0
_FORMATS = {dtype: format for format, dtype in _DTYPES.items()}
_CARRIERS = {torch.float64: torch.int64, torch.float32: torch.int32}  # the types rounding is done in, and their bits
MKL_PARALLEL_FROM = 2**11  # MKL, which torch asks for whole numbers, wakes threads of its own above this (seen at 2^12)
PARALLEL_FROM = 2**15  # an operation on more elements than these wakes torch's threads (at::internal::GRAIN_SIZE)
_WHOLE: dict[Rounding, Callable[[torch.Tensor], torch.Tensor]] = {
    Rounding.NEAREST_EVEN: torch.Tensor.round_,
    Rounding.TOWARD_ZERO: torch.Tensor.trunc_,
    Rounding.TOWARD_POSITIVE: torch.Tensor.ceil_,
    Rounding.TOWARD_NEGATIVE: torch.Tensor.floor_,
}


def dtype_of(format: Format) -> torch.dtype:
    """Return the torch dtype that stores a format.

    Raises:
        ValueError: torch stores no such format.

    >>> dtype_of(FP16)
    torch.float16
    """
    if format not in _DTYPES:
        raise ValueError(
            f"torch has no dtype for {format.name}; it has {', '.join(row.name for row in _DTYPES)}. "
            f"round_tensor(tensor, {format.name}) keeps its values in a wider dtype."
        )
    return _DTYPES[format]


def format_of(dtype: torch.dtype) -> Format:
    """Return the format of a torch dtype.

    >>> format_of(torch.bfloat16).name
    'BF16'
    """
    if dtype not in _FORMATS:
        raise ValueError(f"{dtype} is no format of the lab; these are: {', '.join(map(str, _FORMATS))}.")
    return _FORMATS[dtype]


def round_tensor(
    tensor: torch.Tensor,
    format: Format,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    overflow: Overflow = Overflow.TO_INFINITY,
    random_bits: torch.Tensor | None = None,
) -> torch.Tensor:
    """Round a tensor's values to a format; a new tensor of the same shape, dtype and device. See `formats.round_to`.

    Raises:
        TypeError: the tensor is not float16, bfloat16, float32 or float64.
        ValueError: as `formats.round_to`; or a gradient is asked for: that of a staircase is zero or infinite.

    >>> round_tensor(torch.tensor([0.1, 65520.0]), FP16)
    tensor([0.1000,    inf])
    """
    if tensor.dtype not in (*_CARRIERS, torch.float16, torch.bfloat16):
        raise TypeError(f"round_tensor takes float16, bfloat16, float32 or float64; it was given {tensor.dtype}.")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "rounding has no gradient, and this tensor asks for one. Round tensor.detach(), or under torch.no_grad(), "
            "or inside a torch.autograd.Function that says what its gradient shall be."
        )
    target = common_format(format_of(tensor.dtype), format)
    values = tensor.detach() if tensor.dtype in _CARRIERS else tensor.float()  # exact: FP32 holds both
    if target.nan_code is None and values.isnan().any():
        raise no_nan(target)
    _check_random_bits(random_bits, rounding, values.shape)
    plain = rounding is Rounding.NEAREST_EVEN and overflow is Overflow.TO_INFINITY
    if plain and target in (FP16, BF16) and values.dtype == torch.float32:
        rounded = _one_nan(values.to(_DTYPES[target]).to(torch.float32))  # torch's cast: equal for all 2^32 inputs
    else:
        rounded = _in_pieces(values, target, rounding, overflow, random_bits)
    return rounded.to(tensor.dtype)


def round_keeping_infinity(values: torch.Tensor, format: Format) -> torch.Tensor:
    """Do as `round_tensor` does to the nearest number, but keep infinity where a format has none: masks have it.

    FP32 values without history; torch's own casts to 8 bits take few operations.

    >>> round_keeping_infinity(torch.tensor([1.06, 500.0, math.inf]), E4M3)
    tensor([1., nan, inf])
    """
    if format is E5M2 and casts_to_8_bits(values):
        return values.to(torch.float8_e5m2).to(torch.float32)
    if format is E4M3 and casts_to_8_bits(values):
        size, rounded = values.abs(), values.to(torch.float8_e4m3fn).to(torch.float32)
        rounded.masked_fill_(size > _E4M3_ENDS, math.nan)  # beyond, casts differ: between torch's versions, too
        return torch.where(size == math.inf, values, rounded)
    rounded = round_tensor(values, format)
    return rounded if format.infinity_code is not None else torch.where(values.isinf(), values, rounded)


def casts_to_8_bits(values: torch.Tensor) -> bool:
    """Whether torch casts these to E4M3 and E5M2; Apple's GPUs do not, and only FP32 is cast in one rounding."""
    return values.dtype == torch.float32 and values.device.type != "mps"


def random_bits_like(tensor: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draw a random whole number below 2^32 for each element, as stochastic rounding takes them."""
    return torch.randint(2**RANDOM_BITS, tensor.shape, generator=generator, device=tensor.device)


def round_with_bits(tensor: torch.Tensor, format: Format, random_bits: torch.Tensor) -> torch.Tensor:
    """Do as `round_tensor` does with Rounding.STOCHASTIC, of FP32 or FP64, and bits of `random_bits_like`.

    The bits are not checked, which on a GPU would have to wait for it.
    """
    target = common_format(format_of(tensor.dtype), format)
    return _in_pieces(tensor, target, Rounding.STOCHASTIC, Overflow.TO_INFINITY, random_bits)


def _in_pieces(
    values: torch.Tensor, format: Format, rounding: Rounding, overflow: Overflow, random_bits: torch.Tensor | None
) -> torch.Tensor:
    """Round piece by piece on a CPU, so that what stands between the steps stays in its cache; else at once.

    A piece wakes no threads: a dozen operations on each would wait for all of them, and on a busy machine for long.
    """
    flat, bits = values.reshape(-1), None if random_bits is None else random_bits.reshape(-1)
    size = PARALLEL_FROM if values.is_cpu else max(1, flat.numel())
    rounded = torch.empty_like(flat)
    for first in range(0, flat.numel(), size):
        part = slice(first, first + size)
        near = _round(flat[part], format, rounding, None if bits is None else bits[part])
        rounded[part] = _one_nan(_limit(near, flat[part], format, rounding, overflow))
    return rounded.view(values.shape)


def _round(values: torch.Tensor, format: Format, rounding: Rounding, random_bits: torch.Tensor | None) -> torch.Tensor:
    """Round in a carrier dtype as if the format had no largest value."""
    bits = _CARRIERS[values.dtype]
    exponent_mask = torch.tensor(float("inf"), dtype=values.dtype).view(bits).item()
    spacing = (values.view(bits) & exponent_mask).view(values.dtype)  # 2^exponent; 0 for the carrier's subnormals
    spacing = spacing.clamp_(ldexp(1.0, format.emin), ldexp(1.0, format.emax)).mul_(format.epsilon)
    return _to_whole(values / spacing, rounding, random_bits).mul_(spacing)


def _to_whole(ratio: torch.Tensor, rounding: Rounding, random_bits: torch.Tensor | None) -> torch.Tensor:
    """Round to whole numbers, in place where the mode allows."""
    if rounding in _WHOLE:
        return _in_one_thread(_WHOLE[rounding], ratio)
    whole = _in_one_thread(torch.Tensor.trunc_, ratio.clone())
    fraction = (ratio - whole).abs_()
    if random_bits is None:
        away = fraction >= 0.5
    else:
        away = random_bits < fraction.mul_(2.0**RANDOM_BITS).long()
    return whole.add_(torch.copysign(away.to(ratio.dtype), ratio))


def _in_one_thread(function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """Round values [n] to whole numbers, in place, without a thread that would have to be waited for."""
    alone = not values.is_cpu or torch.get_num_threads() == 1
    for part in (values,) if alone else values.split(MKL_PARALLEL_FROM):
        function(part)
    return values


def _limit(
    rounded: torch.Tensor, values: torch.Tensor, format: Format, rounding: Rounding, overflow: Overflow
) -> torch.Tensor:
    """Replace, in place, what a format cannot hold: beyond its max, and what is no number of an unsigned one."""
    above, below, infinity = overflow_values(format, rounding, overflow)
    end = format.max + ldexp(1.0, format.emax - format.significand_bits)  # the first value that is too large
    end = end if end <= torch.finfo(values.dtype).max else float("inf")  # the carrier has overflowed to infinity itself
    torch.threshold_(rounded, -end, below).neg_()  # in place: filling a mask would take longer than these four passes
    torch.threshold_(rounded, -end, -above).neg_()
    if infinity != format.max in (above, -below):  # directed: finite numbers stop at max, infinities do not
        rounded.masked_fill_(values == float("inf"), infinity).masked_fill_(values == float("-inf"), -infinity)
    if not format.has_zero:
        rounded.clamp_(min=format.smallest_normal).masked_fill_(values == 0, float("nan"))
    if not format.signed:
        rounded.masked_fill_(values < 0, float("nan"))
    return rounded


def _one_nan(rounded: torch.Tensor) -> torch.Tensor:
    """Make every NaN the default one, in place."""
    return rounded.nan_to_num_(nan=float("nan"), posinf=float("inf"), neginf=float("-inf"))


def _all_random(random_bits: torch.Tensor) -> bool:
    """Say whether these are whole numbers below 2^32; int32, half of it negative, would round up far too often."""
    if random_bits.dtype.is_floating_point or random_bits.dtype.is_complex or random_bits.dtype == torch.bool:
        return False
    if not random_bits.numel():
        return True
    lowest, highest = torch.aminmax(random_bits.long())
    return int(lowest) >= 0 and int(highest) < 2**RANDOM_BITS


def _check_random_bits(random_bits: torch.Tensor | None, rounding: Rounding, shape: torch.Size) -> None:
    if rounding is not Rounding.STOCHASTIC:
        if random_bits is not None:
            raise ValueError(f"random_bits are for Rounding.STOCHASTIC; {rounding} takes none. Leave them out.")
    elif random_bits is None or random_bits.shape != shape or not _all_random(random_bits):
        raise ValueError(
            f"stochastic rounding takes a random whole number below 2^{RANDOM_BITS} for each value, shape "
            f"{tuple(shape)}: random_bits=torch.randint(2**{RANDOM_BITS}, tensor.shape, device=tensor.device)"
        )

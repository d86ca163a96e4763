"""Conformance vectors: inputs that tell correct kernels from those with known mistakes.

They cover rounding, block formats and Tensor Cores.

Idea: a file has inputs, the right answers, and the rule that each row tests. Someone who writes a
kernel stores answers of their own under the same names; `check` names the rules that are broken,
and the known mistake that gives exactly these answers, if there is one.

Rows of a format hold x and codes. Those of a block format hold x, scales and elements, and for
decoding given_scales, given_elements and values. Those of a GPU hold a, b, c and d, of its FP16
instruction with FP32 results. Any NaN counts as NaN.

Where standards leave a choice, every choice is right: `conventions` names the one that answers
made, and its source. The scale of a block of zeros is such a choice.

Invariant: answers are those of `labkit.formats` and `labkit.gemm`; each known mistake breaks a rule
of its own.

Source: IEEE 754-2019 4.3; OCP OFP8 1.0 5.2; OCP Microscaling (MX) 1.0 5.3, 6.3; NVIDIA, Introducing
NVFP4; arXiv:2511.10909.
"""

from __future__ import annotations

import difflib
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labkit.formats import (
    BF16,
    BLOCK_FORMATS,
    E4M3,
    E5M2,
    FP16,
    FP64,
    BlockFormat,
    Blocks,
    Format,
    Overflow,
    Rounding,
    decode,
    decode_blocks,
    encode,
    round_blocks,
    round_to,
)
from labkit.gemm import SPECS, MmaSpec, emulate
from labkit.records import write_atomic
from labkit.testing.bound import Arithmetic
from labkit.testing.orders import sums

Table: TypeAlias = dict[str, NDArray[Any]]
ROUNDED = {format.name: format for format in (FP16, BF16, E4M3, E5M2)}
SATURATING = ", saturating"
NAMES = (*ROUNDED, f"E4M3{SATURATING}", f"E5M2{SATURATING}", *BLOCK_FORMATS, *SPECS)
ANSWERS = ("codes", "scales", "elements", "values", "d")
ZEROS = "a block of zeros"
TORCHAO = "torchao 0.18.0, mx_formats"
VLLM = "vLLM 0.33.0, ref_nvfp4_quant"


def vectors(name: str) -> Table:
    """Return the vectors of a format, a block format or a GPU.

    Args:
        name: one of NAMES, in capital or small letters.

    Raises:
        ValueError: the name is unknown.

    >>> table = vectors("BF16")
    >>> sorted(table), bool(check(table))
    (['codes', 'name', 'rule', 'x'], False)
    """
    name = listed_name(name)
    if name in SPECS:
        table = _of_card(SPECS[name])
    elif name in BLOCK_FORMATS:
        table = _of_blocks(BLOCK_FORMATS[name])
    else:
        rows = list(_roundings(ROUNDED[name.removesuffix(SATURATING)]))
        x = np.array([value for _, value in rows], np.float32)
        table = {"rule": np.array([rule for rule, _ in rows]), "x": x, "codes": _codes(x, name)}
    return {"name": np.array(name), **table}


def listed_name(text: str) -> str:
    """Return the name in NAMES that a text spells in capital or small letters.

    Raises:
        ValueError: the name is unknown; the message suggests the nearest one.

    >>> listed_name("nvfp4")
    'NVFP4'
    """
    by_capitals = {name.upper(): name for name in NAMES}
    if text.upper() in by_capitals:
        return by_capitals[text.upper()]
    message = f"expected one of {_quoted(NAMES)}, got {text!r}"
    near = difflib.get_close_matches(text.upper(), by_capitals, n=1)
    if near:
        message += f". Did you mean {by_capitals[near[0]]!r}?"
    raise ValueError(message)


def _quoted(names: Iterable[str]) -> str:
    """Return names separated by commas, each in quotes: some names have a comma of their own."""
    return ", ".join(repr(name) for name in names)


def save(name: str, path: Path) -> int:
    """Write the vectors of a name as an .npz file, and return the number of rows."""
    table = vectors(name)
    buffer = io.BytesIO()
    np.savez(buffer, **table)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())
    return len(table["rule"])


def read(path: Path) -> Table:
    """Return the answers of an .npz file.

    Raises:
        ValueError: it is not such a file.
    """
    # numpy takes any other file for a pickle, and names the option that would run its code
    if path.is_file() and not zipfile.is_zipfile(path):
        raise ValueError(f"expected an .npz file, as np.savez writes it, got {path}")
    try:
        with np.load(path) as answers:
            return dict(answers)
    except zipfile.BadZipFile as error:
        raise ValueError(f"expected an .npz file, as np.savez writes it, got {path}") from error


def check_file(path: Path) -> list[str]:
    """Return what `check` finds in the answers of an .npz file.

    Raises:
        ValueError: it is not such a file; or as `check`.
    """
    return check(read(path))


def check(answers: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the rules that answers break, with a counter-example and the known mistake for each.

    Raises:
        ValueError: there is no name; an answer is missing or has another shape.
    """
    if "name" not in answers:
        raise ValueError(
            f'expected "name" in the file, one of {_quoted(NAMES)}. Copy it from the vectors.'
        )
    table = vectors(str(answers["name"]))
    keys = [each for each in ANSWERS if each in table]
    for key in keys:
        if key not in answers or answers[key].shape != table[key].shape:
            got = f"shape {list(answers[key].shape)}" if key in answers else "none"
            raise ValueError(
                f"expected {key!r} of shape {list(table[key].shape)} in the file, got {got}"
            )
    free = {key: np.zeros(len(table[key]), np.bool_) for key in keys}
    for _, chosen in _choices(table, answers):
        free["scales"] |= chosen
        free["elements"] |= chosen
    found: list[str] = []
    for key in keys:
        rules = table["rule_of_values" if key == "values" else "rule"]
        same = _same(answers[key], table[key], _format(table, key)).reshape(len(rules), -1).all(1)
        wrong = ~(same | free[key])
        for rule in dict.fromkeys(rules[wrong].tolist()):
            rows = np.flatnonzero(wrong & (rules == rule))
            counts = f"{len(rows)} of {int((rules == rule).sum())} rows"
            found.append(f"{rule}: {counts}; {_example(table, answers, key, int(rows[0]))}")
    if found:
        known = [
            name
            for name, other in _mistakes(table).items()
            if all(
                _same(answers[key], values, _format(table, key))[~free[key]].all()
                for key, values in other.items()
            )
        ]
        found += [f"these answers are those of a known mistake: {name}" for name in known]
    return found


def conventions(answers: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the choices of a block format's answers that standards leave open, with sources.

    Answers as `check` takes them. A choice that differs from the vectors' is not a fault.
    """
    table = vectors(str(answers["name"]))
    return [
        f"a convention, not a fault: {name}; row {int(np.flatnonzero(rows)[0])}"
        for name, rows in _choices(table, answers)
        if rows.any()
    ]


def _choices(
    table: Table, answers: Mapping[str, NDArray[Any]]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield conventions of block formats that some answers follow and the vectors do not."""
    name = str(table["name"])
    if name not in BLOCK_FORMATS:
        return
    block = BLOCK_FORMATS[name]
    x = table["x"].astype(np.float64)
    top = np.abs(x).max(1)
    scale_codes, elements = (answers[key].astype(np.int64) for key in ("scales", "elements"))
    scales = decode(scale_codes & (block.scale.codes - 1), block.scale)
    usual = (scale_codes == table["scales"]) & (elements == table["elements"]).all(1)
    # any scale but NaN gives zeros
    zeros = (top == 0) & np.isfinite(scales) & (elements == 0).all(1) & ~usual
    smallest, normal = block.scale.smallest_subnormal, block.scale.smallest_normal
    named = {
        0.0: f"0 ({VLLM})",
        1.0: "1",
        smallest: f"{_power(smallest)}, the smallest of {block.scale.name}",
        normal: f"{_power(normal)}, the smallest normal number of {block.scale.name} ({TORCHAO})",
    }
    for scale in np.unique(scales[zeros]):
        shown = named.get(float(scale), f"{scale:g}")
        yield f"the scale of a block of zeros is {shown}", zeros & (scales == scale)
    if block.scale.significand_bits == 0:
        return
    share = top / block.element.max
    exact = np.asarray(round_to(np.maximum(share, normal), block.scale, overflow=Overflow.SATURATE))
    clamped = _elements(x, exact, block, Rounding.NEAREST_EVEN)
    follows = (scale_codes == clamped["scales"]) & (elements == clamped["elements"]).all(1)
    what = f"no scale is below {_power(normal)}, the smallest normal number of {block.scale.name}"
    yield f"{what} ({TORCHAO})", follows & ~usual & (top > 0)
    underflows = np.asarray(round_to(share, block.scale)) == 0
    follows = (scales == 0) & ((elements & (block.element.codes // 2 - 1)) == 0).all(1)
    what = "a scale may round to 0, and its block is zeros then"
    yield f"{what} ({VLLM})", underflows & follows & (top > 0)


def _power(number: float) -> str:
    return f"2^{int(np.log2(number))}"


def _roundings(format: Format) -> Iterator[tuple[str, float]]:
    """Yield (rule, FP32 number): the places where roundings differ."""
    low, ulp = format.smallest_subnormal, format.epsilon
    for sign in (1.0, -1.0):
        for power in (0, format.emin, format.emax - 1, 1):
            for place in (0, 1, 2, (1 << format.significand_bits) - 1):
                value = 2.0**power * (1 + place * ulp)
                yield "a value of the format", sign * value
                half = 2.0**power * ulp / 2
                yield "ties to even", sign * (value + half)
                yield "to nearest: above the middle", sign * (value + half * (1 + 2.0**-8))
                yield "to nearest: below the middle", sign * (value + half * (1 - 2.0**-8))
                yield "one rounding: just above the middle", sign * (value + half * (1 + 2.0**-11))
        for place in (0, 1, 2, (1 << format.significand_bits) - 2):
            yield "subnormal numbers", sign * place * low
            if low > 2.0**-140:  # FP32 has room below
                yield "subnormal ties", sign * (place + 0.5) * low
                yield "subnormal numbers", sign * (place + 0.5 + 2.0**-6) * low
                yield "subnormal numbers", sign * (place + 0.5 - 2.0**-6) * low
        last = 2.0 ** (format.emax - format.significand_bits)
        yield "the largest number", sign * format.max
        yield "the largest number", sign * (format.max + 0.4375 * last)
        yield "overflow: half-way to the next number", sign * (format.max + 0.5 * last)
        yield "overflow: beyond the largest number", sign * (format.max + 0.75 * last)
        if format != BF16:  # where FP32 ends, too
            yield "overflow: beyond the largest number", sign * format.max * 8
        yield "infinity", sign * np.inf
        yield "signed zero", sign * 0.0
        yield (
            "underflow to a signed zero",
            sign * low * 2.0**-9 if low > 2.0**-140 else sign * 2.0**-149,
        )
    yield "NaN", np.nan


def _codes(
    x: NDArray[Any],
    name: str,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool | None = None,
) -> Any:
    format = ROUNDED[name.removesuffix(SATURATING)]
    if saturate is None:
        saturate = name.endswith(SATURATING)
    with np.errstate(over="ignore"):
        values = round_to(
            x.astype(np.float64),
            format,
            rounding,
            Overflow.SATURATE if saturate else Overflow.TO_INFINITY,
        )
    return encode(values, format)


def _of_blocks(format: BlockFormat) -> Table:
    element = format.element
    size = format.size
    powers = format.scale.significand_bits == 0
    random = np.random.default_rng(0)
    rows: list[tuple[str, NDArray[Any]]] = []

    def block(rule: str, largest: float, *others: float) -> None:
        rest = random.uniform(-0.4, 0.4, size) * largest
        rest[: 1 + len(others)] = largest, *others
        rows.append((rule, rest))

    for power in (-9, 0, 5):
        one = 2.0**power
        block("scale from a power of two", element.max * one if not powers else one)
        for part in (1.01, 1.25, 1.4, 1.45, 1.499, 1.6, 1.99):
            block("rounding of the scale", part * one * (1 if powers else element.max))
        block("sign of the largest", -1.3 * one)
        top = 2.0**element.emax if powers else element.max
        for place in (1.0, 1 + element.epsilon, 1 + 2 * element.epsilon):
            half = place + element.epsilon / 2
            block("ties to even of elements", one * top, one * half, -one * half)
        block(
            "subnormal elements",
            one * top,
            *(one * element.smallest_subnormal * each for each in (0.4, 0.5, 1, 1.5)),
        )
    for power in (-3, 0, 5):
        one = 2.0**power
        if powers:
            # one more step of the exponent, if the largest number is rounded before it is taken
            block("scale: just below a power of two, beyond BF16", 1.998 * one)
            block("scale: just below a power of two, beyond FP16", 1.9998 * one)
            below = float(np.nextafter(np.float32(2 * one), np.float32(0)))
            block("scale: the last FP32 number below a power of two", below)
        else:
            middle = element.max * (1 + format.scale.epsilon / 2) * one
            block("scale: just above the middle, beyond BF16", middle * (1 + 2.0**-10))
            block("scale: just above the middle, beyond FP16", middle * (1 + 2.0**-13))
    if powers:
        block("saturation of elements", 2 * (1 - 2.0**-8), -2 * (1 - 2.0**-7))
        block("smallest scale", 2.0**-126)
        block("smallest scale", 2.0**-129, 2.0**-131)
    else:
        for part in (1.0, 1.3, 1.5, 2.6):
            block("subnormal scale", element.max * format.scale.smallest_subnormal * part)
        block("smallest scale", element.max * format.scale.smallest_subnormal / 4)
        block("saturation of the scale", element.max * format.scale.max * 2, element.max)
    block("signed zeros", 1.0, 0.0, -0.0)
    rows.append((ZEROS, np.zeros(size)))
    x = np.array([values for _, values in rows], np.float32)
    blocks = round_blocks(x, format)
    count = len(rows)
    given = random.integers(0, element.codes, (count, size)).astype(blocks.elements.dtype)
    scales = random.integers(1, format.scale.max_code + 1, count).astype(blocks.scales.dtype)
    # NaN of E8M0 or E4M3
    scales[:4] = (0, 1, format.scale.max_code, format.scale.nan_code or 0)
    of_values = [
        f"scale of code 0 ({format.scale.name})",
        "scale of code 1",
        "largest scale",
        f"NaN of {format.scale.name}",
    ]
    of_values += ["values of codes"] * (count - 4)
    table = {
        "rule": np.array([rule for rule, _ in rows]),
        "x": x,
        "scales": blocks.scales[:, 0],
        "elements": blocks.elements[:, 0],
        "rule_of_values": np.array(of_values),
        "given_scales": scales,
        "given_elements": given,
    }
    with np.errstate(invalid="ignore", over="ignore"):
        table["values"] = decode_blocks(Blocks(format, scales[:, None], given[:, None])).astype(
            np.float32
        )
    return table


def _of_card(spec: MmaSpec) -> Table:
    random = np.random.default_rng(0)
    terms = 32
    rows: list[tuple[str, Any, Any, float]] = []
    for bits in (22, 23, 24, 25, 26):
        small = np.full(terms, 2.0 ** -(bits // 2)), np.full(terms, 2.0 ** -(bits - bits // 2))
        rows.append((f"bits behind the point: terms of 2^-{bits} beside C = 1", *small, 1.0))
        ahead = small[0].copy(), small[1].copy()
        ahead[0][0] = 1.0
        ahead[1][0] = 1.0
        rows.append((f"length of a block: 1, then terms of 2^-{bits}", *ahead, 0.0))
        rows.append(
            (
                f"terms are cut toward zero: -2^-{bits} and a half beside C = 1",
                small[0] * -1.5,
                small[1],
                1.0,
            )
        )
    for power in (8, 9, 10):
        line = np.zeros(terms), np.ones(terms)
        line[0][:3] = 2.0**power, 2.0**-power, -(2.0**power)
        line[1][:3] = 2.0**power, 2.0**-5, 2.0**power
        rows.append(("a small term between large ones that cancel", *line, 0.0))
    for _ in range(4):
        wide = random.integers(1536, 2048, (2, terms)) / 1024.0
        rows.append(
            (
                "products of 2 and more are not normalised",
                wide[0] * 2.0 ** -random.integers(0, 12, terms),
                wide[1],
                0.5,
            )
        )
        rows.append(
            (
                "the sum is cut, not rounded",
                wide[0],
                wide[1] * random.choice([1, 2.0**-11], terms),
                0.0,
            )
        )
        tiny = random.integers(1, 1024, terms) * 2.0**-24
        rows.append(
            (
                "subnormal operands align as normal ones",
                tiny,
                wide[1],
                float(np.float32(2.0**-14 / 3)),
            )
        )
    for _ in range(16):
        x = random.standard_normal((2, terms)) * 2.0 ** random.integers(-8, 8, (2, terms))
        rows.append(("any sum", *x, float(np.float32(random.standard_normal() * 30))))
    a, b = (np.array([row[i] for row in rows]).astype(np.float16) for i in (1, 2))
    c = np.array([row[3] for row in rows], np.float32)
    return {
        "rule": np.array([row[0] for row in rows]),
        "a": a,
        "b": b,
        "c": c,
        "d": _sums(a, b, c, spec),
    }


def _sums(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    return emulate(a[:, None], b[:, :, None], c[:, None, None], spec)[:, 0, 0]


def _format(table: Table, key: str) -> Format | None:
    """Return the format of codes; None for answers that are numbers."""
    name = str(table["name"])
    if key in ("values", "d"):
        return None
    if name in BLOCK_FORMATS:
        return BLOCK_FORMATS[name].scale if key == "scales" else BLOCK_FORMATS[name].element
    return ROUNDED[name.removesuffix(SATURATING)]


def _same(got: NDArray[Any], wanted: NDArray[Any], format: Format | None) -> NDArray[np.bool_]:
    """Compare codes or numbers: bits, but any NaN is NaN."""
    if format is not None:
        values = (np.asarray(each).astype(np.int64) & (format.codes - 1) for each in (got, wanted))
        got, wanted = (decode(each, format) for each in values)
    return np.asarray(
        (got == wanted) & (np.signbit(got) == np.signbit(wanted)) | np.isnan(got) & np.isnan(wanted)
    )


def _example(table: Table, answers: Mapping[str, NDArray[Any]], key: str, row: int) -> str:
    """Return a description of a row's first wrong answer."""
    format = _format(table, key)
    got = np.atleast_1d(answers[key][row])
    wanted = np.atleast_1d(table[key][row])
    place = int(np.flatnonzero(~_same(got, wanted, format))[0])
    given = "given_elements" if key == "values" else "x"
    at = f"row {row}" + (f", element {place}" if len(wanted) > 1 else "")
    if given in table:
        numbers = np.atleast_1d(table[given][row])
        at += f", {numbers[place if len(wanted) > 1 else np.argmax(np.abs(numbers))]!s}"
    texts = (
        f"{each[place]!s}" if format is None else f"{int(each[place]):#x}" for each in (wanted, got)
    )
    return "{}: expected {} {}, got {}".format(at, key, *texts)


def _mistakes(table: Table) -> dict[str, Table]:
    """Return the answers of known mistakes, as far as they differ from the right ones."""
    name = str(table["name"])
    found = {}
    if name in SPECS:
        a, b, c = (table[key] for key in "abc")
        found = {
            f"the sums of a {other}": {"d": _sums(a, b, c, spec)} for other, spec in SPECS.items()
        }
        x = np.column_stack([c, a]).T.astype(np.float64)
        y = np.column_stack([np.ones_like(c), b]).T.astype(np.float64)
        ways = {
            "FP32 additions one by one": (Arithmetic("FP32"), "one by one"),
            "an exact sum, rounded once": (Arithmetic("FP64", FP64), "pairwise"),
        }
        found |= {
            way: {"d": next(sums(x, y, how, order)).astype(np.float32)}
            for way, (how, order) in ways.items()
        }
    elif name in BLOCK_FORMATS:
        x = table["x"].astype(np.float64)
        block = BLOCK_FORMATS[name]
        top = np.abs(x).max(1)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            share = top / block.element.max
            ratio = {
                "scale rounded up": (share, Rounding.TOWARD_POSITIVE),
                "scale rounded down": (share, Rounding.TOWARD_ZERO),
                "largest magnitude / largest element, to nearest": (share, Rounding.NEAREST_EVEN),
                "scale from the exponent alone": (
                    top / 2.0**block.element.emax,
                    Rounding.TOWARD_ZERO,
                ),
            }
            for way, (exact, rounding) in ratio.items():
                scale = np.asarray(
                    round_to(
                        np.maximum(exact, block.scale.smallest_subnormal),
                        block.scale,
                        rounding,
                        Overflow.SATURATE,
                    ),
                    np.float64,
                )
                found[way] = _elements(x, scale, block, Rounding.NEAREST_EVEN)
            found |= _scales_of_other_tops(x, top, block)
            right = decode(table["scales"], block.scale)
            for way, rounding in (
                ("elements rounded toward zero", Rounding.TOWARD_ZERO),
                ("ties of elements away from zero", Rounding.NEAREST_AWAY),
            ):
                found[way] = _elements(x, right, block, rounding)
        powers = block.scale.significand_bits == 0
        # the next code
        number = block.scale.max * 2 if powers else block.scale.max + 2.0 ** (block.scale.emax - 3)
        with np.errstate(over="ignore"):
            read = (decode(table["given_elements"], block.element) * number).astype(np.float32)
        isnan = (table["given_scales"] == block.scale.nan_code)[:, None]
        found[f"NaN of {block.scale.name} read as a number"] = {
            "values": np.where(isnan, read, table["values"])
        }
    else:
        x = table["x"]
        format = ROUNDED[name.removesuffix(SATURATING)]
        found = {
            "toward zero": {"codes": _codes(x, name, Rounding.TOWARD_ZERO)},
            "ties away from zero": {"codes": _codes(x, name, Rounding.NEAREST_AWAY)},
            "saturates": {"codes": _codes(x, name, saturate=True)},
            "overflows to infinity or NaN": {"codes": _codes(x, name, saturate=False)},
        }
        flushed = np.where(np.abs(x) < format.smallest_normal, np.copysign(np.float32(0), x), x)
        found["subnormal numbers are zero"] = {"codes": _codes(flushed, name)}
        for first in (FP16, BF16):
            twice = np.asarray(round_to(x, first), np.float32)
            found[f"rounded to {first.name} first"] = {"codes": _codes(twice, name)}
    return {
        way: other
        for way, other in found.items()
        if not all(
            _same(values, table[key], _format(table, key)).all() for key, values in other.items()
        )
    }


def _scales_of_other_tops(
    x: NDArray[np.float64], top: NDArray[np.float64], block: BlockFormat
) -> dict[str, Table]:
    """Return the answers if a block's largest magnitude is rounded before the scale is taken."""
    found: dict[str, Table] = {}
    powers = block.scale.significand_bits == 0
    for format in (BF16, FP16):
        rounded = np.asarray(round_to(top, format), np.float64)
        # infinity has the exponent field of 2^128
        rounded = np.where(np.isinf(rounded), 2.0**128, rounded)
        share = rounded / (2.0**block.element.emax if powers else block.element.max)
        rounding = Rounding.TOWARD_ZERO if powers else Rounding.NEAREST_EVEN
        share = np.maximum(share, block.scale.smallest_subnormal)
        scale = np.asarray(round_to(share, block.scale, rounding, Overflow.SATURATE), np.float64)
        way = f"the largest magnitude is rounded to {format.name} before its scale is taken"
        found[way] = _elements(x, scale, block, Rounding.NEAREST_EVEN)
    if powers:
        exponent = np.floor(np.log2(top.astype(np.float32))).astype(np.float64)
        exponent = np.clip(exponent - block.element.emax, -127, 127)
        way = "the exponent is floor(log2) in FP32, which rounds up just below a power of two"
        found[way] = _elements(x, 2.0**exponent, block, Rounding.NEAREST_EVEN)
    return found


def _elements(
    x: NDArray[Any], scale: NDArray[Any], format: BlockFormat, rounding: Rounding
) -> Table:
    elements = encode(
        round_to(x / scale[:, None], format.element, rounding, Overflow.SATURATE), format.element
    )
    return {"scales": encode(scale, format.scale), "elements": elements}

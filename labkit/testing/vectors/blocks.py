"""Vectors of a block format: numbers with their scales and elements, and codes to decode."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from labkit.formats import (
    BF16,
    BLOCK_FORMATS,
    FP16,
    BlockFormat,
    Blocks,
    Format,
    Overflow,
    Rounding,
    decode,
    decode_blocks,
    encode,
    next_up,
    round_blocks,
    round_to,
)
from labkit.testing.vectors.tables import Answers, Table, Vectors

ZEROS = "a block of zeros"
TORCHAO = "torchao 0.18.0, mx_formats"
VLLM = "vLLM 0.33.0, ref_nvfp4_quant"


class BlockVectors(Vectors):
    """Blocks of FP32 numbers, and their scales and elements; codes, and their values."""

    def __init__(self, name: str) -> None:
        self.block = BLOCK_FORMATS[name]

    def format_of(self, key: str) -> Format | None:
        if key == "values":
            return None
        return self.block.scale if key == "scales" else self.block.element

    def table(self) -> Table:
        random = np.random.default_rng(0)
        rows = _Rows(self.block, random).rows
        x = np.array([values for _, values in rows], np.float32)
        blocks = round_blocks(x, self.block)
        return {
            "rule": np.array([rule for rule, _ in rows]),
            "x": x,
            "scales": blocks.scales[:, 0],
            "elements": blocks.elements[:, 0],
            **self._to_decode(len(rows), blocks, random),
        }

    def _to_decode(self, count: int, like: Blocks, random: np.random.Generator) -> Table:
        """Return `count` rows of codes, with their values."""
        scale = self.block.scale
        size = (count, self.block.size)
        elements = random.integers(0, self.block.element.codes, size).astype(like.elements.dtype)
        scales = random.integers(1, scale.max_code + 1, count).astype(like.scales.dtype)
        # the last one is NaN of E8M0 or E4M3
        scales[:4] = (0, 1, scale.max_code, scale.nan_code or 0)
        rules = [
            f"scale of code 0 ({scale.name})",
            "scale of code 1",
            "largest scale",
            f"NaN of {scale.name}",
        ]
        rules += ["values of codes"] * (count - 4)
        with np.errstate(invalid="ignore", over="ignore"):
            values = decode_blocks(Blocks(self.block, scales[:, None], elements[:, None]))
            values = values.astype(np.float32)
        return {
            "rule_of_values": np.array(rules),
            "given_scales": scales,
            "given_elements": elements,
            "values": values,
        }

    def mistakes(self, table: Table) -> dict[str, Table]:
        x = table["x"].astype(np.float64)
        largest = np.abs(x).max(1)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            found = {
                **self._wrong_scales(x, largest),
                **self._scales_of_rounded_numbers(x, largest),
                **self._wrong_elements(x, table),
            }
        found[f"NaN of {self.block.scale.name} read as a number"] = self._nan_as_number(table)
        return found

    def _wrong_scales(
        self, x: NDArray[np.float64], largest: NDArray[np.float64]
    ) -> dict[str, Table]:
        element = self.block.element
        share = largest / element.max
        # The largest power of two that is not above the largest magnitude.
        power = 2.0 ** np.floor(np.log2(largest))
        scales = {
            "scale rounded up": (share, Rounding.TOWARD_POSITIVE),
            "scale rounded down": (share, Rounding.TOWARD_ZERO),
            "largest magnitude / largest element, to nearest": (share, Rounding.NEAREST_EVEN),
            "scale from the exponent alone": (power / 2.0**element.emax, Rounding.TOWARD_ZERO),
        }
        return {
            name: self._answers(x, self._scale(exact, rounding))
            for name, (exact, rounding) in scales.items()
        }

    def _scales_of_rounded_numbers(
        self, x: NDArray[np.float64], largest: NDArray[np.float64]
    ) -> dict[str, Table]:
        """Return the answers if the largest magnitude is rounded before the scale is taken."""
        found: dict[str, Table] = {}
        has_power_scales = _has_power_scales(self.block)
        for format in (BF16, FP16):
            rounded = np.asarray(round_to(largest, format), np.float64)
            # infinity has the exponent field of 2^128
            rounded = np.where(np.isinf(rounded), 2.0**128, rounded)
            name = f"the largest magnitude is rounded to {format.name} before its scale is taken"
            if has_power_scales:
                share = rounded / 2.0**self.block.element.emax
                scale = self._scale(share, Rounding.TOWARD_ZERO)
            else:
                share = rounded / self.block.element.max
                scale = self._scale(share, Rounding.NEAREST_EVEN)
            found[name] = self._answers(x, scale)
        if has_power_scales:
            exponent = np.floor(np.log2(largest.astype(np.float32))).astype(np.float64)
            exponent = np.clip(exponent - self.block.element.emax, -127, 127)
            name = "the exponent is floor(log2) in FP32, which rounds up just below a power of two"
            found[name] = self._answers(x, 2.0**exponent)
        return found

    def _wrong_elements(self, x: NDArray[np.float64], table: Table) -> dict[str, Table]:
        scale = np.asarray(decode(table["scales"], self.block.scale))
        return {
            "elements rounded toward zero": self._answers(x, scale, Rounding.TOWARD_ZERO),
            "ties of elements away from zero": self._answers(x, scale, Rounding.NEAREST_AWAY),
        }

    def _nan_as_number(self, table: Table) -> Table:
        """Return the values if the code of NaN is read as the number that would follow."""
        scale = self.block.scale
        if _has_power_scales(self.block):
            number = scale.max * 2
        else:
            number = scale.max + 2.0 ** (scale.emax - scale.significand_bits)
        with np.errstate(over="ignore"):
            read = (decode(table["given_elements"], self.block.element) * number).astype(np.float32)
        is_nan = (table["given_scales"] == scale.nan_code)[:, None]
        return {"values": np.where(is_nan, read, table["values"])}

    def _scale(self, exact: NDArray[np.float64], rounding: Rounding) -> NDArray[np.float64]:
        at_least = np.maximum(exact, self.block.scale.smallest_subnormal)
        scale = round_to(at_least, self.block.scale, rounding, Overflow.SATURATE)
        return np.asarray(scale, np.float64)

    def _answers(
        self,
        x: NDArray[np.float64],
        scale: NDArray[np.float64],
        rounding: Rounding = Rounding.NEAREST_EVEN,
    ) -> Table:
        """Return the scales and elements of blocks with these scales."""
        element = self.block.element
        values = round_to(x / scale[:, None], element, rounding, Overflow.SATURATE)
        return {"scales": encode(scale, self.block.scale), "elements": encode(values, element)}

    def choices(self, table: Table, answers: Answers) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        scale_format = self.block.scale
        x = table["x"].astype(np.float64)
        largest = np.abs(x).max(1)
        scale_codes = answers["scales"].astype(np.int64)
        elements = answers["elements"].astype(np.int64)
        scales = np.asarray(decode(scale_codes & (scale_format.codes - 1), scale_format))
        usual = (scale_codes == table["scales"]) & (elements == table["elements"]).all(1)

        # any scale but NaN gives zeros
        zeros = (largest == 0) & np.isfinite(scales) & (elements == 0).all(1) & ~usual
        for scale in np.unique(scales[zeros]):
            name = f"the scale of a block of zeros is {self._scale_of_zeros(float(scale))}"
            yield name, zeros & (scales == scale)
        if _has_power_scales(self.block):
            return

        share = largest / self.block.element.max
        normal = scale_format.smallest_normal
        at_least = np.maximum(share, normal)
        clamped_scale = self._scale(at_least, Rounding.NEAREST_EVEN)
        clamped = self._answers(x, clamped_scale)
        follows = (scale_codes == clamped["scales"]) & (elements == clamped["elements"]).all(1)
        name = (
            f"no scale is below {_power(normal)}, the smallest normal number of "
            f"{scale_format.name} ({TORCHAO})"
        )
        yield name, follows & ~usual & (largest > 0)

        underflows = np.asarray(round_to(share, scale_format)) == 0
        # All bits of an element but its sign.
        magnitude_bits = self.block.element.codes // 2 - 1
        follows = (scales == 0) & ((elements & magnitude_bits) == 0).all(1)
        name = f"a scale may round to 0, and its block is zeros then ({VLLM})"
        yield name, underflows & follows & (largest > 0)

    def _scale_of_zeros(self, scale: float) -> str:
        """Return a scale that was chosen for a block of zeros, with its source if one is known."""
        smallest = self.block.scale.smallest_subnormal
        normal = self.block.scale.smallest_normal
        name = self.block.scale.name
        known = {
            0.0: f"0 ({VLLM})",
            1.0: "1",
            smallest: f"{_power(smallest)}, the smallest of {name}",
            normal: f"{_power(normal)}, the smallest normal number of {name} ({TORCHAO})",
        }
        return known.get(scale, f"{scale:g}")


def _has_power_scales(block: BlockFormat) -> bool:
    """Return whether the scales are powers of two, as those of MX formats."""
    return block.scale.significand_bits == 0


def _power(number: float) -> str:
    return f"2^{int(np.log2(number))}"


class _Rows:
    """The blocks of a table, with the rule that each tests.

    Attributes:
        rows: rules and numbers, in order.
    """

    def __init__(self, block: BlockFormat, random: np.random.Generator) -> None:
        self.block = block
        self.random = random
        self.rows: list[tuple[str, NDArray[np.float64]]] = []
        for power in (-9, 0, 5):
            self._add_around(2.0**power)
        for power in (-3, 0, 5):
            if _has_power_scales(block):
                self._add_below_a_power(2.0**power)
            else:
                self._add_above_a_middle(2.0**power)
        if _has_power_scales(block):
            self._add_ends_of_power_scales()
        else:
            self._add_ends_of_scales()
        self._add("signed zeros", 1.0, 0.0, -0.0)
        self.rows.append((ZEROS, np.zeros(block.size)))

    def _add(self, rule: str, largest: float, *others: float) -> None:
        """Add a block with these numbers first, and smaller ones at random behind them."""
        values = self.random.uniform(-0.4, 0.4, self.block.size) * largest
        values[: 1 + len(others)] = largest, *others
        self.rows.append((rule, values))

    def _add_around(self, one: float) -> None:
        """Add blocks for the rounding of scales and elements.

        Args:
            one: A power of two near the scales of the blocks.
        """
        element = self.block.element
        unit = 1.0 if _has_power_scales(self.block) else element.max
        self._add("scale from a power of two", unit * one)
        # Between two powers of two, on both sides of the middle and of the root of two.
        for part in (1.01, 1.25, 1.4, 1.45, 1.499, 1.6, 1.99):
            self._add("rounding of the scale", part * one * unit)
        self._add("sign of the largest", -1.3 * one)
        top = 2.0**element.emax if _has_power_scales(self.block) else element.max
        for place in (1.0, 1 + element.epsilon, 1 + 2 * element.epsilon):
            half = (place + float(next_up(place, element))) / 2
            self._add("ties to even of elements", one * top, one * half, -one * half)
        smallest = one * element.smallest_subnormal
        self._add(
            "subnormal elements", one * top, *(smallest * part for part in (0.4, 0.5, 1, 1.5))
        )

    def _add_below_a_power(self, one: float) -> None:
        """Add blocks that get one more step of the exponent if their largest number is rounded."""
        self._add("scale: just below a power of two, beyond BF16", 1.998 * one)
        self._add("scale: just below a power of two, beyond FP16", 1.9998 * one)
        below = float(np.nextafter(np.float32(2 * one), np.float32(0)))
        self._add("scale: the last FP32 number below a power of two", below)

    def _add_above_a_middle(self, one: float) -> None:
        """Add blocks whose scale is a tie if their largest number is rounded."""
        middle = self.block.element.max * (1 + self.block.scale.epsilon / 2) * one
        self._add("scale: just above the middle, beyond BF16", middle * (1 + 2.0**-10))
        self._add("scale: just above the middle, beyond FP16", middle * (1 + 2.0**-13))

    def _add_ends_of_power_scales(self) -> None:
        self._add("saturation of elements", 2 * (1 - 2.0**-8), -2 * (1 - 2.0**-7))
        self._add("smallest scale", 2.0**-126)
        self._add("smallest scale", 2.0**-129, 2.0**-131)

    def _add_ends_of_scales(self) -> None:
        element_max = self.block.element.max
        scale = self.block.scale
        for part in (1.0, 1.3, 1.5, 2.6):
            self._add("subnormal scale", element_max * scale.smallest_subnormal * part)
        self._add("smallest scale", element_max * scale.smallest_subnormal / 4)
        self._add("saturation of the scale", element_max * scale.max * 2, element_max)

"""Tolerances of tests, from a line of text.

For example: `labkit tolerance "matmul K=4096 bf16 out=bf16 accumulate=fp32"`.

Idea: a bound needs operands. Without any, numbers from a standard normal distribution
replace them; at most 64 elements are computed, in several orders.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from labkit.findings import counted
from labkit.formats import FORMATS, FP32, Format, round_to, ulp
from labkit.testing.bound import arithmetic, unit_roundoff
from labkit.testing.norms import layer_norm, rms_norm, softmax
from labkit.testing.operation import Operation
from labkit.testing.products import matmul
from labkit.testing.reductions import mean, sum_over

OPERATIONS = ("matmul", "dot", "sum", "mean", "softmax", "layer_norm", "rms_norm")
# The largest number of terms.
LARGEST = 10**6
# The largest number of elements that are computed in several orders, and of their terms: an element
# of a softmax needs all numbers of its row.
MOST_ELEMENTS = 64
MOST_TERMS = 2**22
EXAMPLE = "matmul K=4096 bf16 out=bf16 accumulate=fp32"


def tolerance(text: str) -> str:
    """Return the bound, the typical error and the line for a test.

    Raises:
        ValueError: a word is not known, two words give the same part, K is missing, or a format
            cannot be an accumulator.

    >>> print(tolerance("dot K=16 fp16 out=fp16 accumulate=H100").splitlines()[0])
    dot, K=16, FP16 operands, FP16 out, accumulator H100 Tensor Cores
    """
    name, terms, format, out, accumulator = _parse(text)
    operation = _operation(name, terms, format)
    how = arithmetic(accumulator, operation.formats, operation.rounded)
    half = float(unit_roundoff(out))
    with np.errstate(over="ignore", invalid="ignore"):
        bound = float(operation.error(how).max())
        size = operation.value.size
        count = min(size, MOST_ELEMENTS, max(1, MOST_TERMS // terms))
        places = np.linspace(0, size - 1, count).astype(np.intp)
        replays = operation.replay(how, places)
        exact = operation.value.reshape(-1)[places]
        reached = float(np.nan_to_num(np.abs(replays - exact), posinf=np.inf).max())
        stored = np.asarray(round_to(replays, out), np.float64)
        typical = float(np.sqrt(np.mean((stored - exact) ** 2)))
    largest = float(np.abs(exact).max())
    atol = bound * (1 + half)
    last = float(ulp(largest, out)) / 2
    rows = [
        ("bound of the error before the result is stored", f"{bound:.3g}"),
        ("largest error of other orders, before it is stored", f"{reached:.3g}"),
        ("root mean square of errors, stored", f"{typical:.3g}"),
        (f"half a unit in the last place of {largest:.3g}, the largest result", f"{last:.3g}"),
    ]
    if name in ("matmul", "dot"):
        arguments = "got, a, b"
    elif name == "sum":
        arguments = "got, sum_over(x)"
    else:
        arguments = f"got, {name}(x)"
    lines = [
        f"{name}, K={terms:,}, {format.name} operands, {out.name} out, accumulator {how.name}",
        "",
    ]
    lines.append(f"operands of a standard normal distribution, {counted(count, 'element')}:")
    lines += [f"  {what:<66}{number:>10}" for what, number in rows]
    lines += ["", "in a test, for operands of any size:"]
    lines.append(f'  assert_explained({arguments}, out={out.name}, accumulator="{accumulator}")')
    if np.isfinite(bound):
        lines.append("with a fixed tolerance, for such operands only:")
        lines.append(
            f"  torch.testing.assert_close(got.double(), exact, rtol={half:.3g}, atol={atol:.3g})"
        )
    else:
        lines.append(
            "no fixed tolerance: the accumulator may overflow, or the sum is too long for it"
        )
    return "\n".join(lines)


def _parse(text: str) -> tuple[str, int, Format, Format, str]:
    formats = {name.upper(): format for name, format in FORMATS.items()}
    name = "matmul"
    terms = None
    format = FP32
    out = None
    accumulator = "FP32"
    # part of the text -> the word that has it
    word_of_part: dict[str, str] = {}
    for word in text.split():
        key, _, value = word.partition("=")
        key = key.lower()
        if word.lower() in OPERATIONS:
            part = "operation"
            name = word.lower()
        elif word.upper() in formats:
            part = "format of operands"
            format = formats[word.upper()]
        elif key == "out" and value.upper() in formats:
            part = "out=FORMAT"
            out = formats[value.upper()]
        elif key in ("accumulate", "accumulator") and value:
            part = "accumulate=FORMAT or GPU"
            accumulator = value.upper() if value.upper() in formats else value
        elif key == "k" and re.fullmatch(r"\d[\d_,]*", value):
            part = "K=TERMS"
            terms = int(re.sub("[_,]", "", value))
        else:
            raise ValueError(
                f"expected an operation ({', '.join(OPERATIONS)}), K=..., a format "
                f"({', '.join(FORMATS)}), out=FORMAT or accumulate=FORMAT or GPU, got {word!r}. An "
                f'example: "{EXAMPLE}"'
            )
        if part in word_of_part:
            raise ValueError(f"expected one {part}, got {word_of_part[part]!r} and {word!r}")
        word_of_part[part] = word
    if terms is None:
        raise ValueError(
            f"expected K=TERMS, the number of terms of each sum, got none. An example: {EXAMPLE!r}"
        )
    if not 1 <= terms <= LARGEST:
        raise ValueError(
            f"expected K, the number of terms, from 1 to {LARGEST:,}, got {terms:,}. An example: "
            f"{EXAMPLE!r}"
        )
    return name, terms, format, out or format, accumulator


def _operation(name: str, terms: int, format: Format) -> Operation:
    random = np.random.default_rng(0)

    def draw(*shape: int) -> NDArray[np.float32]:
        return np.asarray(round_to(random.standard_normal(shape), format), np.float32)

    if name == "dot":
        return matmul(draw(64, 1, terms), draw(64, terms, 1), operands=format)
    if name == "matmul":
        return matmul(draw(8, terms), draw(terms, 8), operands=format)
    x = draw(64 if name in ("sum", "mean") else max(1, 64 // terms), terms)
    if name in ("sum", "mean"):
        return sum_over(x, 1) if name == "sum" else mean(x, 1)
    if name == "softmax":
        return softmax(x)
    return layer_norm(x) if name == "layer_norm" else rms_norm(x)

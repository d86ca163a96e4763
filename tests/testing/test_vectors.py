"""Test vectors of block formats, against kernels that share no code with labkit."""

import re
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from labkit import cli
from labkit.formats import BLOCK_FORMATS, Rounding, decode, next_up, round_to
from labkit.testing.vectors import check, conventions, read, vectors

# Format -> torch's and ml_dtypes' type of its elements, and its largest exponent and number.
ELEMENTS = {
    "MXFP8": (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 8, 448.0),
    "MXFP8_E5M2": (torch.float8_e5m2, ml_dtypes.float8_e5m2, 15, 57344.0),
    "MXFP4": (None, ml_dtypes.float4_e2m1fn, 2, 6.0),
}
Answers = dict[str, np.ndarray]
Exponents = Callable[[torch.Tensor], torch.Tensor]


def from_bits(top: torch.Tensor) -> torch.Tensor:
    """Return the exponents of FP32 numbers by their bits; those of subnormal numbers are -127."""
    return ((top.view(torch.int32) >> 23) & 0xFF) - 127


def through(dtype: torch.dtype) -> Exponents:
    """Return a function of the exponents of numbers that are rounded to a dtype first."""
    return lambda top: from_bits(top.to(dtype).float())


def by_logarithm(top: torch.Tensor) -> torch.Tensor:
    """Return the exponents by torch's logarithm; the limits replace the infinite ones of 0."""
    return torch.floor(torch.log2(top)).clamp(-1000, 1000).int()


def by_numpys_logarithm(top: torch.Tensor) -> torch.Tensor:
    """Return the exponents by numpy's logarithm; the limits replace the infinite ones of 0."""
    with np.errstate(divide="ignore"):
        logarithm = np.floor(np.log2(top.numpy()))
    return torch.from_numpy(logarithm.clip(-1000, 1000)).int()


def microscaled(name: str, exponents: Exponents, of_zeros: int = 0) -> Answers:
    """Quantize the vectors of an MX format, with a code for the scale of a block of zeros."""
    table = vectors(name)
    _, dtype, emax, largest = ELEMENTS[name]
    x = torch.from_numpy(table["x"])
    top = x.abs().amax(1)
    exponent = (exponents(top) - emax).clamp(-127, 127)
    scaled = (x.double() / torch.exp2(exponent.double())[:, None]).clamp(-largest, largest)
    codes = scaled.numpy().astype(np.float32).astype(dtype).view(np.uint8)
    scales = (exponent + 127).numpy().astype(np.uint8)
    scales[(top == 0).numpy()] = of_zeros
    return {**table, "scales": scales, "elements": codes}


def nvfp4(
    top_dtype: torch.dtype = torch.float32, least: float = 2.0**-9, zero: float | None = None
) -> Answers:
    """Quantize the vectors of NVFP4, with the least scale that is used, and that of zeros."""
    table = vectors("NVFP4")
    x = torch.from_numpy(table["x"])
    top = x.abs().amax(1).to(top_dtype).double()
    share = (top / 6).clamp(least, 448).float()
    if zero is not None:
        share[top == 0] = zero
    scale = share.to(torch.float8_e4m3fn)
    divisor = scale.double()[:, None]
    scaled = torch.where(divisor > 0, x.double() / divisor.clamp(min=2.0**-20), 0.0).clamp(-6, 6)
    codes = scaled.numpy().astype(np.float32).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return {**table, "scales": scale.view(torch.uint8).numpy(), "elements": codes}


def rules(messages: list[str]) -> set[str]:
    """Return the rules that messages of `check` say are broken: "RULE: 3 of 9 rows; row ..."."""
    return {re.sub(r": \d+ of \d+ rows.*", "", line) for line in messages if " rows; " in line}


def mistakes(messages: list[str]) -> list[str]:
    """Return the known mistakes that messages of `check` name."""
    start = "these answers are those of a known mistake: "
    return [line.removeprefix(start) for line in messages if line.startswith(start)]


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_right_kernel_of_an_mx_format_breaks_no_rule(name: str) -> None:
    answers = microscaled(name, from_bits)
    assert check(answers) == []
    assert conventions(answers) == []


def test_a_right_kernel_of_nvfp4_breaks_no_rule() -> None:
    answers = nvfp4()
    assert check(answers) == []
    assert conventions(answers) == []


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize(
    ("exponents", "clue"),
    [
        (through(torch.bfloat16), "the largest magnitude is rounded to BF16"),
        (through(torch.float16), "the largest magnitude is rounded to FP16"),
        (by_logarithm, "the exponent is floor(log2) in FP32"),
        (by_numpys_logarithm, "the exponent is floor(log2) in FP32"),
    ],
    ids=["bf16", "fp16", "torch-log2", "numpy-log2"],
)
def test_a_rounded_largest_magnitude_is_named(name: str, exponents: Exponents, clue: str) -> None:
    messages = check(microscaled(name, exponents))
    assert any(rule.startswith("scale: ") for rule in rules(messages)), messages
    (mistake,) = mistakes(messages)
    assert mistake.startswith(clue)


def broken_rules_of_the_scale(exponents: Exponents) -> set[str]:
    """Return the rules about the scale that a kernel of MXFP8 with these exponents breaks."""
    broken = rules(check(microscaled("MXFP8", exponents)))
    return {rule for rule in broken if rule.startswith("scale: ")}


def test_a_narrower_magnitude_breaks_more_rules_of_the_scale() -> None:
    """BF16 breaks all rules that FP16 breaks, which breaks that of the logarithm in FP32."""
    of_bf16 = broken_rules_of_the_scale(through(torch.bfloat16))
    of_fp16 = broken_rules_of_the_scale(through(torch.float16))
    of_logarithm = broken_rules_of_the_scale(by_logarithm)
    assert of_bf16 > of_fp16 > of_logarithm
    assert len(of_logarithm) == 1
    assert len(of_bf16) == 3


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "BF16"), (torch.float16, "FP16")], ids=["bf16", "fp16"]
)
def test_a_rounded_largest_magnitude_of_nvfp4_is_named(dtype: torch.dtype, name: str) -> None:
    (mistake,) = mistakes(check(nvfp4(top_dtype=dtype)))
    assert mistake.startswith(f"the largest magnitude is rounded to {name}")


def test_mistake_is_named_under_either_sign_of_zero() -> None:
    answers = microscaled("MXFP8", through(torch.bfloat16), of_zeros=127)
    (mistake,) = mistakes(check(answers))
    assert mistake.startswith("the largest magnitude is rounded to BF16")
    assert conventions(answers) == [
        "a convention, not a fault: the scale of a block of zeros is 1; row 52"
    ]


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (0.0, "is 0 (vLLM"),
        (1.0, "is 1;"),
        (2.0**-6, "is 2^-6, the smallest normal number of E4M3 (torchao"),
        (3.5, "is 3.5;"),
    ],
)
def test_the_scale_of_a_block_of_zeros_is_a_convention(scale: float, words: str) -> None:
    answers = nvfp4(zero=scale)
    assert check(answers) == []
    (convention,) = conventions(answers)
    assert words in convention


def test_nan_as_the_scale_of_a_block_of_zeros_is_a_fault() -> None:
    answers = microscaled("MXFP8", from_bits, of_zeros=255)
    assert rules(check(answers)) == {"a block of zeros"}
    assert conventions(answers) == []


def test_nonzero_elements_in_a_zero_block_are_a_fault() -> None:
    answers = nvfp4(zero=1.0)
    answers["elements"][-1, 3] = 1
    assert rules(check(answers)) == {"a block of zeros"}


@pytest.mark.parametrize(
    ("least", "words"),
    [(2.0**-6, "no scale is below 2^-6"), (0.0, "a scale may round to 0")],
    ids=["torchao", "vLLM"],
)
def test_the_least_scale_is_a_convention(least: float, words: str) -> None:
    answers = nvfp4(least=least)
    assert check(answers) == []
    assert any(words in line for line in conventions(answers))


def test_a_scale_of_zero_for_a_block_that_has_one_is_a_fault() -> None:
    answers = nvfp4()
    answers["scales"][0] = 0
    answers["elements"][0] = 0
    assert rules(check(answers)) == {"scale from a power of two"}


def test_the_command_prints_a_convention_and_reports_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **nvfp4(zero=0.0))
    assert cli.main(["vectors", "--check", str(path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "no rule is broken"
    assert printed[1].startswith("a convention, not a fault: the scale of a block of zeros is 0")


@pytest.mark.parametrize(
    ("name", "key", "dtype"),
    [
        ("BF16", "codes", float),
        ("BF16", "codes", str),
        ("NVFP4", "elements", bool),
        ("NVFP4", "values", str),
        ("H100", "d", complex),
    ],
)
def test_answers_of_another_kind_are_refused(name: str, key: str, dtype: type) -> None:
    """As integers, codes with fractions would pass for the codes below them."""
    table = vectors(name)
    with pytest.raises(ValueError, match=f"expected '{key}' as (integers|floats), got "):
        check({**table, key: table[key].astype(dtype)})


@pytest.mark.parametrize("name", ["BF16", "NVFP4", "H100"])
def test_right_answers_in_lists_break_no_rule(name: str) -> None:
    answers = {key: values.tolist() for key, values in vectors(name).items()}
    assert check(answers) == []
    assert conventions(answers) == []


@pytest.mark.parametrize("function", [check, conventions])
def test_answers_without_a_name_are_refused(function: Callable[[Answers], list[str]]) -> None:
    answers = vectors("NVFP4")
    del answers["name"]
    with pytest.raises(ValueError, match='expected "name" in the file'):
        function(answers)


def test_a_list_of_too_few_codes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 'codes' of shape .* got shape \[2\]"):
        check({**vectors("FP16"), "codes": [1, 2]})


def test_a_folder_is_not_an_answer_to_vectors(tmp_path: Path) -> None:
    folder = tmp_path / "answers.npz"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"expected an \.npz file"):
        read(folder)


def test_a_file_of_another_kind_is_not_an_answer_to_vectors(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"expected an \.npz file"):
        read(script)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_rows_about_ties_hold_ties(name: str) -> None:
    table = vectors(name)
    block = BLOCK_FORMATS[name]
    rows = table["rule"] == "ties to even of elements"
    assert rows.sum() == 9
    scales = decode(table["scales"][rows], block.scale)
    for scale, values in zip(scales, table["x"][rows], strict=True):
        quotient = float(values[1]) / float(scale)
        below = float(round_to(quotient, block.element, Rounding.TOWARD_ZERO))
        above = float(next_up(below, block.element))
        assert quotient - below == above - quotient

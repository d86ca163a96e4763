"""`labkit tolerance`, `labkit vectors`, the plugin of pytest, and lesson 03b."""

import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from labkit import cli
from labkit.formats import FP16
from labkit.formats.text import round_fraction
from labkit.grading import EXERCISES
from labkit.testing import Arithmetic, VerdictKind, compare, matmul, sum_error
from labkit.testing.tolerance import EXAMPLE, tolerance
from labkit.testing.vectors import NAMES, check, known_mistakes, vectors
from labkit.widgets import predictions
from labkit_lessons.lesson_03b_rounding_or_fault import SIX, six_operands
from tests.grading.cases import cases, reference

ROOT = Path(__file__).parents[2]


def test_the_tolerance_of_the_issue_s_line() -> None:
    lines = tolerance(EXAMPLE).splitlines()
    assert lines[0] == "matmul, K=4,096, BF16 operands, BF16 out, accumulator FP32"
    assert '  assert_explained(got, a, b, out=BF16, accumulator="FP32")' in lines
    number = {
        line[:40].strip(): float(line.split()[-1])
        for line in lines
        if line.startswith("  ") and "=" not in line
    }
    bound, reached, typical, half = number.values()
    assert 0.5 < bound < 0.8  # 4096 2^-24 times a sum of magnitudes near 4096 * 2 / pi
    assert reached < bound / 100
    assert half == 0.5
    assert typical < half


def test_every_operation_has_a_tolerance_that_holds() -> None:
    for text in (
        "sum K=100 fp16 accumulate=fp16",
        "mean K=100 bf16",
        "dot K=64 e4m3 out=bf16 accumulate=H100",
        "K=1",
        "softmax K=512 fp16",
        "layer_norm K=64 fp32",
        "rms_norm K=64 bf16",
        "matmul K=128 e2m1 out=bf16",
        "matmul K=64 tf32 out=fp32 accumulate=A100",
        "matmul K=512 fp16 out=fp16 accumulate=fp32",
    ):
        found = tolerance(text)
        assert "assert_explained(got, " in found
        (rtol, atol) = map(float, re.search(r"rtol=(\S+), atol=(\S+)\)", found).groups())
    for seed in range(20):  # the last line is run: on right results of other operands, drawn alike
        torch.manual_seed(seed)
        a = torch.randn(8, 512).half()
        b = torch.randn(512, 8).half()
        exact = torch.from_numpy(matmul(a, b).value)
        torch.testing.assert_close(
            (a.float() @ b.float()).half().double(), exact, rtol=rtol, atol=atol
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("matmul", "expected K=TERMS, the number of terms of each sum, got none"),
        ("matmul K=0", "expected K, the number of terms, from 1 to 1,000,000, got 0"),
        ("matmul K=2000000", "got 2,000,000"),
        ("attention K=4", "expected an operation .* got 'attention'"),
        ("matmul K=4 accumulate=H1000", "expected an accumulator"),
        ("matmul K=4 bf16 accumulate=V100", "V100 Tensor Cores take FP16"),
    ],
)
def test_a_line_that_is_not_understood_is_refused(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        tolerance(text)
    assert cli.main(["tolerance", *text.split()]) == 2
    assert capsys.readouterr().err.startswith("labkit tolerance: ")


def test_vectors_are_what_independent_libraries_compute() -> None:
    """numpy and torch for FP16, ml_dtypes for the others; FP32 inputs, so that they round once."""
    for name, dtype in {
        "FP16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "E5M2": ml_dtypes.float8_e5m2,
        "E4M3": ml_dtypes.float8_e4m3fn,
    }.items():
        table = vectors(name)
        with np.errstate(over="ignore"):
            codes = table["x"].astype(dtype).view(np.uint8 if name.startswith("E") else np.uint16)
        assert check({**table, "codes": codes}) == []
    table = vectors("MXFP4")
    scales = table["given_scales"].view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.isnan(scales[3])
    numbers = np.array(
        [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32
    )
    with np.errstate(over="ignore"):
        decoded = scales[:, None] * numbers[table["given_elements"]]
    assert check({**table, "values": decoded}) == []


def test_every_known_mistake_breaks_a_rule_and_is_recognised() -> None:
    for name in NAMES:
        table = vectors(name)
        assert check(table) == [], name
        mistakes = known_mistakes(table)
        assert len(mistakes) >= 4, name
        for mistake, answers in mistakes.items():
            found = check({**table, **answers})
            assert found[0].split("; ")[1].startswith("row "), (name, mistake)
            assert f"these answers are those of a known mistake: {mistake}" in found, (
                name,
                mistake,
            )


BROKEN = (
    ("FP16", "ties away from zero", {"ties to even", "subnormal ties"}),
    ("E4M3", "saturates", {"overflow: beyond the largest number", "infinity"}),
    ("BF16", "subnormal numbers are zero", {"subnormal numbers", "subnormal ties"}),
    ("MXFP8", "NaN of E8M0 read as a number", {"NaN of E8M0"}),
    (
        "MXFP4",
        "scale rounded up",
        {
            "rounding of the scale",
            "saturation of elements",
            "scale: just below a power of two, beyond BF16",
            "scale: just below a power of two, beyond FP16",
            "scale: the last FP32 number below a power of two",
        },
    ),
    ("NVFP4", "scale rounded up", {"rounding of the scale", "subnormal scale"}),
)


def test_the_rule_that_is_broken_is_named() -> None:
    for name, mistake, rules in BROKEN:
        table = vectors(name)
        found = check({**table, **known_mistakes(table)[mistake]})
        assert {
            re.sub(r": \d+ of \d+ rows.*", "", line) for line in found if " rows; " in line
        } == rules, name


def test_vectors_in_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "v.npz"
    assert cli.main(["vectors"]) == 0
    assert capsys.readouterr().out.split("\n")[0] == "FP16"
    assert cli.main(["vectors", "NVFP4", "--out", str(path)]) == 0
    assert path.stat().st_size < 60_000
    assert cli.main(["vectors", "--check", str(path)]) == 0
    assert "no rule is broken" in capsys.readouterr().out
    table = dict(np.load(path))
    table["scales"] = np.minimum(table["scales"] + 1, 126).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", **table)
    assert cli.main(["vectors", "--check", str(tmp_path / "mine.npz")]) == 1
    assert "rounding of the scale: " in capsys.readouterr().out
    for wrong, message in (
        ({"codes": table["x"]}, 'expected "name" in the file'),
        ({"name": "FP16", "codes": table["x"]}, "expected 'codes' of shape"),
        ({"name": "FP16"}, "got none"),
        ({"name": "FP17"}, "expected one of 'FP16', 'BF16'"),
    ):
        np.savez(path, **wrong)
        assert cli.main(["vectors", "--check", str(path)]) == 2
        assert message in capsys.readouterr().err
    path.write_text("no archive")
    for words in (["--check", str(path)], ["--check", str(tmp_path / "missing.npz")], ["FP17"]):
        assert cli.main(["vectors", *words]) == 2


def test_names_of_vectors_ignore_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["vectors", "e4m3, SATURATING"]) == 0
    assert str(np.load("E4M3-saturating.npz")["name"]) == "E4M3, saturating"
    assert cli.main(["vectors", "nvfp5"]) == 2
    message = capsys.readouterr().err
    assert "'E5M2', 'E4M3, saturating', 'E5M2, saturating', 'MXFP8'" in message
    assert message.endswith("got 'nvfp5'. Did you mean 'NVFP4'?\n")
    assert cli.main(["vectors", "Z"]) == 2
    assert capsys.readouterr().err.endswith("got 'Z'\n")


TEST = """
import torch
from labkit.testing import assert_explained

a, b = torch.ones(4, 64).half(), torch.full((64, 4), 0.5).half()

def test_right(explained):
    explained((a.float() @ b.float()).half(), a, b)

def test_wrong():
    got = (a[:, 1:].float() @ b[1:].float()).half()
    assert_explained(got, a, b)

def test_other():
    assert 1 == 2
"""


def test_the_plugin_shows_the_line_and_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "test_kernel.py").write_text(TEST, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "labkit.testing.plugin",
        "-p",
        "no:cacheprovider",
        "-q",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    ).stdout
    assert "2 failed, 1 passed" in said
    assert (
        "test_kernel.py:12: assert_explained(got, a, b)\n\n"
        "cannot be rounding: matmul [4, 64] @ [64, 4]" in said
    )
    assert "def assert_explained" not in said  # no frame of the package
    assert "assert 1 == 2" in said  # other failures stay as they are
    *_, summary = said.partition("differences that rounding does not explain")
    assert "test_kernel.py::test_wrong: cannot be rounding; " in summary


def test_the_page_shows_what_is_printed() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    verdict, broken = re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)
    a, b = six_operands()
    assert verdict == f"{compare(SIX['D'](a, b), matmul(a, b))}\n"
    table = vectors("NVFP4")
    assert broken.splitlines() == check({**table, **known_mistakes(table)["scale rounded up"]})


# What lesson 03b says: the six kernels, and its exercise against fractions and real accumulators


def test_the_six_kernels_are_as_the_lesson_says() -> None:
    a, b = six_operands()
    product = matmul(a, b)
    nearest = product.value.astype(np.float16).astype(np.float64)
    off = {name: np.abs(kernel(a, b).double().numpy() - nearest) for name, kernel in SIX.items()}
    largest, many = (
        {name: what(each) for name, each in off.items()} for what in (np.max, np.count_nonzero)
    )
    assert min(SIX, key=lambda name: largest[name]) == "D"
    assert max(SIX, key=lambda name: largest[name]) in "BCF"
    assert round(largest["D"], 3) == 0.016
    assert {largest[name] for name in "ABCEF"} <= {0.5, 1.0, 2.0}
    assert 3000 <= many["D"] <= 3100
    assert all(10 < many[name] < 100 for name in "ABCEF")
    verdicts = {
        name: compare(kernel(a, b), product, accumulator="H100" if name == "F" else "FP32").kind
        for name, kernel in SIX.items()
    }
    assert [name for name, kind in verdicts.items() if kind is not VerdictKind.ROUNDING] == ["D"]
    assert verdicts["D"] is VerdictKind.IMPOSSIBLE


def test_the_numbers_of_the_predictions() -> None:
    rows = predictions()
    assert {"kernels.six", "kernels.bound"} <= set(rows)
    bound = float(sum_error(Arithmetic("FP32"), 4096, np.array(1000.0)))
    assert 0.2440 < bound < 0.2445
    assert rows["kernels.bound"].answer == "about 0.24"


def test_the_reference_is_the_formula_in_fractions() -> None:
    assert EXERCISES["kernels.allowed"].lesson == "03b_rounding_or_fault"
    for a, b, precision in cases("kernels.allowed"):
        products = [Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)]
        unit = Fraction(1, 2**precision)
        error = ((1 + unit) ** max(0, len(a) - 1) - 1) * sum(map(abs, products), Fraction(0))
        exact = sum(products, Fraction(0))
        ends = tuple(round_fraction(end, FP16) for end in (exact - error, exact + error))
        assert reference("kernels.allowed")(a, b, precision) == ends

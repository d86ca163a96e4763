"""The compiled emulator is the plain one, bit for bit; which of them is used, and what happens without numba."""

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from labkit.formats import FP16, FP32
from labkit.gemm import ROWS, SPECS, TURING_4, emulate, emulator
from labkit.gemm.blocks import VARIABLE
from tests.oracles.mma_cases import cases

needs_numba = pytest.mark.skipif(
    emulator() == "numpy", reason="numba is not installed, or LABKIT_EMULATOR says numpy: there is one emulator only"
)


def both(monkeypatch: pytest.MonkeyPatch, *given: object) -> tuple[np.ndarray, np.ndarray]:
    """The words of D by numba and by numpy."""
    words = []
    for name in ("numba", "numpy"):
        monkeypatch.setenv(VARIABLE, name)
        d = np.asarray(emulate(*given))
        words.append(d.view(f"u{d.itemsize}"))
    return words[0], words[1]


@needs_numba
def test_every_row_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    # The oracle's dot products, as rows of one A and columns of one B: every kind of A meets every kind of B.
    for row, result in [(spec, result) for spec in (*ROWS, TURING_4) for result in spec.results]:
        a, b, c = cases(row, result, 96, 7)
        c = c[:, None] * np.where(np.arange(96) % 3, 0.0, 1.0)
        for start in (np.where(np.isnan(c), np.inf, c), None):
            assert np.array_equal(*both(monkeypatch, a, b.T.copy(), start, row, result)), (row, result, start)


@needs_numba
def test_any_shape_and_blocks_that_no_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for m, n, k in ((1, 1, 1), (3, 5, 19), (17, 2, 33), (2, 700, 5), (700, 2, 3), (5, 3, 0), (0, 3, 4), (3, 0, 4)):
        g = torch.Generator().manual_seed(m + n + k)
        for batch, out in itertools.product(((), (2, 3)), (FP32, FP16)):
            a, b = torch.randn(*batch, m, k, generator=g).half(), torch.randn(*batch, k, n, generator=g).half()
            c = torch.randn(*batch, m, n, generator=g).half()
            one, other = both(monkeypatch, a, b, c, SPECS["H100"], out)
            assert one.shape == (*batch, m, n)
            assert np.array_equal(one, other), (m, n, k, batch, out)
    for length in (1, 2, 3, 6):  # four products at a time would read beyond the end of a block
        row, ones = replace(SPECS["V100"], block_length=length), np.ones((7, 5), np.float32)
        one, other = both(monkeypatch, ones, ones.T, None, row)
        assert np.array_equal(one, other), length
        assert (one.view(np.float32) == 5).all(), length


@needs_numba
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, threads = torch.randn(3, 40, 30).half(), torch.randn(3, 30, 90).half(), torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr("labkit.gemm.blocks.PIECE", 64)
    try:
        one, other = both(monkeypatch, a, b, None, SPECS["V100"])
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(one, other)


def test_which_of_them_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "numpy")
    assert emulator() == "numpy"
    monkeypatch.setenv(VARIABLE, "cuda")
    with pytest.raises(ValueError, match=r"LABKIT_EMULATOR is .numba. or .numpy., or is not set; it was 'cuda'"):
        emulate(np.ones((1, 1)), np.ones((1, 1)), None, SPECS["V100"])


def test_without_numba_the_lab_uses_numpy_and_says_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    monkeypatch.delenv(VARIABLE, raising=False)
    assert emulator() == "numpy"
    assert emulate(np.ones((1, 5)), np.ones((5, 1)), None, SPECS["V100"]).item() == 5.0
    monkeypatch.setenv(VARIABLE, "numba")
    with pytest.raises(RuntimeError, match=r'pip install "fp16-lab\[fast\]"'):
        emulator()

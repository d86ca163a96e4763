"""The Triton kernel in Triton's interpreter on a CPU, with small shapes that fit no tile."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labkit.bench import GemmCase, run_case, timing, triton_gemm
from labkit.bench.triton_gemm import TILES, matmul, why_unavailable
from labkit.formats import FP16

# as the test extra in pyproject.toml
BUILT_FOR_THIS = (platform.system(), platform.machine()) == ("Linux", "x86_64")
PROGRAM = """
import torch
from labkit.bench.triton_gemm import TILES, Tile, matmul

tile = Tile(16, 32, 16, 4, 2)
generator = torch.Generator().manual_seed(0)
for (m, n, k), layout in zip(
    ((16, 32, 16), (17, 33, 50), (1, 1, 1), (160, 40, 31), (40, 70, 64)),
    ("NN", "NT", "TN", "TT", "NT"),
):
    a, b = (torch.randint(-4, 5, shape, generator=generator).half() for shape in ((m, k), (k, n)))
    a = a.t().contiguous().t() if layout[0] == "T" else a
    b = b.t().contiguous().t() if layout[1] == "T" else b
    # Sums of whole numbers are exact in FP32, so both are rounded once.
    exact = (a.double() @ b.double()).half()
    assert torch.equal(matmul(a, b, tile), exact), (m, n, k, layout)
for each in TILES:  # those that are timed, over an edge of each
    a = torch.randint(-4, 5, (130, 65), generator=generator).half()
    b = torch.randint(-4, 5, (65, 257), generator=generator).half()
    assert torch.equal(matmul(a, b, each), (a.double() @ b.double()).half()), each.name
# A result with a stride, whose neighbours must stay.
whole = torch.full((4, 6), 7.0).half()
matmul(torch.ones(4, 5).half(), torch.ones(5, 3).half(), tile, whole[:, ::2])
assert torch.equal(whole, torch.tensor([5.0, 7.0]).half().repeat(4, 3))
long = torch.ones(1, 4096).half()  # an FP16 accumulator would have stopped at 2048
assert matmul(long, long.t(), tile).item() == 4096
print("every product is right")
"""


@pytest.mark.skipif(
    not BUILT_FOR_THIS, reason="THERE IS NO TRITON FOR THIS SYSTEM: our own GEMM kernel was not run"
)
def test_every_shape_and_layout_is_multiplied_right():
    """FP16 only: Triton's interpreter (3.7.1) multiplies the codes of BF16 numbers as integers."""
    command = [sys.executable, "-c", PROGRAM]
    here = Path(__file__).parents[2]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, cwd=here, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "every product is right\n", done.stderr


@pytest.fixture
def no_triton(monkeypatch):
    """A torch without Triton."""
    monkeypatch.setattr(triton_gemm, "triton", None)


@pytest.mark.usefixtures("no_triton")
def test_without_triton_it_says_where_triton_comes_from():
    assert "comes with the CUDA builds of torch" in why_unavailable("cuda")


@pytest.mark.usefixtures("no_triton")
def test_without_triton_a_product_is_refused():
    with pytest.raises(RuntimeError, match="Triton is not installed"):
        matmul(torch.ones(16, 16).half(), torch.ones(16, 16).half())


@pytest.mark.usefixtures("no_triton")
def test_without_triton_a_case_is_not_timed():
    message = "Triton tiles 128x256x64, 3 ahead was not timed on cpu: Triton is"
    with pytest.raises(RuntimeError, match=message):
        run_case(GemmCase(16, 16, 16, FP16, kernel=TILES[0].name))


@pytest.fixture
def with_triton(monkeypatch):
    """A torch with Triton, which compiles: the interpreter is not asked for."""
    monkeypatch.setattr(triton_gemm, "triton", object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.usefixtures("with_triton")
def test_on_a_cpu_it_says_how_to_interpret():
    assert "TRITON_INTERPRET=1" in why_unavailable("cpu")


@pytest.mark.usefixtures("with_triton")
def test_with_triton_a_gpu_can_be_timed():
    assert why_unavailable("cuda") == ""


def test_a_case_runs_the_tile_that_it_names(monkeypatch):
    seen = []
    monkeypatch.setattr(timing, "matmul", lambda a, b, tile, out: seen.append(tile))
    for tile in TILES:
        timing.computation(GemmCase(16, 16, 16, FP16, kernel=tile.name))(None, None, out=None)
    assert seen == list(TILES)


def test_what_does_not_fit_is_refused():
    for a, b in (
        (torch.ones(2, 3).half(), torch.ones(4, 2).half()),
        (torch.ones(2, 3).half(), torch.ones(3, 2).bfloat16()),
        (torch.ones(2, 3), torch.ones(3, 2)),
        (torch.ones(3).half(), torch.ones(3, 2).half()),
        (torch.ones(0, 3).half(), torch.ones(3, 2).half()),
    ):
        with pytest.raises(ValueError, match=r"expected A\[m,k\] and B\[k,n\]"):
            matmul(a, b)


@pytest.mark.parametrize(
    "out",
    [torch.zeros(2, 2).half(), torch.zeros(4, 4), torch.zeros(16).half()],
    ids=["smaller", "another dtype", "a vector"],
)
def test_a_result_that_does_not_fit_is_refused(out):
    ones = torch.ones(4, 4).half()
    with pytest.raises(ValueError, match=r"out: expected torch\.float16 \[4, 4\]"):
        matmul(ones, ones, out=out)


def test_matrices_on_two_devices_are_refused():
    with pytest.raises(ValueError, match="on one device, got cpu, meta and cpu"):
        matmul(torch.ones(4, 4).half(), torch.ones(4, 4, device="meta").half())


def test_a_matrix_beyond_32_bits_is_refused():
    # 2^32 elements, of which none is stored
    a = torch.empty(2**16, 2**16, dtype=torch.float16, device="meta")
    b = torch.empty(2**16, 16, dtype=torch.float16, device="meta")
    with pytest.raises(ValueError, match=r"at most 2\^31 elements, got A \[65536, 65536\]"):
        matmul(a, b)

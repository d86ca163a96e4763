"""What `make gpu` asks of products and Tensor Cores: here where there is a GPU, and rehearsed where there is none."""

from __future__ import annotations

import pytest
import torch

from labkit.bench import GemmCase, device_report, run_cases
from labkit.capture.instructions import INSTRUCTIONS
from labkit.capture.tiles import ask
from labkit.formats import FP16, FP32
from labkit.gemm import SPECS
from labkit.gpu.checks import speed, triton
from labkit.gpu.checks.progress import complete
from tests.gpu.conftest import without_a_gpu


@pytest.mark.gpu
@pytest.mark.parametrize("row", INSTRUCTIONS, ids=lambda row: row.name)
def test_a_real_tensor_core_answers_as_the_emulator_does(row):
    report = device_report("cuda")
    if not row.runs_on(report.capability) or report.spec is None:
        pytest.skip(f"{report.name} does not have it, or no row of SPECS models it")
    counted = ask(row, tiles=4, seed=7).mismatches(SPECS[report.spec].for_operands(row.operands))
    assert not any(counted.values()), counted


@pytest.mark.gpu
def test_our_own_kernel_is_right_on_this_gpu():
    answers = complete(triton.main())
    if answers["unavailable"]:
        pytest.skip(answers["unavailable"])
    assert not any(answers["wrong"].values())


@pytest.mark.gpu
def test_cases_run_on_this_gpu():
    cases = [GemmCase(256, 256, 256, format, layout) for format in (FP32, FP16) for layout in ("NN", "NT", "TN")]
    runs = run_cases(cases, "cuda", rounds=1)
    assert [run.case for run in runs] == cases
    assert all(run.error < 100 for run in runs)


@pytest.mark.slow
def test_the_speed_of_training_is_told_for_every_way_and_task():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    answers = complete(speed.main("cpu", width=64, batch=8, steps=1, rounds=1))
    rows = answers["rows"]
    assert len(rows) == 3 * 2 * len(speed.WAYS)
    assert all(row["times_as_fast"] == 1 for row in rows if row["way"] == "FP32")
    assert all(row["milliseconds"] > 0 for row in rows)
    assert len(speed.told(answers).splitlines()) == len(rows)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_a_unet_gives_back_what_it_was_given_the_size_of():
    assert speed.UNet(2)(torch.randn(1, 3, 16, 16)).shape == (1, 1, 16, 16)


def test_wrong_products_are_counted_and_told(monkeypatch):
    tile = triton.TILES[-1]
    monkeypatch.setattr(triton, "matmul", lambda a, b, _: (a.float() @ b.float()).to(a.dtype))
    assert triton.wrong(tile, torch.float16, 20, 30, 40, "cpu") == 0
    monkeypatch.setattr(triton, "matmul", lambda a, b, _: (a.float() @ b.float()).to(a.dtype) + torch.eye(20, 30))
    assert triton.wrong(tile, torch.float16, 20, 30, 40, "cpu") == 20
    told = triton.told({"unavailable": "", "wrong": {"a": 0, "b": 20}, "left_out": {"c": "too small"}})
    assert told.splitlines() == [
        "our Triton kernel: 2 products, 1 of them wrong", "  b: 20 elements wrong", "c: LEFT OUT, too small"
    ]  # fmt: skip


def test_without_triton_the_check_says_why(monkeypatch):
    monkeypatch.setattr(triton, "why_unavailable", lambda device: "Triton is not installed")
    assert triton.told(complete(triton.main("cpu"))) == "our Triton kernel was not run: Triton is not installed"


def test_what_was_not_asked_is_said_and_is_an_error_where_there_must_be_a_gpu():
    with pytest.raises(pytest.skip.Exception, match="THERE IS NO GPU: nothing of this was asked"):
        without_a_gpu(required=False)
    with pytest.raises(pytest.fail.Exception, match="LABKIT_REQUIRE_GPU=1"):
        without_a_gpu(required=True)

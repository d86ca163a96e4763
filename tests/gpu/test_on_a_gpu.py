"""What `make gpu` asks of a GPU, without its passport: run here where there is one, rehearsed where there is none."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from labkit.bench import GemmCase, device_report, run_cases
from labkit.capture.kernel import INSTRUCTIONS
from labkit.capture.tiles import ask
from labkit.formats import FP16, FP32
from labkit.frameworks import GradScaler, autocast
from labkit.gemm import SPECS
from labkit.gpu.checks import amp, cards, outputs, speed, triton
from labkit.gpu.checks.measure import complete
from tests.gpu.conftest import without_a_gpu

TORCHS = {device: (partial(torch.autocast, device, torch.float16), torch.amp.GradScaler) for device in ("cpu", "cuda")}


class TestOnAGpu:
    """Our autocast and scaler against torch.amp's, call by call and run by run; products and Tensor Cores."""

    pytestmark = pytest.mark.gpu

    def test_every_operation_of_torchs_lists_has_the_same_output_bit_for_bit(self):
        with amp.repeatable():
            outcome = outputs.check_autocast("cuda", TORCHS["cuda"][0], amp.pair("cuda")[0])
        wrong = {call: how for call, how in outcome.items() if how != "equal" and not how.startswith("unusable")}
        assert wrong == {}
        assert sum(how == "equal" for how in outcome.values()) > 100

    def test_training_has_the_losses_scales_and_trackers_of_torchs(self):
        theirs, ours = TORCHS["cuda"], amp.pair("cuda")
        with amp.repeatable():
            for network in amp.NETWORKS:
                assert amp.compare_network(network, "cuda", theirs, ours, width=256, steps=30) == "equal", network

    def test_recurrent_layers_give_torchs_bits(self):
        assert set(complete(outputs.main())["recurrent"].values()) == {"equal"}

    def test_prices_are_told_with_their_memory(self):
        answers = complete(amp.main(width=64, batch=8, steps=2, rounds=1))
        assert all(price["mebibytes"] > 0 for price in answers["prices"])
        assert torch.cuda.get_device_name() in amp.told(answers)

    def test_the_scaler_refuses_bf16_and_every_repaired_form_runs(self):
        answers = complete(cards.main("cuda", width=1024))["cards"]
        assert answers["scaler_for_bf16"]["shows"]
        assert all(card["cured"] is not None for card in answers.values())

    @pytest.mark.parametrize("row", INSTRUCTIONS, ids=lambda row: row.name)
    def test_a_real_tensor_core_answers_as_the_emulator_does(self, row):
        report = device_report("cuda")
        if not row.runs_on(report.capability) or report.spec is None:
            pytest.skip(f"{report.name} does not have it, or no row of SPECS models it")
        counted = ask(row, tiles=4, seed=7).mismatches(SPECS[report.spec].for_operands(row.operands))
        assert not any(counted.values()), counted

    def test_our_own_kernel_is_right_on_this_gpu(self):
        answers = complete(triton.main())
        if answers["unavailable"]:
            pytest.skip(answers["unavailable"])
        assert not any(answers["wrong"].values())

    def test_cases_run_on_this_gpu(self):
        cases = [GemmCase(256, 256, 256, format, layout) for format in (FP32, FP16) for layout in ("NN", "NT", "TN")]
        runs = run_cases(cases, "cuda", rounds=1)
        assert [run.case for run in runs] == cases
        assert all(run.error < 100 for run in runs)


# --- without a GPU: can the checks fail? ---


def test_what_was_not_asked_is_said_and_is_an_error_where_there_must_be_a_gpu():
    with pytest.raises(pytest.skip.Exception, match="THERE IS NO GPU: nothing of this was asked"):
        without_a_gpu(required=False)
    with pytest.raises(pytest.fail.Exception, match="LABKIT_REQUIRE_GPU=1"):
        without_a_gpu(required=True)


def test_autocast_check_sees_that_torchs_cpu_policy_is_another():
    found = outputs.check_autocast("cpu", TORCHS["cpu"][0], amp.pair("cpu")[0])
    outcome = {call.split(" ", 1)[1]: how for call, how in found.items()}
    assert outcome["torch_fp16 torch.mm"] == "equal", "a product is rounded once by both"
    assert outcome["torch_fp32 torch.softmax"] == "torch.float32 instead of torch.float16"
    assert outcome["torch_fp32 method.exp"] == "torch.float32 instead of torch.float16"


def test_autocast_check_tells_values_refusals_and_dtypes_apart():
    class Nudged(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return torch.nextafter(func(*args, **(kwargs or {})), torch.tensor(torch.inf))

    nowhere, ours = partial(autocast, "cpu", enabled=False), amp.pair("cpu")[0]
    thirds = torch.full((2, 2), 1 / 3)
    row = outputs.Row("group", "matmul", "torch", (thirds, thirds), {})
    assert outputs.compare_row(row, nowhere, nowhere) == "equal"
    assert outputs.compare_row(row, nowhere, ours) == "torch.float16 instead of torch.float32"
    banned = outputs.Row("group", "binary_cross_entropy", "nn", (torch.rand(2), torch.rand(2)), {})
    assert outputs.compare_row(banned, nowhere, ours).startswith("we refuse: ")
    assert outputs.compare_row(banned, ours, nowhere).startswith("torch refuses (")
    assert outputs.compare_row(banned, ours, ours).startswith("unusable: ")
    row = outputs.Row("group", "exp", "torch", (torch.ones(3),), {})
    assert outputs.compare_row(row, nowhere, Nudged) == "3 of 3 values differ", "one last bit"


def test_training_check_sees_a_scaler_that_grows_one_step_late():
    class Late(GradScaler):
        def __init__(self, device, init_scale, growth_interval):
            super().__init__(device, init_scale, growth_interval=growth_interval + 1)

    region, _ = amp.pair("cpu")
    ours, late = (region, GradScaler), (region, Late)
    assert amp.compare_network("MLP", "cpu", ours, late, width=16, steps=12).startswith("step 1")


def test_the_rehearsal_on_a_cpu_answers_all_three_questions():
    answers = complete(amp.main("cpu", width=16, batch=2, steps=1, rounds=1, networks=["MLP"]))
    answers = json.loads(json.dumps(answers))
    assert answers["training"] == {"MLP": "equal"}
    assert [price["way"] for price in answers["prices"]][:2] == ["torch.amp", "drop-in"]
    assert "CPU (a rehearsal)" in amp.told(answers)


def test_recurrent_layers_are_compared_padded_and_packed():
    found = complete(outputs.main("cpu", width=8))["recurrent"]
    assert list(found) == ["RNN", "RNN, packed", "GRU", "GRU, packed", "LSTM", "LSTM, packed"]
    ours, nowhere = amp.pair("cpu")[0], partial(autocast, "cpu", enabled=False)
    assert outputs._compared(torch.nn.LSTM, 8, False, "cpu", nowhere, nowhere) == "equal"
    assert outputs._compared(torch.nn.LSTM, 8, False, "cpu", nowhere, ours) != "equal", "cast otherwise"


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


def test_wrong_products_of_our_kernel_are_counted_and_told(monkeypatch):
    tile = triton.TILES[-1]
    monkeypatch.setattr(triton, "matmul", lambda a, b, _: (a.float() @ b.float()).to(a.dtype))
    assert triton.wrong(tile, torch.float16, 20, 30, 40, "cpu") == 0
    monkeypatch.setattr(triton, "matmul", lambda a, b, _: (a.float() @ b.float()).to(a.dtype) + torch.eye(20, 30))
    assert triton.wrong(tile, torch.float16, 20, 30, 40, "cpu") == 20
    told = triton.told({"unavailable": "", "wrong": {"a": 0, "b": 20}, "left_out": {"c": "too small"}})
    assert told.splitlines() == [
        "our Triton kernel: 2 products, 1 of them wrong", "  b: 20 elements wrong", "c: LEFT OUT, too small"
    ]  # fmt: skip
    monkeypatch.setattr(triton, "why_unavailable", lambda device: "Triton is not installed")
    assert triton.told(complete(triton.main("cpu"))) == "our Triton kernel was not run: Triton is not installed"

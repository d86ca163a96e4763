"""On a GPU: our autocast and scaler against torch.amp's, call by call and run by run. Without one: can the check fail?

What is compared, and how, is in labkit/gpu/checks, which `make gpu` runs without pytest.
"""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from labkit.frameworks import GradScaler, autocast
from labkit.gpu.checks import amp, networks, outputs, recurrent
from labkit.gpu.checks.progress import complete

TORCHS = {device: (partial(torch.autocast, device, torch.float16), torch.amp.GradScaler) for device in ("cpu", "cuda")}


class TestOnAGpu:
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
            outcome = amp.check_training("cuda", theirs, ours, width=256, steps=30)
        assert outcome == dict.fromkeys(networks.NETWORKS, "equal")

    def test_recurrent_layers_give_torchs_bits(self):
        assert set(complete(recurrent.main())["recurrent"].values()) == {"equal"}

    def test_prices_are_told_with_their_memory(self):
        answers = complete(amp.main(width=64, batch=8, steps=2, rounds=1))
        assert all(price["mebibytes"] > 0 for price in answers["prices"])
        assert torch.cuda.get_device_name() in amp.told(answers)


# --- without a GPU: what would the check say? ---


def outcomes(theirs, ours):
    return {call.split(" ", 1)[1]: how for call, how in outputs.check_autocast("cpu", theirs, ours).items()}


def test_it_sees_that_torchs_cpu_policy_is_another():
    outcome = outcomes(TORCHS["cpu"][0], amp.pair("cpu")[0])
    assert outcome["torch_fp16 torch.mm"] == "equal", "a product is rounded once by both"
    assert outcome["torch_fp32 torch.softmax"] == "torch.float32 instead of torch.float16"
    assert outcome["torch_fp32 method.exp"] == "torch.float32 instead of torch.float16"


def test_it_tells_values_refusals_and_dtypes_apart():
    nowhere = partial(autocast, "cpu", enabled=False)
    row = outputs.Row("group", "matmul", "torch", (torch.full((2, 2), 1 / 3), torch.full((2, 2), 1 / 3)), {})
    assert outputs.compare_row(row, nowhere, nowhere) == "equal"
    assert outputs.compare_row(row, nowhere, amp.pair("cpu")[0]) == "torch.float16 instead of torch.float32"
    back = outputs.Row("group", "prod", "torch", (torch.rand(8).half(),), {"dtype": torch.float16})
    assert outputs.compare_row(back, nowhere, nowhere) == "equal"
    banned = outputs.Row("group", "binary_cross_entropy", "nn", (torch.rand(2), torch.rand(2)), {})
    assert outputs.compare_row(banned, nowhere, amp.pair("cpu")[0]).startswith("we refuse: ")
    assert outputs.compare_row(banned, amp.pair("cpu")[0], nowhere).startswith("torch refuses (")
    assert outputs.compare_row(banned, amp.pair("cpu")[0], amp.pair("cpu")[0]).startswith("unusable: ")


def test_it_sees_one_last_bit():
    class Nudged(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return torch.nextafter(func(*args, **(kwargs or {})), torch.tensor(torch.inf))

    row = outputs.Row("group", "exp", "torch", (torch.ones(3),), {})
    assert outputs.compare_row(row, partial(autocast, "cpu", enabled=False), Nudged) == "3 of 3 values differ"


def test_it_sees_a_scaler_that_grows_one_step_late():
    class Late(GradScaler):
        def __init__(self, device, init_scale, growth_interval):
            super().__init__(device, init_scale, growth_interval=growth_interval + 1)

    region, _ = amp.pair("cpu")
    outcome = amp.check_training("cpu", (region, GradScaler), (region, Late), width=16, steps=12, networks=["MLP"])
    assert outcome["MLP"].startswith("step 1")


def test_the_rehearsal_on_a_cpu_answers_all_three_questions():
    answers = complete(amp.main("cpu", width=16, batch=2, steps=1, rounds=1, networks=["MLP"]))
    answers = json.loads(json.dumps(answers))
    assert answers["training"] == {"MLP": "equal"}
    assert [price["way"] for price in answers["prices"]][:2] == ["torch.amp", "drop-in"]
    assert "CPU (a rehearsal)" in amp.told(answers)


def test_recurrent_layers_are_compared_padded_and_packed():
    found = complete(recurrent.main("cpu", width=8))["recurrent"]
    assert list(found) == ["RNN", "RNN, packed", "GRU", "GRU, packed", "LSTM", "LSTM, packed"]


def test_a_recurrent_layer_that_is_cast_otherwise_is_seen():
    ours, nowhere = amp.pair("cpu")[0], partial(autocast, "cpu", enabled=False)
    assert recurrent._compared(torch.nn.LSTM, 8, False, "cpu", nowhere, nowhere) == "equal"
    assert recurrent._compared(torch.nn.LSTM, 8, False, "cpu", nowhere, ours) != "equal"


BARE = """
import sys

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"expecttest", "pytest", "scipy", "matplotlib", "ipywidgets", "IPython"}:
            raise ImportError(name)

sys.meta_path.insert(0, Bare())
from labkit.gpu.checks import outputs
print(len(outputs.rows("cpu")))
"""


@pytest.mark.slow
def test_torch_and_numpy_are_all_it_needs():
    done = subprocess.run([sys.executable, "-c", BARE], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(outputs.rows("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(RuntimeError, match="torch sees none here"):
        complete(amp.main())

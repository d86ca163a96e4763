"""The example gradient of a histogram's bar, and its cast to FP16 at each loss scale."""

from typing import Any

import numpy as np
import pytest
import torch

from labkit.train import TASKS, TrainingRun
from labkit.train.run import one_of_each
from labkit.widgets import LiveTraining
from labkit.widgets.driven.controller import Button

FOLDERS = ("exact", "bits", "underflow", "live_training")
CAST = """(value, k) => {
  const { code, kind, ...cast } = castOf(value, k, F.FP16);
  const words = castWords({ code, kind, ...cast }, "FP16");
  return { bits: fieldBits(code, F.FP16).join(""), words };
}"""
SMALL = float(np.float32(1.7 * 2.0**-27))


@pytest.fixture(scope="module")
def gradients() -> Any:
    live = LiveTraining(TASKS["painted_picture"], "FP16", steps=5, device="cpu")
    live.forked_run.handle(Button.START)
    live.forked_run.tick()
    return live.state()["gradients"]


def test_each_occupied_power_of_two_has_a_real_gradient(gradients):
    twin = TrainingRun(TASKS["painted_picture"], "FP16", 0).fp32_twin()
    exact = twin.next_gradients("activation gradients")
    for row in gradients["layers"][1:]:
        values = exact[row["name"]].flatten()
        examples = gradients["examples"][row["name"]]
        has_example = [example is not None for example in examples]
        assert has_example == [count > 0 for count in row["counts"]]
        for exponent, example in enumerate(examples, row["lo"]):
            if example is None:
                continue
            index, value = example
            assert values[index].item() == value
            assert 2.0**exponent <= abs(value) < 2.0 ** (exponent + 1)


def test_zeros_and_non_finite_numbers_have_no_example():
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
    assert one_of_each(special) == {}
    assert one_of_each(torch.empty(0)) == {}
    assert one_of_each(torch.tensor([2.0**-149])) == {-149: (0, 2.0**-149)}


@pytest.mark.parametrize("k", range(45))
def test_bits_equal_those_of_numpy_s_cast(js, k):
    with np.errstate(over="ignore"):
        code = np.float16(SMALL * 2.0**k).view(np.uint16)
    assert js.run(CAST, SMALL, k)["bits"] == f"{code:016b}"


def test_the_words_follow_the_scale(js):
    words = {k: js.run(CAST, SMALL, k)["words"] for k in (0, 4, 20, 43)}
    assert words[0] == "FP16 makes it 0: all bits of its size are dark."
    assert "as a subnormal number" in words[4]
    assert "in full precision" in words[20]
    assert words[43] == "FP16 makes it inf."


def test_a_format_without_infinity_casts_large_numbers_to_nan(js):
    cast = """(k) => {
      const cast = castOf(1.5, k, F.E4M3);
      return [castWords(cast, "E4M3"), fieldBits(cast.code, F.E4M3).join("")];
    }"""
    assert js.run(cast, 20) == ["E4M3 makes it NaN.", "01111111"]
    assert js.run(cast, 0) == ["E4M3 holds it exactly.", "00111100"]


def test_the_example_of_all_layers_is_from_the_largest_count(js, gradients):
    most = js.run("(g) => exampleOf(g, g.layers[0].name, g.layers[1].lo + 12)", gradients)
    exponent = gradients["layers"][1]["lo"] + 12
    counts = {
        row["name"]: row["counts"][exponent - row["lo"]]
        for row in gradients["layers"][1:]
        if 0 <= exponent - row["lo"] < len(row["counts"])
    }
    assert most["layer"] == max(counts, key=lambda name: counts[name])


def test_an_exponent_without_gradients_has_no_example(js, gradients):
    assert js.run("(g) => exampleOf(g, g.layers[1].name, 100)", gradients) is None

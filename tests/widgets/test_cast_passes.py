"""The passes over the graph of an autocast forward pass."""

import copy

import pytest
import torch
from torch import Tensor, nn

from labkit.widgets import CastPasses
from labkit.widgets.graph.widget import PASSES


def test_each_pass_visits_each_operation_once() -> None:
    passes = CastPasses()
    operations = len(passes.explanation.rows)
    visited = []
    # The first position is before the passes, and the last sentence is the summary.
    for position in range(1, len(PASSES) * operations):
        passes.position = position
        visited.append(passes.sentence.partition(":")[0])
    expected = [name for name in PASSES for _ in range(operations)]
    assert visited == expected[:-1]


def test_rows_of_passes_are_the_operations_of_the_network() -> None:
    operations = [row["op"] for row in CastPasses().get_state()["_rows"]]
    assert operations == ["linear", "linear", "T", "matmul", "softmax", "matmul", "linear"]


def test_rows_of_passes_name_what_each_operation_takes() -> None:
    """Numbers from 0 on are rows; negative ones are inputs, of which two operations read -1."""
    taken = [row["takes"] for row in CastPasses().get_state()["_rows"]]
    assert taken == [[-1], [-2], [1], [0, 2], [3], [4, -1], [5]]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (0, "A forward pass as it was called. Five passes decide its casts, once."),
        (5, "colour: softmax is on the deny list. Sums or multiplies many elements."),
        (12, "propagate: softmax returns FP32."),
        # 64 numbers of 2 and 4 bytes.
        (19, "insert: softmax asks for input FP16 → FP32: 0.4 KiB to read and write."),
        # 68 numbers of 4 and 2 bytes.
        (
            21,
            "insert: linear asks for weight FP32 → FP16, bias FP32 → FP16: 0.4 KiB to read and "
            "write.",
        ),
        (27, "cancel: at matmul, input FP32 → FP16 repeats an existing cast, and goes."),
        (29, "hoist: the weight of linear is cast here, for all its uses; "),
        (30, "hoist: the weight of linear was cast already; "),
        (35, "Autocast makes 9 casts here, and the graph 7; "),
    ],
)
def test_worked_example_of_the_sentences_of_passes(position: int, expected: str) -> None:
    passes = CastPasses()
    passes.position = position
    assert passes.sentence.startswith(expected)


def test_a_network_without_a_graph_is_refused_with_the_line() -> None:
    class ReadsItem(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * x.max().item()

    with (
        pytest.warns(UserWarning, match="no graph of this network"),
        pytest.raises(
            ValueError, match=r"there is no graph: .*test_cast_passes.py:\d+: item tells Python"
        ),
    ):
        CastPasses(ReadsItem(2, 2), torch.ones(2, 2))


def test_showing_passes_changes_no_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = copy.deepcopy(model.state_dict())
    CastPasses(model, torch.rand(8, 2))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_showing_passes_draws_no_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    inputs = torch.ones(8, 2)
    before = torch.get_rng_state()
    CastPasses()
    CastPasses(model, inputs)
    assert torch.equal(torch.get_rng_state(), before)

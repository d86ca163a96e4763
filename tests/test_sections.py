"""Statements of sections in lessons 05, 07, 08, 09b, 11b and 11c, against runs of their cells."""

import pytest
import torch

from tests.lesson_cells import cells_of, defined_in


def test_nvfp4_without_a_tensor_scale_loses_small_gradients() -> None:
    names = defined_in("11b_eight_and_four_bits", "touch-tensor-scale")
    gradients = 1e-4 * torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    round_to_blocks = names["round_to_blocks"]
    format = names["NVFP4"]
    assert not round_to_blocks(gradients, format).any()
    scale = 2688 / gradients.abs().max()
    error = (round_to_blocks(scale * gradients, format) / scale - gradients).norm()
    assert error < 0.12 * gradients.norm()


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_three_values_are_learned_and_not_rounded_to(seed: int) -> None:
    names = defined_in("11b_eight_and_four_bits", "touch-straight")
    names["data"] = names["single_digits"]()
    torch.manual_seed(seed)
    sizes = ((32, 64), (32, 32), (10, 32))
    weights = [torch.randn(size) * (2 / size[1]) ** 0.5 for size in sizes]
    for weight in weights:
        weight.requires_grad_()
    (exact, afterwards), _ = names["train_on"](weights, three_values=False)
    (_, aware), _ = names["train_on"](weights, three_values=True)
    # Accuracies: rounding after the training loses much, training with rounding hardly anything.
    loss_of_rounding_afterwards = exact - afterwards
    assert 0.08 < loss_of_rounding_afterwards < 0.4
    assert exact - aware < 0.06


def test_straight_through_gradient_is_of_the_rounded_weight() -> None:
    straight = defined_in("11b_eight_and_four_bits", "touch-straight")["Straight"]
    weight = torch.tensor([0.1, -2.0, 0.6, 1.3], requires_grad=True)
    (straight.apply(weight) * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 2, 3, 4]
    assert straight.apply(weight).tolist() == pytest.approx([0, -1, 1, 1])


def test_an_epsilon_of_1e_7_shortens_the_step_of_small_gradients() -> None:
    cells = defined_in("11c_order_and_positions", "touch-muon", "touch-muon-epsilon")
    length = cells["length_of_step"]
    gradient = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    unit = gradient / gradient.norm()
    assert length(1e-10 * unit, 1e-7) < 0.1 * length(unit, 1e-7)
    assert length(1e-10 * unit, 1e-30) == pytest.approx(length(unit, 1e-30), rel=1e-3)


def test_a_model_that_is_loaded_in_bf16_hardly_moves() -> None:
    moved = defined_in("07_master_weights", "touch-loaded")["share_moved"]
    assert moved(torch.bfloat16, torch.bfloat16) < 0.1
    assert moved(torch.bfloat16, torch.float32) > 0.95


def test_bf16_loses_eight_percent_of_a_sum_over_1024_ranks() -> None:
    error = defined_in("09b_many_workers", "touch-reduce-ranks")["sum_of_ranks"]
    assert error(1024, torch.bfloat16) == pytest.approx(0.08, abs=0.015)
    assert 6 < error(64, torch.bfloat16) / error(64, torch.float16) < 10
    assert error(1024, torch.float32) < 1e-5


def test_an_adapter_promotes_without_autocast_alone() -> None:
    names = defined_in("05_autocast", "touch-lora")
    model = names["Adapted"]()
    x = torch.randn(4, 64)
    labels = torch.zeros(4, dtype=torch.long)
    model(x, labels)
    assert model.dtype is torch.float32
    with names["autocast"](names["FP16"]):
        model(x, labels)
    assert model.dtype is torch.float16


def test_o2_fits_no_larger_network_than_fp32(capsys: pytest.CaptureFixture[str]) -> None:
    exec(cells_of("08_recipes")["touch-fits"], defined_in("08_recipes"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    for line in lines:
        # A line has a part "RECIPE: LARGEST NETWORK, ..." for each of FP32, O1, O2 and O3.
        fp32, _, o2, o3 = (part.split(",")[0] for part in line.split(": ")[1:])
        assert fp32 == o2
        assert o2 != o3

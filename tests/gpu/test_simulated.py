"""The simulated card of tests/gpu/simulated: what it is, what it refuses, what it counts."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.gpu.simulated import ROOT
from tests.gpu.simulated.cards import CARDS


def worked_example() -> list[object]:
    """A tensor on the card: it says so, computes as the CPU does, and its memory is counted."""
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    before = torch.cuda.memory_allocated()
    y = (x * 2 + 1).cpu()
    return [str(x.device), y.tolist(), torch.cuda.get_device_name(), before, torch.cuda.memory_allocated()]


def test_a_tensor_says_cuda_and_computes_as_the_cpu_does(simulated_gpu) -> None:
    assert simulated_gpu("T4", worked_example) == ["cuda:0", [3.0, 5.0, 7.0], "Tesla T4 (simulated)", 512, 512]


def what_the_card_says() -> list[object]:
    properties = torch.cuda.get_device_properties(0)
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    return [properties.name, [properties.major, properties.minor], properties.multi_processor_count, native]


@pytest.mark.parametrize("card", CARDS)
def test_each_card_says_what_the_real_one_says(simulated_gpu, card: str) -> None:
    expected = CARDS[card]
    name, capability, multiprocessors, native_bf16 = simulated_gpu(card, what_the_card_says)
    assert name == expected.device_name
    assert "simulated" in name
    assert tuple(capability) == expected.capability
    assert multiprocessors == expected.multiprocessors
    assert native_bf16 is (card in ("A100", "H100"))


def test_a_failure_in_the_process_brings_its_traceback(simulated_gpu) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        simulated_gpu("T4", "1 / 0")


@pytest.mark.parametrize("words", [(), ("P100", "--", "true"), ("T4", "--"), ("T4",)])
def test_the_launcher_lists_the_cards_when_it_is_called_wrongly(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.gpu.simulated", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected a card, one of T4, V100, A100, H100, and a command" in done.stderr

"""The simulated card: properties, counts, refusals, and commands that run on it."""

import io
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import RECIPES
from labkit.cli import main
from labkit.records import data_folder
from labkit.train import TASKS, train
from tests.gpu.simulated import ROOT, Outcomes
from tests.gpu.simulated.cards import CARDS
from tests.gpu.simulated.refusals import REFUSALS, Refusal

# ---- on the card


def a_tensor_is_on_the_first_card() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    assert str(x.device) == "cuda:0"


def the_cards_name_says_that_it_is_simulated() -> None:
    assert torch.cuda.get_device_name() == "Tesla T4 (simulated)"


def a_small_tensor_takes_512_bytes() -> None:
    before = torch.cuda.memory_allocated()
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    assert torch.cuda.memory_allocated() - before == 512
    del x
    assert torch.cuda.memory_allocated() == before


def the_card_computes_as_the_cpu_does() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    assert (x * 2 + 1).cpu().tolist() == [3.0, 5.0, 7.0]


def the_fused_cell_agrees_with_the_cpu() -> None:
    def gradients(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.LSTM(3, 4)
        data = torch.randn(5, 2, 3)
        result = model.to(device)(data.to(device))[0]
        result.square().sum().backward()
        return [result.detach().cpu(), *(weight.grad.cpu() for weight in model.parameters())]

    torch.testing.assert_close(gradients("cuda"), gradients("cpu"), rtol=1e-5, atol=1e-6)


def a_tensor_that_does_not_fit_raises_as_cuda_does() -> None:
    from tests.gpu.simulated.runtime import limited_memory

    out_of_memory = pytest.raises(
        torch.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate"
    )
    with limited_memory(4096), out_of_memory:
        torch.randn(4096, device="cuda")


def a_full_card_can_be_used_again() -> None:
    from tests.gpu.simulated.runtime import limited_memory

    kept = torch.ones(256, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with limited_memory(4096):
        with pytest.raises(torch.OutOfMemoryError):
            torch.randn(4096, device="cuda")
        fits = torch.ones(1024, device="cuda")
    assert torch.cuda.max_memory_allocated() - before == 4096
    del fits
    assert torch.cuda.memory_allocated() == before
    assert (kept + 1).sum().item() == 512


def random_numbers_of_the_card_leave_the_hosts_state() -> None:
    host = torch.get_rng_state()
    torch.rand(4, device="cuda")
    F.dropout(torch.ones(100, device="cuda"))
    assert torch.equal(host, torch.get_rng_state())


def random_numbers_of_the_card_are_not_the_hosts() -> None:
    torch.manual_seed(3)
    on_card = torch.rand(4, device="cuda").tolist()
    torch.manual_seed(3)
    assert torch.rand(4).tolist() != on_card


def a_generator_of_the_card_draws_as_its_seed_does() -> None:
    torch.manual_seed(3)
    drawn = torch.rand(4, device="cuda")
    generator = torch.Generator("cuda").manual_seed(3)
    assert torch.equal(torch.rand(4, device="cuda", generator=generator), drawn)


def the_cards_random_state_of_16_bytes_can_be_restored() -> None:
    state = torch.cuda.get_rng_state()
    assert state.numel() == 16
    dropped = F.dropout(torch.ones(100, device="cuda"))
    torch.cuda.set_rng_state(state)
    assert torch.equal(dropped, F.dropout(torch.ones(100, device="cuda")))


def operations_waits_and_copies_are_counted() -> None:
    """The expected counts of operations, waits and copies from the host were counted by hand."""
    from tests.gpu.simulated.counting import counted

    x = torch.tensor([1.0, -2.0, 3.0], device="cuda")
    mask = x > 0
    lines = {
        "x + 1": (lambda: x + 1, (1, 0, 0)),
        "torch.empty": (lambda: torch.empty(3, device="cuda"), (0, 0, 0)),
        "x.sum().item()": (lambda: x.sum().item(), (2, 1, 0)),
        "x.cpu()": (lambda: x.cpu(), (1, 1, 0)),
        "torch.equal": (lambda: torch.equal(x, x), (1, 1, 0)),
        "x[mask]": (lambda: x[mask], (1, 1, 0)),
        "x[mask] = tensor": (lambda: x.clone().__setitem__(mask, x[:2]), (2, 1, 0)),
        "torch.tensor([1.0])": (lambda: torch.tensor([1.0], device="cuda"), (0, 0, 1)),
        "torch.ones(3).cuda()": (lambda: torch.ones(3).cuda(), (1, 0, 1)),
        "x * torch.tensor(2.0)": (lambda: x * torch.tensor(2.0), (1, 0, 0)),
        "torch.cuda.synchronize()": (torch.cuda.synchronize, (0, 1, 0)),
        "torch.ones(3).sum().item()": (lambda: torch.ones(3).sum().item(), (0, 0, 0)),
    }
    for line, (run, expected) in lines.items():
        with counted() as counts:
            run()
        cost = counts.operations.total(), counts.waits.total(), counts.copies.total()
        assert cost == expected, f"{line}: {cost}"


def a_wait_is_counted_with_its_place() -> None:
    from tests.gpu.simulated.counting import counted

    x = torch.tensor([1.0, -2.0, 3.0], device="cuda")
    with counted() as counts:
        x.sum().item()
    (place,) = counts.waits
    assert place.startswith("aten::_local_scalar_dense at ")
    assert "tests/gpu/test_simulated.py:" in place


def nothing_simulated_is_written_into_the_labs_data() -> None:
    """`labkit compare`, `labkit gpu` and records do not write into the folder of measured data."""
    before = sorted((ROOT / "data").rglob("*"))
    for command in (["compare", "digits", "--recipes", "FP32", "--seeds", "0"], ["gpu", "--quick"]):
        with redirect_stderr(io.StringIO()) as message:
            assert main(command) == 2
        assert "expected a real device for records in" in message.getvalue()
        assert "--folder" in message.getvalue()
    record = train(replace(TASKS["digits"], steps=1), RECIPES["FP32"], 0, device="cuda")
    assert record.device == "Tesla T4 (simulated)"
    with pytest.raises(ValueError, match=r"Tesla T4 \(simulated\)"):
        record.save(data_folder() / "runs" / "simulated.json")
    with tempfile.TemporaryDirectory() as elsewhere:
        assert record.save(Path(elsewhere) / "simulated.json").exists()
    assert sorted((ROOT / "data").rglob("*")) == before


def fails() -> None:
    raise ZeroDivisionError


ON_CARD = (
    a_tensor_is_on_the_first_card,
    the_cards_name_says_that_it_is_simulated,
    a_small_tensor_takes_512_bytes,
    the_card_computes_as_the_cpu_does,
    the_fused_cell_agrees_with_the_cpu,
    a_tensor_that_does_not_fit_raises_as_cuda_does,
    a_full_card_can_be_used_again,
    random_numbers_of_the_card_leave_the_hosts_state,
    random_numbers_of_the_card_are_not_the_hosts,
    a_generator_of_the_card_draws_as_its_seed_does,
    the_cards_random_state_of_16_bytes_can_be_restored,
    operations_waits_and_copies_are_counted,
    a_wait_is_counted_with_its_place,
    nothing_simulated_is_written_into_the_labs_data,
)


@pytest.fixture(scope="module")
def outcomes(simulated_gpu: Any) -> Outcomes:
    return simulated_gpu("T4", [*ON_CARD, fails])


@pytest.mark.parametrize("function", ON_CARD)
def test_on_the_card(outcomes: Outcomes, function: Callable[[], None]) -> None:
    assert outcomes[function] is None


def test_a_failure_in_the_process_has_its_traceback(outcomes: Outcomes) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        outcomes[fails]


# ---- the process, and commands


def test_launcher_returns_the_commands_status(simulated_gpu: Any) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.gpu.simulated",
        "T4",
        "--",
        "sh",
        "-c",
        "echo $LABKIT_SIMULATED_GPU; exit 3",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout == "T4\n"


# ---- what the cards refuse


def outcome(row: Refusal, device: str) -> str:
    """Return the error message of a row's example on a device, or "" if it raises none."""
    try:
        exec(row.example, {"torch": torch, "F": F, "device": device})
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return str(error)
    return ""


def refusals() -> dict[str, str]:
    return {row.name: outcome(row, "cuda") for row in REFUSALS}


def test_names_of_refusals_are_unique() -> None:
    """Results have them as keys."""
    assert len({row.name for row in REFUSALS}) == len(REFUSALS)


def test_more_than_60_refusals_are_listed() -> None:
    assert len(REFUSALS) > 60


# The next two are slow, since the simulated cards change rarely.
@pytest.mark.slow
def test_the_cpu_accepts_what_a_card_refuses() -> None:
    on_cpu = {row.name: outcome(row, "cpu") for row in REFUSALS}
    assert {name: message for name, message in on_cpu.items() if message} == {}


@pytest.mark.slow
def test_a_card_refuses_in_torchs_words(simulated_gpu: Any) -> None:
    for card in ("T4", "H100"):
        messages = simulated_gpu(card, refusals)
        wrong = {
            row.name: messages[row.name]
            for row in REFUSALS
            if (row.words in messages[row.name]) != row.holds_for(CARDS[card].capability)
        }
        assert wrong == {}, card

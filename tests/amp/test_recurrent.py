"""Recurrent layers under autocast: after a layer that returned FP16, packed, with a state, on a CPU."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from labkit.amp import RECIPES, Engine, autocast
from labkit.formats import BF16, E4M3, FP16
from labkit.frameworks.torch_amp import autocast as drop_in
from labkit.gemm import half_storage

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")


def o1() -> AbstractContextManager[Any]:
    """Open what the engine opens under O1."""
    regions = ExitStack()
    regions.enter_context(half_storage("cpu"))
    regions.enter_context(autocast())
    return regions


REGIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "O1": o1,
    "drop-in": lambda: drop_in("cpu", torch.float16),
}
LAYERS = {nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell, nn.RNN: nn.RNNCell}
OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    *((kind, options) for kind in LAYERS for options in (
        {}, {"batch_first": True, "bias": False}, {"bidirectional": True, "num_layers": 2},
    )),
    (nn.LSTM, {"proj_size": 3}),
]  # fmt: skip


def grown(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("region", REGIONS)
def test_worked_example_an_lstm_after_a_linear_layer(region: str) -> None:
    first, layer, x = nn.Linear(3, 5), nn.LSTM(5, 6), grown(7, 2, 3)
    with REGIONS[region]():
        between = first(x)
        y, (h, c) = layer(between)
    assert {t.dtype for t in (between, y, h, c)} == {torch.float16}
    y.float().sum().backward()
    assert {p.grad.dtype for p in (*first.parameters(), *layer.parameters())} == {torch.float32}  # type: ignore[union-attr]


def parts(result: Any) -> list[Tensor]:
    """Return the output of a recurrent layer, packed or not, and its end state, as a list of tensors."""
    output, state = result
    output = output.data if isinstance(output, PackedSequence) else output
    return [output, *(state if isinstance(state, tuple) else (state,))]


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("given", [False, True], ids=["no state", "a state"])
@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_results_and_gradients_are_those_of_fp32_but_for_the_rounding(
    kind: Any, options: dict[str, Any], given: bool, packed: bool, region: str
) -> None:
    """The oracle is torch's FP32 layer on the FP16 values of input, weights and state: seven steps, a rounding each."""
    torch.manual_seed(0)
    layer, exact = kind(5, 6, **options), kind(5, 6, **options)
    exact.load_state_dict({name: value.half().float() for name, value in layer.state_dict().items()})
    shape, rows = ((4, 7, 5) if options.get("batch_first") else (7, 4, 5)), 4 if options.get("bidirectional") else 1
    state = [grown(rows, 4, size, seed=1).half().float() for size in (options.get("proj_size", 6), 6)]

    def run(which: nn.Module, dtype: torch.dtype) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        x = grown(*shape).half().to(dtype).requires_grad_()
        fed: Any = x
        if packed:
            lengths = torch.tensor([5, 7, 2, 5])
            fed = pack_padded_sequence(x, lengths, bool(options.get("batch_first")), enforce_sorted=False)
        start: Any = (tuple(state) if kind is nn.LSTM else state[0]) if given else None
        out = parts(which(fed, start))
        loss = sum((t.float() * torch.linspace(0.5, 1, t.numel()).view(t.shape)).sum() for t in out)
        return out, torch.autograd.grad(loss, [x, *which.parameters()])

    with REGIONS[region]():
        ours, gradients = run(layer, torch.float16)
    want, want_gradients = run(exact, torch.float32)
    for a, b in zip(ours, want, strict=True):
        assert (a.dtype, a.shape) == (torch.float16, b.shape)
        assert (a.float() - b).abs().max() < 7 * FP16.epsilon
    for a, b in zip(gradients, want_gradients, strict=True):
        assert (a.float() - b).abs().max() < 7 * FP16.epsilon * b.abs().max()


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("kind", list(LAYERS))
def test_a_layer_and_its_cell_after_a_linear_layer_compute_what_converted_ones_do(kind: Any, region: str) -> None:
    """What goes in is FP16 and so are the weights: under autocast as after `model.half()`, to the bit."""
    torch.manual_seed(0)
    first, layer, cell, x = nn.Linear(5, 5), kind(5, 6), LAYERS[kind](5, 6), grown(3, 2, 5)
    with REGIONS[region]():
        between = first(x)
        y, new = layer(between)[0], cell(between[0])
    layer, cell = layer.half(), cell.half()
    with half_storage("cpu"):
        want, want_new = layer(between)[0], cell(between[0])
    assert torch.equal(y, want)
    assert all(map(torch.equal, *((t if isinstance(t, tuple) else (t,)) for t in (new, want_new))))


def test_dropout_between_layers_draws_as_in_training_only() -> None:
    first, layer, x = nn.Linear(4, 4), nn.GRU(4, 4, num_layers=2, dropout=0.5), grown(3, 2, 4)
    with o1():
        assert not torch.equal(layer(first(x))[0], layer(first(x))[0])
        layer.eval()
        assert torch.equal(layer(first(x))[0], layer(first(x))[0])


class Tagger(nn.Module):
    """A linear layer, a recurrent one on packed sequences, and a linear layer."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(3, 8), kind(8, 8, bidirectional=True), nn.Linear(16, 3)

    def forward(self, packed: PackedSequence) -> Tensor:
        between = PackedSequence(self.first(packed.data), *packed[1:])
        padded, _ = pad_packed_sequence(self.layer(between)[0])
        out: Tensor = self.last(padded)
        return out


@pytest.mark.parametrize("kind", list(LAYERS))
@pytest.mark.parametrize("recipe", ["O1", "O2"])
def test_a_network_on_packed_sequences_trains(recipe: str, kind: Any) -> None:
    torch.manual_seed(0)
    engine = Engine(Tagger(kind), partial(torch.optim.Adam, lr=3e-2), RECIPES[recipe])
    x = pack_padded_sequence(grown(6, 4, 3), torch.tensor([6, 4, 3, 1]))
    losses = []
    for _ in range(12):
        engine.zero_grad()
        with engine.forward():
            loss = (engine(x).float() - 1).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


# --- torch's layers ask torch's autocast: what they are told, and what nobody else is ---------------------------------


def refused(layer: nn.Module, x: Tensor) -> bool:
    """Say whether the layer refuses the dtype of x, as outside of autocast."""
    try:
        layer(x)
    except ValueError as error:
        return "does not match weight dtype" in str(error)
    return False


def test_outside_of_a_region_and_in_a_disabled_one_torch_refuses_as_ever() -> None:
    layer, x = nn.GRU(3, 3), torch.ones(2, 1, 3).half()
    with half_storage("cpu"):
        assert refused(layer, x)
        with autocast():
            assert not refused(layer, x)
            with autocast(enabled=False):
                assert refused(layer, x)
                with autocast(BF16), autocast():
                    assert not refused(layer, x)
                assert refused(layer, x)
            assert not refused(layer, x)
        assert refused(layer, x)


def test_an_exception_takes_the_answer_back() -> None:
    layer, x = nn.GRU(3, 3), torch.ones(2, 1, 3).half()
    for region in REGIONS.values():
        with pytest.raises(ZeroDivisionError), region():
            raise ZeroDivisionError
        assert refused(layer, x)
        assert not torch._C._is_any_autocast_enabled()


def test_another_thread_is_told_nothing() -> None:
    seen: list[bool] = []
    with autocast():
        other = threading.Thread(target=lambda: seen.append(torch._C._is_any_autocast_enabled()))
        other.start()
        other.join()
    assert seen == [False]


def test_no_device_in_use_is_said_to_have_torchs_autocast() -> None:
    devices = ("cpu", "cuda", "mps", "xpu", "xla", "mtia", "hpu")
    with autocast():
        assert torch._C._is_any_autocast_enabled()
        assert not torch.is_autocast_enabled()
        assert not any(torch.is_autocast_enabled(device) for device in devices)


def test_an_emulated_format_takes_fp16_from_outside_of_it() -> None:
    layer, x = nn.LSTM(3, 4), grown(5, 2, 3)
    with half_storage("cpu"), autocast(E4M3):
        y, _ = layer(x.half())
        wide, _ = layer(x.half().float())
    assert y.dtype == torch.float32
    assert torch.equal(y, wide)

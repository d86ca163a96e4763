"""Recurrent layers under autocast: after a layer that returned FP16, packed, with a state, on a CPU."""

import itertools
import threading
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from labkit.amp import autocast
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


LAYERS = {nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell, nn.RNN: nn.RNNCell}
OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    *((kind, options) for kind in LAYERS for options in (
        {}, {"batch_first": True, "bias": False}, {"bidirectional": True, "num_layers": 2},
    )),
    (nn.LSTM, {"proj_size": 3}),
]  # fmt: skip


def grown(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_worked_example_an_lstm_after_a_linear_layer() -> None:
    for region in (o1, partial(drop_in, "cpu", torch.float16)):
        first, layer, x = nn.Linear(3, 5), nn.LSTM(5, 6), grown(7, 2, 3)
        with region():
            between = first(x)
            y, (h, c) = layer(between)
        assert {t.dtype for t in (between, y, h, c)} == {torch.float16}
        y.float().sum().backward()
        assert {p.grad.dtype for p in (*first.parameters(), *layer.parameters())} == {torch.float32}


def run(layer: nn.RNNBase, x: Tensor, state: Any, packed: bool) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Return the output of a recurrent layer, packed or not, and its end state; and all gradients of a sum of them."""
    x = x.requires_grad_()
    lengths = torch.tensor([5, 7, 2, 5])
    fed = pack_padded_sequence(x, lengths, layer.batch_first, enforce_sorted=False) if packed else x
    output, last = layer(fed, state)
    out = [output.data if packed else output, *(last if isinstance(last, tuple) else (last,))]
    loss = sum((t.float() * torch.linspace(0.5, 1, t.numel()).view(t.shape)).sum() for t in out)
    return out, torch.autograd.grad(loss, [x, *layer.parameters()])


def test_results_and_gradients_are_those_of_fp32_but_for_the_rounding() -> None:
    """The oracle is torch's FP32 layer on the FP16 values of input, weights and state: seven steps, a rounding each."""
    for (kind, options), with_state, packed in itertools.product(OPTIONS, (False, True), (False, True)):
        torch.manual_seed(0)
        layer, exact = kind(5, 6, **options), kind(5, 6, **options)
        exact.load_state_dict({name: value.half().float() for name, value in layer.state_dict().items()})
        rows, sizes = (4 if layer.bidirectional else 1), (layer.proj_size or 6, 6)
        state: Any = tuple(grown(rows, 4, size, seed=1).half().float() for size in sizes)
        state = (state if kind is nn.LSTM else state[0]) if with_state else None
        x = grown(*((4, 7, 5) if layer.batch_first else (7, 4, 5))).half()
        with o1():
            ours, gradients = run(layer, x.clone(), state, packed)
        want, want_gradients = run(exact, x.float(), state, packed)
        case = (kind.__name__, options, with_state, packed)
        for a, b in zip(ours, want, strict=True):
            assert (a.dtype, a.shape) == (torch.float16, b.shape), case
            assert (a.float() - b).abs().max() < 7 * FP16.epsilon, case
        for a, b in zip(gradients, want_gradients, strict=True):
            assert (a.float() - b).abs().max() < 7 * FP16.epsilon * b.abs().max(), case


def test_a_layer_and_its_cell_after_a_linear_layer_compute_what_converted_ones_do() -> None:
    """What goes in is FP16 and so are the weights: under autocast as after `model.half()`, to the bit."""
    for kind, cell_kind in LAYERS.items():
        torch.manual_seed(0)
        first, layer, cell, x = nn.Linear(5, 5), kind(5, 6), cell_kind(5, 6), grown(3, 2, 5)
        with o1():
            between = first(x)
            y, new = layer(between)[0], cell(between[0])
        with half_storage("cpu"):
            want, want_new = layer.half()(between)[0], cell.half()(between[0])
        assert torch.equal(y, want), kind
        assert all(map(torch.equal, *((t if isinstance(t, tuple) else (t,)) for t in (new, want_new)))), kind


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
    with pytest.raises(ZeroDivisionError), o1():
        raise ZeroDivisionError
    assert refused(layer, x), "an exception takes the answer back"


def test_other_threads_and_used_devices_do_not_report_autocast() -> None:
    devices = ("cpu", "cuda", "mps", "xpu", "xla", "mtia", "hpu")
    seen: list[bool] = []
    with autocast():
        assert torch._C._is_any_autocast_enabled()
        other = threading.Thread(target=lambda: seen.append(torch._C._is_any_autocast_enabled()))
        other.start()
        other.join()
        assert not any(torch.is_autocast_enabled(device) for device in devices)
    assert seen == [False]


def test_an_emulated_format_takes_fp16_from_outside_of_it() -> None:
    layer, x = nn.LSTM(3, 4), grown(5, 2, 3)
    with half_storage("cpu"), autocast(E4M3):
        y, _ = layer(x.half())
        wide, _ = layer(x.half().float())
    assert y.dtype == torch.float32
    assert torch.equal(y, wide)

"""Recurrent layers under autocast, against FP32 layers on FP16 values."""

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


def o1() -> AbstractContextManager[Any]:
    """Open the regions that the engine opens under O1."""
    regions = ExitStack()
    regions.enter_context(half_storage("cpu"))
    regions.enter_context(autocast())
    return regions


OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    *(
        (cell, options)
        for cell in (nn.LSTM, nn.GRU, nn.RNN)
        for options in (
            {},
            {"batch_first": True, "bias": False},
            {"bidirectional": True, "num_layers": 2},
        )
    ),
    (nn.LSTM, {"proj_size": 3}),
]


def random_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_worked_example_an_lstm_after_a_linear_layer() -> None:
    for region in (o1, partial(drop_in, "cpu", torch.float16)):
        first = nn.Linear(3, 5)
        layer = nn.LSTM(5, 6)
        with region():
            between = first(random_normal(7, 2, 3))
            y, (h, c) = layer(between)
        assert {t.dtype for t in (between, y, h, c)} == {torch.float16}
        y.float().sum().backward()
        assert {p.grad.dtype for p in (*first.parameters(), *layer.parameters())} == {torch.float32}


def run(
    layer: nn.RNNBase, x: Tensor, state: Any, packed: bool
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Return outputs and end state of a recurrent layer, and gradients of a weighted sum of them.

    With `packed`, the input is a packed sequence of four lengths.
    """
    states = [t.requires_grad_() for t in ((state,) if isinstance(state, Tensor) else state or ())]
    x = x.requires_grad_()
    lengths = torch.tensor([5, 7, 2, 5])
    inputs = (
        pack_padded_sequence(x, lengths, layer.batch_first, enforce_sorted=False) if packed else x
    )
    output, last = layer(inputs, state)
    last_states = last if isinstance(last, tuple) else (last,)
    out = [output.data if packed else output, *last_states]
    loss = sum((t.float() * torch.linspace(0.5, 1, t.numel()).view(t.shape)).sum() for t in out)
    return out, torch.autograd.grad(loss, [x, *states, *layer.parameters()])


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_layers_equal_fp32_but_for_rounding() -> None:
    """The oracle is torch's FP32 layer on the FP16 values of input, weights and state.

    A sequence of seven steps rounds seven times, and the tolerance is one epsilon for each.
    """
    for (cell, options), with_state, packed in itertools.product(
        OPTIONS, (False, True), (False, True)
    ):
        torch.manual_seed(0)
        layer = cell(5, 6, **options)
        exact = cell(5, 6, **options)
        exact.load_state_dict(
            {name: value.half().float() for name, value in layer.state_dict().items()}
        )
        rows = 4 if layer.bidirectional else 1
        sizes = (layer.proj_size or 6, 6)
        state: Any = tuple(random_normal(rows, 4, size, seed=1).half().float() for size in sizes)
        if cell is not nn.LSTM:
            state = state[0]
        if not with_state:
            state = None
        x = random_normal(*((4, 7, 5) if layer.batch_first else (7, 4, 5))).half()
        with o1():
            ours, gradients = run(layer, x.clone(), state, packed)
        want, want_gradients = run(exact, x.float(), state, packed)
        case = (cell.__name__, options, with_state, packed)
        for a, b in zip(ours, want, strict=True):
            assert a.dtype == torch.float16, case
            assert a.shape == b.shape, case
            assert (a.float() - b).abs().max() < 7 * FP16.epsilon, case
        for a, b in zip(gradients, want_gradients, strict=True):
            assert (a.float() - b).abs().max() < 7 * FP16.epsilon * b.abs().max(), case


# --- torch's recurrent layers ask torch whether autocast is on ------------------------------------


def refused(layer: nn.Module, x: Tensor) -> bool:
    """Return whether the layer refuses the dtype of x, as it does outside of autocast."""
    try:
        layer(x)
    except ValueError as error:
        return "does not match weight dtype" in str(error)
    return False


def test_torch_refuses_half_inputs_outside_of_a_region() -> None:
    layer = nn.GRU(3, 3)
    x = torch.ones(2, 1, 3).half()
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
    assert refused(layer, x), "torch reports autocast after an exception"


def test_autocast_of_torch_is_off_in_other_threads_and_devices() -> None:
    devices = ("cpu", "cuda", "mps", "xpu", "xla", "mtia", "hpu")
    in_thread: list[bool] = []

    def ask() -> None:
        in_thread.append(torch._C._is_any_autocast_enabled())

    with autocast():
        assert torch._C._is_any_autocast_enabled()
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert not any(torch.is_autocast_enabled(device) for device in devices)
    assert in_thread == [False]


def test_an_lstm_in_an_emulated_format_takes_fp16_inputs() -> None:
    layer = nn.LSTM(3, 4)
    x = random_normal(5, 2, 3)
    with half_storage("cpu"), autocast(E4M3):
        y, _ = layer(x.half())
        wide, _ = layer(x.half().float())
    assert y.dtype == torch.float32
    assert torch.equal(y, wide)

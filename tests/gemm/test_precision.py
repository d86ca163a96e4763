"""torch's switches of the precision of FP32 products: set in a block, restored after it."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from labkit.gemm import fp32_precision, has_tf32, tf32_products
from labkit.modes import open_modes

OPERATIONS = [(backend, op) for backend in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn")]
SWITCHES = [("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), *OPERATIONS]


def switches() -> dict[tuple[str, str], str]:
    """Return the precision that torch reports for each switch."""
    return {key: torch._C._get_fp32_precision_getter(*key) for key in SWITCHES}


def legacy() -> tuple[object, ...]:
    """Return what the older API reports, or that it raises, as it does if both APIs were used."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        return torch.get_float32_matmul_precision(), matmul.allow_tf32, cudnn.allow_tf32
    except RuntimeError:
        return ("raises",)


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Restore torch's defaults after a test; no getter of torch returns them exactly."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch._C._set_cudnn_allow_tf32(True)
    for key in SWITCHES:
        torch._C._set_fp32_precision_setter(
            *key, "tf32" if key in (("cuda", "conv"), ("cuda", "rnn")) else "none"
        )


def test_an_unknown_precision_is_refused() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ValueError, match='expected "ieee" or "tf32"'), fp32_precision("tf23"):
        pass
    assert torch.get_float32_matmul_precision() == before


def test_on_ampere_torchs_switch_is_set_and_no_mode_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with tf32_products("cuda"):
        assert torch.backends.cudnn.conv.fp32_precision == "tf32"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert not open_modes()


def test_ieee_turns_tf32_off_for_every_operation() -> None:
    # By default, convolutions of torch use TF32.
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    with fp32_precision("ieee"):
        assert {switches()[key] for key in OPERATIONS} == {"ieee"}
        assert legacy() == ("highest", False, False)
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


def test_tf32_is_turned_on_for_the_gpu_only() -> None:
    with fp32_precision("tf32"):
        assert {switches()["cuda", op] for op in ("matmul", "conv", "rnn")} == {"tf32"}
        assert {switches()["mkldnn", op] for op in ("matmul", "conv", "rnn")} == {"ieee"}
        assert legacy() == ("high", True, True)
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"


def old_api() -> None:
    torch.set_float32_matmul_precision("medium")
    # torch.backends.cudnn.allow_tf32 by its C function, because torch's tests may freeze the flag.
    torch._C._set_cudnn_allow_tf32(False)


def new_api() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"


def both_apis() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.rnn.fp32_precision = "ieee"


def inherited() -> None:
    # torch.backends.fp32_precision by its C function, for the same reason.
    torch._C._set_fp32_precision_setter("generic", "all", "tf32")
    torch.backends.cudnn.conv.fp32_precision = "none"


@pytest.mark.parametrize("prepare", [lambda: None, old_api, new_api, both_apis, inherited])
def test_switches_of_either_api_are_restored(prepare: Callable[[], None]) -> None:
    prepare()
    before = switches(), legacy()
    for precision in ("ieee", "tf32"):
        with fp32_precision(precision):
            # Other code of the session may use the older API, which must not raise in the block.
            assert "raises" not in legacy()
        assert (switches(), legacy()) == before
        with pytest.raises(ZeroDivisionError), fp32_precision(precision):
            raise ZeroDivisionError
        assert (switches(), legacy()) == before


def test_nested_blocks_may_have_other_precisions() -> None:
    with fp32_precision("tf32"):
        with fp32_precision("ieee"), fp32_precision("ieee"):
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_a_switch_that_was_set_inside_of_a_block_stays() -> None:
    with fp32_precision("ieee"):
        torch.set_float32_matmul_precision("high")
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.conv.fp32_precision == "tf32", (
        "an unchanged switch was not restored"
    )


def test_an_inherited_switch_inherits_again_after_a_block() -> None:
    inherited()
    with fp32_precision("ieee"):
        pass
    torch._C._set_fp32_precision_setter("generic", "all", "ieee")
    # The switch follows the generic one, and was not set to the value that it had before the block.
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"


class BlockInThread:
    """A thread that opens a block and closes it when `end` is called."""

    def __init__(self, precision: str) -> None:
        self.open = threading.Event()
        self.may_close = threading.Event()
        self.precision_inside = ""
        self.precision = precision
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        with fp32_precision(self.precision):
            self.open.set()
            self.may_close.wait(60)
            self.precision_inside = torch.backends.cuda.matmul.fp32_precision

    def end(self) -> None:
        self.may_close.set()
        self.thread.join(60)


@pytest.fixture
def blocks() -> Iterator[Callable[[str], BlockInThread]]:
    """Open blocks in threads, all of which end with the test."""
    opened: list[BlockInThread] = []

    def open_block(precision: str) -> BlockInThread:
        opened.append(BlockInThread(precision))
        return opened[-1]

    yield open_block
    for block in opened:
        block.may_close.set()
    for block in opened:
        block.end()


Blocks = Callable[[str], BlockInThread]


def test_threads_of_one_precision_share_a_block(blocks: Blocks) -> None:
    first = blocks("ieee")
    second = blocks("ieee")
    assert first.open.wait(60)
    assert second.open.wait(60)


def test_switches_are_restored_after_the_last_block_of_all_threads(blocks: Blocks) -> None:
    first = blocks("ieee")
    second = blocks("ieee")
    assert first.open.wait(60)
    assert second.open.wait(60)
    first.end()
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    second.end()
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


def test_a_thread_of_another_precision_waits(blocks: Blocks) -> None:
    first = blocks("ieee")
    assert first.open.wait(60)
    other = blocks("tf32")
    # A block that did not wait would open in much less than 0.2 s.
    assert not other.open.wait(0.2)
    first.end()
    assert other.open.wait(60)
    other.end()
    assert (first.precision_inside, other.precision_inside) == ("ieee", "tf32")


def test_threads_that_nest_the_other_precision_do_not_deadlock() -> None:
    both_in = threading.Barrier(2)
    precisions = []

    def run() -> None:
        with fp32_precision("tf32"):
            both_in.wait(60)
            with fp32_precision("ieee"):
                precisions.append(torch.backends.cuda.matmul.fp32_precision)
            precisions.append(torch.backends.cuda.matmul.fp32_precision)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(precisions) == ["ieee", "ieee", "tf32", "tf32"]


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((7, 0), False),
        ((7, 5), False),
        ((8, 0), True),
        ((8, 9), True),
        ((12, 0), True),
    ],
)
def test_nvidia_gpus_have_tf32_since_ampere(
    monkeypatch: pytest.MonkeyPatch, capability: Any, expected: bool
) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device, capability=capability: capability
    )
    assert has_tf32("cuda") is expected


def test_other_devices_have_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_tf32("cpu")
    assert not has_tf32("mps")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not has_tf32("cuda")

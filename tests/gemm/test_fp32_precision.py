"""Precision of FP32 products: the switches are set for a block, and are afterwards as the user had them.

The oracle is torch: what its getters of both APIs return, and that reading them does not raise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from labkit.gemm import fp32_precision, has_tf32

OPERATIONS = [(backend, op) for backend in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn")]
SWITCHES = [("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), *OPERATIONS]


def switches() -> dict[tuple[str, str], str]:
    """Return what torch says is in force."""
    return {key: torch._C._get_fp32_precision_getter(*key) for key in SWITCHES}


def legacy() -> tuple[object, ...]:
    """Return what the older API says, or that it raises."""

    def answer(get: Callable[[], object]) -> object:
        try:
            return get()
        except RuntimeError:
            return "raises"

    backends = torch.backends
    getters = (
        torch.get_float32_matmul_precision,
        lambda: backends.cuda.matmul.allow_tf32,
        lambda: backends.cudnn.allow_tf32,
    )
    return tuple(map(answer, getters))


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Put torch's defaults back, which no getter of torch tells exactly."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch._C._set_cudnn_allow_tf32(True)
    for key in SWITCHES:
        torch._C._set_fp32_precision_setter(*key, "tf32" if key in (("cuda", "conv"), ("cuda", "rnn")) else "none")


def test_worked_example_torchs_default_is_tf32_for_convolutions() -> None:
    assert torch.backends.cudnn.conv.fp32_precision == "tf32", "so FP32 is not FP32 on an A100"
    with fp32_precision("ieee"):
        assert {switches()[key] for key in OPERATIONS} == {"ieee"}
        assert legacy() == ("highest", False, False)
    with fp32_precision("tf32"):
        assert {switches()["cuda", op] for op in ("matmul", "conv", "rnn")} == {"tf32"}
        assert switches()["mkldnn", "matmul"] == "ieee"
        assert legacy() == ("high", True, True)
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


def old_api() -> None:
    torch.set_float32_matmul_precision("medium")
    torch._C._set_cudnn_allow_tf32(False)  # torch.backends.cudnn.allow_tf32, which torch's own tests freeze


def new_api() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"


def both_apis() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.rnn.fp32_precision = "ieee"


def inherited() -> None:
    torch._C._set_fp32_precision_setter("generic", "all", "tf32")  # torch.backends.fp32_precision, frozen as well
    torch.backends.cudnn.conv.fp32_precision = "none"


@pytest.mark.parametrize("prepare", [lambda: None, old_api, new_api, both_apis, inherited])
def test_a_session_has_its_own_switches_back_whichever_api_set_them(prepare: Callable[[], None]) -> None:
    prepare()
    before = switches(), legacy()
    for precision in ("ieee", "tf32"):
        with fp32_precision(precision):
            assert "raises" not in legacy(), "code beside this block may read what the older API says"
        assert (switches(), legacy()) == before
        with pytest.raises(ZeroDivisionError), fp32_precision(precision):
            raise ZeroDivisionError
        assert (switches(), legacy()) == before


def test_what_was_inherited_is_inherited_afterwards() -> None:
    inherited()
    with fp32_precision("ieee"):
        pass
    torch._C._set_fp32_precision_setter("generic", "all", "ieee")
    assert torch.backends.cudnn.conv.fp32_precision == "ieee", "not pinned to the tf32 that it was before the block"


def test_what_the_user_changes_meanwhile_stays() -> None:
    with fp32_precision("ieee"):
        torch.set_float32_matmul_precision("high")
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.conv.fp32_precision == "tf32", "what was not changed is restored"


def test_nested_blocks_may_differ() -> None:
    with fp32_precision("tf32"):
        with fp32_precision("ieee"), fp32_precision("ieee"):
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == "none"


class Held:
    """A thread that holds a block open until it is let go."""

    def __init__(self, precision: str) -> None:
        self.open, self.go, self.seen = threading.Event(), threading.Event(), ""
        self.precision = precision
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        with fp32_precision(self.precision):
            self.open.set()
            self.go.wait(60)
            self.seen = torch.backends.cuda.matmul.fp32_precision

    def end(self) -> None:
        self.go.set()
        self.thread.join(60)


def test_overlapping_threads_of_one_precision_share_the_block_and_another_precision_waits() -> None:
    first, second = Held("ieee"), Held("ieee")
    assert first.open.wait(60)
    assert second.open.wait(60), "the same precision does not wait"
    first.end()
    assert torch.backends.cudnn.conv.fp32_precision == "ieee", "the other one still trains"
    other = Held("tf32")
    assert not other.open.is_set()
    other.go.set()
    second.end()
    other.end()
    assert (second.seen, other.seen) == ("ieee", "tf32")
    assert torch.backends.cudnn.conv.fp32_precision == "tf32", "restored when the last one ends"


def test_threads_that_nest_the_other_precision_do_not_wait_for_each_other_for_ever() -> None:
    ends = []
    both_in = threading.Barrier(2)

    def run() -> None:
        with fp32_precision("tf32"):
            both_in.wait(60)
            with fp32_precision("ieee"):
                ends.append(torch.backends.cuda.matmul.fp32_precision)
            ends.append(torch.backends.cuda.matmul.fp32_precision)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ends) == ["ieee", "ieee", "tf32", "tf32"]
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


def test_tf32_came_with_ampere_and_not_to_gpus_of_another_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, expected in (((7, 0), False), ((7, 5), False), ((8, 0), True), ((8, 9), True), ((12, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        assert has_tf32("cuda") is expected, capability
    assert not has_tf32("cpu")
    assert not has_tf32("mps")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not has_tf32("cuda")

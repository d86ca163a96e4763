"""The functions of `torch._C` on which `torch.cuda` is built, for the simulated card.

torch.cuda itself is torch's own code: lazy initialization, the refusal of forked children, streams,
events, random states and memory statistics. It calls functions of `torch._C` that only a CUDA build
has; they are set here before torch.cuda is imported (`startup/sitecustomize.py`).
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

# The library that build.py makes.
import simulated_cuda  # type: ignore[import-not-found]

from tests.gpu.simulated.cards import CARDS, Card

CUDA_VERSION, CUDA_NUMBER = "12.6", 12060
CUDNN_VERSION = (9, 5, 1)
CUDNN_NUMBER = 90501
ARCHITECTURES = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_89 sm_90"

# Called with a name whenever the host waits for the card through torch.cuda: counting.py listens.
waiting: list[Callable[[str], None]] = []


@dataclass(frozen=True)
class Properties:
    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    L2_cache_size: int
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    max_threads_per_multi_processor: int = 2048


def _wait(name: str) -> None:
    for listener in waiting:
        listener(name)


def _memory_statistics(device: int) -> dict[str, Any]:
    """Return statistics of the card's caching allocator, nested as torch.cuda expects them."""
    now = simulated_cuda.memory()

    def over_pools(kind: str) -> dict[str, dict[str, int]]:
        row = {
            "current": kind,
            "peak": f"peak_{kind}",
            "allocated": f"allocated_{kind}",
            "freed": f"freed_{kind}",
        }
        return {"all": {name: now[key] for name, key in row.items()}}

    return {
        **{
            name: over_pools("bytes")
            for name in ("allocated_bytes", "reserved_bytes", "active_bytes")
        },
        **{name: over_pools("blocks") for name in ("allocation", "segment", "active")},
        "num_ooms": now["out_of_memory"],
    }


class _Event:
    """The base of torch.cuda.Event, which has the time at which it was recorded.

    The card works synchronously, so an event is complete when it is recorded.
    """

    cuda_event = 0

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, **rest: bool) -> "_Event":
        event = super().__new__(cls)
        event._timed = enable_timing
        event._recorded = None
        return event

    _timed: bool
    _recorded: float | None

    def record(self, stream: Any) -> None:
        self._recorded = time.perf_counter()

    def wait(self, stream: Any) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _wait("torch.cuda.Event.synchronize")

    def elapsed_time(self, end: "_Event") -> float:
        """Return milliseconds; refuse in the words of ATen/cuda/CUDAEvent.h."""
        if not (self._timed and end._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded is None or end._recorded is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end._recorded - self._recorded) * 1e3


def _streams_and_events(torch_c: Any) -> dict[str, Any]:
    """Return the bases of torch.cuda.Stream, of torch's generic one, and of torch.cuda.Event."""

    class _CudaStreamBase(torch_c.Stream):
        def __new__(
            cls, priority: int = 0, stream_id: int = 0, device_index: int = 0, **kind: Any
        ) -> Any:
            if kind.get("device_type"):
                return super().__new__(cls, stream_id=stream_id, device_index=device_index, **kind)
            return super().__new__(cls, device="cuda", priority=priority)

        cuda_stream = 0

        @property
        def priority(self) -> int:
            return 0

        def synchronize(self) -> None:
            _wait("torch.cuda.Stream.synchronize")
            super().synchronize()

    return {"_CudaStreamBase": _CudaStreamBase, "_CudaEventBase": _Event}


def _absent(name: str) -> type:
    """Return a class that stands for what the simulated card lacks, and says so when it is used."""

    def refuse(cls: type, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"the simulated card has no torch._C.{name}")

    return type(name, (), {"__new__": refuse})


def _check_ordinal(device: int) -> None:
    if device > 0:
        raise RuntimeError(
            "CUDA error: invalid device ordinal (this simulated machine has one card, cuda:0)"
        )


def _exchange_device(device: int) -> int:
    _check_ordinal(device)
    return 0 if device >= 0 else -1


def _maybe_exchange_device(device: int) -> int:
    # A function of its own, because torch.compile distinguishes the two.
    return _exchange_device(device)


def _initialize(card: Card) -> Callable[[], None]:
    """Return what the first use of CUDA in a process runs, as torch.cuda asks for it."""

    def initialize() -> None:
        import torch

        from tests.gpu.simulated import cells

        simulated_cuda.initialize()
        torch.cuda.default_generators = (simulated_cuda.default_generator(),)
        properties = Properties(
            card.device_name, *card.capability, card.memory, card.multiprocessors, card.l2_cache
        )
        torch.cuda._get_device_properties = lambda device: properties
        cells.register()

    return initialize


def _make_storages() -> None:
    """Let torch.UntypedStorage(size, device="cuda") work, which needs a CUDA build otherwise."""
    from torch.storage import UntypedStorage

    on_host = UntypedStorage.__new__

    def new(cls: type, *words: Any, device: Any = None, **rest: Any) -> Any:
        import torch

        if device is None:
            return on_host(cls, *words, **rest)
        if torch.device(device).type != "cuda":
            return on_host(cls, *words, device=device, **rest)
        _check_ordinal(torch.device(device).index or 0)
        size = words[0] if words else 0
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    UntypedStorage.__new__ = new


def install(name: str) -> None:
    """Fill in `torch._C`. Called when torch.cuda is about to be imported."""
    assert simulated_cuda.hooks_are_ours(), (
        "torch asked for CUDA's hooks before the simulated card was loaded"
    )
    card = CARDS[name]
    torch_c: Any = sys.modules["torch._C"]
    simulated_cuda.limit_memory(card.memory)

    for key, value in _functions_of(card, torch_c).items():
        setattr(torch_c, key, value)
    _make_storages()
    import torch.version

    torch.version.cuda = CUDA_VERSION
    from tests.gpu.simulated.refusals import REFUSALS

    for refusal in (row for row in REFUSALS if row.holds_for(card.capability)):
        for operation, arguments, words in refusal.rules():
            simulated_cuda.refuse(operation, arguments, words)


def _functions_of(card: Card, torch_c: Any) -> dict[str, Any]:
    """Return what a build of torch for CUDA has in `torch._C`, by name.

    Args:
        card: The simulated card.
        torch_c: The module `torch._C`.
    """

    def none(*_: Any, **__: Any) -> None: ...

    cudart = SimpleNamespace(
        cudaMemGetInfo=lambda device: (card.memory - simulated_cuda.memory()["bytes"], card.memory),
        cudaError=SimpleNamespace(success=0),
        cudaGetErrorString=lambda code: f"CUDA error {code}",
        cudaProfilerStart=none,
        cudaProfilerStop=none,
    )
    nothing = [
        "ipc_collect",
        "sleep",
        "resetAccumulatedMemoryStats",
        "emptyCache",
        "clearCublasWorkspaces",
        "set_cudnn_benchmark_limit",
        "set_sync_debug_mode",
    ]
    return {
        **{f"_cuda_{name}": none for name in nothing},
        **{
            f"_cuda_{name}": lambda *_: 0
            for name in ("getDevice", "get_sync_debug_mode", "getCurrentRawStream")
        },
        "_has_cuda": True,
        "_has_cudnn": True,
        "_cudnn": SimpleNamespace(
            is_cuda=True,
            getVersionInt=lambda: CUDNN_NUMBER,
            getCompileVersion=lambda: CUDNN_VERSION,
            getRuntimeVersion=lambda: CUDNN_VERSION,
        ),
        "_cudart": cudart,
        "_CudaDeviceProperties": Properties,
        **_streams_and_events(torch_c),
        "_cuda_init": _initialize(card),
        "_cuda_isInBadFork": simulated_cuda.in_bad_fork,
        "_cuda_getCompiledVersion": lambda: CUDA_NUMBER,
        "_cuda_getArchFlags": lambda: ARCHITECTURES,
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_setDevice": _check_ordinal,
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _maybe_exchange_device,
        "_cuda_canDeviceAccessPeer": lambda device, peer: False,
        "_cuda_synchronize": lambda: _wait("torch.cuda.synchronize"),
        "_cuda_getCurrentStream": lambda device: tuple(simulated_cuda.current_stream()),
        "_cuda_getDefaultStream": lambda device: (0, 0, simulated_cuda.current_stream()[2]),
        "_cuda_setStream": lambda stream_id, device_index, device_type: (
            simulated_cuda.set_current_stream(stream_id)
        ),
        "_cuda_isCurrentStreamCapturing": lambda: False,
        **{name: _absent(name) for name in ("_CUDAGraph", "_graph_pool_handle")},
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_memoryStats": _memory_statistics,
        "_cuda_resetPeakMemoryStats": lambda device: simulated_cuda.reset_peak_memory(),
        "_cuda_getMemoryFraction": lambda device: simulated_cuda.memory()["limit"] / card.memory,
        "_cuda_setMemoryFraction": lambda part, device: simulated_cuda.limit_memory(
            int(part * card.memory)
        ),
        "_cuda_memorySnapshot": lambda *_: {"segments": [], "device_traces": []},
        "_cuda_get_cudnn_benchmark_limit": lambda: 10,
    }


@contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Give the card no more than `size` bytes above what is allocated now, while the block runs."""
    before = simulated_cuda.memory()
    simulated_cuda.limit_memory(before["bytes"] + size)
    try:
        yield
    finally:
        simulated_cuda.limit_memory(before["limit"])

"""Faults that only a GPU or a compiler shows, with published measurements.

`make gpu` runs them on the GPU of this computer.

Idea: like a fault, a card is one function in two forms. `function(device, fixed, size)` returns a
number; larger is better. If the fault occurs, the number of the fixed form is clearly larger, or
the card's error ends the broken form.

Invariant: a card cites a measurement of the lab only if a record holds it. Evidence is a row of
data/published.csv, with its source and date, or a thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from labkit.bench import Published, published
from labkit.bench.interleaved_timing import host_seconds
from labkit.faults.fault import Card, Kind

# the ratio of the fixed form's number to the broken form's from which a card shows the fault
CLEARLY = 1.15
ROWS_SHOWN = 3


@dataclass(frozen=True)
class GpuCard(Card):
    """A fault that only a GPU shows.

    Attributes:
        function: (device, fixed, size) -> a number, larger is better; `size` is that of a large
            matrix on this device.
        unit: what the number counts.
        evidence: whether a published row shows it.
    """

    function: Callable[[str, bool, int], float]
    unit: str = ""
    evidence: Callable[[Published], bool] = lambda row: False
    kind: Kind = Kind.GPU

    def published(self) -> list[str]:
        """Return others' measurements of it, strongest first, as sentences with source and date."""
        found = [(row.ratio, row) for row in published() if row.ratio and self.evidence(row)]
        # a ratio of 1/2 is as strong as one of 2
        found.sort(key=lambda pair: -abs(math.log(pair[0])))
        return [_sentence(row) for _, row in found[:ROWS_SHOWN]]

    def shows(self, broken: float | None, fixed: float | None) -> bool:
        """Return whether two measurements show the fault.

        A measurement is None if the card's error ended that form.
        """
        if fixed is None:
            return False
        return broken is None or fixed > CLEARLY * broken


def _has_ratio(row: Published, above: float = 0.0, below: float = math.inf) -> bool:
    """Return whether a row has a ratio between two numbers."""
    return row.ratio is not None and above < row.ratio < below


def _sentence(row: Published) -> str:
    what = f"{row.gpu}, {row.workload}"
    if row.batch:
        what += f", batch {row.batch}"
    number = f"{row.value:g} {row.unit} in {row.format}, x {row.ratio:.2f} against {row.reference}"
    return f"{what}: {number}. {row.software}, {row.date}; {row.source}"


def measured(card: GpuCard, device: str, fixed: bool, size: int) -> tuple[float | None, str]:
    """Return the number of one form and "", or None and the error that ended it."""
    try:
        return card.function(device, fixed, size), ""
    except (RuntimeError, NotImplementedError) as error:
        return None, f"{type(error).__name__}: {error}"


def seconds(call: Callable[[], object], device: str) -> float:
    """Return the seconds of a call, until the device has finished its work."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    # two calls to warm up
    host_seconds(call, 2, wait)
    return host_seconds(call, 10, wait)


@partial(
    GpuCard,
    unit="times as fast as FP32",
    evidence=lambda row: row.kind == "training" and _has_ratio(row, below=1.0),
)
def small_work(device: str, fixed: bool, size: int) -> float:
    """There is too little work for half precision to save time.

    Symptom: With autocast a training step takes as long as before, or longer.
    Cause: Tensor Cores make large products fast. A small network waits for its launches, and
        autocast adds casts; data loading, sums and optimizers are no faster either. A card without
        Tensor Cores (GTX 10xx, P100) gains next to nothing at any size.
    Reading: A profiler: many short kernels with gaps between them, few of them products; the GPU is
        not busy.
    Repair: Larger batches and layers, fused optimizers, torch.compile or CUDA graphs; feed the data
        faster. Where the step is short anyway, stay in FP32.
    Reported: tensorflow/tensorflow#40397, tensorflow/tensorflow#34406, open-mmlab/mmcv#742
    """
    width = size if fixed else 64
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(8)]).to(device)
    inputs = torch.randn(width, width, device=device)

    def step(half: bool) -> None:
        with torch.autocast(device, torch.float16, enabled=half):
            loss = model(inputs).square().mean()
        loss.backward()

    return seconds(partial(step, False), device) / seconds(partial(step, True), device)


@partial(
    GpuCard,
    unit="times as fast as FP32",
    evidence=lambda row: (
        row.kind == "inference" and row.batch == "1" and _has_ratio(row, below=0.85)
    ),
)
def batch_of_one(device: str, fixed: bool, size: int) -> float:
    """A batch of one leaves the Tensor Cores without work.

    Symptom: The model was cast to FP16 to answer sooner, and answers later.
    Cause: One input makes products of one row: each weight is read once and used once, and the
        casts come on top.
    Reading: The speed at batch 1 and at batch 64, side by side: only the second one gains.
    Repair: Collect requests into batches; cast the weights once with .half(), not at each call; or
        stay in FP32.
    Reported: NVIDIA/DeepLearningExamples#541, facebookresearch/fairseq#714
    """
    batch = size if fixed else 1
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to(device).eval()
    inputs = torch.randn(batch, 1024, device=device)

    @torch.no_grad()
    def answer(half: bool) -> torch.Tensor:
        with torch.autocast(device, torch.float16, enabled=half):
            outputs: torch.Tensor = model(inputs)
        return outputs

    return seconds(partial(answer, False), device) / seconds(partial(answer, True), device)


@partial(
    GpuCard,
    unit="TFLOP/s",
    # a ratio to FP32 on the same card; others are shares of what a data sheet promises
    evidence=lambda row: (
        row.kind == "product"
        and row.format == "BF16"
        and row.reference == "FP32"
        and _has_ratio(row, below=0.85)
    ),
)
def emulated_bf16(device: str, fixed: bool, size: int) -> float:
    """BF16 is emulated on a card that has no BF16.

    Symptom: torch.cuda.is_bf16_supported() says True, and the training is several times slower than
        in FP16.
    Cause: Before Ampere (V100, T4, GTX) no unit multiplies BF16. torch computes in FP32 and says
        supported.
    Reading: torch.cuda.is_bf16_supported(including_emulation=False) is False; `labkit check` says
        so.
    Repair: FP16 with a GradScaler on such cards.
    Reported: MakazhanAlpamys/Soup#387, pytorch/pytorch#124996, pytorch/pytorch#148322
    """
    dtype = torch.float16 if fixed else torch.bfloat16
    a = torch.randn(size, size, device=device, dtype=dtype)
    return 2 * size**3 / seconds(lambda: a @ a, device) / 1e12


@partial(
    GpuCard,
    unit="TFLOP/s",
    claims=("C16",),
    evidence=lambda row: row.kind == "alignment" and _has_ratio(row, above=1.2),
)
def sides_miss_8(device: str, fixed: bool, size: int) -> float:
    """A side of a product is not a multiple of 8.

    Symptom: One layer (a vocabulary of 50,257, a width of 10,922) is far slower than one that is a
        little larger.
    Cause: Tensor Cores multiply tiles, and memory is read 16 bytes at once, which are 8 numbers of
        FP16. Where a row does not begin at such a place, a slower kernel is taken.
    Reading: The seconds of one layer, at its size and at the next multiple of 8 or 64.
    Repair: Pad the side to a multiple of 8, on A100 and later to 64: 50,257 becomes 50,304.
    Reported: Dao-AILab/flash-attention#1141, https://x.com/karpathy/status/1621578354024677377
    """
    side = size if fixed else size - 6
    a = torch.randn(side, side, device=device, dtype=torch.float16)
    return 2 * side**3 / seconds(lambda: a @ a, device) / 1e12


@partial(GpuCard, unit="step that was taken")
def scaler_for_bf16(device: str, fixed: bool, size: int) -> float:
    """A gradient scaler is used with BF16 weights.

    Symptom: scaler.step ends with an error that names a function which the script does not call.
    Cause: The scaler's kernel knows FP16 and FP32 gradients. BF16 has the exponents of FP32 and
        needs no scaling. On a CPU torch steps such weights without a word.
    Reading: The dtype of the weights: bfloat16; the scaler is enabled.
    Repair: No scaler for BF16: `GradScaler(enabled=dtype == torch.float16)`. And keep FP32 master
        weights.
    Error: "_amp_foreach_non_finite_check_and_unscale_cuda" not implemented for 'BFloat16'
    Error: "_amp_non_finite_check_and_unscale_cuda" not implemented for 'BFloat16'
    Reported: pytorch/pytorch#127176, huggingface/trl#4901, QwenLM/Qwen-VL#372
    """
    model = nn.Linear(64, 64, device=device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, enabled=not fixed)
    loss = model(torch.ones(8, 64, device=device, dtype=torch.bfloat16)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return 1.0


@partial(
    GpuCard,
    unit="bits that are right",
    evidence=lambda row: (
        row.kind == "product" and row.format == "TF32" and _has_ratio(row, above=5.0)
    ),
)
def tf32_for_fp32(device: str, fixed: bool, size: int) -> float:
    """What is taken for FP32 is TF32.

    Symptom: FP32 on the GPU differs from the CPU in the third digit, and FP16 is hardly faster than
        this FP32.
    Cause: On Ampere and later, convolutions use TF32 by default, and products where
        set_float32_matmul_precision allows it: the exponents of FP32 with the 10 stored bits of
        FP16.
    Reading: torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision(); a product
        against one in FP64.
    Repair: Say which of them a comparison uses. `torch.set_float32_matmul_precision('highest')` and
        `torch.backends.cudnn.allow_tf32 = False` where FP32 is meant.
    Reported: huggingface/transformers#15026
    """
    a = torch.randn(size, size, device=device)
    exact = a.double() @ a.double()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if fixed else "high")
    try:
        product = a @ a
    finally:
        torch.set_float32_matmul_precision(before)
    return -float(torch.log2((product - exact).abs().mean() / exact.abs().mean()))


@partial(
    GpuCard,
    unit="times less memory than FP32",
    claims=("C10",),
    evidence=lambda row: (
        row.kind == "memory" and row.format == "FP16" and _has_ratio(row, above=0.8)
    ),
)
def memory_not_halved(device: str, fixed: bool, size: int) -> float:
    """The memory is weights and moments, which stay FP32.

    Symptom: Autocast should halve the memory, and saves a few per cent.
    Cause: FP32 weights, their gradients and two moments are 16 bytes a parameter in FP32 and in
        mixed precision, where the FP16 casts come on top. Only the saved activations are halved.
    Reading: torch.cuda.max_memory_allocated() at batch 1 and at a large batch: only the second one
        gains.
    Repair: Larger batches gain most. Else an optimizer with fewer bytes, checkpointing, or weights
        in BF16 with care.
    Reported: https://huggingface.co/docs/transformers/perf_train_gpu_one
    """
    width, batch = (512, 8 * size) if fixed else (size, 8)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(8)]).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(batch, width, device=device)

    def peak(half: bool) -> float:
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16, enabled=half):
            loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return torch.cuda.max_memory_allocated()

    if device == "cpu":
        raise RuntimeError("torch counts the memory of a GPU only")
    # the first step of Adam allocates its moments
    peak(half=False)
    return peak(half=False) / peak(half=True)


@partial(GpuCard, unit="1: eager and compiled agree", kind=Kind.NOT_FINITE)
def eager_unlike_compiled(device: str, fixed: bool, size: int) -> float:
    """Compiled code rounds less often than eager code.

    Symptom: A model gives NaN or inf, and is right once it is compiled; or the other way round.
    Cause: Eager mode rounds to FP16 after each operation: 300 * 300 is inf. torch.compile joins
        operations and keeps FP32 between them, so that the same line overflows nowhere. Neither is
        promised.
    Reading: The same function both ways, on one input: on torch 2.13 and a CPU, eager gives inf and
        compiled 300. TORCHINDUCTOR_EMULATE_PRECISION_CASTS=1 lets compiled code round as eager code
        does.
    Repair: Mend the eager form: `.float()` before what overflows. Then both agree.
    Reported: pytorch/pytorch#183605, pytorch/pytorch#183607, pytorch/pytorch#183761
    """

    def length(x: torch.Tensor) -> torch.Tensor:
        x = x.float() if fixed else x
        return (x * x).mean(-1).sqrt()

    if device == "cpu":
        raise RuntimeError("to compile takes longer than a rehearsal")
    x = torch.full((8, size), 300.0, device=device, dtype=torch.float16)
    return float(torch.equal(length(x).float(), torch.compile(length)(x).float()))

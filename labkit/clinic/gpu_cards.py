"""Which faults show on a GPU only? The cards: each a function in two forms, and what is known of it."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import nn

from labkit.clinic.on_gpu import GpuCard, seconds
from labkit.clinic.patient import Kind


def small_work(device: str, cured: bool, size: int) -> float:
    """There is too little work for half precision to save time."""
    width = size if cured else 64
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(8)]).to(device)
    inputs = torch.randn(width, width, device=device)

    def step(half: bool) -> None:
        with torch.autocast(device, torch.float16, enabled=half):
            loss = model(inputs).square().mean()
        loss.backward()

    return seconds(partial(step, False), device) / seconds(partial(step, True), device)


def batch_of_one(device: str, cured: bool, size: int) -> float:
    """A batch of one leaves the Tensor Cores without work."""
    batch = size if cured else 1
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to(device).eval()
    inputs = torch.randn(batch, 1024, device=device)

    @torch.no_grad()
    def answer(half: bool) -> torch.Tensor:
        with torch.autocast(device, torch.float16, enabled=half):
            outputs: torch.Tensor = model(inputs)
        return outputs

    return seconds(partial(answer, False), device) / seconds(partial(answer, True), device)


def emulated_bf16(device: str, cured: bool, size: int) -> float:
    """BF16 is emulated on a card that has no BF16."""
    dtype = torch.float16 if cured else torch.bfloat16
    a = torch.randn(size, size, device=device, dtype=dtype)
    return 2 * size**3 / seconds(lambda: a @ a, device) / 1e12


def sides_miss_8(device: str, cured: bool, size: int) -> float:
    """A side of a product is no multiple of 8."""
    side = size if cured else size - 6
    a = torch.randn(side, side, device=device, dtype=torch.float16)
    return 2 * side**3 / seconds(lambda: a @ a, device) / 1e12


def scaler_for_bf16(device: str, cured: bool, size: int) -> float:
    """A gradient scaler is used with BF16 weights."""
    model = nn.Linear(64, 64, device=device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, enabled=not cured)
    loss = model(torch.ones(8, 64, device=device, dtype=torch.bfloat16)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return 1.0


def tf32_for_fp32(device: str, cured: bool, size: int) -> float:
    """What is taken for FP32 is TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if cured else "high")
    a = torch.randn(size, size, device=device)
    product, exact = a @ a, a.double() @ a.double()
    torch.set_float32_matmul_precision(before)
    return -float(torch.log2((product - exact).abs().mean() / exact.abs().mean()))


def memory_not_halved(device: str, cured: bool, size: int) -> float:
    """The memory is weights and moments, which stay FP32."""
    width, batch = (512, 8 * size) if cured else (size, 8)
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
    peak(half=False)  # Adam makes its moments
    return peak(half=False) / peak(half=True)


def eager_unlike_compiled(device: str, cured: bool, size: int) -> float:
    """Compiled code rounds less often than eager code."""

    def length(x: torch.Tensor) -> torch.Tensor:
        x = x.float() if cured else x
        return (x * x).mean(-1).sqrt()

    if device == "cpu":
        raise RuntimeError("to compile takes longer than a rehearsal")
    x = torch.full((8, size), 300.0, device=device, dtype=torch.float16)
    return float(torch.equal(length(x).float(), torch.compile(length)(x).float()))


@cache
def gpu_cards() -> dict[str, GpuCard]:
    """Return every card by its id.

    >>> len(gpu_cards()), gpu_cards()["scaler_for_bf16"].title
    (8, 'A gradient scaler is used with BF16 weights.')
    """
    return {card.id: card for card in CARDS}


CARDS = (
    GpuCard(
        measure=small_work,
        unit="times as fast as FP32",
        symptom="With autocast a training step takes as long as before, or longer.",
        cause=(
            "Tensor Cores make large products fast. A small network waits for its launches, and autocast adds casts; "
            "data loading, sums and optimizers are no faster either. A card without Tensor Cores (GTX 10xx, P100) "
            "gains next to nothing at any size."
        ),
        reading="A profiler: many short kernels with gaps between them, few of them products; the GPU is not busy.",
        repair=(
            "Larger batches and layers, fused optimizers, torch.compile or CUDA graphs; feed the data faster. Where "
            "the step is short anyway, stay in FP32."
        ),
        threads=("tensorflow/tensorflow#40397", "tensorflow/tensorflow#34406", "open-mmlab/mmcv#742"),
        evidence=lambda row: row.kind == "training" and (row.ratio or 9) < 1.0,
    ),
    GpuCard(
        measure=batch_of_one,
        unit="times as fast as FP32",
        symptom="The model was cast to FP16 to answer sooner, and answers later.",
        cause="One input makes products of one row: each weight is read once and used once, and the casts come on top.",
        reading="The speed at batch 1 and at batch 64, side by side: only the second one gains.",
        repair=(
            "Collect requests into batches; cast the weights once with .half(), not at each call; or stay in FP32."
        ),
        threads=("NVIDIA/DeepLearningExamples#541", "facebookresearch/fairseq#714"),
        evidence=lambda row: row.kind == "inference" and row.batch == "1" and (row.ratio or 9) < 0.85,
    ),
    GpuCard(
        measure=emulated_bf16,
        unit="TFLOP/s",
        symptom="torch.cuda.is_bf16_supported() says True, and the training is several times slower than in FP16.",
        cause="Before Ampere (V100, T4, GTX) no unit multiplies BF16. torch computes in FP32 and says supported.",
        reading="torch.cuda.is_bf16_supported(including_emulation=False) is False; `labkit doctor` says so.",
        repair="FP16 with a GradScaler on such cards.",
        threads=("MakazhanAlpamys/Soup#387", "pytorch/pytorch#124996", "pytorch/pytorch#148322"),
        evidence=lambda row: row.kind == "product" and row.format == "BF16" and (row.ratio or 9) < 1,
    ),
    GpuCard(
        measure=sides_miss_8,
        unit="TFLOP/s",
        symptom="One layer (a vocabulary of 50,257, a width of 10,922) is far slower than one that is a little larger.",
        cause=(
            "Tensor Cores multiply tiles, and memory is read 16 bytes at once, which are 8 numbers of FP16. Where a "
            "row does not begin at such a place, a slower kernel is taken."
        ),
        reading="The seconds of one layer, at its size and at the next multiple of 8 or 64.",
        repair="Pad the side to a multiple of 8, on A100 and later to 64: 50,257 becomes 50,304.",
        threads=("Dao-AILab/flash-attention#1141", "https://x.com/karpathy/status/1621578354024677377"),
        evidence=lambda row: row.kind == "alignment" and (row.ratio or 0) > 1.2 and "10944" not in row.workload,
        claims=("C16",),
    ),
    GpuCard(
        measure=scaler_for_bf16,
        unit="step that was taken",
        symptom="scaler.step ends with an error that names a function which nobody called.",
        errors=(
            "\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
            "\"_amp_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
        ),
        cause=(
            "The scaler's kernel knows FP16 and FP32 gradients. BF16 has the exponents of FP32 and needs no scaling. "
            "On a CPU torch steps such weights without a word."
        ),
        reading="The dtype of the weights: bfloat16; the scaler is enabled.",
        repair="No scaler for BF16: `GradScaler(enabled=dtype == torch.float16)`. And keep FP32 master weights.",
        threads=("pytorch/pytorch#127176", "huggingface/trl#4901", "QwenLM/Qwen-VL#372"),
        evidence=lambda row: False,
    ),
    GpuCard(
        measure=tf32_for_fp32,
        unit="bits that are right",
        symptom=("FP32 on the GPU differs from the CPU in the third digit, and FP16 is hardly faster than this FP32."),
        cause=(
            "On Ampere and later, convolutions use TF32 unless they are told not to, and products where "
            "set_float32_matmul_precision allows it: the exponents of FP32 with the 10 stored bits of FP16."
        ),
        reading=(
            "torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision(); a product against one in FP64."
        ),
        repair=(
            "Say which of them a comparison uses. `torch.set_float32_matmul_precision('highest')` and "
            "`torch.backends.cudnn.allow_tf32 = False` where FP32 is meant."
        ),
        threads=("huggingface/transformers#15026",),
        evidence=lambda row: row.kind == "product" and row.format == "TF32" and (row.ratio or 0) > 5,
    ),
    GpuCard(
        measure=memory_not_halved,
        unit="times less memory than FP32",
        symptom="Autocast was said to halve the memory, and a few per cent are saved.",
        cause=(
            "FP32 weights, their gradients and two moments are 16 bytes a parameter in FP32 and in mixed precision, "
            "where the FP16 casts come on top. Only what is kept of the activations is halved."
        ),
        reading="torch.cuda.max_memory_allocated() at batch 1 and at a large batch: only the second one gains.",
        repair=(
            "Larger batches gain most. Else an optimizer with fewer bytes, checkpointing, or weights in BF16 with care."
        ),
        threads=("https://huggingface.co/docs/transformers/perf_train_gpu_one",),
        evidence=lambda row: row.kind == "memory" and row.format == "FP16" and (row.ratio or 0) > 0.8,
        claims=("C10",),
    ),
    GpuCard(
        measure=eager_unlike_compiled,
        unit="1: eager and compiled agree",
        kind=Kind.NOT_FINITE,
        symptom="A model gives NaN or inf, and is right once it is compiled; or the other way round.",
        cause=(
            "Eager mode rounds to FP16 after each operation: 300 * 300 is inf. torch.compile joins operations and "
            "keeps FP32 between them, so that the same line overflows nowhere. Neither is promised."
        ),
        reading=(
            "The same function both ways, on one input: on torch 2.13 and a CPU, eager gives inf and compiled 300. "
            "TORCHINDUCTOR_EMULATE_PRECISION_CASTS=1 lets compiled code round as eager code does."
        ),
        repair="Mend the eager form: `.float()` before what overflows. Then both agree.",
        threads=("pytorch/pytorch#183605", "pytorch/pytorch#183607", "pytorch/pytorch#183761"),
        evidence=lambda row: False,
    ),
)

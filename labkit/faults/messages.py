"""Messages of torch and of other frameworks that no fault of the lab raises: meaning, what to run next, source.

A message is found by a regular expression over `simplified` text, so that line breaks, quotes, paths, numbers, ranks,
timestamps and the frame of a rich traceback make no difference. `cards` are the nearest faults of the lab.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FROM_PASTED = {  # what a pasted text has between the words of a message -> what stands there instead
    r"\x1b\[[\d;]*m": "",  # colours of a terminal
    r"\[(?:rank)?\d+\]:|(?m:^[ \t]*(?:[>|]|E(?=[ \t]))[ \t]*)|[│╭╰╮╯─❱]": " ",
    r"['\"`‘’“”\\]": "",
    r"\b(?:struct )?(?:c10|at|torch|torch\.cuda)(?:::|\.)": "",
    r"\s+": " ",
}


@dataclass(frozen=True)
class Message:
    """A message that is not a card's own.

    words    as it was written in the source
    pattern  finds it in simplified text
    means    what it says about precision
    next     what to run or to change
    cards    the nearest cards, by id
    source   the thread where it was read: owner/repository#number
    date     of that post, as far as the thread shows it
    """

    words: str
    pattern: str
    means: str
    next: str
    cards: tuple[str, ...]
    source: str
    date: str = ""


def simplified(text: str) -> str:
    r"""Return a pasted text in small letters, without quotes, frames, ranks and line breaks.

    >>> simplified("[rank0]: expected scalar\n[rank0]:  type `c10::Half`")
    'expected scalar type half'
    """
    for pattern, instead in FROM_PASTED.items():
        text = re.sub(pattern, instead, text)
    return text.lower().strip()


def messages_in(text: str) -> list[Message]:
    """Return the messages that a text holds, in the order of the table."""
    searched = simplified(text)
    return [message for message in MESSAGES if re.search(message.pattern, searched)]


DIAGNOSE = "`labkit diagnose train.py` names the first operation and line that gives inf or NaN."
WATCH = (
    "`labkit watch train.py` shows the skipped steps, the layer that overflows and the safe scales."
)
SKIPS = (
    "A gradient held inf or NaN, so the scaler left this step out and lowered its scale. Now and then, or at the "
    "beginning, that is how it finds the scale; at every step, something else makes inf or NaN."
)
AT_THE_BOTTOM = (
    "The scale fell to its lowest value and gradients still hold inf or NaN. No scale cures that: they come from the "
    "forward pass, the data or the weights, or the training diverges."
)
TWO_DTYPES = (
    "An operation received tensors of two dtypes. Autocast casts the arguments of the operations on its lists. Outside "
    "its region, or where weights were converted by .half(), the arguments are not cast."
)
ONE_DTYPE = (
    "Run the forward pass inside torch.autocast and keep the weights in FP32, or convert weights and inputs alike: "
    "`x.to(weight.dtype)`. `labkit diagnose train.py` names the line."
)
NO_KERNEL = "torch has no kernel of this operation in half on this device; most often a half model is on the CPU."
FP32_THERE = (
    "Move the model to the GPU, or convert it: `model.float()`. `labkit gpu` says what is found."
)
NOT_FINITE = "inf or NaN was there already. In FP16 a number above 65504 is inf, and inf - inf or 0 * inf is NaN."
OLD_CARD = (
    "BF16 needs compute capability 8.0 (Ampere). This GPU has FP16 only, which needs a loss scale."
)
USE_FP16 = (
    "Ask for FP16 (dtype=half, --fp16) with a GradScaler. `labkit gpu` says what the card can do."
)
OVERFLOWS = ("forward_overflow", "scale_falls_to_zero", "norm_squared_in_half")
DTYPES = ("zeros_of_another_dtype", "function_without_custom_fwd")
SCALER = ("scale_falls_to_zero", "schedule_counts_skips")

MESSAGES = (
    Message(
        "Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 0.03125",
        r"gradient overflow\. ?skipping step",
        SKIPS,
        WATCH,
        SCALER,
        "whai362/PVT#94",
        "2022-02-25",
    ),
    Message(
        "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 128.0, reducing to 64.0",
        r"overflow! rank \S+ skipping step|skipping step\. attempted loss scale",
        SKIPS,
        WATCH,
        SCALER,
        "CarperAI/trlx#342",
        "2023-03-01",
    ),
    Message(
        "Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1",
        r"hysteresis is \S+ reducing hysteresis",
        SKIPS,
        WATCH,
        SCALER,
        "deepspeedai/DeepSpeed#931",
        "2023-04-28",
    ),
    Message(
        "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        r"loss scale already at minimum",
        AT_THE_BOTTOM,
        DIAGNOSE,
        OVERFLOWS,
        "deepspeedai/DeepSpeedExamples#418",
        "2023-04-25",
    ),
    Message(
        "Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        r"minimum loss scale reached",
        AT_THE_BOTTOM,
        DIAGNOSE,
        OVERFLOWS,
        "facebookresearch/fairseq#1529",
        "2019-12-20",
    ),
    Message(
        "overflow detected, setting loss scale to: 0.0625",
        r"overflow detected,? setting loss scale",
        SKIPS,
        WATCH,
        SCALER,
        "facebookresearch/fairseq#512",
        "2019-02-19",
    ),
    Message(
        "Fp16 Grad Scale:  0",
        r"grad scale: ?0(?![.\d])",
        AT_THE_BOTTOM,
        DIAGNOSE,
        OVERFLOWS,
        "deepinsight/insightface#2262",
        "2023-03-14",
    ),
    Message(
        "Attempted step but _scale is None.",
        r"attempted \w+ but _\w+ is none",
        "The scaler stepped, unscaled or updated before it had scaled a loss: scaler.scale(loss) makes the scale.",
        "Call scaler.scale(loss).backward() before scaler.step, in each iteration; restore a scaler's state first.",
        ("no_gradients_this_turn", "scaler_not_saved"),
        "Lightning-AI/pytorch-lightning#18510",
        "2023-09-08",
    ),
    Message(
        "step() has already been called since the last update().",
        r"step\(\) has already been called since",
        "The scaler stepped this optimizer twice without scaler.update() in between, which ends an iteration.",
        "Call scaler.update() once in each iteration, after all steps, also where a step was left out.",
        ("unscaled_twice", "scale_changes_between"),
        "Azure/MS-AMP#45",
        "2023-04-12",
    ),
    Message(
        "No inf checks were recorded prior to update.",
        r"no inf checks were recorded",
        "scaler.update() or step() found no gradient that was looked at: nothing was stepped, or nothing got one.",
        "Call scaler.step(optimizer) before scaler.update(), and skip both where no parameter got a gradient.",
        ("no_gradients_this_turn", "optimizer_made_before"),
        "Haochen-Wang409/HPM#10",
        "2024-05-24",
    ),
    Message(
        "Found dtype Float but expected Half",
        r"found dtype \w+ but expected \w+",
        "A gradient arrived in another dtype than its tensor has: the loss and its target differ in dtype.",
        "Compute the loss in FP32: `loss_fn(output.float(), target.float())`.",
        ("saved_half", *DTYPES),
        "nebuly-ai/optimate#275",
        "2023-03-20",
    ),
    Message(
        "Function _DCNv2Backward returned an invalid gradient at index 0 - expected type torch.cuda.HalfTensor but "
        "got torch.cuda.FloatTensor",
        r"returned an invalid gradient at index \d+ - expected type (?:\S+ but got )?\S*(?:half|bfloat)",
        "The backward of this operation gives a gradient in another dtype than its input has.",
        "Write the function with torch.amp.custom_fwd and custom_bwd, or return `gradient.to(input.dtype)`.",
        ("function_without_custom_fwd", "saved_half"),
        "NVIDIA/apex#488",
        "2019-09-11",
    ),
    Message(
        "expected scalar type Half but found Float",
        r"expected scalar ?type ?\w+ but found \w+",
        TWO_DTYPES,
        ONE_DTYPE,
        DTYPES,
        "ShivamShrirao/diffusers#39",
        "2022-10-18",
    ),
    Message(
        "expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
        r"expected m\w+ and m\w+ to have the same dtype",
        TWO_DTYPES,
        ONE_DTYPE,
        DTYPES,
        "ToTheBeginning/PuLID#162",
        "2024-11-14",
    ),
    Message(
        "mat1 and mat2 must have the same dtype, but got Float and Half",
        r"\w+ and \w+ must have the same dtype",
        TWO_DTYPES,
        ONE_DTYPE,
        DTYPES,
        "OpenBMB/MiniCPM-V#234",
        "2024-06-06",
    ),
    Message(
        "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same",
        r"input type \([^)]*(?:half|bfloat)[^)]*\) and (?:weight|bias) type \([^)]*\) should be the same"
        r"|(?:weight|bias) type \([^)]*(?:half|bfloat)[^)]*\) should be the same",
        TWO_DTYPES,
        ONE_DTYPE,
        DTYPES,
        "Yu-Fangxu/COLD-Attack#20",
        "2025-03-01",
    ),
    Message(
        "Expected tensor for argument #1 'grad_output' to have the same type as tensor for argument #2 'weight'",
        r"expected tensor for argument #\d+ \w+ to have the same type as tensor for argument",
        TWO_DTYPES,
        ONE_DTYPE,
        DTYPES,
        "jik876/hifi-gan#44",
        "2021-11-29",
    ),
    Message(
        "Expected query, key, and value to have the same dtype, but got query.dtype: float",
        r"expected query, key, and value to have the same dtype",
        TWO_DTYPES,
        ONE_DTYPE,
        DTYPES,
        "AUTOMATIC1111/stable-diffusion-webui#10853",
        "2023-05-30",
    ),
    Message(
        "Expected attn_mask dtype to be bool or to match query dtype, but got attn_mask.dtype: c10::Half and "
        "query.dtype: float instead.",
        r"expected attn_mask dtype to be bool or (?:float or )?to match query dtype",
        "The mask was made in one dtype, and queries arrive in another: attention casts neither of them.",
        "Pass a bool mask, or `mask.to(query.dtype)`, made where the dtype of the queries is known.",
        ("mask_constant", *DTYPES),
        "hiyouga/LlamaFactory#3842",
        "2024-05-21",
    ),
    Message(
        "Expected out tensor to have dtype c10::BFloat16, but got float instead",
        r"expected out tensor to have dtype \S+ but got \w+",
        "`out=` names a tensor, and the result has another dtype than it.",
        "Make the buffer of `out=` in the dtype of the operands, or leave `out=` away.",
        DTYPES,
        "unslothai/unsloth#1184",
        "2024-10-26",
    ),
    Message(
        "mixed dtype (CPU): expect parameter to have scalar type of Float",
        r"mixed dtype \(cpu\): expect",
        TWO_DTYPES,
        ONE_DTYPE,
        DTYPES,
        "Comfy-Org/ComfyUI#4954",
        "2024-09-17",
    ),
    Message(
        "Index put requires the source and destination dtypes match, got Half for the destination",
        r"index put requires the source and destination dtypes match",
        "`x[index] = y` casts nothing: under autocast y is half and x, made before, is not, or conversely.",
        "Write `x[index] = y.to(x.dtype)`.",
        ("zeros_of_another_dtype",),
        "hiyouga/LlamaFactory#3807",
        "2024-05-18",
    ),
    Message(
        "scatter(): Expected self.dtype to be equal to src.dtype",
        r"expected self\.dtype to be equal to src\.dtype|expected self and source to have same dtypes",
        "`x.scatter_(..., y)` casts nothing: under autocast y may be half where x, made before, is not.",
        "Write `x.scatter_(dim, index, y.to(x.dtype))`; so too scatter_add_ and masked_scatter_.",
        ("zeros_of_another_dtype",),
        "cvg/glue-factory#76",
        "2024-04-17",
    ),
    Message(
        "\"addmm_impl_cpu_\" not implemented for 'Half'",
        r"\w+ not implemented for (?:half|bfloat16)",
        NO_KERNEL,
        FP32_THERE,
        ("linear_algebra", "halves_by_hand"),
        "huggingface/transformers#27769",
        "2023-12-01",
    ),
    Message(
        "qr is not implemented for type torch.cuda.HalfTensor",
        r"not implemented for type \S*half",
        NO_KERNEL,
        FP32_THERE,
        ("linear_algebra",),
        "pytorch/pytorch#9315",
        "2018-07-10",
    ),
    Message(
        "could not create a primitive descriptor for an LSTM forward propagation primitive",
        r"could not create a primitive descriptor",
        "oneDNN, by which torch computes on a CPU, has an LSTM in FP16 or BF16 for a few processors only.",
        "Train on the GPU, or put the LSTM in a region with autocast(enabled=False), and `.float()` its input.",
        ("linear_algebra",),
        "mittagessen/kraken#610",
        "2024-06-09",
    ),
    Message(
        "Function 'LogSoftmaxBackward' returned nan values in its 0th output.",
        r"returned nan values in its \d+th output",
        "Anomaly mode found the first backward node that gave NaN. A step that a scaler skips has them too.",
        DIAGNOSE,
        ("log_of_epsilon", "forward_overflow", "softmax_by_hand"),
        "kenziyuliu/MS-G3D#36",
        "2021-04-01",
    ),
    Message(
        "Warning: Error detected in SoftmaxBackward. Traceback of forward call that caused the error",
        r"error detected in \w+backward\d*\.",
        "Anomaly mode names the backward node that gave NaN or failed.",
        DIAGNOSE,
        ("softmax_by_hand", "row_all_masked"),
        "QiangAIResearcher/sahp_repo#4",
        "2021-07-19",
    ),
    Message(
        "Loss nan",
        r"\bloss(?: is|:| =|=|) ?(?:nan|inf)\b|\bnan loss\b|(?:nan|inf) loss (?:occurred|detected)",
        NOT_FINITE,
        DIAGNOSE,
        ("forward_overflow", "log_of_epsilon", "mask_constant"),
        "deepinsight/insightface#2262",
        "2023-03-14",
    ),
    Message(
        "NaN or Inf found in input tensor.",
        r"nan or inf found in input tensor",
        NOT_FINITE,
        DIAGNOSE,
        ("forward_overflow", "nan_only_in_eval"),
        "CVMI-Lab/PAConv#29",
        "2021-12-29",
    ),
    Message(
        "probability tensor contains either `inf`, `nan` or element < 0",
        r"probability tensor contains either inf, ?nan",
        NOT_FINITE,
        DIAGNOSE,
        ("softmax_by_hand", "mask_constant", "row_all_masked"),
        "DLLXW/baby-llama2-chinese#33",
        "2023-09-15",
    ),
    Message(
        "A tensor with all NaNs was produced in Unet.",
        r"a tensor with (?:all )?nans was produced",
        NOT_FINITE,
        "Compute this part in FP32 (--no-half, upcast attention); " + DIAGNOSE,
        ("forward_overflow", "nan_only_in_eval"),
        "camenduru/kohya_ss-colab#5",
        "2023-08-11",
    ),
    Message(
        'RuntimeWarning: invalid value encountered in cast images = (images * 255).round().astype("uint8")',
        r"invalid value encountered in cast",
        NOT_FINITE,
        "Decode in FP32, or with weights made for FP16.",
        ("forward_overflow", "nan_only_in_eval"),
        "huggingface/diffusers#2153",
        "2023-01-29",
    ),
    Message(
        "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmStridedBatchedEx(",
        r"cublas_status_not_supported",
        "cuBLAS has no product of these dtypes, sides or strides on this GPU.",
        "`labkit gpu` says which formats the card multiplies. Try FP16 for BF16, contiguous inputs, sides that are "
        "multiples of 8, and the cuBLAS that torch was built with.",
        ("emulated_bf16", "sides_miss_8"),
        "deepspeedai/DeepSpeed#6723",
        "2024-11-07",
    ),
    Message(
        "Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
        r"bfloat16 is only supported on gpus",
        OLD_CARD,
        USE_FP16,
        ("emulated_bf16",),
        "vllm-project/vllm#1157",
        "2023-09-23",
    ),
    Message(
        "WARNING: Casting torch.bfloat16 to torch.float16.",
        r"casting (?:torch\.)?b?float16 to (?:torch\.)?b?float16|float16 is not supported on cpu, casting",
        "The weights were trained in another 16-bit format. In FP16 what is above 65504 becomes inf; in BF16 "
        "three bits of each weight are rounded away.",
        "Ask for the format that the weights have, or compare outputs with FP32's; " + DIAGNOSE,
        ("forward_overflow", "nan_only_in_eval"),
        "vllm-project/vllm#7561",
        "2024-08-15",
    ),
    Message(
        "Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0",
        r"your setup doesnt support bf16",
        OLD_CARD,
        USE_FP16,
        ("emulated_bf16",),
        "tatsu-lab/stanford_alpaca#133",
        "2023-03-24",
    ),
    Message(
        "--tf32 requires Ampere or a newer GPU arch, cuda>=11 and torch>=1.7",
        r"tf32 requires ampere",
        "TF32 is a format of Ampere and later GPUs.",
        "Switch tf32 off.",
        ("tf32_for_fp32",),
        "lm-sys/FastChat#1191",
        "2023-05-11",
    ),
    Message(
        "RuntimeError: GPUs with compute capability below 7.0 are not supported.",
        r"gpus with compute capability below \S+ are not supported",
        "Tensor Cores begin with 7.0 (Volta).",
        "`labkit gpu` says what the card can do.",
        ("small_work",),
        "vllm-project/vllm#1284",
        "2023-10-07",
    ),
    Message(
        "Expected is_sm80 to be true, but got false.",
        r"expected is_sm\w+(?: \|\| is_sm\w+)* to be true",
        "This kernel of flash attention was built for other GPUs.",
        "Use torch's scaled_dot_product_attention with another backend, or another head size.",
        ("emulated_bf16",),
        "pytorch/pytorch#98140",
        "2023-04-12",
    ),
    Message(
        "FlashAttention only support fp16 and bf16 data type",
        r"flash ?attention only supports? fp16 and bf16",
        "Queries, keys or values are FP32: the model was loaded in FP32, or a norm gave FP32.",
        "Run under autocast (fp16=True or bf16=True), or cast the three before the call.",
        DTYPES,
        "unslothai/unsloth#827",
        "2024-07-29",
    ),
    Message(
        "fp16 mixed precision requires a GPU",
        r"fp16 mixed precision requires a gpu",
        "Accelerate found no GPU: torch is a CPU build, or sees no device.",
        "`labkit check` says what torch sees; on a CPU use bf16 or none.",
        ("small_work",),
        "bmaltais/kohya_ss#378",
        "2023-03-14",
    ),
    Message(
        "FP16 Mixed precision training with AMP or APEX (`--fp16`) and FP16 half precision evaluation "
        "(`--fp16_full_eval`) can only be used on CUDA devices.",
        r"can only be used on cuda devices",
        "The Trainer found no GPU.",
        "`labkit check` says what torch sees; on a CPU use --bf16 or none.",
        ("small_work",),
        "hiyouga/ChatGLM-Efficient-Tuning#9",
        "2023-04-17",
    ),
    Message(
        "MatMul8bitLt: inputs will be cast from torch.float32 to float16 during quantization",
        r"matmul8bitlt: inputs will be cast",
        "An 8-bit layer multiplies in FP16 and casts its inputs.",
        "It is a note; `labkit watch train.py` shows whether FP16 loses anything there.",
        ("forward_overflow",),
        "hiyouga/LlamaFactory#3807",
        "2024-05-18",
    ),
    Message(
        "TypeError: Got unsupported ScalarType BFloat16",
        r"got unsupported scalartype bfloat16",
        "numpy has no BF16.",
        "Convert first: `tensor.float().numpy()`.",
        ("average_in_bf16",),
        "pytorch/pytorch#110285",
        "2023-09-29",
    ),
    Message(
        "FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated.",
        r"cuda\.amp\.\w+\(args\.\.\.\) is deprecated|amp\.\w+\(args\.\.\.\) is deprecated",
        "The same class has another name now; nothing is wrong with the numbers.",
        "Write torch.amp.GradScaler('cuda').",
        ("scaler_not_saved",),
        "karpathy/nanoGPT#635",
        "2025-09-03",
    ),
    Message(
        "MisconfigurationException: Precision '16-mixed' is invalid.",
        r"precision \S+ is invalid",
        "Lightning 1 wrote 16 and bf16 for what Lightning 2 calls 16-mixed and bf16-mixed.",
        "Write precision=16, or install Lightning 2.",
        ("halves_by_hand",),
        "bytedance/MVDream-threestudio#5",
        "2023-10-07",
    ),
)

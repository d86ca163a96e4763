"""Messages about what a device or an autocast region can do: BF16, TF32, FP8, and no GPU."""

from __future__ import annotations

from labkit.faults.messages.message import Message, any_of
from labkit.faults.messages.remedies import (
    DIAGNOSE,
    HALF_AND_FLOAT,
    OLD_CARD,
    USE_FP16,
)

DEVICES = (
    Message(
        words="Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
        pattern=r"bfloat16 is only supported on gpus",
        means=OLD_CARD,
        next=USE_FP16,
        cards=("emulated_bf16",),
        source="vllm-project/vllm#1157",
        date="2023-09-23",
    ),
    Message(
        words=(
            "Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with "
            "cuda>=11.0"
        ),
        pattern=r"your setup doesnt support bf16",
        means=OLD_CARD,
        next=USE_FP16,
        cards=("emulated_bf16",),
        source="tatsu-lab/stanford_alpaca#133",
        date="2023-03-24",
    ),
    Message(
        words="--tf32 requires Ampere or a newer GPU arch, cuda>=11 and torch>=1.7",
        pattern=r"tf32 requires ampere",
        means="TF32 is a format of Ampere and later GPUs.",
        next="Switch tf32 off.",
        cards=("tf32_for_fp32",),
        source="lm-sys/FastChat#1191",
        date="2023-05-11",
    ),
    Message(
        words="RuntimeError: GPUs with compute capability below 7.0 are not supported.",
        pattern=r"gpus with compute capability below \S+ are not supported",
        means="Tensor Cores begin with 7.0 (Volta).",
        next="`labkit gpu` says what the card can do.",
        cards=("small_work",),
        source="vllm-project/vllm#1284",
        date="2023-10-07",
    ),
    Message(
        words="Expected is_sm80 to be true, but got false.",
        pattern=r"expected is_sm\w+(?: \|\| is_sm\w+)* to be true",
        means="This kernel of flash attention was built for other GPUs.",
        next="Use torch's scaled_dot_product_attention with another backend, or another head size.",
        cards=("emulated_bf16",),
        source="pytorch/pytorch#98140",
        date="2023-04-12",
    ),
    Message(
        words="FlashAttention only support fp16 and bf16 data type",
        pattern=r"flash ?attention only supports? fp16 and bf16",
        means="Queries, keys or values are FP32: the model was loaded so, or a norm gave FP32.",
        next="Run under autocast (fp16=True or bf16=True), or cast the three before the call.",
        cards=HALF_AND_FLOAT,
        source="unslothai/unsloth#827",
        date="2024-07-29",
    ),
    Message(
        words="fp16 mixed precision requires a GPU",
        pattern=r"fp16 mixed precision requires a gpu",
        means="Accelerate found no GPU: torch is a CPU build, or sees no device.",
        next="`labkit check` says what torch sees; on a CPU use bf16 or none.",
        cards=("small_work",),
        source="bmaltais/kohya_ss#378",
        date="2023-03-14",
    ),
    Message(
        words=(
            "FP16 Mixed precision training with AMP or APEX (`--fp16`) and FP16 half precision "
            "evaluation (`--fp16_full_eval`) can only be used on CUDA devices."
        ),
        pattern=r"can only be used on cuda\b",
        means="The Trainer found no GPU.",
        next="`labkit check` says what torch sees; on a CPU use --bf16 or none.",
        cards=("small_work",),
        source="hiyouga/ChatGLM-Efficient-Tuning#9",
        date="2023-04-17",
    ),
    Message(
        words="WARNING: Casting torch.bfloat16 to torch.float16.",
        pattern=any_of(
            r"casting (?:torch\.)?b?float16 to (?:torch\.)?b?float16",
            r"float16 is not supported on cpu, casting",
        ),
        means=(
            "The weights were trained in another 16-bit format. In FP16 what is above 65504 "
            "becomes inf; in BF16 three bits of each weight are rounded away."
        ),
        next="Ask for the format that the weights have, or compare outputs with FP32's; "
        + DIAGNOSE,
        cards=("forward_overflow", "nan_only_in_eval"),
        source="vllm-project/vllm#7561",
        date="2024-08-15",
    ),
    Message(
        words=(
            "UserWarning: torch.cuda.amp.GradScaler is enabled, but CUDA is not available. "
            "Disabling."
        ),
        pattern=any_of(
            r"gradscaler is enabled, but \w+ is not available",
            r"cuda is not available(?: or torch_xla is imported)?\. ?disabling(?: autocast)?",
            r"but cuda is not available\.? ?disabling",
            r"cuda initialization: .{0,80}no nvidia driver",
            r"torch not compiled with cuda enabled",
            r"found no nvidia driver",
            r"no cuda gpus are available",
            r"attempting to deserialize object on a cuda device",
        ),
        means=(
            "torch sees no GPU, so autocast or the scaler switched itself off: what follows runs "
            "in FP32, and nothing else says so."
        ),
        next=(
            '`labkit check` says what torch sees. On a CPU write torch.autocast("cpu", '
            'dtype=torch.bfloat16) and torch.amp.GradScaler("cpu") for FP16.'
        ),
        cards=("small_work", "halves_by_hand"),
        source="torch 2.13.0",
        causes=(
            "torch is a CPU build - `torch.version.cuda` is None: install the build for CUDA",
            "the driver is missing or too old, or CUDA_VISIBLE_DEVICES hides the card - "
            "nvidia-smi fails, or lists a card that torch does not see",
            "the script runs where there is no GPU, on purpose - take the device from the "
            "tensors: torch.autocast(x.device.type)",
        ),
    ),
    Message(
        words=(
            "In CPU autocast, but the target dtype is not supported. Disabling autocast. CPU "
            "Autocast only supports dtypes of torch.bfloat16, torch.float16 currently."
        ),
        pattern=any_of(
            r"in \w+ autocast, but the target dtype is not supported",
            r"autocast only supports dtypes? of",
        ),
        means=(
            "The dtype of the region is none that it casts to, so the region is off and "
            "everything runs as it is. FP32 as dtype is such a one: it does not make a region "
            "FP32."
        ),
        next=(
            "Pass torch.float16 or torch.bfloat16. For FP32 inside a region write "
            "autocast(enabled=False) and cast the inputs, `.float()`."
        ),
        cards=("switched_off_but_half",),
        source="hvoss-tech/AutoForge#55",
        date="2026-05-06",
        causes=(
            "dtype=torch.float32 or a variable that is FP32 on this machine - make it "
            "enabled=False",
            "an older torch, whose CPU or MPS autocast has one dtype - the second line names "
            "what it has",
        ),
    ),
    Message(
        words=(
            "ptxas /tmp/compile-ptx-src, line 48; error : Feature '.bf16' requires .target sm_80 "
            "or higher"
        ),
        pattern=any_of(
            r"current cuda device does not support bfloat16",
            r"does not support bfloat16 compilation natively",
            r"feature \S+(?: with \S+)? requires \.?target sm_(?:80|89|90)",
            r"bf16 is (?:only supported|not supported) (?:on|by|in) .{0,40}(?:gpu|device"
            r"|card|cuda)",
            r"bfloat16 is not supported on (?:this|your)",
            r"skipframe: bf16 is not supported",
        ),
        means=OLD_CARD,
        next=USE_FP16,
        cards=("emulated_bf16",),
        source="pytorch/pytorch#118581",
        date="2024-01-29",
        causes=(
            "the whole model is BF16 - `{p.dtype for p in model.parameters()}`: load it in "
            "FP16, and compare its outputs with FP32's, since BF16 weights may exceed 65504",
            "only compiled code fails - eager BF16 is emulated, slowly; torch.compile and "
            "Triton have no such emulation",
            "ptxas names sm_80 - the kernel was compiled for this older card: FP16 instead",
        ),
    ),
    Message(
        words=(
            "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 "
            "dtypes are ('fp8e4b15', 'fp8e5')"
        ),
        pattern=any_of(
            r"fp8e4nv (?:not supported in this architecture|data type is not supported)",
            r"insufficient for fp8 mixed precision",
            r"fp8 (?:is not available on this machine|is only supported on|computation is"
            r" not supported|training is not supported)",
            r"device compute capability 8\.9 or higher required",
            r"requires (?:a )?(?:gpu )?(?:hopper|ada)",
        ),
        means=(
            "FP8 E4M3 needs compute capability 8.9 (Ada) or 9.0 (Hopper). fp8e4nv is Triton's "
            "name of float8_e4m3fn."
        ),
        next=(
            "Take FP16 or BF16 on this card, or weights quantized to integers. `labkit gpu` says "
            "what the card can do."
        ),
        cards=("emulated_bf16", "tf32_for_fp32"),
        source="flagos-ai/FlagTree#1005",
        date="2026-08-18",
        causes=(
            "the card is older than 8.9 - no setting helps",
            "only E4M3 is missing - E5M2 (fp8e5) is among the supported, with 2 bits for the "
            "fraction",
            "the library for it is not installed - the text names transformer_engine, torchao "
            "or MS-AMP",
        ),
    ),
    Message(
        words="Using `fp8` precision requires `transformer_engine` or `MS-AMP` to be installed.",
        pattern=any_of(
            r"using fp8 precision requires",
            r"no fp8-compatible backend was installed",
            r"fp8 \(either .{0,60}is not installed",
            r"ms-amp (?:was not found|is deprecated)",
            r"passing in an fp8 configuration requires",
            r"fp8_format must be",
            r"requires transformer_engine to be installed",
            r"mxfp8 block scaling",
            r"ms-amp (?:and|\+|is not|please)",
            r"(?:with|for) ms-amp",
            r"fp8recipekwargs",
            r"does not support fp8",
            r"doesnt support fp8",
            r"msamp (?:or|is)",
        ),
        means="FP8 training needs a library that keeps a scale beside each tensor.",
        next=(
            "Install transformer_engine or torchao and set mixed_precision='fp8', or train in BF16."
        ),
        cards=("emulated_bf16",),
        source="accelerate 1.15.0",
    ),
    Message(
        words="fp16 mixed precision requires a device in ('cuda', 'xpu', 'npu') (not cpu).",
        pattern=any_of(
            r"(?:fp16|bf16|fp8) mixed precision (?:requires|with)",
            r"grad scaler with mps device requires",
            r"cannot use (?:fp16|\{low_precision_dtype\}|low precision) without",
            r"accelerator is not detected, cannot perform low precision",
            r"type fp16 is not supported on your device",
            r"cannot combine --fp16 and --tpu",
        ),
        means="The framework found no device, or no version of torch, that has this precision.",
        next=(
            "`labkit check` says what torch sees. On a CPU use bf16 or none; on Apple's GPUs FP16 "
            "needs torch 2.8 for its scaler, and BF16 torch 2.6."
        ),
        cards=("small_work", "emulated_bf16"),
        source="accelerate 1.15.0",
        causes=(
            "torch is a CPU build, or the driver is missing - torch.cuda.is_available() is False",
            "the card is older than Ampere - the text asks for bf16, and cuda is available",
            "torch is too old - the text names a version",
        ),
    ),
    Message(
        words=(
            "You passed `Trainer(accelerator='cpu', precision='16-mixed')` but AMP with fp16 is "
            "not supported on CPU. Using `precision='bf16-mixed'` instead."
        ),
        pattern=r"amp with fp16 is not supported on cpu",
        means=(
            "Lightning trains in BF16 here, which has no loss scale and 8 bits of precision: what "
            "is seen is not what FP16 does on a GPU."
        ),
        next=(
            "Ask for bf16-mixed on purpose, or train on a GPU; labkit's engine and torch.amp's "
            "scaler do FP16 on a CPU."
        ),
        cards=("small_work",),
        source="lightning 2.6.6",
    ),
    Message(
        words="Expected `device_type` of type `str`, got: `<class 'torch.device'>`",
        pattern=any_of(
            r"expected device_type of type str",
            r"unsupported autocast device_type",
            r"autocast device_type must be",
            r"autocast\.__init__\(\) missing 1 required positional argument: device_type",
            r"custom_[fb]wd\(\) (?:missing 1 required keyword-only argument: device_type"
            r"|got an unexpected)",
            r"autocast\(\)\(func\) requires a callable",
            r"__init__\(\) got an unexpected keyword argument device_type",
        ),
        means=(
            "The call of autocast, or of custom_fwd, names its device in another way than this "
            "torch reads."
        ),
        next=(
            "Write torch.autocast(device_type=x.device.type, dtype=torch.float16) and "
            'torch.amp.custom_fwd(device_type="cuda").'
        ),
        cards=("function_without_custom_fwd",),
        source="torch 2.13.0",
        causes=(
            'a torch.device or an index was passed - "cuda", not "cuda:0" or torch.device("cuda")',
            "code for torch.cuda.amp.autocast() was moved to torch.autocast - the device is "
            "its first argument",
            "a dtype or a flag was passed first - name the arguments",
            "torch is older than 1.10 - it knows torch.cuda.amp.autocast alone",
        ),
    ),
    Message(
        words="TypeError: BFloat16 is not supported on MPS",
        pattern=any_of(
            r"b?float\d+ is (?:not|only) supported on (?:mps|macos)",
            r"cannot convert a mps tensor to float64",
            r"mps (?:framework|device) doesnt support (?:float64|bfloat16)",
            r"autocast is not yet supported on mps",
        ),
        means="Apple's GPUs have no FP64, and BF16 from macOS 14 on.",
        next='Use FP16 or FP32 there: `tensor.float()` before `.to("mps")`.',
        cards=("emulated_bf16", "gradcheck_in_fp32"),
        source="oobabooga/textgen#5216",
        date="2024-01-09",
    ),
    Message(
        words=(
            "You are using a CUDA device ('NVIDIA A100-SXM4-40GB') that has Tensor Cores. To "
            "properly utilize them, you should set `torch.set_float32_matmul_precision('medium' | "
            "'high')`"
        ),
        pattern=any_of(
            r"that has tensor cores\. to properly utilize them",
            r"tensorfloat32 tensor cores .{0,60}available but not enabled",
            r"without mixed precision requires tf32 to be efficient",
            r"setting tf32 in \S+ backends",
        ),
        means=(
            "A note: products of FP32 tensors could run in TF32, which keeps 11 bits of each "
            "operand, as FP16 does."
        ),
        next=(
            'Set torch.set_float32_matmul_precision("high") where 11 bits suffice; under autocast '
            "most products are half already, and it changes little."
        ),
        cards=("tf32_for_fp32",),
        source="lightning 2.6.6",
    ),
    Message(
        words=(
            "NOTE: your device does NOT support faster training with --fp16 or --amp, please "
            "switch to FP32 which is likely to be faster"
        ),
        pattern=any_of(
            r"your device (?:does not|may) support faster training",
            r"fp16 training is not recommended on this",
            r"gpu does not have (?:fast fp16|tensor cores)",
        ),
        means=(
            "A note on speed: Tensor Cores begin with compute capability 7.0. Without them FP16 "
            "saves memory, and time seldom."
        ),
        next="`labkit gpu` measures both formats on the card.",
        cards=("small_work",),
        source="fairseq 0.12.2",
    ),
    Message(
        words=(
            "tf32 is not one of 'highest', 'high', or 'medium'; the current "
            "setFloat32MatmulPrecision call has no effect."
        ),
        pattern=any_of(
            r"is not one of highest, high,? or medium",
            r"mix of the legacy and new apis",
            r"please use the new api settings to control tf32",
            r"allow_tf32_new is enabled",
        ),
        means=(
            "The precision of FP32 products is set in two ways, by allow_tf32 and by "
            "set_float32_matmul_precision or fp32_precision, and one of them has no effect."
        ),
        next=(
            'Use one way only: torch.backends.cuda.matmul.fp32_precision = "tf32" or "ieee", or '
            'set_float32_matmul_precision("high").'
        ),
        cards=("tf32_for_fp32",),
        source="torch 2.13.0",
    ),
)

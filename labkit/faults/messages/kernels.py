"""Messages about operations without a kernel for a dtype: FFT, algebra, complex, FP8, numpy."""

from __future__ import annotations

from labkit.faults.messages.message import Message, any_of
from labkit.faults.messages.remedies import (
    FP32_THERE,
    IN_FP32,
    NO_KERNEL,
)

KERNELS = (
    Message(
        words=(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half "
            "precision, but got a signal size of[192]"
        ),
        pattern=any_of(
            r"cufft only supports dimensions whose sizes are powers of two",
            r"cufft doesnt support signals of half type",
            r"mkl fft doesnt support tensors of type",
            r"unsupported dtype (?:half|bfloat16)\b",
            r"(?:r?fftn?|stft)\(.{0,200}\) ?: expected a tensor of floating point",
        ),
        means=(
            "Fourier transforms in half exist on CUDA for lengths that are powers of two, and "
            "nowhere for BF16 or on a CPU. Autocast has no list for them, so a half activation "
            "arrives as it is; and a sum over a signal overflows FP16 early."
        ),
        next=(
            "Cast before the transform, and back after: `with torch.autocast(device, "
            "enabled=False): y = torch.fft.rfft(x.float())`."
        ),
        cards=("linear_algebra", "forward_overflow"),
        source="thuml/Time-Series-Library#761",
        date="2025-08-04",
        causes=(
            "x comes from a layer under autocast - cast x, since `enabled=False` alone casts "
            "nothing",
            "the model or the input was converted by .half() - also in evaluation, without "
            "autocast",
            "a mel spectrogram or STFT of the loss runs in the region - move the loss out of "
            "it, or cast its input",
        ),
    ),
    Message(
        words="linalg.inv: Low precision dtypes not supported. Got Half",
        pattern=any_of(
            r"low precision dtypes not supported\. got",
            r"this function doesnt handle types other than float and double",
            r"expected a tensor with \d or more dimensions of float, double",
            r"supports floating point, complex, and integer tensors, but got (?:half|bfloat16)",
            r"array type float16 is unsupported in linalg",
            r"input tensor must be either float or double dtype",
            r"expected self to be a floating-point or complex tensor, but got (?:half"
            r"|bfloat16)",
            r"expects float32 or float64 dtypes, got",
        ),
        means="Decompositions, inverses and quantiles are computed in FP32 or FP64 only.",
        next=IN_FP32,
        cards=("linear_algebra",),
        source="torch 2.13.0",
        causes=(
            "the operand comes from a layer under autocast - it is half there and FP32 "
            "outside the region",
            "the model was converted by .half() or loaded in BF16 - a parameter or a buffer "
            "is the operand",
        ),
    ),
    Message(
        words=(
            "Expected both inputs to be Half, Float or Double tensors but got BFloat16 and BFloat16"
        ),
        pattern=any_of(
            r"expected both inputs to be half, float or double tensors but got",
            r"view_as_complex is only supported for half, float and double tensors",
            r"complexhalf support is experimental",
            r"not implemented for complex(?:half|bfloat16)",
            r"unknown complex scalartype for (?:half|bfloat16)",
            r"conversion to half from complexhalf",
        ),
        means=(
            "There are no complex numbers of BF16 parts, and few operations for those of FP16. "
            "Rotary embeddings written with complex numbers meet this."
        ),
        next=(
            "Rotate in FP32 and cast back: "
            "`torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))`, then "
            "`.type_as(x)`; keep the table of frequencies in FP32."
        ),
        cards=("positions_in_half", "linear_algebra"),
        source="pytorch/pytorch#95100",
        date="2023-02-17",
        causes=(
            "activations are BF16 under autocast or in a converted model - cast before "
            "view_as_complex",
            "`model.bfloat16()` or `.to(dtype)` converted the buffer of frequencies - keep it "
            "out of the conversion; positions in 16 bits are wrong too",
        ),
    ),
    Message(
        words="Casting complex values to real discards the imaginary part",
        pattern=r"casting complex values to real discards the imaginary part",
        means=(
            "A complex tensor was converted to a real dtype: `model.half()`, `.to(dtype)` or "
            "autocast's cast met a complex parameter or buffer, and half of it is gone."
        ),
        next=(
            "Leave complex tensors out of the conversion (`if x.is_floating_point()`), or store "
            "them as real pairs, view_as_real."
        ),
        cards=("halves_by_hand", "positions_in_half"),
        source="torch 2.13.0",
    ),
    Message(
        words="\"add_stub\" not implemented for 'Float8_e4m3fn'",
        pattern=any_of(
            r"\w+ not implemented for float8\w*",
            r"expected mat\d to be float8 matrix got",
            r"invalid scaling configuration",
            r"got unsupported scalartype float8\w*",
            r"promotion for float8 types is not supported",
            r"does not support float8",
            r"float8\w* to the mps backend",
            r"float8\w* (?:is|are) not supported",
        ),
        means=(
            "FP8 is a format to store and to multiply in, with a scale beside it: torch has casts "
            "for it and scaled products, and no other operation."
        ),
        next=(
            "Convert to compute, `x.to(torch.bfloat16)`, and use a library of scaled layers "
            "(torchao, Transformer Engine) for FP8 training."
        ),
        cards=("linear_algebra", "emulated_bf16"),
        source="torch 2.13.0",
    ),
    Message(
        words="TypeError: data type 'bfloat16' not understood",
        pattern=any_of(
            r"data type b?float\d+\w* not understood",
            r"cannot load safetensors of unknown dtype",
            r"unsupported dtype in dltensor",
            r"unsupported type bfloat16",
            r"cant convert bfloat16 to numpy",
            r"(?:safetensor\w*|deserializ\w+).{0,80}(?:bf16|f8_e\w+)",
            r"cant convert np\.ndarray of type",
        ),
        means=(
            "numpy has no BF16 and no FP8, so neither has what goes through numpy: safetensors' "
            "numpy loader, DLPack to numpy, a data set."
        ),
        next=(
            "Load with torch (`safetensors.torch.load_file`) and convert there: "
            "`tensor.float().numpy()`."
        ),
        cards=("average_in_bf16",),
        source="torch 2.13.0",
    ),
    Message(
        words="softmax with half to float conversion is not supported on CPU",
        pattern=r"softmax with half to float conversion is not supported",
        means=(
            "On CUDA one kernel reads half and writes FP32; on the CPU there is none, so a graph "
            "or a model that was captured for a GPU fails there."
        ),
        next="Write `torch.softmax(x.float(), dim)`.",
        cards=("softmax_by_hand", "linear_algebra"),
        source="torch 2.13.0",
    ),
    Message(
        words="Quantize only works on Float Tensor, got Half",
        pattern=r"quantize only works on float tensor, got",
        means="Quantization reads FP32 weights and activations.",
        next="Convert the model first: `model.float()`, then quantize.",
        cards=("halves_by_hand",),
        source="torch 2.13.0",
    ),
    Message(
        words="atomic_add does not support bf16",
        pattern=r"atomic_add does not support (?:bf16|fp16)",
        means=(
            "A compiled scatter or index_add adds by atomics, which older versions of Triton do "
            "not have in BF16."
        ),
        next="Add in FP32: make the buffer FP32 and cast once at the end. It is also more exact.",
        cards=("zeros_of_another_dtype", "eager_unlike_compiled"),
        source="pytorch/pytorch#97016",
        date="2023-03-17",
    ),
    Message(
        words=(
            "No operator found for `memory_efficient_attention_forward` with inputs: query: "
            "shape=(1, 257, 6, 64) (torch.float32)"
        ),
        pattern=r"no operator found for memory_efficient_attention",
        means=(
            'xFormers lists, kernel by kernel, why none takes these inputs. The lines behind "is '
            'not supported because" have the reason.'
        ),
        next=(
            "Read the last kernel of the list; cast for dtype, slice a padded mask for stride, "
            "and otherwise use torch's scaled_dot_product_attention."
        ),
        cards=("emulated_bf16", "sides_miss_8"),
        source="facebookresearch/xformers#1143",
        date="2024-11-05",
        causes=(
            "dtype=torch.float32 - flash kernels take FP16 and BF16; run under autocast, or "
            "cast the three",
            'dtype=torch.bfloat16 beside "requires device with capability > (8, 0)" - the '
            "card has FP16 only",
            "device=cpu - the tensors are on the CPU, or xFormers was built without CUDA",
            "attn_bias.stride - its last side is not a multiple of 8",
        ),
    ),
    Message(
        words="FWD: Unsupported hidden_size or types: 5120BFloat16FloatFloatFloatFloat",
        pattern=r"unsupported hidden_size or types",
        means=(
            "A fused norm was built for some combinations of dtypes: of weight, input, residual, "
            "output and compute, in this order."
        ),
        next=(
            "Cast the input (the second type) to a combination that it has, such as that of the "
            "weight, or use torch's layer_norm."
        ),
        cards=("forward_overflow",),
        source="Dao-AILab/flash-attention#549",
        date="2023-09-18",
    ),
    Message(
        words="topk does not support complex dtypes on CPU",
        pattern=any_of(
            r"not implemented for complex(?:float|double)?\b",
            r"(?:not (?:yet )?(?:implemented|supported) for|does(?:nt| not) support|not"
            r" intended to support) complex",
            r"complex inputs not supported",
            r"is not implemented for tensors with non-complex",
            r"dtype complex<\w+> cant be safely cast",
            r"(?:input|bias|weight) type \(complex",
        ),
        means=(
            "torch has this operation for real numbers only, or the other way round. It is "
            "not a matter of precision."
        ),
        next="Compute on real and imaginary parts: `torch.view_as_real(x)`, `x.abs()`.",
        cards=("linear_algebra",),
        source="torch 2.13.0",
    ),
    Message(
        words="strides should be multiple of 16 bytes",
        pattern=any_of(
            r"strides? should be (?:a )?multiple of 16 bytes",
            r"(?:trailing dimension|dimensions?|sides?|size\(\d\)|shape|k|n)"
            r" .{0,50}divisible by (?:8|16|32|128)\b",
            r"mat\d (?:dimension|shape).{0,60}divisible",
            r"must be (?:a )?multiples? of (?:8|16)\b",
        ),
        means=(
            "Products in FP8, INT8 and grouped products read 16 bytes at a time: 8 elements of "
            "half, 16 of FP8."
        ),
        next=(
            "Pad the side, or the vocabulary, to a multiple of 16; rows of 16-bit numbers to a "
            "multiple of 8."
        ),
        cards=("sides_miss_8",),
        source="torch 2.13.0",
    ),
    Message(
        words="int_mm_out_cpu: Expected self dtype to be int8 or uint8 but got c10::Half",
        pattern=any_of(
            r"expected \w+ dtype to be (?:of type )?u?int8 (?:or uint8 )?but got",
            r"expects float/bfloat16/half/int8/fp8 tensor",
            r"weight should have dtype int8 or fp8",
        ),
        means="A product of quantized operands received numbers that were not quantized.",
        next=(
            "Quantize both operands first, or call the layer of the quantization library instead "
            "of its kernel."
        ),
        cards=("halves_by_hand",),
        source="torch 2.13.0",
    ),
    Message(
        words="RuntimeError: No available kernel. Aborting execution.",
        pattern=any_of(
            r"no available kernel\. ?aborting",
            r"expected query, key and value to all be of dtype: ?\{",
            r"cutlassf: no kernel found to launch",
            r"flash ?attention only supports (?:ampere|turing|ada|hopper)",
            r"(?:flash|memory efficient|mem efficient) (?:attention )?kernel not used because",
        ),
        means=(
            "None of the kernels that scaled_dot_product_attention may use takes these inputs. "
            "The warnings before it have the reason of each."
        ),
        next=(
            "Allow the plain kernel too: `with sdpa_kernel([SDPBackend.FLASH_ATTENTION, "
            "SDPBackend.MATH])`, or leave the choice to torch."
        ),
        cards=("emulated_bf16", "mask_constant"),
        source="lucidrains/denoising-diffusion-pytorch#239",
        date="2023-07-19",
        causes=(
            'the inputs are FP32, and flash attention takes FP16 and BF16 - "Got Query dtype: '
            'float": run under autocast, or cast the three',
            'the GPU is older than Ampere (V100, T4, P100) - "only supports Ampere GPUs" or '
            'sm80: attn_implementation="sdpa", and FP16 for BF16',
            "a mask, a head size or a length that the kernel lacks - the reason names it; "
            "flash attention takes no mask",
        ),
    ),
    Message(
        words=(
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, "
            "opb, m, n, k, &falpha, a, CUDA_R_16F, lda, b, CUDA_R_16F"
        ),
        pattern=r"cublas_status_(?!not_supported)\w+",
        means=(
            "A product in cuBLAS failed. In half it is the first product after something else "
            "went wrong, more often than the product itself. CUDA_R_16F is FP16, CUDA_R_16BF BF16."
        ),
        next=(
            "Run with CUDA_LAUNCH_BLOCKING=1, once in FP32, and once on the CPU, whose errors "
            "name the line."
        ),
        cards=("emulated_bf16", "sides_miss_8", "positions_in_half"),
        source="clovaai/bros#14",
        date="2022-08-07",
        causes=(
            "an index is out of range (token ids, labels, positions) - the CPU names it, and "
            "FP32 fails as well",
            "the memory is full - NOT_INITIALIZED or ALLOC_FAILED: a smaller batch works",
            "the card or the driver lacks the format - only FP16 or only BF16 fails, in a "
            "product of two random matrices too",
            "two versions of cuBLAS - a product of two random matrices fails; install the one "
            "that torch was built with",
            "an operand is FP32 and a custom kernel takes it for half - only with that kernel "
            "(DeepSpeed's, xFormers')",
        ),
    ),
    Message(
        words="RuntimeError: FIND was unable to find an engine to execute this computation",
        pattern=any_of(
            r"unable to find an engine to execute this computation",
            r"cudnn_status_(?:not_supported|execution_failed|bad_param|mapping_error"
            r"|internal_error)",
            r"miopenstatusunknownerror",
        ),
        means=(
            "cuDNN has no convolution for these dtypes, sides and memory, or it is another "
            "version than torch was built with."
        ),
        next=(
            "Compare torch.backends.cudnn.version() with the one installed; try the batch in "
            "FP32, and with torch.backends.cudnn.benchmark = False."
        ),
        cards=("emulated_bf16", "small_work"),
        source="aigc-apps/sd-webui-EasyPhoto#27",
        date="2023-09-06",
        causes=(
            "cuDNN or the driver is older than torch wants - FP32 fails too: reinstall torch "
            "with its own libraries",
            "the dtype - only BF16 or only FP16 fails, on a card before Ampere or in a 3-d, "
            "grouped or dilated convolution: keep this layer in FP32",
            "the memory is full - a smaller batch works",
        ),
    ),
    Message(
        words=(
            "NotImplementedError: Could not run "
            "'aten::_amp_foreach_non_finite_check_and_unscale_' with arguments from the 'CPU' "
            "backend"
        ),
        pattern=(
            r"could not run aten::_amp_(?:foreach_)?"
            r"(?:non_finite_check_and_unscale|update_scale)"
        ),
        means=(
            "The scaler met gradients on a device, or of a layout, for which this torch cannot "
            "unscale."
        ),
        next=(
            "Take torch.amp.GradScaler(device) of torch 2.3 or later for the device where the "
            "gradients are, and dense gradients."
        ),
        cards=("optimizer_made_before", "saved_half"),
        source="clovaai/voxceleb_trainer#116",
        date="2021-06-24",
        causes=(
            "parameters are on the CPU - the model was moved after the optimizer was made, or "
            "FSDP and DeepSpeed offload gradients: torch before 2.3 has no scaler there",
            'the gradients are sparse - "SparseCUDA": nn.Embedding(sparse=True) cannot be '
            "trained with a scaler",
            "another backend - MPS needs torch 2.8, XPU its own build",
        ),
    ),
    Message(
        words="RuntimeError: _th_fmod_out not supported on CUDAType for Half",
        pattern=any_of(
            r"not supported on \w*type for (?:half|bfloat16)",
            r"has no (?:half|bfloat16) (?:kernel|implementation)",
            r"kernel .{0,40}not (?:found|registered) for (?:half|b?float16)",
        ),
        means=NO_KERNEL,
        next=FP32_THERE,
        cards=("linear_algebra",),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "CppCompileError: C++ compile error: no matching function for call to "
            "at::vec::Vectorized<c10::Half>"
        ),
        pattern=r"cppcompileerror.{0,400}(?:half|bfloat16)",
        means="torch.compile wrote C++ for a CPU that does not compile in half.",
        next=(
            "Compile in FP32 or BF16 on a CPU, and FP16 on a GPU; or "
            "torch._dynamo.config.suppress_errors = True, which continues without."
        ),
        cards=("eager_unlike_compiled",),
        source="pytorch/pytorch#105914",
        date="2023-07-25",
    ),
    Message(
        words="\"addmm_impl_cpu_\" not implemented for 'Half'",
        pattern=r"\w+ not implemented for (?:half|bfloat16)",
        means=NO_KERNEL,
        next=FP32_THERE,
        cards=("linear_algebra", "halves_by_hand"),
        source="huggingface/transformers#27769",
        date="2023-12-01",
        causes=(
            "a half model runs on the CPU - `{p.device for p in model.parameters()}` holds cpu",
            "this operation has no half kernel on CUDA either - the tensors are on cuda; cast "
            "around it",
            "torch is older than 2.1, whose CPU kernels lack most of half - torch.__version__",
        ),
    ),
    Message(
        words="qr is not implemented for type torch.cuda.HalfTensor",
        pattern=r"not implemented for type \S*half",
        means=NO_KERNEL,
        next=FP32_THERE,
        cards=("linear_algebra",),
        source="pytorch/pytorch#9315",
        date="2018-07-10",
    ),
    Message(
        words="could not create a primitive descriptor for an LSTM forward propagation primitive",
        pattern=r"could not create a primitive descriptor",
        means=(
            "oneDNN, by which torch computes on a CPU, has an LSTM in FP16 or BF16 for a few "
            "processors only."
        ),
        next=(
            "Train on the GPU, or put the LSTM in a region with autocast(enabled=False), and "
            "`.float()` its input."
        ),
        cards=("linear_algebra",),
        source="mittagessen/kraken#610",
        date="2024-06-09",
    ),
    Message(
        words="CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmStridedBatchedEx(",
        pattern=r"cublas_status_not_supported",
        means="cuBLAS has no product of these dtypes, sides or strides on this GPU.",
        next=(
            "`labkit gpu` says which formats the card multiplies. Try FP16 for BF16, contiguous "
            "inputs, sides that are multiples of 8, and the cuBLAS that torch was built with."
        ),
        cards=("emulated_bf16", "sides_miss_8"),
        source="deepspeedai/DeepSpeed#6723",
        date="2024-11-07",
        causes=(
            "the dtype - BF16 on a card before Ampere, FP16 strided batches on Maxwell: FP32 works",
            "the sides or strides - a view or a side that is not a multiple of 8: "
            "`.contiguous()` and padding work",
            "two versions of cuBLAS - `pip list` shows nvidia-cublas of another version than "
            "torch wants",
        ),
    ),
    Message(
        words="TypeError: Got unsupported ScalarType BFloat16",
        pattern=r"got unsupported scalartype bfloat16",
        means="numpy has no BF16.",
        next="Convert first: `tensor.float().numpy()`.",
        cards=("average_in_bf16",),
        source="pytorch/pytorch#110285",
        date="2023-09-29",
    ),
)

"""Messages of several processes, and of exported models: FSDP, collectives, ONNX, TensorRT."""

from __future__ import annotations

from labkit.faults.messages.message import Message, any_of

SYSTEMS = (
    Message(
        words=(
            "ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and "
            "torch.float32"
        ),
        pattern=any_of(
            r"must flatten tensors with uniform dtype",
            r"flatparameter requires uniform dtype",
            r"fsdp expects uniform (?:original parameter|reduce) dtype",
            r"autoep cannot preserve mixed dtype",
        ),
        means=(
            "FSDP joins the parameters of a wrapped block into one tensor, and this block has two "
            "dtypes."
        ),
        next=(
            "Convert all trained parameters alike before wrapping, best to FP32 with "
            "MixedPrecision for the rest. `{name: p.dtype for name, p in "
            "model.named_parameters()}` names the odd ones."
        ),
        cards=("optimizer_made_before", "half_weights_unscaled"),
        source="huggingface/trl#1723",
        date="2024-06-11",
        causes=(
            "adapters are FP32 in a model of 16 bits (LoRA, prompt tuning) - the odd names "
            "are lora_ or prompt: convert them, or wrap them on their own",
            "norms or a head were kept or upcast in FP32 (prepare_model_for_kbit_training, "
            "keep_in_fp32_modules) - the odd names are norms",
            "quantized weights are stored as integers - bnb_4bit_quant_storage in the dtype "
            "of the rest",
            "some ranks loaded on the meta device in another dtype - "
            "cpu_ram_efficient_loading; only ranks above 0 complain",
        ),
    ),
    Message(
        words=(
            "ValueError: Invalid usage of tensors with different dtypes Found torch.float32 and "
            "torch.float16"
        ),
        pattern=any_of(
            r"invalid usage of tensors with different dtypes",
            r"all parameters in a bucket must have the same dtype",
            r"must have the same communication dtype",
            r"tensors? (?:list )?must (?:be of|have) the same (?:data ?)?type",
            r"input tensor data type is not supported for nccl",
            r"detected mismatch between collectives",
            r"invalid scalar type",
        ),
        means="A collective operation adds or gathers tensors of one dtype, the same on each rank.",
        next=(
            "Cast before it, FP32 for sums: in FP16 a sum over ranks overflows at 65504, in BF16 "
            "it keeps 8 bits."
        ),
        cards=("ranks_part", "validation_sum"),
        source="torch 2.13.0",
        causes=(
            "two dtypes on one rank - a list, or a parameter's gradients of two formats",
            "two ranks differ - one ran another branch, or has no autocast region; print the "
            "dtype on each",
            "the backend lacks the dtype - the text names NCCL or gloo, as for FP8 or complex "
            "numbers",
        ),
    ),
    Message(
        words=(
            "Both mixed precision and an auto_wrap_policy were specified to FSDP, where the "
            "wrapped module has submodules of type: {BatchNorm2d}"
        ),
        pattern=r"both mixed precision and an auto_wrap_policy were specified",
        means=(
            "FSDP wraps batch norms on their own, without mixed precision, since their statistics "
            "need FP32."
        ),
        next="It is a note. Give their inputs in FP32, or keep_low_precision_grads as it is.",
        cards=("nan_only_in_eval",),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "[ONNXRuntimeError] : 1 : FAIL : Type Error: Type parameter (T) of Optype (Add) bound "
            "to different types (tensor(float16) and tensor(float) in node ()"
        ),
        pattern=any_of(
            r"bound to different types \(tensor\((?:float|double|float16|bfloat16)",
            r"of output arg .{0,60}does not match expected type",
        ),
        means=(
            "A node of the exported graph has inputs of two dtypes. A graph has no promotion, "
            "which torch did at run time."
        ),
        next=(
            "Export in FP32 and convert the file afterwards (onnxconverter-common's float16 with "
            "keep_io_types, or an optimizer for transformers)."
        ),
        cards=("zeros_of_another_dtype", "halves_by_hand"),
        source="microsoft/onnxruntime#15241",
        date="2023-03-27",
        causes=(
            "the model was exported under autocast or by .half() - constants and buffers "
            "stayed FP32 or FP64: the other type of the message is theirs",
            "a converter left some nodes in FP32 - the node of the message is on its block "
            "list, and a Cast is missing beside it",
        ),
    ),
    Message(
        words="Unexpected input data type. Actual: (tensor(float)) , expected: (tensor(float16))",
        pattern=r"unexpected input data type\. ?actual: ?\(",
        means="The exported model takes FP16 inputs (or FP32 ones), and got the other.",
        next=(
            "Convert the input, `x.astype(np.float16)`, or convert the model with "
            "keep_io_types=True."
        ),
        cards=("halves_by_hand",),
        source="ultralytics/ultralytics#20091",
        date="2025-04-09",
    ),
    Message(
        words="Running layernorm after self-attention in FP16 may cause overflow.",
        pattern=any_of(
            r"running layernorm after self-attention",
            r"detected layernorm nodes in fp16",
            r"subnormal fp16 values",
            r"issues when converted to fp16",
            r"weights are affected by this issue",
            r"encountered issues when converting weights between types",
            r"would overflow in fp16",
            r"less than smallest positive fp16 subnormal",
        ),
        means=(
            "TensorRT says what FP16 changes: norms whose squares may pass 65504, and weights "
            "outside FP16's range."
        ),
        next=(
            "Force norms, and softmax, to FP32 (layer precisions, or a strongly typed network); "
            "compare outputs with FP32's before and after."
        ),
        cards=("forward_overflow", "gains_in_bf16"),
        source="pytorch/TensorRT#2730",
        date="2024-04-05",
        causes=(
            "subnormal weights - between 6e-8 and 6e-5: they keep fewer bits, and seldom matter",
            "values below the smallest subnormal - they become 0: harmless unless a whole "
            "layer does",
            "finite FP32 values that would overflow - these matter: scale the layer, or keep "
            "it in FP32",
            "layer norm in FP16 - its sum of squares overflows for activations above some "
            "hundreds: NaN in the output",
        ),
    ),
)

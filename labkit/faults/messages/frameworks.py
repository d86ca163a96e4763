"""Messages of frameworks: apex, DeepSpeed, Accelerate, Lightning, transformers, bitsandbytes."""

from __future__ import annotations

from labkit.faults.messages.message import Message, any_of
from labkit.faults.messages.remedies import ONE_PRECISION

FRAMEWORKS = (
    Message(
        words="MatMul8bitLt: inputs will be cast from torch.float32 to float16 during quantization",
        pattern=r"matmul8bitlt: inputs will be cast",
        means="An 8-bit layer multiplies in FP16 and casts its inputs.",
        next="It is a note; `labkit watch train.py` shows whether FP16 loses anything there.",
        cards=("forward_overflow",),
        source="hiyouga/LlamaFactory#3807",
        date="2024-05-18",
    ),
    Message(
        words="FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated.",
        pattern=r"amp\.\w+\(args\.\.\.\) is deprecated",
        means="The same class has another name now; nothing is wrong with the numbers.",
        next="Write torch.amp.GradScaler('cuda').",
        cards=("scaler_not_saved",),
        source="karpathy/nanoGPT#635",
        date="2025-09-03",
    ),
    Message(
        words="MisconfigurationException: Precision '16-mixed' is invalid.",
        pattern=r"precision \S+ is invalid",
        means="Lightning 1 wrote 16 and bf16 for what Lightning 2 calls 16-mixed and bf16-mixed.",
        next="Write precision=16, or install Lightning 2.",
        cards=("halves_by_hand",),
        source="bytedance/MVDream-threestudio#5",
        date="2023-10-07",
    ),
    Message(
        words=(
            "Found param fc.weight with type torch.cuda.HalfTensor, expected "
            "torch.cuda.FloatTensor. When using amp.initialize, you do not need to call .half() "
            "on your model before passing it, no matter what optimization level you choose."
        ),
        pattern=any_of(
            r"found (?:param|buffer) \S+ with type",
            r"unscaling grads that are not fp32",
            r"you dont need to call \.half\(\) on your model",
        ),
        means=(
            "apex wants FP32 weights and converts, or casts, by itself. Half weights have lost "
            "bits before the masters are made."
        ),
        next=(
            "Leave out model.half(), and load in FP32; amp.initialize comes after model.cuda() "
            "and before DistributedDataParallel."
        ),
        cards=("half_weights_unscaled", "saved_half"),
        source="NVIDIA/apex#263",
        date="2019-04-18",
        causes=(
            "the type is HalfTensor - model.half() was called, or a half checkpoint was loaded",
            "the type is FloatTensor without cuda - the model is still on the CPU: "
            "model.cuda() first",
        ),
    ),
    Message(
        words=(
            "Optimizer's parameters must be either torch.cuda.FloatTensor or "
            "torch.cuda.HalfTensor. Received torch.FloatTensor"
        ),
        pattern=r"parameters must be (?:either|one of) \S*cuda\.floattensor",
        means=(
            "The optimizer holds parameters on the CPU, or in another dtype than FP16, BF16 or "
            "FP32."
        ),
        next=(
            "Move and convert the model first, make the optimizer from its parameters, then call "
            "the framework's initialize."
        ),
        cards=("optimizer_made_before",),
        source="https://github.com/NVIDIA/apex/tree/6943fd26e04c59327de32592cf5af68be8f5c44e",
        date="2023-02-15",
        causes=(
            "the model was moved after the optimizer was made - the received type has no cuda",
            "a parameter is FP64 or an integer - the received type names it",
        ),
    ),
    Message(
        words="Parallel wrappers should only be applied to the model(s) AFTER",
        pattern=any_of(
            r"parallel wrappers should only be applied",
            r"an incoming optimizer is an instance of",
            r"a given optimizer should only be passed through amp\.initialize once",
            r"internal amp state has not been initialized",
            r"you must explicitly use optimizer\.scale_loss",
            r"the old amp api is no longer supported",
        ),
        means=(
            "apex changes the model and the optimizer when it initializes them, so the order "
            "matters, and each is passed once."
        ),
        next=(
            "Order: model.cuda(), the optimizer, amp.initialize(model, optimizer, opt_level=...), "
            "then DistributedDataParallel; amp.scale_loss around each backward pass."
        ),
        cards=("optimizer_made_before",),
        source="https://github.com/NVIDIA/apex/tree/6943fd26e04c59327de32592cf5af68be8f5c44e",
        date="2023-02-15",
    ),
    Message(
        words=(
            "Unexpected optimization level 01. Options are 'O0', 'O1', 'O2', 'O3'. Note that in "
            "`O0`, `O1`, etc., the prefix O is the letter O, not the number zero."
        ),
        pattern=any_of(
            r"unexpected optimization level",
            r"o1 inserts casts around torch functions",
            r"patch_torch_functions=true should only be set",
            r"with opt_level o1, batchnorm functions",
            r"doesnt make sense to use master_weights with o1",
            r"keep_batchnorm_fp32 must be",
            r"amp requires backends\.cudnn\.enabled",
            r"cudnn\.enabled = true",
        ),
        means=(
            "The options of amp.initialize contradict the level: O1 casts operations and keeps "
            "FP32 weights; O2 and O3 convert the model, O2 with FP32 masters."
        ),
        next=(
            "Leave the options None and choose by level: O1 (casts per operation), O2 (half "
            "model, masters). labkit.frameworks.apex has the same calls."
        ),
        cards=("halves_by_hand", "adam_in_half"),
        source="https://github.com/NVIDIA/apex/tree/6943fd26e04c59327de32592cf5af68be8f5c44e",
        date="2023-02-15",
    ),
    Message(
        words="Cannot call in-place method add_ on fp16 Tensors.",
        pattern=r"cannot call in-place (?:method|function) \S+ (?:on|with) fp16",
        means=(
            "apex's lists have this operation in FP32, and an operation in place cannot change "
            "the dtype of its tensor."
        ),
        next="Write it out of place, `x = x.add(y)`, or on `x.float()`.",
        cards=("norm_squared_in_half", "bce_on_probabilities"),
        source="https://github.com/NVIDIA/apex/tree/6943fd26e04c59327de32592cf5af68be8f5c44e",
        date="2023-02-15",
    ),
    Message(
        words="FusedAdam only support fp16 and fp32.",
        pattern=any_of(
            r"fused\w+ only supports? fp16",
            r"fp16 params for cpu\w+ may not work",
            r"fp16-adam-stats is only supported",
            r"fp16_optimizer is deprecated and dangerous",
            r"muon with fp16 is not supported",
        ),
        means="A fused optimizer was built for some dtypes of parameters and gradients.",
        next=(
            "Give it FP32 masters, or use torch's optimizer with fused=True, which takes FP32, "
            "FP16 and BF16."
        ),
        cards=("adam_in_half", "gains_in_bf16"),
        source="https://github.com/NVIDIA/apex/tree/6943fd26e04c59327de32592cf5af68be8f5c44e",
        date="2023-02-15",
    ),
    Message(
        words=(
            "This checkpoint contains apex AMP data, but apex support has been removed in v2.0.0."
        ),
        pattern=any_of(
            r"contains apex amp data",
            r"state_dict contains \S+ entries, while \S+ loss_scalers",
            r"skipping loss_scaler\[",
        ),
        means=(
            "The checkpoint has the state of apex's loss scalers, which this program cannot use "
            "as it is."
        ),
        next=(
            "Weights and optimizer load; the scale starts again and settles within some "
            "steps. Expect skipped steps then."
        ),
        cards=("scaler_not_saved", "first_steps_refused"),
        source="lightning 2.6.6",
    ),
    Message(
        words="At most one of fp16 and bf16 can be True, but not both",
        pattern=any_of(
            r"(?:at most|only) one of (?:self\.)?(?:fp16|bf16)",
            r"(?:bf(?:loat)?16|fp16)(?: flags?)? and (?:bf(?:loat)?16|fp16)(?: flags?|"
            r" modes?)? (?:cannot|can not|can't|cant) be",
            r"cannot use fp16 and amp together",
            r"either config\.fp16 or config\.bf16 should be true",
            r"cannot enable both torch autocast",
            r"cannot enable both autocast",
            r"fp16\w* and bf16\w* are mutually exclusive",
            r"conflicts with the enabled precision mode",
            r"precision set through both",
            r"received both precision=",
        ),
        means="The configuration asks for two precisions at once.",
        next=ONE_PRECISION,
        cards=("scaler_for_bf16", "emulated_bf16"),
        source="transformers 5.24.0",
        causes=(
            "the command line and a configuration file differ - print the merged configuration",
            "a launcher's default (accelerate config, a DeepSpeed JSON) adds the second - use "
            '"auto" in the JSON, so that it follows the trainer',
        ),
    ),
    Message(
        words=(
            "`--mixed_precision` arg cannot be set to `fp16` when `bf16` is set in the DeepSpeed "
            "config file."
        ),
        pattern=any_of(
            r"arg cannot be set to \S+ when .{0,40}deepspeed config",
            r"unsupported mix of model_dtype",
            r"is (?:already )?enabled outside deepspeed",
            r"conflicting (?:tensor_parallel\.)?dtype",
            r"(?:zero is incomptabile|fullyshardeddataparallel is not compatible) with"
            r" .{0,20}(?:fp16|bf16)",
            r"master_weights_and_grads is only supported",
            r"bf16_optimizer_states (?:requires|is only)",
            r"upcast(?:ed)? (?:of )?low precision parameters",
            r"rocm \+ deepspeed \+ bf16",
            r"communication_data_type",
        ),
        means=(
            "Two places decide on precision, the framework and DeepSpeed or FSDP. The text says "
            "which of them counts."
        ),
        next=(
            'Let one decide: "auto" in the DeepSpeed JSON, or mixed_precision only in one '
            "configuration."
        ),
        cards=("scaler_for_bf16", "saved_half"),
        source="accelerate 1.15.0",
        causes=(
            "the settings contradict each other - an error, before the training",
            "parameters were upcast to FP32 - a note: masters are FP32 then, and the "
            "checkpoint is twice as large",
            "autocast is open around the engine - a note: DeepSpeed closes or replaces your region",
        ),
    ),
    Message(
        words=(
            "Unknown mixed_precision mode: float16. Choose between ['no', 'fp8', 'fp16', 'bf16']."
        ),
        pattern=any_of(
            r"unknown mixed_precision mode",
            r"mixed_precision should be one of",
            r"invalid mixed precision(?: policy)?:",
            r"invalid dtype for autocast",
            r"precision \S+ is not supported in \w+",
            r"precision must be one of",
            r"precision must be 16-mixed or bf16-mixed",
            r"precision=\S+ is supported for historical reasons",
            r"was unable to infer precision type",
            r"does not support (?:fabric|trainer)\(\.\.\., precision=",
            r"invalid dtype passed to",
            r"can only work with the \w+precision plugin",
            r"found invalid type for plugin",
            r"expected a precision plugin",
            r"cannot set the dtype explicitly",
            r"only works with dtype=\w+, but you chose",
            r"downcast_bf16",
            r"is not a valid dtype",
            r"precisionplugin class",
            r"precision(?:plugin)? instead",
            r"unsupported dtype: \S+ must be auto",
            r"dtype (?:provided as a str )?can (?:only )?be",
        ),
        means="The name of the precision is another one in this framework or version.",
        next=(
            "Take a name of the list in the message: Accelerate has no, fp16, bf16, fp8; "
            'Lightning 32-true, 16-mixed, bf16-mixed, 16-true, bf16-true. "mixed" keeps FP32 '
            'weights, "true" converts them.'
        ),
        cards=("halves_by_hand", "adam_in_half"),
        source="accelerate 1.15.0",
    ),
    Message(
        words=(
            "Flash Attention 2 only supports torch.float16 and torch.bfloat16 dtypes, but the "
            "current dype in LlamaForCausalLM is torch.float32."
        ),
        pattern=any_of(
            r"flash attention \S* ?only supports float16 and bfloat16",
            r"you are attempting to use flash attention \S+ without specifying",
            r"casting fp32 inputs back to",
            r"flash attention only supports fp16 and bf16, attention implementation",
        ),
        means="The model is in FP32, and flash attention takes FP16 and BF16.",
        next=(
            "Train under autocast (bf16=True or fp16=True), which casts, or load for inference "
            "with dtype=torch.bfloat16. For training in FP16 leave the weights FP32."
        ),
        cards=("half_weights_unscaled", "zeros_of_another_dtype"),
        source="transformers 5.24.0",
        causes=(
            "at loading, before a training under autocast - a warning that stays without effect",
            "an evaluation or generate() outside the autocast region - an error in the "
            "attention: open the region there too",
        ),
    ),
    Message(
        words=(
            "The input hidden states seems to be silently casted in float32, this might be "
            "related to the fact you have upcasted embedding or layer norm layers in float32."
        ),
        pattern=r"input hidden states seems? to be silently casted",
        means=(
            "A norm or an embedding is FP32 (prepare_model_for_kbit_training does so), so its "
            "output is, and attention casts it back."
        ),
        next=(
            "It is a note: the cast back is right. Without autocast the layers between may fail "
            "with two dtypes; then train under autocast."
        ),
        cards=("zeros_of_another_dtype",),
        source="transformers 5.24.0",
    ),
    Message(
        words=(
            "`.half()` is not supported for quantized model. Please use the model as it is, since "
            "the model has already been casted to the correct `dtype`."
        ),
        pattern=any_of(
            r"is not supported for quantized model",
            r"cannot cast a \w+ model in a new dtype",
            r"casting a \w+ quantized model to a new dtype",
            r"lora-ga does not support quantized",
            r"please initialize \w+ under float32",
            r"init requires float32/float16/bfloat16",
        ),
        means=(
            "Quantized weights are integers and a scale; a conversion of the whole model would "
            "spoil them."
        ),
        next=(
            "Choose the dtype when loading (dtype=, bnb_4bit_compute_dtype=), and convert "
            "adapters alone."
        ),
        cards=("halves_by_hand",),
        source="transformers 5.24.0",
    ),
    Message(
        words=(
            "You can't train a model that has been loaded in 8-bit or 4-bit precision on a "
            "different device than the one you're training on."
        ),
        pattern=any_of(
            r"loaded in 8-bit or 4-bit precision",
            r"cannot perform fine-tuning on purely quantized",
            r"cant use 8 bit and 4 bit precision",
        ),
        means=(
            "Integer weights have no gradients. Adapters beside them are trained, on the device "
            "where the weights are."
        ),
        next='Attach adapters (PEFT), and load with device_map={"": torch.cuda.current_device()}.',
        cards=("half_weights_unscaled",),
        source="accelerate 1.15.0",
    ),
    Message(
        words=(
            "Input type into Linear4bit is torch.float16, but "
            "bnb_4bit_compute_dtype=torch.float32 (default). This will lead to slow inference or "
            "training speed."
        ),
        pattern=any_of(
            r"input type into linear4bit",
            r"(?:bnb_4bit_compute_dtype|bnb_4bit_quant_storage|torch_dtype) must be",
            r"absmax\w* must be float32",
            r"expected out\.dtype == \w+, got",
            r"to be float32, got \w+\.dtype",
            r"(?:a|b|g|code|row_stats|col_stats) must be (?:float32|float16|bfloat16|backed"
            r" by)",
            r"bias dtype \(\w+\) must match a dtype",
            r"no usable \S+ algo .{0,60}falling back to fp32",
            r"found \S+ non-floating frozen params4bit",
        ),
        means=(
            "bitsandbytes stores 4 or 8 bits and computes in another dtype, which is not the one "
            "of the inputs."
        ),
        next=(
            "Set bnb_4bit_compute_dtype=torch.bfloat16, or torch.float16 with a loss scale; for "
            "FSDP bnb_4bit_quant_storage to the same."
        ),
        cards=("zeros_of_another_dtype", "forward_overflow"),
        source="bitsandbytes 0.50.2",
    ),
    Message(
        words="`torch_dtype` is deprecated! Use `dtype` instead!",
        pattern=any_of(
            r"torch_dtype is deprecated! use dtype",
            r"since the dtype attribute cant be found in models config",
            r"will use dtype=\S+ as",
            r"using different dtypes per module is deprecated",
            r"will use torch_dtype=",
        ),
        means=(
            "A note on the dtype in which weights are loaded. By default it is the one they were "
            "saved in, so a model saved in FP16 or BF16 is loaded in 16 bits."
        ),
        next="Pass dtype=torch.float32 to train with a GradScaler; 16 bits for inference.",
        cards=("half_weights_unscaled", "saved_half"),
        source="transformers 5.24.0",
    ),
    Message(
        words="Error with upcasting, attn_weights does not have dtype torch.float32",
        pattern=r"error with upcasting, attn_weights does not have dtype",
        means=(
            "reorder_and_upcast_attn asks for FP32 scores, and something cast them back: an "
            "autocast region that is open inside."
        ),
        next="Train without this option under autocast of CUDA, where softmax is FP32 anyway.",
        cards=("switched_off_but_half", "softmax_by_hand"),
        source="transformers 5.24.0",
    ),
    Message(
        words=(
            "Cannot pickle a prepared model with automatic mixed precision, please unwrap the "
            "model with `Accelerator.unwrap_model(model)` before pickling it."
        ),
        pattern=r"cannot pickle a prepared model with automatic mixed precision",
        means="Accelerate wrapped forward in autocast, and this wrapper cannot be stored.",
        next="Save accelerator.unwrap_model(model).state_dict().",
        cards=("saved_half",),
        source="accelerate 1.15.0",
    ),
    Message(
        words=(
            "The current strategy and precision selection requires you to call "
            "`fabric.backward(loss)` instead of `loss.backward()`."
        ),
        pattern=r"requires you to call fabric\.backward|accelerator\.backward\(loss\) instead",
        means=(
            "The framework scales the loss in its own backward; a plain one gives unscaled "
            "gradients, which are divided by the scale afterwards."
        ),
        next="Call fabric.backward(loss), or accelerator.backward(loss).",
        cards=("scale_changes_between", "logged_while_scaled"),
        source="lightning 2.6.6",
    ),
    Message(
        words=(
            "FSDP with `16-mixed` enables computation in lower precision. FSDP will always retain "
            "a full-precision copy of the model parameters for sharding."
        ),
        pattern=any_of(
            r"fsdp with \S+ enables computation in lower precision",
            r"enabling deepspeed (?:fp16|bf16)\. model parameters",
        ),
        means=(
            "A note: which dtype the model computes in, and whether there are FP32 masters. "
            "DeepSpeed also casts the inputs."
        ),
        next=(
            "Nothing is wrong. Ids must stay integers; `labkit watch train.py` shows what FP16 "
            "loses."
        ),
        cards=("positions_in_half",),
        source="lightning 2.6.6",
    ),
    Message(
        words=(
            "The vLLM server serves in bfloat16 but the weights sent to it are float16. Set "
            "`dtype` in `AsyncGRPOConfig`"
        ),
        pattern=r"serves in \S+ but the weights",
        means=(
            "The policy is trained in one format and sampled in another, so their probabilities "
            "differ, most in BF16."
        ),
        next="Use one dtype on both sides.",
        cards=("eager_unlike_compiled", "average_in_bf16"),
        source="trl 1.16.0",
    ),
    Message(
        words=(
            "torch.set_default_tensor_type() is deprecated as of PyTorch 2.1, please use "
            "torch.set_default_dtype()"
        ),
        pattern=any_of(
            r"set_default_tensor_type\(\) is deprecated",
            r"only floating-point types are supported as the default type",
        ),
        means=(
            "The default dtype decides in which format new tensors and weights are made. Half as "
            "default makes weights, masks and losses half."
        ),
        next="Leave it FP32 for training, and let autocast choose for each operation.",
        cards=("halves_by_hand", "adam_in_half"),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "--fp16-scale-window must be given explicitly when using a custom --update-freq "
            "schedule"
        ),
        pattern=any_of(
            r"fp16-scale-window must be given",
            r"fp16[-_]no[-_]flatten[-_]grads",
            r"build_fp32_params should not be called",
            r"cannot use fp16 and amp",
            r"self\.fp32_params must be",
        ),
        means=(
            "fairseq's FP16 optimizer copies all weights into one flat FP32 master and counts "
            "clean updates; these options contradict it."
        ),
        next=(
            "Set the option that the message names: --fp16-no-flatten-grads for optimizers by "
            "group, --fp16-scale-window for accumulation."
        ),
        cards=("adam_in_half", "scale_changes_between"),
        source="fairseq 0.12.2",
    ),
    Message(
        words=(
            "Cannot get 16bit model weights because `stage3_gather_16bit_weights_on_model_save` "
            "in DeepSpeed config is False."
        ),
        pattern=r"stage3_gather_16bit_weights_on_model_save|zero3_save_16bit_model",
        means=(
            "With ZeRO-3 each process has a part of the weights. What is gathered and saved in 16 "
            "bits has lost the masters' other bits."
        ),
        next=(
            "Set it to true for inference; to continue training, keep DeepSpeed's checkpoint, "
            "and zero_to_fp32.py for FP32 weights."
        ),
        cards=("saved_half",),
        source="accelerate 1.15.0",
    ),
    Message(
        words="ImportError: cannot import name 'amp' from 'apex' (unknown location)",
        pattern=any_of(
            r"cannot import name \w+ from apex",
            r"no module named (?:apex|amp_c)\b",
            r"install apex",
            r"apex is not (?:installed|available)",
            r"amp_c fused kernels unavailable",
            r"fused unscale kernel is unavailable",
            r"module apex(?:\.amp)? has no attribute",
        ),
        means=(
            "The script wants NVIDIA's apex. Its amp was removed in May 2025; torch.amp has had "
            "the same since torch 1.6."
        ),
        next=(
            "Use torch.amp (autocast and GradScaler): `--amp`, `--fp16_backend=auto`. "
            "labkit.frameworks.apex has amp.initialize and scale_loss, O0 to O3."
        ),
        cards=("halves_by_hand", "optimizer_made_before"),
        source="NVIDIA/apex#1991",
        date="2026-04-02",
        causes=(
            "apex is there without amp - version 25.05 or later: take torch.amp, or an older apex",
            "another package of this name - `pip show apex` names no NVIDIA: PyPI's apex "
            "belongs to a web framework",
            'a folder called apex is in the working directory - "unknown location": run elsewhere',
            "apex was built without --cpp_ext --cuda_ext - amp_C is missing: it works, "
            "slower, or fails where the fused kernels are called",
        ),
    ),
    Message(
        words="AttributeError: module 'torch.amp' has no attribute 'GradScaler'",
        pattern=any_of(
            r"module (?:cuda\.)?(?:torch\.)?amp has no attribute",
            r"module torch has no attribute (?:amp|gradscaler|autocast)",
            r"cannot import name (?:custom_[fb]wd|gradscaler|autocast) from"
            r" (?:torch\.)?(?:cuda\.)?amp",
            r"asked for native amp but your \w+ version does not support",
            r"native amp is not available",
        ),
        means="The torch that is installed is older than the script's names.",
        next=(
            "Update torch, or write the older name: torch.cuda.amp.GradScaler() and "
            "torch.cuda.amp.custom_fwd."
        ),
        cards=("function_without_custom_fwd",),
        source="ultralytics/ultralytics#14677",
        date="2024-07-25",
        causes=(
            "torch.amp.GradScaler and torch.GradScaler - since torch 2.3",
            "torch.amp.custom_fwd and custom_bwd - since torch 2.4",
            "torch.autocast and torch.amp - since torch 1.10; torch.cuda.amp since 1.6",
        ),
    ),
    Message(
        words="RuntimeError: Unrecognized tensor type ID: AutocastCUDA",
        pattern=r"unrecognized tensor type id: autocast|undefined symbol: .{0,80}autocast",
        means="An extension was built for another torch than the one that is installed.",
        next=(
            "Build it again, or install the pair of versions that belong together (torchvision, "
            "detectron2, apex)."
        ),
        cards=("function_without_custom_fwd",),
        source="torch 2.13.0",
    ),
)

"""Messages of autograd, checkpointing and compilation."""

from __future__ import annotations

from labkit.faults.messages.message import Message, any_of
from labkit.faults.messages.remedies import (
    DIAGNOSE,
    WHY_NOT_FINITE,
)

GRAPHS = (
    Message(
        words="UserWarning: None of the inputs have requires_grad=True. Gradients will be None",
        pattern=r"none of the inputs have requires_grad=true|none of output has requires_grad=true",
        means=(
            "A reentrant checkpoint passes gradients only if one of its inputs needs one. Here "
            "none does: the block's parameters get no gradient, and nothing else says so."
        ),
        next=(
            'Pass use_reentrant=False (gradient_checkpointing_kwargs={"use_reentrant": False}); '
            "with a frozen embedding, model.enable_input_require_grads()."
        ),
        cards=("recomputed_otherwise", "optimizer_made_before"),
        source="2U1/Qwen-VL-Series-Finetune#56",
        date="2025-02-26",
        causes=(
            "the block is first in the model, or behind frozen layers (LoRA, a frozen vision "
            "tower) - its parameters have grad None after backward: repair it",
            "the call is an evaluation, under no_grad - nothing is lost; leave checkpointing "
            "out there",
            "the block is frozen itself - nothing is lost either",
        ),
    ),
    Message(
        words=(
            "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"
        ),
        pattern=r"element \d+ of tensors does not require grad",
        means="backward() was called on a loss that no parameter is connected to.",
        next=(
            "Print requires_grad of the loss, the output and the first layers' outputs: the line "
            "where True becomes False is the cause."
        ),
        cards=("recomputed_otherwise", "inference_tensors", "no_gradients_this_turn"),
        source="torch 2.13.0",
        causes=(
            'gradient checkpointing, reentrant, behind frozen layers - the warning "None of '
            'the inputs have requires_grad" is printed before; use_reentrant=False or '
            "model.enable_input_require_grads()",
            "all parameters are frozen or quantized - `any(p.requires_grad for p in "
            "model.parameters())` is False",
            "the forward pass runs under no_grad or inference_mode - the output's "
            "requires_grad is False, the parameters' is True",
            "the loss goes through .item(), .detach(), numpy or an integer - argmax and "
            "comparisons have no gradient",
        ),
    ),
    Message(
        words=(
            "CheckpointError: torch.utils.checkpoint: A different number of tensors was saved "
            "during the original forward and recomputation."
        ),
        pattern=any_of(
            r"a different number of tensors was saved during the original forward",
            r"recomputed values for the following tensors have different metadata",
            r"trying to save more tensors during recomputation",
            r"the number of tensors saved during (?:the )?forward",
        ),
        means="A checkpointed block is computed twice, and the second time it saved other tensors.",
        next=(
            "Compare the saved and the recomputed metadata: dtype, shape or count says which "
            "cause it is."
        ),
        cards=("recomputed_otherwise", "stale_cast"),
        source="pytorch/pytorch#141896",
        date="2024-12-02",
        causes=(
            "the dtypes differ - the second run has another autocast state, since backward() "
            "is outside the region of a custom checkpoint. Enter autocast inside the "
            "block, or use torch's checkpoint",
            "only the number differs - a switch was turned between the two runs, such as "
            "model.eval() before backward(), or the block counts its calls",
            "the shapes differ - the block draws at random, routes tokens (mixture of "
            "experts) or reads a state that it changes",
            "one shape is [0] - parameters are sharded (ZeRO-3, FSDP) and were given back: "
            "wrap the block, then checkpoint it",
        ),
    ),
    Message(
        words=(
            "aten._to_copy.default encountered during backward but not found in storage. This can "
            "happen if the operations in the checkpointed region are nondeterministic"
        ),
        pattern=r"(?:invocation index \d+ )?encountered during backward but not found in storage",
        means=(
            "Selective checkpointing looks for an operation that the forward pass did not run. "
            "`_to_copy` is a cast: autocast took the cast weight from its cache then, and casts "
            "it again."
        ),
        next=(
            "Open the region with cache_enabled=False, or leave casts out of the policy's list of "
            "saved operations."
        ),
        cards=("stale_cast", "recomputed_otherwise"),
        source="pytorch/pytorch#193338",
        date="2026-08-13",
        causes=(
            "the operation is _to_copy - two checkpointed blocks share a weight, or one is "
            "called twice in a region",
            "it is another one - the block draws at random, or depends on a state that "
            "changed before backward()",
        ),
    ),
    Message(
        words=(
            "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or "
            "passing an `inputs` parameter to .backward()."
        ),
        pattern=any_of(
            r"use_reentrant=true, (?:utils\.)?checkpoint is incompatible",
            r"checkpointing is not compatible with \.grad",
        ),
        means=(
            "A reentrant checkpoint runs a backward pass of its own, which fills .grad of all it "
            "meets."
        ),
        next="Pass use_reentrant=False; gradient penalties and autograd.grad work with it.",
        cards=("recomputed_otherwise", "penalty_from_scaled"),
        source="torch 2.13.0",
    ),
    Message(
        words="torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly.",
        pattern=r"use_reentrant parameter should be passed explicitly",
        means=(
            "Both ways of checkpointing exist; the reentrant one loses gradients of blocks whose "
            "inputs need none."
        ),
        next="Pass use_reentrant=False.",
        cards=("recomputed_otherwise",),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "Input #0 requires gradient and is not a double precision floating point or complex. "
            "This check will likely fail"
        ),
        pattern=r"requires gradient and is not a double precision",
        means="gradcheck takes differences of 1e-6 in its inputs, which FP32 and half round away.",
        next="Pass FP64 inputs and an FP64 copy of the module, outside autocast.",
        cards=("gradcheck_in_fp32",),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "RuntimeError: make_graphed_callables does not support the autocast caching. Please "
            "set `cache_enabled=False`."
        ),
        pattern=r"does not support the autocast caching",
        means=(
            "A captured graph replays fixed addresses, while autocast's cache of cast weights is "
            "emptied when its region closes."
        ),
        next='Capture with torch.autocast("cuda", cache_enabled=False).',
        cards=("stale_cast",),
        source="torch 2.13.0",
    ),
    Message(
        words="AOTAutograd does not support tracing graphs that mutate the autocast state.",
        pattern=any_of(
            r"graphs that mutate the autocast state",
            r"autocast (?:_enabled|device) argument must be a constant",
            r"unsupported autocast syntax",
            r"with autocast\(\) as \.\.\. is not supported",
        ),
        means="A compiled function switches autocast by other means than a `with` of constants.",
        next=(
            'Write `with torch.autocast("cuda", dtype=torch.float16):` around the call of the '
            "compiled module, or inside it as a whole block."
        ),
        cards=("stale_cast", "switched_off_but_half"),
        source="torch 2.13.0",
    ),
    Message(
        words="Compiled Autograd returned NaN gradients for parameters: layers.3.weight.",
        pattern=any_of(
            r"compiled autograd returned nan gradients",
            r"already having nan gradient",
            r"found nan in reference\. consider running in higher precision",
        ),
        means="The backward pass of a compiled graph gave NaN.",
        next=(
            DIAGNOSE
            + " It looks at the script without torch.compile; if that is clean, the compiled "
            "code is at fault."
        ),
        cards=("eager_unlike_compiled", "forward_overflow"),
        source="torch 2.13.0",
        causes=WHY_NOT_FINITE,
    ),
    Message(
        words="AssertionError: Both operands must be same dtype. Got fp16 and fp32",
        pattern=any_of(
            r"both operands must be same dtype",
            r"first input \(\w+\) and second input \(\w+\) must have the same dtype",
            r"lhs and rhs must have the same dtype",
            r"loop-carried variable \w+ has initial type .{0,40} but is re-assigned to",
        ),
        means=(
            "A Triton kernel mixes dtypes: a scalar, a quotient and where() are FP32 in Triton, "
            "and dot and loops want one dtype."
        ),
        next=(
            "Cast in the kernel: `x.to(y.dtype)` before tl.dot; begin accumulators as tl.float32 "
            "and cast when they are stored."
        ),
        cards=("function_without_custom_fwd", "zeros_of_another_dtype"),
        source="triton-lang/triton#2060",
        date="2023-08-08",
        causes=(
            "the kernel was written for half, and an argument is FP32 - cast it before the "
            "call, or call under autocast with custom_fwd",
            "the kernel divides, or multiplies by a Python number - the mixed line is in the "
            "kernel, and all arguments are half",
        ),
    ),
    Message(
        words="Function 'LogSoftmaxBackward' returned nan values in its 0th output.",
        pattern=r"returned nan values in its \d+th output",
        means=(
            "Anomaly mode found the first backward node that gave NaN. A step that a scaler skips "
            "has them too."
        ),
        next=DIAGNOSE,
        cards=("log_of_epsilon", "forward_overflow", "softmax_by_hand"),
        source="kenziyuliu/MS-G3D#36",
        date="2021-04-01",
    ),
    Message(
        words=(
            "Warning: Error detected in SoftmaxBackward. Traceback of forward call that caused "
            "the error"
        ),
        pattern=r"error detected in \w+backward\d*\.",
        means="Anomaly mode names the backward node that gave NaN or failed.",
        next=DIAGNOSE,
        cards=("softmax_by_hand", "row_all_masked"),
        source="QiangAIResearcher/sahp_repo#4",
        date="2021-07-19",
    ),
)

"""Families of messages: two dtypes, or a missing kernel, with wording of their own."""

from __future__ import annotations

from labkit.faults.messages.message import Message, any_of
from labkit.faults.messages.remedies import (
    HALF_AND_FLOAT,
    ONE_DTYPE,
    TWO_DTYPES,
    WHY_TWO_DTYPES,
)

FAMILIES = (
    Message(
        words="both inputs should have same dtype",
        pattern=any_of(
            r"d-?type mismatch",
            r"mismatched d-?types?",
            r"(?:\bsame|\buniform|\bdifferent|\bone) (?:d-?types?|data ?types?|scalar"
            r" types?)\b",
            r"(?:dtypes?|data ?types?) (?:must|should|to) (?:be the same|match)\b",
            r"\b(?:dtype|scalar type)s? (?:\w+ )?does(?: not|nt) match",
            r"must share (?:same )?d(?:ata)?type",
            r"must match (?:the )?(?:a |input |mat_a )?dtype",
            r"tensors? .{0,40}must have (?:identical|equal) (?:d?types?|scalar)",
        ),
        means=TWO_DTYPES,
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="torch 2.13.0",
        causes=WHY_TWO_DTYPES,
    ),
    Message(
        words="Unsupported gradient dtype: torch.float16. Supported dtypes: torch.float32",
        pattern=any_of(
            r"only supports? (?:float|floating[- ]point|half|fp16|bf16|bfloat16"
            r"|fp32)\w*(?:, \w+)*(?:,? (?:and|or) \w+)? ?d?types?\b",
            r"only supports? (?:fp16|bf16|bfloat16|float16|half)\b",
            r"\b(?:half|bfloat16|float16|bf16|fp16)(?: (?:and|or) \w+)? (?:is|are|tensors"
            r" are) not (?:yet )?supported",
            r"only (?:fp16|bf16|float16|bfloat16|fp32|float32)(?:,? (?:and|or|/) ?\w+)*"
            r" (?:is|are) supported",
            r"only supported with (?:fp16|bf16|float16|bfloat16)",
            r"does(?: not|nt) support (?:half|bfloat16|float16|bf16|fp16)\b",
            r"unsupported (?:\w+ ){0,2}(?:dtypes?|data ?types?|scalar ?types?)(?:"
            r" \w+){0,2}:? ?\S*(?:half|b?float16|bf16|fp16)",
            r"supports (?:bfloat16|float16|fp16|bf16)(?:,? (?:and )?\w+)* (?:tensors|rows"
            r"|data_type)",
            r"requires? (?:fp16|bf16|bfloat16|float16|fp32|float32)(?: (?:and|or) \w+)?(?:"
            r" \w+){1,2}, (?:but )?got",
            r"must be (?:fp32|fp16|bf16|float16|bfloat16|float32)(?:, \w+)*(?:,? (?:and|or)"
            r" \w+)*,? (?:but )?got",
            r"(?:expected|must be|should be|requires?|needs) (?:\w+ ){0,4}(?:fp32|fp16|bf16"
            r"|b?float16|float32|half)\b.{0,60}\b(?:but got|got|received)\b",
            r"expecting input to have dtype",
            r"(?:input|acc_)d?type (?:\w+ not supported|must be one of)",
            r"(?:half|b?float16|bf16|fp16) (?:is )?not (?:a )?supported",
        ),
        means="A kernel is built for some dtypes, which the message may name, and got another one.",
        next=(
            "Cast to one of them before the call and back after it: `f(x.float()).to(x.dtype)`, "
            "or run under autocast where it wants 16 bits."
        ),
        cards=("linear_algebra", "halves_by_hand"),
        source="torch 2.13.0",
        causes=(
            "a half model on the CPU, whose kernels are fewer - the tensors are on cpu: "
            "`.float()` or a GPU",
            "a fused kernel for 16 bits (attention, norms, rotary embeddings) got FP32 - it "
            "is outside autocast, or after an operation that autocast computes in FP32",
            "a kernel for FP32 (losses, decompositions, optimizers' states) got half - it "
            "is inside autocast, or the model was converted",
        ),
    ),
)

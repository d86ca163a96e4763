"""Messages of other frameworks are found as they are pasted: wrapped, quoted otherwise, with ranks and tracebacks."""

import re

from labkit.cli import main
from labkit.faults import cards, explain
from labkit.faults.fault import address
from labkit.faults.messages import MESSAGES, messages_in

PASTED = {  # as it stands in a log -> a part of the words that are known
    "[2023-02-28 20:08:24,113] [INFO] [stage_1_and_2.py:1769:step] [deepspeed] OVERFLOW! Rank 3 Skipping step. "
    "Attempted loss scale: 1, reducing to 1": "OVERFLOW! Rank",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 2.04e-202": "Gradient overflow",
    "AssertionError: Attempted unscale_ but _scale is None.  This may indicate": "Attempted step",
    "error: Expected scalar typeHalf but found Float": "expected scalar type",
    "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: struct c10::Half != float": "expected mat1",
    "RuntimeError: Input type (c10::Half) and bias type (float) should be the same": "Input type",
    "RuntimeError: 'slow_conv2d_cpu' not implemented for `BFloat16`": '"addmm_impl_cpu_"',
    "│ 200 │ ❱ loss.backward() │\nRuntimeError: Function\n'XlogyBackward0' returned nan\nvalues in its 1th output.": (
        "Function 'LogSoftmax"
    ),
    "Loss is nan, stopping training": "Loss nan",
    "{'loss': nan, 'lr': 1e-4}\nloss=nan": "Loss nan",
    "RuntimeError: Function MulBackward0 returned an invalid gradient at index 1 - expected type torch.FloatTensor "
    "but\ngot torch.HalfTensor": "Function _DCNv2",
    "!!! Exception during processing !!! Expected attn_mask dtype to be bool or float or to match query dtype, but got "
    "attn_mask.dtype: struct c10::BFloat16 and  query.dtype: struct c10::Half instead.": "Expected attn_mask",
    "masked_scatter_: expected self and source to have same dtypes but gotHalf and Float": "scatter()",
    "WARNING 07-02 11:12:12 [model.py:2063] Casting torch.bfloat16 to torch.float16.": "WARNING: Casting",
    "WARNING 02-06 00:09:44 cpu_executor.py:327] float16 is not supported on CPU, casting to bfloat16.": "WARNING",
    "RuntimeError: Expected out tensor to have dtype c10::Half, but got float instead": "Expected out tensor",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa": "CUDA error",
}


NO_MESSAGES = [
    "IndexError: list index out of range",
    "mat1 and mat2 shapes cannot be multiplied (64x10 and 64x128)",
    "NotImplementedError: half the methods are not implemented",
    "loss is 0.3 and falling",
    "ModuleNotFoundError: No module named 'half'",
    "ValueError: Using a target size (torch.Size([3])) that differs from the input size in binary_cross_entropy",
    "Function AddBackward0 returned an invalid gradient at index 1 - expected type torch.FloatTensor but got "
    "torch.cuda.FloatTensor",
    "Input type (torch.cuda.DoubleTensor) and weight type (torch.cuda.FloatTensor) should be the same",
]


def pasted(words: str) -> list[str]:
    """Return a message as people paste it."""
    traceback = f'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nError: {words}\n'
    ranks = "\n".join(f"[rank1]: {line}" for line in traceback.splitlines())
    wrapped = "\n│ ".join(words.split(" "))
    return [
        words,
        words.upper(),
        traceback,
        ranks,
        wrapped,
        words.replace("'", "`").replace('"', "'"),
    ]


def test_a_message_is_known_in_its_own_words_and_as_it_is_pasted() -> None:
    each = [(message, text) for message in MESSAGES for text in pasted(message.words)]
    assert [text for message, text in each if message not in messages_in(text)] == []
    for text, words in PASTED.items():
        assert any(message.words.startswith(words) for message in messages_in(text)), (
            text,
            messages_in(text),
        )
    for name in ("c10::Half", "at::Half"):  # the new and the old name of a type
        (found,) = explain(
            f"RuntimeError: value cannot be converted to type {name} without overflow"
        )
        assert found.id == "mask_constant"
    assert len({message.pattern for message in MESSAGES}) == len(MESSAGES) >= 45, (
        "as many as sources were read"
    )


def test_the_command_says_what_it_means_what_to_run_and_where_it_was_read(capsys) -> None:
    for message in MESSAGES:
        assert main(["explain", *message.words.replace("--", "").split()]) == 0, message.words
        said = " ".join(capsys.readouterr().out.split())
        if not explain(message.words):
            assert "Run next:" in said, message.words
            assert message.source in said, message.words
        assert set(message.cards) <= cards().keys(), message.words
        assert address(message.source).startswith("https://"), message.words
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", message.date), message.words


def test_what_is_no_message_of_precision_gets_an_honest_answer(capsys) -> None:
    assert messages_in("") == explain("") == []
    for text in NO_MESSAGES:
        assert messages_in(text) == explain(text) == [], text
        assert main(["explain", *text.split()]) == 1, text
        assert "No known fault" in capsys.readouterr().err

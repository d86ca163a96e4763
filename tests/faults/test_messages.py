"""Messages of other frameworks, found as users paste them: wrapped, quoted, with ranks and
tracebacks.
"""

import re

from labkit.cli import main
from labkit.faults import cards, explain
from labkit.faults.fault import address
from labkit.faults.messages import MESSAGES, messages_in

PASTED = {  # as it stands in a log -> a part of the words that are known
    "[2023-02-28 20:08:24,113] [INFO] [stage_1_and_2.py:1769:step] [deepspeed] OVERFLOW! Rank 3 "
    "Skipping step. Attempted loss scale: 1, reducing to 1": "OVERFLOW! Rank",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 2.04e-202": "Gradient overflow",
    "AssertionError: Attempted unscale_ but _scale is None.  This may indicate": "Attempted step",
    "error: Expected scalar typeHalf but found Float": "expected scalar type",
    "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: struct c10::Half != "
    "float": "expected mat1",
    "RuntimeError: Input type (c10::Half) and bias type (float) should be the same": "Input type",
    "RuntimeError: 'slow_conv2d_cpu' not implemented for `BFloat16`": '"addmm_impl_cpu_"',
    "│ 200 │ ❱ loss.backward() │\nRuntimeError: Function\n'XlogyBackward0' returned nan\n"
    "values in its 1th output.": ("Function 'LogSoftmax"),
    "Loss is nan, stopping training": "Loss nan",
    "{'loss': nan, 'lr': 1e-4}\nloss=nan": "Loss nan",
    "RuntimeError: Function MulBackward0 returned an invalid gradient at index 1 - expected "
    "type torch.FloatTensor but\ngot torch.HalfTensor": "Function _DCNv2",
    "!!! Exception during processing !!! Expected attn_mask dtype to be bool or float or to "
    "match query dtype, but got attn_mask.dtype: struct c10::BFloat16 and  query.dtype: struct "
    "c10::Half instead.": "Expected attn_mask",
    "masked_scatter_: expected self and source to have same dtypes but gotHalf and Float": "scatter()",
    "WARNING 07-02 11:12:12 [model.py:2063] Casting torch.bfloat16 to torch.float16.": "WARNING: Casting",
    "WARNING 02-06 00:09:44 cpu_executor.py:327] float16 is not supported on CPU, casting to "
    "bfloat16.": "WARNING",
    "RuntimeError: Expected out tensor to have dtype c10::Half, but got float instead": "Expected out tensor",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, "
    "opa": "CUDA error",
    "FloatingPointError: AMP: Minimum loss scale reached (0.0001). Your loss is probably "
    "exploding. Try restarting training or use fp32.": "Minimum loss scale",
    "[deepspeed] OVERFLOW! Skipping step. Gradients are non-finite, weights were not updated.": "NOTE: gradient",
    "rank 3 detected overflow inf in tensor 5:torch.float16 shape torch.Size([4])": "NOTE: gradient",
    "FloatingPointError: gradients are Nan/Inf": "loss scale: 1.0 | grad norm",
    "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.01}": "loss scale: 1.0 | grad norm",
    "RuntimeError: scatter_add_(): self (Float) and source (Half) must have the same scalar type": "both inputs",
    "index_copy_(): self and source expected to have the same dtype, but got (self) Half and "
    "(source) Float": ("index_add"),
    "Expected object of type torch.cuda.HalfTensor but found type torch.cuda.FloatTensor for "
    "argument #2 'mat2'": ("Expected object"),
    "RuntimeError: Expected object of scalar type Float but got scalar type Half for argument "
    "#4 'source' in call to _th_index_add_": "Expected object",
    "RuntimeError: Input and parameter tensors are not the same dtype, found input tensor with "
    "Float and parameter tensor with Half": "RNN input dtype",
    "RuntimeError: MKL FFT doesn't support tensors of type: Half": "cuFFT only supports",
    "cuFFT doesn't support signals of half type with compute capability less than SM_53, but "
    "the device containing input half tensor only has SM_52": "cuFFT only supports",
    "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the "
    "following tensors have different metadata than during the forward pass.": "CheckpointError",
    "[rank0]: ValueError: Must flatten tensors with uniform dtype but got torch.float32 and "
    "torch.bfloat16": ("ValueError: Must flatten"),
    "ValueError: `FlatParameter` requires uniform dtype but got torch.float16 and torch.float32": "ValueError: Must",
    "AssertionError: FSDP expects uniform original parameter dtype but got {torch.float32, "
    "torch.bfloat16}": ("ValueError: Must"),
    "AssertionError: fp8e4nv data type is not supported on CUDA arch < 89": "ValueError: type fp8e4nv",
    "UserWarning: NVIDIA GeForce RTX 2060 does not support bfloat16 compilation natively, "
    "skipping": "ptxas",
    "File scaler.py, line 183, in unscale_with_stashed\n    out_scale/grads_have_scale,\n"
    "ZeroDivisionError: float division by zero": "ZeroDivisionError",
    "AssertionError: bfloat16 and fp16 modes cannot be simultaneously enabled": "At most one",
    "AssertionError: lhs and rhs must have the same dtype!": "AssertionError: Both operands",
    "[TRT] [W]  - Subnormal FP16 values detected.": "Running layernorm",
    "UserWarning: User provided device_type of 'cuda', but CUDA is not available. Disabling": "UserWarning: torch.cuda",
    "AssertionError: assert (boxes1[:, 2:] >= boxes1[:, :2]).all()": "ValueError: matrix",
    "../aten/src/ATen/native/cuda/Loss.cu:95: Assertion `input_val >= zero && input_val <= one` "
    "failed.": ("all elements of input"),
    "RuntimeError: Gradient clipping is not implemented for optimizers handling the unscaling.": (
        "The current optimizer"
    ),
    "UserWarning: Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query "
    "dtype: float, Key dtype: float, and Value dtype: float instead.": "RuntimeError: No available kernel",
    "RuntimeError: FlashAttention only supports Ampere GPUs or newer.": "RuntimeError: No available kernel",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`": (
        "CUDA error: CUBLAS_STATUS_EXECUTION"
    ),
    "RuntimeError: GET was unable to find an engine to execute this computation": "RuntimeError: FIND was unable",
    "Could not run 'aten::_amp_non_finite_check_and_unscale_' with arguments from the "
    "'CPUTensorId' backend.": ("NotImplementedError: Could not run"),
    "ModuleNotFoundError: No module named 'amp_C'": "ImportError: cannot import name 'amp'",
    "ImportError: Please install apex from https://www.github.com/nvidia/apex to use fp16 "
    "training.": ("ImportError: cannot import name 'amp'"),
    "module 'torch' has no attribute 'GradScaler'": "AttributeError: module 'torch.amp'",
    "step 40: train_loss=nan": "Loss nan",
    "TypeError: can't convert BFloat16 to numpy": "TypeError: data type 'bfloat16'",
    "AssertionError: fused RoPE supports bfloat16 and float16 tensors, got torch.float32.": "Unsupported gradient",
}


NO_MESSAGES = [
    "IndexError: list index out of range",
    "mat1 and mat2 shapes cannot be multiplied (64x10 and 64x128)",
    "NotImplementedError: half the methods are not implemented",
    "loss is 0.3 and falling",
    "ModuleNotFoundError: No module named 'half'",
    "ValueError: Using a target size (torch.Size([3])) that differs from the input size in "
    "binary_cross_entropy",
    "Function AddBackward0 returned an invalid gradient at index 1 - expected type "
    "torch.FloatTensor but got torch.cuda.FloatTensor",
    "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at "
    "non-singleton dimension 0",
    "RuntimeError: Expected all tensors to be on the same device, but found at least two "
    "devices, cuda:0 and cpu!",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.",
    "ValueError: too many values to unpack (expected 2)",
    "ZeroDivisionError: float division by zero",
    "RuntimeError: Trying to backward through the graph a second time",
    "Error(s) in loading state_dict for Net: size mismatch for fc.weight",
    "KeyError: 'model.layers.0.weight'",
    "TypeError: forward() got an unexpected keyword argument 'labels'",
    "UserWarning: Anomaly Detection has been enabled.",
    "AssertionError: train loss 0.31 is not below 0.3",
    "Epoch 3: loss=0.7, grad_norm=1.3, skipped 0 files",
    "RuntimeError: Function MulBackward0 returned an invalid gradient at index 0 - got [3] but "
    "expected shape compatible with [4]",
    "AttributeError: module 'torch' has no attribute 'compile'",
    "ModuleNotFoundError: No module named 'apex_legends'",
    "loss is nano-sized",
    "ValueError: num_heads must be a divisor of embed_dim; half of the heads are unused",
]


def pasted(words: str) -> list[str]:
    """Return a message as people paste it."""
    traceback = (
        'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n'
        f"Error: {words}\n"
    )
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


def test_each_text_is_explained_by_one_row() -> None:
    """The words of a row are not explained by a family as well, which says less."""
    twice = {
        message.words: [each.words for each in messages_in(message.words)] for message in MESSAGES
    }
    assert {words: rows for words, rows in twice.items() if rows != [words]} == {}


def test_two_messages_in_one_log_are_both_explained() -> None:
    log = (
        "UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n"
        "RuntimeError: dot : expected both vectors to have same dtype, but found Half and Float\n"
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half"
    )
    found = [message.words for message in messages_in(log)]
    assert [words[:20] for words in found] == [
        "UserWarning: None of",
        "mat1 and mat2 must h",
        "both inputs should h",
    ]


def test_a_cause_has_what_tells_it_from_the_others() -> None:
    several = [message for message in MESSAGES if message.causes]
    assert len(several) >= 60
    for message in several:
        assert len(set(message.causes)) == len(message.causes) >= 2, message.words
        assert all(" - " in cause for cause in message.causes), message.words


def test_the_command_names_both_causes_of_unscale_called_twice(capsys) -> None:
    text = "unscale_() has already been called on this optimizer since the last update()."
    assert main(["explain", text]) == 0
    said = " ".join(capsys.readouterr().out.split())
    first, second = said.index("each part of an accumulation"), said.index("left out scaler.update")
    assert said.index("Cause 1:") < first < said.index("Cause 2:") < second
    assert "Repair: Unscale once" in said


def test_explain_prints_meaning_remedy_and_source(capsys) -> None:
    for message in MESSAGES:
        assert main(["explain", *message.words.split()]) == 0, message.words
        said = " ".join(capsys.readouterr().out.split())
        if not explain(message.words):
            assert "Run next:" in said, message.words
            assert message.source in said, message.words
        assert set(message.cards) <= cards().keys(), message.words
        assert address(message.source).startswith("https://"), message.words
        distribution = re.fullmatch(r"[\w.-]+ \d+(\.\d+)+", message.source)
        # a distribution's version says when, a thread's number does not
        assert distribution or re.fullmatch(r"\d{4}-\d{2}-\d{2}", message.date), message.words


def test_what_is_no_message_of_precision_gets_an_honest_answer(capsys) -> None:
    assert messages_in("") == explain("") == []
    for text in NO_MESSAGES:
        assert messages_in(text) == explain(text) == [], text
        assert main(["explain", *text.split()]) == 1, text
        assert "No known fault" in capsys.readouterr().err

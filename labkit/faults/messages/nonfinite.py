"""Messages of code that met inf or NaN: losses, logs, boxes, matrices, distributions."""

from __future__ import annotations

from labkit.faults.messages.message import Message, any_of
from labkit.faults.messages.remedies import (
    DIAGNOSE,
    IN_FP32,
    NOT_FINITE,
    WHY_NOT_FINITE,
)

NONFINITE = (
    Message(
        words="FloatingPointError: Loss became infinite or NaN at iteration=756!",
        pattern=any_of(
            r"loss became infinite or nan",
            r"predicted boxes or scores contain inf/nan",
            r"training has diverged",
            r"non-?finite loss",
            r"loss is (?:not finite|non-?finite)",
            r"(?:nan|nan/inf|inf/nan|nans?) (?:is |were |was )?(?:detected|found"
            r"|encountered|values? (?:detected|found)) in (?:\w+ )?(?:loss|output|grad"
            r"|layer|activation)",
            r"detected nans?\b",
            r"gradients? (?:at index \d+ )?(?:is|are|contains?) nan",
            r"replaced \d+ nans?",
        ),
        means=NOT_FINITE,
        next=DIAGNOSE,
        cards=("forward_overflow", "log_of_epsilon", "positions_in_half"),
        source="facebookresearch/meshrcnn#36",
        date="2020-06-04",
        causes=WHY_NOT_FINITE,
    ),
    Message(
        words="ValueError: matrix contains invalid numeric entries",
        pattern=any_of(
            r"matrix contains invalid numeric entries",
            r"cost matrix is infeasible",
            r"boxes\d?\[:, 2:\] ?>= ?boxes\d?\[:, :2\]",
        ),
        means=(
            "The cost of matching predictions with targets holds NaN, so the outputs of the "
            "network do. A replacement by a large number lets training continue with NaN weights."
        ),
        next="Look at the outputs, not at the cost. " + DIAGNOSE,
        cards=("forward_overflow", "softmax_by_hand", "log_of_epsilon"),
        source="lyuwenyu/RT-DETR#527",
        date="2024-12-26",
        causes=WHY_NOT_FINITE,
    ),
    Message(
        words="ValueError: Input contains NaN, infinity or a value too large for dtype('float16').",
        pattern=any_of(
            r"input (?:\w+ )?contains (?:nan|infinity)",
            r"audio buffer is not finite",
            r"contains? (?:infinite or nan|nan or inf|non-?finite|inf/nan)",
            r"value too large for dtype\(float(?:16|32)\)",
            r"cannot convert float (?:nan|infinity) to integer",
        ),
        means=(
            "A library on the CPU (scikit-learn, librosa) looked at an output of the network and "
            "found inf or NaN."
        ),
        next="Convert outputs to FP32 before they leave the GPU. " + DIAGNOSE,
        cards=("forward_overflow", "nan_only_in_eval"),
        source="torch 2.13.0",
        causes=WHY_NOT_FINITE,
    ),
    Message(
        words=(
            "Expected parameter logits (Tensor of shape (4, 4)) of distribution "
            "Categorical(logits: torch.Size([4, 4])) to satisfy the constraint "
            "IndependentConstraint(Real(), 1), but found invalid values"
        ),
        pattern=any_of(
            r"expected parameter \w+ \(.{0,120}to satisfy the constraint",
            r"the value argument to log_prob must be",
            r"expected value argument .{0,200}to be within the support",
        ),
        means=(
            "A distribution checks its parameters. NaN satisfies no constraint; a number that "
            "FP16 or BF16 rounded to the border does not either."
        ),
        next="Compute distributions in FP32: `Categorical(logits=logits.float())`. " + DIAGNOSE,
        cards=("softmax_by_hand", "forward_overflow", "log_of_epsilon"),
        source="torch 2.13.0",
        causes=(
            "the printed values are nan - the network gave NaN before: diagnose",
            "the printed values are 0 or 1 where the constraint has an open interval or "
            '"GreaterThan(lower_bound=0.0)" - a scale or a probability underflowed: add the '
            "bound in FP32, softplus(x.float()) + 1e-6",
            "they are finite and rows should add up to 1 (Simplex) - half probabilities do "
            "not: normalise in FP32",
        ),
    ),
    Message(
        words="all elements of input should be between 0 and 1",
        pattern=any_of(
            r"all elements of (?:input|target) should be between 0 and 1",
            r"input_val ?>= ?zero && input_val ?<= ?one",
        ),
        means=(
            "binary_cross_entropy wants probabilities. On a GPU it is an assertion of the device, "
            "and what fails next only reports it."
        ),
        next=(
            "Use binary_cross_entropy_with_logits on FP32 logits; with CUDA_LAUNCH_BLOCKING=1 the "
            "traceback names the line."
        ),
        cards=("bce_on_probabilities", "forward_overflow"),
        source="torch 2.13.0",
        causes=(
            "the input is NaN - NaN is not between 0 and 1 either: `x.isnan().any()`, then "
            "diagnose",
            "logits were passed, or a ReLU's output - numbers far outside",
            "rounding - a number such as 1.001 from a product or an interpolation in half: "
            "clamp in FP32",
        ),
    ),
    Message(
        words=(
            "linalg.svd: The algorithm failed to converge because the input matrix contained "
            "non-finite values."
        ),
        pattern=any_of(
            r"input matrix contained non-finite values",
            r"the algorithm failed to converge because the input matrix is ill-conditioned",
        ),
        means="A decomposition met inf or NaN, or a matrix that 16 bits have made singular.",
        next=IN_FP32 + " " + DIAGNOSE,
        cards=("linear_algebra", "forward_overflow"),
        source="torch 2.13.0",
        causes=(
            "the matrix holds inf or NaN - `a.isfinite().all()` is False; an overflow came before",
            "its entries were computed in half - finite, and the same matrix from FP32 "
            "operands converges",
        ),
    ),
    Message(
        words=(
            "linalg.cholesky: The factorization could not be completed because the input is not "
            "positive-definite"
        ),
        pattern=any_of(
            r"factorization could not be completed because the input is not positive-definite",
            r"inversion could not be completed because the input matrix is singular",
        ),
        means=(
            "A covariance that is positive definite in exact numbers may not be so after rounding "
            "to 11 or 8 bits: 1 + 1e-4 is 1 in FP16."
        ),
        next=(
            "Compute the matrix itself in FP32, not only its decomposition, and add `eps * eye` "
            "in FP32."
        ),
        cards=("linear_algebra", "log_of_epsilon"),
        source="torch 2.13.0",
        causes=(
            "the operands were rounded to half before - from FP32 operands it succeeds",
            "the matrix holds NaN - `a.isfinite().all()` is False",
            "it is singular in FP64 as well - the model, not the precision",
        ),
    ),
    Message(
        words=(
            "DebugUnderflowOverflow: inf/nan detected, aborting as there is no point running "
            "further."
        ),
        pattern=r"debugunderflowoverflow|detected inf/nan during batch_number",
        means=(
            "transformers' instrument found the first module whose output is inf or NaN. The "
            "table above it has the largest number of each output."
        ),
        next=(
            "Look for the module before the first inf, with numbers near 65504: keep it in FP32. "
            + DIAGNOSE
        ),
        cards=("forward_overflow", "nan_only_in_eval"),
        source="transformers 5.24.0",
    ),
    Message(
        words="RuntimeWarning: overflow encountered in cast",
        pattern=(
            r"overflow encountered in (?:cast|scalar \w+|multiply|reduce|square|exp|add|power"
            r"|dot|matmul)"
        ),
        means="numpy rounded a number beyond the format to inf: above 65504 in float16.",
        next=(
            "Compute in float32 or float64 and convert at the end; look at where the float16 "
            "array comes from."
        ),
        cards=("validation_sum", "forward_overflow"),
        source="torch 2.13.0",
        causes=(
            '"in cast" - a larger number was converted to float16 or float32: it does not fit',
            '"in multiply", "in reduce" - the array is float16 already, and sums and squares '
            "of it overflow: .astype(np.float32) first",
            '"in exp" - also FP64 overflows above exp(709): subtract the largest number first',
        ),
    ),
    Message(
        words="RuntimeError: value cannot be converted to type int8_t without overflow",
        pattern=any_of(
            r"value cannot be converted to type (?!half|bfloat16)\w+ without overflow",
            r"to - 1 is out of bounds (?:for|\[)",
            r"n cannot be greater than \d+ for (?:half|bfloat16) type",
        ),
        means=(
            "A number does not fit the dtype of the tensor: FP16 counts by ones up to 2048, BF16 "
            "up to 256, int8 up to 127."
        ),
        next="Make the tensor in FP32 or int64, and convert what has to be small later.",
        cards=("mask_constant", "positions_in_half"),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "This LoRA weight seems to be broken. Encountered NaN values when trying to fuse LoRA "
            "weights"
        ),
        pattern=any_of(
            r"encountered nan values when trying to fuse",
            r"nan detected when computing",
            r"the teacher scores contain nan",
            r"weights? (?:contains?|has|have) nan",
        ),
        means=(
            "NaN is in stored weights: training continued after a step with NaN, or the weights "
            "were written in FP16 and did not fit."
        ),
        next=(
            "`all(v.isfinite().all() for v in state.values())` says which file is the last good "
            "one."
        ),
        cards=("saved_half", "nan_only_in_eval"),
        source="diffusers 0.42.1",
    ),
    Message(
        words="CUDA error: device-side assert triggered",
        pattern=r"device-side assert triggered",
        means=(
            "A check inside a kernel failed, and a later line reports it. The lines with "
            '"Assertion" above it, on stderr, have the check.'
        ),
        next=(
            "Look for these lines, or run with CUDA_LAUNCH_BLOCKING=1, or a batch on the CPU, "
            "whose errors name the line."
        ),
        cards=("positions_in_half", "bce_on_probabilities", "softmax_by_hand"),
        source="karpathy/nanoGPT#470",
        date="2024-04-05",
        causes=(
            '"srcIndex < srcSelectDimSize", "index out of bounds" - a token id or position '
            "beyond the table: ids that were cast to half, or another tokenizer",
            '"t >= 0 && t < n_classes" - a label that the loss does not have',
            '"input_val >= zero && input_val <= one" - NaN or no probability in '
            "binary_cross_entropy: logits and FP32",
            '"probability tensor contains either inf, nan or element < 0" - NaN or inf in the '
            "logits: an overflow in FP16",
        ),
    ),
    Message(
        words="RuntimeWarning: divide by zero encountered in log",
        pattern=r"divide by zero encountered in|invalid value encountered in (?!cast)\w+",
        means=(
            "numpy met log(0), x / 0 or inf - inf. A number that FP16 rounded to 0, such as 1e-8, "
            "is one way to come there."
        ),
        next=(
            "Compute in float64, with the epsilon inside: `np.log(np.maximum(p, 1e-12))`; look at "
            "where the 0 was rounded."
        ),
        cards=("log_of_epsilon", "denominator_underflows"),
        source="torch 2.13.0",
    ),
    Message(
        words="Loss nan",
        pattern=any_of(
            r"(?:\b|_)loss(?: is| has become| became|:| =|=|) ?(?:nan|inf)\b",
            r"\bnan loss\b",
            r"(?:nan|inf) loss (?:occurred|detected)",
        ),
        means=NOT_FINITE,
        next=DIAGNOSE,
        cards=("forward_overflow", "log_of_epsilon", "mask_constant"),
        source="deepinsight/insightface#2262",
        date="2023-03-14",
        causes=WHY_NOT_FINITE,
    ),
    Message(
        words="NaN or Inf found in input tensor.",
        pattern=r"nan or inf found in input tensor",
        means=NOT_FINITE,
        next=DIAGNOSE,
        cards=("forward_overflow", "nan_only_in_eval"),
        source="CVMI-Lab/PAConv#29",
        date="2021-12-29",
        causes=WHY_NOT_FINITE,
    ),
    Message(
        words="probability tensor contains either `inf`, `nan` or element < 0",
        pattern=r"probability tensor contains either inf, ?nan",
        means=NOT_FINITE,
        next=DIAGNOSE,
        cards=("softmax_by_hand", "mask_constant", "row_all_masked"),
        source="DLLXW/baby-llama2-chinese#33",
        date="2023-09-15",
        causes=WHY_NOT_FINITE,
    ),
    Message(
        words="A tensor with all NaNs was produced in Unet.",
        pattern=r"a tensor with (?:all )?nans was produced",
        means=NOT_FINITE,
        next="Compute this part in FP32 (--no-half, upcast attention); " + DIAGNOSE,
        cards=("forward_overflow", "nan_only_in_eval"),
        source="camenduru/kohya_ss-colab#5",
        date="2023-08-11",
        causes=WHY_NOT_FINITE,
    ),
    Message(
        words=(
            "RuntimeWarning: invalid value encountered in cast images = (images * "
            '255).round().astype("uint8")'
        ),
        pattern=r"invalid value encountered in cast",
        means=NOT_FINITE,
        next="Decode in FP32, or with weights made for FP16.",
        cards=("forward_overflow", "nan_only_in_eval"),
        source="huggingface/diffusers#2153",
        date="2023-01-29",
        causes=WHY_NOT_FINITE,
    ),
)

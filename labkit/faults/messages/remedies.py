"""Sentences that several messages share: what a group of them means, and what to run next."""

DIAGNOSE = "`labkit diagnose train.py` names the first operation and line that gives inf or NaN."
WATCH = (
    "`labkit watch train.py` shows the skipped steps, the layer that overflows and the safe scales."
)
SKIPS = (
    "A gradient held inf or NaN, so the scaler left this step out and lowered its scale. Now "
    "and then, or at the beginning, that is how it finds the scale; at every step, something "
    "else makes inf or NaN."
)
WHY_SKIPPED = (
    "the scale is being found - the messages stop after some 20 steps, or come once in "
    "hundreds of steps; ignore them",
    "the gradients of one layer are too large for any useful scale - the scale falls at each "
    "step, and the loss is finite; keep that layer in FP32 or use BF16",
    "inf or NaN in the forward pass, the data or the weights - the scale falls at each step "
    "and the loss is inf or NaN, also in FP32 if it is the data",
)
AT_THE_BOTTOM = (
    "The scale fell to its lowest value and gradients still hold inf or NaN. No scale cures "
    "that: they come from the forward pass, the data or the weights, or the training diverges."
)
WHY_AT_THE_BOTTOM = (
    "an overflow in the forward pass - the loss is inf or NaN in FP16, and finite in FP32 at "
    "the same weights",
    "inf or NaN in the data, or a wrong label - one batch always gives it, in FP32 too",
    "the weights are spoilt already - every batch gives it, in FP32 too; go back to the last "
    "good checkpoint",
    "the training diverges - the loss grew for some steps before; lower the learning rate, "
    "clip after unscaling",
)
TWO_DTYPES = (
    "An operation received tensors of two dtypes. Autocast casts the arguments of the "
    "operations on its lists. Outside its region, or where weights were converted by .half(), "
    "the arguments are not cast."
)
ONE_DTYPE = (
    "Run the forward pass inside torch.autocast and keep the weights in FP32, or convert "
    "weights and inputs alike: `x.to(weight.dtype)`. `labkit diagnose train.py` names the "
    "line."
)
WHY_TWO_DTYPES = (
    "the model was converted, the input was not - the weight is Half or BFloat16, the input "
    "Float: `x.to(dtype)`",
    "the input was converted, or a layer before ran under autocast, and this layer runs "
    "outside the region - the input is Half, the weight Float: move the call into the region",
    "this operation is on none of autocast's lists - it is inside the region, and one "
    "operand was made there: cast the other, `y.to(x.dtype)`",
    "a part of the model was added, loaded or kept in FP32 (an adapter, a head, norms) - "
    "`{name: p.dtype for name, p in model.named_parameters()}` shows two dtypes",
    "a custom function has no custom_fwd, so autocast does not cast for it - the traceback "
    "ends in an extension or in the `forward` of an autograd.Function",
)
NO_KERNEL = (
    "torch has no kernel of this operation in half on this device; most often a half model is "
    "on the CPU."
)
FP32_THERE = (
    "Move the model to the GPU, or convert it: `model.float()`. `labkit gpu` says what is found."
)
IN_FP32 = (
    "Compute this operation in FP32 and cast back: `with torch.autocast(device, "
    "enabled=False): y = f(x.float())`, then `y.to(x.dtype)`. `.float()` alone suffices where "
    "autocast does not list the operation."
)
NOT_FINITE = (
    "inf or NaN was there already. In FP16 a number above 65504 is inf, and inf - inf or 0 * "
    "inf is NaN."
)
WHY_NOT_FINITE = (
    "an overflow in FP16 - finite when the same batch runs in FP32 or BF16; keep the layer "
    "that `labkit diagnose` names in FP32",
    "the weights hold NaN after a bad step - `all(p.isfinite().all() for p in "
    "model.parameters())` is False before the batch",
    "the data hold inf or NaN - `x.isfinite().all()` is False for the input of the model",
    "the training diverges - FP32 gives it too, after losses that grew",
)
OLD_CARD = (
    "BF16 needs compute capability 8.0 (Ampere). This GPU has FP16 only, which needs a loss scale."
)
USE_FP16 = (
    "Ask for FP16 (dtype=half, --fp16) with a GradScaler. `labkit gpu` says what the card can do."
)
ONE_PRECISION = (
    "Switch one of the two off: BF16 where the GPU has it (compute capability 8.0), FP16 with "
    "its loss scale elsewhere."
)

OVERFLOWS = ("forward_overflow", "scale_falls_to_zero", "norm_squared_in_half")
HALF_AND_FLOAT = ("zeros_of_another_dtype", "function_without_custom_fwd")
SCALER = ("scale_falls_to_zero", "schedule_counts_skips")

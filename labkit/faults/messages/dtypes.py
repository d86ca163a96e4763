"""Messages about tensors of two dtypes: operands, indices, masks, buffers of `out=`, gradients."""

from __future__ import annotations

from labkit.faults.messages.message import Message, any_of
from labkit.faults.messages.remedies import (
    HALF_AND_FLOAT,
    ONE_DTYPE,
    TWO_DTYPES,
    WHY_TWO_DTYPES,
)

DTYPES = (
    Message(
        words="expected scalar type Long but found Half",
        pattern=any_of(
            r"expected (?:scalar type long but found|target dtype to be long or byte, but"
            r" got) (?:half|bfloat16|float|double|int)\b",
            r"argument #\d+ indices to have one of the following scalar types: long, int;"
            r" but got \S*(?:half|bfloat16|float|double)",
            r"tensors used as indices must be long",
            r"expected indices to be integer dtype",
            r"(?:target|index|ids|indices)(?:\.| )dtype must be (?:int64|long)",
            r"must use an integer dtype",
            r"it should be long",
            r"expected dtype int(?:32/int)?64 for index",
            r"is only applicable to index tensor",
        ),
        means=(
            "An index, a token id or a class label arrived as a floating-point number. FP16 has "
            "no odd integer above 2048, BF16 none above 256, so casting back does not restore "
            "what was rounded."
        ),
        next=(
            "Keep ids and labels int64: cast only where `x.is_floating_point()`, and pass class "
            "labels to cross_entropy as they are loaded."
        ),
        cards=("positions_in_half", "halves_by_hand"),
        source="torch 2.13.0",
        causes=(
            "the whole batch was converted - a collate function, `batch.half()` or "
            "`x.to(device, dtype)` also meets the ids",
            "a framework casts inputs (DeepSpeed with fp16.auto_cast, Lightning's 16-true, "
            "accelerate's hooks) - the ids are int64 in the data set and half in forward",
            "labels are class probabilities or one-hot rows - then they have the shape of the "
            "logits, and belong there as floats",
            "an index was computed by division or in an autocast region - write `//` and "
            "`.long()` where it is made",
        ),
    ),
    Message(
        words="index_add_(): self (Float) and source (Half) must have the same scalar type",
        pattern=any_of(
            r"index_(?:add|reduce|copy)_?\(\): self (?:\(\w+\) and source \(\w+\)(?: must"
            r" have the same scalar type)?|and source expected to have the same dtype)",
            r"\bput_?\(\): self and source expected to have the same dtype",
            r"\btake\(\): self and out expected to have the same dtype",
            r"in call to _th_index_(?:add|copy)_",
        ),
        means=(
            "`x.index_add_(0, i, y)`, index_copy_, index_reduce_, put_ and take cast nothing: x, "
            "made before, has one dtype, and y, computed here, another."
        ),
        next=(
            "Write `x.index_add_(0, i, y.to(x.dtype))`, or make x in the dtype of y. A sum of "
            "many terms is better kept in FP32."
        ),
        cards=("zeros_of_another_dtype",),
        source="NVIDIA/apex#455",
        date="2019-08-25",
        causes=(
            "x was made in FP32 (torch.zeros, outside the region), y comes from a layer under "
            "autocast - self is Float, source Half",
            "x has the dtype of half activations (zeros_like), y was weighted by a softmax or "
            "a norm, which autocast computes in FP32 - self is Half, source Float",
            "the model was converted by .half() and one factor was not, as the routing "
            "weights of a mixture of experts - the dtypes differ outside autocast as well",
        ),
    ),
    Message(
        words="expected dtype float for `end` but got dtype c10::Half",
        pattern=(
            r"expected dtype \S+(?: int)? for (?:end|weight|tensor\w*|source) "
            r"but got dtype \S+"
        ),
        means=(
            "lerp casts neither end: `average.lerp_(value, weight)` has an average in one dtype "
            "and a value in another."
        ),
        next="Keep the average in FP32 and write `average.lerp_(value.to(average.dtype), weight)`.",
        cards=("average_in_bf16", "zeros_of_another_dtype"),
        source="LoganBooker/prodigy-plus-schedule-free#10",
        date="2025-01-14",
        causes=(
            "a moving average (EMA, SWA) was made before the model was converted, or from "
            "another copy - the average and the parameter differ in dtype",
            "an optimizer keeps FP32 state for half weights, or got FP32 gradients for them - "
            "it happens in optimizer.step()",
            "two activations are blended under autocast, one of them from an FP32 operation - "
            "it happens in forward",
        ),
    ),
    Message(
        words="masked_fill_ only supports boolean masks, but got mask with dtype c10::Half",
        pattern=any_of(
            r"masked_\w+ only supports boolean masks, but got",
            r"where expected condition to be a boolean tensor, but got",
            r"(?:mask|cond)(?: tensor|\.dtype)? must (?:be|have dtype) bool",
            r"only bool and floating types of attn_mask are supported",
        ),
        means=(
            "A mask arrived as a number, in half or in FP32: it was converted with the model's "
            "inputs, or computed by a product."
        ),
        next=(
            "Make it bool where it is used: `mask = mask.bool()` (or `mask > 0`), and leave masks "
            "out of `.half()` and `.to(dtype)`."
        ),
        cards=("halves_by_hand", "mask_constant"),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "Support for mismatched key_padding_mask and attn_mask is deprecated. Use same type "
            "for both instead."
        ),
        pattern=r"support for mismatched \w+ and \w+ is deprecated",
        means=(
            "One mask is bool and the other floating point: torch makes one dtype of them, and "
            "-inf of both may meet in a row."
        ),
        next="Pass two bool masks.",
        cards=("row_all_masked", "mask_constant"),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "attempting to assign a gradient with dtype 'float' to a tensor with grad_dtype 'Half'."
        ),
        pattern=any_of(
            r"attempting to assign a gradient with dtype \w+ to a tensor with"
            r" (?:grad_)?dtype \w+",
            r"assigned grad has data of a different type",
        ),
        means="A gradient was stored by hand in another dtype than its parameter has.",
        next=(
            "Give the FP32 gradient to an FP32 master (`master.grad = p.grad.float()`), or cast "
            "it to the parameter's dtype."
        ),
        cards=("saved_half", "adam_in_half"),
        source="torch 2.13.0",
        causes=(
            "gradients are copied to masters or to another model, of which one is half - the "
            "assignment is a line of the script",
            "the parameter was converted (`p.data = p.data.half()`, model.half()) after "
            "gradients existed - clear them first, `optimizer.zero_grad(set_to_none=True)`",
        ),
    ),
    Message(
        words="RNN input dtype (torch.float16) does not match weight dtype (torch.float32).",
        pattern=any_of(
            r"rnn input dtype \(\w+\) does not match weight dtype",
            r"input must have the type \w+, got type \w+",
            r"input and (?:parameter|hidden) tensors are not (?:at )?the same d?type",
        ),
        means=(
            "An LSTM, GRU or RNN takes input, hidden state and weights of one dtype. CUDA's "
            "autocast casts all of them, and the CPU's does not."
        ),
        next=(
            "Convert the input to the dtype of the weights, `rnn(x.to(rnn.weight_ih_l0.dtype))`, "
            "and make the hidden state by `x.new_zeros(...)`."
        ),
        cards=("zeros_of_another_dtype", "linear_algebra"),
        source="pytorch/TensorRT#2666",
        date="2024-02-29",
        causes=(
            "the input is half and the weights are not - the layer runs outside the autocast "
            "region, or on a CPU",
            'the hidden state was made by torch.zeros, in FP32 - the text says "hidden"',
            "the model was converted and the input was not - the text says that the weights "
            "are float16",
        ),
    ),
    Message(
        words=(
            "Expected tensor for argument #1 'other' to have scalar type Half; but got "
            "torch.FloatTensor instead (while checking arguments for sparse_mm_reduce)"
        ),
        pattern=(
            r"expected tensor for argument #\d+ \w+ to have (?:scalar type \w+|one of the"
            r" following scalar types: [\w, ]+); but got"
        ),
        means=TWO_DTYPES,
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="torch 2.13.0",
        causes=WHY_TWO_DTYPES,
    ),
    Message(
        words="Input type (double) and bias type (float) should be the same",
        pattern=(
            r"input type \(\S*(?:double|long|int|byte)\S*(?: int)?\) and (?:weight|bias) type"
            r" \([^)]*(?:float|half)[^)]*\) should be the same"
        ),
        means=(
            "The input is FP64 or an integer, and the weights are not. numpy's numbers are FP64, "
            "images are bytes."
        ),
        next=(
            "Convert the input where it is loaded: `x.float()`; autocast casts FP32 inputs, and "
            "leaves FP64 alone."
        ),
        cards=("zeros_of_another_dtype",),
        source="torch 2.13.0",
        causes=(
            "the type is double - the array came from numpy without a dtype: "
            "`torch.from_numpy(a).float()`",
            "the type is an integer or byte - an image or ids were not converted",
        ),
    ),
    Message(
        words="linalg.svd: Expected a floating point or complex tensor as input. Got Long",
        pattern=any_of(
            r"expected (?:a |input to have )?floating point or complex (?:tensor as input"
            r"|dtype)[. ]",
            r"could not infer output dtype",
            r"only supports? floating point and complex dtypes",
            r"is a continuous probability distribution\. dtype must be",
            r"integer division with addcdiv",
            r"finfo\(\) requires a floating point input",
            r"handles only integral, floating-point",
            r"input dtype should be either floating point or complex",
            r"not implemented for (?:long|int|short|char|byte|bool)\b",
        ),
        means=(
            "The operation has real numbers as its result, and the input holds integers: counts, "
            "labels or ids."
        ),
        next=(
            "Convert the input to FP32: `x.float()`. In FP16 a count above 2048 is not exact, and "
            "above 65504 it is inf."
        ),
        cards=("validation_sum", "positions_in_half"),
        source="torch 2.13.0",
    ),
    Message(
        words="prelu: Type promoting not supported. Got Half and Float",
        pattern=any_of(
            r"prelu: type promoting not supported",
            r"is not yet implemented for tensors with different dtypes",
        ),
        means=TWO_DTYPES,
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="torch 2.13.0",
        causes=WHY_TWO_DTYPES,
    ),
    Message(
        words=(
            "Mismatch dtype between input and weight: input dtype = c10::Half, weight dtype = "
            "float, Cannot dispatch to fused implementation."
        ),
        pattern=r"mismatch dtype between input and weight",
        means=(
            "A warning of RMS norm: input and weight have two dtypes, so torch computes it by "
            "several operations instead of one. The result is right, and slower."
        ),
        next=(
            "Under CUDA's autocast it is FP32 anyway. To have the one kernel, give both one "
            "dtype: `norm(x.float())` or `norm.to(x.dtype)`."
        ),
        cards=("forward_overflow",),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "Expected object of scalar type Half but got scalar type Float for argument #2 'mat2'"
        ),
        pattern=(
            r"expected object of (?:scalar type \w+ but got scalar type|(?:data type|backend"
            r"|type) \S+ but (?:found|got) (?:type )?\S*(?:tensor|half))"
        ),
        means="Words of torch 1: an operation received tensors of two dtypes, and casts neither.",
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="NVIDIA/apex#430",
        date="2019-08-14",
        causes=WHY_TWO_DTYPES,
    ),
    Message(
        words=(
            "Query/Key/Value should either all have the same dtype, or (in the quantized case) "
            "Key/Value should have dtype torch.int32"
        ),
        pattern=any_of(
            r"query/key/value should either all have the same dtype",
            r"query, key,? and value must (?:be either bfloat16 or float16|have the same"
            r" dtype)",
            r"backward pass with mixed query, key, and value dtype is not supported",
        ),
        means=(
            "Attention casts none of its three operands. Rotary embeddings and norms of query and "
            "key often give FP32 beside half values."
        ),
        next="Cast after the rotation: `q, k = q.to(v.dtype), k.to(v.dtype)`.",
        cards=("zeros_of_another_dtype", "switched_off_but_half"),
        source="lucidrains/rotary-embedding-torch#9",
        date="2023-10-21",
        causes=(
            "one dtype is FP32 - query or key were rotated or normalised in FP32; cast them "
            "to the dtype of the values",
            "key and value come from a cache or another model - their dtype is that of the cache",
        ),
    ),
    Message(
        words="result type Float can't be cast to the desired output type Long",
        pattern=(
            r"(?:result type|input types?) (?:\w+ )?cant be cast "
            r"to the desired out(?:put|=) type"
        ),
        means=(
            "An operation in place, or with `out=`, has a result that its tensor cannot hold: a "
            "float in an integer, a complex number in a real one."
        ),
        next=(
            "Write it out of place (`x = x + y`), or make the tensor with the dtype of the "
            "result: counts and sums of losses as FP32 or FP64."
        ),
        cards=("validation_sum", "zeros_of_another_dtype"),
        source="torch 2.13.0",
        causes=(
            "a counter or a buffer was made from integers, `torch.tensor(0)` or `zeros(n, "
            "dtype=long)` - the output type is Long or Int",
            "data was loaded as integers and is normalised in place - `x.div_(255)`; convert "
            "it first, `x.float().div_(255)`",
            "`out=` names a buffer of another kind - the call has out=",
        ),
    ),
    Message(
        words="Expected out tensor to have dtype c10::BFloat16, but got float instead",
        pattern=any_of(
            r"expected out(?: type|put tensor|put)? (?:to be|to have d?type|of dtype)"
            r" ?\w+,? but (?:got|found|got an output tensor with dtype) \w+",
            r"the output tensor to have dtype \w+, but got",
            r"expected out tensor d?type \w+ but got",
            r"expected result to (?:be safely castable from|have the same dtype|be of dtype)",
            r"expected \w+ to be safely castable from",
            r"self and result must have the same scalar type",
            r"dtype of out: \w+ should be same as input",
            r"out tensor must be same dtype as",
            r"the dtype for input and out to match",
            r"result dtype \w+ does not match (?:input|\w+) dtype",
            r"does not match dtype of out parameter",
            r"expects a (?:complex|floating point) output tensor, but got",
            r"input tensor and hist tensor should have the same dtype",
            r"only supports bool tensor for result",
            r"tensor out, got: ?\w+",
            r"expected out tensor to have (?:scalar type|dtype) \w+(?: int)?,? but got",
            r"expected (?:cancast\(.{0,90}out\.dtype|self\.dtype\(\) == output\.dtype)",
            r"output tensors dtype is wrong",
            r"floating point type for result tensor, but got",
            r"bad in-place call: input tensor dtype",
            r"(?:base|output) given to float_power_? has dtype",
        ),
        means=(
            "The tensor of `out=`, or of an operation in place, has another dtype than the result."
        ),
        next=(
            "Make the buffer of `out=` in the dtype of the operands, or leave out `out=` and "
            "cast: `f(x).to(buffer.dtype)`."
        ),
        cards=HALF_AND_FLOAT,
        source="unslothai/unsloth#1184",
        date="2024-10-26",
        causes=(
            "the buffer was made in FP32 and the operands are half, or conversely - autocast "
            "casts operands, never `out=`",
            "an index or a flag is returned, and the buffer is a float - the expected type is "
            "Long or Bool",
        ),
    ),
    Message(
        words="Only Tensors of floating point and complex dtype can require gradients",
        pattern=r"only tensors of floating point(?: and complex)? dtype can require gradients",
        means=(
            "A parameter holds integers: weights that were quantized to 8 or 4 bits, or a tensor "
            "of counts or ids."
        ),
        next=(
            "Train adapters beside quantized weights (`requires_grad_(False)` for these), or load "
            "the model without quantization."
        ),
        cards=("half_weights_unscaled",),
        source="torch 2.13.0",
        causes=(
            "the model was loaded in 8 or 4 bits and all parameters are set to be trained - "
            "the dtype is int8 or uint8",
            "a table of ids or a mask was made a Parameter - register it as a buffer",
        ),
    ),
    Message(
        words=(
            "nn.Module.to only accepts floating point or complex dtypes, but got desired "
            "dtype=torch.int8"
        ),
        pattern=r"module\.to only accepts floating point or complex dtypes",
        means="A module cannot be converted to integers: rounding weights to int8 needs a scale.",
        next=(
            "Use a quantization library (torchao, bitsandbytes); `.to(torch.float16)` or "
            "`.to(torch.bfloat16)` for 16 bits."
        ),
        cards=("halves_by_hand",),
        source="torch 2.13.0",
    ),
    Message(
        words="Half did not match Float",
        pattern=any_of(
            r"\b(?:half|bfloat16|float|double) did not match (?:half|bfloat16|float|double)\b",
            r"the values for attribute dtype do not match: \w*float",
        ),
        means="A comparison (allclose, isclose, assert_close) takes two tensors of one dtype.",
        next=(
            "Compare in FP32, with a tolerance of the narrower format: `assert_close(a.float(), "
            "b.float(), rtol=2**-10, atol=...)`; `labkit tolerance` derives one."
        ),
        cards=("eager_unlike_compiled",),
        source="torch 2.13.0",
    ),
    Message(
        words="dets should have the same type as scores",
        pattern=any_of(
            r"dets should have the same type as scores",
            r"expected boxes and scores to have the same",
        ),
        means=(
            "Suppression of boxes takes boxes and scores of one dtype. exp in the decoder of "
            "boxes gives FP32 under autocast, and the scores stay half."
        ),
        next=(
            "Call it in FP32: `nms(boxes.float(), scores.float(), threshold)`. In FP16 boxes also "
            "lose a pixel above 2048."
        ),
        cards=("positions_in_half", "zeros_of_another_dtype"),
        source="open-mmlab/mmdetection#9727",
        date="2023-02-06",
    ),
    Message(
        words=(
            "self.size(-1) must be divisible by 2 to view Half as Float (different element "
            "sizes), but got 3"
        ),
        pattern=(
            r"to view (?:half|bfloat16|float|double|long|int|byte|char) as \w+ \(different"
            r" element sizes\)"
        ),
        means="`x.view(dtype)` reads the same bytes as another format; it converts no number.",
        next=(
            "To convert write `x.to(dtype)`. Read as bits, two FP16 numbers become one FP32 "
            "number without a meaning."
        ),
        cards=("halves_by_hand",),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "Registering a parametrization may not change the dtype of the tensor, unless "
            "`unsafe` flag is enabled."
        ),
        pattern=any_of(
            r"may not change the dtype",
            r"(?:right_inverse|parametrization)\S* (?:has|must have) (?:d|the same d)type",
        ),
        means=(
            "A parametrization (weight norm, spectral norm, fake quantization) returns another "
            "dtype than the parameter has."
        ),
        next=(
            "Compute inside in FP32 and return `result.to(parameter.dtype)`; register it before "
            "the model is converted."
        ),
        cards=("function_without_custom_fwd",),
        source="torch 2.13.0",
    ),
    Message(
        words="Found dtype Float but expected Half",
        pattern=r"found dtype \w+ but expected \w+",
        means=(
            "A gradient arrived in another dtype than its tensor has: the loss and its target "
            "differ in dtype."
        ),
        next="Compute the loss in FP32: `loss_fn(output.float(), target.float())`.",
        cards=("saved_half", *HALF_AND_FLOAT),
        source="nebuly-ai/optimate#275",
        date="2023-03-20",
        causes=(
            "the target is FP32 or FP64 and the output half, or conversely - mse_loss and "
            "others in this backward: cast both, `.float()`",
            "a custom backward returns another dtype - the traceback of anomaly mode names an "
            "autograd.Function",
        ),
    ),
    Message(
        words=(
            "Function _DCNv2Backward returned an invalid gradient at index 0 - expected type "
            "torch.cuda.HalfTensor but got torch.cuda.FloatTensor"
        ),
        pattern=(
            r"returned an invalid gradient at index \d+ - expected type (?:\S+ but got"
            r" )?\S*(?:half|bfloat)"
        ),
        means="The backward of this operation gives a gradient of another dtype than its input.",
        next=(
            "Write the function with torch.amp.custom_fwd and custom_bwd, or return "
            "`gradient.to(input.dtype)`."
        ),
        cards=("function_without_custom_fwd", "saved_half"),
        source="NVIDIA/apex#488",
        date="2019-09-11",
    ),
    Message(
        words="expected scalar type Half but found Float",
        pattern=r"expected scalar[_ ]?type ?\w+ but found \w+",
        means=TWO_DTYPES,
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="ShivamShrirao/diffusers#39",
        date="2022-10-18",
        causes=WHY_TWO_DTYPES,
    ),
    Message(
        words="expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
        pattern=r"expected m\w+ and m\w+ to have the same dtype",
        means=TWO_DTYPES,
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="ToTheBeginning/PuLID#162",
        date="2024-11-14",
        causes=WHY_TWO_DTYPES,
    ),
    Message(
        words="mat1 and mat2 must have the same dtype, but got Float and Half",
        pattern=r"\w+ and \w+ must have the same dtype",
        means=TWO_DTYPES,
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="OpenBMB/MiniCPM-V#234",
        date="2024-06-06",
        causes=WHY_TWO_DTYPES,
    ),
    Message(
        words=(
            "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should "
            "be the same"
        ),
        pattern=any_of(
            r"input type \([^)]*(?:half|bfloat)[^)]*\) and (?:weight|bias) type \([^)]*\)"
            r" should be the same",
            r"(?:weight|bias) type \([^)]*(?:half|bfloat)[^)]*\) should be the same",
        ),
        means=TWO_DTYPES,
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="Yu-Fangxu/COLD-Attack#20",
        date="2025-03-01",
        causes=WHY_TWO_DTYPES,
    ),
    Message(
        words=(
            "Expected tensor for argument #1 'grad_output' to have the same type as tensor for "
            "argument #2 'weight'"
        ),
        pattern=(
            r"expected tensor for argument #\d+ \w+ "
            r"to have the same type as tensor for argument"
        ),
        means=TWO_DTYPES,
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="jik876/hifi-gan#44",
        date="2021-11-29",
        causes=WHY_TWO_DTYPES,
    ),
    Message(
        words="Expected query, key, and value to have the same dtype, but got query.dtype: float",
        pattern=r"expected query, key, and value to have the same dtype",
        means=TWO_DTYPES,
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="AUTOMATIC1111/stable-diffusion-webui#10853",
        date="2023-05-30",
        causes=WHY_TWO_DTYPES,
    ),
    Message(
        words=(
            "Expected attn_mask dtype to be bool or to match query dtype, but got "
            "attn_mask.dtype: c10::Half and query.dtype: float instead."
        ),
        pattern=r"expected attn_mask dtype to be bool or (?:float or )?to match query dtype",
        means=(
            "The mask was made in one dtype, and queries arrive in another: attention casts "
            "neither of them."
        ),
        next=(
            "Pass a bool mask, or `mask.to(query.dtype)`, made where the dtype of the queries is "
            "known."
        ),
        cards=("mask_constant", *HALF_AND_FLOAT),
        source="hiyouga/LlamaFactory#3842",
        date="2024-05-21",
        causes=(
            "the mask was made in FP32 (torch.zeros, a buffer) and the model runs in half - "
            "mask float, query half",
            "the mask was converted with the model and attention runs in FP32 - mask half, "
            "query float",
            "queries were rotated or normalised in FP32 - query float, mask and values half: "
            "cast the query",
        ),
    ),
    Message(
        words="mixed dtype (CPU): expect parameter to have scalar type of Float",
        pattern=r"mixed dtype \(cpu\): expect",
        means=TWO_DTYPES,
        next=ONE_DTYPE,
        cards=HALF_AND_FLOAT,
        source="Comfy-Org/ComfyUI#4954",
        date="2024-09-17",
        causes=(
            "the norm was converted and its input was not - parameters half, input Float: a "
            "CPU takes half inputs with FP32 parameters, never the reverse",
            "parameters and input are two 16-bit formats - BF16 weights, FP16 input",
            "the running statistics of a batch norm were left in another dtype - convert the "
            "module as a whole",
        ),
    ),
    Message(
        words=(
            "Index put requires the source and destination dtypes match, got Half for the "
            "destination"
        ),
        pattern=r"index put requires the source and destination dtypes match",
        means=(
            "`x[index] = y` casts nothing: under autocast y is half and x, made before, is not, "
            "or conversely."
        ),
        next="Write `x[index] = y.to(x.dtype)`.",
        cards=("zeros_of_another_dtype",),
        source="hiyouga/LlamaFactory#3807",
        date="2024-05-18",
        causes=(
            "x was made in FP32, y comes from a layer under autocast - x is Float",
            "x is half, y is the result of an FP32 operation (softmax, a norm, a loss) - x is Half",
        ),
    ),
    Message(
        words="scatter(): Expected self.dtype to be equal to src.dtype",
        pattern=any_of(
            r"expected self\.dtype to be equal to src\.dtype",
            r"expected self and source to have same dtypes",
        ),
        means=(
            "`x.scatter_(..., y)` casts nothing: under autocast y may be half where x, made "
            "before, is not."
        ),
        next=(
            "Write `x.scatter_(dim, index, y.to(x.dtype))`; so too scatter_add_ and "
            "masked_scatter_."
        ),
        cards=("zeros_of_another_dtype",),
        source="cvg/glue-factory#76",
        date="2024-04-17",
        causes=(
            "x was made in FP32, y comes from a layer under autocast - x is Float",
            "x is half, y is the result of an FP32 operation, such as routing weights after "
            "softmax - x is Half",
        ),
    ),
)

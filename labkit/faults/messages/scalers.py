"""Messages of loss scalers: GradScaler, and the lines of apex, DeepSpeed, fairseq and Megatron."""

from __future__ import annotations

from labkit.faults.messages.message import Message, any_of
from labkit.faults.messages.remedies import (
    AT_THE_BOTTOM,
    DIAGNOSE,
    OVERFLOWS,
    SCALER,
    SKIPS,
    WATCH,
    WHY_AT_THE_BOTTOM,
    WHY_NOT_FINITE,
    WHY_SKIPPED,
)

SCALERS = (
    Message(
        words="Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 0.03125",
        pattern=r"gradient overflow\. ?skipping step",
        means=SKIPS,
        next=WATCH,
        cards=SCALER,
        source="whai362/PVT#94",
        date="2022-02-25",
        causes=WHY_SKIPPED,
    ),
    Message(
        words="OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 128.0, reducing to 64.0",
        # the line about hysteresis, in which the scale stays, has a row of its own
        pattern=(
            r"(?:overflow! rank \S+ skipping step|skipping step\. attempted loss scale)"
            r"(?!.{0,60}hysteresis)"
        ),
        means=SKIPS,
        next=WATCH,
        cards=SCALER,
        source="CarperAI/trlx#342",
        date="2023-03-01",
        causes=WHY_SKIPPED,
    ),
    Message(
        words="Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1",
        pattern=r"hysteresis is \S+ reducing hysteresis",
        means=(
            "A gradient held inf or NaN, so the scaler left this step out. Its scale stays: with "
            "hysteresis, only several overflows lower it."
        ),
        next=WATCH,
        cards=SCALER,
        source="deepspeedai/DeepSpeed#931",
        date="2023-04-28",
        causes=WHY_SKIPPED,
    ),
    Message(
        words="Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        pattern=r"loss[ _]scale (?:is )?already at (?:the )?minimum",
        means=AT_THE_BOTTOM,
        next=DIAGNOSE,
        cards=OVERFLOWS,
        source="deepspeedai/DeepSpeedExamples#418",
        date="2023-04-25",
        causes=WHY_AT_THE_BOTTOM,
    ),
    Message(
        words="Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        pattern=r"minimum loss scale reached",
        means=AT_THE_BOTTOM,
        next=DIAGNOSE,
        cards=OVERFLOWS,
        source="facebookresearch/fairseq#1529",
        date="2019-12-20",
        causes=WHY_AT_THE_BOTTOM,
    ),
    Message(
        words="overflow detected, setting loss scale to: 0.0625",
        pattern=r"overflow detected,? setting loss scale",
        means=SKIPS,
        next=WATCH,
        cards=SCALER,
        source="facebookresearch/fairseq#512",
        date="2019-02-19",
        causes=WHY_SKIPPED,
    ),
    Message(
        words="Fp16 Grad Scale:  0",
        pattern=r"grad scale: ?0(?![.\d])",
        means=AT_THE_BOTTOM,
        next=DIAGNOSE,
        cards=OVERFLOWS,
        source="deepinsight/insightface#2262",
        date="2023-03-14",
        causes=WHY_AT_THE_BOTTOM,
    ),
    Message(
        words="Attempted step but _scale is None.",
        pattern=r"attempted \w+ but _\w+ is none",
        means=(
            "The scaler stepped, unscaled or updated before it had scaled a loss: "
            "scaler.scale(loss) makes the scale."
        ),
        next=(
            "Call scaler.scale(loss).backward() before scaler.step, in each iteration; restore a "
            "scaler's state first."
        ),
        cards=("no_gradients_this_turn", "scaler_not_saved"),
        source="Lightning-AI/pytorch-lightning#18510",
        date="2023-09-08",
        causes=(
            "scale() was not called on the loss before - the first iteration fails: "
            "scaler.scale(loss).backward()",
            "another scaler scaled the loss, or a copy of it - two GradScaler objects in the "
            "script",
            "the loss was scaled on a rank or a branch that this step did not take - it fails "
            "later",
        ),
    ),
    Message(
        words="step() has already been called since the last update().",
        pattern=r"step\(\) has already been called since",
        means=(
            "The scaler stepped this optimizer twice without scaler.update() in between, which "
            "ends an iteration."
        ),
        next=(
            "Call scaler.update() once in each iteration, after all steps, also where a step was "
            "left out."
        ),
        cards=("unscaled_twice", "scale_changes_between"),
        source="Azure/MS-AMP#45",
        date="2023-04-12",
        causes=(
            "two calls of step() for one optimizer in an iteration - a second line, or a loop "
            "over optimizers with one twice",
            "update() was left out in an iteration - the error comes in the one after",
        ),
    ),
    Message(
        words="No inf checks were recorded prior to update.",
        pattern=r"no inf checks were recorded",
        means=(
            "scaler.update() or step() found no gradient that was looked at: nothing was stepped, "
            "or nothing got one."
        ),
        next=(
            "Call scaler.step(optimizer) before scaler.update(), and skip both where no parameter "
            "got a gradient."
        ),
        cards=("no_gradients_this_turn", "optimizer_made_before"),
        source="Haochen-Wang409/HPM#10",
        date="2024-05-24",
        causes=(
            "no parameter of this optimizer got a gradient - all of them are frozen, or the "
            "loss is not connected to them: `[p.grad is None for p in ...]` is all True",
            "the optimizer holds other parameters than the model - it was made before the "
            "model was copied, wrapped or converted",
            "update() was called and step() was not - in an accumulation, or where a step is "
            "left out on purpose: unscale_ records as well",
            'reentrant checkpointing gave no gradients - the warning "None of the inputs have '
            'requires_grad" is printed before',
        ),
    ),
    Message(
        words="unscale_() has already been called on this optimizer since the last update().",
        pattern=r"unscale_\(\) has already been called",
        means=(
            "The scaler divides the gradients of an optimizer once in an iteration, and update() "
            "ends the iteration."
        ),
        next=(
            "Call unscale_ once, before clipping, and update() once in each iteration, also where "
            "step() is left out."
        ),
        cards=("unscaled_twice", "scale_changes_between"),
        source="Haian-Jin/LVSM#19",
        date="2025-07-05",
        causes=(
            "unscale_ is called for each part of an accumulation, or once to clip and once to "
            "log - the error comes in the first iteration. Move it behind the last part, and "
            "clip and log after it",
            "an iteration left out scaler.update() (`continue`, a guard against NaN, an "
            "`except`) - the error comes in the iteration after the first one that was left "
            "out; call update() there too",
            "a framework has unscaled already (accelerator.clip_grad_norm_, Lightning's "
            "clipping) - only one of the two calls is in your script",
        ),
    ),
    Message(
        words="unscale_() is being called after step().",
        pattern=r"unscale_\(\) is being called after step",
        means=(
            "The step was done with gradients that were unscaled then; to unscale them now is too "
            "late."
        ),
        next="Order: scale(loss).backward(), unscale_, clip, step, update.",
        cards=("unscaled_twice", "clip_before_unscale"),
        source="torch 2.13.0",
        causes=(
            "clipping or logging comes after step() - move it before",
            "update() was left out after the step of this iteration - call it once, at the end",
        ),
    ),
    Message(
        words="Attempting to unscale FP16 gradients.",
        pattern=any_of(
            r"attempting to unscale (?:fp16|half|b?float16) gradients",
            r"attempting to unscale gradients of dtype",
        ),
        means=(
            "A parameter that is trained is stored in FP16, so its gradients are FP16, and a "
            "scaler refuses to divide them there. Mixed precision trains FP32 weights and casts "
            "for each operation."
        ),
        next=(
            "Train FP32 weights: load in FP32 and leave the casts to autocast; with adapters, "
            "`p.data = p.data.float()` for each p with requires_grad. `{p.dtype for p in "
            "model.parameters() if p.requires_grad}` must be {float32}."
        ),
        cards=("half_weights_unscaled", "saved_half"),
        source="haotian-liu/LLaVA#294",
        date="2023-08-04",
        causes=(
            "the model was loaded in FP16 (dtype=torch.float16) and is trained with fp16=True "
            "- all parameters are float16",
            "adapters were made half, or loaded into a half model - only the adapters need a "
            "gradient, and they are float16; PEFT's autocast_adapter_dtype=True keeps them in "
            "FP32, prepare_model_for_kbit_training those of a quantized model",
            "model.half() was called before training, or to save a checkpoint - it converts "
            "the model itself",
        ),
    ),
    Message(
        words="Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
        pattern=r"detected call of lr_scheduler\.step\(\) before",
        means="The schedule moved on although the optimizer has not stepped yet.",
        next=(
            "Step the schedule after scaler.step and only if it stepped: compare "
            "scaler.get_scale() before and after update()."
        ),
        cards=("schedule_counts_skips", "first_steps_refused"),
        source="torch 2.13.0",
        causes=(
            "the scaler skipped the first step - the lines are in the right order, the "
            "warning comes once, and the scale fell; harmless but for the count of steps",
            "the two calls are in the wrong order - it comes without a scaler too",
            "the optimizer was replaced or wrapped after the schedule was made - make the "
            "schedule last",
        ),
    ),
    Message(
        words=(
            "The source state dict is empty, possibly because it was saved from a disabled "
            "instance of GradScaler."
        ),
        pattern=r"source state dict is empty, possibly because it was saved from a disabled",
        means=(
            "The checkpoint was written by a run without loss scaling: in FP32 or BF16, or on a "
            "machine without a GPU, where the scaler switched itself off."
        ),
        next=(
            "Load the state only if it is not empty; the scale finds itself again within some "
            "steps."
        ),
        cards=("scaler_not_saved", "first_steps_refused"),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "A GradScaler instance may only be pickled at the beginning of an iteration, or at "
            "the end after scaler.update()."
        ),
        pattern=r"gradscaler instance may only be pickled",
        means=(
            "In the middle of an iteration a scaler holds what it found of the gradients, which "
            "no checkpoint has."
        ),
        next="Save after update(); save scaler.state_dict(), not the scaler.",
        cards=("scaler_not_saved",),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "new_scale should be a float or a 1-element torch.cuda.FloatTensor or "
            "torch.FloatTensor with requires_grad=False."
        ),
        pattern=any_of(
            r"new_scale should be a float",
            r"inv_scale must be a float tensor",
            r"found_inf must be a float tensor",
        ),
        means="The scale is one FP32 number: half has no 65536, where scalers begin.",
        next="Pass a float, `scaler.update(2.0**14)`.",
        cards=("scale_changes_between",),
        source="torch 2.13.0",
    ),
    Message(
        words="The growth factor must be > 1.0.",
        pattern=r"the (?:growth|backoff) factor must be [<>]",
        means=(
            "After a number of clean steps the scale is multiplied by growth_factor, after inf or "
            "NaN by backoff_factor."
        ),
        next=(
            "Take growth_factor above 1 and backoff_factor below 1: 2.0 and 0.5, powers of two, "
            "change no bit of a gradient but its exponent."
        ),
        cards=("scale_falls_to_zero",),
        source="torch 2.13.0",
    ),
    Message(
        words="Closure use is not currently supported if GradScaler is enabled.",
        pattern=any_of(
            r"closure use is not currently supported if gradscaler",
            r"amp does not support closure use",
            r"closure argument is unsupported by the amp optimizer",
            r"closure is not supported .{0,40}(?:fp16|amp|scaler)",
            r"amp and the lbfgs optimizer are not compatible",
            r"lbfgs\.step\(\) missing 1 required positional argument: closure",
        ),
        means=(
            "An optimizer with a closure (LBFGS) runs forward and backward several times in a "
            "step, where a scaler looks at the gradients once."
        ),
        next="Train in BF16 or FP32 without a scaler, or with another optimizer.",
        cards=("no_gradients_this_turn", "scale_changes_between"),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "GradScaler is going to stop passing itself as a keyword argument to the passed "
            "optimizer."
        ),
        pattern=r"gradscaler is going to stop passing itself as a keyword argument",
        means=(
            "An optimizer of one's own takes grad_scaler= in step(); later it finds grad_scale "
            "and found_inf as attributes."
        ),
        next=(
            "Read `self.grad_scale` and `self.found_inf` in step(), and set "
            "`_step_supports_amp_scaling = True`."
        ),
        cards=("unscaled_twice",),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "The current optimizer, AdamW, does not allow for gradient clipping because it "
            "performs unscaling of gradients internally. HINT: Are you using a 'fused' optimizer?"
        ),
        pattern=any_of(
            r"does not allow for gradient clipping because it performs unscaling",
            r"gradient clipping is not implemented for optimizers handling the unscaling",
        ),
        means=(
            "A fused optimizer divides by the scale inside its step, so Lightning has no unscaled "
            "gradients to clip."
        ),
        next=(
            "Take fused=False, or BF16 without a scaler (bf16-true), or clip by hand after "
            "scaler.unscale_, which a fused optimizer respects."
        ),
        cards=("clip_before_unscale", "unscaled_twice"),
        source="Lightning-AI/pytorch-lightning#21435",
        date="2025-12-20",
    ),
    Message(
        words="NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0",
        pattern=any_of(
            r"gradient overflow detected, ignoring gradient(?:, setting loss scale to:?"
            r" ?[\d.]+)?",
            r"amp: overflow detected, setting scale",
            r"amp: skipping this batch",
            r"overflow within closure!",
            r"gradient overflow, skipping (?:update|step)",
            r"grad overflow on iteration",
            r"reducing dynamic loss scale from",
            r"detected overflow \S+ in tensor",
            r"gradients are non-?finite, weights were not updated",
            # a guard of the user's own skips a batch of data or an entry of a cache, too
            r"(?:skipping|skipped) (?:the )?(?:step|update|iteration)s?"
            r" .{0,40}(?:overflow|non-?finite gradient|(?:nan|inf) gradient)",
            r"(?:overflow|non-?finite|nan|inf)\b.{0,40}\bskipping (?:the )?(?:optimizer )?step",
        ),
        means=SKIPS,
        next=WATCH,
        cards=SCALER,
        source="fairseq 0.12.2",
        causes=WHY_SKIPPED,
    ),
    Message(
        words=(
            "loss scale: 1.0 | grad norm: nan | actual seqlen: 2048 | number of skipped "
            "iterations: 0"
        ),
        pattern=any_of(
            r"gradients are nan/inf",
            r"detected nan/inf grad norm",
            r"non-?finite (?:grad\w*|norm)",
            r"grad(?:ient)?[ _]norm(?: is|:|=)? ?(?:nan|inf)\b",
            r"found nan in local grad norm",
            r"grad_norm: ?(?:nan|inf)",
        ),
        means=(
            "The norm of the gradients is inf or NaN, so at least one gradient is, or their "
            "squares do not fit the dtype of the sum."
        ),
        next=WATCH + " " + DIAGNOSE,
        cards=("norm_squared_in_half", "clip_with_inf", "scale_falls_to_zero"),
        source="bigscience-workshop/Megatron-DeepSpeed#396",
        date="2023-08-27",
        causes=(
            "a scaler is looking for its scale - the norm is inf now and then and the step is "
            "left out; ignore it",
            "the norm was added up in half - each gradient is finite, `p.grad.float().norm()` too",
            "the gradients are still scaled - the norm divides by scaler.get_scale() to a "
            "finite one; unscale first",
            "BF16 or FP32 without a scaler - nothing skips the step, so the weights are NaN "
            "after it: go back to a checkpoint",
            "the loss is 0.0 beside it - a logger shows NaN as 0 (logging_nan_inf_filter), so "
            "the forward pass gave NaN: an FP16 overflow or a batch without labels",
        ),
    ),
    Message(
        words=(
            "FloatingPointError: Fatal error: gradients are inconsistent between workers. Try "
            "--ddp-backend=no_c10d."
        ),
        pattern=r"gradients are inconsistent between workers",
        means=(
            "fairseq compares the norm of the gradients of all workers. The table below the "
            "message has one for each rank."
        ),
        next=(
            "Look at the table: NaN on all ranks is an overflow, and the connection between the "
            "workers is not at fault. " + DIAGNOSE
        ),
        cards=("ranks_part", "forward_overflow"),
        source="facebookresearch/fairseq#1372",
        date="2021-01-15",
        causes=(
            "all ranks have nan - NaN is not equal to NaN: an overflow, or inf in the data; "
            "--fp16 with a lower learning rate, or FP32 for the first updates",
            "the ranks have different numbers - one ran out of memory or skipped a batch, or "
            "GPUs of two generations round differently; --ddp-backend=legacy_ddp",
            "some ranks have nan - one batch overflows on one rank",
        ),
    ),
    Message(
        words=(
            "Unexpected result nan on rank 3 at iteration #3 (message='found NaN in local forward "
            "loss calculation')"
        ),
        pattern=any_of(
            r"unexpected result (?:nan|inf)",
            r"found (?:nan|inf) in (?:local )?(?:forward loss|loss|grad)",
            r"number of nan iterations: ?[1-9]",
        ),
        means=(
            "Megatron looks at the loss, and at each bucket of gradients before they are summed, "
            "and found inf or NaN on one rank."
        ),
        next=(
            DIAGNOSE
            + " Without a loss scale (BF16) no step is left out: go back to the checkpoint before."
        ),
        cards=("forward_overflow", "ranks_part", "row_all_masked"),
        source="NVIDIA/Megatron-LM#5026",
        date="2026-05-27",
        causes=WHY_NOT_FINITE,
    ),
    Message(
        words=(
            "ZeroDivisionError: float division by zero (apex/amp/scaler.py: "
            "out_scale/grads_have_scale)"
        ),
        pattern=any_of(
            r"(?:scaler\.py|scale_loss|grads_have_scale|unscale|loss_scale).{0,400}float"
            r" division by zero",
            r"float division by zero.{0,200}(?:scaler|grads_have_scale|loss_scale)",
        ),
        means=(
            "Every step found inf or NaN, so the scale was halved until it was 0, and gradients "
            "are divided by it. To add an epsilon there hides it."
        ),
        next='Look at the first of the "Gradient overflow" lines, not the last. ' + DIAGNOSE,
        cards=OVERFLOWS,
        source="NVIDIA/apex#777",
        date="2020-03-26",
        causes=WHY_AT_THE_BOTTOM,
    ),
    Message(
        words="assert all_groups_norm > 0",
        pattern=r"all_groups_norm ?> ?0",
        means=(
            "DeepSpeed's BF16 optimizer found a norm of the gradients that is 0 or NaN; NaN > 0 "
            "is False as well."
        ),
        next=(
            "Print the loss before: NaN is an overflow or a bad batch; 0 is a batch without "
            "labels or without trained parameters. " + DIAGNOSE
        ),
        cards=("forward_overflow", "no_gradients_this_turn"),
        source="deepspeedai/DeepSpeed#5223",
        date="2024-03-04",
    ),
    Message(
        words="high precision param has no gradient, lp param_id = 140 group_info = [0][3]",
        pattern=r"high precision param has no gradient|fp32 parameters of sub_group \S+ is none",
        means="A parameter of DeepSpeed's optimizer got no gradient in this iteration.",
        next="Freeze it before deepspeed.initialize, or take part with `0 * p.sum()` in the loss.",
        cards=("no_gradients_this_turn", "optimizer_made_before"),
        source="deepspeed 0.19.8",
    ),
    Message(
        words="DeepSpeed LAMB optimizer requires dynamic loss scaling.",
        pattern=any_of(
            r"optimizer requires dynamic loss scaling",
            r"fp16 expects a grad scaler",
            r"fp16\.loss_scale must be",
            r"fp16\.(?:loss_scale_window|min_loss_scale) must be > 0",
            r"does not use a scaler, found",
        ),
        means=(
            "The settings of the loss scale do not fit the precision: FP16 needs one, a dynamic "
            "one for some optimizers, and BF16 takes none."
        ),
        next=(
            "For FP16 set loss_scale to 0 (dynamic) with min_loss_scale 1; for BF16 leave the "
            "scaler and the fp16 section out."
        ),
        cards=("scaler_for_bf16", "scale_falls_to_zero"),
        source="deepspeedai/DeepSpeed#4417",
        date="2023-09-28",
    ),
    Message(
        words="[deepspeed] setting loss scale from 65536 -> 1024",
        pattern=r"\[deepspeed\] setting loss scale from",
        means="Someone sets the loss scale by hand, or a checkpoint brings another one.",
        next=(
            "It is a note. A scale that is set between the parts of an accumulation spoils their "
            "sum."
        ),
        cards=("scale_changes_between", "scaler_not_saved"),
        source="deepspeed 0.19.8",
    ),
    Message(
        words="ValueError: outputs must be a Tensor or an iterable of Tensors",
        pattern=r"outputs must be a tensor or an iterable of tensors",
        means=(
            "scaler.scale() takes the loss as a tensor, and got a number, a dictionary of strings "
            "or None."
        ),
        next="Pass the tensor: without .item(), and without float().",
        cards=("logged_while_scaled",),
        source="torch 2.13.0",
    ),
    Message(
        words=(
            "If capturable=True, params and state_steps must be on supported devices: ['cuda', "
            "'xpu', 'hpu', 'privateuseone', 'xla']."
        ),
        pattern=any_of(
            r"if capturable=(?:true|false), ",
            r"fused=true requires all the params",
            r"fused (?:and foreach cannot be|does not support)",
            r"fused, \S+ requires",
            r"state_steps should not be cuda",
        ),
        means=(
            "The implementation of the optimizer (fused, foreach, capturable) does not fit the "
            "device or the dtype of its parameters."
        ),
        next=(
            "Take the defaults, or fused=True with floating-point parameters on one device. A "
            "fused optimizer unscales in its own step."
        ),
        cards=("adam_in_half", "optimizer_made_before"),
        source="torch 2.13.0",
        causes=(
            "the parameters are on the CPU - capturable is for CUDA graphs",
            'a state was loaded whose step counter is on another device - "capturable=False": '
            "load with map_location, or set capturable in the groups",
            "parameters are complex or integers - the message names their dtype",
        ),
    ),
    Message(
        words=(
            "**** BF16 gradient accumulation is not safe numerically with large number of "
            "accumulation steps, proceed with caution *****"
        ),
        pattern=r"bf16 gradient accumulation is not safe",
        means=(
            "Each part of an accumulation is added to a BF16 sum, which keeps 8 bits: after some "
            "300 equal parts, further ones are rounded away."
        ),
        next="Set data_types.grad_accum_dtype to fp32.",
        cards=("average_in_bf16", "decay_is_lost"),
        source="deepspeed 0.19.8",
    ),
    Message(
        words=(
            "No Grad overflow for 1000 iterations. Increasing dynamic loss scale from 32768 to "
            "65536"
        ),
        pattern=any_of(
            r"no grad overflow for",
            r"increasing dynamic loss scale",
            r"using (?:static|dynamic) loss scale of",
        ),
        means=(
            "After a number of clean steps the scale grows, until a gradient overflows and it "
            "falls again. That is how it stays near the largest useful one."
        ),
        next="Nothing is wrong. `labkit watch train.py` shows the scales that would do.",
        cards=("first_steps_refused",),
        source="deepspeed 0.19.8",
    ),
    Message(
        words="setting loss scale to: 128.0",
        pattern=any_of(
            r"setting loss scale to:? ?[\d.]",
            r"loss scale (?:is )?(?:reduced|lowered|decreased|halved) to",
        ),
        means=SKIPS,
        next=WATCH,
        cards=SCALER,
        source="fairseq 0.12.2",
        causes=WHY_SKIPPED,
    ),
)

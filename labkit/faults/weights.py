"""Faults of weights and optimizer states in 16 bits, and of what an optimizer holds."""

import copy
from functools import partial

import torch
import torch.nn.functional as F

from labkit.faults.fault import Fault, Kind, Training
from labkit.faults.loops import accuracy, batches, network, plain, scaled


@partial(Fault, kind=Kind.NOT_FINITE, limit=0.7, claims=("C55",))
def adam_in_half(fixed):
    """Adam works on FP16 weights.

    Symptom: NaN after one or two steps, in a model that was made half.
    Cause: eps = 1e-8 is 0 in FP16, and the squares of small gradients are 0 too: 0 / 0.
    Reading: The optimizer's state: most second moments are exactly 0, in float16.
    Repair: FP32 master weights (then Adam works in FP32); where that is impossible, eps of 1e-4 or
        more, which makes small steps smaller.
    Reported: https://discuss.pytorch.org/t/1765, https://discuss.pytorch.org/t/137434
    """
    model = network().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4 if fixed else 1e-8)

    def loss_of(inputs, targets):
        return F.cross_entropy(model(inputs.half()).float(), targets)

    return plain(
        loss_of, model, optimizer, batches(120), lambda: accuracy(model, torch.Tensor.half)
    )


@partial(Fault, kind=Kind.WRONG_NUMBERS, limit=0.5, claims=("C45",))
def average_in_bf16(fixed):
    """A moving average of the weights is kept in BF16.

    Symptom: The averaged model is far worse than the trained one; for a long time it does not leave
        its beginning.
    Cause: An average moves by 0.005 of the distance at a time. BF16 has 8 bits: what is below half
        an ulp, 0.2% to 0.4% of the weight, is swallowed.
    Reading: Updates of the average that change no bit: most of them.
    Repair: Keep the average in FP32, and feed it from the masters.
    Reported: d8ahazard/sd_dreambooth_extension#1415
    """
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    dtype = torch.float32 if fixed else torch.bfloat16
    average = [parameter.detach().to(dtype, copy=True) for parameter in model.parameters()]

    def step(inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.mul_(0.995).add_(parameter.to(dtype), alpha=0.005)
        return loss

    def score():
        averaged = network()
        with torch.no_grad():
            for parameter, mean in zip(averaged.parameters(), average, strict=True):
                parameter.copy_(mean)
        wanted = torch.nn.utils.parameters_to_vector(model.parameters())
        start = torch.nn.utils.parameters_to_vector(network().parameters())
        reached = torch.nn.utils.parameters_to_vector(averaged.parameters())
        return 1 - ((wanted - reached).norm() / (wanted - start).norm()).item()

    return Training(lambda batch: step(*batch), batches(400), score, model, optimizer)


@partial(Fault, kind=Kind.WRONG_NUMBERS)
def decay_is_lost(fixed):
    """Weight decay has no effect on BF16 weights.

    Symptom: Training with and without weight decay gives the same numbers to the last digit.
    Cause: lr times decay is 0.001: the weight should become 0.1% smaller. Half an ulp of a BF16
        number is 0.2% to 0.4% of it, so it rounds back to itself.
    Reading: Updates without effect: all those of weights whose gradient is 0.
    Repair: Decay an FP32 master, or round stochastically.
    Reported: Nerogar/OneTrainer#996
    """
    torch.manual_seed(0)
    dtype = torch.float32 if fixed else torch.bfloat16
    weight = torch.nn.Parameter(torch.randn(1000).to(dtype))
    model = torch.nn.ParameterList([weight])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1.0)
    start = weight.detach().float().norm()

    def step(number):
        # the gradient is 0, so that only the decay changes the weights
        weight.grad = torch.zeros_like(weight)
        optimizer.step()

    return Training(
        step,
        range(1000),
        lambda: 1 - (weight.detach().float().norm() / start).item(),
        model,
        optimizer,
    )


@partial(Fault, limit=0.9)
def gains_in_bf16(fixed):
    """Learned gains that begin at 1 never move in BF16.

    Symptom: Weights of LayerNorm or RMSNorm are exactly 1.0 in a published model; the loss is a
        little worse than it should be.
    Cause: A step of Adam moves a weight by about the learning rate, 0.001. Half an ulp above 1 is
        0.004 in BF16: every update is swallowed.
    Reading: Parameters that never moved: 100% of the norm weights.
    Repair: FP32 master weights, stochastic rounding, or at least the norms in FP32.
    Reported: vllm-project/speculators#765, fla-org/flash-linear-attention#676, fla-org/flame#47
    """
    torch.manual_seed(0)
    dtype = torch.float32 if fixed else torch.bfloat16
    model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 10)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(inputs, targets):
        return F.cross_entropy(model(inputs.flatten(1).to(dtype)).float(), targets)

    return plain(
        loss_of,
        model,
        optimizer,
        batches(300),
        lambda: (model[0].weight != 1).float().mean().item(),
    )


@partial(Fault, kind=Kind.ERROR)
def half_weights_unscaled(fixed):
    """Weights that are trained are stored in FP16.

    Symptom: The first step ends with an error, often after `from_pretrained(...,
        torch_dtype=float16)` or with LoRA.
    Cause: A GradScaler refuses gradients in FP16: the weights themselves are FP16, so their updates
        would be swallowed. Autocast wants FP32 weights and makes the FP16 copies itself.
    Reading: The dtype of the parameters that are trained: float16.
    Repair: Load or cast what is trained in FP32 (`parameter.data = parameter.data.float()`), and
        leave the FP16 to autocast; frozen weights may stay FP16.
    Error: Attempting to unscale FP16 gradients.
    Reported: pytorch/pytorch#74739, huggingface/diffusers#6442, huggingface/peft#341
    """
    model = network()
    if not fixed:
        model = model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def loss_of(inputs, targets):
        return F.cross_entropy(model(inputs), targets)

    def before_step():
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return scaled(
        loss_of, model, optimizer, scaler, batches(60), lambda: accuracy(model), before_step
    )


@partial(Fault, limit=0.9)
def moment_in_bf16(fixed):
    """Adam's second moment is kept in BF16 and cannot fall again.

    Symptom: After one bad batch a model in BF16 learns slowly for the rest of its life, or its loss
        has spikes that it does not recover from.
    Cause: Each step multiplies the second moment by 0.999. A BF16 number that loses 0.1% rounds
        back to itself: it can rise, and never fall.
    Reading: The optimizer's state is bfloat16 and beta2 is above 0.996; the median of the second
        moment stays where the largest batch put it.
    Repair: Keep the moments in FP32, round them stochastically, or choose beta2 of 0.95 or 0.99.
    Reported: NVIDIA-NeMo/Automodel#2248, https://blog-64c.pages.dev
    """
    torch.manual_seed(0)
    dtype = torch.float32 if fixed else torch.bfloat16
    weight = torch.nn.Parameter(torch.randn(256).to(dtype))
    model = torch.nn.ParameterList([weight])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    highest = []

    def step(number):
        weight.grad = torch.randn(256).to(dtype)
        # one bad batch
        if number == 10:
            weight.grad *= 1000
        optimizer.step()
        if number == 10:
            highest.append(optimizer.state[weight]["exp_avg_sq"].float().median().item())

    def score():
        now = optimizer.state[weight]["exp_avg_sq"].float().median().item()
        return 1 - now / highest[0]

    return Training(step, range(3000), score, model, optimizer)


@partial(Fault)
def optimizer_made_before(fixed):
    """The optimizer was made before the model was copied or converted.

    Symptom: The loss stays where it began, without any error; gradients are there.
    Cause: The optimizer holds the parameters of the old model. No optimizer steps those of the new
        one.
    Reading: Parameters that get gradients and never move; the optimizer has none of them.
    Repair: Convert first, make the optimizer afterwards.
    Reported: https://docs.pytorch.org/docs/stable/optim.html
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = copy.deepcopy(model).to(torch.float32)
    if fixed:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(inputs, targets):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(inputs), targets)

    return plain(loss_of, model, optimizer, batches(120), lambda: accuracy(model))

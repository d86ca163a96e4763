"""Faults in the loss: logarithms, divisions and sums that FP16 cannot hold."""

from functools import partial

import torch
import torch.nn.functional as F

from labkit.amp import autocast
from labkit.faults.fault import Fault, Kind, Training
from labkit.faults.loops import accuracy, batches, digits, network, plain, scaled
from labkit.formats import FP16


@partial(Fault, kind=Kind.ERROR, limit=0.8)
def bce_on_probabilities(fixed):
    """A binary cross-entropy is given probabilities under autocast.

    Symptom: An error on a GPU that this loss is unsafe to autocast.
    Cause: A probability in FP16 is 0 or 1 too early, and its gradient can pass 65,504. torch
        refuses it on a GPU.
    Reading: The error names the function.
    Repair: Leave the sigmoid out and use binary_cross_entropy_with_logits.
    Error: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.
    Error: binary_cross_entropy is not safe under autocast
    Reported: https://docs.pytorch.org/docs/stable/amp.html
    """
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(inputs, targets):
        wanted = F.one_hot(targets, 10).float()
        # labkit's autocast, which follows torch's CUDA rules on a CPU, too
        with autocast(FP16):
            outputs = model(inputs)
            if fixed:
                return F.binary_cross_entropy_with_logits(outputs, wanted)
            return F.binary_cross_entropy(outputs.sigmoid(), wanted)

    return plain(loss_of, model, optimizer, batches(150), lambda: accuracy(model))


@partial(Fault, kind=Kind.NOT_FINITE, claims=("C57",))
def denominator_underflows(fixed):
    """A division has a denominator that underflows.

    Symptom: inf or NaN where a vector is divided by its own length, although the vector is not 0.
    Cause: The squares of small numbers are 0 in FP16, and so is the epsilon that should help.
    Reading: The first tensor that is not finite is a division; its denominator is 0.
    Repair: Compute lengths and divisions in FP32; or divide by the largest element first.
    Reported: https://arxiv.org/abs/1710.03740
    """
    torch.manual_seed(0)
    dtype = torch.float32 if fixed else torch.float16
    data = digits()

    def unit(pictures):
        return pictures / ((pictures * pictures).sum(1, keepdim=True) + 1e-12).sqrt()

    shares = []

    def step(pictures):
        normal = unit((1e-5 * pictures).flatten(1).to(dtype))
        shares.append(normal.isfinite().all(1).float().mean().item())

    return Training(step, [data.train_inputs[:64], data.train_inputs[64:128]], lambda: min(shares))


@partial(Fault, limit=0.8, claims=("C56",))
def dice_overflows(fixed):
    """A Dice loss adds up all pixels in FP16.

    Symptom: The Dice loss stays at exactly 1.0, or is NaN, as soon as pictures or batches are
        large.
    Cause: The loss is computed outside of autocast, from chances that are FP16. 147,456 pixels at
        0.5 sum up to 73,728: inf in FP16. Something divided by inf is 0, and so are its gradients.
        Inside of autocast CUDA adds up in FP32, and a CPU does not.
    Reading: A sum over more than 65,504 elements in half; gradients that are exactly 0.
    Repair: `chance = chance.float()` before sums; losses in FP32.
    Reported: qubvel/segmentation_models.pytorch#463, ultralytics/ultralytics#24554,
        huggingface/transformers#25938
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def dice(chance, masks):
        return (2 * (chance * masks).sum() + 1) / (chance.sum() + masks.sum() + 1)

    def step(batch):
        pixels, masks = batch
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            chance = model(pixels).sigmoid()
        if fixed:
            chance = chance.float()
        loss = 1 - dice(chance, masks.to(chance.dtype))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    # 147,456 pixels
    pictures = digits().train_inputs[:256].repeat(1, 1, 3, 3).reshape(-1, 1)
    masks = (pictures > 0.5).float()

    def score():
        with torch.no_grad():
            return dice((model(pictures) > 0).float(), masks).item()

    return Training(step, [(pictures, masks)] * 40, score, model, optimizer, scaler)


@partial(Fault, kind=Kind.NOT_FINITE, limit=0.88, claims=("C55",))
def log_of_epsilon(fixed):
    """A logarithm is made safe by an epsilon that FP16 does not have.

    Symptom: NaN after a hundred steps or more, when the network becomes sure of itself; then every
        step is skipped.
    Cause: 1e-8 is 0 in FP16: the smallest number is 6e-8. log(0) is -inf, and 0 * -inf is NaN.
    Reading: The first tensor that is not finite is a logarithm of 0; from then on all steps are
        skipped.
    Repair: Compute the loss in FP32, or use the function that is made for it:
        binary_cross_entropy_with_logits, log_softmax.
    Reported: rwightman/efficientdet-pytorch#291, yitu-opensource/T2T-ViT#65
    """
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")

    def loss_of(inputs, targets):
        chance = model(8 * inputs).sigmoid()
        if fixed:
            chance = chance.float()
        wanted = F.one_hot(targets, 10).to(chance.dtype)
        hits = wanted * (chance + 1e-8).log()
        misses = (1 - wanted) * (1 - chance + 1e-8).log()
        return -(hits + misses).sum(1).mean()

    return scaled(loss_of, model, optimizer, scaler, batches(300), lambda: accuracy(model))


@partial(Fault, claims=("C57",))
def mse_underflows(fixed):
    """A mean-squared error of small residuals is 0 in FP16.

    Symptom: The loss is exactly 0 from the first step, and nothing is learned.
    Cause: A residual of 0.00001 has the square 1e-10, which is 0 in FP16; so is its gradient,
        divided by the number of elements.
    Reading: A loss of exactly 0; gradients that underflowed in all layers.
    Repair: Compute the loss in FP32 and scale it; or choose units in which residuals are near 1.
    Reported: https://arxiv.org/abs/1710.03740
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    # for gradients as small as these
    optimizer = torch.optim.SGD(model.parameters(), lr=1e9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, enabled=fixed)
    truth = torch.randn(8, 1)

    def loss_of(inputs):
        error = model(inputs) - inputs @ truth
        if fixed:
            error = error.float()
        # residuals of 1e-5, as in a badly chosen unit
        error = 1e-5 * error
        return (error * error).mean()

    def score():
        return 1 - ((model.weight.t() - truth).norm() / truth.norm()).item()

    return scaled(
        loss_of, model, optimizer, scaler, [(torch.randn(64, 8),) for _ in range(100)], score
    )


@partial(Fault, limit=0.8, claims=("C57",))
def scale_falls_to_zero(fixed):
    """One term of the loss stays NaN, and the scale falls to nothing.

    Symptom: Skipped steps follow each other without end, the scale halves each time, and nothing is
        learned any more.
    Cause: A loss scaler takes every inf and NaN for an overflow that a smaller scale would cure.
        Here 0 * log(0) is NaN in the forward pass: no scale helps.
    Reading: Skips in a row, more than twenty; the scale is below 1; the first tensor that is not
        finite is in the forward pass.
    Repair: Find the first tensor that is not finite and compute that place in FP32. Give the scale
        a floor and stop with an error there.
    Reported: pytorch/pytorch#99640, NVIDIA/apex#318, NVIDIA/apex#654
    """
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")

    def loss_of(inputs, targets):
        outputs = model(inputs)
        if fixed:
            chance = (20 * outputs).float().softmax(1)
        else:
            chance = (20 * outputs).softmax(1).half()
        sharpness = (chance * (chance + 1e-30).log()).sum(1).mean()
        return F.cross_entropy(outputs, targets) - 0.01 * sharpness

    return scaled(loss_of, model, optimizer, scaler, batches(300), lambda: accuracy(model))


@partial(Fault, kind=Kind.NOT_FINITE, limit=0.7, claims=("C32",))
def softmax_by_hand(fixed):
    """A softmax is written out in FP16.

    Symptom: NaN as soon as the network becomes sure of something.
    Cause: Outside of autocast the outputs are still FP16, and so is what is computed from them.
        exp(x) is inf in FP16 from 11.1 on, and inf / inf is NaN. Inside of autocast CUDA computes
        exp in FP32, and a CPU does not.
    Reading: The first tensor that is not finite is an exponential.
    Repair: torch.softmax or log_softmax: they subtract the largest first, and compute in FP32
        inside.
    Reported: pytorch/pytorch#40497
    """
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(inputs, targets):
        with torch.autocast("cpu", torch.float16):
            outputs = 20 * model(inputs)
        if fixed:
            chance = outputs.softmax(1)
        else:
            chance = outputs.exp() / outputs.exp().sum(1, keepdim=True)
        return F.nll_loss(chance.clamp_min(1e-4).log().float(), targets)

    return plain(loss_of, model, optimizer, batches(200), lambda: accuracy(model))


@partial(Fault, kind=Kind.NOT_FINITE, limit=0.88, claims=("C55",))
def switched_off_but_half(fixed):
    """Autocast is switched off around a loss whose inputs are still FP16.

    Symptom: The loss is NaN or far from what FP32 gives, though the author took care to switch
        autocast off.
    Cause: `autocast(enabled=False)` casts nothing back. The tensors that come in are FP16 already,
        and everything inside is computed in FP16.
    Reading: A region without autocast that gets half inputs; a loss whose dtype is float16.
    Repair: `.float()` on every tensor that enters the region.
    Reported: Peterande/D-FINE#361, pytorch/pytorch#115500
    """
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")

    def loss_of(inputs, targets):
        outputs = model(inputs)
        with torch.autocast("cpu", enabled=False):
            if fixed:
                outputs = outputs.float()
            chance = outputs.softmax(1)
            wanted = F.one_hot(targets, 10).to(chance.dtype)
            return (wanted * ((wanted + 1e-8).log() - (chance + 1e-8).log())).sum(1).mean()

    return scaled(loss_of, model, optimizer, scaler, batches(300), lambda: accuracy(model))


@partial(Fault, kind=Kind.NOT_FINITE, claims=("C56",))
def validation_sum(fixed):
    """The validation loss is added up in FP16.

    Symptom: The loss of the evaluation, or its perplexity, is inf or NaN, while the training is
        well.
    Cause: After 28,500 examples with a loss of 2.3 the sum passes 65,504.
    Reading: A sum in half that grows with the size of the set.
    Repair: Add up in FP32: `.float()` on what is added, or a Python number.
    Reported: huggingface/transformers#10815, EuroEval/EuroEval#106
    """
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    total = torch.zeros((), dtype=torch.float32 if fixed else torch.float16)

    def step(inputs, targets):
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets, reduction="sum")
        total.add_(loss)
        return loss

    return Training(
        lambda batch: step(*batch),
        batches(500),
        lambda: total.item() < float("inf"),
        model,
        optimizer,
    )

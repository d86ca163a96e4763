"""Faults of attention: masks and positions in FP16."""

from functools import partial

import torch
import torch.nn.functional as F

from labkit.faults.fault import Fault, Kind, Training
from labkit.faults.loops import accuracy, batches, network, plain


@partial(Fault, kind=Kind.ERROR, claims=("C55",))
def mask_constant(fixed):
    """A mask uses a constant that FP16 does not have.

    Symptom: An error at the line of the mask; the same code runs in FP32 and in BF16.
    Cause: -1e9 (or 1e10, or 2**30) lies outside FP16, which ends at 65,504.
    Reading: The source: a constant above 65,504 beside a tensor that is half.
    Repair: Use `torch.finfo(scores.dtype).min` or -inf, or F.scaled_dot_product_attention with a
        boolean mask.
    Error: value cannot be converted to type c10::Half without overflow
    Error: value cannot be converted to type at::Half without overflow
    Reported: NVIDIA/apex#1052, QwenLM/Qwen#32, InternLM/lmdeploy#3152
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    allowed = torch.arange(10) < 10

    def loss_of(inputs, targets):
        with torch.autocast("cpu", torch.float16):
            scores = model(inputs)
            lowest = torch.finfo(scores.dtype).min if fixed else -1e9
            return F.cross_entropy(scores.masked_fill(~allowed, lowest), targets)

    return plain(loss_of, model, optimizer, batches(60), lambda: accuracy(model))


@partial(Fault, kind=Kind.WRONG_NUMBERS, limit=0.9)
def positions_in_half(fixed):
    """Positions are counted in FP16.

    Symptom: Attention is right in short texts, and leaks or repeats itself beyond 2,048 tokens (256
        in BF16).
    Cause: FP16 has no odd numbers above 2,048, and BF16 none above 256: neighbours get the same
        position.
    Reading: A tensor of whole numbers in half whose largest is above 2,048.
    Repair: Count positions as integers, or in FP32; rotate in FP32 or cast after the angle.
    Reported: pytorch/pytorch#81926, lucidrains/local-attention#12, openvinotoolkit/openvino#33214
    """
    torch.manual_seed(0)
    # radians per position, as in rotary embeddings
    turns = 1000 ** (-torch.arange(0, 32, 2) / 32)
    query = torch.randn(16)
    dtype = torch.float32 if fixed else torch.float16
    right_ones = []

    def rotated(vector, positions):
        angle = positions.to(dtype).float()[:, None] * turns
        return torch.cat([vector * angle.cos(), vector * angle.sin()], 1)

    def step(start):
        positions = torch.arange(start, start + 32)
        # each position attends to the one before it, whose key is rotated by one position more
        scores = rotated(query, positions) @ rotated(query, positions + 1).t()
        attended = scores.tril(-1)[1:].argmax(1)
        right_ones.append((attended == torch.arange(31)).float().mean().item())

    return Training(step, range(0, 8192, 512), lambda: min(right_ones))


@partial(Fault, kind=Kind.NOT_FINITE, limit=0.4, claims=("C55",))
def row_all_masked(fixed):
    """A row of attention in which everything is masked becomes NaN.

    Symptom: The loss becomes NaN at a batch that looks like the others, and stays NaN.
    Cause: Two masks of finfo.min add up to -inf. In a row that is masked as a whole, softmax
        divides 0 by 0.
    Reading: The first tensor that is not finite is a softmax, in the one example of the batch that
        has no token.
    Repair: Mask once, with masked_fill, and set rows that are masked as a whole to 0 after the
        softmax; scaled_dot_product_attention does so.
    Reported: huggingface/transformers#17306, pytorch/pytorch#131060, NVIDIA/ngpt#11
    """
    torch.manual_seed(0)
    embed = torch.nn.Linear(8, 32)
    mix = torch.nn.Linear(32, 96)
    head = torch.nn.Linear(32, 10)
    model = torch.nn.ModuleList([embed, mix, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    lowest = torch.finfo(torch.float16).min

    def attend(inputs, padding):
        hidden = embed(inputs.view(-1, 8, 8))
        query, key, value = mix(hidden).chunk(3, dim=2)
        scores = query @ key.transpose(1, 2) / 32**0.5
        if fixed:
            chance = scores.masked_fill(padding[:, None], float("-inf")).softmax(-1)
            chance = chance.masked_fill(padding.all(1)[:, None, None], 0.0)
        else:
            # two masks hide the padding, as one from the tokenizer and one from the model do: the
            # sum of both is -inf
            mask = padding[:, None].half() * lowest
            chance = (scores.half() + mask + mask).float().softmax(-1)
        return head((hidden + chance @ value).mean(1))

    def loss_of(number, batch):
        inputs, targets = batch
        padding = torch.zeros(len(inputs), 8, dtype=torch.bool)
        padding[::3, 6:] = True
        # one example without a single token
        padding[0] = number == 37
        return F.cross_entropy(attend(inputs, padding), targets)

    def score():
        return accuracy(lambda x: attend(x, torch.zeros(len(x), 8, dtype=torch.bool)))

    return plain(loss_of, model, optimizer, list(enumerate(batches(200))), score)

"""A row of attention in which everything is masked becomes NaN."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches


def training(cured: bool) -> Training:
    torch.manual_seed(0)
    embed, mix, head = torch.nn.Linear(8, 32), torch.nn.Linear(32, 96), torch.nn.Linear(32, 10)
    model = torch.nn.ModuleList([embed, mix, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    lowest = torch.finfo(torch.float16).min

    def attend(inputs, padding):
        hidden = embed(inputs.view(-1, 8, 8))
        query, key, value = mix(hidden).chunk(3, dim=2)
        scores = query @ key.transpose(1, 2) / 32**0.5
        if cured:
            chance = scores.masked_fill(padding[:, None], float("-inf")).softmax(-1)
            chance = chance.masked_fill(padding.all(1)[:, None, None], 0.0)
        else:
            mask = padding[:, None].half() * lowest  # once for the padding, once for the future: their sum is -inf
            chance = (scores.half() + mask + mask).float().softmax(-1)
        return head((hidden + chance @ value).mean(1))

    def step(batch):
        number, (inputs, targets) = batch
        padding = torch.zeros(len(inputs), 8, dtype=torch.bool)
        padding[::3, 6:] = True
        padding[0] = number == 37  # one example without a single token
        optimizer.zero_grad()
        loss = F.cross_entropy(attend(inputs, padding), targets)
        loss.backward()
        optimizer.step()
        return loss

    def score():
        return accuracy(lambda x: attend(x, torch.zeros(len(x), 8, dtype=torch.bool)))

    return Training(step, list(enumerate(batches(200))), score, model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom="The loss becomes NaN at a batch that looks like the others, and stays NaN.",
    cause="Two masks of finfo.min are added: -inf. Where a whole row is masked softmax divides 0 by 0.",
    reading=("The first tensor that is not finite is a softmax, in one example of the batch: the one without a token."),
    repair=(
        "Mask once, with masked_fill, and set rows that are masked as a whole to 0 after the softmax; "
        "scaled_dot_product_attention does so."
    ),
    threads=("huggingface/transformers#17306", "pytorch/pytorch#131060", "NVIDIA/ngpt#11"),
    limit=0.4,
    claims=("C55",),
)

"""A softmax is written out in FP16."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def chances(outputs):
        return outputs.softmax(1) if cured else outputs.exp() / outputs.exp().sum(1, keepdim=True)

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = 20 * model(inputs)
        chance = chances(outputs).clamp_min(1e-4)
        loss = F.nll_loss(chance.log().float(), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Training(lambda batch: step(*batch), batches(200), lambda: accuracy(model), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.NOT_FINITE,
    symptom="NaN as soon as the network becomes sure of something.",
    cause=(
        "Outside of autocast the outputs are still FP16, and so is what is computed from them. exp(x) is inf in FP16 "
        "from 11.1 on, and inf / inf is NaN. Inside of autocast CUDA computes exp in FP32, and a CPU does not."
    ),
    reading="The first tensor that is not finite is an exponential.",
    repair=("torch.softmax or log_softmax: they subtract the largest first, and compute in FP32 inside."),
    threads=("pytorch/pytorch#40497",),
    limit=0.7,
    claims=("C32",),
)

"""A moving average of the weights is kept in BF16."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    dtype = torch.float32 if cured else torch.bfloat16
    average = [parameter.detach().to(dtype, copy=True) for parameter in model.parameters()]

    def step(inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, parameter in zip(average, model.parameters(), strict=True):
                kept.mul_(0.995).add_(parameter.to(dtype), alpha=0.005)
        return loss

    def score():
        averaged = network()
        with torch.no_grad():
            for parameter, kept in zip(averaged.parameters(), average, strict=True):
                parameter.copy_(kept)
        wanted = torch.nn.utils.parameters_to_vector(model.parameters())
        start = torch.nn.utils.parameters_to_vector(network().parameters())
        reached = torch.nn.utils.parameters_to_vector(averaged.parameters())
        return 1 - ((wanted - reached).norm() / (wanted - start).norm()).item()

    return Training(lambda batch: step(*batch), batches(400), score, model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.WRONG_NUMBERS,
    symptom=("The averaged model is far worse than the trained one; for a long time it does not leave its beginning."),
    cause=(
        "An average moves by 0.005 of the distance at a time. BF16 has 8 bits: what is below half an ulp, "
        "0.2% to 0.4% of the weight, is swallowed."
    ),
    reading="Updates of the average that change no bit: most of them.",
    repair="Keep the average in FP32, and feed it from the masters.",
    threads=("d8ahazard/sd_dreambooth_extension#1415",),
    limit=0.5,
    claims=("C45",),
)

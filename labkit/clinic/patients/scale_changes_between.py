"""The scale changes while gradients are accumulated."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = {"scale": 2.0**8, "parts": 0}

    def step(inputs, targets):
        optimizer.zero_grad()
        scale = run["scale"]
        for part in range(4):
            rows = slice(16 * part, 16 * part + 16)
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(inputs[rows]), targets[rows]) / 4
            (loss * (scale if cured else run["scale"])).backward()
            run["parts"] += 1
            if run["parts"] % 3 == 0:
                run["scale"] = run["scale"] / 64 if run["scale"] > 2.0**8 else run["scale"] * 64
        for parameter in model.parameters():
            parameter.grad.div_(scale if cured else run["scale"])
        optimizer.step()
        return loss

    return Training(lambda batch: step(*batch), batches(150), lambda: accuracy(model), model, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom="With accumulation the loss has spikes, or the training diverges; without it all is well.",
    cause="Parts of one sum were scaled by different factors, and the sum is divided by the last one.",
    reading="The scale changes between two backward passes of one step.",
    repair=("Change the scale only after a step: call `scaler.update()` once, when the last part has been added."),
    threads=("https://docs.pytorch.org/docs/stable/notes/amp_examples.html",),
    limit=0.6,
)

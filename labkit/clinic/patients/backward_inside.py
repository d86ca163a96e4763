"""The backward pass runs inside the autocast region."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches


def training(cured: bool) -> Training:
    class Project(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            with torch.autocast("cpu", enabled=False):
                return x.float() @ weight.t()

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight, grad.t() @ x

    torch.manual_seed(0)
    weight = torch.nn.Parameter(0.1 * torch.randn(10, 64))
    optimizer = torch.optim.SGD([weight], lr=1e8)  # the loss is one of many, and small

    def classify(inputs):
        return Project.apply(inputs.flatten(1), weight)

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = 1e-9 * F.cross_entropy(classify(inputs), targets)
            if not cured:
                loss.backward()
        if cured:
            loss.backward()
        optimizer.step()
        return loss

    return Training(lambda batch: step(*batch), batches(100), lambda: accuracy(classify), None, optimizer)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom="A block that was written for FP32 gets gradients that are 0, though its forward pass is right.",
    cause=(
        "Operations that autograd made remember their dtype. Code of your own in a backward pass does "
        "not: if autocast is still on, its products are cast to FP16."
    ),
    reading="Gradients that underflowed in one block; casts during the backward pass.",
    repair="End the region before `backward()`; decorate the function with `torch.amp.custom_bwd`.",
    threads=("https://docs.pytorch.org/docs/stable/amp.html", "pytorch/pytorch#46178"),
)

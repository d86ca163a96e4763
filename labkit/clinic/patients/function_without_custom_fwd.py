"""A custom autograd function does not say in which dtype it computes."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, accuracy, batches, network


def training(cured: bool) -> Training:
    class Project(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return torch.matmul(x, weight.t())

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight, grad.t() @ x

    if cured:
        Project.forward = staticmethod(
            torch.amp.custom_fwd(Project.forward, device_type="cpu", cast_inputs=torch.float32)
        )
        Project.backward = staticmethod(torch.amp.custom_bwd(Project.backward, device_type="cpu"))
    model = network()
    weight = torch.nn.Parameter(torch.eye(10))
    optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.1)

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(Project.apply(model(inputs), weight), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Training(
        lambda batch: step(*batch), batches(60), lambda: accuracy(lambda x: model(x) @ weight.t()), model, optimizer
    )


PATIENT = Patient(
    training,
    kind=Kind.ERROR,
    symptom="The forward pass works, and the backward pass ends with two dtypes that do not match.",
    errors=(
        "expected m1 and m2 to have the same dtype",
        "expected scalar type Half but found Float",
        "mat1 and mat2 must have the same dtype",
    ),
    cause=(
        "Inside forward autocast is on, and casts; what is saved is FP16 here and FP32 there. The "
        "backward pass runs without autocast, and nobody casts."
    ),
    reading="The error is raised in a backward pass, in a file of your own.",
    repair=(
        "Decorate forward with `torch.amp.custom_fwd(cast_inputs=torch.float32, device_type=...)` and "
        "backward with `torch.amp.custom_bwd`."
    ),
    threads=("pytorch/pytorch#38487", "pytorch/pytorch#42358", "pytorch/pytorch#46178"),
)

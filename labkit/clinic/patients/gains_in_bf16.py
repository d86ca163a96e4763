"""Learned gains that begin at 1 never move in BF16."""

import torch
import torch.nn.functional as F

from labkit.clinic.patient import Kind, Patient, Training, batches


def training(cured: bool) -> Training:
    torch.manual_seed(0)
    dtype = torch.float32 if cured else torch.bfloat16
    model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 10)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs.flatten(1).to(dtype)).float(), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Training(
        lambda batch: step(*batch), batches(300), lambda: (model[0].weight != 1).float().mean().item(), model, optimizer
    )


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom=(
        "Weights of LayerNorm or RMSNorm are exactly 1.0 in a published model; the loss is a little worse "
        "than it should be."
    ),
    cause=(
        "A step of Adam moves a weight by about the learning rate, 0.001. Half an ulp above 1 is 0.004 in "
        "BF16: every update is swallowed."
    ),
    reading="Parameters that never moved: 100% of the norm weights.",
    repair="FP32 master weights, stochastic rounding, or at least the norms in FP32.",
    threads=("vllm-project/speculators#765", "fla-org/flash-linear-attention#676", "fla-org/flame#47"),
    limit=0.9,
)

"""A Dice loss adds up all pixels in FP16."""

import torch

from labkit.clinic.patient import Kind, Patient, Training, digits


def training(cured: bool) -> Training:
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
        if cured:
            chance = chance.float()
        loss = 1 - dice(chance, masks.to(chance.dtype))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    pictures = digits().train_inputs[:256].repeat(1, 1, 3, 3).reshape(-1, 1)  # 147,456 pixels
    masks = (pictures > 0.5).float()

    def score():
        with torch.no_grad():
            return dice((model(pictures) > 0).float(), masks).item()

    return Training(step, [(pictures, masks)] * 40, score, model, optimizer, scaler)


PATIENT = Patient(
    training,
    kind=Kind.LEARNS_BADLY,
    symptom="The Dice loss stands at exactly 1.0, or is NaN, as soon as pictures or batches are large.",
    cause=(
        "The loss is computed outside of autocast, from chances that are FP16. 147,456 pixels at 0.5 sum up to "
        "73,728: inf in FP16. Something divided by inf is 0, and so are its gradients. Inside of autocast CUDA adds "
        "up in FP32, and a CPU does not."
    ),
    reading="A sum over more than 65,504 elements in half; gradients that are exactly 0.",
    repair="`chance = chance.float()` before sums; losses in FP32.",
    threads=(
        "qubvel/segmentation_models.pytorch#463",
        "ultralytics/ultralytics#24554",
        "huggingface/transformers#25938",
    ),
    limit=0.8,
    claims=("C56",),
)

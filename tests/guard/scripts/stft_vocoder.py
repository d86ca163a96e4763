"""Faulty: a vocoder with a spectral loss ends with an error in torch.stft.

Cause: the waveform comes out of autocast in FP16, and the transform has no kernel for it.
Repair: cast the waveform before the transform, `torch.stft(wave.float(), ...)`.
"""
import torch
import torch.nn as nn

torch.manual_seed(23)


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(8, 16, 5, padding=2), nn.LeakyReLU(0.1),
            nn.ConvTranspose1d(16, 8, 8, stride=4, padding=2), nn.LeakyReLU(0.1),
            nn.Conv1d(8, 1, 5, padding=2), nn.Tanh(),
        )

    def forward(self, mel):
        return self.net(mel).squeeze(1)


def spectrum(wave, n_fft=64):
    spec = torch.stft(wave, n_fft, hop_length=16, window=torch.hann_window(n_fft).to(wave), return_complex=True)
    return torch.log(spec.abs() + 1e-5)


model = Vocoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu")
time = torch.arange(256) / 256
for step in range(40):
    pitch = 4 + 20 * torch.rand(8, 1)
    wave = 0.5 * torch.sin(2 * torch.pi * pitch * time)
    mel = wave.unfold(1, 4, 4)[:, :, :1].transpose(1, 2).repeat(1, 8, 1)
    with torch.autocast("cpu", dtype=torch.float16):
        generated = model(mel)
    loss = (spectrum(generated) - spectrum(wave)).abs().mean() + (generated - wave).abs().mean()
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")

"""Healthy: a GAN with two optimizers and one scaler, updated once for each iteration.

Cause: none; logits go into binary_cross_entropy_with_logits, and the generator's sample is detached for the critic.
Repair: none.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(999)
nz, ngf, ndf, batch_size = 16, 8, 8, 16

netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
    nn.Conv2d(ngf, 1, 3, 1, 1), nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(1, ndf, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, inplace=True),
    nn.Flatten(), nn.Linear(ndf * 2 * 4, 1),
)
optimizerD = torch.optim.Adam(netD.parameters(), lr=5e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
scaler = torch.amp.GradScaler("cpu")


def real_batch():
    grid = torch.linspace(-1, 1, 8)
    cx, cy = (torch.rand(batch_size, 1, 1) - 0.5 for _ in range(2))
    disc = ((grid - cx) ** 2 + (grid[:, None] - cy) ** 2) < 0.3
    return (disc.float() * 1.8 - 0.9).unsqueeze(1)


for i in range(40):
    real = real_batch()
    ones, zeros = torch.full((batch_size, 1), 0.9), torch.zeros(batch_size, 1)

    # (1) update D
    optimizerD.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        fake = netG(torch.randn(batch_size, nz, 1, 1))
        errD = F.binary_cross_entropy_with_logits(netD(real), ones)
        errD = errD + F.binary_cross_entropy_with_logits(netD(fake.detach()), zeros)
    scaler.scale(errD).backward()
    scaler.step(optimizerD)

    # (2) update G
    optimizerG.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        errG = F.binary_cross_entropy_with_logits(netD(fake), torch.ones(batch_size, 1))
    scaler.scale(errG).backward()
    scaler.step(optimizerG)
    scaler.update()
    if i % 10 == 9:
        print(f"[{i}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")

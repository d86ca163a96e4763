"""Healthy: segmentation of discs with a small UNet; Dice and BCE are computed from FP32 logits.

Cause: none; the sums of Dice run over FP32 probabilities, and its smoothing term of 1 keeps empty masks finite.
Repair: none.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)


def double_conv(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(2, o), nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, c=4):
        super().__init__()
        self.enc1, self.enc2, self.bottom = double_conv(1, c), double_conv(c, 2 * c), double_conv(2 * c, 4 * c)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * c, 2 * c, 2, 2), nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.dec2, self.dec1 = double_conv(4 * c, 2 * c), double_conv(2 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        b = self.bottom(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([self.up2(b), e2], 1))
        return self.out(self.dec1(torch.cat([self.up1(d2), e1], 1)))


def dice_loss(logits, target, smooth=1.0):
    p = torch.sigmoid(logits.float())
    inter = (p * target).sum((1, 2, 3))
    return 1 - ((2 * inter + smooth) / (p.sum((1, 2, 3)) + target.sum((1, 2, 3)) + smooth)).mean()


def discs(n=4, size=24):
    r = torch.arange(size)
    cx, cy = (torch.randint(6, size - 6, (n, 1, 1)) for _ in range(2))
    mask = (((r - cx) ** 2 + (r[:, None] - cy) ** 2) < 16).float().unsqueeze(1)
    return mask + 0.5 * torch.randn_like(mask), mask


net = UNet()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
grad_scaler = torch.amp.GradScaler("cpu")
for step in range(40):
    images, masks = discs()
    with torch.autocast("cpu", dtype=torch.float16):
        pred = net(images)
    loss = F.binary_cross_entropy_with_logits(pred.float(), masks) + dice_loss(pred, masks)
    optimizer.zero_grad(set_to_none=True)
    grad_scaler.scale(loss).backward()
    grad_scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    grad_scaler.step(optimizer)
    grad_scaler.update()
    if step % 10 == 9:
        print(f"step {step} loss {loss.item():.4f}")

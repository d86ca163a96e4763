"""Faulty: pictures decoded in FP16 are black, because each pixel is NaN.

Cause: the activations of the decoder's third block exceed 65504, become inf, and NaN in the normalisation after it.
Repair: run the decoder in BF16 or FP32, `decoder.float()`, or from the block on that overflows.
"""
import torch
from torch import nn

torch.manual_seed(90)


class ResBlock(nn.Module):
    def __init__(self, c, gain):
        super().__init__()
        self.norm, self.conv, self.gain = nn.GroupNorm(4, c), nn.Conv2d(c, c, 3, padding=1), gain

    def forward(self, x):
        return x + self.gain * self.conv(nn.functional.silu(self.norm(x)))


class Decoder(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.conv_in = nn.Conv2d(4, c, 3, padding=1)
        # gains as they are after a long training without a limit on activations
        self.mid = nn.Sequential(ResBlock(c, 50.0), ResBlock(c, 5e3), ResBlock(c, 2e5))
        self.up = nn.Upsample(scale_factor=2)
        self.norm_out, self.conv_out = nn.GroupNorm(4, c), nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, z):
        h = self.up(self.mid(self.conv_in(z)))
        return self.conv_out(nn.functional.silu(self.norm_out(h)))


decoder = Decoder().eval().half()
with torch.no_grad():
    for seed in range(4):
        latents = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(seed)).half()
        image = ((decoder(latents) + 1) / 2).clamp(0, 1).float()
        print(f"image {seed}: mean {image.mean().item():.3f}, {image.isnan().float().mean().item():.0%} NaN")

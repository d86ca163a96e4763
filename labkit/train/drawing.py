"""Grey pictures of a network's outputs and of its targets.

Idea: a loss is a number; a face, a mask or a digit can be looked at. A task with such results has a
`Drawing`; the others have no picture.

Invariant: taking a picture does not change the training, and correct outputs give the picture of
the targets.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from labkit.formats.arguments import require_kind
from labkit.train.data import DARK

# The darkest brightness of the drawn face, in standard deviations.
DARKEST = -1.0
BRIGHTEST = 2.5


@dataclass(frozen=True)
class Drawing:
    """Functions that draw the results of a task.

    Attributes:
        examples: number of test examples that are drawn, from the first on; 0 for all.
        outputs: (FP32 outputs for these examples) -> shades [height, width] from 0 (black) to 1
            (white).
        targets: (targets of these examples) -> shades [height, width].
    """

    examples: int
    outputs: Callable[[Tensor], Tensor]
    targets: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Picture:
    """Grey picture after a step of a training, as a text that JSON and pages can hold.

    Attributes:
        step: number of steps that were done; 0 before the first.
        pixels: a byte for each pixel, row by row, 0 black and 255 white, in base64.
    """

    step: int
    height: int
    width: int
    pixels: str = field(repr=False)


def to_picture(shades: Tensor, step: int = 0) -> Picture:
    """Return the picture of shades [height, width] from 0, black, to 1, white.

    Values outside this range are clamped, and NaN is black.

    Raises:
        ValueError: shades does not have two dimensions.

    >>> picture = to_picture(torch.tensor([[0.0, 0.5, 1.0]]), step=7)
    >>> picture, picture.pixels
    (Picture(step=7, height=1, width=3), 'AID/')
    """
    require_kind(shades, Tensor, "shades")
    require_kind(step, int, "step")
    if shades.dim() != 2:
        raise ValueError(
            f"shades: expected a tensor [height, width], got one of shape {list(shades.shape)}. "
            "Take one example, or put several side by side."
        )
    grey = torch.nan_to_num(shades.detach().float(), nan=0.0).clamp(0, 1)
    content = (grey * 255).round().to(torch.uint8).cpu().numpy().tobytes()
    height, width = shades.shape
    return Picture(step, height, width, base64.b64encode(content).decode())


def pixels(brightness: Tensor) -> Tensor:
    """Return the square picture of the brightness [n, 1] of all its pixels."""
    side = round(len(brightness) ** 0.5)
    return ((brightness / DARK - DARKEST) / (BRIGHTEST - DARKEST)).reshape(side, side)


def found_pixels(logits: Tensor) -> Tensor:
    """Return each pixel's largest probability over the classes of [1, classes, height, width]."""
    return logits[0].sigmoid().amax(dim=0)


def true_pixels(masks: Tensor) -> Tensor:
    """Return the union [height, width] of the masks [1, classes, height, width]."""
    return masks[0].amax(dim=0)


def chosen_classes(logits: Tensor) -> Tensor:
    """Return each pixel's class as a shade: the largest logit of [1, classes, height, width]."""
    return _shades(logits.argmax(dim=1), classes=logits.shape[1])


def three_classes(labels: Tensor) -> Tensor:
    """Return the class of each pixel of [1, height, width] as a shade: ground, discs, squares."""
    return _shades(labels, classes=3)


def _shades(labels: Tensor, classes: int) -> Tensor:
    return labels[0].float() / (classes - 1)


def digits_in_a_row(images: Tensor) -> Tensor:
    """Return images [n, 64] of 8 x 8 pixels side by side: [8, 8 * n]."""
    return images.reshape(-1, 8, 8).permute(1, 0, 2).reshape(8, -1)

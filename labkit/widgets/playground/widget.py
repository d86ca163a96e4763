"""Playground: a network that trains in the page, in any number formats, beside one in FP32.

The page does all steps (trainer.js), also in a notebook: the kernel takes no part in them.

Invariant: the results of the page are, to the bit, those of `labkit.formats.round_to`,
`labkit.gemm.accumulate` and `labkit.amp.advance` (tests/playground).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import traitlets

from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget, limited

# The scenes of scenes.js, each with the recipe that it begins with and its changes of the
# optimizer.
SCENES: dict[str, tuple[str, dict[str, Any]]] = {
    "picture": ("FP16", {}),
    "targets": ("FP16", {}),
    "spirals": ("FP16", {}),
    "digits": ("FP8", {}),
    "fine_tuning": ("FP16 no master", {}),
    "too_high": ("FP16 static too high", {}),
    "epsilon": ("O3", {}),
    "swallowed": ("BF16 no master", {"rate": 2.0**-11}),
}
# The recipes of labkit.amp.RECIPES that recipe.js has.
PRESETS = (
    "FP32",
    "FP16",
    "FP16 static",
    "FP16 static too high",
    "FP16 dynamic",
    "FP16 no master",
    "FP16 stochastic",
    "O1",
    "O2",
    "O3",
    "BF16",
    "BF16 no master",
    "FP8",
)
SEEDS = range(10_000)

# The values that recipe.js and address.js allow for the parts of a recipe and of an optimizer.
KNOWN_FORMATS = ("FP32", "FP16", "BF16", "E4M3", "E5M2")
OWN_FORMAT = re.compile(r"e[2-8]m([1-9]|1\d|2[0-3])")
FORMAT_PARTS = ("weights", "activations", "gradients", "optimizer")
CHOICES: dict[str, tuple[Any, ...]] = {
    "master": (True, False),
    "rounding": ("nearest", "stochastic"),
    "accumulator": ("FP32", "format"),
    "scaling": ("none", "static", "dynamic"),
    "kind": ("SGD", "Adam"),
}
RANGES = {"log2_scale": range(-10, 31), "growth_interval": range(1, 100_001)}
LARGEST = {"rate": 100.0, "epsilon": 1.0}
RECIPE_PARTS = (*FORMAT_PARTS, "master", "rounding", "accumulator", "scaling", *RANGES)
METHOD_PARTS = ("kind", "momentum", *LARGEST)


class Playground(LabWidget, folder="playground"):
    """A network that trains in the page, in formats of your choice, beside its twin in FP32.

    Args:
        scene: The problem and a question about it: "picture", "targets", "spirals", "digits",
            "fine_tuning", "too_high", "epsilon" or "swallowed".
        preset: The name of a recipe; None for the one that the scene begins with.
        seed: The seed of the first weights and of the batches, 0 to 9999.

    The traits `scene`, `preset`, `seed`, `changes` and `method` can be read and set. `changes` has
    the parts of the recipe that differ from the preset, such as {"scaling": "static", "log2_scale":
    14}, and `method` those of the optimizer that differ from the problem's, such as {"kind": "SGD",
    "rate": 0.1}. The page sets `sentence`, which can be read.

    Raises:
        TraitError: The scene, recipe or seed does not exist.

    >>> Playground("spirals", "O1").preset
    'O1'
    """

    scene = traitlets.Unicode("picture").tag(sync=True)
    preset = traitlets.Unicode("FP16").tag(sync=True)
    changes: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    method: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    seed = traitlets.Int(0).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    # Whether the page's address holds the setting, as in a file that has the playground alone.
    in_address = traitlets.Bool(False).tag(sync=True)

    def __init__(self, scene: str = "picture", preset: str | None = None, seed: int = 0) -> None:
        # `_choices` refuses a scene that does not exist.
        first, method = SCENES.get(scene, ("FP32", {}))
        if preset is None:
            preset = first
        super().__init__(scene=scene, preset=preset, method=dict(method), seed=seed)

    @limited("scene", "preset", "seed")
    def _choices(self) -> Mapping[str, Collection[Any]]:
        return {"scene": SCENES, "preset": PRESETS, "seed": SEEDS}

    @traitlets.validate("changes", "method")
    def _valid_parts(self, proposal: dict[str, Any]) -> dict[str, Any]:
        parts: dict[str, Any] = proposal["value"]
        name = proposal["trait"].name
        known = RECIPE_PARTS if name == "changes" else METHOD_PARTS
        whole = "a recipe" if name == "changes" else "an optimizer"
        for part, value in parts.items():
            if part not in known:
                raise traitlets.TraitError(
                    f"there is no part {part!r} of {whole}; expected one of {', '.join(known)}"
                )
            expected = _expected(part, value)
            if expected:
                raise traitlets.TraitError(f"{part}: expected {expected}, got {value!r}")
        return parts

    def still(self) -> dict[str, Any]:
        words = f"Playground: {self.scene}, trained in {self.preset} beside its twin in FP32."
        return still(words, why_still("to train it in the page"))


def _expected(part: str, value: Any) -> str:
    """Return what a part of a recipe or an optimizer must be; "" if the value is that."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if part in FORMAT_PARTS:
        is_known = value in KNOWN_FORMATS
        is_own = isinstance(value, str) and OWN_FORMAT.fullmatch(value) is not None
        return "" if is_known or is_own else f"{', '.join(KNOWN_FORMATS)} or one such as e5m10"
    if part in CHOICES:
        choices = CHOICES[part]
        # 1 and 0 are equal to True and False, but are not valid on the page.
        is_same_kind = isinstance(value, bool) == isinstance(choices[0], bool)
        is_choice = is_same_kind and value in choices
        return "" if is_choice else " or ".join(map(str, choices))
    if part in RANGES:
        places = RANGES[part]
        return (
            ""
            if is_number and value in places
            else f"a whole number from {places[0]} to {places[-1]}"
        )
    if part == "momentum":
        return "" if is_number and 0 <= value < 1 else "a number from 0 to below 1"
    most = LARGEST[part]
    return "" if is_number and 0 < value <= most else f"a number above 0, at most {most:g}"

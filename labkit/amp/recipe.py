"""Recipes of mixed-precision training, as values.

Idea: O0 to O3, BF16 and custom recipes are rows that name a format for each part of training. The
engine reads them, so that a user's training loop has no `if` on precision: FP32 is the recipe whose
casts, copies and scale do nothing.

Invariant: every recipe is consistent; constructing an inconsistent one raises an error with the
reason.

Source: apex.amp opt levels O0 to O3 (names and meaning); arXiv:2209.05433 (FP8: E4M3 forward, E5M2
backward).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import torch

from labkit.amp.casting.autocast import autocast, current
from labkit.amp.casting.casts import Cast
from labkit.amp.loss_scaling.scaler import DYNAMIC, NO_SCALING, ScalerConfig, static
from labkit.amp.low_bit.operands import PRODUCTS, ProductFormat
from labkit.amp.low_bit.products import LowBitProducts
from labkit.amp.masters.mixed_dtype_ops import mixed_dtype_ops
from labkit.amp.masters.without_master import WeightRounding
from labkit.amp.ranges import RangeMemory
from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, Format, as_format, as_member
from labkit.formats.arguments import as_row, describe_value, require_kind
from labkit.formats.rows import Rows
from labkit.gemm import as_accumulator, fp32_precision, half_storage, has_tf32, tf32_products
from labkit.gemm.accumulators import AnyAccumulator
from labkit.modes import nested_contexts


@dataclass(frozen=True)
class Recipe:
    """Which format each part of training uses.

    A format may also be passed by its name or as a torch dtype ("FP16", torch.float16), a rounding
    or an accumulator by its name.

    Attributes:
        name: the name in tables and records.
        model: format of the model's weights and activations.
        autocast: format that autocast casts to, or None for no autocast; then `model` alone
            decides.
        keep_norms: whether normalisation layers stay in FP32.
        master_weights: whether FP32 weights survive between steps. If not, only the weights in
            `model`'s format do.
        optimizer: format of weights, gradients and state inside the optimizer's step.
        scaler: how the loss is scaled.
        rounding: rounding of a step's result to `model` without master weights.
        accumulator: the accumulator of matrix products: None for FP32, or one of `labkit.gemm`.
        gradient_format: format that autocast rounds gradients to, or None for `autocast`.
        graph: whether the casts of autocast are decided once, and run as a graph (`CastGraph`)
            from the third forward pass. The numbers are the same.
        products: scaling and rounding of a layer's operands (`labkit.amp.low_bit`), or None.
        tf32: whether products of FP32 operands use TF32: by torch's switch on GPUs that have it,
            else by rounding the operands (`labkit.gemm.tf32_products`).

    Raises:
        TypeError: a value is of another type.
        ValueError: the values contradict each other; the message says which and what to do.

    >>> from labkit.amp import RECIPES
    >>> replace(RECIPES["O2"], name="mine", scaler=static(2.0**10), keep_norms=False).model.name
    'FP16'
    >>> Recipe("mine", model=FP16, autocast=FP16)
    Traceback (most recent call last):
    ...
    ValueError: recipe 'mine': autocast keeps the model in FP32 and casts by operation, but ...
    """

    name: str
    model: Format = FP32
    autocast: Format | None = None
    keep_norms: bool = True
    master_weights: bool = True
    optimizer: Format = FP32
    scaler: ScalerConfig = NO_SCALING
    rounding: WeightRounding = WeightRounding.NEAREST
    accumulator: AnyAccumulator | None = None
    gradient_format: Format | None = None
    graph: bool = False
    products: ProductFormat | None = None
    tf32: bool = False

    def __post_init__(self) -> None:
        self._resolve_names()
        contradiction = next(self._contradictions(), None)
        if contradiction is not None:
            raise ValueError(f"recipe {self.name!r}: {contradiction}")

    def _resolve_names(self) -> None:
        """Replace names of formats, rounding and accumulator by the objects; check all types."""
        require_kind(self.name, str, "name")
        for field in ("model", "optimizer"):
            object.__setattr__(self, field, as_format(getattr(self, field), field))
        for field in ("autocast", "gradient_format"):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, as_format(value, field))
        rounding = as_member(WeightRounding, self.rounding, "rounding")
        object.__setattr__(self, "rounding", rounding)
        for field in ("keep_norms", "master_weights", "graph", "tf32"):
            require_kind(getattr(self, field), bool, field, "Pass True or False.")
            # torch.load refuses a checkpoint with a boolean of numpy
            object.__setattr__(self, field, bool(getattr(self, field)))
        remedy = "For example: static(1024.0), DYNAMIC or NO_SCALING of labkit.amp."
        require_kind(self.scaler, ScalerConfig, "scaler", remedy)
        if self.accumulator is not None:
            object.__setattr__(self, "accumulator", as_accumulator(self.accumulator))
        if self.products is not None:
            require_kind(self.products, ProductFormat, "products")

    def _contradictions(self) -> Iterator[str]:
        """Yield a sentence on each pair of values that contradict each other."""
        yield from self._contradictions_of_weights()
        yield from self._contradictions_of_products()

    def _contradictions_of_weights(self) -> Iterator[str]:
        """Yield contradictions about the formats of model, masters and optimizer."""
        if self.model not in (FP32, FP16, BF16):
            yield (
                f"expected a model in FP32, FP16 or BF16, got {self.model.name}. "
                f"Take model=FP32, autocast={self.model.name}, which emulates it."
            )
        if self.autocast is not None and self.model != FP32:
            yield (
                "autocast keeps the model in FP32 and casts by operation, but model is "
                f"{self.model.name}. Take autocast=None (O2 style) or model=FP32 (O1 style)."
            )
        if self.optimizer not in (FP32, self.model):
            yield (
                f"expected an optimizer in FP32 or the model's {self.model.name}, got "
                f"{self.optimizer.name}."
            )
        if self.master_weights and self.optimizer != FP32:
            yield (
                f"master weights are FP32, but the optimizer would step {self.optimizer.name} "
                "weights. Take optimizer=FP32 or master_weights=False."
            )
        if self.rounding is not WeightRounding.NEAREST and (
            self.master_weights or self.optimizer == self.model
        ):
            yield (
                f"{self.rounding.value} rounding is for weights without FP32 masters, after a step "
                "in FP32. Take a 16-bit model, optimizer=FP32 and master_weights=False, or "
                "rounding=NEAREST."
            )

    def _contradictions_of_products(self) -> Iterator[str]:
        """Yield contradictions about gradients, matrix products and graphs of casts."""
        if self.autocast is not None:
            try:
                Cast(self.autocast, self.gradient_format)
            except ValueError as error:
                yield str(error)
        if self.gradient_format is not None and self.autocast is None:
            yield (
                f"gradient_format={self.gradient_format.name} is the format that autocast rounds "
                "gradients to, and autocast is None. Take autocast=E4M3, "
                f"gradient_format={self.gradient_format.name}, or gradient_format=None."
            )
        if self.accumulator is not None and self.model == FP32 and self.autocast is None:
            yield (
                f"an accumulator ({self.accumulator}) adds up products of numbers of 16 bits or "
                "fewer, and this recipe is FP32. Take model=FP16 or autocast=FP16, or "
                "accumulator=None."
            )
        if self.products is not None and (self.autocast is not None or self.model != FP32):
            yield "products round FP32 operands. Take model=FP32, autocast=None, or products=None."
        if self.tf32 and (
            self.autocast is not None or self.model != FP32 or self.products is not None
        ):
            yield (
                "TF32 is for FP32 operands. Take model=FP32, autocast=None and products=None, or "
                "tf32=False."
            )
        if self.graph and (
            self.autocast not in (FP16, BF16) or self.gradient_format or self.accumulator
        ):
            yield (
                "a graph holds casts to FP16 or BF16. Take autocast=FP16 and nothing emulated, or "
                "graph=False."
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe in plain values, for a checkpoint.

        A format or an accumulator is represented by its name. "fields" has their fields as well:
        they distinguish values of the same name, such as two descriptions of one GPU.
        """
        values: dict[str, Any] = {}
        in_full: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if is_dataclass(value):
                in_full[field.name] = _plain(value)
            values[field.name] = value.name if isinstance(value, Format) else value
        values["scaler"] = asdict(self.scaler)
        values["rounding"] = self.rounding.value
        values["products"] = _plain(self.products)
        if self.accumulator is not None:
            # an accumulator of several parts has no name of its own
            values["accumulator"] = str(getattr(self.accumulator, "name", self.accumulator))
        values["fields"] = in_full
        return values

    def forward(
        self,
        device: torch.device | str,
        products: LowBitProducts | None = None,
        ranges: RangeMemory | None = None,
    ) -> AbstractContextManager[None]:
        """Return the context in which a forward pass and its loss run under this recipe.

        Args:
            device: the device of the model.
            products: the low-bit products of an engine, whose scales follow from earlier steps.
            ranges: an engine's record of the masks of earlier steps.
        """
        plain = self.model == FP32 and self.autocast is None and products is None and not self.tf32
        # an outer region of autocast has to be suspended, also for a plain recipe
        if plain and current() is None:
            return nullcontext()
        return nested_contexts(partial(self.modes, device, products, ranges))

    def backward(self, device: torch.device | str) -> AbstractContextManager[None]:
        """Return the context of a backward pass under this recipe: torch's TF32 switch."""
        if self.tf32 and has_tf32(device):
            return fp32_precision("tf32")
        return nullcontext()

    def modes(
        self,
        device: torch.device | str,
        products: LowBitProducts | None,
        ranges: RangeMemory | None = None,
    ) -> Iterator[AbstractContextManager[Any]]:
        """Yield the modes that a forward pass runs under, outermost first."""
        if products is not None:
            yield products.begin_forward()
        if self.tf32:
            yield tf32_products(device)
        yield half_storage(device, self.accumulator)
        if self.autocast is not None:
            yield autocast(
                self.autocast, gradient_format=self.gradient_format, accumulator=self.accumulator
            )
        elif current() is not None:
            yield autocast(enabled=False)
        if self.model != FP32:
            yield mixed_dtype_ops(wide_masks=self.accumulator is None, ranges=ranges)


def _plain(value: Any) -> Any:
    """Return a dataclass's fields recursively, without the sources of its numbers."""
    if is_dataclass(value):
        names = [f.name for f in fields(value) if f.name not in ("source", "note")]
        plain = {name: _plain(getattr(value, name)) for name in names}
        return {"type": type(value).__name__, **plain}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool | int | float | str | None):
        return value
    return str(value)


# torch's growth_interval of 2,000 is meant for runs of many thousand steps; the lab's have a few
# hundred.
_SHORT_RUN = ScalerConfig(growth_interval=25)
_O1 = Recipe("O1", autocast=FP16, scaler=DYNAMIC)
_O2 = Recipe("O2", model=FP16, scaler=DYNAMIC)
_ALONE = replace(_O2, name="FP16 no master", scaler=static(2.0**10), master_weights=False)
_BF16_ALONE = Recipe("BF16 no master", model=BF16, master_weights=False)
_ROWS = (
    Recipe("FP32"),
    Recipe("TF32", tf32=True),
    replace(_O2, name="FP16", scaler=NO_SCALING),
    replace(_O2, name="FP16 static", scaler=static(2.0**10)),
    replace(_O2, name="FP16 static too high", scaler=static(2.0**26)),
    replace(_O2, name="FP16 dynamic", scaler=_SHORT_RUN),
    _ALONE,
    replace(_ALONE, name="FP16 stochastic", rounding=WeightRounding.STOCHASTIC),
    replace(_ALONE, name="FP16 Kahan", rounding=WeightRounding.KAHAN),
    Recipe("O0"),
    _O1,
    replace(_O1, name="O1 graph", graph=True),
    _O2,
    Recipe("O3", model=FP16, keep_norms=False, master_weights=False, optimizer=FP16),
    Recipe("BF16", model=BF16),
    _BF16_ALONE,
    replace(_BF16_ALONE, name="BF16 stochastic", rounding=WeightRounding.STOCHASTIC),
    replace(_BF16_ALONE, name="BF16 Kahan", rounding=WeightRounding.KAHAN),
    # E5M2 has more range, for gradients; E4M3 has more precision, for the rest. FP8 hardware scales
    # each tensor as well; this recipe scales only the loss.
    Recipe("FP8", autocast=E4M3, gradient_format=E5M2, scaler=DYNAMIC),
    *(Recipe(name, products=format) for name, format in PRODUCTS.items()),
)
RECIPES: dict[str, Recipe] = Rows({recipe.name: recipe for recipe in _ROWS})


def as_recipe(recipe: Recipe | str) -> Recipe:
    """Return the recipe that an argument names: a `Recipe`, or a name in `RECIPES`.

    Raises:
        TypeError: the argument is neither.
        ValueError: no recipe has this name.

    >>> as_recipe("O2") is RECIPES["O2"]
    True
    """
    return as_row(recipe, Recipe, RECIPES, "recipe")


def as_recipes(recipes: Iterable[Recipe | str]) -> list[Recipe]:
    """Return the recipes that a list names, each a `Recipe` or a name in `RECIPES`.

    Raises:
        TypeError: the argument is not a list of recipes and names.
        ValueError: a name is not in `RECIPES`.

    >>> [recipe.name for recipe in as_recipes(["FP32", RECIPES["O1"]])]
    ['FP32', 'O1']
    """
    if isinstance(recipes, Recipe | str) or not isinstance(recipes, Iterable):
        raise TypeError(
            f"recipes: expected a list of recipes, got {describe_value(recipes)}. For example: "
            '["FP32", "O1"].'
        )
    return [as_recipe(recipe) for recipe in recipes]

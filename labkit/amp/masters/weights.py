"""Master weights of a model and the optimizer that steps them, resumed bit for bit from a state.

Training without master weights is the same procedure, but after each step the FP32 weights keep
only what FP16 holds of them, so an update below half an ulp of its weight is swallowed.

Invariant: after every step, model weights = master weights rounded to the model's dtype.

Source: arXiv:1710.03740, section 3.1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.masters.groups import join_state, split_state
from labkit.amp.masters.masters import Group, Masters
from labkit.amp.masters.without_master import WeightRounding, restore
from labkit.formats import as_member
from labkit.formats.arguments import describe_value, require_kind

# their steps depend on the shapes of tensors
NOT_ELEMENTWISE = (torch.optim.Adafactor, torch.optim.Muon)


def require_fitting(
    optimizer: torch.optim.Optimizer, flat: bool, masters: Sequence[Tensor] = ()
) -> None:
    """Raise an error if an optimizer does not fit.

    It needs a closure, steps other tensors than the masters, or cannot step flat ones.
    """
    name = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{name} evaluates the loss several times inside its step, where a scaled loss cannot "
            "be unscaled or skipped. Use an optimizer that steps once (SGD, Adam ...), or train in "
            "FP32 with a plain torch loop."
        )
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = {id(p) for p in masters}
    if own - stepped and stepped - own:
        raise ValueError(
            f"expected {name} to step the {len(own)} masters, got {len(stepped - own)} other "
            "tensors, perhaps the model's. Construct it with the function's argument: lambda "
            f"weights: {name}(weights, lr=0.1)."
        )
    if flat and isinstance(optimizer, NOT_ELEMENTWISE):
        raise ValueError(
            f"{name} uses each parameter's shape, so flat masters change its result. Use "
            "flat=False."
        )


MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


class Weights(Masters):
    """The master weights of a model, its optimizer, and the copy back.

    A parameter that is already in the optimizer's dtype is its own master, so for an FP32 model
    this class does nothing. A tied parameter is one parameter and has one master. A frozen one has
    none, and never changes. Edits of the model's weights between two steps, also through `.data`,
    are copied to the masters before the next step.

    Args:
        model: its trainable parameters are the model weights, of any dtype.
        make_optimizer: parameters -> torch optimizer, called once with a list of the master
            weights, or of groups if `groups` is not None.
        groups: the model's parameters in groups with options of their own, as torch.optim takes
            them, or a function model -> such groups, as `no_decay_on_norms_and_biases`. Each
            trainable parameter is in one of them.
        flat: one master tensor for each group. Elementwise optimizers (SGD, Adam) compute the same
            with it.
        master: if False, after each step the FP32 weights keep only what the model's dtype holds.
        rounding: how the weights are rounded if `master` is False; see `WeightRounding`.
        optimizer_dtype: dtype of master weights and optimizer state. FP16 is O3: no FP32 anywhere.
        seed: seed of stochastic rounding.
        views: whether, with flat=True, weights in the optimizer's dtype become views into their
            master; if not, it is copied.

    Raises:
        ValueError: the groups lack a trainable parameter, have one twice, or one that is not the
            model's; the optimizer's step needs a closure, or steps other tensors than the masters;
            flat=True and the optimizer is not elementwise; a lazy layer is not initialized.

    >>> layer = nn.Linear(1, 1, bias=False).half()
    >>> _ = nn.init.ones_(layer.weight)
    >>> weights = Weights(layer, lambda masters: torch.optim.SGD(masters, lr=1.0))
    >>> weights.step([torch.tensor([[2.0**-12]])])  # below 1, FP16's numbers lie 2^-11 apart
    >>> layer.weight.item(), weights.master_weights[0].item()
    (1.0, 0.999755859375)
    """

    stepping = False  # `step` is calling the optimizer

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        *,
        groups: Sequence[Group] | Callable[[nn.Module], Sequence[Group]] | None = None,
        flat: bool = False,
        master: bool = True,
        rounding: WeightRounding | str = WeightRounding.NEAREST,
        optimizer_dtype: torch.dtype = torch.float32,
        seed: int = 0,
        views: bool = True,
    ) -> None:
        require_kind(model, nn.Module, "model")
        if not callable(make_optimizer):
            raise TypeError(
                "make_optimizer: expected a function parameters -> optimizer, got "
                f"{describe_value(make_optimizer)}. For example: partial(torch.optim.SGD, lr=0.1)."
            )
        names = {parameter: name for name, parameter in model.named_parameters()}
        lazy = [name for parameter, name in names.items() if nn.parameter.is_lazy(parameter)]
        if lazy:
            raise ValueError(
                f"parameter {lazy[0]!r} of a lazy layer has no shape yet, so it can have no "
                "master. Call the model once, on one batch, first."
            )
        super().__init__(
            names,
            flat=flat,
            master=master,
            rounding=as_member(WeightRounding, rounding, "rounding"),
            dtype=optimizer_dtype,
            seed=seed,
            views=views,
        )
        if groups is None:
            self.optimizer = make_optimizer(self.add({"params": list(names)})["params"])
        else:
            self.optimizer = make_optimizer(
                [self.add(g) for g in (groups(model) if callable(groups) else groups)]
            )
        require_kind(
            self.optimizer, torch.optim.Optimizer, "the result of make_optimizer", "Return it."
        )
        grouped = set(self.model_weights)
        left = [name for p, name in self.names.items() if p.requires_grad and p not in grouped]
        if left:
            raise ValueError(
                f"{len(left)} trainable parameters are in no group, the first is {left[0]!r}: they "
                "would get gradients and never be stepped. Add them to a group, or freeze them: "
                "requires_grad_(False)."
            )
        require_fitting(self.optimizer, flat, self.optimizer_weights)

    def add_group(self, group: Group) -> None:
        """Add a group of the model's parameters to the optimizer, for instance unfrozen layers."""
        self.adopt_edits()
        self.optimizer.add_param_group(self.add(group))

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], *, edited: bool | None = None) -> None:
        """Step the master weights with unscaled gradients, then copy them to the model.

        There is one gradient, or None, for each of `optimizer_weights`.

        `edited` says whether the model's weights were edited since the last step, by what `edits`
        returned a moment ago; None finds out. Raises as `adopt_edits`.
        """
        self.adopt_edits(edited)
        for weight, gradient in zip(self.optimizer_weights, gradients, strict=True):
            weight.grad = None if gradient is None else gradient.to(weight.dtype)
        self.stepping = True
        try:
            self.optimizer.step()
        finally:
            self.stepping = False
        self.copy_back()

    def state_dict(self) -> dict[str, Any]:
        """Return masters by name, optimizer state by parameter, and the generator's state."""
        state = self.optimizer.state_dict()
        return {
            "master": self.named_masters(),
            "optimizer": split_state(state, self._members) if self.flat else state,
            "generator": self._generator.get_state(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict`, of flat weights or not; the model's weights are loaded before.

        Raises:
            ValueError: the masters have other names or shapes, or the optimizer does not take its
                state; then nothing has changed.
        """
        own = dict(zip(self.stepped_names, self.master_weights, strict=True))
        shapes = {name: master.shape for name, master in own.items()}
        stored = {name: master.shape for name, master in state["master"].items()}
        if shapes != stored:
            unlike = [name for name in {**shapes, **stored} if shapes.get(name) != stored.get(name)]
            raise ValueError(
                f"these master weights are of another network: {unlike[0]!r} differs in name or "
                "shape"
            )
        before = {"state": self.optimizer.state, "param_groups": self.optimizer.param_groups}
        random = self._generator.get_state()
        try:
            restore(self._generator, state["generator"])
            optimizer = state["optimizer"]
            self.optimizer.load_state_dict(
                join_state(optimizer, self._members) if self.flat else optimizer
            )
        except Exception:
            self.optimizer.__setstate__(before)
            self._generator.set_state(random)
            raise
        for name, master in own.items():
            master.data.copy_(state["master"][name])
        self._note()

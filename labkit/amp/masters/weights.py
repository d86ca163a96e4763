"""Master weights of a model and the optimizer that steps them, resumed bit for bit from a state.

Training without master weights is the same procedure, but after each step the FP32 weights keep
only what FP16 holds of them, so an update below half an ulp of its weight is swallowed.

Invariant: after every step, model weights = master weights rounded to the model's dtype.

Source: arXiv:1710.03740, section 3.1.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.masters.groups import join_state, split_state
from labkit.amp.masters.masters import Group, Masters
from labkit.amp.masters.without_master import WeightRounding, restore
from labkit.formats import as_member
from labkit.formats.arguments import describe_value, require_kind

# optimizers whose steps depend on the shapes of tensors
NOT_ELEMENTWISE = (torch.optim.Adafactor, torch.optim.Muon)


def require_fitting(
    optimizer: torch.optim.Optimizer, flat: bool, masters: Sequence[Tensor] = ()
) -> None:
    """Raise an error if an optimizer cannot step master weights.

    Args:
        optimizer: the optimizer.
        flat: whether the masters are flat.
        masters: the tensors that it has to step; without any, this is not checked.

    Raises:
        ValueError: the optimizer's step needs a closure, it steps other tensors than the masters,
            or it is not elementwise and the masters are flat.
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


# a list of parameters, or of groups -> optimizer; `Any`, since optimizers differ in what they take
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


class Weights(Masters):
    """The master weights of a model, its optimizer, and the copy back.

    A parameter that is already in the optimizer's dtype is its own master, so for an FP32 model
    this class does nothing. A tied parameter is one parameter and has one master. A frozen
    parameter has none, and never changes. Edits of the model's weights between two steps, also
    through `.data`, are copied to the masters before the next step.

    Args:
        model: its trainable parameters are the model weights, of any dtype.
        make_optimizer: parameters -> torch optimizer, called once with a list of the master
            weights, or of groups of them if `groups` is not None.
        groups: the model's parameters in groups with options of their own, as torch.optim takes
            them, or a function model -> such groups, such as `no_decay_on_norms_and_biases`. Each
            trainable parameter is in one of them.
        flat: whether each group has one master tensor. Elementwise optimizers (SGD, Adam) compute
            the same with it.
        master: if False, the FP32 weights are rounded to the model's dtype after each step.
        rounding: how the weights are rounded if `master` is False; see `WeightRounding`.
        optimizer_dtype: dtype of master weights and optimizer state. FP16 is O3: no FP32 anywhere.
        seed: seed of stochastic rounding.
        views: whether, with flat=True, weights in the optimizer's dtype become views into their
            master; if not, it is copied.

    Raises:
        TypeError: groups are not dicts with parameters in "params".
        ValueError: a trainable parameter is in no group or in two; a group has a tensor that is not
            a parameter of the model; the optimizer does not fit (`require_fitting`); a lazy layer
            is not initialized.

    >>> layer = nn.Linear(1, 1, bias=False).half()
    >>> _ = nn.init.ones_(layer.weight)
    >>> weights = Weights(layer, lambda masters: torch.optim.SGD(masters, lr=1.0))
    >>> weights.step([torch.tensor([[2.0**-12]])])  # below 1, FP16's numbers lie 2^-11 apart
    >>> layer.weight.item(), weights.master_weights[0].item()
    (1.0, 0.999755859375)
    """

    # whether `step` is calling the optimizer
    stepping = False

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
        if callable(groups):
            groups = groups(model)
            require_kind(groups, Iterable, "the result of groups", "Return a list of groups.")
        elif groups is not None:
            require_kind(groups, Iterable, "groups", "Pass a list of groups.")
        if groups is None:
            self.optimizer = make_optimizer(self.add({"params": list(names)})["params"])
        else:
            self.optimizer = make_optimizer([self.add(group) for group in groups])
        require_kind(
            self.optimizer, torch.optim.Optimizer, "the result of make_optimizer", "Return it."
        )
        grouped = set(self.model_weights)
        missing = [name for p, name in self.names.items() if p.requires_grad and p not in grouped]
        if missing:
            raise ValueError(
                f"expected each trainable parameter in a group, got {len(missing)} in none, the "
                f"first is {missing[0]!r}. Such a parameter would get gradients and never be "
                "stepped. Add it to a group, or freeze it: requires_grad_(False)."
            )
        require_fitting(self.optimizer, flat, self.optimizer_weights)

    def add_group(self, group: Group) -> None:
        """Add a group of the model's parameters to the optimizer, for instance unfrozen layers.

        If the optimizer refuses the group, nothing has changed.
        """
        self.adopt_edits()
        with self.added(group) as with_masters:
            self.optimizer.add_param_group(with_masters)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], *, edited: bool | None = None) -> None:
        """Step the master weights with unscaled gradients, then copy them to the model.

        Args:
            gradients: a gradient or None for each of `optimizer_weights`.
            edited: whether the model's weights were edited since the last step, if the caller has
                read the flags of `edits`; None reads them here.

        Raises:
            RuntimeError: the model temporarily holds other values (`replaced_by`).
            ValueError: data of another shape were assigned to a weight's `.data`.
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
        """Load a `state_dict`, of flat weights or not.

        The model's weights are not part of it: load them first. The state is copied, and may be
        loaded again.

        Raises:
            ValueError: the masters have other names or shapes, or the optimizer refuses its state;
                then nothing has changed.
        """
        own = dict(zip(self.stepped_names, self.master_weights, strict=True))
        shapes = {name: master.shape for name, master in own.items()}
        new_shapes = {name: master.shape for name, master in state["master"].items()}
        for name in {**shapes, **new_shapes}:
            if shapes.get(name) != new_shapes.get(name):
                raise ValueError(
                    f"these master weights are of another network: {name!r} differs in name or "
                    "shape"
                )
        optimizer_before = {
            "state": self.optimizer.state,
            "param_groups": self.optimizer.param_groups,
        }
        generator_before = self._generator.get_state()
        try:
            restore(self._generator, state["generator"])
            # torch's optimizers keep the tensors that they load, and change them in their steps
            optimizer_state = copy.deepcopy(state["optimizer"])
            if self.flat:
                optimizer_state = join_state(optimizer_state, self._members)
            self.optimizer.load_state_dict(optimizer_state)
        except Exception:
            self.optimizer.__setstate__(optimizer_before)
            self._generator.set_state(generator_before)
            raise
        for name, master in own.items():
            master.data.copy_(state["master"][name])
        self._update_checksum()

"""Master weights: FP32 weights that the optimizer steps, and their rounding with which the model computes.

Training without master weights is the same procedure, but after each step the FP32 weights keep only what FP16 holds of
them, so an update below half an ulp of its weight is swallowed. The master is one tensor for each parameter, or one
flat tensor for each group of them, into which every parameter is a view.

Invariant: after every step, model weights = master weights rounded to the model's dtype.

Source: arXiv:1710.03740, section 3.1; apex.fp16_utils.prep_param_lists (the flat master).
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.loss_scaling.unscale import read
from labkit.amp.masters.edits import checksum, differences
from labkit.amp.masters.groups import cut, flat_gradient, flatten, join_state, split_state
from labkit.amp.masters.without_master import WeightRounding, restore, store_all_rounded
from labkit.formats import as_member
from labkit.formats.arguments import describe_value, require_kind

# their steps depend on the shapes of tensors
NOT_ELEMENTWISE = (torch.optim.Adafactor, torch.optim.Muon)


def require_fitting(
    optimizer: torch.optim.Optimizer, flat: bool, masters: Sequence[Tensor] = ()
) -> None:
    """Raise an error if an optimizer needs a closure, steps other tensors than the masters, or no flat ones."""
    name = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{name} evaluates the loss several times inside its step, where a scaled loss cannot be unscaled or "
            "skipped. Use an optimizer that steps once (SGD, Adam ...), or train in FP32 with a plain torch loop."
        )
    stepped, own = (
        {id(p) for group in optimizer.param_groups for p in group["params"]},
        {id(p) for p in masters},
    )
    if own - stepped and stepped - own:
        raise ValueError(
            f"expected {name} to step the {len(own)} masters, got {len(stepped - own)} other tensors, "
            f"perhaps the model's. Construct it with the function's argument: lambda weights: {name}(weights, lr=0.1)."
        )
    if flat and isinstance(optimizer, NOT_ELEMENTWISE):
        raise ValueError(
            f"{name} uses each parameter's shape, so flat masters change its result. Use flat=False."
        )


Group = Mapping[str, Any]  # "params" and the optimizer's options for them, as torch.optim takes it
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


class Weights:
    """The master weights of a model, its optimizer, and the copy back.

    A parameter that is already in the optimizer's dtype is its own master, so for an FP32 model this class does
    nothing. A tied parameter is one parameter and has one master. A frozen one has none, and never changes. Edits of
    the model's weights between two steps, also through `.data`, are copied to the masters before the next step.

    Args:
        model: its trainable parameters are the model weights, of any dtype.
        make_optimizer: parameters -> torch optimizer, called once with a list of the master weights, or of groups if
            `groups` is not None.
        groups: the model's parameters in groups with options of their own, as torch.optim takes them, or a function
            model -> such groups, as `no_decay_on_norms_and_biases`. Each trainable parameter is in one of them.
        flat: one master tensor for each group. Elementwise optimizers (SGD, Adam) compute the same with it.
        master: False: after each step the FP32 weights keep only what the model's dtype holds.
        rounding: how they are rounded then; see `WeightRounding`.
        optimizer_dtype: dtype of master weights and optimizer state. FP16 is O3: no FP32 anywhere.
        seed: of stochastic rounding.
        views: with flat=True, weights in the optimizer's dtype become views into their master; False: it is copied.

    Raises:
        ValueError: the groups lack a trainable parameter, have one twice, or one that is not the model's; the
            optimizer's step needs a closure, or steps other tensors than the masters; flat=True and the optimizer is
            not elementwise; a lazy layer is not initialized.

    >>> layer = nn.Linear(1, 1, bias=False).half()
    >>> _ = nn.init.ones_(layer.weight)
    >>> weights = Weights(layer, lambda masters: torch.optim.SGD(masters, lr=1.0))
    >>> weights.step([torch.tensor([[2.0**-12]])])  # below 1, FP16's numbers lie 2^-11 apart
    >>> layer.weight.item(), weights.master_weights[0].item()
    (1.0, 0.999755859375)
    """

    _replaced = False  # the model temporarily holds other values
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
        rounding = as_member(WeightRounding, rounding, "rounding")
        self.views = views
        self.flat, self.master, self.rounding, self.dtype = flat, master, rounding, optimizer_dtype
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        lazy = [name for parameter, name in self.names.items() if nn.parameter.is_lazy(parameter)]
        if lazy:
            raise ValueError(
                f"parameter {lazy[0]!r} of a lazy layer has no shape yet, so it can have no master. Call the model "
                "once, on one batch, first."
            )
        self.model_weights: list[nn.Parameter] = []  # in the order of the groups
        self.master_weights: list[Tensor] = []  # one for each of them; with flat=True, views
        self.optimizer_weights: list[
            nn.Parameter
        ] = []  # what the optimizer steps: master weights, or flat tensors
        self._members: list[list[nn.Parameter]] = []  # the model weights of each group
        self._dtypes: list[torch.dtype] = []  # of the model weights
        if groups is None:
            self.optimizer = make_optimizer(self._add({"params": list(self.names)})["params"])
        else:
            self.optimizer = make_optimizer(
                [self._add(g) for g in (groups(model) if callable(groups) else groups)]
            )
        require_kind(
            self.optimizer, torch.optim.Optimizer, "the result of make_optimizer", "Return it."
        )
        self._pair_up()
        grouped = set(self.model_weights)
        left = [name for p, name in self.names.items() if p.requires_grad and p not in grouped]
        if left:
            raise ValueError(
                f"{len(left)} trainable parameters are in no group, the first is {left[0]!r}: they would get "
                "gradients and never be stepped. Add them to a group, or freeze them: requires_grad_(False)."
            )
        require_fitting(self.optimizer, flat, self.optimizer_weights)
        self._device = self.model_weights[0].device if self.model_weights else torch.device("cpu")
        rolls = rounding is WeightRounding.STOCHASTIC and bool(self.model_weights)
        self._generator = torch.Generator(self._device if rolls else "cpu").manual_seed(seed)
        self._note()

    def add_group(self, group: Group) -> None:
        """Add a group of the model's parameters to the optimizer, for instance layers that are no longer frozen."""
        self.adopt_edits()
        self.optimizer.add_param_group(self._add(group))
        self._pair_up()
        self._note()

    def _add(self, group: Group) -> dict[str, Any]:
        """Create the masters of a group; return the group with the masters as its parameters."""
        params = group["params"]
        listed: list[nn.Parameter] = [params] if isinstance(params, nn.Parameter) else list(params)
        wrong = [p for p in listed if p not in self.names]
        if wrong:
            raise ValueError(
                f"expected groups of this model's parameters, got {len(wrong)} other tensors, the first of shape "
                f"{tuple(wrong[0].shape)}. Take them from the model: [p for p in model.head.parameters()]."
            )
        weights = [p for p in listed if p.requires_grad]
        counts = Counter([*self.model_weights, *weights])
        twice = [self.names[p] for p in weights if counts[p] > 1]
        if twice:
            raise ValueError(f"expected each parameter in one group, got {twice[0]!r} twice")
        if self.flat and weights:
            whole, masters = flatten(weights, self.dtype, views=self.views)
            stepped = [whole]
        else:
            stepped = [
                p if p.dtype == self.dtype else nn.Parameter(p.detach().to(self.dtype))
                for p in weights
            ]
            masters = list(stepped)
        self.model_weights += weights
        self.master_weights += masters
        self.optimizer_weights += stepped
        self._members.append(weights)
        self._dtypes += [p.dtype for p in weights]
        return {**group, "params": stepped}

    @property
    def stepped_names(self) -> list[str]:
        """The names of `model_weights`."""
        return [self.names[p] for p in self.model_weights]

    def scaled_gradients(self) -> list[Tensor | None]:
        """Return the gradients as backward left them, scaled, one for each of `optimizer_weights`; None: there is none.

        Raises:
            RuntimeError: a parameter that was frozen has a gradient; or, with flat=True, only some of a group have one.
        """
        thawed = [name for p, name in self._frozen.items() if p.grad is not None]
        if thawed:
            raise RuntimeError(
                f"parameter {thawed[0]!r} was frozen when the optimizer was made, and has a gradient now. Tell the "
                "optimizer of it: weights.add_group({'params': [...], 'lr': ...})."
            )
        if not self.flat:
            return [p.grad for p in self.model_weights]
        return [flat_gradient(weights, self.names) for weights in self._members if weights]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], *, edited: bool | None = None) -> None:
        """Step the master weights with unscaled gradients, one for each of `optimizer_weights`, then copy them back.

        `edited` says whether the model's weights were edited since the last step, by what `edits` returned a moment
        ago; None finds out. Raises as `adopt_edits`.
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

    def _pair_up(self) -> None:
        """Record for each step which weights are copied back from which masters, are known, or are frozen."""
        self.ids = frozenset(map(id, self.names))
        every = zip(self.model_weights, self.master_weights, self._dtypes, strict=True)
        pairs: list[tuple[Tensor, Tensor]] = []
        pairs += [(w, m) for w, m, dtype in every if w is not m and not self._is_view(dtype)]
        self._copied, self._masters = (
            [weight for weight, _ in pairs],
            [master for _, master in pairs],
        )
        stepped = set(self.model_weights)
        self._frozen = {p: name for p, name in self.names.items() if p not in stepped}

    @property
    def has_copies(self) -> bool:
        """Whether the optimizer steps other tensors than the model's own."""
        return self.flat or bool(self._copied)

    def _is_view(self, dtype: torch.dtype) -> bool:
        """Whether weights of a dtype are views into a flat master."""
        return self.flat and self.views and dtype == self.dtype

    @torch.no_grad()
    def copy_back(self) -> None:
        """Round the master weights into the model; without a master, remember only what was rounded."""
        if self.master and self._copied:
            torch._foreach_copy_(self._copied, self._masters)
        elif not self.master:
            store_all_rounded(self._masters, self._copied, self.rounding, self._generator)
        self._note()

    # --- what others do to the model's weights ------------------------------------------------------------------------

    @torch.no_grad()
    def adopt(self) -> None:
        """Set the master weights to the model's weights, after these were changed.

        Where a master still rounds to its weight, it keeps its digits.
        """
        self.restore_dtypes()
        for weight, master in zip(self._copied, self._masters, strict=True):
            master.copy_(
                torch.where(master.to(weight.dtype) == weight, master, weight.to(master.dtype))
            )
        self._note()

    def adopt_edits(self, edited: bool | None = None) -> None:
        """Call `adopt` if the model's weights were changed since they were copied back, also through `.data`.

        Raises:
            RuntimeError: other values stand in the model for a while (`replaced_by`).
            ValueError: a weight's `.data` were given another shape.
        """
        if edited is None:
            flags = self.edits()
            edited = flags is None or any(read(flags))
        if edited:
            self.adopt()

    def edits(self) -> list[Tensor] | None:
        """Return flags on the weights' devices: not 0 where they were changed; None if they moved to another device.

        Raises as `adopt_edits`.
        """
        if self._replaced:
            raise RuntimeError(
                "other values stand in the model's weights for a while, those of an average for instance, and the "
                "masters would take them over. Step and save after the `with` block."
            )
        self.restore_dtypes()
        return differences(self._noted, checksum(self._copied)) if self._copied else []

    def require_unmoved(self) -> None:
        """Raise a RuntimeError if the model was moved to another device; its first weight is checked."""
        if self.model_weights and (now := self.model_weights[0].device) != self._device:
            raise RuntimeError(
                f"the model was moved to {now} after the engine was made, whose master weights and optimizer are on "
                f'{self._device}. Move the model first, or make the engine with device="{now}".'
            )

    def restore_dtypes(self) -> None:
        """Cast `.data` that was assigned to a weight to the weight's dtype; the master takes the value uncast.

        An FP32 weight whose master is flat becomes a view into it again.

        Raises:
            ValueError: they have another shape.
        """
        for weight, master, dtype in zip(
            self.model_weights, self.master_weights, self._dtypes, strict=True
        ):
            if weight is master and weight.dtype is dtype:
                continue
            if weight.shape != master.shape:
                raise ValueError(
                    f"the data of parameter {self.names[weight]!r} were given the shape {tuple(weight.shape)}; the "
                    f"optimizer steps {tuple(master.shape)}. Make a new engine for a model of other shapes."
                )
            view = self.flat and self._is_view(dtype)
            if weight.dtype is not dtype or (view and weight.data_ptr() != master.data_ptr()):
                master.data.copy_(weight if self.master else weight.to(dtype))
                weight.data = master.detach() if view else weight.detach().to(dtype)

    @contextmanager
    def replaced_by(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Replace the model's weights by other values, by name, in a `with` block, rounded to their dtype."""
        self.adopt_edits()
        before = [(p, p.data) for p in self.model_weights]
        self._replaced = True
        try:
            for p in self.model_weights:
                p.data = values[self.names[p]].to(p.dtype)
            yield
        finally:
            for p, data in before:
                p.data = data
            self._replaced = False

    def _note(self) -> None:
        """Record a checksum of the model's weights, which later shows whether they were changed."""
        self._noted = checksum(self._copied) if self._copied else []

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy, by copy.deepcopy or pickle, which copy a flat master and the views into it apart."""
        self.__dict__.update(state)
        if self.flat:
            wholes = zip(
                self.optimizer_weights,
                [weights for weights in self._members if weights],
                strict=True,
            )
            self.master_weights = [
                view for whole, weights in wholes for view in cut(whole.detach(), weights)
            ]
            for weight, master, dtype in zip(
                self.model_weights, self.master_weights, self._dtypes, strict=True
            ):
                if self._is_view(dtype):
                    weight.data = master
        self._pair_up()

    def zero_grad(self) -> None:
        """Clear the gradients of the last step, here and in the model."""
        for p in (*self.names, *self.optimizer_weights):
            p.grad = None

    def named_masters(self) -> dict[str, Tensor]:
        """Return parameter name -> master weight, of the parameter's shape; a view where the master is flat."""
        self.adopt_edits()
        return {
            name: master.detach()
            for name, master in zip(self.stepped_names, self.master_weights, strict=True)
        }

    def by_name(self, gradients: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Return parameter name -> gradient, from one gradient for each of `optimizer_weights`."""
        if not self.flat:
            both = zip(self.model_weights, gradients, strict=True)
            return {self.names[p]: gradient for p, gradient in both if gradient is not None}
        groups = zip([weights for weights in self._members if weights], gradients, strict=True)
        parts = [
            (p, part)
            for ps, g in groups
            if g is not None
            for p, part in zip(ps, cut(g, ps), strict=True)
        ]
        return {self.names[p]: part for p, part in parts}

    def state_dict(self) -> dict[str, Any]:
        """Return masters by name, the optimizer's state by parameter, and the generator of stochastic rounding."""
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
            ValueError: the masters have other names or shapes, or the optimizer does not take its state; then nothing
                has changed.
        """
        own = dict(zip(self.stepped_names, self.master_weights, strict=True))
        shapes, stored = (
            {name: m.shape for name, m in masters.items()} for masters in (own, state["master"])
        )
        if shapes != stored:
            unlike = [name for name in {**shapes, **stored} if shapes.get(name) != stored.get(name)]
            raise ValueError(
                f"these master weights are of another network: {unlike[0]!r} differs in name or shape"
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

"""Master weights: FP32 weights, and their rounding with which a model computes.

A master is one tensor for each parameter, or one flat tensor for each group of them, into which
every parameter is a view. The caller steps the masters, and copies them back afterwards.

Invariant: after `copy_back`, model weights = master weights rounded to the model's dtype. A
checksum detects an edit of the model's weights between two steps, also through `.data`. The edit
is copied to the masters before the next step.

Source: arXiv:1710.03740, section 3.1; apex.fp16_utils.prep_param_lists (the flat master).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.loss_scaling.readings import read_scalars
from labkit.amp.masters.edits import checksum, differences
from labkit.amp.masters.groups import cut, flat_gradient, flatten
from labkit.amp.masters.without_master import WeightRounding, store_all_rounded
from labkit.findings import counted
from labkit.formats.arguments import describe_value, require_kind

# "params" and the optimizer's options for them, as torch.optim takes it
Group = Mapping[str, Any]


class Masters:
    """Pairs of model weights and master weights, and the copies between them.

    A parameter that is already in the masters' dtype is its own master, so for an FP32 model this
    class does nothing. A tied parameter is one parameter and has one master. A frozen parameter has
    none.

    Args:
        names: parameter -> name, for all parameters that groups may contain.
        flat: whether each group has one master tensor.
        master: if False, the FP32 weights are rounded to the model's dtype after each step.
        rounding: how the weights are rounded if `master` is False; see `WeightRounding`.
        dtype: dtype of the masters.
        seed: seed of stochastic rounding.
        views: whether, with flat=True, weights in the masters' dtype become views into their
            master; if not, it is copied.

    >>> weight = nn.Parameter(torch.ones(1).half())
    >>> masters = Masters({weight: "weight"})
    >>> stepped = masters.add({"params": [weight]})["params"][0]
    >>> stepped.data -= 2.0**-12  # below 1, FP16's numbers lie 2^-11 apart
    >>> masters.copy_back()
    >>> weight.item(), stepped.item()
    (1.0, 0.999755859375)
    """

    # whether the model temporarily holds other values
    _replaced = False

    def __init__(
        self,
        names: Mapping[nn.Parameter, str],
        *,
        flat: bool = False,
        master: bool = True,
        rounding: WeightRounding = WeightRounding.NEAREST,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        views: bool = True,
    ) -> None:
        self.names = dict(names)
        self.flat = flat
        self.views = views
        self.master = master
        self.rounding = rounding
        self.dtype = dtype
        # the trainable parameters, in the order of the groups
        self.model_weights: list[nn.Parameter] = []
        # one master for each model weight; with flat=True, views into the flat masters
        self.master_weights: list[Tensor] = []
        # the tensors that the optimizer steps: master weights, or flat masters
        self.optimizer_weights: list[nn.Parameter] = []
        # the model weights of each group
        self._members: list[list[nn.Parameter]] = []
        # the dtype of each model weight
        self._dtypes: list[torch.dtype] = []
        self._seed = seed
        self._use_device_of([])
        self._pair_up()
        self._update_checksum()

    def add(self, group: Group) -> dict[str, Any]:
        """Create the masters of a group of parameters.

        Args:
            group: the parameters and their options, as torch.optim takes them.

        Returns:
            The group with the masters for its parameters.

        Raises:
            TypeError: the group is not a dict with "params", or has something else than parameters
                in it.
            ValueError: a parameter is not in `names`, or is in a group already.
        """
        if not isinstance(group, Mapping) or "params" not in group:
            got = describe_value(group)
            if isinstance(group, Mapping):
                got = f"one with {', '.join(map(repr, group)) or 'no key'}"
            raise TypeError(
                f"expected a group as a dict with 'params', got {got}. For example: "
                "groups=[{'params': list(model.parameters())}]."
            )
        params = group["params"]
        listed: list[nn.Parameter] = [params] if isinstance(params, nn.Parameter) else list(params)
        for p in listed:
            require_kind(p, Tensor, "a group's 'params'", "Pass model.parameters(), without names.")
        foreign = [p for p in listed if p not in self.names]
        if foreign:
            raise ValueError(
                "expected groups of this model's parameters, got "
                f"{counted(len(foreign), 'other tensor')}, the first of shape "
                f"{tuple(foreign[0].shape)}. Take them from the model: "
                "list(model.head.parameters())."
            )
        weights = [p for p in listed if p.requires_grad]
        counts = Counter([*self.model_weights, *weights])
        twice = [self.names[p] for p in weights if counts[p] > 1]
        if twice:
            raise ValueError(f"expected each parameter in one group, got {twice[0]!r} twice")
        stepped: list[nn.Parameter] = []
        masters: list[Tensor] = []
        if self.flat and weights:
            flat_master, masters = flatten(weights, self.dtype, views=self.views)
            stepped.append(flat_master)
        else:
            for p in weights:
                # a parameter in the masters' dtype is its own master
                master = p if p.dtype == self.dtype else nn.Parameter(p.detach().to(self.dtype))
                stepped.append(master)
                masters.append(master)
        self.model_weights += weights
        self.master_weights += masters
        self.optimizer_weights += stepped
        self._members.append(weights)
        self._dtypes += [p.dtype for p in weights]
        is_first_group = len(self.model_weights) == len(weights)
        if is_first_group:
            self._use_device_of(weights)
        self._pair_up()
        self._update_checksum()
        return {**group, "params": stepped}

    @contextmanager
    def added(
        self, group: Group, names: Mapping[nn.Parameter, str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Add a group as `add` does, for a `with` block that gives it to the optimizer.

        If the block raises, the names and the masters of the group are removed.

        Args:
            group: the parameters and their options.
            names: names of parameters that are not in `names` yet.
        """
        names_before = self.names
        self.names = {**names_before, **(names or {})}
        pairs = len(self.model_weights)
        stepped = len(self.optimizer_weights)
        groups = len(self._members)
        try:
            yield self.add(group)
        except BaseException:
            self.names = names_before
            del self.model_weights[pairs:]
            del self.master_weights[pairs:]
            del self._dtypes[pairs:]
            del self.optimizer_weights[stepped:]
            del self._members[groups:]
            self._pair_up()
            self._update_checksum()
            raise

    def _use_device_of(self, weights: Sequence[Tensor]) -> None:
        """Store the device of weights, and a generator there if the rounding is stochastic."""
        self._device = weights[0].device if weights else torch.device("cpu")
        generator_device = torch.device("cpu")
        if self.rounding is WeightRounding.STOCHASTIC:
            generator_device = self._device
        self._generator = torch.Generator(generator_device).manual_seed(self._seed)

    @property
    def stepped_names(self) -> list[str]:
        """The names of `model_weights`."""
        return [self.names[p] for p in self.model_weights]

    def scaled_gradients(self) -> list[Tensor | None]:
        """Return the gradients in the model, one for each of `optimizer_weights`, still scaled.

        It is None for a parameter without a gradient.

        Raises:
            RuntimeError: a parameter that was frozen has a gradient; or, with flat=True, only some
                of a group have one.
        """
        thawed = [name for p, name in self._frozen.items() if p.grad is not None]
        if thawed:
            raise RuntimeError(
                f"parameter {thawed[0]!r} was frozen when the optimizer was made, and has a "
                "gradient now. Add it to the optimizer: weights.add_group({'params': [...], 'lr': "
                "...})."
            )
        if not self.flat:
            return [p.grad for p in self.model_weights]
        return [flat_gradient(weights, self.names) for weights in self._members if weights]

    def _pair_up(self) -> None:
        """Record the ids of all parameters, the pairs that need a copy, and the frozen ones."""
        self.ids = frozenset(map(id, self.names))
        # the weights that are copied from a master, and their masters
        self._copied = list[Tensor]()
        self._masters = list[Tensor]()
        for weight, master, dtype in zip(
            self.model_weights, self.master_weights, self._dtypes, strict=True
        ):
            # a weight that is its own master, or a view into it, needs no copy
            if weight is not master and not self._is_view(dtype):
                self._copied.append(weight)
                self._masters.append(master)
        stepped = set(self.model_weights)
        self._frozen = {p: name for p, name in self.names.items() if p not in stepped}

    @property
    def has_copies(self) -> bool:
        """Whether the optimizer steps other tensors than the model's own."""
        return self.flat or bool(self._copied)

    def _is_view(self, dtype: torch.dtype) -> bool:
        """Return whether weights of a dtype are views into a flat master."""
        return self.flat and self.views and dtype == self.dtype

    @torch.no_grad()
    def copy_back(self) -> None:
        """Round the master weights into the model.

        With `master=False`, the masters are rounded as well.
        """
        if self.master and self._copied:
            torch._foreach_copy_(self._copied, self._masters)
        elif not self.master:
            store_all_rounded(self._masters, self._copied, self.rounding, self._generator)
        self._update_checksum()

    # --- edits of the model's weights by the user

    @torch.no_grad()
    def adopt(self) -> None:
        """Set the master weights to the model's weights, after the latter were edited.

        A number of a master that still rounds to its weight keeps its digits.
        """
        self.restore_dtypes()
        # only a number that differs from its rounded master was edited
        for weight, master in zip(self._copied, self._masters, strict=True):
            master.copy_(
                torch.where(master.to(weight.dtype) == weight, master, weight.to(master.dtype))
            )
        self._update_checksum()

    def adopt_edits(self, edited: bool | None = None) -> None:
        """Call `adopt` if the model's weights were edited after the copy back, also by `.data`.

        Args:
            edited: whether they were edited, if the caller has read the flags of `edits`; None
                reads them here.

        Raises:
            RuntimeError: the model temporarily holds other values (`replaced_by`).
            ValueError: data of another shape were assigned to a weight's `.data`.
        """
        if edited is None:
            flags = self.edits()
            edited = flags is None or any(read_scalars(flags))
        if edited:
            self.adopt()

    def edits(self) -> list[Tensor] | None:
        """Return flags on the weights' devices: not 0 where the weights were edited.

        It is None if the weights were moved to another device.

        Raises:
            RuntimeError: the model temporarily holds other values (`replaced_by`).
            ValueError: data of another shape were assigned to a weight's `.data`.
        """
        if self._replaced:
            raise RuntimeError(
                "the model's weights temporarily hold other values, such as those of an average, "
                "which would be copied to the masters. Step and save after the `with` block."
            )
        self.restore_dtypes()
        if not self._copied:
            return []
        return differences(self._checksum, checksum(self._copied))

    def require_unmoved(self) -> None:
        """Raise a RuntimeError if the model's first weight was moved to another device."""
        if not self.model_weights:
            return
        now = self.model_weights[0].device
        if now != self._device:
            raise RuntimeError(
                f"the model was moved to {now} after the engine was made, whose master weights and "
                f"optimizer are on {self._device}. Move the model first, or make the engine with "
                f'device="{now}".'
            )

    def restore_dtypes(self) -> None:
        """Cast data that was assigned to a weight's `.data` to the weight's dtype.

        The master gets the data uncast. An FP32 weight whose master is flat becomes a view into it
        again. Nothing is done in a block of `replaced_by`, whose data are not edits.

        Raises:
            ValueError: the data have another shape.
        """
        if self._replaced:
            return
        for weight, master, dtype in zip(
            self.model_weights, self.master_weights, self._dtypes, strict=True
        ):
            if weight is master and weight.dtype is dtype:
                continue
            if weight.shape != master.shape:
                raise ValueError(
                    f"the data of parameter {self.names[weight]!r} were given the shape "
                    f"{tuple(weight.shape)}; the optimizer steps {tuple(master.shape)}. Make a new "
                    "engine for a model of other shapes."
                )
            view = self._is_view(dtype)
            if weight.dtype is not dtype or (view and weight.data_ptr() != master.data_ptr()):
                master.data.copy_(weight if self.master else weight.to(dtype))
                weight.data = master.detach() if view else weight.detach().to(dtype)

    @contextmanager
    def replaced_by(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Replace the model's weights in a `with` block.

        Args:
            values: parameter name -> value, which is rounded to the parameter's dtype.
        """
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

    def _update_checksum(self) -> None:
        """Record a checksum of the model's weights, which later shows whether they were edited."""
        self._checksum = checksum(self._copied) if self._copied else []

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy made by copy.deepcopy or pickle.

        Both copy a flat master and the views into it separately, so the views are made again.
        """
        self.__dict__.update(state)
        if self.flat:
            self.master_weights = []
            members = [weights for weights in self._members if weights]
            for flat_master, weights in zip(self.optimizer_weights, members, strict=True):
                self.master_weights += cut(flat_master.detach(), weights)
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
        """Return parameter name -> master weight; with a flat master, a view into it."""
        self.adopt_edits()
        pairs = zip(self.stepped_names, self.master_weights, strict=True)
        return {name: master.detach() for name, master in pairs}

    def by_name(self, gradients: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Return parameter name -> gradient, from one gradient for each of `optimizer_weights`."""
        if not self.flat:
            pairs = zip(self.stepped_names, gradients, strict=True)
            return {name: gradient for name, gradient in pairs if gradient is not None}
        named: dict[str, Tensor] = {}
        members = [weights for weights in self._members if weights]
        for weights, gradient in zip(members, gradients, strict=True):
            if gradient is not None:
                for p, part in zip(weights, cut(gradient, weights), strict=True):
                    named[self.names[p]] = part
        return named

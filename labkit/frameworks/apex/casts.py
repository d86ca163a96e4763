"""The casts of torch's functions under O1, from `initialize` to the end of the program.

Idea: apex replaced functions of torch when it was initialized, for the rest of the program. Here a
region of `labkit.amp.autocast` is opened instead and stays open, in the thread that opened it. As
in apex, and unlike in torch.amp, in-place operations that would need FP32 raise an error.

Invariant: when a handle is deactivated, torch and every registered function are what they were.

Source: apex.amp.amp.init (order and kinds of patches), apex.amp.wrap (in-place operations),
    apex.amp.lists (bans).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from labkit.amp import CastEvent, Entry, Rule, autocast, register, rule_for
from labkit.amp.casting.autocast import current
from labkit.amp.casting.in_graphs import CASTABLE
from labkit.formats import FP16
from labkit.frameworks.apex.models import Properties
from labkit.frameworks.apex.optimizers import LossScaler
from labkit.gemm import half_storage
from labkit.modes import mapped, open_modes

LOG = logging.getLogger("labkit.frameworks.apex")
_IN_FP32 = (Rule.DENY, Rule.SET_DTYPE, Rule.APPEND_DTYPE)
# module, name of a function in it, and the rule it gets
Registration = tuple[Any, str, Rule]


class _ApexCasts(autocast):
    """Autocast with apex's treatment of banned functions and of in-place operations."""

    def __init__(
        self, *, allow_banned: bool, cache: bool, listen: Callable[[CastEvent], None] | None
    ) -> None:
        super().__init__(FP16, cache=cache, listen=listen)
        self.allow_banned = allow_banned

    def entry_for(self, func: Callable[..., Any], name: str) -> Entry:
        entry = super().entry_for(func, name)
        # __torch_function__ has refused banned functions of FP16 tensors before; others run in FP32
        if entry.rule is Rule.BANNED:
            return Entry(Rule.DENY, entry.why)
        return entry

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        if current() is self:
            name = getattr(func, "__name__", "")
            if self.rule_of(name) is Rule.BANNED and not self.allow_banned:
                leaves = tree_leaves((args, kwargs))
                if any(getattr(leaf, "dtype", None) is torch.float16 for leaf in leaves):
                    raise NotImplementedError(
                        f"{name} is not safe in FP16 and apex bans it: {rule_for(name).why}."
                    )
            if _is_in_place(name) and args and isinstance(args[0], Tensor):
                args, kwargs = self._as_self(name, args, kwargs or {})
        return super().__torch_function__(func, types, args, kwargs)

    def rule_of(self, name: str) -> Rule:
        """Return the rule of an operation, or of the one whose in-place form it is."""
        if _is_in_place(name):
            name = name.removesuffix("_")
        return rule_for(name).rule

    def _as_self(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Cast an in-place operation's operands to the dtype of the tensor that it changes.

        Raises:
            NotImplementedError: the operation computes in FP32, and the tensor is FP16.
        """
        rule = self.rule_of(name)
        own = args[0].dtype
        if rule in _IN_FP32 and own is torch.float16:
            raise NotImplementedError(
                f"{name} computes in FP32 and would write into an FP16 tensor, which cannot become "
                f"FP32 in place. Use the form that returns a new tensor: {name.removesuffix('_')}."
            )
        if rule not in (Rule.ALLOW, Rule.PROMOTE) or own not in CASTABLE:
            return args, kwargs

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(own) if tensor.dtype in CASTABLE else tensor

        return (args[0], *mapped(args[1:], cast)), mapped(kwargs, cast)


def _is_in_place(name: str) -> bool:
    """Return whether torch's convention marks a function as in-place; `__add__` has two."""
    return name.endswith("_") and not name.endswith("__")


def require_no_modes() -> None:
    """Raise a RuntimeError if a mode of labkit is open, which would close before amp's casts."""
    if open_modes():
        raise RuntimeError(
            "amp casts until the next amp.initialize, and a `with autocast()` (or another mode "
            "of labkit) is open here, which ends sooner. Call amp.initialize outside of it; "
            "under O1 no autocast is needed."
        )


class AmpHandle:
    """The open casts of O1 or of `amp.init`, until the next `initialize` or `init`.

    Args:
        device: the device of the models.
        registrations: functions of the user that get a rule.
        enabled: if False, nothing is cast.
        allow_banned: run banned functions in FP32 instead of raising an error.
        cache: keep the casts of weights until the optimizer's step.
        verbose: log each cast.

    Raises:
        RuntimeError: a mode of labkit is open already, and would close before this one.
    """

    def __init__(
        self,
        device: torch.device,
        registrations: Iterable[Registration] = (),
        *,
        enabled: bool = True,
        allow_banned: bool = False,
        cache: bool = True,
        verbose: bool = False,
    ) -> None:
        self._opened = ExitStack()
        self._region = _ApexCasts(
            allow_banned=allow_banned, cache=cache, listen=_log_cast if verbose else None
        )
        self._active = enabled
        if not enabled:
            return
        require_no_modes()
        with ExitStack() as opened:
            # torch's functions get their rule by name; other functions are replaced in their module
            for module, name, rule in registrations:
                function = getattr(module, name)
                registered = opened.enter_context(register(function, rule))
                if not registered.of_torch:
                    setattr(module, name, registered)
                    opened.callback(setattr, module, name, function)
            opened.enter_context(half_storage(device))
            opened.enter_context(self._region)
            self._opened = opened.pop_all()

    def is_active(self) -> bool:
        """Whether torch's functions are cast."""
        return self._active

    def scale_loss(self, loss: Tensor, optimizer: Any) -> None:
        """Refuse what apex's last versions refused.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "The old Amp API is no longer supported: use amp.initialize and `with "
            "amp.scale_loss(loss, optimizer)`."
        )

    def _clear_cache(self) -> None:
        self._region.cache.clear()

    def _deactivate(self) -> None:
        """Leave torch and the registered functions as they were; idempotent."""
        self._active = False
        self._opened.close()


def _log_cast(event: CastEvent) -> None:
    if event.to is not None and event.elements:
        LOG.warning(
            "%s: %s to %s", event.op, [str(dtype) for dtype in event.input_dtypes], event.to
        )


class AmpState(threading.local):
    """State that apex's functions share, in this thread.

    Attributes:
        opt_properties: properties of the last `initialize`, or None before.
        loss_scalers: loss_id -> scaler.
        handle: the open casts of O1 or `init`; None if there are none.
        registrations: functions that get a rule at the next `initialize` or `init`.
        allow_incoming_model_not_fp32: accept half models, which apex's own tests use.
    """

    def __init__(self) -> None:
        self.opt_properties: Properties | None = None
        self.loss_scalers: list[LossScaler] = []
        self.handle: AmpHandle | None = None
        self.registrations: list[Registration] = []
        self.allow_incoming_model_not_fp32 = False

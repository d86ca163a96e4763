"""Lightning in FP16 on any device, and its observer.

Use them as `Trainer(plugins=FP16Mixed(), callbacks=Watch())`.

Idea: a subclass of Lightning's plugin for mixed precision, with the lab's scaler and autocast. The
original turns "16-mixed" into BF16 on a CPU, and advances schedules when a step is skipped; here
those that count steps do not.

Source: lightning.pytorch.plugins.precision (2.6.6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins import MixedPrecision

from labkit.frameworks.torch_amp import GradScaler, autocast
from labkit.frameworks.watching import Watching


class FP16Mixed(MixedPrecision):
    """Autocast by CUDA's lists and a loss scale, on any device.

    Args:
        device: the type of the device.
        knobs: options of `GradScaler`, such as init_scale.

    >>> FP16Mixed(init_scale=1024.0).scaler.get_scale()
    1024.0
    """

    def __init__(self, device: str = "cpu", **knobs: Any) -> None:
        super().__init__("16-mixed", device, GradScaler(device, **knobs))
        # id of an optimizer -> the number of its steps, without skipped ones
        self.steps: Counter[int] = Counter()

    def autocast_context_manager(self) -> Any:
        """Return a context manager for a step under autocast."""
        return autocast(self.device, torch.float16)

    def connect(
        self, model: Any, optimizers: list[Any], lr_schedulers: list[Any]
    ) -> tuple[Any, list[Any], list[Any]]:
        """Wrap the schedules that count steps, so that skipped steps do not count."""
        for optimizer in optimizers:
            optimizer.register_step_post_hook(self._note_step)
        configs = []
        for config in lr_schedulers:
            if config.interval == "step":
                schedule = AfterSteps(config.scheduler, self.steps)
                configs.append(replace(config, scheduler=schedule))
            else:
                configs.append(config)
        model, optimizers, configs = super().connect(model, optimizers, configs)
        return model, optimizers, configs

    def _note_step(self, optimizer: Any, *_: Any) -> None:
        # a fused optimizer is called for a skipped step, too, and skips in its kernel
        if not getattr(optimizer, "found_inf", None):
            self.steps[id(optimizer)] += 1


class AfterSteps:
    """A schedule that advances only after its optimizer has stepped.

    All other attributes are those of the wrapped schedule.

    Args:
        schedule: the schedule.
        steps: id of an optimizer -> the number of its steps so far.
    """

    def __init__(self, schedule: Any, steps: Mapping[int, int]) -> None:
        self.schedule = schedule
        self.steps = steps
        # the number of steps when the schedule last advanced: an optimizer may have two schedules
        self.steps_before = 0

    def __getattr__(self, name: str) -> Any:
        # copy.copy and pickle look up methods before there is a schedule
        if "schedule" not in self.__dict__:
            raise AttributeError(f"AfterSteps without a schedule has no {name}")
        return getattr(self.schedule, name)

    def step(self, *args: Any, **kwargs: Any) -> None:
        steps = self.steps[id(self.schedule.optimizer)]
        if steps > self.steps_before:
            self.steps_before = steps
            self.schedule.step(*args, **kwargs)


class Watch(Watching, Callback):
    """`labkit.instrument.watch` as a callback: `Trainer(callbacks=[Watch(every=10)])`.

    Call `report()` after the training.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.open(pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.close()

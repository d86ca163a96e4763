"""Observer of the Hugging Face Trainer: `Trainer(..., callbacks=[Watch(every=10)])`.

Call `report()` after the training.

Source: transformers.trainer_callback (5).
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from labkit.frameworks.watching import Watching


class Watch(Watching, TrainerCallback):
    """`labkit.instrument.watch` as a callback of the Trainer.

    Call `close()` if the training ended with an error.
    """

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        self.open(model)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

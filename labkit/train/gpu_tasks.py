"""What is there to learn that is worth a GPU? The same tasks, with networks and batches large enough to keep one busy.

Idea: a row is a task of the lab with another network, more data in a step and a name of its own; loss, metric and
optimizer stay. On a CPU a step of these takes seconds.

Invariant: each differs from its small one in size alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from labkit.train import networks
from labkit.train.digits import scattered_digits
from labkit.train.made import CHARACTERS, shapes, small_targets, text_windows
from labkit.train.tasks import TASKS, Task

SUFFIX = "_gpu"
VOCABULARY = len(CHARACTERS)

_ROWS = (
    replace(
        TASKS["segmentation"],
        make_model=partial(networks.segmenter, channels=128),
        make_data=partial(scattered_digits, size=96, digits=24, train=400),
        batch_size=64,
        steps=100,
    ),
    replace(
        TASKS["gpt"],
        make_model=partial(networks.Gpt, VOCABULARY, 256, width=512, heads=8, depth=8),
        make_data=partial(text_windows, length=256),
        batch_size=64,
        steps=100,
    ),
    replace(
        TASKS["unet"],
        make_model=partial(networks.Unet, channels=64),
        make_data=partial(shapes, size=128),
        batch_size=64,
        steps=100,
    ),
    replace(
        TASKS["char_lstm"],
        make_model=partial(networks.CharLstm, VOCABULARY, width=1024),
        make_data=partial(text_windows, length=128),
        batch_size=128,
        steps=100,
    ),
    replace(TASKS["digits"], make_model=partial(networks.mlp, hidden=4096), batch_size=1024, steps=200),
    replace(TASKS["digits_cnn"], make_model=partial(networks.batch_norm_cnn, channels=128), batch_size=1024, steps=200),
    replace(TASKS["gauss_conv"], make_model=partial(networks.gauss_conv, channels=256), batch_size=512),
    replace(TASKS["autoencoder"], make_model=partial(networks.autoencoder, hidden=4096), batch_size=1024, steps=200),
    replace(TASKS["small_targets"], make_model=partial(networks.tanh_mlp, hidden=2048), make_data=small_targets),
)
GPU_TASKS: dict[str, Task] = {task.name + SUFFIX: replace(task, name=task.name + SUFFIX) for task in _ROWS}

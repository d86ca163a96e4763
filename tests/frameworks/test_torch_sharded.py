"""Does our ShardedGradScaler do what torch's does? Two real processes, each stepping weights that the other has not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.amp.distributed.ranks import launch


@pytest.mark.slow
def test_it_is_torch_s_own_bit_for_bit_and_without_it_ranks_part(tmp_path: Path) -> None:
    ranks = launch("scalers", 2, tmp_path)
    for found in ranks:
        for (scale, tracker, weight), (own_scale, own_tracker, own) in zip(found["torch"], found["ours"], strict=True):
            assert (scale, tracker) == (own_scale, own_tracker)
            assert torch.equal(weight, own)
    scales = [[scale for scale, *_ in found["ours"]] for found in ranks]
    assert scales[0] == scales[1] == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0, 2048.0]
    alone = [[scale for scale, *_ in found["alone"]] for found in ranks]
    assert alone[0][:2] == alone[1][:2]
    assert alone[0][2:] != alone[1][2:]  # nobody told the first rank

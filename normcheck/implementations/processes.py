"""Workers that are processes of one group, as in distributed training with torch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normcheck.implementations.targets import load


@dataclass(frozen=True)
class Processes:
    """A value for ``Implementation(workers=)``: every shard is given to a process of its own.

    Parameters
    ----------
    target : ``module:callable`` or ``file.py:callable``; called in each process, inside a process group, with the shard and the
        other arguments of ``workers``. It returns y, or (y, running_mean, running_var). No gradients come back
    backend : of ``torch.distributed``
    """

    target: str
    backend: str = "gloo"

    def __call__(self, shards: Sequence[Any], *rest: Any) -> Any:
        """Start the processes, wait for them, and gather what they returned. What one raises is raised here."""
        import torch

        with tempfile.TemporaryDirectory() as folder:
            torch.save((list(shards), rest), Path(folder, "given"))
            torch.multiprocessing.spawn(_work, (self, folder, len(shards)), nprocs=len(shards))
            found = [torch.load(Path(folder, f"{rank}"), weights_only=True) for rank in range(len(shards))]
        return tuple(map(list, zip(*found, strict=True))) if isinstance(found[0], tuple) else found


def _work(rank: int, spread: Processes, folder: str, count: int) -> None:
    """One process of the group."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(spread.backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    shards, rest = torch.load(Path(folder, "given"), weights_only=True)
    with torch.no_grad():
        returned = load(spread.target)(shards[rank], *rest)
    torch.save(returned, Path(folder, f"{rank}"))
    distributed.destroy_process_group()

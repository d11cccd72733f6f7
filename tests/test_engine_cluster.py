"""Clusters: a dask run, any executor, and workers that are killed give the audit that this machine gives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normcheck as nc
from normcheck.engine.lanes import EngineError
from normcheck.results import Outcome

NORM = nc.RMSNorm(eps=1e-6)
OPTIONS: dict[str, Any] = {"profile": "quick", "checks": ["accuracy", "scale-invariance"], "dtypes": ["float32", "float16"]}
DASK = pytest.mark.filterwarnings("ignore")  # dask's own warnings are not ours


def rms(x: Any, weight: Any) -> Any:
    """A sound RMSNorm."""
    h = x.astype(np.float32)
    return (h / np.sqrt((h * h).mean(-1, keepdims=True) + np.float32(1e-6)) * weight.astype(np.float32)).astype(x.dtype)


def aborts(x: Any, weight: Any) -> Any:
    """Ends its process."""
    os.abort()


def norms(count: int = 2, **calls: Any) -> list[nc.Implementation]:
    """Sound norms of several names, and others."""
    named = {f"n{i}": rms for i in range(count)} | calls
    return [nc.Implementation(c, NORM, framework="numpy", name=n, dtypes=("float32", "float16")) for n, c in named.items()]


def timeless(audit: nc.Audit) -> list[dict[str, Any]]:
    """Results without times."""
    return [{**result.to_dict(), "seconds": 0} for result in audit.results]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A local dask cluster of two worker processes."""
    distributed = pytest.importorskip("distributed")
    made = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    yield made
    made.close()


class Breaking(ThreadPoolExecutor):
    """An executor whose workers all die."""

    def submit(self, *given: Any, **more: Any) -> Future[Any]:  # type: ignore[override]
        """A future that is broken."""
        future: Future[Any] = Future()
        future.set_exception(BrokenProcessPool("all of them"))
        return future


def test_any_executor_gives_the_same_audit() -> None:
    """Units run by an Executor give the audit that this process gives, crashes included."""
    made = norms(aborts=aborts)
    local = nc.audit(made, **OPTIONS, isolation=True)
    with ThreadPoolExecutor(2) as executor:
        remote = nc.audit(made, **OPTIONS, scheduler=executor)
    assert Outcome.CRASHED in {result.outcome for result in local.results}
    assert timeless(remote) == timeless(local)


def test_what_a_cluster_gives_up_is_judged_here() -> None:
    """Units whose workers die again and again are judged by this process."""
    assert timeless(nc.audit(norms(1), **OPTIONS, scheduler=Breaking())) == timeless(nc.audit(norms(1), **OPTIONS))


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (3, "scheduler=3, but should be an address, a dask client, or an Executor"),
        ("nonsense://nowhere", "scheduler='nonsense://nowhere' cannot be reached"),
    ],
)
def test_what_is_no_scheduler_is_refused(scheduler: Any, said: str) -> None:
    """A scheduler that cannot be used is one line."""
    if isinstance(scheduler, str):
        pytest.importorskip("distributed")
    with pytest.raises(EngineError, match=said):
        nc.audit(norms(1), **OPTIONS, scheduler=scheduler)


def test_a_cluster_has_no_budget() -> None:
    """A cluster is not told to stop in time."""
    with pytest.raises(ValueError, match="budget and scheduler were given"):
        nc.audit(norms(1), **OPTIONS, scheduler="tcp://127.0.0.1:1", budget=5.0)


@DASK
def test_a_dask_run_equals_a_local_one(cluster: Any, tmp_path: Path) -> None:
    """By address, by client and by cluster, with a journal, dask gives the audit that this machine gives."""
    made = norms(aborts=aborts)
    local = nc.audit(made, **OPTIONS, isolation=True)
    with cluster.get_client() as client:
        for scheduler in (cluster.scheduler_address, client, cluster):
            journal = tmp_path / "journal.jsonl"
            remote = nc.audit(made, **OPTIONS, scheduler=scheduler, journal=journal)
            assert timeless(remote) == timeless(local)
            assert len(journal.read_text(encoding="utf-8").splitlines()) == 1 + len(
                {(r.implementation, r.dtype, r.check) for r in local.results}
            )


@DASK
def test_a_unit_whose_worker_is_killed_is_run_again(cluster: Any) -> None:
    """Dask workers that are killed during the run cost time, and no result."""
    made = norms(6)
    local = nc.audit(made, **OPTIONS)
    # each is killed once, and while it runs: dask gives up one that is killed while it starts
    running = [worker.pid for worker in cluster.workers.values()]
    at = [1, 5]

    def kill(done: int, _total: int, _label: str) -> None:
        if at and done >= at[0]:
            os.kill(running[-len(at)], signal.SIGKILL)
            del at[0]

    remote = nc.audit(made, **OPTIONS, scheduler=cluster, progress=kill)
    assert not at
    assert timeless(remote) == timeless(local)

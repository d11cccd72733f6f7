"""Calls made in other ways, sessions of stateful code, and what stands beside a norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from normcheck import BatchNorm, Implementation, LayerNorm
from normcheck.implementations import CallError, Inputs, Session, call, implementations, natives
from normcheck.implementations.ways import checkpointed, exported, under_autocast, under_inference_mode, vmapped

torch = pytest.importorskip("torch")

X = np.arange(12.0).reshape(3, 4)
ONES, ZEROS = np.ones(4), np.zeros(4)
LAYER = {one.name: one for one in implementations("torch")}["torch.nn.functional.layer_norm"]
BATCH = {one.name: one for one in implementations("torch")}["torch.nn.BatchNorm1d[train]"]


def _state(inputs: Inputs, count: int) -> tuple[Session, list[npt.NDArray[np.float64] | None]]:
    session = Session(BATCH, ZEROS, ONES)
    means = []
    for _ in range(count):
        session.step(inputs)
        means.append(session.running_mean)
    return session, means


@pytest.mark.parametrize("way", [under_inference_mode, under_autocast, vmapped, checkpointed, exported])
def test_every_way_gives_the_plain_result(way: Callable[..., Any]) -> None:
    """A sound norm in float32 gives the same bits in each way of calling it."""
    inputs = Inputs(X, ONES, ZEROS)
    assert np.array_equal(call(LAYER, inputs, way).y, call(LAYER, inputs).y)


def test_inference_mode_and_autocast_are_on() -> None:
    """The code under judgement finds itself in the mode."""
    seen = {}

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        seen["inference"] = torch.is_inference_mode_enabled()
        seen["autocast"] = torch.is_autocast_enabled("cpu")
        return x

    one = Implementation(norm, LayerNorm())
    call(one, Inputs(X), under_inference_mode)
    assert seen == {"inference": True, "autocast": False}
    call(one, Inputs(X), under_autocast)
    assert seen == {"inference": False, "autocast": True}


def test_session_of_a_module_keeps_its_module() -> None:
    """Two steps of one session update twice, and evaluation in between changes nothing."""
    inputs = Inputs(X, ONES, ZEROS)
    session, means = _state(inputs, 2)
    assert np.allclose(means, [[0.4, 0.5, 0.6, 0.7], [0.76, 0.95, 1.14, 1.33]])
    assert int(session.module.num_batches_tracked) == 2
    session.step(Inputs(X, ONES, ZEROS, training=False))
    assert np.array_equal(session.running_mean, means[-1])


def test_session_of_a_function_carries_the_statistics() -> None:
    """What a function returns is what it is given next."""

    def norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float) -> Any:
        return x, mean + 1, var * 2

    session = Session(Implementation(norm, BatchNorm()), ZEROS, ONES)
    for _ in range(3):
        session.step(Inputs(X))
    assert np.array_equal(session.running_mean, 3 * ONES)
    assert np.array_equal(session.running_var, 8 * ONES)


def test_new_buffers_of_a_module_are_read() -> None:
    """A module that puts new arrays in the place of its statistics is read where they are."""

    class Norm(torch.nn.Module):
        """Replaces its running mean."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = self.bias = self.running_mean = self.running_var = None

        def forward(self, x: Any) -> Any:
            """Count."""
            self.running_mean = self.running_mean + 1
            return x

    one = Implementation(module=lambda norm, **_: Norm(), norm=BatchNorm())
    output = call(one, Inputs(X, running_mean=ZEROS, running_var=ONES))
    assert np.array_equal(output.running_mean, ONES)


def test_results_are_named_by_returns() -> None:
    """Statistics come back under the names that ``returns`` gives them, with their dtypes."""

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return x, x.mean(-1).double(), x.std(-1)

    output = call(Implementation(norm, LayerNorm(), returns=("y", "mean", "rstd")), Inputs(X))
    assert np.array_equal(output.mean, X.mean(-1))
    assert dict(output.dtypes) == {"y": "float32", "mean": "float64", "rstd": "float32"}


def test_unknown_result_is_refused() -> None:
    """``returns`` takes known names only."""
    with pytest.raises(ValueError, match="returns='sigma', but should be one of y, new_residual"):
        Implementation(print, LayerNorm(), returns=("y", "sigma"))


def test_number_of_results_is_that_of_returns() -> None:
    """Fewer results than named are refused with what was expected."""
    one = Implementation(lambda x, weight, bias: x, LayerNorm(), returns=("y", "mean"))
    with pytest.raises(CallError, match=r"returned Tensor, but should return \(y, mean\)"):
        call(one, Inputs(X))


def test_natives_holds_what_the_code_does_not_take() -> None:
    """Companions get their arrays whether or not the plain call takes them."""
    one = Implementation(lambda x: x, LayerNorm(), arguments=("x",))
    with pytest.raises(ValueError, match=r"weight given, but .* does not take it"):
        call(one, Inputs(X, ONES))
    assert natives(one, Inputs(X, ONES))["weight"].tolist() == [1.0, 1.0, 1.0, 1.0]

"""ncnn's norms, each as a net of one layer."""

import subprocess
import sys

import numpy as np
import pytest

from normcheck.implementations import CallError, Inputs, call, frameworks, implementations, snippet
from normcheck.norms import LayerNorm

pytest.importorskip("ncnn")

ROWS = {one.name: one for one in implementations("ncnn")}
ROW = np.array([[1.0, -1.0, 1.0, -1.0]])


def test_every_layer_has_a_row():
    """Those that normalize by themselves, in float32."""
    assert set(ROWS) == {"ncnn.LayerNorm", "ncnn.RMSNorm", "ncnn.GroupNorm", "ncnn.InstanceNorm"}
    assert {one.dtypes for one in ROWS.values()} == {("float32",)}


def test_eps_is_read_as_a_number_with_a_point():
    """An eps of 3, written without a point, would be a whole number and act as 4e-45."""
    halved = call(ROWS["ncnn.LayerNorm"].with_norm(LayerNorm(eps=3.0)), Inputs(ROW))
    assert np.array_equal(halved.y, ROW / 2)


def test_samples_are_normalized_one_by_one():
    """A batch is a net's output for each sample, in order."""
    x = np.random.default_rng(0).integers(-8, 8, (3, 4, 2, 2)).astype(np.float64)
    whole = call(ROWS["ncnn.GroupNorm"], Inputs(x)).y
    assert np.array_equal(whole, np.concatenate([call(ROWS["ncnn.GroupNorm"], Inputs(x[i : i + 1])).y for i in range(3)]))


def test_empty_arrays_are_refused_before_ncnn_sees_them():
    """An empty matrix ends the process in ncnn."""
    with pytest.raises(CallError, match="ncnn has no empty arrays"):
        call(ROWS["ncnn.LayerNorm"], Inputs(np.zeros((0, 4))))


def test_threads_that_are_pinned_reach_the_net():
    """The number is that of the net's options."""
    from normcheck.implementations import ncnn as own

    before = own.ADAPTER.threads()
    try:
        own.ADAPTER.pin_threads(3)
        call(ROWS["ncnn.RMSNorm"], Inputs(ROW))
        held = np.ones(4, np.float32).tobytes()
        assert own.net("RMSNorm norm 1 1 x y 0=4 1=1.000000000e-03 2=1", held, 3).opt.num_threads == 3
    finally:
        frameworks()["ncnn"].pin_threads(before)


@pytest.mark.parametrize("name", ROWS)
def test_a_snippet_needs_ncnn_and_numpy_alone(name):
    """The pasted source makes the net and prints what the call gave."""
    x = np.arange(32.0).reshape(1, 4, 2, 4) if ROWS[name].norm.per_channel else np.arange(8.0).reshape(2, 4)
    index = (0, 1, 1, 1) if x.ndim == 4 else (1, 1)
    given = Inputs(x, weight=np.ones(4))
    y = float(call(ROWS[name], given).y[index])
    source = snippet(ROWS[name], given, index=index, expected=y, tolerance=0.0)
    assert "normcheck" not in source
    done = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert y.hex() in done.stdout

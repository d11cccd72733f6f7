"""ncnn: its norms in float32, each as a net of one layer. Weights belong to the net."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.onnx import SHARED, Run, ThreadedRuntime, affine, row
from normcheck.norms import GroupNorm, InstanceNorm, LayerNorm, RMSNorm

ADAPTER = ThreadedRuntime("ncnn", "pip install ncnn")
NEEDS = (*SHARED[1:], f"{__name__}:samples", f"{__name__}:net")


@functools.lru_cache(maxsize=64)
def net(layer: str, weights: bytes, threads: int) -> Any:
    """A net of one layer, given as its line of a parameter file, in float32 throughout."""
    import tempfile
    from pathlib import Path

    import ncnn

    made = ncnn.Net()
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(made.opt, f"use_{name}", False)
    made.opt.num_threads = threads or made.opt.num_threads
    with tempfile.TemporaryDirectory() as folder:
        parameters, model = Path(folder, "net.param"), Path(folder, "net.bin")
        parameters.write_text(f"7767517\n2 2\nInput in 0 1 x\n{layer}\n", encoding="utf-8")
        model.write_bytes(weights)
        made.load_param(str(parameters))
        made.load_model(str(model))
    return made


def run(layer: str, settings: dict[int, Any], weights: list[Any], x: Any, threads: int = 0) -> Any:
    """The output of a net of one layer for one sample.

    Parameters
    ----------
    settings : parameters of the layer by number
    weights : what its model file holds, in this order
    """
    import ncnn
    import numpy as np

    if not x.size:
        raise ValueError("ncnn has no empty arrays")
    # a number without a point is taken for a whole one
    written = [f"{key}={value:.9e}" if isinstance(value, float) else f"{key}={value}" for key, value in settings.items()]
    held = b"".join(np.ascontiguousarray(array, np.float32).tobytes() for array in weights)
    x = np.ascontiguousarray(x)
    extractor = net(" ".join([layer, "norm 1 1 x y", *written]), held, threads).create_extractor()
    extractor.input("x", ncnn.Mat(x).clone())
    return np.array(extractor.extract("y")[1]).reshape(x.shape)


def samples(x: Any, each: Any) -> Any:
    """What a function gives for each sample, in one array."""
    import numpy as np

    return np.stack([each(sample) for sample in x]) if len(x) else each(x)


def layer_norm(run: Run, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """LayerNorm over the last axis."""
    width = x.shape[-1]
    own = affine(weight, bias, width, x.dtype)
    return run("LayerNorm", {0: width, 1: eps, 2: 1}, [own["weight"], own["bias"]], x)


def rms_norm(run: Run, x: Any, weight: Any, eps: float) -> Any:
    """RMSNorm over the last axis."""
    width = x.shape[-1]
    return run("RMSNorm", {0: width, 1: eps, 2: 1}, [affine(weight, None, width, x.dtype)["weight"]], x)


def group_norm(run: Run, x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """GroupNorm of one sample after the other."""
    channels = x.shape[1]
    own = affine(weight, bias, channels, x.dtype)
    settings = {0: num_groups, 1: channels, 2: eps, 3: 1}
    return samples(x, lambda sample: run("GroupNorm", settings, [own["weight"], own["bias"]], sample))


def instance_norm(run: Run, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """InstanceNorm of one sample after the other."""
    channels = x.shape[1]
    own = affine(weight, bias, channels, x.dtype)
    settings = {0: channels, 1: eps, 2: 1}
    return samples(x, lambda sample: run("InstanceNorm", settings, [own["weight"], own["bias"]], sample))


_CONTRACT = Contract(eps_dtype="float32")


def builtins() -> Iterator[Implementation]:
    """The layers that normalize by themselves, with their default eps."""
    names = ("x", "weight", "bias", "eps")
    for layer, function, norm, arguments, ranks in (
        ("LayerNorm", "layer_norm", LayerNorm(eps=1e-3), names, (2, 3)),
        ("RMSNorm", "rms_norm", RMSNorm(eps=1e-3), ("x", "weight", "eps"), (2, 3)),
        ("GroupNorm", "group_norm", GroupNorm(4, eps=1e-3), ("x", "num_groups", "weight", "bias", "eps"), (3, 4)),
        ("InstanceNorm", "instance_norm", InstanceNorm(eps=1e-3), names, (4,)),
    ):
        own: dict[str, Any] = {
            "norm": norm,
            "arguments": arguments,
            "ranks": ranks,
            "contract": _CONTRACT,
            "dtypes": ("float32",),
        }
        yield row(__name__, layer, f"{__name__}:{function}", **own)

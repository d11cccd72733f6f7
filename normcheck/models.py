"""Norm layers inside a real model: found by walking it, judged with their own weights on what really enters them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from normcheck.audit import Audit, Interrupted, Progress, audit
from normcheck.checks.captured import CAPTURED, REGIME
from normcheck.implementations import Implementation, Inputs, frameworks
from normcheck.implementations.base import ARRAYS, MissingPackageError
from normcheck.implementations.captured import Captured
from normcheck.implementations.forward_pass import Seen, mixing, watch
from normcheck.implementations.layers import (
    Found,
    claims,
    found,
    implementation_of,
    norm_of,
    parameters_of,
    renewable,
    training_of,
)
from normcheck.implementations.targets import describe, load, staying
from normcheck.results import Outcome, Result, Severity

MOST = 2**22
"""Elements of one captured input that are judged; of larger ones samples are left out."""
COLUMNS = (
    *("layer", "class", "norm", "dtype", "x", "grade", "outcome", "ulp", "mean/std", "max/rms", "eps share", "squares", "output"),
    "danger",
)
SHOWN = ("layer", "class", "dtype", "grade", "outcome", "ulp", "mean/std", "max/rms", "eps share", "danger")
"""The columns for a terminal."""
_UNJUDGED = "not judged: "
NO_TABLE = f"No table of layers: it shows what {CAPTURED} and {REGIME} found, and neither was chosen."


class ModelError(ValueError):
    """A model that cannot be built, run or walked. The message is one line."""


def build(target: str) -> tuple[Any, Any]:
    """The model that a target's callable returns, and example inputs, None where it gives none.

    Parameters
    ----------
    target : ``module:callable`` or ``file.py:callable``; the callable takes nothing and returns a ``torch.nn.Module``, or one
        with inputs: a tensor, a tuple, a dict of keywords, or a function that returns one of these

    Raises
    ------
    ModelError : if it raises, or returns something else
    TargetError : if it cannot be loaded
    MissingPackageError : without torch
    """
    line = frameworks()["torch"].available()
    if line is not None:
        raise MissingPackageError(f"torch is not installed; {line}")
    import torch

    given = _called(load(target), target)
    model, inputs = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not isinstance(model, torch.nn.Module):
        text = f"{target} returned {type(model).__name__}, but should return a torch.nn.Module, or one and its inputs"
        raise ModelError(text)
    return model, inputs


def audit_model(
    model: Any,
    inputs: Any = None,
    *,
    profile: str = "quick",
    checks: Iterable[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Judge every norm layer of a model on the activations of one forward pass, and each distinct configuration by the checks.

    Parameters
    ----------
    model : a ``torch.nn.Module``, in the mode, dtype and place in which it is to be judged
    inputs : of one forward pass: a tensor, a tuple, a dict of keywords, or a function that returns one of these; None for the
        model's own ``dummy_inputs`` or ``example_input_array``
    profile, checks, seed, progress : as for `normcheck.audit`; the checks are run on the first layer of each configuration

    Returns
    -------
    an audit whose implementations are the layers by their names. What looks like a norm and is not judged is a warning, with the
    reason

    Raises
    ------
    ModelError : if the model has no layer whose name or source speaks of a norm, or its forward pass raises
    Interrupted : on Ctrl-C while layers are judged, with what was measured until then
    """
    layers, others = found(model)
    args, keywords = _inputs(model, inputs) if layers or others or inputs is not None else ((), {})
    forward = f"the forward pass of {type(model).__name__}"
    seen, functions = watch(model, layers, others, lambda: _called(lambda: model(*args, **keywords), forward))
    others |= functions
    if not layers and not others:
        raise ModelError(f"{type(model).__name__} has no norm layer, and calls no norm of torch as a function")
    made: dict[str, tuple[Found, Implementation]] = {}
    for layer in layers:
        try:
            made[layer.name] = (layer, _implementation(layer, seen[layer.name]))
        except (ValueError, TypeError, NotImplementedError) as reason:
            others[layer.name] = f"{layer.kind.__name__}: {reason}"
    if checks is not None:
        checks = tuple(checks)
    results = _results(made, checks, profile=profile, seed=seed, progress=progress)
    named = [_told(made[result.implementation], result) for result in results.results]
    dtype = next((one.dtypes[0] for _, one in made.values()), "float32")
    unjudged = [_unjudged(name, reason, dtype) for name, reason in others.items()]
    order = {name: place for place, (name, _) in enumerate(model.named_modules())}
    ordered = sorted((*named, *unjudged), key=lambda result: order.get(result.implementation, -1))
    whole = Audit(tuple(ordered), {**results.born, "model": type(model).__name__})
    if "interrupted" in whole.born:
        raise Interrupted(whole)
    return whole


def judges(judged: Audit) -> bool:
    """Whether any layer was judged, and not only named with a reason why it is not."""
    return any(not result.message.startswith(_UNJUDGED) for result in judged.results)


def table(judged: Audit) -> list[tuple[str, ...]]:
    """The layers with their configuration, grade, worst error in ulp and regime, as rows of text below ``COLUMNS``."""
    layers: dict[str, dict[str, Result]] = {}
    for result in judged.results:
        if result.check in (CAPTURED, REGIME):
            layers.setdefault(result.implementation, {})[result.check] = result
    return [_row(judged, name, parts) for name, parts in layers.items()]


def markdown(judged: Audit) -> str:
    """The table of layers as a page; without a row, why there is none."""
    rows = table(judged)
    shown = [*_pipes(COLUMNS), *map(_piped, rows), "", *_LEGEND] if rows else [NO_TABLE]
    return "\n".join([f"# Norm layers of {judged.born.get('model', 'the model')}", "", *shown, ""])


_LEGEND = (
    "Each figure is that of the worst row of what entered the layer in one forward pass. `squares` and `output`: by how many",
    "doublings of x its squares, and of y, are away from overflow in the dtype. `eps share`: eps/(v+eps).",
)


def _pipes(columns: Sequence[str]) -> list[str]:
    return [_piped(columns), _piped(["---"] * len(columns))]


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _row(judged: Audit, name: str, parts: Mapping[str, Result]) -> tuple[str, ...]:
    held, regime = parts.get(CAPTURED), parts.get(REGIME)
    one = held or regime
    assert one is not None
    kind, _, norm = re.sub(r"normalized_shape=\([\d, ]*\)(, )?", "", one.norm).partition(": ")
    bad = [result for result in judged.results if result.implementation == name and result.outcome.bad]
    of_layer = held if held is not None else one
    outcome = of_layer.outcome.value if of_layer.outcome.bad or not bad else f"failed {bad[0].check}"
    figures = {} if regime is None else regime.measures
    cells = [figures.get(key) for key in ("mean_over_std", "max_over_rms", "eps_share", "square_headroom", "output_headroom")]
    danger = regime.message.rpartition(" [")[0] if regime is not None and regime.message else ""
    shape = "x".join(map(str, one.shape))
    grade = judged.grades.get((name, one.dtype), "-")
    ulp = held.measures.get("ulp") if held is not None else None
    told = danger or (one.message if one.outcome in (Outcome.SKIPPED, Outcome.WARNED) else "")
    calls = int(figures.get("calls", 1))
    told = "; ".join(part for part in (told, f"the first of {calls} calls" if calls > 1 else "") if part)
    return (name, kind, norm, one.dtype, shape, grade, outcome, _number(ulp), *map(_number, cells), told)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _inputs(model: Any, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the forward pass."""
    import torch

    if given is None:
        given = getattr(model, "dummy_inputs", None)
        given = getattr(model, "example_input_array", None) if given is None else given
    if callable(given) and not isinstance(given, torch.Tensor):
        given = given()
    if given is None:
        raise ModelError(f"{type(model).__name__} comes without inputs, but its callable should return (model, inputs)")
    if isinstance(given, Mapping):
        return (), dict(given)
    return tuple(given) if isinstance(given, tuple | list) else (given,), {}


def _called(function: Callable[[], Any], name: str) -> Any:
    """What the user's code returns; what it raises becomes a ModelError."""
    import torch

    try:
        with torch.no_grad(), warnings.catch_warnings(), staying():
            warnings.simplefilter("ignore")
            return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code may raise anything, SystemExit included
        raise ModelError(f"{name} raised {describe(error)}") from error


def _implementation(layer: Found, seen: Seen) -> Implementation:
    """A layer as code under judgement, with its captured call.

    Raises
    ------
    ValueError : with the reason why it cannot be judged
    """
    if seen.x is None or seen.y is None:
        raise ValueError(f"was not called{' with a tensor' if seen.calls else ''} in the forward pass")
    if not seen.x.is_floating_point():
        raise ValueError(f"its input is {str(seen.x.dtype).removeprefix('torch.')}, but should be floating point")
    if seen.given > 1:
        raise ValueError(f"was given {seen.given} tensors in the forward pass, but x alone is judged")
    if layer.written and seen.y.shape != seen.x.shape:
        raise ValueError(f"its y has shape {tuple(seen.y.shape)}, but x {tuple(seen.x.shape)}")
    claimed = claims(layer, tuple(seen.x.shape))
    if claimed:
        layer = replace(layer, formula=replace(layer.formula, channels_first=False))
    x, y = (value.movedim(1, -1) if layer.formula.channels_first else value for value in (seen.x, seen.y))
    dtype = str(x.dtype).removeprefix("torch.")
    norm = norm_of(layer, dtype, tuple(x.shape))
    training = training_of(layer, norm)
    chosen = _samples(x.shape, pooled=norm.name == "BatchNorm" and training is not False)
    parameters, kinds = _values(parameters_of(layer, norm, x.shape))
    layout = _layout(seen.x)
    inputs = Inputs(
        _values({"x": x[chosen]})[0]["x"],
        **parameters,
        dtype=dtype,
        weight_dtype=kinds[0] if kinds and kinds[0] != dtype else None,
        device=x.device.type,
        layout=layout,
        training=training is not False,
    )
    values, got = _values({"y": y[chosen]})
    captured = Captured(inputs, values["y"], got[0], len(inputs.x), len(x), seen.calls)
    options = {"captured": captured, "devices": (x.device.type,), "layouts": (layout,), "weight_dtype": inputs.weight_dtype}
    made = implementation_of(layer, norm, dtype, x.ndim, **options)
    refused = made.refuses(tuple(x.shape)) or (mixing(made, inputs) if layer.written and not claimed else "")
    if refused:
        raise ValueError(refused)
    return made


def _samples(shape: Sequence[int], pooled: bool) -> Any:
    """Which samples along the first axis are judged: all, or some at equal distances."""
    count = shape[0] if shape else 0
    size = 1
    for n in shape[1:]:
        size *= n
    most = max(1, MOST // max(size, 1))
    return slice(None) if pooled or count <= most else slice(0, count, -(-count // most))


def _values(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Values and dtypes of tensors."""
    read = {name: frameworks()["torch"].to_values(tensor) for name, tensor in tensors.items()}
    return {name: array for name, (array, _) in read.items()}, [dtype for _, dtype in read.values()]


def _layout(x: Any) -> str:
    import torch

    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return "channels_last" if last else "contiguous"


def _results(made: Mapping[str, tuple[Found, Implementation]], checks: tuple[str, ...] | None, **options: Any) -> Audit:
    """All checks on the first layer of each configuration, those of captured calls on the others; or what an interrupt leaves."""
    firsts: dict[Any, Implementation] = {}
    for layer, implementation in made.values():
        if not renewable(layer):
            firsts.setdefault(_configuration(layer, implementation), implementation)
    thorough = list(firsts.values())
    rest = [implementation for _, implementation in made.values() if implementation not in thorough]
    own = tuple(check for check in (CAPTURED, REGIME) if checks is None or check in checks)
    parts: list[Audit] = []
    try:
        for some, chosen in ((thorough, checks), (rest if own else [], own or (CAPTURED,))):
            parts.append(audit(some, checks=chosen, **options))
    except Interrupted as broken:
        parts.append(broken.audit)
    told = {key: value for key, value in parts[-1].born.items() if key == "interrupted"}
    return Audit(tuple(result for part in parts for result in part.results), {**parts[0].born, **told})


def _configuration(layer: Found, implementation: Implementation) -> tuple[Any, ...]:
    """What layers have in common that need to be judged once."""
    one = implementation
    return (layer.kind, layer.formula, one.norm, one.dtypes, one.weight_dtype, one.affine, one.training, one.ranks, one.layouts)


def _told(pair: tuple[Found, Implementation], result: Result) -> Result:
    """The result with what is wrong with the captured values, and the layer's class beside its norm."""
    layer, implementation = pair
    if result.check == REGIME and implementation.captured is not None and (flaws := _flaws(implementation.captured)):
        text = f"; {result.message}" if result.message else f" [x: {result.dtype}{list(result.shape)}]"
        result = replace(result, outcome=Outcome.WARNED, message="; ".join(flaws) + text)
    return replace(result, norm=f"{layer.kind.__name__}: {result.norm}")


def _flaws(captured: Captured) -> list[str]:
    """What is wrong with the values of a captured call, though y may be what the norm makes of them."""
    inputs = captured.inputs
    arrays = {name: getattr(inputs, name) for name in ARRAYS} | {"y": captured.y}
    counts = {name: int((~np.isfinite(array)).sum()) for name, array in arrays.items() if array is not None}
    found = [f"{name} holds {count} NaN or inf, but should hold none" for name, count in counts.items() if count]
    lowest = float(inputs.running_var.min(initial=0.0)) if inputs.running_var is not None else 0.0
    return [*found, f"running_var={lowest:.3g}, but should be >= 0"] if lowest < 0 else found


def _unjudged(name: str, reason: str, dtype: str) -> Result:
    kind, _, text = reason.partition(": ")
    return Result(CAPTURED, name, kind, dtype, Outcome.WARNED, Severity.WARNING, message=f"{_UNJUDGED}{text}")

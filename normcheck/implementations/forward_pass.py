"""One forward pass of a model: what enters and leaves its norm layers, and which norms it calls elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normcheck.formats import FORMATS
from normcheck.implementations.base import CallError, Implementation, Inputs
from normcheck.implementations.calls import call
from normcheck.implementations.layers import Found

_FUNCTIONS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize")
_Calls = dict[int, tuple[Any, list[str]]]


@dataclass(frozen=True, eq=False)
class Seen:
    """What a hook saw of one layer: the first call, how many tensors it was given, and how many calls there were."""

    x: Any = None
    y: Any = None
    training: bool = False
    given: int = 0
    calls: int = 0


def watch(
    model: Any, layers: Sequence[Found], others: Iterable[str], forward: Callable[[], Any]
) -> tuple[dict[str, Seen], dict[str, str]]:
    """What entered and left each layer in one forward pass, and which modules besides these call a norm of torch as a function.

    Parameters
    ----------
    layers : whose calls are kept
    others : names of modules of the model that are known to be norms as well
    forward : makes the pass

    Returns
    -------
    what was seen, by the layer's name; by a module's name its class and the functions that it called
    """
    known = {id(layer.module) for layer in layers} | {id(module) for name, module in _named(model).items() if name in set(others)}
    noting = not any(map(_compiled, model.modules()))
    try:
        seen, called = _passed(layers, known if noting else None, forward)
    except Exception as error:
        # a compiled function inside cannot be traced where calls are noted
        if not noting or not type(error.__cause__ or error).__module__.startswith("torch._dynamo"):
            raise
        seen, called = _passed(layers, None, forward)
    names = {id(module): name for name, module in _named(model).items()}
    found: dict[str, str] = {}
    for module, functions in called.values():
        kind, place = type(module).__name__, names.get(id(module))
        text = f"{kind}: calls {', '.join(functions)} of torch itself: a function is judged by normcheck check"
        found[place or f"{kind} (no submodule)"] = text
    return seen, found


def _passed(layers: Sequence[Found], known: set[int] | None, forward: Callable[[], Any]) -> tuple[dict[str, Seen], _Calls]:
    """What each layer was given and gave, and what is called outside of known modules; without these nothing of it is noted."""
    seen = {layer.name: Seen() for layer in layers}
    with ExitStack() as stack:
        for hook in (hook for layer in layers for hook in _hooks(layer, seen)):
            stack.callback(hook.remove)
        called = {} if known is None else stack.enter_context(_functions(known))
        forward()
    return seen, called


def _compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _named(model: Any) -> dict[str, Any]:
    """The modules by name, the model itself by its class."""
    return {name or getattr(model, "original_name", type(model).__name__): module for name, module in model.named_modules()}


def _hooks(layer: Found, seen: dict[str, Seen]) -> tuple[Any, ...]:
    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        old = seen[layer.name]
        if old.calls == 0:
            # a copy: the layer, or one behind it, may write into its input
            tensors = _tensors((*args, *kwargs.values()))
            old = replace(old, x=_first(tensors), given=len(tensors), training=bool(module.training))
        seen[layer.name] = replace(old, calls=old.calls + 1)

    def after(_module: Any, _args: tuple[Any, ...], output: Any) -> None:
        old = seen[layer.name]
        if old.calls == 1:
            seen[layer.name] = replace(old, y=_first(output if isinstance(output, tuple) else (output,)))

    pre: Callable[..., Any] = layer.module.register_forward_pre_hook
    return (pre(before, with_kwargs=True), layer.module.register_forward_hook(after))


def _first(values: Sequence[Any]) -> Any:
    """A copy of the first tensor among values, in its memory format; None if there is none."""
    return next((value.detach().clone() for value in _tensors(values)), None)


def _tensors(values: Sequence[Any]) -> list[Any]:
    import torch

    return [value for value in values if isinstance(value, torch.Tensor)]


@contextmanager
def _functions(known: set[int]) -> Iterator[_Calls]:
    """A context in which torch's norms are noted that a module calls as functions, but for what happens inside known modules."""
    import torch
    from torch.nn.modules import module as hooks
    from torch.overrides import TorchFunctionMode

    inside: list[Any] = []
    called: _Calls = {}
    names = {getattr(place, name): name for place in (torch, torch.nn.functional) for name in _FUNCTIONS if hasattr(place, name)}

    class Noting(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = names.get(func)
            if name is not None and inside and not known & set(map(id, inside)):
                functions = called.setdefault(id(inside[-1]), (inside[-1], []))[1]
                functions += [name] * (name not in functions)
            return func(*args, **(kwargs or {}))

    def leave(*_: Any) -> None:
        inside.pop()

    handles = (
        hooks.register_module_forward_pre_hook(lambda module, _: inside.append(module)),
        hooks.register_module_forward_hook(leave, always_call=True),
    )
    try:
        with Noting():
            yield called
    finally:
        for handle in handles:
            handle.remove()


def mixing(implementation: Implementation, inputs: Inputs) -> str:
    """Why the code does not normalize the rows of its norm one by one, or ``""``: one of x is changed, and others of y change.

    A source that is read may say less than the code does: over which axes, or how x is reshaped before.
    """
    fold = implementation.norm.fold(inputs.x.shape, implementation.channel_axis)
    rows = fold.fold(inputs.x)
    if min(rows.shape) == 0 or len(rows) < 2:
        return ""
    with np.errstate(all="ignore"):
        first = FORMATS[inputs.dtype].round(1 + 2 * rows[:1])
    weight, bias = (getattr(inputs, name) if implementation.takes(name) else None for name in ("weight", "bias"))
    own = replace(inputs, weight=weight, bias=bias)
    changed = replace(own, x=fold.unfold(np.concatenate([first, rows[1:]])))
    try:
        before, after = (call(implementation, given).y for given in (own, changed))
    except CallError:
        return ""
    if before.shape != inputs.x.shape or np.array_equal(fold.fold(before)[1:], fold.fold(after)[1:], equal_nan=True):
        return ""
    kind = type(implementation.norm).__name__
    return f"y[1:] changes with x[0], rows of {fold.width} elements, which no {kind} of such rows does"

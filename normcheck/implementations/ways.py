"""Other ways of making one call in torch: each is an ``around`` for `call`, and imports torch when it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]

TEXTS: dict[str, tuple[str, ...]] = {
    "inference_mode": ("with torch.inference_mode():", "    {to} = {function}({passed})"),
    "recorded": ("{x} = {x}.requires_grad_().clone()", "{to} = {function}({passed})"),
    "autocast": ("with torch.autocast(x.device.type, torch.bfloat16):", "    {to} = {function}({passed})"),
    "vmap": (
        "axes = (0, *[None] * {count})",
        "{to} = torch.vmap({function}, axes)(torch.stack([x * 4, x, x.flip(-1)]), *[{rest}])",
        "{to} = tuple(part[1] for part in {to}) if isinstance({to}, tuple) else {to}[1]",
    ),
    "compiled": ("{to} = torch.compile({function})({passed})",),
    "checkpointed": (
        "from torch.utils.checkpoint import checkpoint",
        "{to} = checkpoint({function}, x.requires_grad_(), *[{rest}], use_reentrant=False)",
        "(({to}[0] if isinstance({to}, tuple) else {to}).sum()).backward()",
    ),
}
"""How each way is written in a snippet, see `normcheck.implementations.snippets.Script.call`; exporting takes too many lines."""


def under_inference_mode(function: Function, passed: list[Any]) -> Any:
    """The call under ``torch.inference_mode``."""
    import torch

    with torch.inference_mode():
        return function(*passed)


def recorded(place: int) -> Callable[[Function, list[Any]], Any]:
    """The call with gradients recorded for the argument at a place, as in training; the results are cut from the graph."""

    def around(function: Function, passed: list[Any]) -> Any:
        import torch

        with torch.enable_grad():
            x = passed[place].detach().requires_grad_(True).clone()
            returned = function(*passed[:place], x, *passed[place + 1 :])
        parts = returned if isinstance(returned, tuple) else (returned,)
        cut = tuple(part.detach() if isinstance(part, torch.Tensor) else part for part in parts)
        return cut if isinstance(returned, tuple) else cut[0]

    return around


def under_autocast(function: Function, passed: list[Any]) -> Any:
    """The call under ``torch.autocast`` to bfloat16, on the device of its first tensor."""
    import torch

    device = next(value.device.type for value in passed if isinstance(value, torch.Tensor))
    with torch.autocast(device, torch.bfloat16):
        return function(*passed)


def vmapped(function: Function, passed: list[Any]) -> Any:
    """The second of three calls that ``torch.vmap`` makes at once: x scaled by 4, x, and x backwards; the rest is shared."""
    import torch

    x, *rest = passed
    stacked = torch.stack([x * 4, x, x.flip(-1)])
    returned = torch.vmap(function, (0, *[None] * len(rest)))(stacked, *rest)
    return tuple(part[1] for part in returned) if isinstance(returned, tuple) else returned[1]


def traced(seen: list[str]) -> Callable[[Function, list[Any]], Any]:
    """The call as it is; the operators that it dispatches are appended to ``seen`` by name, in order."""

    def around(function: Function, passed: list[Any]) -> Any:
        from torch.utils._python_dispatch import TorchDispatchMode

        class Trace(TorchDispatchMode):  # type: ignore[misc]
            """Writes down what passes by."""

            def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                """Note the operator and run it."""
                seen.append(str(operator).rpartition(".")[0] or str(operator))
                return operator(*args, **(kwargs or {}))

        with Trace():
            return function(*passed)

    return around


def compiled(function: Function, passed: list[Any]) -> Any:
    """The call compiled by ``torch.compile``."""
    import torch

    torch._dynamo.reset()
    return torch.compile(function)(*passed)


def exported(function: Function, passed: list[Any]) -> Any:
    """The call exported by ``torch.export`` and run from the program that comes out."""
    import torch

    class Program(torch.nn.Module):  # type: ignore[misc]
        """The call as a module."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = function

        def forward(self, *values: Any) -> Any:
            """Call it, with constants in their places."""
            given = iter(values)
            return self.inner(*(next(given) if isinstance(value, torch.Tensor) else value for value in passed))

    tensors = tuple(value for value in passed if isinstance(value, torch.Tensor))
    return torch.export.export(Program(), tensors).module()(*tensors)


def checkpointed(function: Function, passed: list[Any]) -> Any:
    """The call under activation checkpointing, with a backward pass, which makes it again."""
    import torch
    from torch.utils.checkpoint import checkpoint

    x, *rest = passed
    with torch.enable_grad():
        returned = checkpoint(function, x.detach().requires_grad_(), *rest, use_reentrant=False)
        y = returned[0] if isinstance(returned, tuple) else returned
        y.backward(torch.ones_like(y))
    return returned

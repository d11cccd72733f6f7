"""What the source of a layer's class says that it computes: its norm, its casts, its parameters, or why it is no norm of ours.

Nothing is imported or called for it, so that whole libraries and the user's own layers can be read.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from normcheck.contract import Contract
from normcheck.implementations.syntax import (
    BIASES,
    FUSED,
    WEIGHTS,
    Event,
    OtherLayerError,
    UnreadableError,
    called,
    defaults,
    is_attribute_of,
    is_self,
    is_super_forward,
    last_name,
    mentions,
    parameter,
    parsed,
    plain,
    registered,
    run,
    uncast,
)
from normcheck.norms import BatchNorm, EpsPlacement, GroupNorm, L2Norm, LayerNorm, Norm, RMSNorm

_BASES = ("Module", "LayerNorm", "GroupNorm", "RMSNorm")
_KEPT = ("Parameter", "Buffer", "Tensor")
_INHERITED = {
    "LayerNorm": (("normalized_shape", "width"), ("eps", "eps")),
    "RMSNorm": (("normalized_shape", "width"), ("eps", "eps")),
    "GroupNorm": (("num_groups", "groups"), ("num_channels", "channels"), ("eps", "eps")),
}
_LAST = (
    *("permute(0, 2, 3, 1)", "permute(0, 2, 1)", "permute(0, 2, 3, 4, 1)"),
    *(f"{name}({axes})" for name in ("transpose", "movedim", "moveaxis") for axes in ("1, -1", "-1, 1")),
)
"""Calls that bring axis 1 to the end, or back."""
_WIDTHS = ("hidden_size", "normalized_shape", "dim", "size", "num_channels", "c_in", "n", "group_size", "hidden_dim", "embed_dim")


@dataclass(frozen=True)
class Formula:
    """What a class computes, as its source has it.

    Attributes
    ----------
    norm : with the default eps of the class
    contract : in which arithmetic; where nothing is cast the usual one is claimed, float32 inside
    parameters : attributes that the forward pass uses as weight and bias, as far as there are any
    eps : the attribute that holds eps; ``""`` where it is a number in the source
    build : what the constructor takes, by the name of its argument: width, sizes (a tuple), eps, groups, channels, config, or
        what stands in quotes
    channels_first : whether it normalizes axis 1
    upcasts : whether everything is computed in float32
    given : whether it normalizes with statistics that it is given
    wide_parameters : whether its parameters must be float32
    unbuildable : why its constructor cannot be called, or ``""``
    fused : the layer of torch whose kernel computes it all, or ``""`` where it is written out
    trains : whether its own code may take the statistics of the batch instead of those that it is given
    """

    norm: Norm
    contract: Contract
    parameters: tuple[str, ...] = ()
    eps: str = ""
    build: tuple[tuple[str, str], ...] = ()
    channels_first: bool = False
    upcasts: bool = False
    given: bool = False
    wide_parameters: bool = False
    unbuildable: str = ""
    fused: str = ""
    trains: bool = False


def read(*sources: str) -> Formula:
    """The formula of a class from its source text, and those of the classes that it derives from, up to torch's own.

    Raises
    ------
    UnreadableError : with the reason why it is no norm of ours
    """
    return _Class([plain(parsed(source)) for source in sources]).formula()


class _Class:
    """A class as it was read."""

    def __init__(self, trees: list[ast.ClassDef]) -> None:
        parts = [part for tree in trees for part in tree.body if isinstance(part, ast.FunctionDef)]
        self.methods = {part.name: part for part in reversed(parts)}
        self.inits = [part for part in parts if part.name == "__init__"]
        self.bases = [last_name(base) for base in trees[-1].bases]
        self.derived = len(trees) > 1

    @functools.cached_property
    def base(self) -> str:
        """The norm of torch that it derives from, or Module."""
        others = [name for name in self.bases if name not in _BASES]
        if others or not self.bases:
            raise UnreadableError(f"derives from {' and '.join(others) or 'nothing'}, not from a plain layer")
        return self.bases[0]

    @functools.cached_property
    def forward(self) -> ast.FunctionDef | None:
        """Its own forward pass."""
        found = self.methods.get("forward")
        if found is None and self.base == "Module":
            raise UnreadableError("has no forward pass of its own")
        return found

    @functools.cached_property
    def events(self) -> list[Event]:
        """What happens in the forward pass, in order."""
        return run(self.forward, self.methods) if self.forward is not None else [Event("fused", self.base)]

    @functools.cached_property
    def used(self) -> set[str]:
        """The attributes of self that the forward pass reads."""
        parts = [part for name, part in self.methods.items() if name not in ("__init__", "extra_repr")]
        return {node.attr for part in parts for node in ast.walk(part) if is_self(node)}

    def formula(self) -> Formula:
        """What it computes."""
        self._check_layer()
        inherited = self.forward is None or any(is_super_forward(node) for node in ast.walk(self.forward))
        if inherited and self.forward is not None and self.derived:
            raise UnreadableError("its forward pass calls that of a class in between")
        names = {event.kind for event in self.events}
        fused = self.base if inherited else next((event.detail for event in self.events if event.kind == "fused"), "")
        given = "running_var" in self.used
        if not (fused or given or "root" in names):
            raise UnreadableError("no root of squares is found in its source")
        if not (fused or given):
            self._check_written()
        parameters = self._parameters(inherited)
        upcasts = "widen" in names
        norm = self._norm(fused, given)
        build, lacking = self._build(norm)
        return Formula(
            norm,
            self._contract(norm, fused, () if inherited else parameters),
            parameters,
            self._eps_attribute(inherited),
            build,
            self._channels_first(),
            upcasts,
            given,
            upcasts and bool(fused) and self._widened_once(),
            f"its constructor takes {lacking}" if lacking else "",
            fused,
            given and ("stat" in names or "training" in self.used),
        )

    def _widened_once(self) -> bool:
        """Whether the input alone is brought to float32, and a fused kernel gets parameters as they are."""
        widened = [event for event in self.events if event.kind == "widen"]
        return len(widened) == 1 and any(isinstance(node, ast.Attribute) and node.attr == "weight" for node in self._nodes)

    def _check_layer(self) -> None:
        """Refuse blocks, and layers that take more than x."""
        assert self.base
        inner = sorted({name for name in self._inner() if name not in _KEPT})
        if inner and all(name in FUSED.values() or name.startswith("BatchNorm") for name in inner):
            raise OtherLayerError(f"wraps {' and '.join(inner)}, judged where it comes from")
        if inner:
            raise OtherLayerError(f"a block with further layers ({', '.join(inner)})")
        if self.forward is None:
            return
        given = self.forward.args
        names = [argument.arg for argument in given.args[1:]]
        required = names[: len(names) - len(given.defaults)]
        extra = [*required[1:], *(name for name in names[len(required) :] if not self._optional(name))]
        if extra or not names:
            raise OtherLayerError(f"its forward pass takes {', '.join(extra) or 'nothing'} besides x")
        if any(isinstance(node.value, ast.Tuple) for node in ast.walk(self.forward) if isinstance(node, ast.Return)):
            raise OtherLayerError("returns more than y")

    def _optional(self, name: str) -> bool:
        """Whether an argument may be left out: it is compared with None, or never used."""
        assert self.forward is not None
        used = [node for node in ast.walk(self.forward) if isinstance(node, ast.Name) and node.id == name]
        asked = [node for node in ast.walk(self.forward) if isinstance(node, ast.Compare) and mentions(node.left, name)]
        return not used or any(isinstance(node.comparators[0], ast.Constant) for node in asked)

    def _check_written(self) -> None:
        """Refuse formulas that are not x or x - mean over a root of its mean square."""
        assert self.forward is not None
        kinds = [event.kind for event in self.events]
        details = [event.detail for event in self.events if event.kind == "stat"]
        if any(isinstance(node, ast.Attribute) and node.attr == "cumsum" for node in ast.walk(self.forward)):
            raise UnreadableError("its statistics accumulate over time")
        if not details:
            raise UnreadableError("takes no mean, sum or variance")
        returned = [node.value for node in ast.walk(self.forward) if isinstance(node, ast.Return) and node.value is not None]
        if any(called(uncast(value)) in ("rsqrt", "sqrt") for value in returned):
            raise UnreadableError("returns the reciprocal root alone, not y")
        if any(d.startswith(("var", "std")) for d in details) and "center" not in kinds:
            raise UnreadableError("divides x, not x - mean, by a deviation")
        first = {event.kind: event.step for event in reversed(self.events)}
        if "scale" in kinds and first["scale"] < first["stat"]:
            raise UnreadableError("its weight multiplies x before the statistics")

    def _norm(self, fused: str, given: bool) -> Norm:
        eps, offset = self._eps_default(), self._offset()
        if given:
            return BatchNorm(eps=1e-5 if eps is None else eps)
        if fused == "GroupNorm":
            return GroupNorm(self._groups(), eps=1e-5 if eps is None else eps)
        if fused:
            centred, placement, ddof, total = fused == "LayerNorm", "inside", 0, False
        else:
            details = [event.detail for event in self.events if event.kind == "stat"]
            centred = any(event.kind == "center" for event in self.events)
            averaged = any(event.kind == "average" for event in self.events)
            placement, total = self._placement(), not averaged and all(d.startswith("sum") for d in details)
            ddof = int(any(d.endswith("unbiased") for d in details))
        where: EpsPlacement = placement  # type: ignore[assignment]
        if centred:
            usual = 1e-5 if eps is None else eps
            return LayerNorm(eps=usual, eps_placement=where, ddof=ddof, weight_offset=offset)
        kind = L2Norm if total else RMSNorm
        return kind(eps=1e-6 if eps is None else eps, eps_placement=where, weight_offset=offset)

    def _contract(self, norm: Norm, fused: str, parameters: tuple[str, ...]) -> Contract:
        order = [event.kind for event in self.events]
        scaled = order.index("scale") if "scale" in order else len(order)
        narrowed = order.index("narrow") if "narrow" in order else len(order)
        inner = bool(parameters) and scaled < len(order) and (narrowed < scaled or bool(fused))
        last = next((kind for kind in reversed(order) if kind in ("scale", "narrow", "fused")), "fused")
        merges = bool(fused and norm.center) or any(event.detail.startswith(("var", "std")) for event in self.events)
        return Contract(
            cast="before_weight" if inner else "once",
            output="promote" if isinstance(norm, BatchNorm) or (last == "scale" and parameters) else "x",
            accumulation="merge" if merges else "tree",
        )

    def _parameters(self, inherited: bool) -> tuple[str, ...]:
        if inherited:
            return ("weight",) if self.base == "RMSNorm" else ("weight", "bias")
        return tuple(name for names in (WEIGHTS, BIASES) for name in names if name in self.used and name in self._made())

    def _made(self) -> set[str]:
        """Attributes that are there: of the base, and set or registered in the constructor."""
        nodes = [node for init in self.inits for node in ast.walk(init)]
        own = {node.attr for node in nodes if is_self(node)} | {name for node in nodes for name in registered(node)}
        return own | ({"weight", "bias"} if self.base != "Module" else set())

    def _eps_attribute(self, inherited: bool) -> str:
        """The attribute that holds eps: one that is used, or, where none is, one that is set, whatever number is used instead."""
        used = [name for name in sorted(self.used) if "eps" in name.lower()]
        if used or inherited:
            return used[0] if used else "eps"
        made = next((name for name in sorted(self._made()) if "eps" in name.lower()), "")
        return made or ("eps" if self.base != "Module" and self._eps_literal() is None else "")

    def _eps_literal(self) -> float | None:
        """A small number in the forward pass."""
        numbers = (node.value for node in self._nodes if isinstance(node, ast.Constant))
        return next((number for number in numbers if isinstance(number, float) and 0 < number < 0.01), None)

    @property
    def _nodes(self) -> Iterator[ast.AST]:
        parts = [part for name, part in self.methods.items() if name not in ("__init__", "extra_repr")]
        return (node for part in parts for node in ast.walk(part))

    def _eps_default(self) -> float | None:
        literal = self._eps_literal()
        if literal is not None:
            return literal
        for name, value in defaults(self.methods.get("__init__")):
            if "eps" in name and isinstance(value, ast.Constant) and isinstance(value.value, float):
                return value.value
        return None

    def _placement(self) -> str:
        kinds = [event.kind for event in self.events]
        if "eps" not in kinds:
            # an eps that is set and forgotten is claimed all the same
            return "inside" if self._eps_attribute(inherited=False) else "none"
        first, roots = kinds.index("eps"), [place for place, kind in enumerate(kinds) if kind == "root"]
        deviates = any(event.detail.startswith("std") for event in self.events)
        inside = first < roots[-1 if deviates else 0]
        if self.events[first].detail == "max":
            return "max_inside" if inside else "max"
        return "inside" if inside else "outside"

    def _offset(self) -> float:
        for node in self._nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                for side, other in ((node.left, node.right), (node.right, node.left)):
                    if isinstance(side, ast.Constant) and parameter(other) in WEIGHTS:
                        return float(side.value)  # type: ignore[arg-type]
        return 0.0

    def _groups(self) -> int:
        """The groups where the constructor fixes them; else some."""
        init = self.methods.get("__init__")
        calls = [node for node in ast.walk(init) if isinstance(node, ast.Call)] if init is not None else []
        for node in calls:
            if called(node) == "__init__" and node.args and isinstance(node.args[0], ast.Constant):
                return int(node.args[0].value)  # type: ignore[arg-type]
        return 4

    def _channels_first(self) -> bool:
        if "data_format" in dict(defaults(self.methods.get("__init__"))):
            return False
        calls = [ast.unparse(node) for node in self._nodes if isinstance(node, ast.Call)]
        moved = any(call.endswith(_LAST) for call in calls)
        return moved or any(event.kind == "stat" and event.detail.split()[1:2] == ["1"] for event in self.events)

    def _inner(self) -> Iterator[str]:
        """Names of the layers that the constructor makes."""
        init = self.methods.get("__init__")
        for node in ast.walk(init) if init is not None else ():
            if isinstance(node, ast.Call) and called(node)[:1].isupper() and not called(node).endswith("Error"):
                yield called(node)
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id.startswith("ACT"):
                yield "activation"

    def _build(self, norm: Norm) -> tuple[tuple[tuple[str, str], ...], str]:
        """What the constructor takes, by argument, and an argument that it needs and that is not understood."""
        init = self.methods.get("__init__")
        inherited = _INHERITED.get(self.base, ())
        if init is None:
            return inherited, ""
        given = init.args
        required = [argument.arg for argument in given.args[1:]][: len(given.args) - 1 - len(given.defaults)]
        names = [argument.arg for argument in (*given.args[1:], *given.kwonlyargs)]
        roles = {name: role for name in names if (role := self._role(name, init, norm)) is not None}
        if given.kwarg is not None and self.base != "Module":
            fixed = {"groups"} if self._groups() == 1 else set()
            taken = {*roles.values(), *fixed, *(("width",) * ("sizes" in roles.values()))}
            roles |= {name: role for name, role in inherited if role not in taken and name not in roles}
        return tuple(roles.items()), next((name for name in required if name not in roles), "")

    def _role(self, name: str, init: ast.FunctionDef, norm: Norm) -> str | None:
        if name == "config":
            return "config " + " ".join(sorted({n.attr for n in ast.walk(init) if is_attribute_of(n, "config")}))
        if "eps" in name:
            return "eps"
        if name == "num_groups" and isinstance(norm, GroupNorm):
            return "groups"
        if name not in _WIDTHS:
            return None
        if norm.per_channel:
            return "channels"
        indexed = any(isinstance(n, ast.Subscript) and mentions(n.value, name) for n in ast.walk(init))
        return "sizes" if indexed else "width"

"""Source text of classes as syntax: what happens in a forward pass, one event after the other, and what makes two texts equal."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

WEIGHTS, BIASES = ("weight", "gamma", "scale", "a_2", "alpha", "g"), ("bias", "beta", "b_2", "b")
FUSED = {"layer_norm": "LayerNorm", "group_norm": "GroupNorm", "rms_norm": "RMSNorm"}
"""Functions of torch that are norms, and the layers that they belong to."""


class UnreadableError(ValueError):
    """A class that is no norm of ours, or whose formula is not understood. The message is the reason."""


class OtherLayerError(UnreadableError):
    """A layer that is more than a norm, or is not called as one: with x alone, for y alone."""


def canonical(source: str) -> str:
    """The text of a class without what does not matter: its name, annotations, docstrings, defaults and names of variables."""
    tree = parsed(source)
    kept = [part for part in tree.body if not isinstance(part, ast.Expr) and getattr(part, "name", "") != "extra_repr"]
    own, bases = tree.name, ",".join(last_name(base) for base in tree.bases)
    body = "\n".join(ast.unparse(_Bare().visit(part)) for part in kept)
    return f"{bases}\n{body}".replace(own, "Self").replace("torch.float32", "float").replace("variance_epsilon", "eps")


def parsed(source: str) -> ast.ClassDef:
    """The class that a text defines. Raises UnreadableError where it does not."""
    try:
        found = ast.parse(textwrap.dedent(source)).body[0]
    except (SyntaxError, IndexError):
        raise UnreadableError("its source cannot be parsed") from None
    if not isinstance(found, ast.ClassDef):
        raise UnreadableError("it is no class")
    return found


def plain(tree: ast.ClassDef) -> ast.ClassDef:
    """The class with operators in the place of methods and functions that do the same, and of assignments that combine."""
    return ast.fix_missing_locations(_Plain().visit(tree))  # type: ignore[no-any-return]


class _Plain(ast.NodeTransformer):
    """Writes ``x.add(eps)``, ``torch.add(x, eps)`` and ``x += eps`` as ``x + eps``, and so for the other operations."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A call."""
        self.generic_visit(node)
        operation = _OPERATIONS.get(called(node).removesuffix("_"))
        if operation is None or node.keywords or not isinstance(node.func, ast.Attribute):
            return node
        given = node.args if mentions(node.func.value, "torch") else [node.func.value, *node.args]
        return ast.BinOp(given[0], operation(), given[1]) if len(given) == 2 else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """An assignment that combines."""
        self.generic_visit(node)
        read = ast.Name(node.target.id, ast.Load()) if isinstance(node.target, ast.Name) else node.target
        return ast.Assign([node.target], ast.BinOp(read, node.op, node.value))


_OPERATIONS = {
    **dict.fromkeys(("add",), ast.Add),
    **dict.fromkeys(("sub", "subtract"), ast.Sub),
    **dict.fromkeys(("mul", "multiply"), ast.Mult),
    **dict.fromkeys(("div", "divide", "true_divide"), ast.Div),
}


class _Bare(ast.NodeTransformer):
    """Drops docstrings, annotations, decorators and defaults; numbers the names of arguments and variables."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A method."""
        node.decorator_list, node.returns = [], None
        node.body = [part for part in node.body if not _is_text(part)] or [ast.Pass()]
        names: dict[str, str] = {}
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
            argument.arg = names.setdefault(argument.arg, f"v{len(names)}")
        node.args.defaults = [ast.Constant(0) for _ in node.args.defaults]
        node.args.kw_defaults = [ast.Constant(0) for _ in node.args.kw_defaults]
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                names.setdefault(inner.id, f"v{len(names)}")
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                inner.id = names.get(inner.id, inner.id)
        return ast.fix_missing_locations(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@dataclass(frozen=True)
class Event:
    """One thing that happens in a forward pass.

    Attributes
    ----------
    kind : stat, average (of a sum that is divided), center, eps, root, widen, narrow, scale, shift or fused
    detail : of a statistic its name, axis and whether it is unbiased; of a fused norm the layer that it belongs to; of an eps
        ``max`` where it is a lower limit
    step : the statement of the method, counted from 0
    """

    kind: str
    detail: str = ""
    step: int = 0


def run(method: ast.FunctionDef, methods: Mapping[str, ast.FunctionDef]) -> list[Event]:
    """What happens in a method, in order; methods of the same class are entered where they are called."""
    means: dict[str, str] = {}
    steps = enumerate(method.body)
    return [replace(event, step=step) for step, statement in steps for event in _visit(statement, methods, means)]


def _visit(node: ast.AST, methods: Mapping[str, ast.FunctionDef], means: dict[str, str]) -> Iterator[Event]:
    """Events of a statement or expression, operands before their operation; ``means`` says which names are means or sums."""
    if isinstance(node, ast.Call) and is_self(node.func) and called(node) in methods:
        for argument in node.args:
            yield from _visit(argument, methods, means)
        for statement in methods[called(node)].body:
            yield from _visit(statement, methods, means)
        return
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, methods, means)
    if isinstance(node, ast.Assign):
        bound = _assigned(node.targets[0], node.value)
        means.update({name: kind or _average(node.value, means) for name, kind in bound.items()})
    if isinstance(node, ast.Call):
        yield from _call_events(node)
    elif isinstance(node, ast.BinOp):
        yield from _operation_events(node, means)


def _assigned(target: ast.expr, value: ast.expr) -> dict[str, str]:
    """Which names an assignment binds, and to what: mean, sum, or anything else."""
    if isinstance(target, ast.Name):
        return {target.id: _average(value)}
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        return {name: mean for one, other in pairs for name, mean in _assigned(one, other).items()}
    if isinstance(target, ast.Tuple) and called(value) in ("var_mean", "std_mean"):
        return {last_name(one): "mean" if place == 1 else "" for place, one in enumerate(target.elts)}
    return {}


def _average(value: ast.AST | None, means: Mapping[str, str] | None = None) -> str:
    """Whether it is a mean of x, such as a sum of x by a number; a sum, of x or of its squares; or anything else, ``""``."""
    node = uncast(value)
    if isinstance(node, ast.Name):
        return (means or {}).get(node.id, "")
    if isinstance(node, ast.BinOp):
        return "mean" if (total := _shared(node, means)) is not None and not _squares(total) else ""
    name = called(node)
    return name if name == "sum" or (name == "mean" and node is not None and not _squares(node)) else ""


def _shared(node: ast.BinOp, means: Mapping[str, str] | None) -> ast.AST | None:
    """The sum that is divided by a number, or multiplied by one; None where there is none."""
    sides = {ast.Div: [node.left], ast.Mult: [node.left, node.right]}.get(type(node.op), [])
    return next((side for side in sides if _average(side, means) == "sum"), None)


def _operation_events(node: ast.BinOp, means: Mapping[str, str]) -> Iterator[Event]:
    sides = (node.left, node.right)
    names = {parameter(side) for side in sides}
    if isinstance(node.op, ast.Pow) and ast.unparse(node.right) in ("0.5", "-0.5"):
        yield Event("root")
    if _shared(node, means) is not None:
        yield Event("average")
    if isinstance(node.op, ast.Sub) and _average(node.right, means) == "mean":
        yield Event("center")
    if isinstance(node.op, ast.Mult) and names & set(WEIGHTS):
        yield Event("scale")
    if isinstance(node.op, ast.Add) and names & set(BIASES):
        yield Event("shift")
    if isinstance(node.op, ast.Add) and any(_is_eps(side) for side in sides):
        yield Event("eps")


def _call_events(node: ast.Call) -> Iterator[Event]:
    name, text = called(node).removesuffix("_mean"), ", ".join(map(ast.unparse, [*node.args, *node.keywords]))
    if name in FUSED:
        yield Event("fused", FUSED[name])
    elif is_super_forward(node):
        yield Event("fused", "super")
    elif name in ("mean", "sum", "var", "std"):
        numbers = [ast.unparse(part) for part in (*node.args, *(k.value for k in node.keywords if k.arg in ("dim", "axis")))]
        axis = next((number for number in numbers if number.lstrip("-").isdigit()), "")
        flags = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, bool)]
        biased = "unbiased=False" in text or "correction=0" in text or flags[:1] == [False]
        yield Event("stat", f"{name} {axis}" + " unbiased" * (name in ("var", "std") and not biased))
        if name == "std":
            yield Event("root")
    elif name in ("clamp", "clamp_min", "clip", "max", "maximum") and any(_is_eps(part) for part in _given(node)):
        yield Event("eps", "max")
    elif name in ("rsqrt", "sqrt") or (name == "pow" and "-0.5" in text):
        yield Event("root")
    elif name == "float" or (name in ("to", "type") and "torch.float32" in text):
        yield Event("widen")
    elif name in ("to", "type_as", "type", "half", "bfloat16"):
        yield Event("narrow")


def _given(node: ast.Call) -> list[ast.expr]:
    """Values of the arguments of a call."""
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name, or ``""``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def called(node: ast.AST | None) -> str:
    """The name of what a call calls, or ``""``."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def is_self(node: ast.AST | None) -> TypeGuard[ast.Attribute]:
    """Whether it is an attribute of self."""
    return is_attribute_of(node, "self")


def is_attribute_of(node: ast.AST | None, name: str) -> TypeGuard[ast.Attribute]:
    """Whether it is an attribute of this variable."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name


def mentions(node: ast.AST, name: str) -> bool:
    """Whether it is this variable."""
    return isinstance(node, ast.Name) and node.id == name


def registered(node: ast.AST) -> list[str]:
    """The name under which a call registers a buffer or parameter."""
    first = node.args[0] if called(node) in ("register_buffer", "register_parameter") and node.args else None  # type: ignore[attr-defined]
    return [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []


def is_super_forward(node: ast.AST) -> bool:
    """Whether it calls the forward pass of the base."""
    if called(node) != "forward" or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return called(node.func.value) == "super" or last_name(node.func.value) in FUSED.values()


def uncast(node: ast.AST | None) -> ast.AST | None:
    """What is cast, where it is a cast."""
    while called(node) in _CASTS and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def parameter(node: ast.AST | None) -> str:
    """The attribute of self that an expression is, but for casts, shapes and a constant that is added; or ``""``."""
    node = uncast(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [side for side in (node.left, node.right) if not isinstance(side, ast.Constant)]
        return parameter(sides[0]) if len(sides) == 1 else ""
    if isinstance(node, ast.Subscript):
        return parameter(node.value)
    return node.attr if is_self(node) else ""


def defaults(method: ast.FunctionDef | None) -> list[tuple[str, ast.expr]]:
    """Arguments that have a default, and the default."""
    if method is None:
        return []
    given = method.args
    plain = zip([argument.arg for argument in given.args[len(given.args) - len(given.defaults) :]], given.defaults, strict=True)
    only = zip([argument.arg for argument in given.kwonlyargs], given.kw_defaults, strict=True)
    return [(name, value) for name, value in (*plain, *only) if value is not None]


def _is_eps(node: ast.AST) -> bool:
    small = isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < 0.01
    return small or "eps" in parameter(node).lower() or "eps" in last_name(node).lower()


def _squares(node: ast.AST) -> bool:
    return any(called(part) in ("pow", "square") or isinstance(getattr(part, "op", None), ast.Pow) for part in ast.walk(node))


_CASTS = ("to", "float", "type", "type_as", "view", "reshape", "half", "bfloat16")

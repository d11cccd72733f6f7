"""User code by name: ``module:callable`` or ``file.py:callable``."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn


class TargetError(ValueError):
    """A target that names no callable. The message is one line and says which part was not found, or what its import raised."""


def load(target: str) -> Callable[..., Any]:
    """The callable that a target names.

    Parameters
    ----------
    target : ``module:callable`` (the current directory is searched last) or ``path/file.py:callable``; the callable may be dotted

    Raises
    ------
    TargetError : if the target is malformed, its file, module or attribute is missing, its import raises, or it cannot be called
    """
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise TargetError(f"target={target!r}, but should be 'module:callable' or 'file.py:callable'")
    with staying():
        found: Any = _file(place) if place.endswith(".py") else _module(place)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise TargetError(f"target={target!r}, but {place} has no attribute {attribute!r}")
        found = getattr(found, name)
    if not callable(found):
        raise TargetError(f"target={target!r} is a {type(found).__name__}, but should be callable")
    return found  # type: ignore[no-any-return]


@contextmanager
def staying() -> Iterator[None]:
    """A context in which ``os._exit`` raises SystemExit, as ``sys.exit`` does; processes forked in it end as they would."""
    own, leave = os.getpid(), os._exit

    def stay(status: int) -> NoReturn:
        if os.getpid() != own:
            leave(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = stay
    try:
        yield
    finally:
        os._exit = leave


@dataclass(frozen=True)
class Named:
    """A callable by its target: imported when first called, pickled by name, and known to snippets."""

    target: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what the target names."""
        return _loaded(self.target)(*args, **kwargs)

    @property
    def __name__(self) -> str:
        """The target as a reader would write it."""
        return self.target.replace(":", ".")


@dataclass(frozen=True)
class Pasted(Named):
    """As `Named`, but a snippet pastes the function's source, which needs nothing around it: its imports are inside."""

    @property
    def source(self) -> str:
        """The function without annotations and docstring."""
        function = ast.parse(inspect.getsource(_loaded(self.target))).body[0]
        assert isinstance(function, ast.FunctionDef)
        for node in ast.walk(function):
            if isinstance(node, ast.FunctionDef):
                node.returns = None
            elif isinstance(node, ast.arg):
                node.annotation = None
        function.body = function.body[1:] if ast.get_docstring(function) else function.body
        return ast.unparse(function)


_loaded = functools.cache(load)


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit included
        raise TargetError(f"module {name!r} cannot be imported: {_line(error)}") from None


def _file(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise TargetError(f"file {path!r} not found")
    name = f"normcheck_target_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"file {path!r} cannot be imported")
    beside = str(Path(path).resolve().parent)
    if beside not in sys.path:
        sys.path.append(beside)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit included
        raise TargetError(f"file {path!r} cannot be imported: {_line(error)}") from None
    return module


def _line(error: BaseException) -> str:
    """One line: what was raised, and in which line of the user's file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename and f.filename != __file__]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return describe(error) + where


def describe(error: BaseException) -> str:
    """``TypeName: text`` in one line of at most 300 characters, which any file can hold: a lone surrogate is escaped."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an exception of the user's own class may not even print
        said = "its text cannot be made"
    text = encodable(" ".join(f"{type(error).__name__}: {said}".split()).removesuffix(":"))
    return text if len(text) <= 300 else f"{text[:297]}..."


def encodable(text: str) -> str:
    """The text as UTF-8 can hold it: a lone surrogate becomes its escape sequence."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

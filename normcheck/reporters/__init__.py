"""Reports: pure functions of an audit, one module for each format, chosen by the file's suffix.

A module here with ``SUFFIX``, ``render(audit) -> str`` and ``write(audit, path)`` is a reporter; nothing else names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = ("audit.json", "report.md", "report.html", "junit.xml", "badge.svg")


def write(audit: Any, path: str | Path) -> Path:
    """Write an audit in the format that the suffix of the path names.

    Parameters
    ----------
    audit : what to report
    path : ``.json``, ``.md``, ``.html``, ``.xml`` (JUnit) or ``.svg`` (a badge); missing folders are made

    Returns
    -------
    the path of the report; a report's plots lie beside it

    Raises
    ------
    ValueError : for a suffix that names no format
    """
    target = Path(path)
    reporter = _reporter(target.suffix)
    target.parent.mkdir(parents=True, exist_ok=True)
    reporter.write(audit, target)
    return target


def write_folder(audit: Any, folder: str | Path) -> tuple[Path, ...]:
    """Write the report folder, the record that programs read first."""
    return tuple(write(audit, Path(folder) / name) for name in FOLDER)


def render(audit: Any, suffix: str) -> str:
    """An audit as text in the format of a suffix, such as ``.md``.

    Raises
    ------
    ValueError : for a suffix that names no format
    """
    text: str = _reporter(suffix).render(audit)
    return text


def suffixes() -> tuple[str, ...]:
    """The suffixes of the formats that there are."""
    return tuple(_reporters())


def _reporter(suffix: str) -> Any:
    if suffix not in _reporters():
        raise ValueError(f"suffix={suffix!r}, but should be one of {', '.join(_reporters())}")
    return _reporters()[suffix]


@cache
def _reporters() -> dict[str, Any]:
    """Every module beside this one that names the suffix of its format."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.SUFFIX: module for module in modules if hasattr(module, "SUFFIX")}

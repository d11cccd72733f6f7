"""Where an audit was born: machine, versions, commit, time."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_FLAGS = ("sse4_2", "avx", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "fma", "f16c", "asimd", "sve")
_CORE = ("normcheck", "numpy", "scipy", "ml_dtypes")


def born(libraries: Iterable[str], **settings: Any) -> dict[str, Any]:
    """Facts that tell one audit from another: no host name and no path.

    ``commit`` and ``dirty`` are those of the folder in which the command runs, which has the user's code; ``normcheck`` is the
    last commit that has changed normcheck itself where it runs from a checkout, with ``-dirty`` behind it where files of it
    differ from that, and empty where it is installed.

    Parameters
    ----------
    libraries : distributions under judgement, whose versions are recorded beside the core's
    settings : of the run, such as profile and seed
    """
    return {
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.system(),
            "processor": _processor(),
            "architecture": platform.machine(),
            "cores": os.cpu_count() or 1,
            "flags": _cpu_flags(),
        },
        "python": platform.python_version(),
        "versions": {name: version for name in (*_CORE, *libraries) if (version := _version(name)) is not None},
        "normcheck": source(),
        "commit": commit(),
        "dirty": bool(_git("status", "--porcelain")),
        **settings,
    }


def commit() -> str:
    """The commit of the folder in which the command runs; empty outside a checkout."""
    return _git("rev-parse", "HEAD")


@functools.cache
def source(package: Path = Path(__file__).parent) -> str:
    """The last commit that has changed the package, as `born` has it."""
    last = _git("-C", str(package), "log", "-1", "--format=%H", "--", ".")
    return f"{last}-dirty" if last and _git("-C", str(package), "status", "--porcelain", "--", ".") else last


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.lower().startswith(key)), "")


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor()


def _cpu_flags() -> list[str]:
    present = (_cpuinfo("flags") or _cpuinfo("features")).split()
    return [flag for flag in _FLAGS if flag in present]


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words, no shell
            ["git", *arguments],  # noqa: S607 - the git that the user has
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

"""Where an audit was born: machine, versions, commit, time."""

from __future__ import annotations

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
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        **settings,
    }


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

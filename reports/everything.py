"""Judge every framework in an environment of its own, and merge the audits to one report: ``python reports/everything.py OUT``.

The environments are those of tox. What is finished is not done again, and what was broken off is gone on with; the audit of each
framework stays beside the report, under its name.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

# framework or implementations, by the environment of tox that has what they need
AUDITS = {
    "torch": ("audit", "--framework", "torch", "--implementation", "torch.*"),
    "numpy": ("audit", "--framework", "numpy"),
    "transformers": ("transformers", "--implementation", "transformers.*"),
    "jax": ("jax", "--framework", "jax"),
    "keras": ("keras", "--framework", "keras"),
    "onnx": ("onnx", "--framework", "onnx"),
    "onnxruntime": ("onnx", "--framework", "onnxruntime"),
    "openvino": ("openvino", "--framework", "openvino"),
    "ncnn": ("ncnn", "--framework", "ncnn"),
    "tinygrad": ("tinygrad", "--framework", "tinygrad"),
    "triton": ("triton", "--framework", "triton"),
    "mlx": ("mlx", "--framework", "mlx"),
    "paddle": ("paddle", "--framework", "paddle"),
}
JUDGED = (0, 1)  # exit codes of an audit that is complete


def made(name: str, folder: Path, profile: str) -> bool:
    """Whether the audit of a framework is there, now or from an earlier time."""
    if (folder / "audit.json").exists():
        return True
    environment, *chosen = AUDITS[name]
    if tox("run", "-e", environment, "--notest") != 0:
        return False
    going_on = ["--resume", str(folder)] if (folder / "journal.jsonl").exists() else ["--output", str(folder)]
    return tox("exec", "-e", environment, "--", "normcheck", "audit", "--profile", profile, *chosen, *going_on) in JUDGED


def tox(*arguments: str) -> int:
    """The exit code of a command of tox, which is shown. ``exec`` uses what ``run --notest`` has installed."""
    print("::", "tox", *arguments, flush=True)
    return subprocess.run(["tox", *arguments], check=False).returncode  # noqa: S603, S607 (tox, and nothing from outside)


def main() -> None:
    """Audit what was asked for, and merge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder of the report; the audits lie in OUT/audits")
    parser.add_argument("--only", nargs="+", choices=AUDITS, default=list(AUDITS), help="these frameworks")
    parser.add_argument("--profile", default="quick", choices=("quick", "standard", "deep"))
    given = parser.parse_args()
    folders = {name: given.out / "audits" / name for name in given.only}
    lost = [name for name, folder in folders.items() if not made(name, folder, given.profile)]
    for name in lost:
        print(f"{name}: no audit; its environment says why", file=sys.stderr)
    there = [str(folder) for name, folder in folders.items() if name not in lost]
    code = tox("run", "-e", "audit", "--notest") or tox("exec", "-e", "audit", "--", "normcheck", "merge", str(given.out), *there)
    sys.exit(3 if lost else code)


if __name__ == "__main__":
    main()

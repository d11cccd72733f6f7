"""``[tool.normcheck]`` of a pyproject.toml: implementations and what they claim."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from normcheck.audit import DTYPES
from normcheck.contract import Contract
from normcheck.implementations import Implementation, Named, frameworks
from normcheck.norms import NORMS
from normcheck.options import OptionError, code_of, framework_of, norm_of
from normcheck.spelling import nearest
from normcheck.testing.items import Tasks

RUN = ("checks", "dtypes", "devices", "profile", "seed", "expected_failures", "strict")
CLAIM = (
    "framework",
    "arguments",
    "returns",
    "mutates",
    "residual",
    "channel_axis",
    "ranks",
    "layouts",
    "training",
    "weight_dtype",
    "affine",
    "grad",
    "validates",
)


class ProjectError(OptionError):
    """A table that cannot be used. The message is one line and names the key."""


def read(path: Path) -> Tasks:
    """The tasks of a project.

    The table has ``implementations``, a list of targets such as ``"mykernels.norms:rms_norm"`` or of tables with ``target``,
    ``name`` and settings of their own; ``norm`` and its settings; ``contract``, a table; fields of `Implementation`; and what
    `normcheck.parametrize` takes. Keys may be written with hyphens.

    Raises
    ------
    ProjectError : if the table is missing, has a key that is not known, or a value that is refused
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ProjectError(f"cannot be read: {error}") from None
    table = document.get("tool", {}).get("normcheck")
    if table is None:
        raise ProjectError("has no table [tool.normcheck], which names the implementations that --normcheck judges")
    shared = _spelled(table, ("implementations", *RUN, *_claims()), "[tool.normcheck]")
    _typed(shared)
    run = {key: shared.pop(key) for key in RUN if key in shared and key != "dtypes"}
    targets = shared.pop("implementations", ())
    if not isinstance(targets, list) or not targets:
        raise ProjectError(f"implementations={targets!r}, but should list one target or more, such as 'mykernels.norms:rms_norm'")
    given = [_own(target) for target in targets]
    names = _names([(one["target"], one.pop("name", "")) for one in given])
    try:
        made = [_implementation(one.pop("target"), name, {**shared, **one}) for one, name in zip(given, names, strict=True)]
        return Tasks(made, **run)
    except (ValueError, TypeError) as error:
        raise ProjectError(" ".join(str(error).split())) from None


def _typed(table: Mapping[str, Any]) -> None:
    """Refuse what would be taken for something else further on."""
    if not isinstance(table.get("strict", True), bool):
        raise ProjectError(f"strict={table['strict']!r}, but should be true or false")
    widths = table.get("widths", [])
    if not isinstance(widths, list) or not all(isinstance(width, int) and width > 0 for width in widths):
        raise ProjectError(f"widths={widths!r}, but should list row widths, such as [64, 4096]")
    ranks = table.get("ranks", [])
    if not isinstance(ranks, list) or not all(isinstance(rank, int) and rank > 0 for rank in ranks):
        raise ProjectError(f"ranks={ranks!r}, but should list ranks of x, such as [4]")


def _own(target: Any) -> dict[str, Any]:
    """The entry of one implementation as a table."""
    table = {"target": target} if isinstance(target, str) else target
    if not isinstance(table, Mapping):
        raise ProjectError(f"implementations has {target!r}, but should list targets or tables with a target")
    own = _spelled(table, ("target", "name", "dtypes", "devices", *_claims()), "an entry of implementations")
    _typed(own)
    if not isinstance(own.get("target"), str):
        raise ProjectError(f"an entry of implementations has target={own.get('target')!r}, but should have 'module:callable'")
    return own


def _names(given: Iterable[tuple[str, str]]) -> list[str]:
    """Names for items: those given, else the callables' own, else, where these are alike, the targets."""
    pairs = list(given)
    short = [name or target.rpartition(":")[2] for target, name in pairs]
    alike = {one for one in short if short.count(one) > 1}
    spelled = zip(short, pairs, strict=True)
    return [target.replace(":", ".") if one in alike and not name else one for one, (target, name) in spelled]


def _implementation(target: str, name: str, settings: dict[str, Any]) -> Implementation:
    if "norm" not in settings:
        raise ProjectError(f"norm is missing for {target}, but should be one of {', '.join(NORMS)}")
    framework = framework_of(settings.get("framework", "torch"))
    init, widths = settings.pop("init", {}), settings.pop("widths", [])
    claim = {key: settings.pop(key) for key in (*CLAIM, "dtypes", "devices") if key in settings}
    contract = settings.pop("contract", {})
    if not isinstance(contract, Mapping):
        raise ProjectError(f"contract={contract!r}, but should be a table such as {{cast = 'before_weight'}}")
    promised = Contract(**_spelled(contract, [f.name for f in fields(Contract)], "contract"))
    if isinstance(settings.get("normalized_shape"), list):
        settings["normalized_shape"] = ",".join(map(str, settings["normalized_shape"]))
    norm = norm_of(str(settings.pop("norm")), settings, spelled=str)
    code: dict[str, Any] = {"call": Named(target)}
    if frameworks()[framework].available() is None:
        code = code_of(target, norm, init, widths, claim.get("channel_axis", 1))
    return Implementation(norm=norm, contract=promised, name=name, **{"dtypes": DTYPES, "validates": False, **code, **claim})


def _claims() -> tuple[str, ...]:
    settings = {f.name for norm in NORMS.values() for f in fields(cast(Any, norm))}
    return ("norm", "contract", "init", "widths", *sorted(settings), *CLAIM)


def _spelled(table: Mapping[str, Any], known: Iterable[str], where: str) -> dict[str, Any]:
    """The table with underscores in its keys.

    Raises
    ------
    ProjectError : for a key that is not known, naming the nearest
    """
    names = list(known)
    spelled = {key.replace("-", "_"): value for key, value in table.items()}
    for key in spelled:
        if key not in names:
            raise ProjectError(f"{where} has the key {key!r}{nearest(key, names)}, but should have some of {', '.join(names)}")
    return spelled

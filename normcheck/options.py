"""What a user names on the command line, turned into norms and implementations; a refusal names the nearest that is known."""

from __future__ import annotations

import ast
import fnmatch
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, cast

from normcheck.contract import Contract
from normcheck.formats import FORMATS
from normcheck.implementations import Implementation, MissingPackageError, Named, frameworks, implementations, load, require
from normcheck.implementations.constructed import constructed
from normcheck.implementations.onnx_files import SUFFIX, implementation_in
from normcheck.norms import NORMS, Norm
from normcheck.spelling import bare, nearest, refusal


class OptionError(ValueError):
    """A name or a setting that cannot be used. The message is one line."""


def chosen(globs: Sequence[str], framework: str | None) -> tuple[Implementation, ...]:
    """The discovered implementations of a framework (None: of all that are installed) whose names match one of the patterns.

    Raises
    ------
    OptionError : for an unknown or missing framework, and for a pattern that matches nothing
    """
    if framework is not None:
        framework_of(framework)
    try:
        found = implementations(framework)
    except MissingPackageError as error:
        raise OptionError(str(error)) from None
    for glob in globs:
        if not fnmatch.filter((one.name for one in found), glob):
            raise OptionError(f"implementation={glob!r} matches none{nearest(glob, (one.name for one in found))}")
    return tuple(one for one in found if not globs or any(fnmatch.fnmatch(one.name, glob) for glob in globs))


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an audit with each check and dtype known; None for what was not given.

    Raises
    ------
    OptionError : for an unknown check or dtype
    """
    from normcheck.checks import checks

    known = checks()
    ids = tuple(one_of("check", name, known) for name in options["checks"])
    dtypes = tuple(one_of("dtype", name, FORMATS) for name in options["dtypes"])
    return {**options, "checks": ids or None, "dtypes": dtypes or None, "devices": tuple(options["devices"]) or None}


def implementation_of(
    target: str, dtypes: tuple[str, ...], devices: tuple[str, ...], options: Mapping[str, Any]
) -> Implementation:
    """User code by its target, with the norm and the contract that it claims.

    Parameters
    ----------
    target : ``module:callable``, ``file.py:callable``, or an ONNX model, which says itself what its norm computes and in which
        dtype
    dtypes, devices : to judge it on
    options : norm_name, and fields of that norm, of `Contract` (its output as output_dtype) and of `Implementation`; None for
        what was not given

    Raises
    ------
    OptionError : with the message of whatever refuses the target or a setting
    """
    given = {"validates": False} | {key: value for key, value in options.items() if value is not None}
    framework_of(given["framework"])
    if target.endswith(SUFFIX):
        return _saved(target, given)
    if "node" in given:
        raise OptionError(f"--node={given['node']!r}, but {target} is no ONNX model")
    if "norm_name" not in given:
        raise OptionError("Missing option '--norm': what the code claims to compute, such as rms_norm")
    try:
        norm = norm_of(given.pop("norm_name"), given)
        contract = _contract(given)
        given["channel_axis"] = int(given["channel_axis"])
        given["ranks"] = tuple(given.get("ranks", ())) or None
        if "argument_order" in given:
            given["arguments"] = tuple(name.strip() for name in given.pop("argument_order").split(","))
        given["grad"] = "autograd" if given.pop("autograd", False) else None
        given |= code_of(target, norm, given.pop("init", ()), given.pop("widths", ()), given["channel_axis"])
        made = Implementation(norm=norm, contract=contract, name=target, dtypes=dtypes, devices=devices, **given)
        for device in devices:
            require(made, device)
    except (ValueError, MissingPackageError) as error:
        raise OptionError(" ".join(str(error).split())) from None
    return made


def norm_of(name: str, given: dict[str, Any], spelled: Callable[[str], str] | None = None) -> Norm:
    """The norm of a name in any spelling, with its settings, which are taken out of the options given.

    Parameters
    ----------
    name : such as rms_norm
    given : options by key
    spelled : how messages write a key; as an option of the command line by default

    Raises
    ------
    OptionError : for an unknown norm, for a setting that it lacks, and for one that it needs
    ValueError : for a setting that the norm refuses
    """
    written = spelled or _flag
    alike = {bare(known): known for known in NORMS}
    kind = NORMS[alike.get(bare(name)) or one_of("norm", name, NORMS)]
    known = {f.name: f for f in fields(cast(Any, kind))}
    settings = {key: given.pop(key) for key in _all_settings() if key in given}
    for key in settings:
        if key not in known:
            raise OptionError(f"{kind.__name__} has no {written(key)}, but {', '.join(map(written, known))}")
    for key, field in known.items():
        if field.default is MISSING and key not in settings:
            raise OptionError(f"{kind.__name__} needs {written(key)}")
    if "normalized_shape" in settings:
        settings["normalized_shape"] = _sizes(settings["normalized_shape"])
    return kind(**settings)


def one_of(what: str, name: str, known: Iterable[str]) -> str:
    """The name, if it is known.

    Raises
    ------
    OptionError : with the nearest name
    """
    names = list(known)
    if name not in names:
        raise OptionError(refusal(what, name, names, "normcheck list checks" if what == "check" else ""))
    return name


def framework_of(name: str) -> str:
    """The name of a framework, if it is known.

    Raises
    ------
    OptionError : with the nearest name, and which frameworks are installed
    """
    known = frameworks()
    if name not in known:
        lines = {one: adapter.available() for one, adapter in known.items()}
        here = ", ".join(one for one, line in lines.items() if line is None)
        others = ", ".join(one for one, line in lines.items() if line is not None)
        text = f"framework={name!r}{nearest(name, known)}, but should be one of {here}"
        raise OptionError(f"{text}; not installed: {others} (`normcheck list implementations` says how)" if others else text)
    return name


def code_of(
    target: str, norm: Norm, init: Mapping[str, Any] | Sequence[str] = (), widths: Sequence[int] = (), channel_axis: int = 1
) -> dict[str, Any]:
    """The fields of `Implementation` that hold the code of a target: a function as ``call``, a class as ``module``.

    Parameters
    ----------
    init : arguments of a class's constructor by name, or as they are typed, see `initial`
    widths : the row widths that it takes; none of them stands for any

    Raises
    ------
    TargetError, OptionError : for a target that cannot be used so, and for arguments that a constructor does not take
    """
    found, given = load(target), dict(init) if isinstance(init, Mapping) else initial(init)
    named: dict[str, Any] = {"widths": tuple(widths)} if widths else {}
    if inspect.isclass(found):
        module, fixed = constructed(target, norm, given, channel_axis, named.get("widths", ()))
        return {"module": module, **({"widths": fixed} if fixed else {}), **named}
    if hasattr(found, "state_dict") and hasattr(found, "forward"):
        raise OptionError(
            f"{target} is an instance of {type(found).__name__}, whose weights are its own, but should be the class: "
            "what its constructor takes is given by --init, in Python by module="
        )
    if given:
        raise OptionError(f"--init {next(iter(given))}=..., but {target} is no class")
    return {"call": Named(target), **named}


def initial(typed: Sequence[str]) -> dict[str, Any]:
    """Arguments as they are typed: each ``key=value`` or a dict; values are Python literals, or else text.

    Raises
    ------
    OptionError : for what is neither
    """
    made: dict[str, Any] = {}
    for one in typed:
        key, equals, value = one.partition("=")
        if equals and key.strip().isidentifier():
            made[key.strip()] = _literal(value.strip())
            continue
        whole = _literal(one)
        if not isinstance(whole, dict) or not all(isinstance(name, str) for name in whole):
            raise OptionError(f"--init={one!r}, but should be such as hidden=64, or a dict such as {{'hidden': 64}}")
        made |= whole
    return made


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _contract(given: dict[str, Any]) -> Contract:
    return Contract(**_promised(given))


def _promised(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of the contract, taken out of the options given."""
    settings = {f.name: given.pop(f.name) for f in fields(Contract) if f.name in given}
    if "output_dtype" in given:
        settings["output"] = given.pop("output_dtype")
    if settings.get("accumulation", "").isdigit():
        settings["accumulation"] = int(settings["accumulation"])
    return settings


def _saved(path: str, given: dict[str, Any]) -> Implementation:
    """The norm in an ONNX model; of the claims only those of the contract can be given beside it."""
    node, contract = given.pop("node", ""), _promised(given)
    usual = {"validates": False, "framework": "torch", "channel_axis": "1", "autograd": False}
    usual |= dict.fromkeys(("init", "widths", "ranks"), ())
    for key, value in given.items():
        if value != usual.get(key):
            raise OptionError(f"{_flag(key.removesuffix('_name'))}={value!r}, but {path} says that itself")
    try:
        return implementation_in(path, node, **contract)
    except (ValueError, MissingPackageError) as error:
        raise OptionError(" ".join(str(error).split())) from None


def _all_settings() -> list[str]:
    return sorted({f.name for kind in NORMS.values() for f in fields(cast(Any, kind))})


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--normalized-shape={text!r}, but should be sizes such as 768 or 4,32") from None


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"

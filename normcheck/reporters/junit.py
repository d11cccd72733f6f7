"""JUnit XML, which CI systems show: a suite for each implementation, dtype and device, a case for each check."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from normcheck.reporters import summary, text
from normcheck.reporters.summary import Judged
from normcheck.results import Outcome, Result
from normcheck.stored import put

SUFFIX = ".xml"
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML 1.0 cannot hold
_ERRORS = (Outcome.BROKEN, Outcome.CRASHED, Outcome.TIMEOUT)


def write(audit: Judged, path: Path) -> None:
    """Write the report."""
    put(path, render(audit))


def render(audit: Judged) -> str:
    """The audit as JUnit XML. Known upstream faults count as skipped, as pytest has its expected failures; warnings pass."""
    root = ET.Element("testsuites", name="normcheck")
    for (implementation, dtype, device), results in summary.group(
        audit.results, lambda r: (r.implementation, r.dtype, r.device)
    ).items():
        root.append(_suite(f"{implementation} {dtype} {device}", results))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(name: str, results: Sequence[Result]) -> ET.Element:
    suite = ET.Element("testsuite", name=_plain(name))
    for check, of_check in summary.group(results, lambda result: result.check).items():
        suite.append(_case(name, check, of_check))
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.set("tests", str(len(suite)))
    for count, tag in kinds.items():
        suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("time", _seconds(results))
    return suite


def _case(name: str, check: str, results: Sequence[Result]) -> ET.Element:
    case = ET.Element("testcase", classname=_plain(name), name=_plain(check), time=_seconds(results))
    bad = [result for result in results if result.outcome.bad]
    if bad:
        worst = bad[0]
        tag = "error" if all(result.outcome in _ERRORS for result in bad) else "failure"
        told = ET.SubElement(case, tag, message=_plain(worst.message), type=worst.outcome.value)
        told.text = "\n".join(_plain(_line(result)) for result in bad)
    elif set(outcomes := [result.outcome for result in results]) == {Outcome.SKIPPED}:
        ET.SubElement(case, "skipped", message=_plain(results[0].message))
    elif Outcome.XFAILED in outcomes:
        ET.SubElement(case, "skipped", message=_plain(f"known: {results[outcomes.index(Outcome.XFAILED)].ledger}"))
    witness = next((result.witness for result in results if result.witness is not None), None)
    if witness is not None:
        ET.SubElement(case, "system-out").text = _FORBIDDEN.sub("", text.listing(witness.snippet))
    warned = [result for result in results if result.outcome is Outcome.WARNED]
    if warned:
        ET.SubElement(case, "system-err").text = "\n".join(_plain(_line(result)) for result in warned)
    return case


def _line(result: Result) -> str:
    where = " ".join(part for part in (result.regime, " x ".join(map(str, result.shape))) if part)
    return f"{result.outcome.value}{f' ({where})' if where else ''}: {result.message}"


def _plain(value: str) -> str:
    return _FORBIDDEN.sub("", text.plain(value))


def _seconds(results: Sequence[Result]) -> str:
    return f"{sum(result.seconds for result in results):.3f}"

"""The pytest plugin: options, items and a section of the summary. It loads nothing but pytest until one of them is used."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from normcheck.flags import JUDGING

if TYPE_CHECKING:
    from collections.abc import Generator

    from normcheck.audit import Audit
    from normcheck.testing.items import Task

TASK = pytest.StashKey["Task"]()
PROJECT = pytest.StashKey[Path]()
FILE = "pyproject.toml"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, from the table that the command line has as well."""
    group = parser.getgroup("normcheck", "normcheck: numerical audits of normalization layers")
    group.addoption("--normcheck", action="store_true", help=f"Judge what [tool.normcheck] in {FILE} names.")
    for flag in JUDGING:
        given: dict[str, Any] = {"choices": flag.choices} if flag.choices else {"metavar": flag.metavar}
        if flag.number:
            given["type"] = int
        if flag.many:
            given["action"] = "append"
        group.addoption(f"--normcheck-{flag.name}", dest=f"normcheck_{flag.key}", help=flag.help, **given)
    group.addoption("--normcheck-report", metavar="DIR", help="Write a report folder at the end of the session.")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options that are given, and see that the project's own items are collected."""
    config.addinivalue_line("markers", "normcheck: a check of a normalization layer")
    _refuse_unknown(_options(config))
    _refuse_unwritable(config)
    if config.getoption("normcheck"):
        project = config.stash[PROJECT] = _project(config)
        if not any(path == project or path in project.parents for path in _paths(config)):
            config.args.append(str(project))
    config.pluginmanager.register(Recorder(config), "normcheck-recorder")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The project's own items, with ``--normcheck``."""
    config = parent.config
    if file_path != config.stash.get(PROJECT, None):
        return None
    from normcheck.testing.collect import ProjectFile

    return ProjectFile.of(parent, file_path, _options(config))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let the options take part in what `normcheck.parametrize` yields."""
    if "normcheck.testing.items" not in sys.modules:
        return
    from normcheck.testing.items import Tasks

    for mark in metafunc.definition.iter_markers("parametrize"):
        for values in mark.args[1:2]:
            if isinstance(values, Tasks):
                values.choose(_options(metafunc.config))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the items that judge, so that ``-m normcheck`` selects them."""
    task = _task(item)
    if task is not None:
        item.stash[TASK] = task
        item.add_marker("normcheck")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send the results, or why there are none, with the report, which reaches the session that writes, from whatever process."""
    report = yield
    task = item.stash.get(TASK, None)
    if report.skipped and not hasattr(report, "wasxfail") and (task is not None or _without_tasks(item)):
        report.normcheck_skipped = str(report.longrepr[-1]).removeprefix("Skipped: ")  # type: ignore[attr-defined, index]
    if task is not None and call.when == "call" and task.results:
        report.normcheck = task.record()  # type: ignore[attr-defined]
    return report


class Recorder:
    """Keeps the results of a session, and tells them at its end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.told: list[dict[str, Any]] = []
        self.skipped: Counter[str] = Counter()
        self.audit: Audit | None = None
        self.written: tuple[Path, ...] = ()
        self.annotations: tuple[str, ...] = ()
        self.collected = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what an item found, or why it was skipped."""
        reason = getattr(report, "normcheck_skipped", None)
        if reason is not None:
            self.skipped[reason] += 1
        text = getattr(report, "normcheck", None)
        if text is not None:
            self.told.append(json.loads(text))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the items that judge; with xdist the workers know them."""
        self.collected = sum(TASK in item.stash for item in session.items)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the report, also of a session that was interrupted; not in the workers of xdist, which report elsewhere."""
        if not self.told or hasattr(self.config, "workerinput"):
            return
        from normcheck import reporters
        from normcheck.reporters import github
        from normcheck.testing import record

        stopped = f"{len(self.told)}{f' of {self.collected}' if self.collected else ''} checks were done"
        self.audit = record.audit(
            self.told,
            self.config.invocation_params.args,
            self.config.getoption("normcheck_seed") or 0,
            stopped if exitstatus == pytest.ExitCode.INTERRUPTED else "",
        )
        folder = self.config.getoption("normcheck_report")
        if folder:
            self.written = reporters.write_folder(self.audit, self.config.invocation_params.dir / folder)
        self.annotations = github.announce(self.audit)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Grades by implementation and dtype, warnings, expected failures that are none any more; why nothing was judged."""
        if self.audit is None and not self.skipped:
            return
        from normcheck.testing import record

        terminalreporter.section("normcheck")
        for line in record.lines(self.audit, self.told, self.skipped):
            terminalreporter.write_line(line)
        for path in self.written:
            terminalreporter.write_line(f"Written: {path}")
        for line in self.annotations:
            terminalreporter.write_line(line)


def _options(config: pytest.Config) -> dict[str, Any]:
    """The shared options as the arguments of an audit; None for what is not given."""
    return {flag.key: config.getoption(f"normcheck_{flag.key}") for flag in JUDGING}


def _refuse_unknown(options: dict[str, Any]) -> None:
    if not (options["checks"] or options["dtypes"]):
        return
    from normcheck.options import OptionError, checked

    try:
        checked({key: options[key] or () for key in ("checks", "dtypes", "devices")})
    except OptionError as error:
        raise pytest.UsageError(f"--normcheck: {error}") from None


def _refuse_unwritable(config: pytest.Config) -> None:
    """Refuse a report folder that cannot be written before anything is judged."""
    folder = config.getoption("normcheck_report")
    if folder:
        from normcheck.console import unwritable

        reason = unwritable(config.invocation_params.dir / folder)
        if reason:
            raise pytest.UsageError(f"--normcheck-report={folder!r} cannot be written: {reason}")


def _project(config: pytest.Config) -> Path:
    """The project file with our table: that of pytest's root folder, else the nearest above what is collected."""
    above = (folder for path in _paths(config) for folder in (path, *path.parents))
    for folder in (config.rootpath, *above):
        path = folder / FILE
        if path.is_file() and b"tool.normcheck" in path.read_bytes():
            return path
    raise pytest.UsageError(f"--normcheck needs a table [tool.normcheck], but there is none in {config.rootpath / FILE}")


def _paths(config: pytest.Config) -> list[Path]:
    """What pytest is told to collect, without the names of single items."""
    return [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]


def _without_tasks(item: pytest.Item) -> bool:
    """Whether an item stands for a `normcheck.parametrize` of which the options have left nothing."""
    if "normcheck.testing.items" not in sys.modules:
        return False
    from normcheck.testing.items import Tasks

    return any(isinstance(values, Tasks) for mark in item.iter_markers("parametrize") for values in mark.args[1:2])


def _task(item: pytest.Item) -> Task | None:
    if "normcheck.testing.items" not in sys.modules:
        return None
    from normcheck.testing.items import Task

    given = getattr(getattr(item, "callspec", None), "params", {}).get("check", getattr(item, "task", None))
    return given if isinstance(given, Task) else None

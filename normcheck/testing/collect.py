"""The items of a project that names its implementations in pyproject.toml, without a line of test code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from normcheck.testing.items import Task
from normcheck.testing.project import ProjectError, read


class ProjectFile(pytest.File):
    """``pyproject.toml`` as a collector of items."""

    options: Mapping[str, Any]

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path, options: Mapping[str, Any]) -> ProjectFile:
        """The collector of a project file, with the options of the command line."""
        made: ProjectFile = cls.from_parent(parent, path=path)
        made.options = options
        return made

    def collect(self) -> Iterator[TaskItem]:
        """One item for each implementation, check, dtype and device."""
        if str(self.path.parent) not in sys.path:
            sys.path.append(str(self.path.parent))
        try:
            tasks = read(self.path)
        except ProjectError as error:
            raise self.CollectError(f"{self.path.name}: {error}") from None
        tasks.choose(self.options)
        for parameter in tasks:
            item: TaskItem = TaskItem.from_parent(self, name=parameter.id)
            item.task = parameter.values[0]
            for mark in parameter.marks:
                item.add_marker(mark)
            yield item


class TaskItem(pytest.Item):
    """An item that is nothing but a task."""

    task: Task

    def runtest(self) -> None:
        """Judge."""
        __tracebackhide__ = True
        self.task()

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it comes from."""
        return self.path, None, self.name

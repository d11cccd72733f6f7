"""What the reports that are made from templates have in common."""

from __future__ import annotations

from typing import Any

import jinja2


def environment(**options: Any) -> jinja2.Environment:
    """Templates of this package; a name that they do not know is an error. ``autoescape`` is for the caller to choose."""
    loader = jinja2.PackageLoader(__package__)
    usual: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    return jinja2.Environment(loader=loader, **usual, **options)  # noqa: S701

"""The engine of audits: what is planned, how it is run apart from this process, and how nothing measured is lost."""

from __future__ import annotations

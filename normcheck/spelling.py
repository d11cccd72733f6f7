"""Names that are not known, and the one that is spelled most alike."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

MANY = 12
"""Of more names than this a message lists none: it says how many there are."""


def bare(name: str) -> str:
    """A name as it is compared: rms_norm, rms-norm and RMSNorm are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is spelled most alike, if there is one."""
    alike = {bare(one): one for one in known}
    near = difflib.get_close_matches(bare(name), alike, n=1, cutoff=0.4)
    return f" (did you mean {alike[near[0]]}?)" if near else ""


def refusal(what: str, name: object, known: Iterable[str], listing: str = "") -> str:
    """The message for a name that is not known: first the nearest one, then what there is.

    Parameters
    ----------
    what : is named, such as ``check``
    known : the names that there are
    listing : a command that lists them, for when they are too many for a message
    """
    names = list(known)
    shown = f"one of {', '.join(names)}" if len(names) <= MANY else f"one of the {len(names)} known"
    shown += f": see `{listing}`" if listing and len(names) > MANY else ""
    return f"{what}={name!r}{nearest(str(name), names)}, but should be {shown}"

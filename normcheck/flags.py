"""The options that the command line and the pytest plugin share, as one table. Loading it loads nothing else."""

from __future__ import annotations

from dataclasses import dataclass

PROFILES = ("quick", "standard", "deep")


@dataclass(frozen=True)
class Flag:
    """An option: ``--profile`` on the command line, ``--normcheck-profile`` in pytest.

    Attributes
    ----------
    name : without dashes
    key : the argument of `normcheck.audit` that it sets
    help : one sentence
    metavar : what stands for its value
    choices : the values that there are, where they are known without loading anything
    many : whether it can be repeated
    number : whether its value is a whole number >= 0
    """

    name: str
    key: str
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    many: bool = False
    number: bool = False


JUDGING = (
    Flag("profile", "profile", "How thoroughly.", choices=PROFILES),
    Flag("check", "checks", "Only this check; can be repeated.", "ID", many=True),
    Flag("dtype", "dtypes", "Only this dtype; can be repeated.", "DTYPE", many=True),
    Flag("device", "devices", "On this device; can be repeated. Default: those declared and present.", "DEVICE", many=True),
    Flag("seed", "seed", "Of all random inputs. Default: 0.", "N", number=True),
)

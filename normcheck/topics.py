"""What there is to list: implementations, checks, norms, regimes and faults."""

from __future__ import annotations

TOPICS = ("implementations", "checks", "norms", "regimes", "faults")


def listed(topic: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Column names and rows of a topic."""
    if topic == "implementations":
        from normcheck.implementations import implementations, unjudged

        judged: list[tuple[str, ...]] = [(i.name, repr(i.norm), " ".join(i.dtypes)) for i in implementations()]
        rest = ((name, f"not judged: {reason}", "") for name, reason in unjudged().items())
        return ("name", "claims", "dtypes"), [*judged, *rest]
    if topic == "checks":
        from normcheck.checks import checks

        return ("id", "states", "family"), [(c.id, c.title, c.family) for c in checks().values()]
    if topic == "norms":
        from normcheck.norms import NORMS

        rows: list[tuple[str, ...]] = [
            (name, f"{norm.eps:g}", (norm.__doc__ or "").partition("\n")[0]) for name, norm in NORMS.items()
        ]
        return ("name", "eps", "computes"), rows
    if topic == "regimes":
        from normcheck.regimes import REGIMES

        return ("name", "rows"), [(r.name, r.statement) for r in REGIMES.values()]
    from normcheck.faults import faults

    return ("name", "kind", "what is broken", "seen in"), [
        (f.name, f.kind, f.statement, " ".join(f.provenance)) for f in faults()
    ]

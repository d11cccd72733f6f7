"""The search for counterexamples: trials that come close to the bound are varied until one of them breaks it.

Fitness is the ratio of `accuracy`: distance of the exact value from the output's rounding cell over the bound E of that very
input. It is known for every row of a call, so that each call tries as many rows as fit. Half of the calls explore: any width, any
background. The others vary rows that came closest so far, by powers of two, shifts, replaced elements and other widths.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from normcheck.checks import Context, FormError, SkipCaseError
from normcheck.checks.accuracy import ID, flushed
from normcheck.checks.comparing import held
from normcheck.checks.witness import pass_class
from normcheck.formats import Array
from normcheck.implementations import CallError, Implementation, frameworks
from normcheck.recipes import Trial
from normcheck.results import Outcome, Result
from normcheck.stored import put
from normcheck.variation import fresh, simpler, varied

SCHEMA = 1
KEPT = 48
_ELEMENTS = 2**14
_EXPLORED = 0.5
_SIMPLIFYING = 2000
_SAVED_EVERY = 10.0


@dataclass(frozen=True)
class Find:
    """A trial, the dtype it was made in, and the largest ratio of error to bound among its rows."""

    dtype: str
    trial: Trial
    ratio: float


@dataclass
class Corpus:
    """What is kept from one search to the next: the trials that came closest to the bound, per dtype.

    Attributes
    ----------
    path : the JSON file; None keeps nothing
    runs : how many searches it has served
    finds : by falling ratio
    """

    path: Path | None = None
    runs: int = 0
    finds: list[Find] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Corpus:
        """The corpus of a file; an empty one if there is no file.

        Raises
        ------
        ValueError : if the file holds no corpus, naming it
        """
        if not path.exists():
            return cls(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            finds = [Find(one["dtype"], Trial.from_dict(one["trial"]), float(one["ratio"])) for one in data["finds"]]
            return cls(path, int(data["runs"]), finds)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is no corpus: {type(error).__name__}: {error}; remove it to start anew") from None

    def add(self, find: Find) -> None:
        """Keep a find if it is among the best of its dtype; of equal trials one is kept."""
        if any(one.trial == find.trial and one.dtype == find.dtype for one in self.finds):
            return
        self.finds.append(find)
        self.finds.sort(key=lambda one: -one.ratio)
        own = [one for one in self.finds if one.dtype == find.dtype]
        if len(own) > KEPT:
            self.finds.remove(own[-1])

    def write(self) -> None:
        """Write the file, all of it or nothing."""
        if self.path is None:
            return
        finds = [{"dtype": one.dtype, "ratio": str(one.ratio), "trial": one.trial.to_dict()} for one in self.finds]
        text = json.dumps({"schema": SCHEMA, "runs": self.runs, "finds": finds}, indent=1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".tmp")
        put(scratch, text + "\n")
        scratch.replace(self.path)


@dataclass
class Hunt:
    """What a search has come to.

    Attributes
    ----------
    best : the find with the largest ratio of this search, or None
    result : of the counterexample with its witness, or of the best find
    calls, rows, seconds : what it took
    refused : what the code raised, by message, and how often
    interrupted : whether Ctrl-C ended it
    """

    best: Find | None = None
    result: Result | None = None
    calls: int = 0
    rows: int = 0
    seconds: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def found(self) -> bool:
        """Whether there is a counterexample."""
        return self.result is not None and self.result.outcome.bad

    @property
    def line(self) -> str:
        """How far the search has come, in one line."""
        if self.best is None:
            return f"{self.seconds:8.1f} s  {self.calls} calls, {self.rows} rows: no error that is measurable"
        place = f"{self.best.dtype}, rows of {self.best.trial.width}"
        return f"{self.seconds:8.1f} s  {self.calls} calls, {self.rows} rows: at {self.best.ratio:.3g} of the bound ({place})"

    @property
    def verdict(self) -> str:
        """What came of it, in one sentence."""
        if self.found and self.result is not None:
            return f"Counterexample: {self.result.message}"
        if not self.rows:
            return "Nothing was found out: no call came back."
        tried = f"No counterexample in {self.seconds:.0f} s, {self.calls} calls and {self.rows} rows"
        if self.best is None:
            return f"{tried}: no error was large enough to be measured."
        place = f"{self.best.dtype}, rows of {self.best.trial.width}"
        return f"{tried}: the worst error is at {self.best.ratio:.3g} of the bound ({place})."

    @property
    def text(self) -> str:
        """The outcome: the worst input, and of a counterexample all that shows it."""
        lines = [self.verdict]
        if self.best is not None:
            lines.append(f"Worst input, at {self.best.ratio:.3g} of the bound: {self.best.dtype}, {self.best.trial.words}")
        if self.found and self.result is not None and self.result.witness is not None:
            lines += ["", self.result.witness.snippet]
        lines += [f"{count} calls raised {message}" for message, count in self.refused.items()]
        return "\n".join(lines)


Progress = Callable[[Hunt], None]


def corpus_path(implementation: Implementation, folder: str | Path | None = None) -> Path:
    """Where the corpus of an implementation is kept: in this folder, or in the user's cache."""
    if folder is None:
        import platformdirs

        folder = platformdirs.user_cache_path("normcheck") / "hunt"
    claim = f"{implementation.name} {implementation.norm!r} {implementation.contract!r} {implementation.training}"
    name = "".join(c if c.isalnum() else "-" for c in implementation.name).strip("-")
    return Path(folder) / f"{name[-60:]}-{hashlib.sha256(claim.encode()).hexdigest()[:8]}.json"


def hunt(
    implementation: Implementation,
    *,
    minutes: float = 1.0,
    seed: int = 0,
    corpus: Corpus | None = None,
    device: str = "cpu",
    keep_going: bool = False,
    progress: Progress = lambda hunt: None,
) -> Hunt:
    """Search for an input on which an implementation breaks the bound of ``accuracy``.

    The search first tries again what the corpus holds, and writes it back at the end, also on Ctrl-C.

    Parameters
    ----------
    implementation : code under judgement; all its dtypes are searched in turn
    minutes : after which it ends
    seed : with the corpus's number of runs, of everything random; time decides how far it comes
    corpus : what earlier searches kept
    keep_going : go on for the worst ratio after a counterexample was found
    progress : called whenever the worst ratio has grown

    Raises
    ------
    ValueError : for minutes that are not above 0
    """
    if not minutes > 0:
        raise ValueError(f"minutes={minutes!r}, but should be above 0")
    framework = frameworks()[implementation.framework]
    framework.pin_threads(1)
    search = _Search(implementation, device, corpus or Corpus(), keep_going, progress)
    search.run(60 * minutes, np.random.default_rng([seed, search.corpus.runs]))
    return search.hunt


class _Search:
    """One search: the contexts, the corpus and what was found so far."""

    def __init__(self, implementation: Implementation, device: str, corpus: Corpus, keep_going: bool, progress: Progress) -> None:
        self.contexts = {dtype: Context(implementation, dtype, device, "quick") for dtype in implementation.dtypes}
        self.corpus = corpus
        self.keep_going = keep_going
        self.progress = progress
        self.hunt = Hunt()
        self.waiting: list[Find] = []

    def run(self, seconds: float, rng: np.random.Generator) -> None:
        """Try trials until the time is over, a counterexample is found, or Ctrl-C."""
        started = saved = time.perf_counter()
        try:
            for dtype, trial in self._trials(rng):
                self._try(dtype, trial)
                now = time.perf_counter()
                self.hunt.seconds = now - started
                if self.hunt.seconds > seconds or (self.hunt.found and not self.keep_going):
                    break
                if now - saved > _SAVED_EVERY and not self.waiting:
                    self.corpus.write()
                    saved = now
        except KeyboardInterrupt:
            self.hunt.interrupted = True
        self._keep_waiting()
        self.corpus.runs += 1
        self.corpus.write()

    def _trials(self, rng: np.random.Generator) -> Iterator[tuple[str, Trial]]:
        """What is tried: the corpus once more, then the dtypes in turn."""
        kept, self.corpus.finds = self.corpus.finds, []
        self.waiting = [find for find in reversed(kept) if find.dtype in self.contexts]
        self.corpus.finds = [find for find in kept if find.dtype not in self.contexts]
        while self.waiting:
            find = self.waiting.pop()
            yield find.dtype, find.trial
        while True:
            for dtype, context in self.contexts.items():
                parents = [find.trial for find in self.corpus.finds if find.dtype == dtype]
                if not parents or rng.random() < _EXPLORED:
                    yield dtype, fresh(rng, context, _ELEMENTS)
                else:
                    # the better, the more often: a square puts half of the weight on the first quarter
                    yield dtype, varied(rng, parents[int(rng.random() ** 2 * len(parents))], context, _ELEMENTS)

    def _keep_waiting(self) -> None:
        """Put back what the search has not come to try again."""
        for find in self.waiting:
            self.corpus.add(find)

    def _try(self, dtype: str, trial: Trial) -> None:
        context = self.contexts[dtype]
        ratios = self._ratios(context, trial)
        if ratios is None or not ratios.size or not ratios.max() > 0:
            return
        find = Find(dtype, trial, float(ratios.max()))
        if len(trial.rows) > 1:
            find = self._alone(context, find, int(ratios.argmax()))
        self.corpus.add(find)
        if self.hunt.best is not None and find.ratio <= self.hunt.best.ratio:
            return
        if find.ratio > 1 and not self.hunt.found:
            find = self._simplified(context, find)
        self.hunt.best = find
        self.hunt.result = self._result(context, find)
        self.progress(self.hunt)

    def _alone(self, context: Context, find: Find, row: int) -> Find:
        """The worst row by itself, where it is about as bad without the others."""
        alone = replace(find.trial, rows=(find.trial.rows[row % len(find.trial.rows)],))
        ratios = self._ratios(context, alone)
        if ratios is None or not ratios.size:
            return find
        own = float(ratios.max())
        return Find(find.dtype, alone, own) if own >= 0.9 * find.ratio or (own > 1 and find.ratio > 1) else find

    def _simplified(self, context: Context, find: Find) -> Find:
        """The simplest trial that still breaks the bound, by steps that each leave something out."""
        changed, most = True, self.hunt.calls + _SIMPLIFYING
        while changed and self.hunt.calls < most:
            changed = False
            for trial in simpler(find.trial):
                ratios = self._ratios(context, trial)
                if ratios is not None and ratios.size and ratios.max() > 1:
                    find, changed = Find(find.dtype, trial, float(ratios.max())), True
                    break
        self.corpus.add(find)
        return find

    def _ratios(self, context: Context, trial: Trial) -> Array | None:
        """The ratio of each row, (R,); inf where the output has no right form; None where there is nothing to judge."""
        try:
            case = trial.case(context)
            self.hunt.calls += 1
            output = context.run(case)
        except (SkipCaseError, FormError, CallError) as error:
            return self._lost(error)
        self.hunt.rows += len(output)
        verdict = case.judge(output, pass_class(context))
        worst = np.asarray(np.where(verdict.judged, verdict.ratio, 0.0).max(axis=1))
        if (
            worst.max(initial=0.0) > 1
            and not context.implementation.contract.subnormals
            and flushed(case, output, pass_class(context))
        ):
            return np.zeros(len(worst))
        return worst

    def _lost(self, error: Exception) -> Array | None:
        if isinstance(error, FormError):
            return np.array([math.inf])
        if isinstance(error, CallError):
            self.hunt.refused[str(error)] = self.hunt.refused.get(str(error), 0) + 1
        return None

    def _result(self, context: Context, find: Find) -> Result:
        """The judgement of a find as a result, with a witness where it breaks the bound."""
        case = find.trial.case(context)
        try:
            return held(context, ID, case, context.run(case), measures={"ratio": find.ratio})
        except FormError as error:
            return context.result(ID, Outcome.FAILED, str(error), measures={"ratio": find.ratio})
        except CallError as error:
            # the code answers otherwise to the same input
            return context.result(ID, Outcome.BROKEN, f"call raised {error}", measures={"ratio": find.ratio})

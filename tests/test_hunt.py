"""The search for counterexamples: it finds what only few inputs show, and keeps what it has learned."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import normcheck as nc
from normcheck.checks import Context
from normcheck.cli import main
from normcheck.hunt import KEPT, Corpus, Find, corpus_path, hunt
from normcheck.recipes import Row, Trial
from normcheck.variation import fresh, simpler, varied

Values = np.ndarray[Any, np.dtype[Any]]


def _wide(x: Values) -> Values:
    return np.asarray(x, np.float32)


def _finish(n: Values, x: Values, weight: Values, bias: Values | float = 0.0) -> Values:
    with np.errstate(all="ignore"):
        return (n * _wide(weight) + np.asarray(bias, np.float32)).astype(x.dtype)


def _scaled(centred: Values, variance: Values, x: Values, weight: Values, bias: Values) -> Values:
    with np.errstate(all="ignore"):
        return _finish(centred / np.sqrt(variance + np.float32(1e-5)), x, weight, bias)


def sound(x: Values, weight: Values, bias: Values) -> Values:
    """A variance in two passes."""
    centred = _wide(x) - _wide(x).mean(-1, keepdims=True)
    return _scaled(centred, (centred * centred).mean(-1, keepdims=True), x, weight, bias)


def single_pass_variance(x: Values, weight: Values, bias: Values) -> Values:
    """E[x**2] - E[x]**2."""
    mean = _wide(x).mean(-1, keepdims=True)
    return _scaled(_wide(x) - mean, (_wide(x) * _wide(x)).mean(-1, keepdims=True) - mean * mean, x, weight, bias)


def last_element_dropped_at_31_of_32(x: Values, weight: Values, bias: Values) -> Values:
    """The last element does not enter the statistics where D % 32 == 31."""
    width = x.shape[-1]
    if width % 32 != 31:
        return sound(x, weight, bias)
    part = _wide(x)[..., :-1]
    mean = part.sum(-1, keepdims=True) / np.float32(width)
    variance = ((part - mean) ** 2).sum(-1, keepdims=True) / np.float32(width)
    return _scaled(_wide(x) - mean, variance, x, weight, bias)


def shifted_by_the_first_element(x: Values, weight: Values, bias: Values) -> Values:
    """One pass over x - x[0]."""
    moved = _wide(x) - _wide(x)[..., :1]
    mean = moved.mean(-1, keepdims=True)
    return _scaled(moved - mean, (moved * moved).mean(-1, keepdims=True) - mean * mean, x, weight, bias)


def clipped_at_30(x: Values, weight: Values) -> Values:
    """An RMSNorm whose output is clipped."""
    n = _wide(x) / np.sqrt((_wide(x) ** 2).mean(-1, keepdims=True) + np.float32(1e-6))
    return np.clip(n * _wide(weight), -30, 30).astype(x.dtype)


def _implementation(call: Any, dtypes: tuple[str, ...] = ("float32", "bfloat16")) -> nc.Implementation:
    norm = nc.RMSNorm() if call is clipped_at_30 else nc.LayerNorm()
    return nc.Implementation(call, norm, framework="numpy", dtypes=dtypes)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "broken", [single_pass_variance, last_element_dropped_at_31_of_32, shifted_by_the_first_element, clipped_at_30]
)
def test_hidden_faults_are_found_from_nothing(broken: Any, seed: int) -> None:
    """Within two minutes, whatever the seed, with a witness that says what came and what should have."""
    done = hunt(_implementation(broken), minutes=2, seed=seed)
    assert done.found
    assert done.best is not None
    assert done.best.ratio > 1
    assert re.search(r"y\[\d+, \d+\]=.*, but should be .* within .* \[x: ", done.result.message)
    assert done.result.witness is not None


def test_witness_of_a_width_has_that_width() -> None:
    """What breaks at D % 32 == 31 alone is shown at 31 elements, without weights, bias or further rows."""
    done = hunt(_implementation(last_element_dropped_at_31_of_32), minutes=2)
    assert done.best is not None
    trial = done.best.trial
    assert (trial.width, len(trial.rows), trial.weight, trial.bias) == (31, 1, None, None)


def test_outlier_is_found_where_it_hurts() -> None:
    """A variance shifted by the first element is broken by rows whose first element is the outlier."""
    done = hunt(_implementation(shifted_by_the_first_element, ("float32",)), minutes=2)
    assert done.best is not None
    trial = done.best.trial
    row = np.abs(trial.rows[0].values(trial.width, Context(_implementation(sound), "float32").x_format))
    assert row.argmax() == 0
    assert row[0] > 4 * np.median(row)


def test_sound_norm_stays_below_the_bound() -> None:
    """A sound norm is searched until the time is over, and comes closer to the bound than a first guess."""
    seen: list[float] = []
    done = hunt(_implementation(sound), minutes=0.03, progress=lambda now: seen.append(now.best.ratio))
    assert not done.found
    assert done.seconds >= 0.03 * 60
    assert seen == sorted(seen)
    assert seen[0] < seen[-1] <= 1


def test_corpus_is_gone_on_from(tmp_path: Path) -> None:
    """A search begins where the one before ended: a counterexample at once, the best ratio never less."""
    path = tmp_path / "corpus.json"
    implementation = _implementation(single_pass_variance)
    first = hunt(implementation, minutes=2, corpus=Corpus.read(path))
    kept = Corpus.read(path)
    assert kept.runs == 1
    assert first.best in kept.finds
    again = hunt(implementation, minutes=2, seed=9, corpus=kept)
    assert again.found
    assert again.calls < first.calls
    assert Corpus.read(path).runs == 2


def test_corpus_is_useful_to_the_mended_code(tmp_path: Path) -> None:
    """Counterexamples of the past are tried again, and found to pass where the code was mended."""
    corpus = Corpus(tmp_path / "corpus.json")
    hunt(_implementation(single_pass_variance), minutes=2, corpus=corpus)
    mended = hunt(_implementation(sound), minutes=0.01, corpus=Corpus.read(tmp_path / "corpus.json"))
    assert not mended.found


def test_corpus_keeps_other_dtypes(tmp_path: Path) -> None:
    """A search in one dtype leaves what was kept of another."""
    path = tmp_path / "corpus.json"
    kept = Find("bfloat16", Trial(3), 0.5)
    hunt(_implementation(sound, ("float32",)), minutes=0.005, corpus=Corpus(path, finds=[kept]))
    assert kept in Corpus.read(path).finds


def test_corpus_is_bounded() -> None:
    """Of each dtype the best are kept, each trial once."""
    corpus = Corpus()
    for width in [*range(1, 2 * KEPT), 1]:
        corpus.add(Find("float32", Trial(width), width / 1000))
    assert [find.trial.width for find in corpus.finds] == list(range(2 * KEPT - 1, KEPT - 1, -1))


@pytest.mark.parametrize("text", ["{", '{"runs": 1}', '{"runs": 1, "finds": [{"dtype": "float32", "ratio": "1", "trial": {}}]}'])
def test_damaged_corpus_is_refused(tmp_path: Path, text: str) -> None:
    """A file that is no corpus is named, and left as it is."""
    path = tmp_path / "corpus.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"corpus\.json is no corpus: .*; remove it to start anew"):
        Corpus.read(path)
    assert path.read_text(encoding="utf-8") == text


def test_corpora_of_other_claims_are_apart(tmp_path: Path) -> None:
    """Another eps is another corpus."""
    one = _implementation(sound)
    other = nc.Implementation(sound, nc.LayerNorm(eps=1e-3), framework="numpy")
    assert corpus_path(one, tmp_path) == corpus_path(one, tmp_path)
    assert corpus_path(one, tmp_path) != corpus_path(other, tmp_path)
    assert corpus_path(one).parent.name == "hunt"


def test_interrupt_leaves_corpus_and_result(tmp_path: Path) -> None:
    """Ctrl-C ends the search, which tells how far it came and keeps it."""
    calls = iter(range(10**6))

    def interrupted(x: Values, weight: Values, bias: Values) -> Values:
        if next(calls) == 200:
            raise KeyboardInterrupt
        return sound(x, weight, bias)

    path = tmp_path / "corpus.json"
    done = hunt(_implementation(interrupted), minutes=2, corpus=Corpus(path))
    assert done.interrupted
    assert done.best is not None
    assert done.best in Corpus.read(path).finds


def test_refusals_are_counted() -> None:
    """What the code raises on widths that it does not take is told, and is no counterexample."""

    def even(x: Values, weight: Values, bias: Values) -> Values:
        if x.shape[-1] % 2:
            raise NotImplementedError("odd width")
        return sound(x, weight, bias)

    done = hunt(_implementation(even), minutes=0.02)
    assert not done.found
    ((said, count),) = done.refused.items()
    assert re.fullmatch(r"NotImplementedError: odd width \(test_hunt.py, line \d+\)", said)
    assert count > 1
    assert "calls raised NotImplementedError: odd width" in done.text


def test_wrong_dtype_is_a_counterexample() -> None:
    """An output that has another dtype than promised ends the search."""
    done = hunt(_implementation(lambda x, w, b: _wide(sound(x, w, b)), ("bfloat16",)), minutes=2)
    assert done.found
    assert math.isinf(done.best.ratio)
    assert "dtype=float32, but should be bfloat16" in done.result.message


def test_time_must_be_given() -> None:
    """A search without time is refused."""
    with pytest.raises(ValueError, match=r"minutes=0, but should be above 0"):
        hunt(_implementation(sound), minutes=0)


@pytest.mark.parametrize("seed", range(20))
def test_moves_keep_to_what_is_taken(seed: int) -> None:
    """Fresh and varied trials have widths that the implementation takes, and make rows."""
    implementation = nc.Implementation(sound, nc.LayerNorm(), framework="numpy", widths=range(5, 90))
    context = Context(implementation, "float32")
    rng = np.random.default_rng(seed)
    trial = fresh(rng, context, 2**12)
    for _ in range(5):
        assert 5 <= trial.width < 90
        assert np.isfinite(trial.case(context).rows).all()
        trial = varied(rng, trial, context, 2**12)


def test_simpler_trials_come_to_an_end() -> None:
    """Taking the first simpler trial again and again ends at a row of zeros of one element."""
    edits = ((500, 3.3e7), (-1, 2.0))
    trial = Trial(777, (Row("outlier", 5, 2, 1.5, edits), Row((1.5, 2.5))), rank=3, weight=4, gain=2, bias=1)
    for _ in range(1000):
        trial = next(simpler(trial), None) or trial
    assert trial == Trial(1)


MODULE = """
import numpy as np

def rms(x, weight):
    wide = x.astype(np.float32)
    n = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + np.float32(1e-6))
    return (n * weight.astype(np.float32)).astype(x.dtype)

def clipped(x, weight):
    return np.clip(rms(x, weight), x.dtype.type(-30), x.dtype.type(30))

def refuses(x, weight):
    raise RuntimeError("never")
"""


def _command(tmp_path: Path, name: str, *options: str) -> Any:
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    common = ["--norm", "rms_norm", "--framework", "numpy", "--dtype", "float32", "--corpus", str(tmp_path / "kept")]
    return CliRunner().invoke(main, ["hunt", f"{tmp_path / 'mine.py'}:{name}", *common, *options])


def test_command_tells_counterexample_and_corpus(tmp_path: Path) -> None:
    """The exit code is 1; message, worst input, snippet and the corpus's place are shown."""
    found = _command(tmp_path, "clipped", "--minutes", "2")
    assert found.exit_code == 1
    for text in ("Worst input, at ", " of the bound: float32, rows of ", "Counterexample: y[", "import numpy as np", "Corpus: "):
        assert text in found.stdout
    (kept,) = (tmp_path / "kept").iterdir()
    assert json.loads(kept.read_text(encoding="utf-8"))["runs"] == 1


def test_command_ends_well_without_counterexample(tmp_path: Path) -> None:
    """The exit code is 0 where the search found nothing; one sentence says so, with the worst ratio, and no Python."""
    done = _command(tmp_path, "rms", "--minutes", "0.02")
    assert done.exit_code == 0, done.output
    first, second, *_ = done.stdout.splitlines()
    assert re.match(r"No counterexample in \d+ s, \d+ calls and \d+ rows: the worst error is at 0\.\d+ of the bound \(", first)
    assert re.match(r"Worst input, at 0\.\d+ of the bound: float32, rows of \d+ elements \(.*\), (weights of 1|random)", second)
    assert not re.search(r"Trial\(|Row\(|None", done.stdout)
    assert re.search(r"at 0\.\d+ of the bound \(float32, rows of \d+\)", done.stdout)


def test_command_says_that_nothing_was_judged(tmp_path: Path) -> None:
    """The exit code is 3 where no call came back."""
    done = _command(tmp_path, "refuses", "--minutes", "0.01")
    assert done.exit_code == 3
    assert "calls raised RuntimeError: never (mine.py, line " in done.stdout
    assert "no call came back" in done.stdout
    assert "Nothing was judged" in done.stderr


def test_command_refuses_a_damaged_corpus(tmp_path: Path) -> None:
    """The exit code is 2, and the file is named."""
    _command(tmp_path, "rms", "--minutes", "0.01")
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_text("[]", encoding="utf-8")
    done = _command(tmp_path, "rms", "--minutes", "0.01")
    assert done.exit_code == 2
    assert f"{kept.name} is no corpus" in " ".join(done.stderr.split())


def test_interrupted_command_exits_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C the outcome is told, the corpus is there, and the exit code is 130."""
    calls = iter(range(10**6))

    def interrupted(x: Values, weight: Values) -> Values:
        if next(calls) == 50:
            raise KeyboardInterrupt
        return clipped_at_30(x, weight)

    module = type(sys)("interrupting")
    module.call = interrupted
    monkeypatch.setitem(sys.modules, "interrupting", module)
    options = ["--norm", "rms_norm", "--framework", "numpy", "--minutes", "2", "--keep-going", "--corpus", str(tmp_path)]
    done = CliRunner().invoke(main, ["hunt", "interrupting:call", *options])
    assert done.exit_code == 130
    assert "Corpus: " in done.stdout
    assert list(tmp_path.iterdir())

"""Audits: what is planned, what is kept, and that nothing measured is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normcheck as nc
from normcheck.audit import GRADES, Interrupted, plan
from normcheck.born import source
from normcheck.implementations import implementations
from normcheck.results import Outcome, Result

QUICK = {"profile": "quick", "framework": "numpy", "dtypes": ("float32",)}


def rms(x: Any, weight: Any) -> Any:
    """A sound RMSNorm."""
    h = x.astype(np.float32)
    return (h / np.sqrt((h * h).mean(-1, keepdims=True) + np.float32(1e-6)) * weight.astype(np.float32)).astype(x.dtype)


def without_eps(x: Any, weight: Any) -> Any:
    """RMSNorm that forgot eps."""
    with np.errstate(all="ignore"):
        return (x / np.sqrt((x * x).mean(-1, keepdims=True)) * weight).astype(x.dtype)


def stripped(results: tuple[Result, ...]) -> list[dict[str, Any]]:
    """Results without their times."""
    return [{**result.to_dict(), "seconds": 0} for result in results]


def test_a_sound_norm_passes_and_has_a_grade() -> None:
    """`check` of a sound function passes, with grade A+ in every dtype that was asked for."""
    audit = nc.check(rms, nc.RMSNorm(eps=1e-6), framework="numpy", dtypes=("float32", "bfloat16"), profile="quick")
    assert audit.passed
    assert audit.failures == ()
    assert audit.grades == {("rms", "float32"): "A+", ("rms", "bfloat16"): "A+"}
    assert {r.implementation for r in audit.results} == {"rms"}


def test_a_faulty_norm_fails() -> None:
    """`check` of a function without eps fails with grade F."""
    audit = nc.check(without_eps, nc.RMSNorm(eps=1e-6), **QUICK)
    assert not audit.passed
    assert audit.grades == {("without_eps", "float32"): "F"}
    assert {r.outcome for r in audit.failures} <= {Outcome.FAILED}


def test_three_dtypes_unless_others_are_asked_for() -> None:
    """Without dtypes= the usual three are audited."""
    audit = nc.check(rms, nc.RMSNorm(eps=1e-6), framework="numpy", profile="quick", checks=["output-form"])
    assert list(dict.fromkeys(r.dtype for r in audit.results)) == ["bfloat16", "float16", "float32"]


def test_results_depend_on_the_seed_alone() -> None:
    """The same seed gives the same results with one worker or two; another seed gives others."""
    numpy_norms = [i for i in implementations("numpy") if "LayerNorm" in repr(i.norm) or "RMSNorm" in repr(i.norm)]
    options: dict[str, Any] = {"profile": "quick", "dtypes": ["float32"], "checks": ["accuracy", "shift-invariance"]}
    one = nc.audit(numpy_norms, **options, seed=3)
    two = nc.audit(numpy_norms, **options, seed=3, workers=2)
    other = nc.audit(numpy_norms, **options, seed=4)
    assert stripped(one.results) == stripped(two.results)
    assert stripped(one.results) != stripped(other.results)


def test_an_audit_survives_its_file(tmp_path: Path) -> None:
    """Written and read again an audit is what it was, numbers that JSON lacks included."""
    audit = nc.check(without_eps, nc.RMSNorm(eps=1e-6), **QUICK)
    assert any(r.error == float("inf") for r in audit.results)
    again = nc.Audit.read(audit.write(tmp_path / "audit.json"))
    assert again.results == audit.results
    assert again.born == audit.born
    assert again.grades == audit.grades


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "holds no JSON"),
        ("[]", "holds no audit"),
        ("{}", "^schema is missing$"),
        ('{"schema": "x"}', "^schema='x', but should be a whole number$"),
        ('{"schema": true}', "^schema=True, but should be a whole number$"),
        ('{"schema": 2, "results": []}', "^born is missing$"),
        ('{"schema": 2, "results": [], "born": {}}', "^times is missing$"),
        (
            '{"schema": 2, "results": [], "born": {}, "times": {"utc": "", "seconds": [1]}}',
            r"^len\(times.seconds\)=1, but should be 0$",
        ),
        ('{"schema": 2, "results": {}, "born": {}, "times": {}}', "^results={}, but should be a list$"),
        ('{"schema": 1, "results": [[]]}', r"^results\[0\]=\[\], but should be a mapping$"),
        ('{"schema": 1, "results": [], "born": {"versions": []}}', r"^born.versions=\[\], but should be a mapping$"),
        ('{"schema": 1, "results": [], "born": {"shard": "x"}}', "^born.shard='x', but should be such as 3/8$"),
        ("[" * 200_000, "holds no audit: it is too deep|holds no JSON"),
        ('{"schema": ' + "1" * 5000 + "}", "holds no JSON: Exceeds the limit"),
        ("\udcff", "holds no JSON: 'utf-8' codec"),
        ('{"schema": 99, "results": []}', "schema=99, but should be at most 2"),
    ],
)
def test_files_that_hold_no_audit_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """What is wrong with the file is said."""
    path = tmp_path / "audit.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=message):
        nc.Audit.read(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"error": "1"}, "error='1', but should be a number"),
        ({"error": 10**400}, "error=1000.*000, but should be a number"),
        ({"tolerance": True}, "tolerance=True, but should be a number"),
        ({"check": 3}, "check=3, but should be text"),
        ({"outcome": "fine"}, "outcome='fine', but should be one of passed, failed, "),
        ({"shape": [1.5]}, r"shape\[0\]=1.5, but should be a whole number"),
        ({"terms": [1]}, r"terms=\[1\], but should be a mapping"),
        ({"measures": {"ulp": "big"}}, "measures.ulp='big', but should be a number"),
        ({"measures": {"grade": 9}}, "measures.grade=9, but should be a grade from -1 to 3"),
        ({"series": {"measured": [[1]]}}, r"series.measured\[0\]=\[1\], but should be a pair of numbers"),
        ({"witness": {"inputs": "x"}}, "witness.snippet is missing"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_results_of_the_wrong_type_are_refused(changed: dict[str, Any], message: str) -> None:
    """The first field that is not what it should be is named, alone and inside an audit; what may be there is taken."""
    sound = {"check": "c", "implementation": "i", "norm": "n", "dtype": "float32", "outcome": "passed"}
    words = {"error": "inf", "tolerance": None, "measures": {"ulp": "nan", "grade": 1.0}, "shape": [2, 3], "added later": [1]}
    assert Result.from_dict({**sound, **words}).error == float("inf")
    with pytest.raises(ValueError, match=f"^{message}"):
        Result.from_dict({**sound, **changed})
    with pytest.raises(ValueError, match=rf"^results\[1\].{message}"):
        nc.Audit.from_dict({"schema": 1, "results": [sound, {**sound, **changed}]})


def test_where_it_was_born() -> None:
    """Versions, machine, seed, profile, threads and time are recorded; no path and no host name."""
    born = nc.check(rms, nc.RMSNorm(eps=1e-6), **QUICK, checks=["output-form"], seed=5).born
    assert born["seed"] == 5
    assert born["profile"] == "quick"
    assert born["threads"] == 1
    assert born["versions"]["numpy"] == np.__version__
    assert {"utc", "machine", "python", "normcheck", "commit", "dirty", "schema", "command"} <= set(born)
    assert str(Path.home()) not in json.dumps(born)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_normcheck_has_a_commit_of_its_own(tmp_path: Path) -> None:
    """It is the last one that has changed the package; a change of it that is not committed is told, and others are not."""

    def git(*words: str) -> str:
        given = [shutil.which("git") or "", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=n@example.org", *words]
        return subprocess.run(given, capture_output=True, text=True, check=True).stdout.strip()

    def found() -> str:
        source.cache_clear()
        return source(package)

    package = tmp_path / "package"
    package.mkdir()
    assert found() == ""
    git("init", "-q")
    (package / "a.py").write_text("", encoding="utf-8")
    git("add", ".")
    assert found() == ""
    git("commit", "-q", "-m", "one")
    first = git("rev-parse", "HEAD")
    (tmp_path / "notes").write_text("", encoding="utf-8")
    assert found() == first
    git("add", ".")
    git("commit", "-q", "-m", "two")
    assert found() == first
    (package / "a.py").write_text("a = 1", encoding="utf-8")
    assert found() == f"{first}-dirty"


def test_the_journal_holds_the_plan_and_every_result(tmp_path: Path) -> None:
    """The plan comes first, then a line for each task as it ends, with its name and its results."""
    journal = tmp_path / "journal.jsonl"
    audit = nc.check(rms, nc.RMSNorm(eps=1e-6), **QUICK, journal=journal)
    header, *lines = map(json.loads, journal.read_text(encoding="utf-8").splitlines())
    assert [line["task"][3] for line in lines] == header["plan"][0][3]
    assert [Result.from_dict(result) for line in lines for result in line["results"]] == list(audit.results)


def test_times_stand_apart(tmp_path: Path) -> None:
    """Two runs of one audit give the same file but for what stands under times."""
    texts = []
    for name in ("one", "two"):
        path = nc.check(rms, nc.RMSNorm(eps=1e-6), **QUICK, checks=["accuracy"]).write(tmp_path / f"{name}.json")
        data = json.loads(path.read_text(encoding="utf-8"))
        times = data.pop("times")
        assert len(times["seconds"]) == len(data["results"])
        assert times["utc"]
        texts.append(json.dumps(data))
    assert texts[0] == texts[1]


def test_an_interrupt_hands_over_what_was_measured() -> None:
    """Ctrl-C raises Interrupted, a KeyboardInterrupt that carries the partial audit."""

    def progress(done: int, total: int, label: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="interrupted") as caught:
        nc.check(rms, nc.RMSNorm(eps=1e-6), **QUICK, progress=progress)
    partial = caught.value.audit
    assert isinstance(caught.value, KeyboardInterrupt)
    assert len({r.check for r in partial.results}) == 2
    assert partial.born["profile"] == "quick"


def test_progress_counts_to_the_end() -> None:
    """Each finished task is reported once, up to the number of tasks."""
    seen: list[tuple[int, int]] = []
    nc.check(rms, nc.RMSNorm(eps=1e-6), **QUICK, progress=lambda done, total, label: seen.append((done, total)))
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert {total for _, total in seen} == {len(seen)}


def test_a_failed_root_skips_what_depends_on_it() -> None:
    """A wrong output shape is one failure; the other checks are skipped and say why."""
    audit = nc.check(lambda x, weight: x[..., :1], nc.RMSNorm(), **QUICK, name="cut")
    assert [r.check for r in audit.failures] == ["output-form"]
    others = [r for r in audit.results if r.check != "output-form"]
    assert {r.outcome for r in others} == {Outcome.SKIPPED}
    assert any(r.message == "output-form failed" for r in others)


def test_a_missing_device_is_a_skip_with_its_reason() -> None:
    """Asking for a device that is not there gives skipped results that name it, and no failure."""
    audit = nc.check(rms, nc.RMSNorm(), **QUICK, devices=["cuda"])
    assert audit.passed
    assert {r.outcome for r in audit.results} == {Outcome.SKIPPED}
    assert all("device='cuda'" in r.message for r in audit.results)


def test_both_modes_of_a_norm_with_running_statistics() -> None:
    """A BatchNorm is judged in training and in evaluation, under two names."""

    def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float) -> Any:
        axes = tuple(a for a in range(x.ndim) if a != 1)
        shape = [-1 if a == 1 else 1 for a in range(x.ndim)]
        if training:
            mean = x.mean(axes)
            var = ((x - mean.reshape(shape)) ** 2).mean(axes)
        r = 1 / np.sqrt(var + np.float32(1e-5))
        return (x - mean.reshape(shape)) * r.reshape(shape) * weight.reshape(shape) + bias.reshape(shape)

    audit = nc.check(batch_norm, nc.BatchNorm(), **QUICK, checks=["accuracy"])
    assert audit.passed
    assert set(audit.grades) == {("batch_norm[train]", "float32"), ("batch_norm[eval]", "float32")}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"profile": "fast"}, ValueError, "profile='fast', but should be one of quick, standard, deep"),
        (
            {"checks": ["acuracy"]},
            ValueError,
            r"check='acuracy' \(did you mean accuracy\?\), but should be one of the \d+ known: see `normcheck list checks`",
        ),
        ({"profle": "quick"}, TypeError, "no option 'profle'; did you mean 'profile'"),
        ({"dtypes": ("float31",)}, ValueError, "dtypes='float31', but should be one of .*float32"),
    ],
)
def test_unknown_options_name_the_nearest(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """A misspelt option or value is refused, with what was meant."""
    with pytest.raises(error, match=message):
        nc.check(rms, nc.RMSNorm(), framework="numpy", **options)


def test_names_differ() -> None:
    """Two implementations of one name could not be told apart in a report."""
    twice = [nc.Implementation(rms, nc.RMSNorm(), framework="numpy", name="one") for _ in range(2)]
    with pytest.raises(ValueError, match="two implementations are named 'one'"):
        nc.audit(twice, profile="quick")


def test_the_plan_keeps_what_shares_references_together() -> None:
    """Implementations of one norm and dtype follow each other."""
    norm, other = nc.RMSNorm(eps=1e-6), nc.LayerNorm()
    made = [
        nc.Implementation(rms, n, framework="numpy", name=name, dtypes=("float32", "float16"))
        for name, n in (("a", norm), ("b", other), ("c", norm))
    ]
    order = [(unit.context.norm, unit.context.dtype) for unit in plan(made)]
    assert all(order.count(key) == 1 or order.index(key) + 1 == len(order) - 1 - order[::-1].index(key) for key in order)


def test_the_grade_is_that_of_the_worst_case() -> None:
    """One result of grade F outweighs the rest; without graded results there is no grade."""
    common: dict[str, Any] = {"implementation": "i", "norm": "n", "check": "accuracy", "outcome": Outcome.PASSED}
    graded = [Result(dtype="float32", measures={"grade": float(g)}, **common) for g in (0, 3, 1)]
    audit = nc.Audit((*graded, Result(dtype="float16", **common)))
    assert audit.grades == {("i", "float32"): GRADES[3], ("i", "float16"): "-"}


def test_a_batch_norm_may_write_its_statistics_or_take_none() -> None:
    """In training what returns y alone may update running statistics in place; code that takes none is judged without them."""

    def channels(x: Any, values: Any) -> Any:
        return values.reshape([-1 if a == 1 else 1 for a in range(x.ndim)])

    def plain(x: Any, weight: Any, bias: Any) -> Any:
        axes = tuple(a for a in range(x.ndim) if a != 1)
        c = x - x.mean(axes, keepdims=True)
        r = 1 / np.sqrt((c * c).mean(axes, keepdims=True) + np.float32(1e-5))
        return c * r * channels(x, weight) + channels(x, bias)

    def in_place(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float) -> Any:
        axes = tuple(a for a in range(x.ndim) if a != 1)
        if not training:
            r = 1 / np.sqrt(var + np.float32(1e-5))
            return (x - channels(x, mean)) * channels(x, r) * channels(x, weight) + channels(x, bias)
        mean += momentum * (x.mean(axes) - mean)
        return plain(x, weight, bias)

    norm = nc.BatchNorm()
    taken = nc.check(in_place, norm, **QUICK, checks=["accuracy", "inputs-unchanged"])
    assert taken.passed, [r.message for r in taken.failures]
    absent = nc.check(plain, norm, **QUICK, arguments=("x", "weight", "bias"), training=True)
    assert not [r.message for r in absent.results if r.outcome is Outcome.BROKEN]


def test_an_interrupted_audit_says_so() -> None:
    """A partial audit is never reported as a pass of the whole."""
    from normcheck.reporters import summary

    def progress(done: int, total: int, label: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        nc.check(rms, nc.RMSNorm(eps=1e-6), **QUICK, progress=progress)
    partial = caught.value.audit
    assert partial.born["interrupted"].startswith("3 of ")
    assert summary.verdict(partial).startswith("Interrupted: 3 of ")


def test_nothing_judged_is_no_pass() -> None:
    """An audit without results does not count as passed, and what is no implementation is refused."""
    assert not nc.Audit(()).passed
    assert repr(nc.Audit(())) == "<Audit: 0 results, 0 failures>"
    with pytest.raises(ValueError, match="implementation=3, but should be an Implementation"):
        nc.audit([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="norm='layer_norm', but should be a norm such as"):
        nc.reference("layer_norm", np.ones((1, 4)))  # type: ignore[arg-type]

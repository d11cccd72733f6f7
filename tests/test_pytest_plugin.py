"""The plugin, in projects of its own: items, options, messages, reports, and how little it costs."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import normcheck
from normcheck import pytest_plugin, reporters
from normcheck.checks import checks
from normcheck.implementations import targets

pytest_plugins = ["pytester"]

INSTALLED = bool(entry_points(group="pytest11", name="normcheck"))
PLUGIN = () if INSTALLED else ("-p", "normcheck.pytest_plugin")
QUIET = (*PLUGIN, "-p", "no:randomly", "-p", "no:benchmark", "-p", "no:cacheprovider", "-W", "error")
NORMS = """
import numpy as np

def _rms(x, weight, eps):
    wide = x.astype(np.float32)
    scale = np.sqrt(np.square(wide).mean(axis=-1, keepdims=True, dtype=np.float32) + np.float32(eps))
    return (wide / scale * weight.astype(np.float32)).astype(x.dtype)

def sound(x, weight):
    return _rms(x, weight, 1e-6)

def without_eps(x, weight):
    return _rms(x, weight, 0.0)

def with_another_eps(x, weight):
    return _rms(x, weight, 1e-3)

def wrong_shape(x, weight):
    return x[..., :1]

def raises(x, weight):
    return x["no such element"]
"""
TEST = """
import normcheck as nc
import norms

def made(name, **options):
    options = {{"dtypes": ("float32",), **options}}
    return nc.Implementation(getattr(norms, name), nc.RMSNorm(eps=1e-6), framework="numpy", validates=False, **options)

@nc.parametrize([{implementations}], checks=("output-form", "accuracy", "epsilon-placement", "overflow"){options})
def test_norms(check):
    check()
"""
TABLE = """
[tool.normcheck]
implementations = ["norms:sound", "norms:with_another_eps"]
norm = "rms_norm"
eps = 1e-6
framework = "numpy"
dtypes = ["float32"]
checks = ["output-form", "epsilon-placement"]
"""


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """What an inner session would load is loaded before, since the modules that it adds are forgotten after it."""
    checks()
    reporters.suffixes()
    for name in ("testing", "testing.collect", "testing.record", "reporters.github"):
        importlib.import_module(f"normcheck.{name}")
    for name in ("torch", "matplotlib.pyplot"):
        pytest.importorskip(name)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with the norms in it."""
    targets._loaded.cache_clear()
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(norms=NORMS)
    return pytester


def with_test(project: pytest.Pytester, *names: str, options: str = "", **settings: Any) -> None:
    """Write the test of these norms."""
    arguments = "".join(f", {key}={value!r}" for key, value in settings.items())
    made = ", ".join(f"made({name!r}{arguments})" for name in names)
    project.makepyfile(test_norms=TEST.format(implementations=made, options=options))


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """A session in this process."""
    return project.runpytest_inprocess(*QUIET[len(PLUGIN) :], *arguments, plugins=() if INSTALLED else (pytest_plugin,))


def test_items_have_readable_names(project: pytest.Pytester) -> None:
    """There is one item for each implementation, check and dtype, whose id says which."""
    with_test(project, "sound", "without_eps", dtypes=("float32", "bfloat16"))
    lines = run(project, "--collect-only", "-q").outlines
    names = [line.partition("[")[2].removesuffix("]") for line in lines if "[" in line]
    parts = (("sound", "without_eps"), ("output-form", "accuracy", "epsilon-placement", "overflow"), ("float32", "bfloat16"))
    assert sorted(names) == sorted(map("-".join, itertools.product(*parts)))


def test_sound_passes_and_faulty_fails(project: pytest.Pytester) -> None:
    """Only the faulty norm fails, in the checks that see it; a warning passes."""
    with_test(project, "sound", "with_another_eps")
    run(project).assert_outcomes(passed=6, failed=2)


def test_a_failure_is_told_in_one_message(project: pytest.Pytester) -> None:
    """It has the house grammar, the worst element, the terms of the tolerance and the page, and no frame of normcheck."""
    with_test(project, "with_another_eps")
    text = str(run(project, "-k", "accuracy").stdout)
    assert re.search(r"(?m)^y\[\d, \d+\]=\S+, but should be \S+ within \S+ \[x: float32\[\d, \d+\], weight: float32\]", text)
    assert re.search(r"worst element: got -?0x\S+ \(\S+\), expected -?0x\S+ \(\S+\)", text)
    assert re.search(r"(?m)^tolerance: \S+, the sum of\n    \S+  (rounding to float32|variance, root and product)", text)
    assert "normcheck explain accuracy" in text
    assert "Traceback" not in text
    assert not re.search(r"normcheck/\S+\.py:\d+", text)


def test_a_tolerance_that_is_no_bound_of_accuracy_is_explained(project: pytest.Pytester) -> None:
    """Other checks say where their tolerance comes from in the words of their page."""
    project.makepyfile(
        test_norms="""
        import normcheck as nc, norms
        one = nc.Implementation(norms.with_another_eps, nc.RMSNorm(eps=1e-6), framework="numpy")
        @nc.parametrize(one, checks=["scale-invariance"])
        def test_norms(check): check()
        """
    )
    text = str(run(project).stdout)
    section = checks()["scale-invariance"].doc.partition("Tolerance\n---------\n")[2].partition("\n\n")[0]
    assert all(line.strip() in text for line in section.splitlines())


@pytest.mark.parametrize(
    ("name", "kind"), [("with_another_eps", "accuracy"), ("without_eps", "epsilon-placement"), ("raises", "output-form")]
)
def test_the_snippet_fails_when_it_is_pasted(project: pytest.Pytester, name: str, kind: str) -> None:
    """What stands between the marks is a script without normcheck that fails, and passes once the code is mended."""
    with_test(project, name)
    text = str(run(project, "-k", kind).stdout)
    source = re.search(r"(?ms)^# to see it without normcheck, paste from here\n(.*?)^# to here$", text)
    assert source is not None
    script = project.makepyfile(pasted=source[1])
    assert "normcheck" not in script.read_text()
    beside = {**os.environ, "PYTHONPATH": str(project.path)}
    pasted = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=beside)
    assert pasted.returncode == 1
    assert "ModuleNotFoundError" not in pasted.stderr
    Path("norms.py").write_text(NORMS + f"\n{name} = sound\n", encoding="utf-8")
    pasted = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=beside)
    assert pasted.returncode == 0, pasted.stderr


def test_an_exception_of_the_code_is_shown_as_its_own(project: pytest.Pytester) -> None:
    """The traceback begins in the user's file."""
    with_test(project, "raises")
    text = str(run(project, "-k", "output-form").stdout)
    assert 'return x["no such element"]' in text
    assert "call raised" in text
    assert "normcheck/implementations" not in text


def test_one_root_cause_is_one_failure(project: pytest.Pytester) -> None:
    """Where the output has no right form, what depends on it is skipped, also if it is asked for alone."""
    with_test(project, "wrong_shape")
    run(project).assert_outcomes(failed=1, skipped=3)
    alone = run(project, "-k", "accuracy", "-rs")
    alone.assert_outcomes(skipped=1, deselected=3)
    alone.stdout.fnmatch_lines(["*output-form failed"])


def test_expected_failures_are_xfailed_with_their_reason(project: pytest.Pytester) -> None:
    """They are named by check or by item, and the summary counts them as expected."""
    options = ", expected_failures={'accuracy': 'eps is 1e-3', 'with_another_eps-epsilon-*': 'eps is 1e-3, too'}"
    with_test(project, "with_another_eps", options=options)
    result = run(project, "-rx")
    result.assert_outcomes(passed=2, xfailed=2)
    result.stdout.fnmatch_lines(["*eps is 1e-3, too*"])
    assert result.ret == 0


def test_stale_expectations_fail_and_are_told(project: pytest.Pytester) -> None:
    """An expected failure that passes fails where it is strict, and is told in the summary in any case."""
    expected = ", expected_failures={'accuracy': 'wrong until 2.0'}"
    with_test(project, "sound", options=expected)
    strict = run(project)
    strict.assert_outcomes(passed=3, failed=1)
    strict.stdout.fnmatch_lines(["stale: sound-accuracy-float32: wrong until 2.0"])
    with_test(project, "sound", options=f"{expected}, strict=False")
    loose = run(project)
    loose.assert_outcomes(passed=3, xpassed=1)
    loose.stdout.fnmatch_lines(["stale: sound-accuracy-float32: wrong until 2.0"])


def test_options_take_part(project: pytest.Pytester) -> None:
    """Checks and dtypes are limited, and profile and seed replaced, by options of pytest."""
    with_test(project, "sound", dtypes=("float32", "float16"))
    chosen = ("--normcheck-check", "accuracy", "--normcheck-dtype", "float16", "--normcheck-seed", "3")
    result = run(project, *chosen, "--normcheck-profile", "standard", "--normcheck-report", "report")
    result.assert_outcomes(passed=1)
    born = json.loads(Path("report/audit.json").read_text(encoding="utf-8"))["born"]
    assert (born["seed"], born["profile"]) == (3, "standard")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("check", "acuracy", "did you mean accuracy"), ("dtype", "bf16", "did you mean bfloat16"), ("profile", "fast", "choice")],
)
def test_options_that_are_not_known_are_refused(project: pytest.Pytester, option: str, value: str, message: str) -> None:
    """The session does not start, and the message names the nearest."""
    with_test(project, "sound")
    result = run(project, f"--normcheck-{option}", value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}*"])


def test_report_folder_and_summary(project: pytest.Pytester) -> None:
    """The report is that of ``normcheck audit``; the terminal shows grades and warnings."""
    with_test(project, "sound", "with_another_eps")
    result = run(project, "--normcheck-report", "out/report")
    audit = normcheck.Audit.read("out/report/audit.json")
    assert {r.check for r in audit.results} == {"output-form", "accuracy", "epsilon-placement", "overflow"}
    assert audit.grades[("with_another_eps", "float32")] == "F"
    assert "with_another_eps" in Path("out/report/report.md").read_text(encoding="utf-8")
    told = ["*= normcheck =*", "implementation*float32", "sound*A*", "with_another_eps*F", "warned: overflow: *"]
    result.stdout.fnmatch_lines(told)


def test_summary_of_a_github_job(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where GitHub asks for it, verdict, grades and findings are added to the summary of the job."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_text("before\n", encoding="utf-8")
    with_test(project, "with_another_eps")
    run(project)
    text = Path("summary.md").read_text(encoding="utf-8")
    assert text.startswith("before\n## normcheck\n")
    assert "| `with_another_eps` | F |" in text
    assert "| failed | accuracy |" in text


def test_items_are_marked(project: pytest.Pytester) -> None:
    """``-m normcheck`` selects them, and the marker is known."""
    with_test(project, "sound")
    project.makepyfile(test_other="def test_other(): pass")
    run(project, "-m", "normcheck", "--strict-markers").assert_outcomes(passed=4, deselected=1)
    run(project, "-m", "not normcheck").assert_outcomes(passed=1, deselected=4)


def test_a_project_without_test_code(project: pytest.Pytester) -> None:
    """``pytest --normcheck`` collects what the table names, whatever else is collected; each item can be named alone."""
    project.makepyprojecttoml(TABLE)
    run(project).assert_outcomes()
    run(project, "--normcheck").assert_outcomes(passed=3, failed=1)
    run(project, "--normcheck", "pyproject.toml::with_another_eps-epsilon-placement-float32").assert_outcomes(failed=1)
    project.mkdir("tests").joinpath("test_other.py").write_text("def test_other(): pass", encoding="utf-8")
    run(project, "--normcheck", "tests").assert_outcomes(passed=4, failed=1)


def test_a_project_is_found_from_outside(project: pytest.Pytester) -> None:
    """The table above what is collected counts where pytest's root folder has none; without any, the session does not start."""
    inner = project.mkdir("inner")
    inner.joinpath("pyproject.toml").write_text(TABLE, encoding="utf-8")
    inner.joinpath("test_other.py").write_text("def test_other(): pass", encoding="utf-8")
    run(project, "--normcheck", "inner/test_other.py").assert_outcomes(passed=4, failed=1)
    result = run(project, "--normcheck")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--normcheck needs a table [[]tool.normcheck], but there is none in *pyproject.toml"])


def test_expected_failures_of_a_table(project: pytest.Pytester) -> None:
    """They are xfailed as those of a test are."""
    project.makepyprojecttoml(TABLE + 'expected-failures = {"with_another_eps-epsilon-*" = "eps is 1e-3"}\n')
    run(project, "--normcheck").assert_outcomes(passed=3, xfailed=1)


def test_entries_of_a_table_have_settings_of_their_own(project: pytest.Pytester) -> None:
    """An implementation can have a name, a norm and a contract that the others have not."""
    entry = '{target = "norms:with_another_eps", name = "mine", eps = 1e-3, contract = {accumulation = "sequential"}}'
    project.makepyprojecttoml(TABLE.replace('"norms:with_another_eps"', entry))
    result = run(project, "--normcheck", "-v")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*mine-epsilon-placement-float32 PASSED*"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("implementations =", "implementatons ="), "'implementatons'*did you mean implementations"),
        (('norm = "rms_norm"', 'norm = "rms_nrom"'), "norm='rms_nrom'*did you mean RMSNorm"),
        (("eps = 1e-6", "eps = 1e-6\nddoff = 1"), "'ddoff'*did you mean ddof"),
        (("eps = 1e-6", 'contract = {cats = "once"}'), "contract has the key 'cats'*did you mean cast"),
        (("norms:sound", "norms:sond"), "norms has no attribute 'sond'"),
        (("norms:sound", "sound"), "target='sound', but should be 'module:callable'"),
        (('["float32"]', '["float23"]'), "float23*float32"),
        (('"epsilon-placement"', '"epsilon-placment"'), "epsilon-placment*epsilon-placement"),
        (('norm = "rms_norm"\n', ""), "norm is missing for norms:sound"),
        (("[tool.normcheck]", "[tool.other]  # no tool.normcheck"), "has no table [[]tool.normcheck]"),
        (('["norms:sound", "norms:with_another_eps"]', "[]"), "implementations=[[]], but should list"),
        (('["norms:sound", "norms:with_another_eps"]', "[3]"), "implementations has 3, but should list"),
        (('"norms:with_another_eps"', "{name = 'x'}"), "target=None"),
        (("eps = 1e-6", 'contract = "once"'), "contract='once', but should be a table"),
        (("eps = 1e-6", "eps = "), "cannot be read"),
        (("eps = 1e-6", 'widths = "a"'), "widths='a', but should list row widths"),
        (("eps = 1e-6", "ranks = 4"), "ranks=4, but should list ranks of x"),
        (("eps = 1e-6", "widths = [0]"), "widths=[[]0[]], but should list row widths"),
        (("eps = 1e-6", 'strict = "yes"'), "strict='yes', but should be true or false"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(project: pytest.Pytester, change: tuple[str, str], message: str) -> None:
    """The message names the key and the nearest that is known; no traceback is shown."""
    project.makefile(".toml", pyproject=TABLE.replace(*change))
    result = run(project, "--normcheck", "-c", os.devnull, "--rootdir", str(project.path))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*pyproject.toml: *{message}*"])
    assert "Traceback" not in str(result.stdout)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (", expected_failures={'accurracy': 'a reason'}", "'accurracy', but should name a check or an item"),
        (", expected_failures={'accuracy': ''}", "but should be the reason why it fails"),
        (", dtypes=['bf16']", "dtype='bf16'"),
        (", profile='fast'", "profile='fast', but should be one of quick"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(project: pytest.Pytester, options: str, message: str) -> None:
    """The test file does not load."""
    with_test(project, "sound", options=options)
    result = run(project)
    result.assert_outcomes(errors=1)
    assert re.search(message, str(result.stdout))


def test_only_implementations_can_be_judged(project: pytest.Pytester) -> None:
    """A bare function does not say what it computes."""
    project.makepyfile(test_norms="import normcheck as nc, norms\n@nc.parametrize([norms.sound])\ndef test_norms(check): check()")
    result = run(project)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*TypeError: implementation=*, but should be a normcheck.Implementation*"])


def test_what_does_not_apply_has_no_item_but_is_told(project: pytest.Pytester) -> None:
    """A norm without a mean has no item for shifts; the report says why. Asked for by name, it is skipped with its reason."""
    body = """
        import normcheck as nc, norms
        one = nc.Implementation(norms.sound, nc.RMSNorm(eps=1e-6), framework="numpy", grad=None)
        @nc.parametrize([one]{options})
        def test_norms(check): check()
        """
    project.makepyfile(test_norms=body.format(options=""))
    listed = str(run(project, "--collect-only", "-q").stdout)
    assert "shift-invariance" not in listed
    assert "scale-invariance" in listed
    run(project, "-k", "output-form", "--normcheck-report", "report")
    results = normcheck.Audit.read("report/audit.json").results
    assert [r.message for r in results if r.check == "shift-invariance"] == ["RMSNorm subtracts no mean"]
    project.makepyfile(test_norms=body.format(options=", checks=['shift-invariance']"))
    run(project, "-rs").stdout.fnmatch_lines(["*RMSNorm subtracts no mean"])


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_session_that_judged_nothing_says_so_and_why(project: pytest.Pytester, workers: tuple[str, ...]) -> None:
    """Where every item is skipped, by its framework, a mark or an option, the summary says that nothing was judged; no error."""
    if workers:
        pytest.importorskip("xdist")
    project.makepyfile(
        test_norms="""
        import normcheck as nc, norms, pytest
        from normcheck.implementations import MissingPackageError, frameworks
        frameworks()["numpy"].available = lambda: "pip install numpy"
        one = nc.Implementation(norms.sound, nc.RMSNorm(eps=1e-6), framework="numpy", dtypes=("float32",))
        judged = nc.parametrize([one], checks=["output-form"])
        @judged
        def test_missing(check): check()
        @pytest.mark.skip(reason="not on Sundays")
        @judged
        def test_skipped(check): check()
        @nc.parametrize([one], checks=["accuracy"])
        def test_left_out(check): check()
        """
    )
    result = project.runpytest_subprocess(*QUIET, *workers, "--normcheck-check", "output-form")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines_random(
        [
            "Nothing was judged.",
            "skipped 1 item: numpy is not installed; pip install numpy",
            "skipped 1 item: not on Sundays",
            "skipped 1 item: got empty parameter set*",
        ]
    )


def test_a_session_that_judged_something_does_not_tell_of_skips(project: pytest.Pytester) -> None:
    """What was skipped beside judged items is pytest's to tell; a session without items of normcheck has no section."""
    with_test(project, "sound", "wrong_shape")
    shown = str(run(project).stdout)
    assert "Nothing was judged" not in shown
    assert "skipped 1 item" not in shown
    project.makepyfile(test_norms="import pytest, normcheck.testing.items\n@pytest.mark.skip\ndef test_it(): pass")
    assert "normcheck =" not in str(run(project).stdout)


def test_threads_of_the_session_stay_as_they_are(project: pytest.Pytester) -> None:
    """An item pins the threads of torch as an audit does, and other tests get theirs back."""
    torch = pytest.importorskip("torch")
    project.makepyfile(
        test_norms="""
        import normcheck as nc, torch
        seen = []
        def rms(x, weight):
            seen.append(torch.get_num_threads())
            return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
        @nc.parametrize([nc.Implementation(rms, nc.RMSNorm(eps=1e-6))], checks=["output-form"])
        def test_norms(check):
            torch.set_num_threads(3)
            check()
            assert set(seen) == {1}
            assert torch.get_num_threads() == 3
        """
    )
    before = torch.get_num_threads()
    run(project).assert_outcomes(passed=1)
    torch.set_num_threads(before)


def test_a_report_that_cannot_be_written_is_refused(project: pytest.Pytester) -> None:
    """Before anything is judged, in one line."""
    with_test(project, "sound")
    Path("taken").touch()
    result = run(project, "--normcheck-report", "taken/report")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --normcheck-report='taken/report' cannot be written: */taken is a file"])


def test_workers_of_xdist_report_together(project: pytest.Pytester) -> None:
    """With two workers the outcomes, the summary and the report are those of one process."""
    pytest.importorskip("xdist")
    with_test(project, "sound", "with_another_eps")
    single = run(project, "--normcheck-report", "one")
    result = project.runpytest_subprocess(*QUIET, "-n", "2", "--normcheck-report", "two")
    assert result.parseoutcomes() == single.parseoutcomes()
    result.stdout.fnmatch_lines(["with_another_eps*F"])

    def outcomes(folder: str) -> list[tuple[str, ...]]:
        results = normcheck.Audit.read(f"{folder}/audit.json").results
        return sorted((r.implementation, r.check, r.regime, str(r.shape), r.layout, r.outcome) for r in results)

    assert outcomes("one") == outcomes("two")
    assert "interrupted" not in normcheck.Audit.read("two/audit.json").born


def test_random_order_changes_no_outcome(project: pytest.Pytester) -> None:
    """pytest-randomly shuffles items as it likes."""
    pytest.importorskip("pytest_randomly")
    with_test(project, "sound", "with_another_eps")
    project.makepyprojecttoml(TABLE)
    arguments = (*PLUGIN, "-W", "error", "--normcheck")
    for seed in ("1", "2"):
        project.runpytest_subprocess(*arguments, "-p", "randomly", f"--randomly-seed={seed}").assert_outcomes(passed=9, failed=3)


def _listening_to_interrupts() -> None:
    """A job in the background of a shell ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_an_interrupted_session_leaves_its_report(project: pytest.Pytester, workers: tuple[str, ...]) -> None:
    """After Ctrl-C the report holds what was judged until then, and says that it is no more."""
    if workers:
        pytest.importorskip("xdist")
    project.makepyfile(
        test_norms="""
        import time, pathlib
        import normcheck as nc, norms
        made = [nc.Implementation(f, nc.RMSNorm(eps=1e-6), framework="numpy") for f in (norms.sound, norms.without_eps)]
        @nc.parametrize(made, checks=["output-form"])
        def test_norms(check):
            check()
            pathlib.Path(check.id).touch()
        def test_slow():
            for _ in range(2):
                pathlib.Path("slow").touch()
                time.sleep(60)
        """
    )
    command = [sys.executable, "-m", "pytest", *QUIET, *workers, "--normcheck-report", "report"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, preexec_fn=_listening_to_interrupts, **pipes) as process:
        deadline = time.monotonic() + 60
        while not (Path("slow").exists() and Path("sound-output-form-float32").exists()) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "Written: " in text
    audit = normcheck.Audit.read("report/audit.json")
    assert {r.implementation for r in audit.results} >= {"sound"}
    done = audit.born["interrupted"]
    assert re.fullmatch(r"[12] checks were done" if workers else r"2 of 2 checks were done", done)
    assert f"Interrupted: {done}." in text
    assert f"Interrupted: {done}." in Path("report/report.md").read_text(encoding="utf-8")


def test_without_the_plugin_items_still_judge(project: pytest.Pytester) -> None:
    """``-p no:normcheck`` takes away options, report and summary; the tests stay."""
    with_test(project, "sound", "with_another_eps")
    result = project.runpytest_subprocess("-p", "no:normcheck", *QUIET[len(PLUGIN) :])
    result.assert_outcomes(passed=6, failed=2)
    assert "= normcheck =" not in str(result.stdout)


def test_the_plugin_loads_nothing(project: pytest.Pytester) -> None:
    """Unused, it brings in neither numpy nor anything of normcheck but the table of options."""
    project.makepyfile(
        test_other="""
        import sys
        def test_other():
            assert {"numpy", "torch", "click", "rich"} & set(sys.modules) == set()
            loaded = {name for name in sys.modules if name.startswith("normcheck")}
            assert loaded == {"normcheck", "normcheck.flags", "normcheck.pytest_plugin"}
        """
    )
    arguments = (*PLUGIN, "-p", "no:randomly", "-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "no:xdist")
    project.runpytest_subprocess(*arguments).assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_plugin_costs_less_than_30_ms(project: pytest.Pytester) -> None:
    """A session that does not use it starts less than 30 ms later: median of differences, runs alternating."""
    project.makepyfile(test_other="def test_other(): pass")

    def seconds(*arguments: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], check=True, capture_output=True)
        return time.perf_counter() - started

    pairs = [(seconds(*(PLUGIN or ("-p", "normcheck"))), seconds("-p", "no:normcheck")) for _ in range(15)]
    assert statistics.median(with_it - without for with_it, without in pairs) < 0.03


KERNELS = """
import torch

class MyBatchNorm(torch.nn.BatchNorm1d):
    def _check_input_dim(self, x):
        pass

def layer_norm(x, weight, bias):
    c = x.float() - x.float().mean(-1, keepdim=True)
    return (c * torch.rsqrt(c.square().mean(-1, keepdim=True) + 1e-5) * weight.float() + bias.float()).to(x.dtype)
"""


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("items", "shift-invariance or overflow"),
        ("module", "my_batch_norm"),
        pytest.param("inherited", "layer_norm", marks=pytest.mark.slow),
        ("inherited", "overflow or double-backward or parameter-gradients"),
    ],
)
def test_examples_of_the_document(project: pytest.Pytester, name: str, chosen: str) -> None:
    """Its examples run as they stand, and no item fails."""
    pytest.importorskip("torch")
    page = Path(__file__).parents[1].joinpath("docs", "testing.md").read_text(encoding="utf-8")
    found = re.search(rf"(?ms)^```python {name}\n(.*?)^```", page)
    assert found is not None
    project.makepyfile(kernels=KERNELS, test_example=found[1])
    outcomes = run(project, "-k", chosen).parseoutcomes()
    assert outcomes.get("passed", 0) + outcomes.get("xfailed", 0) > 1
    assert not outcomes.keys() & {"failed", "errors", "error"}

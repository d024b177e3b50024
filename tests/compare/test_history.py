"""Runs on disk: listed whole or with their error, tagged, bundled, imported, rendered."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from compare.summaries import summary
from vq_console.cli import main
from vq_console.compare import history
from vq_console.compare.report import report_csv, report_markdown
from vq_console.compare.report_html import report_html
from vq_console.compare.run import write_outputs
from vq_console.core.errors import UsageError, VqError
from vq_console.core.files import write_json
from vq_console.core.places import runs_dir


def make_run(name: str = "20260101-000000-fp8-vs-int4-abcd", **head: object) -> history.Run:
    folder = runs_dir() / name
    write_json(folder / "run.json", {"state": "finished", "created": 1.0, "arms": {"A": "fp8", "B": "int4"}, **head})
    write_outputs(folder, summary(run=name))
    return history.read_run(folder)


def test_runs_are_listed_newest_first_and_broken_ones_with_their_error(vq_home: Path) -> None:
    old, new = make_run("a", created=1.0), make_run("b", created=2.0)
    broken = runs_dir() / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{not json")
    runs = history.list_runs()
    assert {old.name, new.name, "broken"} == {run.name for run in runs}
    assert next(run for run in runs if run.name == "broken").error
    assert [run.name for run in runs if run.error is None] == ["b", "a"]
    assert new.quality_word == "SMALL"


def test_a_run_whose_process_is_gone_is_partial(vq_home: Path) -> None:
    assert make_run(state="running", process={"pid": 1, "start_ticks": -5}).state == history.PARTIAL
    assert make_run(state="running", process=history.own_process()).state == history.RUNNING


def test_find_tag_and_note(vq_home: Path) -> None:
    run = make_run()
    assert history.tag_run(run, add=["release"], note="for Ann") == ("release",)
    assert history.find_run("release").note == "for Ann"
    assert history.find_run("20260101").name == run.name
    assert history.find_run("last").name == run.name
    with pytest.raises(UsageError, match="no run is called"):
        history.find_run("nothing-like-it")
    with pytest.raises(UsageError, match="is no tag"):
        history.tag_run(run, add=["a b"])


def test_runs_of_other_pairs_are_named_in_words(vq_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a")
    make_run("b", arms={"A": "bf16", "B": "int4"})
    assert main(["diff", "a", "b"]) == 0
    assert "not the same pair: before fp8 against int4, after bf16 against int4\n" in capsys.readouterr().err


def test_tagging_without_a_tag_is_wrong_use(vq_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a")
    assert main(["history", "tag", "a"]) == 2
    assert "which tag?" in capsys.readouterr().err
    assert main(["history", "tag", "a", "release"]) == 0
    assert history.find_run("a").tags == ("release",)
    assert main(["history", "tag", "a", "--", "-release"]) == 0
    assert history.find_run("a").tags == ()


def test_bundle_comes_back_and_a_changed_one_is_refused(vq_home: Path, tmp_path: Path) -> None:
    run = make_run()
    bundle = history.export_bundle(run, tmp_path / "x.tar.gz")
    with pytest.raises(VqError, match="exists already"):
        history.import_bundle(bundle)
    history.delete_run(run)
    imported = history.import_bundle(bundle)
    assert imported.tags == ("imported",)
    assert history.summary_of(imported)["quality"]["word"] == "SMALL"
    history.delete_run(imported)
    with tarfile.open(bundle) as archive:
        archive.extractall(tmp_path / "changed", filter="data")
    (tmp_path / "changed" / run.name / "summary.json").write_text("{}")
    with tarfile.open(tmp_path / "y.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "changed" / run.name, arcname=run.name)
    with pytest.raises(VqError, match="does not match its hash"):
        history.import_bundle(tmp_path / "y.tar.gz")
    assert not [path for path in runs_dir().iterdir() if path.name.startswith(".import")]


def test_reports_lead_with_the_verdict_and_keep_text_from_outside_harmless() -> None:
    value = summary(simulated=True)
    value["arms"]["A"]["profile"] = "fp8<script>|"
    markdown, page = report_markdown(value), report_html(value)
    assert markdown.index("SIMULATED") < markdown.index("## Arms")
    assert "ALARM" in markdown
    assert "expected Machete, runs Marlin" in markdown
    assert "fp8&lt;script>\\|" in markdown
    assert "<script" not in markdown
    assert "<script>" not in page
    assert "SIMULATED" in page
    assert page.count("<svg") == 2
    rows = report_csv(value).splitlines()
    assert rows[1].startswith("20260101-000000-fp8-vs-int4-abcd,latency,tpot,1,1.0,1.1,1.1,1.08,1.12,6,slower")

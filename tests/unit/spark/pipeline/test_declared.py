"""What people write."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from leasehold.cli.pipeline import own_modules, packed
from leasehold.spark.pipeline import Pipeline, RunSettings
from leasehold.spark.pipeline.jobs import Resources
from leasehold.spark.pipeline.settings import QueueStages
from leasehold.spark.pipeline.task import LONG_S, SHORT_S, wants_more
from leasehold.worker.adapters.specs import QueueSpec


def scan(message: Any, state: Any) -> Any:
    """Do nothing."""
    return state


def test_stages_follow_each_other_in_the_order_in_which_they_are_said() -> None:
    """What is declared is what the worker's stages are."""
    pipeline = (
        Pipeline("films", version=2, renamed={"look": "scan"})
        .stage("scan", scan, retries=2, timeout_s=60)
        .stage("encode", scan, weight=8, exhausted="poison")
        .stage("index", scan, batch="arrow", rows=50)
        .migration(1, lambda stage, state: (stage, state))
    )
    assert pipeline.names == ("scan", "encode", "index")
    assert pipeline.stages_in("films").batch_rows == 50
    assert pipeline.stages().layout.names == ("scan", "encode", "index")
    assert "retries 2" in pipeline.describe()
    assert "then poison" in pipeline.describe()
    assert pipeline.describe("mermaid").startswith("flowchart")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("scan", {}, "already"),
        ("a b", {}, "not a valid name"),
        ("next", {"batch": "table"}, "'arrow' or 'pandas'"),
        ("next", {"batch": "arrow", "rows": 0}, "1 to 10,000"),
        ("next", {"timeout_s": 0}, "above 0"),
        ("next", {"retries": -1}, "0 or more"),
    ],
)
def test_mistakes_are_said_where_they_are_made(
    name: str, settings: dict[str, Any], said: str
) -> None:
    """And not by an executor half an hour later; the pipeline stays as it was."""
    pipeline = Pipeline("films").stage("scan", scan)
    with pytest.raises(ValueError, match=said):
        pipeline.stage(name, scan, **settings)
    assert pipeline.names == ("scan",)


def test_an_empty_pipeline_is_refused() -> None:
    """So is a version that nothing leads to."""
    with pytest.raises(ValueError, match="no stage"):
        Pipeline("films").stages()
    with pytest.raises(ValueError, match="already"):
        Pipeline("films").migration(1, lambda *both: both).migration(1, lambda *both: both)


def test_it_can_be_sent_to_executors() -> None:
    """Also one with a stage for batches, which has locks once it is in use."""
    pipeline = Pipeline("films").stage("scan", scan).stage("index", scan, batch="pandas")
    pipeline.stages()
    again = pickle.loads(pickle.dumps(pipeline))
    assert again.stages().layout.names == ("scan", "index")


def test_a_name_is_a_queue_of_the_server_that_the_driver_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Executors need not have the driver's environment."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=of-driver")
    assert RunSettings().spec("films") == QueueSpec("leasehold", "films", "AccountName=of-driver")
    given = RunSettings(connection="AccountName=given", queue="books")
    assert given.spec("films") == QueueSpec("leasehold", "books", "AccountName=given")
    assert "given" not in repr(given)
    own = QueueSpec("leasehold", "films", "")
    assert RunSettings(queue=own).spec(None) is own
    assert RunSettings(queue="azure://me/films?encoding=base64").queue is not None
    with pytest.raises(ValueError, match="which queue"):
        RunSettings().spec(None)


@pytest.mark.parametrize(
    "settings",
    [{"tasks": 0}, {"at_once": 0}, {"grace_s": -1}, {"restarts": -1}, {"show": "film"}],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    """The name of the setting is said."""
    with pytest.raises(ValueError, match=next(iter(settings))):
        RunSettings(**settings)


def test_how_many_at_once_follows_how_long_they_take() -> None:
    """There is room between the two limits, so that it does not go to and fro."""
    assert wants_more(SHORT_S / 2, has_more=False)
    assert not wants_more(SHORT_S * 2, has_more=False)
    assert wants_more(SHORT_S * 2, has_more=True)
    assert not wants_more(LONG_S, has_more=True)


def test_modules_of_the_users_folder_go_along(tmp_path: Path) -> None:
    """Files and packages that are imported from there, and nothing that is installed."""
    (tmp_path / "video" / "__pycache__").mkdir(parents=True)
    (tmp_path / "site-packages").mkdir()
    files = {
        "jobs": tmp_path / "jobs.py",
        "video": tmp_path / "video" / "__init__.py",
        "video.scan": tmp_path / "video" / "scan.py",
        "other": tmp_path / "site-packages" / "other.py",
        "elsewhere": Path("/usr/lib/elsewhere.py"),
    }
    modules = {}
    for name, path in files.items():
        if path.is_relative_to(tmp_path):
            path.write_text(f"NAME = {name!r}\n")
        modules[name] = ModuleType(name)
        modules[name].__file__ = str(path)
    modules["builtin"] = ModuleType("builtin")
    (tmp_path / "video" / "__pycache__" / "scan.pyc").write_bytes(b"old")
    found = own_modules(tmp_path, modules)
    assert found == [tmp_path / "jobs.py", tmp_path / "video"]
    archive = packed(found, tmp_path / "all.zip")
    with zipfile.ZipFile(archive) as opened:
        assert sorted(opened.namelist()) == ["jobs.py", "video/__init__.py", "video/scan.py"]


def keep(message: Any, state: Any) -> Any:
    """Go on."""
    return state


def test_a_run_asks_for_the_most_that_its_stages_need() -> None:
    """What no stage names stays as the session says."""
    pipeline = (
        Pipeline("films")
        .stage("scan", keep)
        .stage("encode", keep, cores=4, memory="900m")
        .stage("index", keep, cores=2, gpus=0.5, memory="2g")
    )
    assert pipeline.stages_in("films").resources == Resources(4, 0.5, "2g")
    assert Pipeline("films").stage("scan", keep).stages_in("films").resources == Resources()


def test_each_queue_has_what_its_own_stages_need() -> None:
    """And waits for those from which messages come, also for those that they may go back to."""
    pipeline = (
        Pipeline("leasehold:///films")
        .stage("scan", keep, batch="arrow", rows=50)
        .stage("encode", keep, queue="films-gpu", gpus=1, memory="8g")
        .stage("check", keep, cores=2)
        .stage("ship", keep, queue="films")
        .stage("bill", keep, queue="films-bills")
    )
    first = pipeline.stages_in("films")
    queues = ("films", "films-gpu", "films-bills")
    assert first == QueueStages(("scan", "ship"), 50, Resources(), ("films-gpu",), queues)
    assert pipeline.stages_in("films-gpu") == QueueStages(
        ("encode", "check"), 0, Resources(2, 1, "8g"), ("films",), queues
    )
    assert pipeline.stages_in("films-bills").before == ("films", "films-gpu")
    elsewhere = Pipeline("films").stage("scan", keep).stage("encode", keep, queue="gpu")
    assert elsewhere.stages_in("other").names == ("scan",)  # which takes the place of films
    with pytest.raises(ValueError, match="must name its own"):
        Pipeline().stage("encode", keep, queue="films-gpu")
    with pytest.raises(ValueError, match="mean nothing to a query"):
        pipeline.stream(None, checkpoint="none")  # type: ignore[arg-type]  # it does not come to that


@pytest.mark.parametrize("asked", [{"cores": 0}, {"gpus": 0}, {"memory": "much"}])
def test_resources_that_make_no_sense_are_refused(asked: dict[str, Any]) -> None:
    """Where they are said."""
    with pytest.raises(ValueError, match=r"encode|memory"):
        Pipeline("films").stage("encode", keep, **asked)

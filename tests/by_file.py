"""Collects a file of tests when its turn comes, where pytest-xdist runs them: ``pytest -n 2``.

pytest-xdist has every process collect every test before one runs. Collecting means to import all
test modules and what they test: with two processes it is a tenth of the processor time of a run,
twice. Here the processes list files only, share them out, and each collects those that it runs.

A file is the smallest share. What takes longest begins first, as ``durations.py`` knows.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import pytest
from _pytest.runner import collect_one_node

from tests.durations import durations_by_file

ROOT: Final = Path(__file__).parent
ONE_PROCESS: Final = tuple(
    ROOT / name for name in ("spark", "console", "unit/advisor", "unit/spark")
)
"""Folders whose files share what is dear: a session of Spark, a browser, libraries to import."""


class Share(pytest.Item):
    """Files of tests that one process runs in a row; stands for them until they are collected."""

    paths: Sequence[Path]

    @classmethod
    def of(cls, parent: pytest.Collector, name: str, paths: Sequence[Path]) -> Self:
        """Return one for some files."""
        share = cls.from_parent(parent, name=name, nodeid=f"{parent.nodeid}/{name}")
        share.paths = paths
        # The tests have their own.
        share.add_marker(pytest.mark.timeout(0))
        return share

    def runtest(self) -> None:
        """Do nothing: ``ByFile`` runs the tests."""


class Root(pytest.Package):
    """The folder of all tests, which lists shares first, and then what is in it."""

    targets: Sequence[Path] = ()
    """Files and folders that pytest was told to run."""
    is_listed = False

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return shares, the longest first, and from then on files and folders."""
        if self.is_listed:
            return super().collect()
        self.is_listed = True
        known = durations_by_file(self.config)
        usual_s = sum(duration.seconds for duration in known.values()) / max(1, len(known))
        paths: defaultdict[str, list[Path]] = defaultdict(list)
        lengths_s: defaultdict[str, float] = defaultdict(float)
        for path in self._files(self.path):
            place = next((place for place in ONE_PROCESS if path.is_relative_to(place)), path)
            name = place.relative_to(self.path).as_posix()
            paths[name].append(path)
            duration = known.get(f"{self.nodeid}/{path.relative_to(self.path).as_posix()}")
            lengths_s[name] += usual_s if duration is None else duration.seconds
        names = sorted(paths, key=lengths_s.__getitem__, reverse=True)
        return [Share.of(self, name, paths[name]) for name in names]

    def _files(self, folder: Path) -> Iterator[Path]:
        """Go over the files of tests that pytest was told to run."""
        for path in sorted(folder.iterdir()):
            if self.ihook.pytest_ignore_collect(collection_path=path, config=self.config):
                continue
            if path.is_dir():
                yield from self._files(path)
            elif path.match("test_*.py") and any(map(path.is_relative_to, self.targets)):
                yield path


class Total:
    """Tells the process that shows the progress how many tests there are about, for all shares."""

    def __init__(self, config: pytest.Config) -> None:
        self._durations = durations_by_file(config)
        self._session: pytest.Session | None = None
        self._expected = 0
        self._reported = 0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep what is told."""
        self._session = session

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Add up what is known of the files of all shares."""
        folders = tuple(f"{name}/" for name in ids)
        self._expected = sum(
            duration.cases
            for file, duration in self._durations.items()
            if file in ids or file.startswith(folders)
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell it; pytest-xdist has told the number of shares."""
        self._reported += report.when == "call"
        if self._session is not None and self._expected:
            self._session.testscollected = max(self._expected, self._reported)


class ByFile:
    """The plugin, in a process of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._targets = [(config.invocation_params.dir / name).resolve() for name in config.args]
        self._root: Root | None = None
        self._nodes: dict[Path, dict[Path, pytest.Collector]] = {}
        config.args = [str(ROOT)]

    @staticmethod
    def suits(config: pytest.Config) -> bool:
        """Return whether pytest-xdist runs this process, for files and folders of tests."""
        return (
            hasattr(config, "workerinput")
            and not config.getoption("lf", default=False)
            and not config.getoption("failedfirst", default=False)
            and not any("::" in name for name in config.args)
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(
        self, path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """List shares in the place of what is in the folder of all tests."""
        if path != ROOT:
            return None
        self._root = Root.from_parent(parent, path=path)
        self._root.targets = self._targets
        return self._root

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Leave shares out of what is chosen by marks and names: those are of the tests in them."""
        shares = [item for item in items if isinstance(item, Share)]
        items[:] = [item for item in items if not isinstance(item, Share)]
        yield
        items[:] = [*shares, *items]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Have fixtures in their places that pytest has loaded for the paths it was given."""
        for path in self._targets:
            self._children(path if path.is_dir() else path.parent)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Collect the files of a share, and run their tests."""
        if not isinstance(item, Share):
            return None
        session = item.session
        place = session.items.index(item)
        try:
            tests = self._tests(session, item.paths)
            for test, following in zip(tests, [*tests[1:], nextitem], strict=False):
                # pytest-xdist looks there for what a report is about.
                session.items[place] = test
                item.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
                if session.shouldfail or session.shouldstop:
                    break
        finally:
            session.items[place] = item
        return True

    def _tests(self, session: pytest.Session, paths: Iterable[Path]) -> list[pytest.Item]:
        gc.disable()  # nearly all that is made stays
        try:
            nodes = [self._children(path.parent).get(path) for path in paths]
            items = [test for node in nodes if node for test in session.genitems(node)]
        finally:
            gc.enable()
        config = session.config
        config.hook.pytest_collection_modifyitems(session=session, config=config, items=items)
        return items

    def _children(self, folder: Path) -> dict[Path, pytest.Collector]:
        """Return what is in a folder; each folder is collected once, with its fixtures."""
        if folder not in self._nodes:
            node = self._root if folder == ROOT else self._children(folder.parent).get(folder)
            self._nodes[folder] = {}
            if node is not None:
                report = collect_one_node(node)
                node.ihook.pytest_collectreport(report=report)
                self._nodes[folder] = {
                    child.path: child
                    for child in report.result or ()
                    if isinstance(child, pytest.Collector)
                }
        return self._nodes[folder]

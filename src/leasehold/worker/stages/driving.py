"""Does what a run asks for: in this thread, or in an event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from leasehold.worker.message import Message
from leasehold.worker.stages.declared import StageOverdue
from leasehold.worker.stages.running import Call, Save, Step, Steps


def drive(steps: Steps, message: Message) -> None:
    """Do all steps in this thread."""
    step = next(steps, None)
    while step is not None:
        try:
            answer = _do(step, message)
        except BaseException as error:  # noqa: BLE001 - the run decides on it, and raises it
            step = _throw(steps, error)
        else:
            step = _send(steps, answer)


async def drive_async(steps: Steps, message: Message) -> None:
    """Do all steps in the running event loop; what blocks is done in threads."""
    step = next(steps, None)
    while step is not None:
        try:
            answer = await _do_async(step, message)
        except BaseException as error:  # noqa: BLE001 - the run decides on it, and raises it
            step = _throw(steps, error)
        else:
            step = _send(steps, answer)


def _send(steps: Steps, answer: Any) -> Step | None:
    try:
        return steps.send(answer)
    except StopIteration:
        return None


def _throw(steps: Steps, error: BaseException) -> Step | None:
    try:
        return steps.throw(error)
    except StopIteration:
        return None


def _do(step: Step, message: Message) -> Any:
    if isinstance(step, Call):
        return step.stage.run(step.message, step.state)
    if isinstance(step, Save):
        return message.save(step.saved)
    return message.cancel_token.wait(step.seconds)


async def _do_async(step: Step, message: Message) -> Any:
    if isinstance(step, Call):
        if not step.stage.is_async:
            return await _in_thread(step)
        if step.stoppable:
            return await _stoppable(step)
        return await step.stage.run(step.message, step.state)
    if isinstance(step, Save):
        return await message.asave(step.saved)
    return await asyncio.sleep(step.seconds)


async def _in_thread(step: Call) -> Any:
    call = asyncio.ensure_future(asyncio.to_thread(step.stage.run, step.message, step.state))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        # A thread cannot be cancelled. As long as it works, the message must not look free.
        await asyncio.wait([call])
        if not call.cancelled():
            call.exception()
        raise


async def _stoppable(step: Call) -> Any:
    loop = asyncio.get_running_loop()
    # A task of its own: the word that it is overdue may come when the next stage is at work.
    call = asyncio.ensure_future(step.stage.run(step.message, step.state))

    def stop() -> None:
        with suppress(RuntimeError):  # the loop is closed: it was overdue in its last moment
            loop.call_soon_threadsafe(call.cancel)

    step.message.on_overdue(stop)
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        limit_s = step.message.limit_s
        if limit_s is None or (task is not None and task.cancelling()):
            raise
        raise StageOverdue(step.message.stage, limit_s) from None

"""Run the sample: ``python -m examples.mns_change_visibility``, from the top of the checkout."""

from __future__ import annotations

import argparse
import uuid
from contextlib import ExitStack

from examples.mns_change_visibility.manager import SampleSettings
from examples.mns_change_visibility.sample import Story, checks
from mns.account import Account

from leasehold.testing import InProcessServer


def main() -> int:
    """Play the story; the exit code is 0 only if every check holds."""
    options = _options()
    settings = SampleSettings(
        message_minimal_life=options.message_minimal_life,
        timer_interval=options.timer_interval,
        queue_message_visibility_timeout=options.queue_message_visibility_timeout,
        message_timeout=options.message_timeout,
    )
    problems = settings.problems()
    if problems:
        print("\n".join(problems))
        return 2
    print(settings)
    with ExitStack() as stack:
        endpoint, key_id, secret = options.endpoint, options.access_id, options.access_key
        if not endpoint:
            server = stack.enter_context(InProcessServer(clock="system", store="sqlite"))
            endpoint, key_id, secret = server.mns_url, server.account, server.key
        account = Account(endpoint, key_id, secret)
        stack.callback(account.get_client().close_connection)
        queue = account.get_queue(f"change-visibility-{uuid.uuid4().hex[:8]}")
        story = Story(queue, settings, options.jobs, lambda text: print(text, flush=True))
        outcome = story.play(options.timeout)
    results = checks(outcome, settings, options.jobs)
    print(f"\nvisibility was changed {outcome.changes} times")
    for text, holds in results.items():
        print(f"[{'ok' if holds else 'FAILED'}] {text}")
    return 0 if all(results.values()) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="examples.mns_change_visibility", description=__doc__)
    parser.add_argument("--endpoint", default="", help="of MNS; by default a server is started")
    parser.add_argument("--access-id", default="", help="AccessKeyId for that endpoint")
    parser.add_argument("--access-key", default="", help="AccessKeySecret for that endpoint")
    parser.add_argument("--message-minimal-life", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--timer-interval", type=float, default=0.5, metavar="SECONDS")
    parser.add_argument(
        "--queue-message-visibility-timeout", type=int, default=3, metavar="SECONDS"
    )
    parser.add_argument("--message-timeout", type=float, default=8.0, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=4, help="messages beside the stuck one")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="give up after so many seconds"
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

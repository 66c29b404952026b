"""Mistakes in keeping leases, and the tests that would find each of them.

Three tables: what others have shipped, the rows by which a lease manager decides, and the ways in
which it can fail. Tests are named by their file below ``tests`` and their function.
"""

from __future__ import annotations

from typing import Final

_BUGS: Final = "unit/worker/leases/test_shipped_bugs.py"
_FAILURES: Final = "unit/worker/leases/test_failures.py"
_DECISIONS: Final = "unit/worker/leases/test_decisions.py"
_MANAGER: Final = "unit/worker/leases/test_manager.py"
_SETTINGS: Final = "unit/worker/leases/test_settings.py"
_PROCESS: Final = "unit/worker/leases/test_process.py"
_WATCHDOG: Final = "unit/worker/leases/test_watchdog.py"
_RACES: Final = "unit/worker/leases/test_races.py"
_LOSING: Final = "unit/worker/worker/test_losing.py"
_STOPPING: Final = "unit/worker/worker/test_stopping.py"
_COMPLETING: Final = "unit/worker/worker/test_completing.py"
_MAKING: Final = "unit/worker/worker/test_making.py"
_BURIALS: Final = "contract/queues/test_burials.py"
_DIES: Final = "test_who_dies_between_copy_and_deletion_leaves_a_message_that_is_buried_again"
_LEASES: Final = "contract/queues/test_leases.py"
_KILLS: Final = "reliability/test_worker_kills.py"
_FAULTS: Final = "reliability/test_worker_faults.py"
HERE: Final = "regression/test_renewal_bugs.py"

SHIPPED: Final[dict[str, tuple[str, ...]]] = {
    "renewed only once, because the new receipt was dropped": (
        f"{_BUGS}::test_renewed_only_once",
        f"{_COMPLETING}::test_newest_receipt_is_used",
        f"{_LEASES}::test_a_lease_is_renewed_again_and_again",
    ),
    "renewed at lease - 5 s, so that a lease of 5 s crashes": (
        f"{_BUGS}::test_leases_as_short_as_the_margin",
        f"{_SETTINGS}::test_safe_settings_for_any_length",
        f"{HERE}::test_short_leases",
    ),
    "a renewal overrode the handler's own longer lease": (
        f"{_BUGS}::test_renewals_shorten_what_the_handler_asked_for",
        f"{_BUGS}::test_a_save_shortens_what_the_handler_asked_for",
        f"{HERE}::test_a_handler_asks_for_more",
    ),
    "tracing changed the identity of objects, and renewals stopped for batches": (
        f"{_BUGS}::test_tracing_changes_the_identity_of_objects",
        f"{HERE}::test_a_traced_client_is_renewed_in_batches",
    ),
    "a late renewal took the lease back from the new owner": (
        f"{_BUGS}::test_a_late_renewal_takes_the_lease_back",
        f"{_BUGS}::test_a_late_answer_takes_the_lease_back",
        f"{_LEASES}::test_somebody_elses_lease_is_not_taken_back",
        f"{HERE}::test_a_late_renewal_does_nothing_to_the_new_holder",
    ),
    "the name of an owner was not unique for each attempt": (
        f"{_BUGS}::test_two_deliveries_of_one_message",
        f"{HERE}::test_a_worker_gets_its_own_message_again",
    ),
    "a learned lease collapsed to its floor while renewals were slow": (
        f"{_BUGS}::test_a_learned_lease_collapses_while_renewals_are_slow",
        "unit/worker/leases/test_learning.py::test_slow_renewals_beat_the_cap",
        "unit/worker/leases/test_learning.py::test_errors_freeze_it",
        f"{HERE}::test_learned_leases_outlast_slow_renewals",
    ),
    "the thread that renews died, and the process went on as a zombie": (
        f"{_WATCHDOG}::test_the_timer_dies",
        f"{_WATCHDOG}::test_the_sending_dies",
        f"{_STOPPING}::test_renewer_that_fails_ends_the_worker",
        f"{_PROCESS}::test_the_renewer_is_killed",
        f"{_PROCESS}::test_the_renewer_hangs",
    ),
    "only running messages were renewed, and buffered ones expired": (
        f"{_BUGS}::test_only_running_messages_are_renewed",
        f"{_LOSING}::test_buffered_messages_are_renewed",
        f"{_KILLS}::test_nothing_is_delivered_twice_without_kills",
    ),
    "a job both completed and failed in the same instant": (
        f"{_BUGS}::test_completed_and_failed_in_the_same_instant",
        f"{_BUGS}::test_lost_and_completed_in_the_same_instant",
        f"{HERE}::test_handlers_end_while_the_worker_gives_them_up",
    ),
    "a timer for each message": (
        f"{_BUGS}::test_a_timer_for_each_message",
        f"{HERE}::test_hundreds_of_messages_take_one_timer",
    ),
    "the copy for the poison queue succeeded, the deletion failed: an endless loop": (
        f"{_BURIALS}::{_DIES}",
        f"{_BURIALS}::test_who_lost_the_lease_buries_nothing",
        f"{HERE}::test_a_burial_that_stops_halfway_is_finished",
        f"{HERE}::test_a_burial_that_always_stops_halfway_is_no_work",
    ),
    "fractions of seconds were sent as a lease": (
        f"{_BUGS}::test_fractions_of_seconds_are_sent",
        "contract/queues/test_receiving.py::test_a_fraction_of_a_second_is_no_lease",
        f"{_MANAGER}::test_extensions_are_whole_seconds",
        f"{HERE}::test_all_seconds_are_whole",
    ),
}
"""What others have shipped."""

DECISIONS: Final[dict[str, tuple[str, ...]]] = {
    "1: settled, or being settled: nothing": (f"{_DECISIONS}::test_row_1_settled_or_over",),
    "2: a renewal is in flight: skip": (
        f"{_DECISIONS}::test_row_2_in_flight",
        f"{_DECISIONS}::test_row_2_does_not_hide_bad_news",
    ),
    "3: longer than message_timeout: abandon": (
        f"{_DECISIONS}::test_row_3_longer_than_message_timeout",
        f"{_DECISIONS}::test_row_3_comes_before_row_4",
        f"{_FAILURES}::test_what_is_abandoned_is_not_made_visible_early",
    ),
    "4: past the deadline: lost, no call": (
        f"{_DECISIONS}::test_row_4_deadline",
        f"{_FAILURES}::test_a_stall_longer_than_the_lease",
    ),
    "5: enough is left: nothing": (f"{_DECISIONS}::test_row_5_enough_left",),
    "6: otherwise renew, in less time than the minimal life": (
        f"{_DECISIONS}::test_row_6_renew",
        f"{_DECISIONS}::test_the_first_published_rule_alone_would_lose_it",
        f"{_MANAGER}::test_requests_have_their_time",
    ),
    "6a: renewed: new receipt, deadline from before it was sent": (
        f"{_DECISIONS}::test_row_6a_renewed",
        f"{_MANAGER}::test_the_deadline_counts_from_before_a_renewal_was_sent",
    ),
    "6b: gone: lost": (
        f"{_DECISIONS}::test_row_6b_gone",
        f"{_FAILURES}::test_the_message_is_gone_while_it_is_worked_on",
    ),
    "6c: no answer, or not now: keep, and retry until the deadline": (
        f"{_DECISIONS}::test_row_6c_not_now",
        f"{_DECISIONS}::test_row_6c_ambiguous",
        f"{_DECISIONS}::test_row_6c_retries_before_the_next_tick",
        f"{_DECISIONS}::test_row_6c_retries_until_the_deadline",
        f"{_DECISIONS}::test_row_6c_services_may_ask_for_time",
        f"{_FAILURES}::test_the_network_stays_away",
    ),
    "6d: denied: loudly, and no more": (
        f"{_DECISIONS}::test_row_6d_never",
        f"{_FAILURES}::test_no_lease_can_be_kept",
    ),
}
"""The check of one message, row by row."""

FAILURES: Final[dict[str, tuple[str, ...]]] = {
    "a renewal fails on the network": (
        f"{_FAILURES}::test_a_renewal_fails_on_the_network",
        f"{_FAILURES}::test_a_renewal_whose_answer_is_lost",
        f"{_FAULTS}::test_the_connection_is_lost_for_a_moment",
        f"{_FAULTS}::test_the_connection_is_lost_for_ten_seconds",
    ),
    "the message is gone while it is worked on": (
        f"{_FAILURES}::test_the_message_is_gone_while_it_is_worked_on",
        f"{_LOSING}::test_lost_lease_stops_the_handler_and_settles_nothing",
        f"{_LOSING}::test_handler_that_ends_well_after_the_loss_is_not_completed",
    ),
    "a deletion meets a renewal in flight": (
        f"{_FAILURES}::test_completing_waits_for_a_renewal_in_flight",
        f"{_FAILURES}::test_completing_does_not_wait_for_ever",
        f"{_FAILURES}::test_there_is_one_more_try_only",
        f"{_RACES}::test_nothing_is_ever_done_with_an_old_receipt",
    ),
    "the new receipt is lost for good": (
        f"{_FAILURES}::test_the_new_receipt_is_lost_for_good",
        f"{_FAILURES}::test_done_messages_are_forgotten_in_the_end",
        f"{_COMPLETING}::test_done_message_that_comes_again_is_not_worked_on",
    ),
    "the process crashes": (
        f"{_FAILURES}::test_the_process_is_killed",
        f"{_PROCESS}::test_the_worker_is_killed",
        f"{_KILLS}::test_killed_workers_do_each_effect_once",
        f"{_FAULTS}::test_what_a_killed_worker_has_started_ends",
    ),
    "the worker hangs": (
        f"{_FAILURES}::test_the_worker_hangs",
        f"{_LOSING}::test_stuck_handler_is_not_renewed_for_ever",
    ),
    "the manager stalls": (
        f"{_FAILURES}::test_the_manager_stalls",
        f"{_FAILURES}::test_a_stall_longer_than_the_lease",
        f"{_FAILURES}::test_a_stall_between_queueing_and_sending",
        f"{_MAKING}::test_held_interpreter_is_said_loudly",
        f"{_PROCESS}::test_a_handler_that_holds_the_interpreter",
        f"{_FAULTS}::test_workers_that_were_stopped_past_their_leases",
    ),
    "clocks differ": (
        f"{_FAILURES}::test_wall_clocks_say_nothing",
        f"{_MANAGER}::test_the_deadline_counts_from_before_the_receive_was_sent",
    ),
    "messages wait in a buffer": (
        f"{_FAILURES}::test_messages_wait_in_a_buffer",
        f"{_LOSING}::test_message_that_is_lost_in_the_buffer_is_never_begun",
        f"{_LOSING}::test_buffered_messages_are_renewed",
    ),
    "shutdown": (
        f"{_FAILURES}::test_shutting_down",
        f"{_STOPPING}::test_running_handlers_finish_and_keep_their_leases",
        f"{_STOPPING}::test_buffer_is_given_back_uncounted",
        f"{_FAULTS}::test_workers_that_are_told_to_end",
        "unit/worker/adapters/test_mns.py::test_what_is_given_back_takes_a_second_at_least",
    ),
    "near the longest lease, or the end of the message's life": (
        f"{_FAILURES}::test_the_longest_lease_of_the_service",
        f"{_FAILURES}::test_the_message_expires_while_it_is_worked_on",
    ),
    "a service renews one message per request": (
        f"{_MANAGER}::test_single_requests_go_in_parallel",
        f"{_MANAGER}::test_renewals_are_spread",
    ),
}
"""The ways in which keeping leases can fail."""

INDEX: Final = {**SHIPPED, **DECISIONS, **FAILURES}

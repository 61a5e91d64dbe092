"""`python -m tests.journals`: plays scenarios and keeps their journals under the name of this version.

Run it at a release. What is here of that version is written anew; other versions' stay as they were written.
"""

import shutil
import sys

import pytest

from shoal.domain.version import VERSION
from tests.journals import BASE, FOLDER

SCENARIOS = (
    "approvals::test_a_question_outlives_a_restart",
    "attachments::test_a_text_file_comes_with_its_beginning",
    "attachments::test_an_image_is_shown_whatever_it_is_called",
    "begun_calls::test_what_others_journal_in_that_moment_is_judged_with_the_call",
    "branches::test_an_earlier_turn_tried_again_leaves_what_followed_on_another_branch",
    "branches::test_a_fork_within_a_turn_ends_that_turn",
    "context::test_an_overflow_is_answered_by_a_summary_and_one_retry",
    "context::test_instructions_that_fill_the_window_that_was_learnt_are_fitted_to_it",
    "interrupts::test_a_steer_skips_the_rest_of_the_step",
    "interrupts::test_stop_keeps_what_was_said_and_the_queue_goes_on",
    "lines::test_eight_quick_messages_are_all_answered_by_two_turns",
    "mcp::test_a_person_is_asked_first_and_the_result_taints",
    "messages::test_a_message_to_another_thread_is_posted_there_and_known_there",
    "memory::test_what_is_forgotten_is_in_no_later_request",
    "outages::test_a_person_can_try_now_ask_another_model_or_stop",
    "recall::test_what_means_the_same_is_found_and_its_source_named",
    "request_size::test_a_call_through_more_tools_is_the_tools_own",
    "resumed_calls::test_a_call_is_made_again_only_where_its_tool_allows_it",
    "subagents::test_a_childs_question_is_put_to_the_person_and_outlives_a_restart",
    "taint::test_a_message_of_somebody_who_is_not_trusted_taints",
    "turns::test_a_context_overflow_leaves_the_oldest_turns_out_once",
    "turns::test_an_answer_cut_off_at_the_token_limit_goes_on",
    "turns::test_the_step_limit_ends_with_an_answer",
    "turns::test_the_window_starts_anew_after_a_clear",
    "undo::test_the_model_is_told_with_the_next_message",
)


def main() -> int:
    """Play them with `tests.journals.keep` looking on."""
    folder = FOLDER / VERSION
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    names = [f"tests/scenarios/test_{name}.py::{test}" for name, test in (one.split("::") for one in SCENARIOS)]
    return pytest.main(["-q", "-p", "tests.journals.keep", f"--basetemp={BASE / 'homes'}", *names])


if __name__ == "__main__":
    sys.exit(main())

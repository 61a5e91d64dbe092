"""`python -m tests.journals`: plays scenarios and keeps their journals under the name of this version.

Run it at a release. What is here of that version is written anew; other versions' stay as they were written.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from tests.journals import FOLDER

from shoal.domain.version import VERSION

SCENARIOS = (
    "approvals::test_a_question_outlives_a_restart",
    "attachments::test_a_text_file_comes_with_its_beginning",
    "attachments::test_an_image_is_shown_whatever_it_is_called",
    "branches::test_an_earlier_turn_tried_again_leaves_what_followed_on_another_branch",
    "branches::test_a_fork_within_a_turn_ends_that_turn",
    "context::test_a_long_conversation_is_summarised_between_turns",
    "context::test_an_overflow_is_answered_by_a_summary_and_one_retry",
    "context::test_a_summary_that_fails_drops_nothing",
    "context::test_instructions_that_fill_the_window_that_was_learnt_are_fitted_to_it",
    "small_windows::test_what_does_not_fit_is_not_called_a_long_conversation",
    "interrupts::test_a_steer_skips_the_rest_of_the_step",
    "interrupts::test_stop_keeps_what_was_said_and_the_queue_goes_on",
    "mcp::test_a_person_is_asked_first_and_the_result_taints",
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
    base = Path(tempfile.gettempdir(), "shoal-journals")  # the same each time: it stands in system texts
    return pytest.main(["-q", "-p", "tests.journals.keep", f"--basetemp={base}", *names])


if __name__ == "__main__":
    sys.exit(main())

"""The page of messages by code: each code has one section, which says what safecache does about it."""

from __future__ import annotations

import ast
import fnmatch
import re
from pathlib import Path

import pytest

import safecache
from safecache.reporting import events
from safecache.reporting.kinds import Reason

PAGE = (Path(safecache.__file__).parent / "guide" / "errors.md").read_text()
SECTION = re.compile(r"^### (.+)\n\n((?:.+\n)+?)\n((?:\* .+\n(?:  .+\n)*)+)", re.MULTILINE)
SECTIONS = {code: (text, rows) for code, text, rows in SECTION.findall(PAGE)}
ALERTS = (Path(safecache.__file__).parent / "guide" / "deploy" / "alerts.yaml").read_text()
URGENCY = PAGED, TODAY, _ = "Page somebody", "Look today", "No action"
TESTS = Path(__file__).parents[2]
# Of each code, a test that produces it and then applies the fix of its section, or shows that none is needed.
TRIED = {
    Reason.UNSEALED: "tests/contract/test_stock_torch.py::test_cache_of_stock_is_one_error_with_its_remedy_in_strict_mode",
    Reason.UNKNOWN_KEY: "tests/faults/test_keys.py::test_server_that_trusts_the_farm_hits_and_seals_with_its_own_key",
    Reason.UNKNOWN_FORMAT: "tests/faults/test_authenticity.py::test_attack_on_entries_that_another_process_compiles_with",
    Reason.DAMAGED: "tests/faults/test_damaged_entries.py::test_damaged_entry_is_a_miss_that_is_said_once_and_heals",
    Reason.BAD_SEAL: "tests/faults/test_authenticity.py::test_attack_on_entries_that_another_process_compiles_with",
    Reason.OTHER_KIND: "tests/faults/test_authenticity.py::test_attack_on_entries_that_another_process_compiles_with",
    Reason.OTHER_CACHE_KEY: "tests/faults/test_authenticity.py::test_attack_on_entries_that_another_process_compiles_with",
    Reason.REVOKED_KEY: "tests/faults/test_keys.py::test_entries_of_a_revoked_farm_are_compiled_anew",
    Reason.EXPIRED_KEY: "tests/faults/test_authenticity.py::test_attack_on_entries_that_another_process_compiles_with",
    Reason.OTHER_NAMESPACE: "tests/faults/test_keys.py::test_entries_of_another_namespace_are_compiled_anew_and_left",
    Reason.KEY_NOT_ALLOWED: "tests/faults/test_keys.py::test_server_that_trusts_the_farm_hits_and_seals_with_its_own_key",
    Reason.NOT_PRIVATE: "tests/contract/test_stock_torch.py::test_private_trust_refuses_what_others_can_write",
    Reason.NOT_A_FILE: "tests/faults/test_damaged_entries.py::test_damaged_entry_is_a_miss_that_is_said_once_and_heals",
    Reason.FOREIGN_OWNER: "tests/faults/test_shared_cache.py::test_without_the_setting_the_second_user_compiles_and_is_told",
    Reason.TOO_LARGE: "tests/fs/test_giant_files.py::test_entry_that_a_trusted_key_has_sealed_is_read_whatever_its_size",
    Reason.WRONG_TYPE: "tests/faults/test_damaged_entries.py::test_entry_that_verifies_but_is_no_entry_is_refused",
    Reason.OTHER_CPU: "tests/built_code/test_gate.py::test_code_for_a_cpu_that_has_more_is_refused",
    Reason.OTHER_GPU: "tests/faults/test_other_builds.py::test_entries_of_another_build_are_a_miss_and_heal",
    Reason.OTHER_BUILD: "tests/faults/test_other_builds.py::test_entries_of_another_build_are_a_miss_and_heal",
    Reason.OUTDATED: "tests/faults/test_other_builds.py::test_library_of_another_torch_is_built_anew_without_a_word",
    Reason.STALE: "tests/fingerprints/test_edits.py::test_entries_from_before_are_refused_once_where_custom_ops_are",
    Reason.EMPTY: "tests/fingerprints/test_servers.py::test_a_model_with_no_compiled_part_is_an_error_by_name",
    Reason.OTHER_RANK: "tests/fingerprints/test_ranks.py::test_each_rank_has_entries_of_its_own_under_one_key",
    Reason.UNSAFE_NAME: "tests/faults/test_planted_arrivals.py::test_what_arrives_in_a_mega_cache_beside_a_name_that_is_refused_is_taken",
    Reason.EXPOSED_DIRECTORY: "tests/tiers/test_exposure.py::test_is_said_once_with_the_evidence_and_every_remedy",
    Reason.CRASHED_RUN: "tests/faults/test_crash_loops.py::test_key_that_crashes_again_after_a_compile_is_not_looked_up",
    Reason.FAILED_RUN: "tests/faults/test_crash_loops.py::test_exception_of_the_code_itself_sets_it_aside",
    Reason.UNREADABLE: "tests/faults/test_unreadable_records.py::test_library_is_built_elsewhere_with_one_warning_and_stays",
    Reason.UNLOADABLE: "tests/contract/test_lookups.py::test_entry_that_torch_cannot_use_is_why_its_lookups_missed",
    Reason.REMOTE_FAILED: "tests/contract/test_lookups.py::test_remote_cache_that_fails_is_why_its_lookups_missed",
    Reason.REMOTE_UNAVAILABLE: "tests/remote/test_clients.py::test_remote_that_fails_once_is_left_alone_and_asked_again_after_a_while",
    Reason.ENTRY_MISSING: "tests/faults/test_damaged_entries.py::test_entry_of_a_hit_whose_graph_is_gone_recompiles_where_torch_is_strict",
    Reason.NEVER_SEEN: "tests/contract/test_lookups.py::test_cold_start_misses_what_was_never_seen_and_the_warm_one_hits",
    Reason.KEY_DIFFERS: "tests/explain/test_graph_causes.py::test_changed_part_is_named_with_both_values_in_both_caches",
    Reason.EVICTED: "tests/explain/test_lost_entries.py::test_deleted_entry_is_told_from_another_key",
    Reason.GUARD_FAILED: "tests/contract/test_lookups.py::test_guard_that_does_not_hold_is_why_a_lookup_missed",
    Reason.OTHER_RANK_MISSED: "tests/single_flight/test_compiles.py::test_rank_that_hits_compiles_with_one_that_does_not",
    Reason.SAMPLED: "tests/recompile_check/test_in_process.py::test_honest_hit_is_compiled_alike_once_in_a_process_and_not_saved_again",
    Reason.UPSTREAM_BYPASS: "tests/contract/test_lookups.py::test_what_torch_declines_to_cache_is_a_bypass",
    Reason.DISABLED: "tests/contract/test_lookups.py::test_cache_that_a_setting_turns_off_is_bypassed",
    Reason.LOOKUP_FAILED: "tests/entries/test_searches.py::test_lookup_that_fails_is_a_bypass",
    Reason.FEATURE_FAILED: "tests/reporting/test_observers.py::test_one_that_fails_is_reported_and_told_no_more_and_the_others_hear",
    Reason.UNPICKLABLE: "tests/faults/test_unpicklable_entries.py::test_compile_goes_on_with_one_warning_that_names_the_path",
    Reason.UNPREPARED: "tests/faults/test_unpicklable_entries.py::test_graph_that_cannot_be_prepared_is_not_saved",
    Reason.NOT_CACHEABLE: "tests/faults/test_unpicklable_entries.py::test_uncacheable_graph_is_no_failure_where_torch_is_strict",
    Reason.INCOMPLETE: "tests/faults/test_unpicklable_entries.py::test_compile_goes_on_with_one_warning_that_names_the_path",
    Reason.UNWRITABLE: "tests/faults/test_failed_artifact_writes.py::test_file_in_place_of_the_folder_bypasses_the_save",
    Reason.UNUSABLE_DIRECTORY: "tests/faults/test_failed_writes.py::test_full_disk_costs_one_warning",
    Reason.LOCK_HELD: "tests/faults/test_held_locks.py::test_library_that_is_not_attested_waits_for_the_lock",
    Reason.NOT_EXECUTABLE: "tests/faults/test_noexec.py::test_probe_of_vector_instructions_is_made_elsewhere",
    Reason.EXEC_DIR_UNUSABLE: "tests/faults/test_exec_directory.py::test_unsafe_directory_is_refused_with_the_reason",
    Reason.NOT_TRIMMED: "tests/upkeep/test_limits.py::test_sweep_that_cannot_be_started_is_one_warning_and_no_error",
    Reason.NO_KEY: "tests/faults/test_failed_writes.py::test_key_that_cannot_be_made_bypasses_the_save_and_says_how_to_give_one",
    Reason.KEY_REFUSED: "tests/signing/test_keyring_directory.py::test_problem_is_said_once_and_names_the_file",
    Reason.STOOD_DOWN: "tests/hooks/test_standing_down.py::test_hook_is_put_on_once_the_function_is_what_we_know",
    Reason.NOT_ISOLATED: "tests/crashes/test_crashes_in_compiles.py::test_what_needs_this_process_stays_in_it_with_its_reason",
    Reason.CRASHED: "tests/crashes/test_tuning.py::test_result_and_order_are_those_of_a_tuning_one_by_one",
    Reason.CRASHED_BEFORE: "tests/crashes/test_crash_reports.py::test_forgotten_crash_is_met_again_and_reported_where_it_was",
    Reason.NOT_EXPLAINED: "tests/fingerprints/test_functions.py::test_an_op_that_raises_when_it_is_looked_at_is_reported_and_a_miss",
    Reason.DIFFERS: "tests/recompile_check/test_in_process.py::test_stale_hit_is_not_used_and_replaced_with_evidence",
    Reason.NOT_RECOMPILED: "tests/recompile_check/test_sampling.py::test_what_cannot_be_compared_is_saved_and_told",
}


def urgency(code):
    """The last words of its first paragraph."""
    return re.search(r"\*\*([^*]+)\.\*\*$", SECTIONS[code][0].rstrip())[1]


def test_every_code_has_one_section():
    assert re.findall(r"^### (.+)$", PAGE, re.MULTILINE) == list(SECTIONS)
    assert sorted(SECTIONS) == sorted(reason.value for reason in Reason)


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value)
def test_section_says_cause_fix_check_and_what_strict_mode_raises(reason):
    text, rows = SECTIONS[reason.value]
    action = events.decide_action(reason, strict=True)
    last = [] if action.error is None else ["Strict"]
    assert re.findall(r"^\* \*\*(\w+)\*\*: \S", rows, re.MULTILINE) == ["Cause", "Fix", "Check", *last]
    assert action.error is None or rows.splitlines()[-1] == f"* **Strict**: `{action.error.__name__}`."
    assert ("quarantined" in text) == action.quarantine


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value)
def test_section_says_in_one_phrase_how_urgent_it_is(reason):
    text, rows = SECTIONS[reason.value]
    assert len(re.findall("|".join(URGENCY), text + rows)) == 1 and urgency(reason.value) in URGENCY
    silent = not events.decide_action(reason, strict=False).warn
    assert not silent or urgency(reason.value) != PAGED, "nobody would see it without metrics"


def test_alert_that_pages_has_the_codes_that_say_so_and_no_other():
    """And each other alert that names codes has none of those that need no action."""
    paged, others = set(), set()
    for alert in ALERTS.split("- alert: ")[1:]:
        codes = {code for found in re.findall(r'reason=~?"([^"]+)"', alert) for code in found.split("|")}
        (severity,) = re.findall(r"severity: (\w+)", alert)
        assert severity in ("critical", "warning")
        (paged if severity == "critical" else others).update(codes)
    assert paged == {code for code in SECTIONS if urgency(code) == PAGED}
    assert others and {urgency(code) for code in others} == {TODAY}


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value)
def test_command_that_a_message_names_prints_the_section_of_its_code(reason, run):
    said = run(*reason.help.split()[1:])
    assert said.code == 0 and said.lines[0] == f"### {reason.value}"
    assert re.findall(r"^### ", said.out, re.MULTILINE) == ["### "] and "## " not in said.out.replace("### ", "")


def test_section_that_is_not_there_is_named(run):
    said = run("help", "errors#no-such-code")
    assert said.code == 2 and "no-such-code" in said.err


def test_every_report_says_what_happened_and_why():
    calls = [
        (path, call)
        for path in Path(safecache.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "events.report"
    ]
    lacking = [f"{path}:{call.lineno}" for path, call in calls if "why" not in {each.arg for each in call.keywords}]
    assert len(calls) > 30 and not lacking


def test_fix_of_every_code_was_tried_in_a_test():
    assert list(TRIED) == list(Reason)
    for place in set(TRIED.values()):
        file, _, name = place.partition("::")
        defined = [
            node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert defined.count(name) == 1, place
        assert name.startswith("test_") and fnmatch.fnmatch(Path(file).name, "test_*.py"), place

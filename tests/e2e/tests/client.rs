//! The contract by the public Python client, unmodified: each check of `client/*.py` is a test of its own, with a Python
//! and a server of its own. A check that is written and not listed here is a failure, not a gap.

use std::path::{Path, PathBuf};

/// A test for each check; the name of the test is that of the check.
macro_rules! checks {
    ($($file:ident: $($name:ident)+;)+) => {
        $(mod $file {
            $(#[test]
            fn $name() {
                super::run(stringify!($file), stringify!($name));
            })+
        })+

        const LISTED: &[(&str, &[&str])] = &[$((stringify!($file), &[$(stringify!($name)),+])),+];
    };
}

checks! {
    account:
        making_a_runtime_calls_nothing
        me_tells_who_the_key_is
        limits_are_told
        request_reaches_any_route
        a_runtime_closes_with_its_block
        no_key_and_wrong_keys_are_refused_before_anything_else
        health_and_the_document_need_no_key
        unknown_routes_verbs_and_methods_are_told_apart
        every_answer_has_its_own_request_id
        an_empty_body_is_an_empty_object
        what_is_not_built_says_so;
    lifecycle:
        create_waits_until_it_runs
        create_without_waiting_is_starting_and_comes_up
        a_command_to_one_that_is_starting_waits_for_it
        create_takes_every_field
        every_wrong_field_of_a_create_is_named
        get_connect_and_refresh_read_the_same
        the_module_level_shortcuts_work
        delete_ends_everything_at_once_and_again
        delete_works_in_every_state
        list_is_oldest_first_and_pages
        list_filters_by_name_labels_and_state
        stop_all_and_delete_all_take_what_matches
        wait_for_answers_at_the_state_or_at_the_limit
        stop_keeps_the_disk_and_restart_brings_it_back
        another_size_keeps_the_disk
        stop_without_waiting_ends_stopped
        names_are_unique_while_held
        get_or_create_finds_restarts_or_makes
        two_hundred_callers_racing_on_a_new_name_get_one_sandbox
        fifty_callers_racing_without_get_or_create_make_one
        update_changes_only_what_is_given
        a_running_command_keeps_the_environment_it_started_with
        a_time_limit_stops_the_sandbox_and_keeps_its_disk
        a_block_deletes_what_it_created_and_stops_what_it_found
        extend_changes_nothing_without_a_time_limit
        extend_moves_the_end
        retention_is_kept
        keep_alive_of_one_without_a_limit_asks_for_nothing
        twenty_sandboxes_at_once_all_come_up;
    pause:
        memory_and_processes_survive
        the_same_after_its_memory_went_to_the_disk
        a_paused_one_outlives_the_server
        calls_into_it_wake_it
        its_name_wakes_it
        a_command_in_flight_goes_on_after_the_wake
        a_command_that_a_pause_met_is_no_replay_and_keeps_its_output
        one_that_cannot_be_written_down_stays_in_memory_and_wakes
        what_pauses_by_itself
        many_pause_and_wake_at_once;
    snapshot:
        a_disk_is_kept_while_its_source_goes_on
        memory_and_processes_go_on_in_a_copy
        of_one_that_is_paused_or_stopped
        they_are_found_changed_and_deleted
        a_repeated_snapshot_is_taken_once
        a_command_goes_on_through_a_snapshot
        one_of_a_full_disk_is_whole
        it_outlives_the_server_and_its_source;
    fork:
        each_copy_is_somebody_of_its_own
        one_copy_without_a_count_and_what_can_be_said
        a_paused_one_stays_paused
        a_repeated_fork_is_made_once
        a_running_command_is_in_every_copy;
    sessions:
        a_page_runs_commands_and_moves_files
        a_page_reaches_nothing_else
        an_ended_session_is_over_at_once_and_so_is_what_it_follows;
    previews:
        a_port_is_shared_and_taken_back
        a_token_lasts_as_long_as_was_asked
        who_may_frame_it_is_kept_until_it_is_said_again
        a_visit_wakes_a_paused_one
        a_page_reads_them_and_its_token_ends_with_it;
    commands:
        a_shell_command_and_its_result
        an_argv_sees_no_shell
        the_place_a_command_runs_in
        root_and_sudo
        stdin_is_given_and_closed
        large_commands_and_environments_fit
        every_wrong_field_of_an_exec_is_named
        signals_are_negative_codes
        a_timeout_is_a_result_and_takes_the_tree
        what_a_command_started_dies_with_it
        an_early_exit_does_not_wait_for_a_held_pipe
        output_is_cut_at_the_limit_and_says_so
        bytes_that_are_no_text_become_replacement_characters
        check_raises_with_what_happened
        callbacks_get_the_output_as_it_comes
        a_long_timeout_streams_and_gives_the_same_result
        exec_stream_gives_events_in_order
        stream_offsets_count_bytes_whatever_they_are
        a_stream_that_is_left_does_not_hold_the_command
        a_hundred_execs_at_once_keep_their_outputs_apart
        exec_reads_and_writes_across_calls
        many_lines_from_both_outputs_lose_nothing;
    processes:
        spawn_answers_at_once_and_the_process_lives_on
        spawn_takes_every_field
        processes_are_listed_with_those_that_ended
        output_follows_and_begins_where_asked
        output_is_polled_with_a_cursor
        a_process_keeps_the_last_mebibyte_and_says_what_is_lost
        a_follower_that_reads_loses_nothing
        wait_gives_both_outputs
        input_is_written_counted_and_closed
        a_resent_write_is_not_written_twice
        a_writer_to_one_who_does_not_read_is_told_how_much_went_in
        signals_reach_the_whole_tree
        a_process_ends_with_its_leader_whoever_holds_its_output
        processes_outlive_the_connection_and_end_with_the_sandbox
        base64_output_is_exact;
    files:
        what_is_written_is_read
        content_carries_its_length_and_digest
        one_mebibyte_fits_and_one_byte_more_does_not
        modes_are_set_and_kept
        stat_tells_everything_and_missing_is_no_error
        list_shows_one_level_and_more_when_asked
        glob_matches_the_relative_path
        links_are_listed_and_not_followed
        a_directory_of_many_files_is_listed_up_to_the_limit
        mkdir_makes_parents_and_is_content_with_what_is_there
        remove_says_whether_there_was_something
        rename_moves_and_replaces_only_when_told
        refusals_name_the_path
        special_files_do_not_hang_or_fill_the_server
        a_write_is_whole_or_not_at_all
        eight_readers_and_writers_at_once
        a_home_full_of_links_cannot_lead_a_write_out_of_what_the_user_may;
    transfers:
        a_large_file_is_written_whole_with_its_mode
        chunks_come_in_any_order_and_again
        what_cannot_be_uploaded_is_refused
        an_upload_rides_through_a_crash_of_the_server
        what_a_stop_left_unfinished_is_removed_at_the_restart
        a_full_disk_ends_an_upload_and_frees_what_it_took
        folders_go_up_and_come_down_the_same
        archives_leave_out_what_is_named_and_see_what_root_sees
        an_archive_that_cannot_be_read_whole_is_cut
        hostile_archives_reach_nothing_outside
        a_large_archive_rides_through_a_crash_of_the_server;
    terminals:
        a_process_with_a_terminal
        a_resize_reaches_the_program
        the_end_of_input_is_told_to_a_terminal
        a_terminal_shows_a_shell
        a_terminal_runs_what_it_is_told_as_whom_and_where
        a_full_screen_of_bytes_comes_exactly
        several_terminals_show_one_process
        a_shell_is_hung_up_when_its_terminal_goes
        twelve_terminals_and_no_more
        a_terminal_goes_on_after_a_crash_of_the_server
        sockets_are_refused_as_the_contract_says
        a_stop_ends_what_is_open
        ports_are_forwarded_byte_for_byte
        a_server_that_speaks_first_is_heard
        a_tunnel_by_hand
        who_sends_past_the_credit_is_cut_off
        a_reader_that_is_slow_loses_nothing_and_holds_up_nobody_else
        many_connections_of_one_tunnel_are_kept_apart;
    watches:
        each_change_inside_is_told_as_what_it_is
        the_client_iterates_filters_lists_and_stops
        a_watch_survives_a_pause_and_never_wakes
        the_client_reads_on_after_a_pause
        a_copy_with_its_memory_watches_too
        a_watch_outlives_the_server
        reading_is_no_use_of_the_sandbox
        ten_thousand_directories_are_watched;
    idempotency:
        a_repeated_create_answers_the_same_sandbox
        another_request_under_the_same_key_is_refused
        a_repeated_exec_runs_once
        a_repeated_stream_is_told_again_and_runs_once
        a_resend_while_it_runs_attaches
        thirty_creates_racing_under_one_key_make_one
        refusals_are_not_remembered_when_they_may_pass
        every_kind_of_change_is_replayed
        keys_are_known_after_the_server_was_killed
        what_only_the_agent_remembers_is_a_replay_too
        a_client_rides_through_a_crash_of_the_server
        a_stream_rides_through_a_crash_of_the_server
        a_process_and_its_output_survive_a_crash_of_the_server;
    network:
        a_sandbox_that_says_nothing_is_open
        rules_of_a_create_are_read_back
        set_replaces_everything
        off_and_on
        wrong_rules_are_named
        decisions_are_listed;
    asynchronous:
        every_call_ends
        lifecycle_and_lists
        commands
        processes;
    traces:
        an_exec_tells_the_files_it_read_and_wrote
        links_are_resolved_and_what_a_child_or_sudo_opens_counts
        a_streamed_exec_ends_with_its_files
        a_process_tells_its_files_after_its_end
        a_repeat_of_a_traced_exec_tells_the_same_files
        programs_of_every_kind_run_traced_as_they_do_without;
    adapter_e2b:
        create_run_write_read_kill
        what_its_users_do_next
        its_commands_live_on_and_are_found_again
        its_terminals
        its_files_and_watches
        its_pauses_copies_and_snapshots
        its_asynchronous_half
        what_it_refuses_by_its_own_design;
    adapter_daytona:
        commands_and_code
        sessions_keep_their_place
        terminals
        files
        git_in_the_sandbox
        stops_copies_and_settings
        its_asynchronous_half
        what_it_refuses_by_its_own_design;
    adapter_modal:
        processes
        the_one_that_a_sandbox_is_for
        files_and_watches
        names_tags_and_copies
        what_it_refuses_by_its_own_design;
    adapter_blaxel:
        processes
        files_and_watches
        previews_sessions_and_copies
        its_asynchronous_half
        what_it_refuses_by_its_own_design;
    adapter_vercel:
        processes
        files
        stops_copies_and_settings
        its_asynchronous_half
        what_it_refuses_by_its_own_design;
}

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("client")
}

fn run(file: &str, name: &str) {
    runtime_test_kit::client::check(&dir(), file, name);
}

#[test]
fn every_check_that_is_written_is_run() {
    for entry in std::fs::read_dir(dir()).expect("the checks") {
        let path = entry.expect("a file of checks").path();
        let Some(file) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".py")) else { continue };
        let text = std::fs::read_to_string(&path).expect("a file of checks");
        let written: Vec<&str> = text
            .split("\n@check\ndef ")
            .skip(1)
            .filter_map(|rest| rest.split_once('('))
            .map(|(name, _)| name)
            .collect();
        let listed = LISTED.iter().find(|(known, _)| *known == file).map_or(&[][..], |(_, names)| names);
        assert_eq!(written, listed, "{file}.py and the list in this file differ");
    }
}

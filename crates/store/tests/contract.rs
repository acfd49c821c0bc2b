//! What every `Store` promises. A promise is a function over `&dyn Store`; `promises!` is the list of all of
//! them, and each backend runs the whole list on a fresh database of its own.

#[path = "contract/adoption.rs"]
mod adoption;
#[path = "contract/agents.rs"]
mod agents;
#[path = "contract/audit.rs"]
mod audit;
#[path = "contract/fixture.rs"]
mod fixture;
#[path = "contract/idempotency.rs"]
mod idempotency;
#[path = "contract/log.rs"]
mod log;
#[path = "contract/owners.rs"]
mod owners;
#[path = "contract/purge.rs"]
mod purge;
#[path = "contract/reading.rs"]
mod reading;
#[path = "contract/remote_state.rs"]
mod remote_state;
#[path = "contract/replication.rs"]
mod replication;
#[path = "contract/retention.rs"]
mod retention;
#[path = "contract/sessions.rs"]
mod sessions;
#[path = "contract/sqlite.rs"]
mod sqlite;
#[path = "contract/trash.rs"]
mod trash;
#[path = "contract/usage.rs"]
mod usage;

/// Hands the list of promises to a macro, which makes a test of each.
macro_rules! promises {
    ($keep:ident) => {
        $keep! {
            sessions::a_new_session_is_found_as_it_was_made
            sessions::what_was_never_made_is_not_found
            sessions::tenants_do_not_see_each_other
            sessions::a_taken_id_makes_nothing_at_all
            sessions::of_many_who_want_one_id_one_gets_it
            sessions::an_environment_comes_back_only_for_its_session
            sessions::options_can_be_changed
            sessions::lists_are_newest_first_filtered_and_counted
            sessions::pages_of_a_list_leave_nothing_out
            sessions::the_restless_are_awake_starting_or_have_open_turns
            sessions::a_fork_says_where_it_comes_from
            owners::an_owner_sees_and_finds_only_their_own
            owners::a_key_knows_its_owner
            owners::a_workspace_is_its_owners
            owners::what_is_noted_is_replaced_with_the_step_that_says_so
            owners::lists_are_narrowed_by_everything_that_is_asked
            audit::an_end_is_told_with_who_ordered_it
            audit::a_purge_that_was_ordered_comes_with_the_end
            audit::a_step_that_fails_is_not_told
            audit::every_deed_has_its_line_and_pages_leave_none_out
            audit::what_is_overdue_or_has_rested_is_found
            adoption::a_purged_session_leaves_a_tombstone_until_it_is_sent
            adoption::a_session_that_is_made_again_begins_with_a_later_epoch
            adoption::what_the_rules_give_up_is_in_the_audit
            adoption::a_longer_history_goes_on_where_the_database_stopped
            adoption::a_history_that_took_another_way_becomes_a_fork
            adoption::a_log_that_grew_since_it_was_compared_is_left_alone
            adoption::how_far_logs_go_is_told_with_the_trash
            usage::a_step_counts_what_it_says_or_nothing
            usage::sums_are_of_what_one_may_see
            usage::sums_are_of_a_time
            usage::what_a_forgotten_session_used_stays_without_its_name
            usage::the_largest_numbers_can_be_summed
            usage::what_a_sandbox_took_is_told_twice_and_counted_once
            log::a_step_is_there_as_a_whole
            log::a_step_that_fails_at_its_end_leaves_nothing
            log::only_the_holder_writes
            log::a_step_must_follow_the_one_before
            log::a_refused_step_does_not_hurt_its_neighbours
            log::of_many_steps_with_one_place_one_gets_it
            log::events_are_dense_and_in_order
            log::facts_leave_out_what_the_agent_said
            log::a_step_without_events_keeps_deltas_and_position
            log::a_journals_place_is_forgotten_with_its_shim
            log::a_turns_row_follows_its_turn
            log::of_a_turns_rows_in_one_step_the_last_counts
            log::checkpoints_belong_to_their_workspace
            log::checkpoints_are_listed_newest_first_in_pages
            log::of_many_claims_from_one_hold_one_wins
            log::a_claim_names_exactly_whom_it_takes_over_from
            log::two_hundred_sessions_write_at_once
            reading::deltas_stand_between_the_events_they_came_between
            reading::pages_may_be_cut_anywhere
            reading::a_cursor_among_deltas_that_are_gone_goes_on_at_the_next_event
            reading::a_fork_begins_with_what_it_shares
            reading::a_fork_of_a_fork_shares_both
            reading::a_fork_may_leave_before_its_parent_began
            reading::a_fork_may_leave_exactly_where_its_parent_began
            reading::a_long_line_of_forks_reads_like_one_log
            reading::events_can_be_chosen_by_kind
            reading::a_page_of_huge_lines_may_be_short_but_is_never_empty
            agents::a_deployed_agent_is_there_as_it_came
            agents::each_deploy_is_a_version_of_its_own
            agents::one_idempotency_key_makes_one_version
            agents::what_is_kept_of_agents_counts_deleted_ones
            agents::agents_are_listed_by_name
            agents::an_agent_changes_only_where_it_is_asked_to
            agents::a_deleted_agent_goes_on_counting_but_forgets_its_settings
            agents::a_key_opens_its_tenant_until_it_is_removed
            retention::checkpoints_are_given_up_but_for_those_that_are_needed
            retention::nobody_comes_to_stand_on_what_was_given_up
            trash::what_is_in_the_trash_is_seen_by_nobody
            trash::nothing_is_left_of_what_is_buried
            trash::a_parent_stays_as_long_as_its_forks
            purge::the_id_of_a_purged_session_is_free_at_once
            purge::forks_of_a_purged_session_say_only_that_they_are_forks
            purge::what_forks_do_not_share_of_a_parent_goes
            purge::those_that_worked_beside_it_do_not_name_it
            purge::the_audit_keeps_its_lines_of_a_purged_session_without_its_name
            purge::idempotency_keys_of_a_purged_session_are_free
            purge::a_parent_that_comes_back_for_its_forks_stays_in_the_trash
            replication::what_was_not_sent_is_to_be_sent
            replication::an_agent_that_changes_is_sent_again
            replication::what_comes_back_is_as_it_was
            replication::a_fork_comes_back_after_its_parent
            replication::what_is_to_be_deleted_is_told_until_it_is
            replication::a_sealed_environment_travels_sealed
            replication::secrets_are_stored_sealed_and_change
            remote_state::what_is_said_to_be_remote_is_listed
            remote_state::what_is_taken_back_is_to_be_sent_again
            remote_state::what_was_sent_since_is_not_taken_back
            remote_state::what_is_missing_is_forgotten_with_its_pack_and_its_place
            idempotency::a_retry_finds_what_the_first_made
            idempotency::of_many_at_once_one_is_the_first
            idempotency::a_refused_key_is_free_unless_its_turn_was_accepted
            idempotency::an_old_key_may_be_used_again
            idempotency::old_deltas_go_but_not_those_of_a_turn_that_is_not_over
            idempotency::an_old_delta_of_no_turn_goes
        }
    };
}

mod on_sqlite {
    use super::{
        adoption, agents, audit, idempotency, log, owners, purge, reading, remote_state, replication,
        retention, sessions, sqlite, trash, usage,
    };

    macro_rules! kept {
        ($($room:ident::$promise:ident)*) => {
            $(
                #[tokio::test]
                async fn $promise() {
                    let (store, _dir) = sqlite::fresh().await;
                    $room::$promise(&store).await;
                }
            )*
        };
    }

    promises!(kept);
}

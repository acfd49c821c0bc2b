//! Repeats these tests with containers instead of bubblewrap.

use crate::support::docker::again;

#[test]
fn as_root_in_docker_every_death_means_the_same() {
    again(&["deaths::"]);
}

#[test]
fn as_root_in_docker_a_restart_changes_nothing() {
    again(&["restart::a_crash", "restart::a_graceful", "restart::a_warm", "restart::when_everything"]);
}

#[test]
fn slowly_as_root_in_docker_nothing_is_lost_when_the_server_is_killed_again_and_again() {
    again(&["kill_server::nothing_a_client_saw"]);
}

//! Repeats these tests with containers instead of bubblewrap.

use crate::support::docker::again;

#[test]
fn slowly_as_root_in_docker_sessions_share_a_workspace() {
    again(&["shared::"]);
}

#[test]
fn as_root_in_docker_named_workspaces_meet_their_requirements() {
    again(&["acceptance::with_the_built_in_agent"]);
}

#[test]
fn slowly_as_root_in_docker_named_workspaces_meet_their_requirements_with_claude_code() {
    again(&["acceptance::with_claude_code"]);
}

//! Repeats these tests with containers instead of bubblewrap.

use crate::support::docker::again;

#[test]
fn as_root_in_docker_claude_code_lives_on() {
    again(&["claude::a_conversation_survives_every_death", "claude::a_turn_in_which_it_dies"]);
}

#[test]
fn slowly_as_root_in_docker_claude_code_comes_back_by_every_step() {
    again(&["ladder::the_steps_down"]);
}

#[test]
fn as_root_in_docker_keys_stay_outside() {
    again(&["the_key_is_nowhere_inside"]);
}

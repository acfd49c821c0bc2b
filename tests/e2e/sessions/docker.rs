//! Repeats these tests with containers instead of bubblewrap.

use crate::support::docker::again;

#[test]
fn as_root_in_docker_sandboxes_are_evicted_and_prewarmed() {
    let makes_way = ["pool::whoever_nobody", "pool::what_lives", "pool::a_shared"];
    again(&[&makes_way[..], &["prewarmed::a_session_cannot_tell", "prewarmed::none_outlives"]].concat());
}

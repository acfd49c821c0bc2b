//! The binary `ash` as people use it: the command line, the shell, `ash doctor`, folders and snapshots.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod dev_fill;
mod doctor;
mod folder;
mod manners;
mod model_server;
mod ordinary_user;
mod permissions_shell;
mod snapshot;
#[path = "../support.rs"]
mod support;

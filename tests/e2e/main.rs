//! End to end: the real binary, the real sandbox, the built-in agent, and clients that we did not write.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod acceptance;
mod archives;
mod artifacts;
mod bad_input;
mod boundary;
mod builtin_model;
mod busy;
mod claude;
mod claude_kills;
mod cleaning;
mod clients;
mod config_race;
mod corners;
mod crowd;
mod deaths;
mod docker;
mod doctor;
mod edge;
mod engine;
mod far;
mod far_claims;
mod far_clean;
mod far_faults;
mod far_vanished;
mod files;
mod folder;
mod full_disk;
#[path = "../support/gcs.rs"]
mod gcs;
mod guide;
mod history;
mod hostile;
mod hostile_workspace;
mod idle;
mod infinite;
mod keep;
mod kill_server;
mod ladder;
mod life;
mod limits;
mod lost_tree;
mod manners;
mod model;
mod model_server;
mod options;
mod ordinary_user;
mod own_key;
mod owners;
mod permissions;
mod permissions_shell;
mod pool;
mod prewarmed;
#[path = "../support/proxy.rs"]
mod proxy;
mod races;
mod restart;
mod scale;
mod secrets;
#[path = "../support/servers.rs"]
mod servers;
mod setup;
mod shared;
mod snapshot;
mod support;
mod upkeep;
mod usage;
mod verified;
mod walls;
mod witness;

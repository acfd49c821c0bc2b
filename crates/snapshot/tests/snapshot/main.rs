//! What the crate promises, asked from outside: one binary, so that it links once.

mod crash;
mod edit;
mod fidelity;
mod folder;
mod incremental;
mod ordinary_user;
mod race;
mod random;
mod support;

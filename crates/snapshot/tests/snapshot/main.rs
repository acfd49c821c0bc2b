//! What the crate promises, asked from outside: one binary, so that it links once.

mod fidelity;
mod folder;
mod ordinary_user;
mod race;
mod random;
mod support;

//! What the crate promises, asked from outside: one binary, so that it links once.

mod damage;
mod fidelity;
mod folder;
mod golden;
mod ordinary_user;
mod race;
mod random;
mod support;

//! What the crate promises, asked from outside: one binary, so that it links once.

mod audit;
mod collect;
mod crash;
mod damage;
mod depot;
mod edit;
mod evict;
mod far;
mod fidelity;
mod folder;
mod forge;
mod forged;
mod fuzz;
mod golden;
mod incremental;
mod ordinary_user;
mod race;
mod random;
mod sealed;
mod support;

//! Tests of the crate's public interface, in one binary so that it links only once.

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

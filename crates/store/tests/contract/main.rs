//! What every store promises, by subject. A promise is a function over `&dyn Store`. Each file lists its promises in
//! `contract!`, which makes a test of each for every backend, on a fresh database of its own.

/// One line for each backend. A backend is a module of this binary with a function `fresh`, which answers an empty store and
/// a guard that keeps it until the test ends.
macro_rules! contract {
    ($($promise:ident)*) => {
        contract! { @on sqlite: $($promise)* }
    };
    (@on $backend:ident: $($promise:ident)*) => {
        mod $backend {
            $(
                #[tokio::test]
                async fn $promise() {
                    let (store, _guard) = crate::$backend::fresh().await;
                    super::$promise(&store).await;
                }
            )*
        }
    };
}

mod agents;
mod audit;
mod checkpoints;
mod credentials;
mod fixture;
mod idempotency;
mod keys;
mod leases;
mod log;
mod log_reading;
mod purge;
mod remote_inventory;
mod repair;
mod replication;
mod retention;
mod sessions;
mod sqlite;
mod trash;
mod usage;
mod workspaces;

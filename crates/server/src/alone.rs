//! One at a time, session by session: whoever takes long with one session delays nobody else's.

use ash_model::SessionNo;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};
use tokio::sync::OwnedMutexGuard;

#[derive(Default)]
pub(crate) struct Alone(Mutex<HashMap<SessionNo, Arc<tokio::sync::Mutex<()>>>>);

impl Alone {
    pub(crate) async fn lock(&self, no: SessionNo) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().expect("nobody panics while holding it");
            // Those that only this map knows are nobody's.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(no).or_default().clone()
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_session_waits_and_another_does_not() {
        let alone = Alone::default();
        let held = alone.lock(SessionNo(1)).await;
        let other = alone.lock(SessionNo(2)).await;
        let mut waiting = Box::pin(alone.lock(SessionNo(1)));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(held);
        drop(waiting.await);
        drop(other);
        drop(alone.lock(SessionNo(3)).await);
        assert_eq!(alone.0.lock().expect("whole").len(), 1);
    }
}

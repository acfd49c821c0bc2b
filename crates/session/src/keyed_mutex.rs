//! A mutex for each key: slow work under one key delays no work under another.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex},
};
use tokio::sync::OwnedMutexGuard;

pub struct KeyedMutex<K>(Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>);

impl<K> Default for KeyedMutex<K> {
    fn default() -> KeyedMutex<K> {
        KeyedMutex(Mutex::default())
    }
}

impl<K: Eq + Hash> KeyedMutex<K> {
    pub async fn lock(&self, key: K) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().expect("no thread panics while holding it");
            // Remove locks that no caller holds or waits for.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(key).or_default().clone()
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_key_waits_and_another_does_not() {
        let locks = KeyedMutex::default();
        let held = locks.lock(1).await;
        let other = locks.lock(2).await;
        let mut waiting = Box::pin(locks.lock(1));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(held);
        drop(waiting.await);
        drop(other);
        drop(locks.lock(3).await);
        assert_eq!(locks.0.lock().expect("whole").len(), 1);
    }
}

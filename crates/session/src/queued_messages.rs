//! The queued messages of all sessions, by tenant, so that no tenant fills the server with unanswered messages. A
//! session at rest whose actor has ended still counts. Every session with open turns has an actor from the start on, so
//! a new server knows of all queued messages.

use ash_model::{MessageOptions, QuotaKind, QuotaReached, Quotas, SessionRowId, TenantId, TurnId};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

#[derive(Default)]
pub(crate) struct QueuedMessageLedger(Mutex<HashMap<TenantId, HashMap<SessionRowId, QueuedMessageSizes>>>);

/// The bytes of each queued message.
type QueuedMessageSizes = HashMap<TurnId, u64>;

/// A message about to be queued.
pub(crate) struct NewQueuedMessage<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) session: SessionRowId,
    pub(crate) turn: TurnId,
    pub(crate) content: &'a Value,
    pub(crate) ask: &'a MessageOptions,
}

impl QueuedMessageLedger {
    fn tenants(&self) -> MutexGuard<'_, HashMap<TenantId, HashMap<SessionRowId, QueuedMessageSizes>>> {
        self.0.lock().expect("no thread panics while holding it")
    }

    /// Counts a message, if the quotas allow it. `settle` corrects the count afterwards, whatever became of the
    /// message.
    pub(crate) fn admit(&self, quotas: &Quotas, new: &NewQueuedMessage<'_>) -> Result<(), QuotaReached> {
        let size = size(new.content, new.ask);
        let mut tenants = self.tenants();
        let sessions = tenants.entry(new.tenant.clone()).or_default();
        let total = |count: &dyn Fn(&QueuedMessageSizes) -> u64| sessions.values().map(count).sum::<u64>();
        let messages = |queue: &QueuedMessageSizes| queue.len() as u64;
        let bytes = |queue: &QueuedMessageSizes| queue.values().sum::<u64>();
        let own = sessions.get(&new.session);
        quotas.admit(QuotaKind::SessionMessages, own.map_or(0, messages), 1)?;
        quotas.admit_bytes(QuotaKind::SessionQueuedKb, own.map_or(0, bytes), size)?;
        quotas.admit(QuotaKind::TenantMessages, total(&messages), 1)?;
        quotas.admit_bytes(QuotaKind::TenantQueuedKb, total(&bytes), size)?;
        sessions.entry(new.session).or_default().insert(new.turn, size);
        Ok(())
    }

    /// Sets the queued messages of a session to exactly these.
    pub(crate) fn settle<'a>(
        &self,
        tenant: &TenantId,
        session: SessionRowId,
        waiting: impl Iterator<Item = (TurnId, &'a Value, &'a MessageOptions)>,
    ) {
        let mut tenants = self.tenants();
        let mut before = tenants.get_mut(tenant).and_then(|sessions| sessions.remove(&session));
        let known = |turn| before.as_mut().and_then(|queue| queue.remove(&turn));
        let queue: QueuedMessageSizes = sized(waiting, known);
        match queue.is_empty() {
            false => drop(tenants.entry(tenant.clone()).or_default().insert(session, queue)),
            true => tenants.retain(|_, sessions| !sessions.is_empty()),
        }
    }
}

/// Reuses known sizes, because measuring a long message takes time.
fn sized<'a>(
    waiting: impl Iterator<Item = (TurnId, &'a Value, &'a MessageOptions)>,
    mut known: impl FnMut(TurnId) -> Option<u64>,
) -> QueuedMessageSizes {
    let sized = |(turn, content, ask)| (turn, known(turn).unwrap_or_else(|| size(content, ask)));
    waiting.map(sized).collect()
}

/// The size of a message with its options, which may be as long as its content.
fn size(content: &Value, ask: &MessageOptions) -> u64 {
    let content = match content {
        Value::String(text) => text.len(),
        content => content.to_string().len(),
    };
    let ask = match *ask == MessageOptions::default() {
        true => 0,
        false => serde_json::to_string(ask).map_or(0, |json| json.len()),
    };
    (content + ask) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Queues {
        ledger: QueuedMessageLedger,
        quotas: Quotas,
    }

    impl Queues {
        fn new(quotas: &str) -> Queues {
            Queues { ledger: QueuedMessageLedger::default(), quotas: Quotas::parse(quotas).expect("quotas") }
        }

        /// `None`: the message was admitted.
        fn send(&self, tenant: &str, session: i64, content: &Value) -> Option<(&'static str, u64, u64)> {
            self.send_with(tenant, session, (content, &MessageOptions::default()))
        }

        fn send_with(
            &self,
            tenant: &str,
            session: i64,
            (content, ask): (&Value, &MessageOptions),
        ) -> Option<(&'static str, u64, u64)> {
            let tenant = TenantId::parse(tenant).expect("a name");
            let (session, turn) = (SessionRowId(session), TurnId::fresh());
            let new = NewQueuedMessage { tenant: &tenant, session, turn, content, ask };
            let refused = self.ledger.admit(&self.quotas, &new).err()?;
            Some((refused.quota.as_str(), refused.limit, refused.used))
        }
    }

    #[test]
    fn messages_that_wait_are_counted_by_session_and_by_tenant() {
        let queues = Queues::new("sessionMessages=2,tenantMessages=3");
        let hi = json!("hi");
        assert_eq!([queues.send("a", 1, &hi), queues.send("a", 1, &hi)], [None, None]);
        assert_eq!(queues.send("a", 1, &hi), Some(("sessionMessages", 2, 2)));
        assert_eq!(queues.send("a", 2, &hi), None);
        assert_eq!(queues.send("a", 3, &hi), Some(("tenantMessages", 3, 3)));
        assert_eq!(queues.send("b", 4, &hi), None, "another tenant's are not counted");
    }

    #[test]
    fn bytes_that_wait_are_counted_by_session_and_by_tenant() {
        let queues = Queues::new("sessionQueuedKb=2,tenantQueuedKb=3");
        let kilobyte = json!("x".repeat(1024));
        assert_eq!([queues.send("a", 1, &kilobyte), queues.send("a", 1, &kilobyte)], [None, None]);
        assert_eq!(queues.send("a", 1, &json!("x")), Some(("sessionQueuedKb", 2, 2)));
        assert_eq!(queues.send("a", 2, &json!([{ "type": "text", "text": "x" }])), None);
        assert_eq!(queues.send("a", 3, &kilobyte), Some(("tenantQueuedKb", 3, 3)));
        assert_eq!(queues.send("b", 4, &kilobyte), None);
    }

    #[test]
    fn the_options_of_a_message_count_as_its_content_does() {
        let queues = Queues::new("sessionQueuedKb=2");
        let long = MessageOptions {
            output_format: Some(json!({ "schema": "x".repeat(3000) })),
            ..MessageOptions::default()
        };
        let refused = queues.send_with("a", 1, (&json!("hi"), &long));
        assert_eq!(refused, Some(("sessionQueuedKb", 2, 0)));
        assert_eq!(queues.send("a", 1, &json!("hi")), None);
    }

    #[test]
    fn messages_that_left_the_queue_do_not_count() {
        let queues = Queues::new("tenantMessages=1");
        let (tenant, turn, hi) = (TenantId::parse("a").expect("a name"), TurnId::fresh(), json!("hi"));
        // The queue as a new server finds it.
        queues.ledger.settle(&tenant, SessionRowId(1), [(turn, &hi, &MessageOptions::default())].into_iter());
        assert_eq!(queues.send("a", 2, &hi), Some(("tenantMessages", 1, 1)));
        queues.ledger.settle(&tenant, SessionRowId(1), std::iter::empty());
        assert_eq!(queues.send("a", 2, &hi), None);
    }
}

//! Which part of a log is still visible. No event is ever removed: a rewind or a second attempt only marks earlier
//! events as no longer part of the conversation.

use crate::Result;
use ash_model::{Event, EventSeq, Fact, SessionRewind, SessionRowId, TurnId};
use ash_store::{EventQuery, Store};
use std::collections::{HashMap, HashSet};

#[derive(Debug, Default)]
pub struct LogVisibility {
    /// Ranges that rewinds undid: after the first event, up to and including the second.
    undone: Vec<(EventSeq, EventSeq)>,
    /// Turns that were withdrawn, or had not begun when a rewind or a fork left them behind.
    never_begun: HashSet<TurnId>,
    /// The output of interrupted attempts, after the first event and before the second.
    cut: HashMap<TurnId, (EventSeq, EventSeq)>,
}

impl LogVisibility {
    /// Built from all events of the superseding kinds (`EventQuery::SUPERSEDING`), in order.
    pub fn of(events: &[Event]) -> LogVisibility {
        let mut past = LogVisibility { undone: undone(events), ..LogVisibility::default() };
        for event in events {
            if past.is_undone(event.seq) {
                continue;
            }
            match &event.fact {
                Fact::Continued { turn, discard_after, .. } => {
                    past.cut.insert(*turn, (*discard_after, event.seq));
                }
                Fact::Forked { waiting, .. } => past.never_begun.extend(waiting),
                Fact::Requeued { withdrawn, .. } => past.never_begun.extend(withdrawn),
                _ => {}
            }
        }
        let counting = events.iter().filter_map(|event| match &event.fact {
            Fact::Rewound(rewound) if past.undone.iter().any(|(_, upto)| *upto == event.seq) => Some(rewound),
            _ => None,
        });
        let never_begun: Vec<TurnId> =
            counting.flat_map(|rewound| rewound.conversation.waiting.iter().copied()).collect();
        past.never_begun.extend(never_begun);
        past
    }

    /// The visibility of a session's log after event `upto`.
    pub(crate) async fn read(
        store: &dyn Store,
        session: SessionRowId,
        upto: EventSeq,
    ) -> Result<LogVisibility> {
        let mut events = Vec::new();
        loop {
            let after = events.last().map_or(0, |event: &Event| event.seq);
            let query = EventQuery { after, limit: 1000, kinds: EventQuery::SUPERSEDING.to_vec() };
            let page = store.events(session, &query).await?;
            if page.is_empty() {
                events.retain(|event| event.seq <= upto);
                return Ok(LogVisibility::of(&events));
            }
            events.extend(page);
        }
    }

    /// At a checkpoint: messages that waited there are not part of it.
    pub(crate) fn without_waiting(mut self, waiting: Vec<TurnId>) -> LogVisibility {
        self.never_begun.extend(waiting);
        self
    }

    /// Whether the event is not part of the conversation any more.
    pub fn hides(&self, event: &Event) -> bool {
        let superseded = match &event.fact {
            Fact::Queued { turn, .. } => self.never_begun.contains(turn),
            Fact::Said { .. } => {
                let cut = event.turn.and_then(|turn| self.cut.get(&turn));
                cut.is_some_and(|(after, before)| (after + 1..*before).contains(&event.seq))
            }
            _ => false,
        };
        superseded || self.is_undone(event.seq)
    }

    fn is_undone(&self, seq: EventSeq) -> bool {
        self.undone.iter().any(|(after, upto)| (after + 1..=*upto).contains(&seq))
    }
}

/// The ranges from the last rewind backwards: what it undid, then the last one before its target, and so on.
fn undone(events: &[Event]) -> Vec<(EventSeq, EventSeq)> {
    let mut undone = Vec::new();
    let mut upto = EventSeq::MAX;
    for event in events.iter().rev() {
        if let Fact::Rewound(SessionRewind { seq, .. }) = &event.fact
            && event.seq <= upto
        {
            undone.push((*seq, event.seq));
            upto = *seq;
        }
    }
    undone
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{ConversationPoint, MessageOptions, Timestamp};
    use proptest::prelude::*;

    fn event(seq: EventSeq, fact: Fact) -> Event {
        Event { seq, turn: None, at: Timestamp(0), fact }
    }

    fn turn(n: u64) -> TurnId {
        TurnId(uuid::Uuid::from_u128(u128::from(n)))
    }

    fn queued(seq: EventSeq) -> Event {
        event(
            seq,
            Fact::Queued {
                turn: turn(seq),
                content: serde_json::json!("x"),
                options: MessageOptions::default(),
                lock: None,
            },
        )
    }

    fn rewound(seq: EventSeq, to: EventSeq, waiting: Vec<TurnId>) -> Event {
        let then = ConversationPoint { waiting, ..ConversationPoint::default() };
        event(seq, Fact::Rewound(SessionRewind { to, from: None, seq: to, conversation: then }))
    }

    fn shown(log: &[Event]) -> Vec<EventSeq> {
        let past = LogVisibility::of(log);
        let messages = log.iter().filter(|event| matches!(event.fact, Fact::Queued { .. }));
        messages.filter(|event| !past.hides(event)).map(|event| event.seq).collect()
    }

    #[test]
    fn a_rewind_hides_what_came_after_and_one_forward_shows_it_again() {
        let mut log = vec![queued(1), queued(2), queued(3), rewound(4, 1, Vec::new()), queued(5)];
        assert_eq!(shown(&log), [1, 5]);
        log.push(rewound(6, 3, Vec::new()));
        assert_eq!(shown(&log), [1, 2, 3]);
        log.push(rewound(7, 5, Vec::new()));
        assert_eq!(shown(&log), [1, 5]);
    }

    #[test]
    fn a_message_that_waited_at_a_checkpoint_is_not_part_of_it() {
        let mut log = vec![queued(1), queued(2), rewound(5, 3, vec![turn(2)])];
        assert_eq!(shown(&log), [1]);
        log.push(rewound(6, 4, Vec::new()));
        assert_eq!(shown(&log), [1, 2], "it ran before event 4");
        let forked = Fact::Forked {
            parent: None,
            checkpoint: Some(1),
            memory: uuid::Uuid::nil(),
            turns_delivered: 1,
            waiting: vec![turn(2)],
        };
        assert_eq!(shown(&[queued(1), queued(2), event(3, forked)]), [1]);
    }

    #[test]
    fn an_attempt_that_was_cut_is_hidden_unless_the_next_one_was_undone() {
        let said = |seq| Event { turn: Some(turn(1)), ..event(seq, Fact::Said { line: String::new() }) };
        let continued =
            Fact::Continued { turn: turn(1), attempt: 2, discard_after: 2, input: 2, calls: Vec::new() };
        let log = [event(4, continued)];
        assert!(LogVisibility::of(&log).hides(&said(3)) && !LogVisibility::of(&log).hides(&said(5)));
        assert!(!LogVisibility::of(&log).hides(&said(2)), "what the agent goes on from stays");
        let log = [log[0].clone(), rewound(7, 3, Vec::new())];
        assert!(!LogVisibility::of(&log).hides(&said(3)) && LogVisibility::of(&log).hides(&said(5)));
    }

    proptest! {
        /// After a rewind, the visible events are those visible at its target, and those that came since.
        #[test]
        fn after_any_rewind_the_conversation_is_that_of_its_target(steps in prop::collection::vec(prop::option::of(0u64..100), 1..60)) {
            let mut log: Vec<Event> = Vec::new();
            // The visible events after each event.
            let mut counted: Vec<Vec<EventSeq>> = vec![Vec::new()];
            for (seq, step) in (1u64..).zip(steps) {
                let mut now = counted.last().expect("not empty").clone();
                match step {
                    None => {
                        log.push(queued(seq));
                        now.push(seq);
                    }
                    Some(place) => {
                        let to = place % seq;
                        log.push(rewound(seq, to, Vec::new()));
                        now = counted[to as usize].clone();
                    }
                }
                counted.push(now);
                prop_assert_eq!(&shown(&log), counted.last().expect("not empty"));
            }
        }
    }
}

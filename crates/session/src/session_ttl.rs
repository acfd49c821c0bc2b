//! Removal of sessions by age: those whose time to live is over, and those that match the server's rules. Sessions at
//! work are left alone. The audit records which session was removed, when and by which rule.

use crate::{CommandRefusal, Error, Result, Sessions, mailbox::ActorMessage, witness::write_tombstone};
use ash_model::{OwnerId, SessionStatus, Timestamp};
use ash_store::{AccessScope, AuditActor, EndDisposition, SessionFilter, SessionRow};
use std::time::Duration;

/// The name of the rule, in the audit, that removes a session after its own time to live.
const TTL: &str = "ttl";

/// Sessions that have had this status for this long are ended or purged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionTtlRule {
    pub status: SessionStatus,
    pub after: Duration,
    pub fate: EndDisposition,
}

/// The rules of a server, in the syntax of its settings: `ended:7d=purge,paused:90d=end`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionTtlRules(pub Vec<SessionTtlRule>);

/// Which sessions a caller wants to remove, and how.
#[derive(Debug, Clone)]
pub struct PruneRule {
    /// How long the sessions have not been used.
    pub unused: Duration,
    pub status: Option<SessionStatus>,
    pub owner: Option<OwnerId>,
    pub fate: EndDisposition,
}

impl std::fmt::Display for SessionTtlRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.after.as_secs();
        let units = [(86_400, 'd'), (3600, 'h'), (60, 'm'), (1, 's')];
        let whole = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
        let (unit, letter) = whole.unwrap_or((1, 's'));
        write!(f, "{}:{}{letter}={}", self.status, seconds / unit, self.fate.as_str())
    }
}

impl SessionTtlRule {
    fn parse(text: &str) -> std::result::Result<SessionTtlRule, String> {
        let how = "write a rule as STATUS:AGE=FATE, for example ended:7d=purge or paused:90d=end";
        let wrong = |what: String| format!("{text:?}: {what}");
        let parts = text.split_once(':').and_then(|(status, rest)| Some((status, rest.split_once('=')?)));
        let (status, (age, fate)) = parts.ok_or_else(|| wrong(how.to_owned()))?;
        let status = SessionStatus::parse(status).filter(|status| is_at_rest(*status)).ok_or_else(|| {
            wrong(format!(
                "{status:?} is not a status that a rule may touch: paused, stopped, error or ended; sessions at work are left alone"
            ))
        })?;
        let after =
            ash_model::parse_duration(age).map_err(|error| wrong(format!("the age {age:?}: {error}")))?;
        if after.is_zero() {
            return Err(wrong("the age must be at least 1s".to_owned()));
        }
        let fate =
            EndDisposition::parse(fate).ok_or_else(|| wrong(format!("{fate:?} is neither end nor purge")))?;
        if (status, fate) == (SessionStatus::Ended, EndDisposition::End) {
            return Err(wrong("what has ended cannot be ended again; write purge".to_owned()));
        }
        Ok(SessionTtlRule { status, after, fate })
    }
}

/// Whether a rule may remove sessions with this status.
pub fn is_at_rest(status: SessionStatus) -> bool {
    match status {
        SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Error | SessionStatus::Ended => true,
        SessionStatus::Starting | SessionStatus::Active => false,
    }
}

impl SessionTtlRules {
    pub fn parse(text: &str) -> std::result::Result<SessionTtlRules, String> {
        if text.trim().is_empty() {
            return Ok(SessionTtlRules::default());
        }
        let mut rules: Vec<SessionTtlRule> = Vec::new();
        for rule in text.split(',') {
            let rule = SessionTtlRule::parse(rule.trim())?;
            if rules.iter().any(|other| other.status == rule.status) {
                return Err(format!(
                    "there are two rules for {}; of which only one can be meant",
                    rule.status
                ));
            }
            rules.push(rule);
        }
        Ok(SessionTtlRules(rules))
    }
}

/// A session that is about to be removed, and why.
#[derive(Debug, Clone)]
pub struct ExpiringSession {
    pub session: SessionRow,
    pub rule: String,
    pub fate: EndDisposition,
    /// How long the session has not been used.
    after: Duration,
}

impl Sessions {
    /// Removes data that nothing needs after this time: deltas, and idempotency keys.
    pub async fn prune_deltas(&self, kept: Duration) -> Result<u64> {
        Ok(self.services().store.prune(earlier_by(self.services().retention_clock(), kept)).await?)
    }

    /// Stores the trusted time for the next start of the server.
    pub fn store_trusted_time(&self) {
        self.services().store_trusted_time();
    }

    /// The sessions of all tenants that would be removed now, by time to live and by rules.
    pub async fn expiring_sessions(&self, retention: &SessionTtlRules) -> Result<Vec<ExpiringSession>> {
        let (store, now) = (&self.services().store, self.services().retention_clock());
        let mut leaving = Vec::new();
        for session in store.expired_sessions(now).await? {
            let after = Duration::from_secs(session.options.ttl.unwrap_or(0));
            leaving.push(ExpiringSession {
                session,
                rule: TTL.to_owned(),
                fate: EndDisposition::Purge,
                after,
            });
        }
        for rule in &retention.0 {
            for session in store.resting_sessions(rule.status, earlier_by(now, rule.after)).await? {
                if !leaving.iter().any(|known| known.session.no == session.no) {
                    let (fate, after) = (rule.fate, rule.after);
                    leaving.push(ExpiringSession { session, rule: rule.to_string(), fate, after });
                }
            }
        }
        Ok(leaving)
    }

    /// Removes those sessions. A failure for one does not stop the others. Returns the removed ones.
    pub async fn apply_session_ttl(&self, retention: &SessionTtlRules) -> Result<Vec<ExpiringSession>> {
        let mut gone = Vec::new();
        // A database that is known to be wrong gives wrong ages.
        if !self.services().may_delete() {
            return Ok(gone);
        }
        for leaving in self.expiring_sessions(retention).await? {
            let ExpiringSession { session, rule, fate, after } = &leaving;
            match self.expire(session, *after, (AuditActor::of_rule(rule), *fate)).await {
                Ok(true) => {
                    tracing::info!(session = %session.id, tenant = %session.tenant, rule, fate = fate.as_str(), "a session was removed by age");
                    gone.push(leaving);
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(session = %session.id, tenant = %session.tenant, rule, %error, "an expired session could not be removed; the server tries again");
                }
            }
        }
        Ok(gone)
    }

    /// Sessions within the scope that were not used for this long and are not at work.
    pub async fn prunable_sessions(&self, scope: &AccessScope, rule: &PruneRule) -> Result<Vec<SessionRow>> {
        let older = Some(earlier_by(self.services().retention_clock(), rule.unused));
        let filter = SessionFilter {
            status: rule.status,
            owner: rule.owner.clone(),
            older,
            ..SessionFilter::default()
        };
        let found = self.list(scope, &filter).await?.sessions;
        let now = self.now();
        let goes = |session: &SessionRow| {
            let SessionRow { summary, .. } = session;
            let over = summary.status == SessionStatus::Ended;
            let at_work =
                summary.open_turns > 0 || summary.lock.as_ref().is_some_and(|lock| lock.is_held(now));
            is_at_rest(summary.status) && if over { rule.fate == EndDisposition::Purge } else { !at_work }
        };
        Ok(found.into_iter().filter(goes).collect())
    }

    /// Removes them. Returns the removed ones: a client may have used one meanwhile, and then it stays.
    pub async fn prune(
        &self,
        scope: &AccessScope,
        rule: &PruneRule,
        by: &AuditActor,
    ) -> Result<Vec<SessionRow>> {
        let mut gone = Vec::new();
        for session in self.prunable_sessions(scope, rule).await? {
            if self.expire(&session, rule.unused, (by.clone(), rule.fate)).await? {
                gone.push(session);
            }
        }
        Ok(gone)
    }

    /// Ends a session that was not used for this long. False: it was used meanwhile, and stays.
    async fn expire(
        &self,
        session: &SessionRow,
        unused: Duration,
        (by, fate): (AuditActor, EndDisposition),
    ) -> Result<bool> {
        let (store, no, seen) = (&self.services().store, session.no, session.last_seq);
        if session.summary.status != SessionStatus::Ended {
            store.request_end(no, by.clone(), fate).await?;
            match self.ask(no, |reply| ActorMessage::Expire { seen, unused, reply }).await {
                Ok(_) => {}
                Err(Error::Refused(CommandRefusal::Busy)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        match fate {
            EndDisposition::End => Ok(session.summary.status != SessionStatus::Ended),
            // If the session ended only now, its end has put it into the trash already.
            EndDisposition::Purge => {
                let put = store.trash(no, self.services().clock(), by).await?;
                write_tombstone(self.services(), no).await?;
                Ok(put || session.summary.status != SessionStatus::Ended)
            }
        }
    }
}

/// The time this long before `now`.
pub fn earlier_by(now: Timestamp, long: Duration) -> Timestamp {
    Timestamp(now.0.saturating_sub(i64::try_from(long.as_millis()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_written() {
        let rules = SessionTtlRules::parse("ended:7d=purge, paused:90d=end,error:36h=purge").expect("rules");
        let again: Vec<String> = rules.0.iter().map(SessionTtlRule::to_string).collect();
        assert_eq!(again, ["ended:7d=purge", "paused:90d=end", "error:36h=purge"]);
        assert_eq!(rules.0[0].after, Duration::from_secs(7 * 86_400));
        for nothing in ["", "  "] {
            assert_eq!(SessionTtlRules::parse(nothing), Ok(SessionTtlRules::default()));
        }
    }

    #[test]
    fn a_rule_that_cannot_be_meant_is_refused_with_the_remedy() {
        let wrong = [
            ("ended", "STATUS:AGE=FATE"),
            ("ended:7d", "STATUS:AGE=FATE"),
            ("ended:7d=purge,", "STATUS:AGE=FATE"),
            ("active:7d=end", "at work"),
            ("starting:7d=end", "at work"),
            ("Ended:7d=purge", "paused, stopped, error or ended"),
            ("ended:7=purge", "90s, 30m, 24h or 7d"),
            ("ended:=purge", "90s, 30m, 24h or 7d"),
            ("ended:7w=purge", "90s, 30m, 24h or 7d"),
            ("ended:-1d=purge", "90s, 30m, 24h or 7d"),
            ("ended:0s=purge", "at least 1s"),
            ("ended:7d=delete", "neither end nor purge"),
            ("ended:7d=end", "write purge"),
            ("paused:7d=end,paused:9d=purge", "two rules for paused"),
        ];
        for (text, remedy) in wrong {
            let refused = SessionTtlRules::parse(text).expect_err(text);
            assert!(refused.contains(remedy), "{text}: {refused}");
        }
    }
}

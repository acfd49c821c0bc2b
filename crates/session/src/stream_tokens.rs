//! Tokens that open the stream of one session, for browsers: an EventSource cannot send an Authorization header, and a key
//! in a URL would open everything for ever. They are signed and stored nowhere, so they survive a restart.

use crate::{Error, Result, WallClock};
use ash_model::{SessionId, Timestamp};
use ash_store::SessionRow;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

const PREFIX: &str = "ast_";
/// How long a token opens its stream. A stream that is open may last longer.
const TTL_MS: i64 = 15 * 60 * 1000;
const SIGNATURE_BYTES: usize = 32;
/// Longer texts are not decoded. A token with ids of the maximum length has fewer characters.
const MAX_CHARS: usize = 1024;

/// Makes and checks tokens.
#[derive(Clone)]
pub struct StreamTokens {
    signing: [u8; 32],
    clock: WallClock,
}

/// A token and its end.
#[derive(Debug, Clone)]
pub struct StreamToken {
    pub text: String,
    pub expires_at: Timestamp,
}

/// The API key that makes a token. The token is valid as long as this key is.
#[derive(Debug, Clone, Copy)]
pub enum StreamTokenKey<'a> {
    /// A stored key, by its id.
    Stored(&'a str),
    /// The key of the server's environment. Another text under the same id is another key.
    Environment { id: &'a str, text: &'a str },
}

/// What a token says that this server signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamTokenClaims {
    pub session: SessionId,
    /// The id of the key that made it.
    pub key: String,
    binding: String,
}

/// The signed part, as a JSON list: session, key, expiry in milliseconds, binding.
#[derive(Serialize, Deserialize)]
struct TokenPayload(String, String, i64, String);

impl StreamTokens {
    /// The signing key is derived from the server's seal key.
    pub fn of(seal: &Path, clock: WallClock) -> Result<StreamTokens> {
        let seal = fs::read(seal).map_err(Error::io(format!("cannot read {}", seal.display())))?;
        Ok(StreamTokens { signing: blake3::derive_key("ash 2026 tokens of streams", &seal), clock })
    }

    pub fn issue(&self, session: &SessionRow, key: StreamTokenKey<'_>) -> StreamToken {
        let expires_at = Timestamp((self.clock)().0 + TTL_MS);
        let binding = self.binding(session, key);
        let payload = TokenPayload(session.id.to_string(), key.id().to_owned(), expires_at.0, binding);
        let payload = serde_json::to_vec(&payload).expect("texts and a number");
        let signature = blake3::keyed_hash(&self.signing, &payload);
        let text = URL_SAFE_NO_PAD.encode([signature.as_bytes(), payload.as_slice()].concat());
        StreamToken { text: format!("{PREFIX}{text}"), expires_at }
    }

    /// What the token says. `None`: this server did not make it, or it has expired.
    pub fn verify(&self, text: &str) -> Option<StreamTokenClaims> {
        let encoded = text.strip_prefix(PREFIX).filter(|encoded| encoded.len() <= MAX_CHARS)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).ok()?;
        let (signature, payload) = bytes.split_at_checked(SIGNATURE_BYTES)?;
        let signature: [u8; SIGNATURE_BYTES] = signature.try_into().ok()?;
        // blake3 compares hashes in constant time.
        if blake3::keyed_hash(&self.signing, payload) != blake3::Hash::from_bytes(signature) {
            return None;
        }
        let TokenPayload(session, key, expires_at, binding) = serde_json::from_slice(payload).ok()?;
        let session = SessionId::parse(&session).ok()?;
        ((self.clock)().0 < expires_at).then_some(StreamTokenClaims { session, key, binding })
    }

    /// Whether the token was made for this very session and with this very key, and not for an earlier session or an earlier
    /// key of the environment with the same id.
    pub fn is_for(&self, claims: &StreamTokenClaims, session: &SessionRow, key: StreamTokenKey<'_>) -> bool {
        let made_with = claims.session == session.id && claims.key == key.id();
        made_with && crate::constant_time_eq(&claims.binding, &self.binding(session, key))
    }

    /// Of the session's row, whose number is never used again, and of the text of a key without an id of its own. Hashed, so
    /// that clients learn neither.
    fn binding(&self, session: &SessionRow, key: StreamTokenKey<'_>) -> String {
        let text = match key {
            StreamTokenKey::Stored(_) => "",
            StreamTokenKey::Environment { text, .. } => text,
        };
        let hash = blake3::keyed_hash(&self.signing, format!("binding {} {text}", session.no.0).as_bytes());
        hash.to_hex()[..32].to_owned()
    }
}

impl StreamTokenKey<'_> {
    fn id(&self) -> &str {
        match self {
            StreamTokenKey::Stored(id) | StreamTokenKey::Environment { id, .. } => id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{
        AgentName, AgentRuntime, SessionMetadata, SessionOptions, SessionRowId, SessionStatus, TenantId,
        WorkspaceId,
    };
    use ash_store::SessionSummary;

    const MADE: fn() -> Timestamp = || Timestamp(1_000_000);
    const JUST_BEFORE_ITS_END: fn() -> Timestamp = || Timestamp(1_000_000 + TTL_MS - 1);
    const AT_ITS_END: fn() -> Timestamp = || Timestamp(1_000_000 + TTL_MS);
    const KEY: StreamTokenKey<'static> = StreamTokenKey::Stored("a-key");

    fn tokens(seal: u8, clock: WallClock) -> StreamTokens {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("seal.key");
        fs::write(&file, [seal; 32]).expect("written");
        StreamTokens::of(&file, clock).expect("a key")
    }

    fn session(no: i64, id: &str) -> SessionRow {
        SessionRow {
            no: SessionRowId(no),
            tenant: TenantId::main(),
            owner: None,
            metadata: SessionMetadata::default(),
            id: SessionId::parse(id).expect("an id"),
            workspace: WorkspaceId::fresh(),
            slug: None,
            agent: AgentName::parse("tester").expect("a name"),
            version: 1,
            runtime: AgentRuntime::Builtin,
            native_id: uuid::Uuid::nil(),
            options: SessionOptions::default(),
            parent: None,
            base: None,
            last_seq: 0,
            summary: SessionSummary {
                status: SessionStatus::Active,
                title: None,
                last_text: None,
                turns: 0,
                open_turns: 0,
                problem: None,
                checkpoint: None,
                pending: Vec::new(),
                lock: None,
            },
            remote_checkpoint: None,
            remote_seq: 0,
            created_at: Timestamp(0),
            last_active_at: Timestamp(0),
        }
    }

    #[test]
    fn a_token_opens_its_session_until_it_expires_and_after_a_restart() {
        let session = session(7, "mine");
        let token = tokens(1, MADE).issue(&session, KEY);
        assert_eq!(token.expires_at, Timestamp(1_000_000 + TTL_MS));
        let restarted = tokens(1, JUST_BEFORE_ITS_END);
        let claims = restarted.verify(&token.text).expect("valid");
        assert_eq!((claims.session.as_str(), claims.key.as_str()), ("mine", "a-key"));
        assert!(restarted.is_for(&claims, &session, KEY));
        assert_eq!(tokens(1, AT_ITS_END).verify(&token.text), None, "expired");
        assert_eq!(tokens(2, MADE).verify(&token.text), None, "of another server");
    }

    #[test]
    fn a_token_has_the_format_of_the_first_version() {
        let first = "ast_67LtE8bkIyVEYlPvUITuzyJIOR3mhmSwA_LxzOoTwphbIm1pbmUiLCJhLWtleSIsMTkwMDAwMCwiODAxZjczMWY0NWIzMTk4ZjU1MDMzYmM5MmU4MmVlOTciXQ";
        assert_eq!(tokens(1, MADE).issue(&session(7, "mine"), KEY).text, first);
    }

    #[test]
    fn a_token_is_for_one_session_and_one_key() {
        let (tokens, own) = (tokens(1, MADE), session(7, "mine"));
        let claims = tokens.verify(&tokens.issue(&own, KEY).text).expect("valid");
        assert!(!tokens.is_for(&claims, &session(8, "mine"), KEY), "the session was purged and made again");
        assert!(!tokens.is_for(&claims, &session(7, "other"), KEY));
        assert!(!tokens.is_for(&claims, &own, StreamTokenKey::Stored("b-key")));
        let environment = |text| StreamTokenKey::Environment { id: "env", text };
        let claims = tokens.verify(&tokens.issue(&own, environment("old")).text).expect("valid");
        assert!(tokens.is_for(&claims, &own, environment("old")));
        assert!(!tokens.is_for(&claims, &own, environment("new")), "the operator changed ASH_API_KEY");
    }

    #[test]
    fn a_token_with_any_other_character_is_refused() {
        let tokens = tokens(1, MADE);
        let token = tokens.issue(&session(7, "mine"), KEY).text;
        assert!(token.starts_with("ast_") && token.len() < 300, "{token}");
        for place in 0..token.len() {
            let other = if &token[place..=place] == "A" { "B" } else { "A" };
            let forged = format!("{}{other}{}", &token[..place], &token[place + 1..]);
            assert_eq!(tokens.verify(&forged), None, "{place}");
            assert_eq!(tokens.verify(&token[..place]), None, "cut at {place}");
        }
        for wrong in [format!("{token}A"), format!("{token}="), format!(" {token}"), "ast_".to_owned()] {
            assert_eq!(tokens.verify(&wrong), None, "{wrong}");
        }
        assert_eq!(tokens.verify(&format!("ast_{}", "A".repeat(100_000))), None);
    }

    #[test]
    fn a_token_shows_neither_the_number_of_the_row_nor_the_key_of_the_environment() {
        let key = StreamTokenKey::Environment { id: "env", text: "a-weak-key" };
        let tokens = tokens(1, MADE);
        let token = tokens.issue(&session(123_456_789, "mine"), key).text;
        let shown = URL_SAFE_NO_PAD.decode(&token[PREFIX.len()..]).expect("base64");
        let shown = String::from_utf8_lossy(&shown[SIGNATURE_BYTES..]).into_owned();
        assert!(shown.starts_with(r#"["mine","env",1900000,""#), "{shown}");
        assert!(!shown.contains("123456789") && !shown.contains("weak"), "{shown}");
    }
}

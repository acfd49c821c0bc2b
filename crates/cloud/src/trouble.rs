//! What is wrong with a bucket, in one sentence that says what to do about it.

use object_store::client::{HttpError, HttpErrorKind};
use std::{error::Error, io};

/// Why something did not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Trouble {
    pub code: Code,
    /// For a person: what is wrong, and the remedy. Has no secrets in it.
    pub sentence: String,
    /// It may go away by itself.
    pub passing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    BucketMissing,
    AccessDenied,
    WrongKey,
    Expired,
    ClockSkew,
    WrongRegion,
    NoSpace,
    Unreachable,
    NoCredentials,
    Throttled,
    /// The URL, a variable or a key that nobody could use.
    Settings,
    /// There is no object under this key.
    Missing,
    /// What is under this key is not what was put there.
    Damaged,
    /// Another server may be writing here, and we do not know yet whether it is alive.
    Claimed,
    /// Another server has taken over what was ours.
    Taken,
    Other,
}

impl Code {
    /// Stable: for answers, metrics and scripts.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::BucketMissing => "bucket_missing",
            Code::AccessDenied => "access_denied",
            Code::WrongKey => "wrong_key",
            Code::Expired => "expired",
            Code::ClockSkew => "clock_skew",
            Code::WrongRegion => "wrong_region",
            Code::NoSpace => "no_space",
            Code::Unreachable => "unreachable",
            Code::NoCredentials => "no_credentials",
            Code::Throttled => "throttled",
            Code::Settings => "settings",
            Code::Missing => "missing",
            Code::Damaged => "damaged",
            Code::Claimed => "bucket_claimed",
            Code::Taken => "bucket_taken",
            Code::Other => "other",
        }
    }
}

/// Failures that are noticed on our side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mishap {
    #[error("no answer in time")]
    TooSlow,
    #[error("the answer broke off")]
    BrokeOff,
    #[error("the connection broke")]
    Broken,
    #[error("there is no service that gives out credentials")]
    NoCredentials,
    #[error("the certificate is not one that this machine trusts")]
    Untrusted,
    #[error("the address is not one that may be asked")]
    Forbidden,
}

impl Mishap {
    pub(crate) fn error(self) -> object_store::Error {
        object_store::Error::Generic { store: "ash", source: Box::new(self) }
    }
}

impl Trouble {
    pub fn new(code: Code, sentence: impl Into<String>) -> Trouble {
        Trouble { code, sentence: sentence.into(), passing: false }
    }

    pub(crate) fn without_credentials(place: &str) -> Trouble {
        let wanted = match place.split("://").next() {
            Some("gs") => "GOOGLE_APPLICATION_CREDENTIALS",
            Some("az") => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
            _ => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        };
        Trouble::new(Code::NoCredentials, format!("There are no credentials for {place}: set {wanted}."))
    }

    /// `place` is the bucket as a person names it.
    pub(crate) fn of(error: &object_store::Error, place: &str) -> Trouble {
        let Diagnosis { code, passing, detail } = diagnose(error);
        let sentence = match code {
            Code::BucketMissing => format!("{place} does not exist: create it, or correct its name."),
            Code::AccessDenied => format!(
                "{place} may not be used with these credentials ({detail}): allow them to list, read, write and \
                 delete there."
            ),
            Code::WrongKey => {
                format!("{place} does not take these credentials ({detail}): correct the keys.")
            }
            Code::Expired => format!("The credentials for {place} have expired ({detail}): get new ones."),
            Code::ClockSkew => {
                format!(
                    "This machine's clock is too far off for {place} ({detail}): set it, and keep it by NTP."
                )
            }
            Code::WrongRegion => {
                format!("{place} is in another region ({detail}): set ASH_S3_REGION to its own.")
            }
            Code::NoSpace => {
                format!("There is no space left in {place} ({detail}): free some, or raise the quota.")
            }
            Code::Unreachable => {
                format!("{place} cannot be reached ({detail}): check the endpoint and the network.")
            }
            Code::NoCredentials => return Trouble::without_credentials(place),
            Code::Throttled => {
                format!("{place} asks for fewer requests ({detail}): they are made more slowly.")
            }
            Code::Settings => format!("{place} cannot be used as it is set up: {detail}."),
            Code::Missing => {
                format!("There is no such object in {place} ({detail}): it was removed, or never written.")
            }
            Code::Damaged => {
                format!("An object in {place} is not what was put there ({detail}): look for a copy.")
            }
            // No store says these two.
            Code::Claimed | Code::Taken => {
                format!("{place} belongs to another server ({detail}): stop one of the two.")
            }
            Code::Other => {
                format!("{place} answered something unexpected ({detail}): see what the service says.")
            }
        };
        Trouble { code, sentence, passing }
    }
}

/// True if the same request may well succeed when it is made again.
pub(crate) fn passing(error: &object_store::Error) -> bool {
    diagnose(error).passing
}

pub(crate) fn code(error: &object_store::Error) -> Code {
    diagnose(error).code
}

/// What is under this key is there for sure. Of conflicts (409) only Azure's says so: S3's means that another
/// write is under way, which may yet fail.
pub(crate) fn is_there(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::AlreadyExists { .. }) && !is_conflict(error)
}

fn is_conflict(error: &object_store::Error) -> bool {
    Answer::of(error).is_some_and(|answer| answer.status == 409 && answer.code != "BlobAlreadyExists")
}

struct Diagnosis {
    code: Code,
    passing: bool,
    detail: String,
}

fn diagnose(error: &object_store::Error) -> Diagnosis {
    let found = |code, passing, detail: String| Diagnosis { code, passing, detail };
    if let Some(mishap) = chain(error).find_map(|e| e.downcast_ref::<Mishap>()) {
        let (code, passing) = match mishap {
            Mishap::TooSlow | Mishap::BrokeOff | Mishap::Broken => (Code::Unreachable, true),
            Mishap::Untrusted => (Code::Unreachable, false),
            Mishap::NoCredentials => (Code::NoCredentials, false),
            Mishap::Forbidden => (Code::Settings, false),
        };
        return found(code, passing, mishap.to_string());
    }
    if let Some(answer) = Answer::of(error) {
        let (code, passing) = answer.meaning(error);
        return found(code, passing, answer.to_string());
    }
    if let Some(http) = chain(error).find_map(|e| e.downcast_ref::<HttpError>()) {
        let cause = chain(error).last().map(ToString::to_string).unwrap_or_default();
        return match http.kind() {
            HttpErrorKind::Decode => found(Code::Other, true, cause),
            _ => found(Code::Unreachable, true, cause),
        };
    }
    if let Some(io) = chain(error).find_map(|e| e.downcast_ref::<io::Error>()) {
        let code = match io.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::NoSpace,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Code::AccessDenied,
            io::ErrorKind::NotFound => Code::Missing,
            _ => Code::Other,
        };
        return found(code, false, io.to_string());
    }
    let cause = chain(error).last().map(ToString::to_string).unwrap_or_default();
    match error {
        // What a directory says where others answer 416.
        _ if cause.starts_with("Wanted range starting at") => found(Code::Damaged, false, cause),
        object_store::Error::NotFound { path, .. } => found(Code::Missing, false, path.clone()),
        object_store::Error::InvalidPath { .. } => found(Code::Settings, false, cause),
        _ => found(Code::Other, false, cause),
    }
}

fn chain<'e>(error: &'e object_store::Error) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |error| (*error).source())
}

/// What a store answered instead of what it was asked for. object_store keeps that in a type that nobody else can
/// name, so it is read from its words; `tests/cloud/trouble.rs` notices when they change.
#[derive(Debug, Default)]
struct Answer {
    status: u16,
    code: String,
    message: String,
    region: Option<String>,
    /// Azure says only here which part of the credentials it did not like.
    detail: String,
}

impl Answer {
    fn of(error: &object_store::Error) -> Option<Answer> {
        chain(error).find_map(|error| {
            let text = error.to_string();
            if let Some(rest) = text.strip_prefix("Server returned non-2xx status code: ") {
                return Some(Answer { status: rest.get(..3)?.parse().ok()?, ..Answer::read(rest) });
            }
            if let Some(body) = text.strip_prefix("Server returned error response: ") {
                return Some(Answer { status: 200, ..Answer::read(body) });
            }
            if text.starts_with("Received redirect without LOCATION") {
                return Some(Answer { status: 301, ..Answer::default() });
            }
            // One of many keys that were to be deleted.
            let (_, failed) = text.split_once("DeleteObjects request failed for key ")?;
            let (_, code) = failed.rsplit_once("(code: ")?;
            Some(Answer { code: code.trim_end_matches(')').to_owned(), ..Answer::default() })
        })
    }

    /// Only some elements: the whole may repeat what was sent, tokens too.
    fn read(body: &str) -> Answer {
        let element = |name: &str| {
            let (_, rest) = body.split_once(&format!("<{name}>"))?;
            Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
        };
        let line = |text: String| text.lines().next().unwrap_or_default().chars().take(200).collect();
        Answer {
            status: 0,
            code: element("Code").unwrap_or_default(),
            message: element("Message").map(line).unwrap_or_default(),
            region: element("Region"),
            detail: element("AuthenticationErrorDetail").unwrap_or_default(),
        }
    }

    fn meaning(&self, error: &object_store::Error) -> (Code, bool) {
        let said = |word: &str| self.message.contains(word) || self.detail.contains(word);
        match self.code.as_str() {
            "NoSuchBucket" | "ContainerNotFound" => (Code::BucketMissing, false),
            "RequestTimeTooSkewed" => (Code::ClockSkew, false),
            "AuthenticationFailed" if said("date header") => (Code::ClockSkew, false),
            "ExpiredToken" | "TokenRefreshRequired" => (Code::Expired, false),
            "AuthenticationFailed" if said("expired") || said("specified time frame") => {
                (Code::Expired, false)
            }
            "PermanentRedirect" | "IllegalLocationConstraintException" => (Code::WrongRegion, false),
            "AuthorizationHeaderMalformed" if said("region") => (Code::WrongRegion, false),
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "InvalidToken"
            | "AuthorizationHeaderMalformed"
            | "AuthenticationFailed"
            | "InvalidAuthenticationInfo"
            | "NoAuthenticationInformation" => (Code::WrongKey, false),
            // Azurite's word for it.
            "AuthorizationFailure" if said("failed to authenticate") => (Code::WrongKey, false),
            "InsufficientStorage" | "QuotaExceeded" | "XMinioStorageFull" => (Code::NoSpace, false),
            "SlowDown" | "ServerBusy" | "TooManyRequests" | "RequestLimitExceeded" => (Code::Throttled, true),
            "RequestTimeout"
            | "InternalError"
            | "ServiceUnavailable"
            | "OperationTimedOut"
            | "IncompleteBody"
            | "BadDigest"
            | "XAmzContentSHA256Mismatch" => (Code::Other, true),
            "AccessDenied" => (Code::AccessDenied, false),
            _ => self.meaning_of_status(error),
        }
    }

    fn meaning_of_status(&self, error: &object_store::Error) -> (Code, bool) {
        match self.status {
            301 | 307 | 308 => (Code::WrongRegion, false),
            401 => (Code::WrongKey, false),
            403 => (Code::AccessDenied, false),
            404 => (Code::Missing, false),
            409 => (Code::Other, is_conflict(error)),
            416 => (Code::Damaged, false),
            429 => (Code::Throttled, true),
            507 => (Code::NoSpace, false),
            408 | 500..=599 => (Code::Other, true),
            _ => (Code::Other, false),
        }
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        if self.status != 0 {
            parts.push(format!("HTTP {}", self.status));
        }
        parts.extend([&self.code, &self.message].into_iter().filter(|part| !part.is_empty()).cloned());
        parts.extend(self.region.as_ref().map(|region| format!("expected {region}")));
        f.write_str(&parts.join(", "))
    }
}

//! Turns the errors of all object stores into one sentence that says what is wrong and what to do about it.

use object_store::client::{HttpError, HttpErrorKind};
use std::{error::Error, io};

/// Why a request to a bucket failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BucketError {
    pub code: BucketErrorCode,
    /// For a person: what is wrong, and the remedy. Contains no secrets.
    pub message: String,
    /// The error may go away without a change.
    pub is_transient: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BucketErrorCode {
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
    /// The URL, a variable or a key is invalid.
    Settings,
    /// There is no object under this key.
    Missing,
    /// The object under this key is not what was written there.
    Damaged,
    /// Another server may be writing to this bucket, and it is not known yet whether that server is alive.
    Claimed,
    /// Another server has taken the bucket over from this one.
    Taken,
    Other,
}

impl BucketErrorCode {
    /// Stable: used in responses, metrics and scripts.
    pub fn as_str(self) -> &'static str {
        match self {
            BucketErrorCode::BucketMissing => "bucket_missing",
            BucketErrorCode::AccessDenied => "access_denied",
            BucketErrorCode::WrongKey => "wrong_key",
            BucketErrorCode::Expired => "expired",
            BucketErrorCode::ClockSkew => "clock_skew",
            BucketErrorCode::WrongRegion => "wrong_region",
            BucketErrorCode::NoSpace => "no_space",
            BucketErrorCode::Unreachable => "unreachable",
            BucketErrorCode::NoCredentials => "no_credentials",
            BucketErrorCode::Throttled => "throttled",
            BucketErrorCode::Settings => "settings",
            BucketErrorCode::Missing => "missing",
            BucketErrorCode::Damaged => "damaged",
            BucketErrorCode::Claimed => "bucket_claimed",
            BucketErrorCode::Taken => "bucket_taken",
            BucketErrorCode::Other => "other",
        }
    }
}

/// Failures that this side of the connection notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TransportFailure {
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

impl TransportFailure {
    pub(crate) fn error(self) -> object_store::Error {
        object_store::Error::Generic { store: "ash", source: Box::new(self) }
    }
}

impl BucketError {
    pub fn new(code: BucketErrorCode, sentence: impl Into<String>) -> BucketError {
        BucketError { code, message: sentence.into(), is_transient: false }
    }

    pub(crate) fn without_credentials(place: &str) -> BucketError {
        let wanted = match place.split("://").next() {
            Some("gs") => "GOOGLE_APPLICATION_CREDENTIALS",
            Some("az") => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
            _ => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        };
        BucketError::new(
            BucketErrorCode::NoCredentials,
            format!("There are no credentials for {place}: set {wanted}."),
        )
    }

    /// `place` is the bucket's name as a person writes it.
    pub(crate) fn of(error: &object_store::Error, place: &str) -> BucketError {
        let ErrorDiagnosis { code, passing, detail } = diagnose(error);
        let sentence = match code {
            BucketErrorCode::BucketMissing => {
                format!("{place} does not exist: create it, or correct its name.")
            }
            BucketErrorCode::AccessDenied => format!(
                "{place} may not be used with these credentials ({detail}): allow them to list, read, write and \
                 delete there."
            ),
            BucketErrorCode::WrongKey => {
                format!("{place} does not take these credentials ({detail}): correct the keys.")
            }
            BucketErrorCode::Expired => {
                format!("The credentials for {place} have expired ({detail}): get new ones.")
            }
            BucketErrorCode::ClockSkew => {
                format!(
                    "This machine's clock is too far off for {place} ({detail}): set it, and keep it by NTP."
                )
            }
            BucketErrorCode::WrongRegion => {
                format!("{place} is in another region ({detail}): set ASH_S3_REGION to its own.")
            }
            BucketErrorCode::NoSpace => {
                format!("There is no space left in {place} ({detail}): free some, or raise the quota.")
            }
            BucketErrorCode::Unreachable => {
                format!("{place} cannot be reached ({detail}): check the endpoint and the network.")
            }
            BucketErrorCode::NoCredentials => return BucketError::without_credentials(place),
            BucketErrorCode::Throttled => {
                format!("{place} asks for fewer requests ({detail}): they are made more slowly.")
            }
            BucketErrorCode::Settings => format!("{place} cannot be used as it is set up: {detail}."),
            BucketErrorCode::Missing => {
                format!("There is no such object in {place} ({detail}): it was removed, or never written.")
            }
            BucketErrorCode::Damaged => {
                format!("An object in {place} is not what was put there ({detail}): look for a copy.")
            }
            // No object store returns these two.
            BucketErrorCode::Claimed | BucketErrorCode::Taken => {
                format!("{place} belongs to another server ({detail}): stop one of the two.")
            }
            BucketErrorCode::Other => {
                format!("{place} answered something unexpected ({detail}): see what the service says.")
            }
        };
        BucketError { code, message: sentence, is_transient: passing }
    }
}

/// Whether the same request may succeed when it is repeated.
pub(crate) fn passing(error: &object_store::Error) -> bool {
    diagnose(error).passing
}

pub(crate) fn code(error: &object_store::Error) -> BucketErrorCode {
    diagnose(error).code
}

/// Whether an object certainly exists under this key. Of the conflict answers (409) only Azure's says so: S3's means
/// that another write is in progress, which may still fail.
pub(crate) fn is_there(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::AlreadyExists { .. }) && !is_conflict(error)
}

fn is_conflict(error: &object_store::Error) -> bool {
    ServiceErrorResponse::of(error)
        .is_some_and(|answer| answer.status == 409 && answer.code != "BlobAlreadyExists")
}

struct ErrorDiagnosis {
    code: BucketErrorCode,
    passing: bool,
    detail: String,
}

fn diagnose(error: &object_store::Error) -> ErrorDiagnosis {
    let found = |code, passing, detail: String| ErrorDiagnosis { code, passing, detail };
    if let Some(mishap) = chain(error).find_map(|e| e.downcast_ref::<TransportFailure>()) {
        let (code, passing) = match mishap {
            TransportFailure::TooSlow | TransportFailure::BrokeOff | TransportFailure::Broken => {
                (BucketErrorCode::Unreachable, true)
            }
            TransportFailure::Untrusted => (BucketErrorCode::Unreachable, false),
            TransportFailure::NoCredentials => (BucketErrorCode::NoCredentials, false),
            TransportFailure::Forbidden => (BucketErrorCode::Settings, false),
        };
        return found(code, passing, mishap.to_string());
    }
    if let Some(answer) = ServiceErrorResponse::of(error) {
        let (code, passing) = answer.meaning(error);
        return found(code, passing, answer.to_string());
    }
    if let Some(http) = chain(error).find_map(|e| e.downcast_ref::<HttpError>()) {
        let cause = chain(error).last().map(ToString::to_string).unwrap_or_default();
        return match http.kind() {
            HttpErrorKind::Decode => found(BucketErrorCode::Other, true, cause),
            _ => found(BucketErrorCode::Unreachable, true, cause),
        };
    }
    if let Some(io) = chain(error).find_map(|e| e.downcast_ref::<io::Error>()) {
        let code = match io.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => BucketErrorCode::NoSpace,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                BucketErrorCode::AccessDenied
            }
            io::ErrorKind::NotFound => BucketErrorCode::Missing,
            _ => BucketErrorCode::Other,
        };
        return found(code, false, io.to_string());
    }
    let cause = chain(error).last().map(ToString::to_string).unwrap_or_default();
    match error {
        // A directory store reports this where the others answer 416.
        _ if cause.starts_with("Wanted range starting at") => found(BucketErrorCode::Damaged, false, cause),
        object_store::Error::NotFound { path, .. } => found(BucketErrorCode::Missing, false, path.clone()),
        object_store::Error::InvalidPath { .. } => found(BucketErrorCode::Settings, false, cause),
        _ => found(BucketErrorCode::Other, false, cause),
    }
}

fn chain<'e>(error: &'e object_store::Error) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |error| (*error).source())
}

/// The answer of a store that refused a request. object_store keeps it in a private type, so it is parsed from the
/// error text; `tests/cloud/trouble.rs` notices when the text changes.
#[derive(Debug, Default)]
struct ServiceErrorResponse {
    status: u16,
    code: String,
    message: String,
    region: Option<String>,
    /// Azure names the rejected part of the credentials only in this field.
    detail: String,
}

impl ServiceErrorResponse {
    fn of(error: &object_store::Error) -> Option<ServiceErrorResponse> {
        chain(error).find_map(|error| {
            let text = error.to_string();
            if let Some(rest) = text.strip_prefix("Server returned non-2xx status code: ") {
                return Some(ServiceErrorResponse {
                    status: rest.get(..3)?.parse().ok()?,
                    ..ServiceErrorResponse::read(rest)
                });
            }
            if let Some(body) = text.strip_prefix("Server returned error response: ") {
                return Some(ServiceErrorResponse { status: 200, ..ServiceErrorResponse::read(body) });
            }
            if text.starts_with("Received redirect without LOCATION") {
                return Some(ServiceErrorResponse { status: 301, ..ServiceErrorResponse::default() });
            }
            // The answer for one key of a delete request with many keys.
            let (_, failed) = text.split_once("DeleteObjects request failed for key ")?;
            let (_, code) = failed.rsplit_once("(code: ")?;
            Some(ServiceErrorResponse {
                code: code.trim_end_matches(')').to_owned(),
                ..ServiceErrorResponse::default()
            })
        })
    }

    /// Reads only some elements: the whole body may repeat what the client sent, including tokens.
    fn read(body: &str) -> ServiceErrorResponse {
        let element = |name: &str| {
            let (_, rest) = body.split_once(&format!("<{name}>"))?;
            Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
        };
        let line = |text: String| text.lines().next().unwrap_or_default().chars().take(200).collect();
        ServiceErrorResponse {
            status: 0,
            code: element("Code").unwrap_or_default(),
            message: element("Message").map(line).unwrap_or_default(),
            region: element("Region"),
            detail: element("AuthenticationErrorDetail").unwrap_or_default(),
        }
    }

    fn meaning(&self, error: &object_store::Error) -> (BucketErrorCode, bool) {
        let said = |word: &str| self.message.contains(word) || self.detail.contains(word);
        match self.code.as_str() {
            "NoSuchBucket" | "ContainerNotFound" => (BucketErrorCode::BucketMissing, false),
            "RequestTimeTooSkewed" => (BucketErrorCode::ClockSkew, false),
            "AuthenticationFailed" if said("date header") => (BucketErrorCode::ClockSkew, false),
            "ExpiredToken" | "TokenRefreshRequired" => (BucketErrorCode::Expired, false),
            "AuthenticationFailed" if said("expired") || said("specified time frame") => {
                (BucketErrorCode::Expired, false)
            }
            "PermanentRedirect" | "IllegalLocationConstraintException" => {
                (BucketErrorCode::WrongRegion, false)
            }
            "AuthorizationHeaderMalformed" if said("region") => (BucketErrorCode::WrongRegion, false),
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "InvalidToken"
            | "AuthorizationHeaderMalformed"
            | "AuthenticationFailed"
            | "InvalidAuthenticationInfo"
            | "NoAuthenticationInformation" => (BucketErrorCode::WrongKey, false),
            // The code that Azurite uses.
            "AuthorizationFailure" if said("failed to authenticate") => (BucketErrorCode::WrongKey, false),
            "InsufficientStorage" | "QuotaExceeded" | "XMinioStorageFull" => {
                (BucketErrorCode::NoSpace, false)
            }
            "SlowDown" | "ServerBusy" | "TooManyRequests" | "RequestLimitExceeded" => {
                (BucketErrorCode::Throttled, true)
            }
            "RequestTimeout"
            | "InternalError"
            | "ServiceUnavailable"
            | "OperationTimedOut"
            | "IncompleteBody"
            | "BadDigest"
            | "XAmzContentSHA256Mismatch" => (BucketErrorCode::Other, true),
            "AccessDenied" => (BucketErrorCode::AccessDenied, false),
            _ => self.meaning_of_status(error),
        }
    }

    fn meaning_of_status(&self, error: &object_store::Error) -> (BucketErrorCode, bool) {
        match self.status {
            301 | 307 | 308 => (BucketErrorCode::WrongRegion, false),
            401 => (BucketErrorCode::WrongKey, false),
            403 => (BucketErrorCode::AccessDenied, false),
            404 => (BucketErrorCode::Missing, false),
            409 => (BucketErrorCode::Other, is_conflict(error)),
            416 => (BucketErrorCode::Damaged, false),
            429 => (BucketErrorCode::Throttled, true),
            507 => (BucketErrorCode::NoSpace, false),
            408 | 500..=599 => (BucketErrorCode::Other, true),
            _ => (BucketErrorCode::Other, false),
        }
    }
}

impl std::fmt::Display for ServiceErrorResponse {
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

//! Extractors for bodies, queries and ids. Each error names what is wrong.

use crate::{
    app::AppState,
    auth::Caller,
    edge::{BodyMemory, BufferedBody},
    field_coercion::{self, FieldError, UnknownFieldPolicy},
    filesystem::FilesystemInfo,
    openapi::{DocumentedInput, ErrorDetails, OperationDraft},
    problem::{ApiProblem, ApiResult},
};
use ash_model::{
    FailureKind, PermissionId, SessionId, SessionStatus, SizeLimitExceeded, ToolRequestId, TurnId,
};
use ash_session::{CommandRefusal, Sessions};
use ash_store::{SecretEnv, SessionRow};
use axum::{
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, request::Parts},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, time::Duration};
use utoipa::{IntoParams, ToSchema};

const MAX_ENV_VARIABLES: usize = 256;
const MAX_VARIABLE_BYTES: usize = 100_000;
/// The variables of an agent and a session, with the command line, must fit into the kernel's limit for a new process.
const MAX_ENV_BYTES: usize = 512 << 10;

/// A JSON body. An empty body counts as `{}`: the Python client declares JSON even when it sends nothing. Unknown
/// fields are ignored.
pub(crate) struct JsonBody<T> {
    pub(crate) value: T,
    pub(crate) summary: BodySummary,
}

/// A type that is parsed from a body and refuses misspelt fields.
pub(crate) trait FromFields: Sized {
    fn from_fields(object: Value) -> Result<Self, FieldError>;
}

/// The same as [`JsonBody`], but it refuses unknown fields.
pub(crate) struct StrictJsonBody<T> {
    pub(crate) value: T,
    pub(crate) summary: BodySummary,
}

/// What remains of a body as it was sent.
pub(crate) struct BodySummary {
    /// Idempotency keys are bound to this hash.
    pub(crate) hash: blake3::Hash,
    /// The names of its fields.
    pub(crate) fields: Vec<String>,
}

/// A body of either kind with its share of the memory for large bodies, for routes that continue to use its large
/// values. All other routes release that share when the body is parsed, however long they take to answer.
pub(crate) struct LargeBody<B> {
    pub(crate) body: B,
    pub(crate) memory: Option<BodyMemory>,
}

pub(crate) trait ParsedBody: Sized {
    fn parse(object: Value, summary: BodySummary) -> Result<Self, FieldError>;
}

impl<T: DeserializeOwned> ParsedBody for JsonBody<T> {
    fn parse(object: Value, summary: BodySummary) -> Result<Self, FieldError> {
        let value = field_coercion::deserialize_fields(object, UnknownFieldPolicy::Ignore)?;
        Ok(JsonBody { value, summary })
    }
}

impl<T: FromFields> ParsedBody for StrictJsonBody<T> {
    fn parse(object: Value, summary: BodySummary) -> Result<Self, FieldError> {
        Ok(StrictJsonBody { value: T::from_fields(object)?, summary })
    }
}

impl<T: DeserializeOwned> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiProblem> {
        Ok(read_body(request, app).await?.body)
    }
}

impl<T: FromFields> FromRequest<AppState> for StrictJsonBody<T> {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiProblem> {
        Ok(read_body(request, app).await?.body)
    }
}

impl<B: ParsedBody> FromRequest<AppState> for LargeBody<B> {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiProblem> {
        read_body(request, app).await
    }
}

async fn read_body<B: ParsedBody>(request: Request, app: &AppState) -> ApiResult<LargeBody<B>> {
    let (object, BufferedBody { bytes, mut memory }) = read_json_object(request, app).await?;
    let fields = object.as_object().into_iter().flat_map(Map::keys).cloned().collect();
    let summary = BodySummary { hash: blake3::hash(&bytes), fields };
    drop(bytes);
    if let Some(memory) = &mut memory {
        memory.shrink_to(memory_size(&object));
    }
    Ok(LargeBody { body: B::parse(object, summary).map_err(bad_body)?, memory })
}

/// Approximate size of a value in memory, in bytes.
fn memory_size(value: &Value) -> usize {
    let inside: usize = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(memory_size).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + memory_size(value)).sum(),
    };
    size_of::<Value>() + inside
}

async fn read_json_object(request: Request, app: &AppState) -> ApiResult<(Value, BufferedBody)> {
    // Checked now: the periodic measurement does not include bodies that arrived since.
    let check_space = |wanted: u64| {
        let free = FilesystemInfo::of(&app.scratch).map_err(ApiProblem::internal)?.free_bytes;
        match app.sessions.little_space().or_else(|| app.sessions.little_space_after(free, wanted)) {
            Some(left) => Err(ash_session::Error::LittleSpace(left >> 20).into()),
            None => Ok(()),
        }
    };
    let tenant = request.extensions().get::<Caller>().map(|caller| caller.tenant().clone());
    let whole = app.body_spooler.read(request, tenant, check_space).await?;
    let text: &[u8] = if whole.bytes.iter().all(u8::is_ascii_whitespace) { b"{}" } else { &whole.bytes };
    let value = field_coercion::parse_unique_object(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data if text.trim_ascii_start().starts_with(b"{") => {
            let error = error.to_string();
            let words = error.split(" at line ").next().unwrap_or_default();
            ApiProblem::invalid("invalid_body", format!("The body is not as expected: {words}"))
        }
        // Fields need names: serde would read a list as the fields in their order.
        serde_json::error::Category::Data => {
            ApiProblem::invalid("invalid_body", "The body must be an object")
        }
        _ => {
            let place = format!("line {}, column {}", error.line(), error.column());
            ApiProblem::invalid(
                "invalid_json",
                format!("The body is not valid JSON: it cannot be read from {place} on"),
            )
        }
    })?;
    Ok((value, whole))
}

pub(crate) fn bad_body(error: FieldError) -> ApiProblem {
    let code = match error {
        FieldError::Unknown(_) => "unknown_field",
        FieldError::Invalid { .. } => "invalid_body",
    };
    ApiProblem::invalid(code, error.to_string())
}

/// The parameters of a query. Unknown ones are ignored.
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for QueryParams<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiProblem> {
        parameters(parts, UnknownFieldPolicy::Ignore).map(QueryParams)
    }
}

/// The parameters of a list. Unknown ones are refused: a misspelt filter would show everything.
pub(crate) struct StrictQueryParams<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for StrictQueryParams<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiProblem> {
        parameters(parts, UnknownFieldPolicy::Refuse).map(StrictQueryParams)
    }
}

/// For a list without parameters.
#[derive(Deserialize, IntoParams)]
pub(crate) struct NoQueryParams {}

fn parameters<T: DeserializeOwned>(parts: &Parts, unknown: UnknownFieldPolicy) -> ApiResult<T> {
    let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
        .map_err(|error| ApiProblem::invalid("invalid_query", error.body_text()))?;
    let mut object = Map::new();
    for (name, value) in given {
        let shown: String = name.chars().take(60).collect();
        if object.insert(name, Value::String(value)).is_some() {
            return Err(ApiProblem::invalid(
                "invalid_query",
                format!("{shown} is not valid: it is there twice"),
            ));
        }
    }
    field_coercion::deserialize_fields(Value::Object(object), unknown)
        .map_err(|error| unknown_parameter(&error))
}

pub(crate) fn unknown_parameter(error: &FieldError) -> ApiProblem {
    let code = match error {
        FieldError::Unknown(_) => "unknown_parameter",
        FieldError::Invalid { .. } => "invalid_query",
    };
    ApiProblem::invalid(code, error.to_string())
}

/// A segment of the path. One that is not UTF-8 matches no resource.
pub(crate) struct PathParam(pub(crate) String);

impl FromRequestParts<AppState> for PathParam {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiProblem> {
        let found = Path::<String>::from_request_parts(parts, app).await;
        found.map(|Path(text)| PathParam(text)).map_err(|_| unreadable_path())
    }
}

/// A file of a session, from the path.
pub(crate) struct FilePathParams {
    pub(crate) id: String,
    pub(crate) path: String,
}

impl FromRequestParts<AppState> for FilePathParams {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiProblem> {
        let found = Path::<(String, String)>::from_request_parts(parts, app).await;
        found.map(|Path((id, path))| FilePathParams { id, path }).map_err(|_| unreadable_path())
    }
}

/// A checkpoint of a session, from the path.
pub(crate) struct CheckpointPathParams {
    pub(crate) id: String,
    number: String,
}

impl CheckpointPathParams {
    /// Text that is no number matches no checkpoint.
    pub(crate) fn number(&self) -> ApiResult<u64> {
        self.number.parse().map_err(|_| ash_session::Error::NoCheckpoint.into())
    }
}

impl FromRequestParts<AppState> for CheckpointPathParams {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiProblem> {
        let found = Path::<(String, String)>::from_request_parts(parts, app).await;
        found.map(|Path((id, number))| CheckpointPathParams { id, number }).map_err(|_| unreadable_path())
    }
}

/// A permission request or question of a session, from the path.
pub(crate) struct PermissionPathParams {
    pub(crate) id: String,
    permission: String,
}

impl PermissionPathParams {
    /// Text that is no id matches no request.
    pub(crate) fn permission(&self) -> ApiResult<PermissionId> {
        let found = PermissionId::parse(&self.permission);
        found.ok_or_else(|| ash_session::Error::from(CommandRefusal::NoSuchPermission).into())
    }
}

impl FromRequestParts<AppState> for PermissionPathParams {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiProblem> {
        let found = Path::<(String, String)>::from_request_parts(parts, app).await;
        found
            .map(|Path((id, permission))| PermissionPathParams { id, permission })
            .map_err(|_| unreadable_path())
    }
}

/// A call of a client's tool, from the path.
pub(crate) struct ToolCallPathParams {
    pub(crate) id: String,
    call: String,
}

impl ToolCallPathParams {
    /// Text that is no id matches no call.
    pub(crate) fn call(&self) -> ApiResult<ToolRequestId> {
        let found = ToolRequestId::parse(&self.call);
        found.ok_or_else(|| ash_session::Error::from(CommandRefusal::NoSuchToolCall).into())
    }
}

impl FromRequestParts<AppState> for ToolCallPathParams {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiProblem> {
        let found = Path::<(String, String)>::from_request_parts(parts, app).await;
        found.map(|Path((id, call))| ToolCallPathParams { id, call }).map_err(|_| unreadable_path())
    }
}

/// A turn of a session, from the path.
pub(crate) struct TurnPathParams {
    pub(crate) id: String,
    turn: String,
}

impl TurnPathParams {
    pub(crate) fn turn(&self) -> ApiResult<TurnId> {
        TurnId::parse(&self.turn).ok_or_else(|| ash_session::Error::NoTurn.into())
    }
}

impl FromRequestParts<AppState> for TurnPathParams {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiProblem> {
        let found = Path::<(String, String)>::from_request_parts(parts, app).await;
        found.map(|Path((id, turn))| TurnPathParams { id, turn }).map_err(|_| unreadable_path())
    }
}

fn unreadable_path() -> ApiProblem {
    ApiProblem::invalid("invalid_path", "The path is not valid")
}

impl<T: ToSchema> DocumentedInput for JsonBody<T> {
    fn describe(operation: &mut OperationDraft) {
        operation.json_body::<T>(false);
    }
}

impl<T: ToSchema> DocumentedInput for StrictJsonBody<T> {
    fn describe(operation: &mut OperationDraft) {
        operation.json_body::<T>(true);
    }
}

impl<B: DocumentedInput> DocumentedInput for LargeBody<B> {
    fn describe(operation: &mut OperationDraft) {
        B::describe(operation);
    }
}

impl<T: IntoParams> DocumentedInput for QueryParams<T> {
    fn describe(operation: &mut OperationDraft) {
        operation.query_parameters::<T>();
        operation.errors(&["invalid_query"]);
    }
}

impl<T: IntoParams> DocumentedInput for StrictQueryParams<T> {
    fn describe(operation: &mut OperationDraft) {
        QueryParams::<T>::describe(operation);
        operation.errors(&["unknown_parameter"]);
    }
}

/// The names and schemas of path parameters follow from the path itself.
macro_rules! in_the_path {
    ($($argument:ty),*) => {
        $(impl DocumentedInput for $argument {
            fn describe(operation: &mut OperationDraft) {
                operation.errors(&["invalid_path"]);
            }
        })*
    };
}

in_the_path! {
    PathParam, FilePathParams, CheckpointPathParams, PermissionPathParams, ToolCallPathParams, TurnPathParams
}

/// The session that a path names, if the caller may access it.
pub(crate) async fn find_session(sessions: &Sessions, caller: &Caller, id: &str) -> ApiResult<SessionRow> {
    let id =
        SessionId::parse(id).map_err(|error| ApiProblem::invalid("invalid_session_id", error.to_string()))?;
    Ok(sessions.find(&caller.0, &id).await?)
}

/// The same, also for a session that only the object store has.
pub(crate) async fn find_session_or_remote(
    sessions: &Sessions,
    caller: &Caller,
    id: &str,
) -> ApiResult<SessionRow> {
    let id =
        SessionId::parse(id).map_err(|error| ApiProblem::invalid("invalid_session_id", error.to_string()))?;
    Ok(sessions.find_anywhere(&caller.0, &id).await?)
}

/// The same, unless the session has ended: an ended session cannot be changed.
pub(crate) async fn find_open_session(
    sessions: &Sessions,
    caller: &Caller,
    id: &str,
) -> ApiResult<SessionRow> {
    let found = find_session(sessions, caller, id).await?;
    match found.summary.status {
        SessionStatus::Ended => {
            Err(ash_session::Error::from(CommandRefusal::WrongStatus(SessionStatus::Ended)).into())
        }
        SessionStatus::Starting
        | SessionStatus::Active
        | SessionStatus::Paused
        | SessionStatus::Stopped
        | SessionStatus::Error => Ok(found),
    }
}

/// Environment variables that a process can receive.
pub(crate) fn parse_environment(vars: BTreeMap<String, String>) -> ApiResult<SecretEnv> {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let bytes = vars.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>();
    let longest = vars.values().map(String::len).max().unwrap_or_default();
    check_max_size("env", (vars.len(), "variables"), MAX_ENV_VARIABLES)?;
    check_max_size("env", (bytes, "bytes"), MAX_ENV_BYTES)?;
    check_max_size("A variable in env", (longest, "bytes"), MAX_VARIABLE_BYTES)?;
    match vars.iter().find(|(name, value)| !is_name(name) || value.contains('\0')) {
        Some((name, _)) => {
            Err(ApiProblem::invalid("invalid_env", format!("{name:?} is not a valid environment variable")))
        }
        None => Ok(SecretEnv::from_plain(vars)),
    }
}

/// A size limit that is not a quota setting. The answer has the shape of a quota error, without a quota name.
pub(crate) fn too_large(error: String, SizeLimitExceeded { limit, used }: SizeLimitExceeded) -> ApiProblem {
    let problem = ApiProblem::new(FailureKind::TooLarge, "payload_too_large", error);
    problem.with(ErrorDetails::size(limit as u64, used as u64))
}

/// Maximum time that a request waits in the queue.
const MAX_QUEUE_TIMEOUT_SECONDS: u64 = 600;

/// How long the caller waits for a sandbox when all are busy, from the header `Prefer` (RFC 7240). `None`: the header
/// does not say.
pub(crate) fn queue_timeout(headers: &HeaderMap) -> ApiResult<Option<Duration>> {
    let given = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let wait = given.flat_map(|value| value.split(',')).find_map(|one| {
        let (name, value) = one.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then_some(value.trim().trim_matches('"'))
    });
    let Some(wait) = wait else { return Ok(None) };
    match wait.parse::<u64>() {
        Ok(seconds) if seconds <= MAX_QUEUE_TIMEOUT_SECONDS => Ok(Some(Duration::from_secs(seconds))),
        Ok(_) | Err(_) => {
            let error = format!("Prefer: wait= takes seconds, at most {MAX_QUEUE_TIMEOUT_SECONDS}");
            Err(ApiProblem::invalid("invalid_header", error))
        }
    }
}

/// Limits the length of an optional text, in characters.
pub(crate) fn check_max_chars(what: &str, text: Option<&str>, limit: usize) -> ApiResult<()> {
    check_max_size(what, (text.map_or(0, |text| text.chars().count()), "characters"), limit)
}

/// The same for anything that has a size, counted in `unit`.
pub(crate) fn check_max_size(what: &str, (used, unit): (usize, &str), limit: usize) -> ApiResult<()> {
    match used > limit {
        true => {
            let error = format!("{what} has {used} {unit}, and may have {limit}: send less");
            Err(too_large(error, SizeLimitExceeded { limit, used }))
        }
        false => Ok(()),
    }
}

/// The same for a text whose length the reference's schema limits: the status is 400, as for all schema errors.
pub(crate) fn check_schema_max_chars(what: &str, text: Option<&str>, most: usize) -> ApiResult<()> {
    match text {
        Some(text) if text.chars().count() > most => {
            let error = format!("{what} must not be longer than {most} characters");
            Err(ApiProblem::invalid("invalid_body", error))
        }
        Some(_) | None => Ok(()),
    }
}

/// Runs blocking work on a thread where it delays no other request.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiProblem::internal("the work was cut off"))?
}

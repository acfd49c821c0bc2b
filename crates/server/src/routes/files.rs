//! A session's files: list, read, write, delete, and bundle them.

use super::extract::{
    FilePathParams, JsonBody, LargeBody, PathParam, QueryParams, StrictQueryParams, blocking,
    find_open_session, find_session,
};
use crate::{
    app::AppState,
    archive::{self, ArchiveLimits, UploadValidator},
    auth::Caller,
    edge::read_file,
    openapi::{Answer, DocumentedAnswer, OperationDraft},
    problem::{ApiProblem, ApiResult},
    wire::files::{
        DeletedFileAnswer, FileContentAnswer, FileListAnswer, FileView, UploadedWorkspaceAnswer, WrittenFile,
        WrittenFilesAnswer,
    },
};
use ash_model::{FailureKind, SessionStatus};
use ash_session::{FoundFile, Sessions, WorkspaceFiles};
use ash_snapshot::RelPath;
use ash_store::SessionRow;
use axum::{
    extract::State,
    http::{
        StatusCode,
        header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::json;
use std::{
    fmt::Write,
    io::{Cursor, Read},
};
use utoipa::{IntoParams, ToSchema};

const MAX_RAW_BYTES: u64 = 104_857_600;
pub(super) const MAX_JSON_BYTES: u64 = 1_048_576;
/// A file up to this size is in memory before its answer begins.
const READ_FIRST: u64 = 64 << 10;
const MAX_WRITTEN_FILE_BYTES: usize = 52_428_800;
const MAX_WRITTEN_BATCH_BYTES: usize = 104_857_600;

pub(super) const ALWAYS_SKIPPED: [&str; 4] = ["node_modules", ".git", "__pycache__", ".DS_Store"];
const HIDDEN: [&str; 8] = [".cache", ".npm", ".pnpm-store", ".yarn", ".venv", "venv", ".tmp", "tmp"];

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileListQuery {
    /// False: without caches and temporary folders.
    include_hidden: Option<bool>,
    /// As of this checkpoint; without one, now.
    checkpoint: Option<u64>,
}

pub(super) async fn list(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    StrictQueryParams(asked): StrictQueryParams<FileListQuery>,
) -> ApiResult<Answer<FileListAnswer>> {
    let session = find_session(&sessions, &caller, &id).await?;
    listed(&sessions, &session, asked).await
}

/// Lists the files in a session's workspace.
pub(super) async fn listed(
    sessions: &Sessions,
    session: &SessionRow,
    asked: FileListQuery,
) -> ApiResult<Answer<FileListAnswer>> {
    let place = workspace_files(sessions, session, asked.checkpoint).await?;
    let hide = asked.include_hidden == Some(false);
    let (files, source) =
        blocking(move || Ok((place.list(&|name, is_dir| is_skipped(name, is_dir, hide))?, place.name())))
            .await?;
    Ok(Answer(FileListAnswer { files: files.iter().map(FileView::of).collect(), source: Some(source) }))
}

/// The files of a checkpoint, or the current ones.
pub(super) async fn workspace_files(
    sessions: &Sessions,
    session: &SessionRow,
    checkpoint: Option<u64>,
) -> ApiResult<WorkspaceFiles> {
    Ok(match checkpoint {
        Some(number) => sessions.files_at(session, number).await?,
        None => sessions.files(session).await?,
    })
}

fn is_skipped(name: &[u8], is_dir: bool, hide: bool) -> bool {
    let named = |names: &[&str]| names.iter().any(|skipped| skipped.as_bytes() == name);
    let passing = !is_dir
        && [".sock", ".lock", ".pid"]
            .iter()
            .any(|end| name.len() > end.len() && name.ends_with(end.as_bytes()));
    named(&ALWAYS_SKIPPED) || (hide && named(&HIDDEN)) || passing
}

#[derive(Deserialize, IntoParams)]
pub(super) struct FileReadQuery {
    /// `raw` (the bytes, as without one) or `json`.
    format: Option<String>,
    /// The checkpoint to read from; 0: the agent's own files.
    pub(super) checkpoint: Option<u64>,
}

pub(super) fn rel(path: &str) -> ApiResult<RelPath> {
    RelPath::parse(path).map_err(|_| ApiProblem::invalid("invalid_path", "Invalid file path"))
}

pub(super) async fn read(
    State(sessions): State<Sessions>,
    caller: Caller,
    FilePathParams { id, path }: FilePathParams,
    QueryParams(asked): QueryParams<FileReadQuery>,
) -> ApiResult<FileAnswer> {
    let session = find_session(&sessions, &caller, &id).await?;
    let (most, name) = (asked.max_bytes()?, rel(&path)?);
    let place = workspace_files(&sessions, &session, asked.checkpoint).await?;
    let source = place.name();
    let file = blocking(move || sized(place.open(&name)?, most)).await?;
    file_response(&asked, (&path, source), file).await
}

impl FileReadQuery {
    /// Maximum size of a file in this format.
    pub(super) fn max_bytes(&self) -> ApiResult<u64> {
        match self.format.as_deref() {
            None | Some("raw") => Ok(MAX_RAW_BYTES),
            Some("json") => Ok(MAX_JSON_BYTES),
            Some(_) => Err(ApiProblem::invalid("invalid_query", "format must be json or raw")),
        }
    }
}

/// A file to send, and its length.
pub(super) struct FileDownload {
    size: u64,
    bytes: Box<dyn Read + Send>,
}

impl FileDownload {
    pub(super) fn whole(self, most: u64) -> ApiResult<Vec<u8>> {
        let mut content = Vec::with_capacity(usize::try_from(self.size.min(most)).unwrap_or(0));
        self.bytes.take(most).read_to_end(&mut content).map_err(ApiProblem::internal)?;
        Ok(content)
    }
}

/// A file's content, in the requested format.
pub(super) async fn file_response(
    asked: &FileReadQuery,
    (path, source): (&str, &'static str),
    file: FileDownload,
) -> ApiResult<FileAnswer> {
    if asked.format.as_deref() != Some("json") {
        return raw(path, file, source).await.map(FileAnswer);
    }
    let bytes = blocking(move || file.whole(MAX_JSON_BYTES)).await?;
    let content = String::from_utf8_lossy(&bytes).into_owned();
    let file = FileContentAnswer { path: path.to_owned(), content, size: bytes.len(), source };
    Ok(FileAnswer(Answer(file).into_response()))
}

/// A file as bytes, or as text in JSON.
pub(super) struct FileAnswer(Response);

/// A gzipped tar archive.
pub(super) struct ArchiveAnswer(Response);

impl IntoResponse for FileAnswer {
    fn into_response(self) -> Response {
        self.0
    }
}

impl IntoResponse for ArchiveAnswer {
    fn into_response(self) -> Response {
        self.0
    }
}

impl DocumentedAnswer for FileAnswer {
    fn describe(operation: &mut OperationDraft) {
        operation.answer(StatusCode::OK, "*/*", json!({ "type": "string", "format": "binary" }));
        operation.json_answer::<FileContentAnswer>(StatusCode::OK);
        operation.answer_header(StatusCode::OK, "X-Ash-Source", "`sandbox` or `snapshot`; of bytes only");
    }
}

impl DocumentedAnswer for ArchiveAnswer {
    fn describe(operation: &mut OperationDraft) {
        operation.answer(StatusCode::OK, "application/gzip", json!({ "type": "string", "format": "binary" }));
    }
}

pub(super) fn sized(found: FoundFile, most: u64) -> ApiResult<FileDownload> {
    match found {
        FoundFile::NotFound => Err(ApiProblem::not_found("file_not_found", "File not found")),
        FoundFile::NotAFile => Err(ApiProblem::invalid("not_a_file", "Path is not a file")),
        FoundFile::PermissionDenied => Err(closed()),
        FoundFile::File { size, .. } if size > most => {
            Err(ApiProblem::invalid("file_too_large", format!("File too large ({size} bytes, max {most})")))
        }
        FoundFile::File { size, bytes, .. } => Ok(FileDownload { size, bytes }),
    }
}

fn closed() -> ApiProblem {
    ApiProblem::new(
        FailureKind::Conflict,
        "closed",
        "Its permissions close it, or its folder, to the server; chmod it first",
    )
}

/// A large file is read while it is sent. Its beginning is read first, so that an unreadable file gets an error status.
async fn raw(path: &str, file: FileDownload, source: &'static str) -> ApiResult<Response> {
    let FileDownload { size, mut bytes } = file;
    let (beginning, bytes) = blocking(move || {
        let mut beginning = Vec::new();
        bytes.by_ref().take(READ_FIRST).read_to_end(&mut beginning).map_err(ApiProblem::internal)?;
        Ok((beginning, bytes))
    })
    .await?;
    // A file that has become shorter is sent with its new length.
    let length = if size <= READ_FIRST { beginning.len() as u64 } else { size };
    let name = path.rsplit('/').next().unwrap_or(path);
    let headers = [
        (CONTENT_TYPE, mime(name)),
        (CONTENT_DISPOSITION, format!("attachment; filename*=UTF-8''{}", encoded(name))),
        (CONTENT_LENGTH, length.to_string()),
        // The content comes from the agent: a browser must not guess that it is a page.
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    let body = read_file(Box::new(Cursor::new(beginning).chain(bytes)), length);
    Ok((headers, [("x-ash-source", source)], body).into_response())
}

/// Media types of source files that clients of the Ash API expect; the usual ones for other files.
fn mime(name: &str) -> String {
    let known = match name.rsplit('.').next().unwrap_or_default() {
        "ts" | "tsx" => "text/typescript",
        "py" => "text/x-python",
        "rs" => "text/x-rust",
        "md" => "text/markdown",
        "js" | "mjs" | "cjs" | "jsx" => "text/javascript",
        "sh" => "text/x-shellscript",
        "go" => "text/x-go",
        "toml" => "text/x-toml",
        "yaml" | "yml" => "text/yaml",
        _ => return mime_guess::from_path(name).first_or_octet_stream().to_string(),
    };
    known.to_owned()
}

fn encoded(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            write!(text, "%{byte:02X}").ok();
        }
    }
    text
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct WriteFilesRequest {
    #[schema(min_items = 1, max_items = 500)]
    files: Vec<UploadedFile>,
    /// The folder of the workspace to write to.
    target_path: Option<String>,
}

#[derive(Deserialize, ToSchema)]
struct UploadedFile {
    path: String,
    /// In base64; at most 50 MiB each and 100 MiB together.
    content: String,
}

pub(super) async fn write(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    LargeBody { body, memory }: LargeBody<JsonBody<WriteFilesRequest>>,
) -> ApiResult<Answer<WrittenFilesAnswer>> {
    let session = find_open_session(&sessions, &caller, &id).await?;
    let WriteFilesRequest { files, target_path } = body.value;
    if !(1..=500).contains(&files.len()) {
        return Err(ApiProblem::invalid("invalid_body", "files must have 1 to 500 entries"));
    }
    let target = target_path.filter(|path| path != "." && !path.is_empty());
    if let Some(target) = &target {
        rel(target.trim_end_matches('/'))?;
    }
    let files = within(target.as_deref(), files);
    sessions.check_disk_limit(&session, decoded_sizes(&files)).await?;
    let written = change(&sessions, &session, move |place| {
        // Held until the write is done, also if the caller disconnects.
        let _memory = memory;
        Ok(write_all(place, files))
    });
    Ok(Answer(WrittenFilesAnswer { files: written.await? }))
}

/// Changes files and notifies the session's actor, even if the caller disconnects in between.
async fn change<T: Send + 'static>(
    sessions: &Sessions,
    session: &SessionRow,
    work: impl FnOnce(&WorkspaceFiles) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let (sessions, session) = (sessions.clone(), session.clone());
    let changing = tokio::spawn(async move {
        let place = sessions.files_to_write(&session).await?;
        let done = blocking(move || work(&place)).await;
        // Some files may be written even if others were refused.
        sessions.touched(session.no).await?;
        done
    });
    changing.await.map_err(|_| ApiProblem::internal("the work was cut off"))?
}

/// Moves the paths of the files beneath `target` in the workspace.
fn within(target: Option<&str>, files: Vec<UploadedFile>) -> Vec<UploadedFile> {
    let Some(target) = target.map(|target| target.trim_end_matches('/')) else { return files };
    let inside = |file: UploadedFile| UploadedFile { path: format!("{target}/{}", file.path), ..file };
    files.into_iter().map(inside).collect()
}

/// The files that may be written, with their maximum sizes.
fn decoded_sizes(files: &[UploadedFile]) -> Vec<(RelPath, u64)> {
    let sized = |file: &UploadedFile| {
        let size = base64::decoded_len_estimate(file.content.len());
        let path = RelPath::parse(&file.path).ok().filter(|_| size <= MAX_WRITTEN_FILE_BYTES + 2)?;
        Some((path, size as u64))
    };
    files.iter().filter_map(sized).collect()
}

/// Writes file by file, as the answer reports: each is written completely or not at all.
fn write_all(place: &WorkspaceFiles, files: Vec<UploadedFile>) -> Vec<WrittenFile> {
    let (mut total, mut ledger) = (0, UploadValidator::new(&ArchiveLimits::UPLOAD));
    let write =
        |UploadedFile { path, content }| match write_one(place, (&path, &content), &mut total, &mut ledger) {
            Ok(size) => WrittenFile { path, written: true, size: Some(size), error: None },
            Err(error) => WrittenFile { path, written: false, size: None, error: Some(error) },
        };
    files.into_iter().map(write).collect()
}

fn write_one(
    place: &WorkspaceFiles,
    (path, content): (&str, &str),
    total: &mut usize,
    ledger: &mut UploadValidator,
) -> Result<u64, String> {
    let name = ledger.path(path.as_bytes()).map_err(|_| "Invalid file path".to_owned())?;
    if path.rsplit('/').next() == Some(".DS_Store") {
        return Err("Skipped: .DS_Store".to_owned());
    }
    let bytes = STANDARD.decode(content).map_err(|_| "Invalid base64 content".to_owned())?;
    if bytes.len() > MAX_WRITTEN_FILE_BYTES {
        return Err(format!("File too large ({} bytes, max {MAX_WRITTEN_FILE_BYTES})", bytes.len()));
    }
    *total += bytes.len();
    if *total > MAX_WRITTEN_BATCH_BYTES {
        return Err("Batch size limit exceeded".to_owned());
    }
    ledger.file(&name, bytes.len() as u64).map_err(|refusal| refusal.to_string())?;
    place.write(&name, &mut bytes.as_slice()).map_err(|error| error.to_string())
}

pub(super) async fn delete(
    State(sessions): State<Sessions>,
    caller: Caller,
    FilePathParams { id, path }: FilePathParams,
) -> ApiResult<Answer<DeletedFileAnswer>> {
    let session = find_open_session(&sessions, &caller, &id).await?;
    let name = rel(&path)?;
    let removed = change(&sessions, &session, move |place| Ok(place.remove(&name)?)).await?;
    match removed {
        FoundFile::NotFound => Err(ApiProblem::not_found("file_not_found", "File not found")),
        FoundFile::NotAFile => Err(ApiProblem::invalid("not_a_file", "Path is not a file")),
        FoundFile::PermissionDenied => Err(closed()),
        FoundFile::File { .. } => Ok(Answer(DeletedFileAnswer { path, deleted: true })),
    }
}

pub(super) async fn bundle(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<ArchiveAnswer> {
    let session = find_session(&app.sessions, &caller, &id).await?;
    let place = app.sessions.files(&session).await?;
    let scratch = app.scratch.clone();
    let (file, length) = blocking(move || {
        let mut file = tempfile::tempfile_in(scratch).map_err(ApiProblem::internal)?;
        let length = archive::pack(&place, &mut file)?;
        Ok((file, length))
    })
    .await?;
    let name = format!("attachment; filename=\"{}.tar.gz\"", session.id);
    let headers = [(CONTENT_TYPE, "application/gzip".to_owned()), (CONTENT_DISPOSITION, name)];
    Ok(ArchiveAnswer((headers, read_file(Box::new(file), length)).into_response()))
}

#[derive(Deserialize, ToSchema)]
pub(super) struct UploadBundleRequest {
    /// A tar archive, plain or gzipped, in base64.
    bundle: String,
}

pub(super) async fn unbundle(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    LargeBody { body, memory }: LargeBody<JsonBody<UploadBundleRequest>>,
) -> ApiResult<Answer<UploadedWorkspaceAnswer>> {
    let session = find_open_session(&sessions, &caller, &id).await?;
    let bytes = STANDARD.decode(&body.value.bundle).map_err(|_| {
        ApiProblem::new(FailureKind::Invalid, "invalid_base64", "Invalid bundle: not valid base64")
    })?;
    drop(body);
    if bytes.is_empty() {
        return Err(ApiProblem::invalid("archive_unsupported", "Empty bundle"));
    }
    let live = session.summary.status == SessionStatus::Active;
    // Runs to its end even if the caller disconnects, so that the session's actor learns of the new files.
    let putting = tokio::spawn(async move {
        let _memory = memory;
        unpack_into_workspace(&sessions, &session, bytes).await
    });
    let written = putting.await.map_err(|_| ApiProblem::internal("the work was cut off"))??;
    let message = if live { "Workspace restored to live sandbox" } else { "Workspace saved as snapshot" };
    Ok(Answer(UploadedWorkspaceAnswer { message, written }))
}

/// Writes everything in an archive, or nothing.
async fn unpack_into_workspace(
    sessions: &Sessions,
    session: &SessionRow,
    archive: Vec<u8>,
) -> ApiResult<usize> {
    let (archive, least) = blocking(move || {
        let least = archive::check_archive(&archive, &ArchiveLimits::UPLOAD)?;
        Ok((archive, least))
    })
    .await?;
    let upload = sessions.upload(session, least).await?;
    let (upload, written) = blocking(move || {
        let written = archive::unpack(&archive, &ArchiveLimits::UPLOAD, &upload)?;
        Ok((upload, written))
    })
    .await?;
    sessions.commit_upload(session, upload).await.map_err(archive::upload_problem)?;
    Ok(written)
}

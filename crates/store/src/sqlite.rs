//! SQLite: one file, one writer. The default for a single server, and nothing to install.

mod adoption;
mod audit;
mod messages;
mod purge;
mod read;
mod remote_state;
mod replication;
mod resources;
mod session_list;
mod trash;
mod usage;
mod workspaces;
mod write;
mod writer;

use crate::{
    AccessScope, AgentRow, AgentVersion, ApiKey, AuditActor, AuditEntry, AuditQuery, Checkpoint,
    EndDisposition, Error, EventQuery, HistoryAdoption, IdempotencyClaim, KeptAgentCounts, Lease,
    LeaseHolder, LogAppend, LogItem, NewAgentVersion, NewSessionRow, NewWorkspaceRow, PendingUpload,
    RebuiltSession, RemoteRetraction, RemoteState, ReplicationLag, Result, SealedSessionValues, SealingKey,
    SecretEnv, SessionFilter, SessionLogEnd, SessionPage, SessionRow, Store, TenantSnapshots, TurnRow,
    UsageGrouping, UsageQuery, UsageReportRow, WorkspaceRow,
};
use ash_model::remote::{AgentDefinition, SessionTombstone};
use ash_model::{
    AgentName, Epoch, Event, EventSeq, Incarnation, JournalPosition, LogCursor, ResourceUsage, SessionId,
    SessionRowId, SessionStatus, Slug, TenantId, Timestamp, TurnId, WorkspaceId, WorkspaceRewind,
};
use async_trait::async_trait;
use sqlx::{
    ConnectOptions, Connection, Row, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use std::{
    collections::{HashMap, HashSet},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};
use writer::SqliteWriter;

/// The first release without the WAL-reset bug, which could lose committed data.
const MIN_SQLITE_VERSION: (&str, i64) = ("3.51.3", 3_051_003);

pub struct SqliteStore {
    writer: SqliteWriter,
    readers: SqlitePool,
    seal: Arc<SealingKey>,
    /// Whose events a fork shares, own first. A session's line never changes, so it is read once.
    lineages: Mutex<HashMap<SessionRowId, LogLineage>>,
}

/// A session, and where its own events begin after its parent's.
type LogLineage = Arc<[(SessionRowId, EventSeq)]>;

impl SqliteStore {
    pub async fn open(path: &Path, seal: SealingKey) -> Result<SqliteStore> {
        SqliteStore::open_reporting(path, seal, Arc::default()).await
    }

    /// `full` becomes true as soon as a write fails for want of space. Nothing here makes it false again.
    pub async fn open_reporting(path: &Path, seal: SealingKey, full: Arc<AtomicBool>) -> Result<SqliteStore> {
        make_private(path)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // FULL: a returned append survives power loss, not only our crash.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            // What is deleted is overwritten: a purged session leaves nothing in free pages.
            .pragma("secure_delete", "ON")
            .busy_timeout(Duration::from_secs(10))
            .statement_cache_capacity(200)
            .disable_statement_logging();
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await?;
        check_version(&mut connection).await?;
        sqlx::migrate!("migrations/sqlite").run(&mut connection).await?;
        purge::hide_older(&mut connection, &seal).await?;
        let readers =
            SqlitePoolOptions::new().max_connections(4).connect_with(options.read_only(true)).await?;
        Ok(SqliteStore {
            writer: SqliteWriter::start(connection, full),
            readers,
            seal: Arc::new(seal),
            lineages: Mutex::default(),
        })
    }

    /// Waits until everything sent to the writer is on disk, and closes the file.
    pub async fn close(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }

    async fn lineage(&self, no: SessionRowId) -> Result<LogLineage> {
        if let Some(line) = self.lineages.lock().expect("nobody panics while holding it").get(&no) {
            return Ok(line.clone());
        }
        let line: LogLineage = read::lineage(&self.readers, no).await?.into();
        self.lineages.lock().expect("nobody panics while holding it").insert(no, line.clone());
        Ok(line)
    }
}

/// SQLite makes its other files with the mode of this one.
fn make_private(path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::Database(sqlx::Error::Io(error));
    let file =
        std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(failed)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    for end in ["-wal", "-shm"] {
        let beside = std::path::PathBuf::from([path.as_os_str(), end.as_ref()].join("".as_ref()));
        match std::fs::set_permissions(beside, std::fs::Permissions::from_mode(0o600)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

async fn check_version(connection: &mut sqlx::SqliteConnection) -> Result<()> {
    let found: String = sqlx::query("SELECT sqlite_version()").fetch_one(connection).await?.try_get(0)?;
    if is_too_old(&found) {
        return Err(Error::TooOld { found, needed: MIN_SQLITE_VERSION.0 });
    }
    Ok(())
}

fn is_too_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<i64>().unwrap_or(0));
    let number = (0..3).fold(0, |sum, _| sum * 1000 + parts.next().unwrap_or(0));
    number < MIN_SQLITE_VERSION.1
}

#[async_trait]
impl Store for SqliteStore {
    async fn key(&self, hash: &str) -> Result<Option<ApiKey>> {
        read::key(&self.readers, hash).await
    }

    async fn keys(&self, tenant: &TenantId) -> Result<Vec<ApiKey>> {
        read::keys(&self.readers, tenant).await
    }

    async fn add_key(&self, key: ApiKey, hash: String, by: AuditActor) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { write::add_key(db, &key, &hash, by).await })).await
    }

    async fn remove_key(&self, tenant: &TenantId, id: &str, at: Timestamp, by: AuditActor) -> Result<bool> {
        let (tenant, id) = (tenant.clone(), id.to_owned());
        self.writer
            .write(move |db| Box::pin(async move { write::remove_key(db, (&tenant, &id), at, by).await }))
            .await
    }

    async fn deploy(&self, agent: NewAgentVersion) -> Result<AgentRow> {
        let (tenant, name) = (agent.tenant.clone(), agent.name.clone());
        let env = agent.env.as_ref().map(|env| self.seal.seal(env));
        let deployed =
            self.writer.write(move |db| Box::pin(async move { write::deploy(db, &agent, env).await }));
        let version = deployed.await?;
        read::agent_at(&self.readers, &self.seal, (&tenant, &name), version)
            .await?
            .ok_or(Error::Damaged { what: "agent", why: "just deployed, not there".into() })
    }

    async fn agent(&self, tenant: &TenantId, name: &AgentName) -> Result<Option<AgentRow>> {
        Ok(read::agents(&self.readers, &self.seal, tenant, Some(name)).await?.pop())
    }

    async fn agents(&self, tenant: &TenantId) -> Result<Vec<AgentRow>> {
        read::agents(&self.readers, &self.seal, tenant, None).await
    }

    async fn version(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        version: u32,
    ) -> Result<Option<AgentVersion>> {
        read::version(&self.readers, &self.seal, tenant, name, version).await
    }

    async fn change_agent(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        config: Option<String>,
        env: Option<SecretEnv>,
    ) -> Result<bool> {
        let (tenant, name) = (tenant.clone(), name.clone());
        let env = env.map(|env| self.seal.seal(&env));
        self.writer
            .write(move |db| {
                Box::pin(async move { write::change_agent(db, (&tenant, &name), config, env).await })
            })
            .await
    }

    async fn kept_agents(&self, tenant: &TenantId, name: &AgentName) -> Result<KeptAgentCounts> {
        read::kept_agents(&self.readers, tenant, name).await
    }

    async fn delete_agent(&self, tenant: &TenantId, name: &AgentName, at: Timestamp) -> Result<bool> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.writer
            .write(move |db| Box::pin(async move { write::delete_agent(db, &tenant, &name, at).await }))
            .await
    }

    async fn create_session(&self, session: NewSessionRow) -> Result<SessionRow> {
        let sealed = SealedSessionValues {
            env: self.seal.seal(&session.env),
            secrets: self.seal.seal(&session.secrets),
        };
        let no = self
            .writer
            .write(move |db| Box::pin(async move { write::create(db, &session, sealed).await }))
            .await?;
        self.session(no).await?.ok_or(Error::Damaged { what: "session", why: "just made, not there".into() })
    }

    async fn find_session(&self, scope: &AccessScope, id: &SessionId) -> Result<Option<SessionRow>> {
        read::find(&self.readers, scope, id).await
    }

    async fn session(&self, no: SessionRowId) -> Result<Option<SessionRow>> {
        read::session(&self.readers, no).await
    }

    async fn sessions(&self, scope: &AccessScope, filter: &SessionFilter) -> Result<SessionPage> {
        session_list::sessions(&self.readers, scope, filter).await
    }

    async fn needs_recovery(&self) -> Result<Vec<SessionRowId>> {
        read::restless(&self.readers).await
    }

    async fn workspace_sessions(&self, workspace: WorkspaceId) -> Result<Vec<(SessionRowId, SessionStatus)>> {
        read::sessions_of(&self.readers, workspace).await
    }

    async fn env(&self, no: SessionRowId) -> Result<SecretEnv> {
        self.seal.unseal(read::sealed(&self.readers, no).await?.env.as_deref())
    }

    async fn set_env(&self, no: SessionRowId, env: &SecretEnv) -> Result<()> {
        let sealed = self.seal.seal(env);
        self.writer.write(move |db| Box::pin(async move { write::set_env(db, no, sealed).await })).await
    }

    async fn secrets(&self, no: SessionRowId) -> Result<SecretEnv> {
        self.seal.unseal(read::sealed(&self.readers, no).await?.secrets.as_deref())
    }

    async fn set_secrets(&self, no: SessionRowId, secrets: &SecretEnv) -> Result<()> {
        let sealed = self.seal.seal(secrets);
        self.writer.write(move |db| Box::pin(async move { write::set_secrets(db, no, sealed).await })).await
    }

    async fn count_active(&self, tenant: &TenantId) -> Result<u64> {
        read::count_active(&self.readers, tenant).await
    }

    async fn lease_holder(&self, workspace: WorkspaceId) -> Result<Option<LeaseHolder>> {
        read::hold(&self.readers, workspace).await
    }

    async fn claim(&self, workspace: WorkspaceId, node: &str, from: &LeaseHolder) -> Result<Lease> {
        let (node, from) = (node.to_owned(), from.clone());
        self.writer
            .write(move |db| Box::pin(async move { write::claim(db, workspace, &node, &from).await }))
            .await
    }

    async fn append(&self, lease: &Lease, append: LogAppend) -> Result<()> {
        let (lease, seal) = (lease.clone(), self.seal.clone());
        self.writer
            .write(move |db| {
                Box::pin(async move {
                    let mut append = append;
                    purge::hide_gone_neighbours(db, lease.workspace, &mut append).await?;
                    write::append(db, &seal, &lease, &append).await
                })
            })
            .await
    }

    async fn facts(&self, no: SessionRowId) -> Result<Vec<Event>> {
        read::facts(&self.readers, no).await
    }

    async fn read_log(&self, no: SessionRowId, after: LogCursor, limit: u32) -> Result<Vec<LogItem>> {
        read::items(&self.readers, &self.lineage(no).await?, after, limit).await
    }

    async fn messages(&self, no: SessionRowId, after: u64, limit: u32) -> Result<Vec<(u64, Event)>> {
        messages::messages(&self.readers, &self.lineage(no).await?, after, limit).await
    }

    async fn events(&self, no: SessionRowId, query: &EventQuery) -> Result<Vec<Event>> {
        read::events(&self.readers, &self.lineage(no).await?, query).await
    }

    async fn journal_positions(
        &self,
        incarnation: Incarnation,
    ) -> Result<Vec<(SessionRowId, JournalPosition)>> {
        read::positions(&self.readers, incarnation).await
    }

    async fn turn(&self, no: SessionRowId, turn: TurnId) -> Result<Option<TurnRow>> {
        read::turn(&self.readers, no, turn).await
    }

    async fn checkpoint(&self, workspace: WorkspaceId, number: u64) -> Result<Option<Checkpoint>> {
        read::checkpoint(&self.readers, workspace, number).await
    }

    async fn checkpoints(
        &self,
        workspace: WorkspaceId,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Checkpoint>> {
        read::checkpoints(&self.readers, workspace, before, limit).await
    }

    async fn tenants(&self) -> Result<Vec<TenantId>> {
        read::tenants(&self.readers).await
    }

    async fn tenant_snapshots(&self, tenant: &TenantId) -> Result<TenantSnapshots> {
        read::holdings(&self.readers, tenant).await
    }

    async fn workspace_rewinds(
        &self,
        workspace: WorkspaceId,
        after: u64,
    ) -> Result<Vec<(WorkspaceRewind, Timestamp)>> {
        read::taken_back(&self.readers, workspace, after).await
    }

    async fn remove_checkpoints(
        &self,
        workspace: WorkspaceId,
        numbers: &[u64],
        at: Timestamp,
    ) -> Result<u64> {
        let numbers = serde_json::to_string(numbers).expect("a list of numbers");
        self.writer
            .write(move |db| {
                Box::pin(async move { write::remove_checkpoints(db, workspace, &numbers, at).await })
            })
            .await
    }

    async fn set_remote(&self, place: &str) -> Result<()> {
        let place = place.to_owned();
        self.writer.write(move |db| Box::pin(async move { replication::set_place(db, &place).await })).await
    }

    async fn pending_uploads(&self, limit: u32, except: &[SessionRowId]) -> Result<Vec<PendingUpload>> {
        let except: Vec<i64> = except.iter().map(|session| session.0).collect();
        let except = serde_json::to_string(&except).expect("a list of numbers");
        replication::outgoing(&self.readers, limit, &except).await
    }

    async fn mark_uploaded(&self, what: &PendingUpload, seq: EventSeq, at: Timestamp) -> Result<()> {
        let what = what.clone();
        self.writer
            .write(move |db| Box::pin(async move { replication::sent(db, &what, seq, at).await }))
            .await
    }

    async fn replication_lag(&self) -> Result<ReplicationLag> {
        replication::lag(&self.readers).await
    }

    async fn remote_packs(&self, tenant: &TenantId) -> Result<HashMap<String, u64>> {
        replication::packs(&self.readers, tenant).await
    }

    async fn add_remote_packs(&self, tenant: &TenantId, packs: &[(String, u64)]) -> Result<()> {
        let (tenant, packs) = (tenant.clone(), packs.to_vec());
        self.writer
            .write(move |db| Box::pin(async move { replication::add_packs(db, &tenant, &packs).await }))
            .await
    }

    async fn sealed_values(&self, no: SessionRowId) -> Result<SealedSessionValues> {
        read::sealed(&self.readers, no).await
    }

    async fn rebuild(&self, rebuilt: RebuiltSession) -> Result<bool> {
        let seal = self.seal.clone();
        self.writer
            .write(move |db| Box::pin(async move { replication::rebuild(db, &seal, &rebuilt).await }))
            .await
    }

    async fn adopt(&self, adoption: HistoryAdoption) -> Result<()> {
        // Whose events a fork shares changes where two histories part.
        self.lineages.lock().expect("nobody panics while holding it").clear();
        let adopted =
            self.writer.write(move |db| Box::pin(async move { adoption::adopt(db, &adoption).await })).await;
        self.lineages.lock().expect("nobody panics while holding it").clear();
        adopted
    }

    async fn raise_epoch(&self, workspace: WorkspaceId, epoch: Epoch) -> Result<()> {
        self.writer
            .write(move |db| Box::pin(async move { adoption::raise_epoch(db, workspace, epoch).await }))
            .await
    }

    async fn trash_by_tombstone(&self, no: SessionRowId, at: Timestamp, by: AuditActor) -> Result<()> {
        let seal = self.seal.clone();
        self.writer
            .write(move |db| Box::pin(async move { adoption::purge_again(db, &seal, no, (at, &by)).await }))
            .await
    }

    async fn tombstones_of(&self, tenant: &TenantId, id: &SessionId) -> Result<Vec<SessionTombstone>> {
        purge::of_id(&self.readers, tenant, id).await
    }

    async fn session_then(
        &self,
        tenant: &TenantId,
        id: &SessionId,
        at: Timestamp,
    ) -> Result<Option<SessionRow>> {
        let row = purge::had_id(&self.readers, (tenant, id), at).await?;
        row.as_ref().map(read::session_row).transpose()
    }

    async fn agent_definition(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        version: u32,
    ) -> Result<Option<AgentDefinition>> {
        replication::definition(&self.readers, tenant, name, version).await
    }

    async fn log_positions(&self, tenant: &TenantId) -> Result<Vec<SessionLogEnd>> {
        adoption::log_positions(&self.readers, tenant).await
    }

    async fn tombstones(&self) -> Result<Vec<(SessionRowId, SessionTombstone)>> {
        adoption::tombstones(&self.readers, false, u32::MAX).await
    }

    async fn tombstone(&self, no: SessionRowId) -> Result<Option<(SessionTombstone, bool)>> {
        adoption::tombstone(&self.readers, no).await
    }

    async fn check_integrity(&self) -> Result<Option<String>> {
        read::damage(&self.readers).await
    }

    async fn add_agents(&self, agents: Vec<AgentDefinition>, at: Timestamp) -> Result<()> {
        self.writer
            .write(move |db| {
                Box::pin(async move {
                    for agent in &agents {
                        replication::add_agent(db, agent, at).await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    async fn make_workspace(&self, new: NewWorkspaceRow) -> Result<WorkspaceRow> {
        self.writer.write(move |db| Box::pin(async move { workspaces::make(db, &new).await })).await
    }

    async fn find_workspace(&self, scope: &AccessScope, slug: &Slug) -> Result<Option<WorkspaceRow>> {
        workspaces::find(&self.readers, scope, slug).await
    }

    async fn workspaces(&self, scope: &AccessScope) -> Result<Vec<WorkspaceRow>> {
        workspaces::list(&self.readers, scope).await
    }

    async fn workspaces_being_deleted(&self) -> Result<Vec<WorkspaceRow>> {
        workspaces::half_deleted(&self.readers).await
    }

    async fn begin_deleting(&self, id: WorkspaceId, at: Timestamp, by: AuditActor) -> Result<()> {
        self.writer
            .write(move |db| Box::pin(async move { workspaces::begin_deleting(db, id, at, by).await }))
            .await
    }

    async fn finish_deleting(&self, id: WorkspaceId, at: Timestamp) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { workspaces::deleted(db, id, at).await })).await
    }

    async fn request_end(&self, no: SessionRowId, by: AuditActor, fate: EndDisposition) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { audit::order(db, no, by, fate).await })).await
    }

    async fn expired_sessions(&self, now: Timestamp) -> Result<Vec<SessionRow>> {
        trash::overdue(&self.readers, now).await
    }

    async fn resting_sessions(&self, status: SessionStatus, before: Timestamp) -> Result<Vec<SessionRow>> {
        trash::rested(&self.readers, status, before).await
    }

    async fn add_audit_entry(&self, line: AuditEntry, of: Option<SessionRowId>) -> Result<()> {
        let seal = self.seal.clone();
        self.writer.write(move |db| Box::pin(async move { audit::record(db, &seal, line, of).await })).await
    }

    async fn audit_entries(&self, tenant: &TenantId, query: &AuditQuery) -> Result<Vec<AuditEntry>> {
        audit::list(&self.readers, &self.seal, tenant, query).await
    }

    async fn trash(&self, no: SessionRowId, at: Timestamp, by: AuditActor) -> Result<bool> {
        let seal = self.seal.clone();
        self.writer.write(move |db| Box::pin(async move { trash::put(db, &seal, no, (at, &by)).await })).await
    }

    async fn trashed_parents(&self, before: Timestamp) -> Result<Vec<SessionRowId>> {
        trash::old_parents(&self.readers, before).await
    }

    async fn forget_unshared(&self, no: SessionRowId) -> Result<bool> {
        let done =
            self.writer.write(move |db| Box::pin(async move { trash::thin_out(db, no).await })).await?;
        if !done {
            self.writer.truncate_wal().await;
        }
        Ok(done)
    }

    async fn trashed_sessions(&self, before: Timestamp) -> Result<Vec<SessionRow>> {
        trash::old(&self.readers, before).await
    }

    async fn purge(&self, no: SessionRowId, at: Timestamp) -> Result<bool> {
        let seal = self.seal.clone();
        let done = self
            .writer
            .write(move |db| Box::pin(async move { trash::bury(db, &seal, no, at).await }))
            .await?;
        if done {
            self.writer.truncate_wal().await;
        }
        Ok(done)
    }

    async fn enqueue_deletes(&self, keys: &[String], at: Timestamp) -> Result<()> {
        let keys = keys.to_vec();
        self.writer.write(move |db| Box::pin(async move { replication::doom(db, &keys, at).await })).await
    }

    async fn queued_deletes(&self, limit: u32) -> Result<Vec<(i64, String)>> {
        replication::doomed(&self.readers, limit).await
    }

    async fn cancel_deletes(&self, keys: &[String]) -> Result<()> {
        let keys = serde_json::to_string(keys).expect("a list of strings");
        self.writer.write(move |db| Box::pin(async move { replication::spare(db, &keys).await })).await
    }

    async fn forget_remote_packs(&self, tenant: &TenantId, packs: &[String]) -> Result<()> {
        let (tenant, packs) = (tenant.clone(), serde_json::to_string(packs).expect("a list of strings"));
        self.writer
            .write(move |db| Box::pin(async move { replication::forget_packs(db, &tenant, &packs).await }))
            .await
    }

    async fn remote_state(&self, tenant: &TenantId) -> Result<RemoteState> {
        remote_state::state(&self.readers, tenant).await
    }

    async fn retract(&self, tenant: &TenantId, what: RemoteRetraction) -> Result<()> {
        let tenant = tenant.clone();
        self.writer
            .write(move |db| Box::pin(async move { remote_state::retract(db, &tenant, &what).await }))
            .await
    }

    async fn missing_packs(&self, tenant: &TenantId) -> Result<HashSet<String>> {
        remote_state::missing(&self.readers, tenant).await
    }

    async fn add_remote_object(&self, key: &str, size: u64) -> Result<()> {
        let key = key.to_owned();
        self.writer
            .write(move |db| Box::pin(async move { remote_state::add_object(db, &key, size).await }))
            .await
    }

    async fn forget_remote_objects(&self, keys: &[String]) -> Result<()> {
        let keys = serde_json::to_string(keys).expect("a list of strings");
        self.writer
            .write(move |db| Box::pin(async move { remote_state::forget_objects(db, &keys).await }))
            .await
    }

    async fn dequeue_deletes(&self, numbers: &[i64]) -> Result<()> {
        let numbers = serde_json::to_string(numbers).expect("a list of numbers");
        self.writer.write(move |db| Box::pin(async move { replication::undoom(db, &numbers).await })).await
    }

    async fn usage(
        &self,
        scope: &AccessScope,
        by: Option<UsageGrouping>,
        query: &UsageQuery,
    ) -> Result<Vec<UsageReportRow>> {
        usage::sums(&self.readers, scope, by, query).await
    }

    async fn record_resource_usage(
        &self,
        workspace: WorkspaceId,
        of: (Incarnation, ResourceUsage),
        at: Timestamp,
    ) -> Result<()> {
        self.writer
            .write(move |db| Box::pin(async move { resources::took(db, workspace, of, at).await }))
            .await
    }

    async fn workspace_resource_usage(&self, workspace: Option<WorkspaceId>) -> Result<ResourceUsage> {
        resources::taken(&self.readers, workspace).await
    }

    async fn total_resource_usage(&self, scope: &AccessScope, query: &UsageQuery) -> Result<ResourceUsage> {
        resources::taken_of(&self.readers, scope, query).await
    }

    async fn resource_usage_by_session(
        &self,
        scope: &AccessScope,
        sessions: &[SessionId],
    ) -> Result<Vec<(SessionId, ResourceUsage)>> {
        resources::taken_by(&self.readers, scope, sessions).await
    }

    async fn claim_idempotency_key(
        &self,
        tenant: &TenantId,
        route: &str,
        key: &str,
        hash: &str,
        resource: &str,
        at: Timestamp,
    ) -> Result<IdempotencyClaim> {
        let words = [tenant.as_str(), route, key, hash, resource].map(str::to_owned);
        self.writer.write(move |db| Box::pin(async move { write::once(db, &words, at).await })).await
    }

    async fn idempotency_resource(
        &self,
        tenant: &TenantId,
        route: &str,
        key: &str,
    ) -> Result<Option<String>> {
        read::claimed(&self.readers, tenant, route, key).await
    }

    async fn release_idempotency_key(&self, tenant: &TenantId, route: &str, key: &str) -> Result<()> {
        let words = [tenant.as_str(), route, key].map(str::to_owned);
        self.writer.write(move |db| Box::pin(async move { write::forget_refused(db, &words).await })).await
    }

    async fn prune(&self, before: Timestamp) -> Result<u64> {
        self.writer.write(move |db| Box::pin(async move { write::prune(db, before).await })).await
    }
}

#[cfg(test)]
mod tests {
    use super::is_too_old;

    #[test]
    fn a_sqlite_that_can_lose_data_is_refused() {
        for old in ["3.51.2", "3.50.99", "3.9.0", "2.99.99", "3.51", "", "x"] {
            assert!(is_too_old(old), "{old}");
        }
        for good in ["3.51.3", "3.51.10", "3.52.0", "3.52", "4.0.0", "3.51.3.1"] {
            assert!(!is_too_old(good), "{good}");
        }
    }
}

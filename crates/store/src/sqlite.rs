//! SQLite: one file, one writer. The default for a single server, and nothing to install.

mod audit;
mod census;
mod far;
mod list;
mod messages;
mod purge;
mod read;
mod resources;
mod trash;
mod usage;
mod witness;
mod workspaces;
mod write;
mod writer;

use crate::{
    Adoption, Agent, Append, AuditQuery, Audited, Checkpoint, Claimed, Env, Error, EventQuery, Fate, Filter,
    Hold, Holdings, Item, KeptAgents, Key, Lag, Lease, LogPosition, NewAgent, NewSession, NewWorkspace,
    Order, Outgoing, Page, Rebuilt, RemoteState, Result, Retraction, Scope, Seal, SealedValues, Session,
    Store, TurnRow, UsageBy, UsageQuery, UsageSum, Version, Workspace,
};
use ash_model::far::{FarAgent, Tombstone};
use ash_model::{
    AgentName, Cursor, Epoch, Event, Incarnation, JournalPosition, Resources, Seq, SessionId, SessionNo,
    Slug, Status, TakenBack, TenantId, Timestamp, TurnId, WorkspaceId,
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
use writer::Writer;

/// The first release without the WAL-reset bug, which could lose committed data.
const OLDEST: (&str, i64) = ("3.51.3", 3_051_003);

pub struct Sqlite {
    writer: Writer,
    readers: SqlitePool,
    seal: Arc<Seal>,
    /// Whose events a fork shares, own first. A session's line never changes, so it is read once.
    lines: Mutex<HashMap<SessionNo, Line>>,
}

/// A session, and where its own events begin after its parent's.
type Line = Arc<[(SessionNo, Seq)]>;

impl Sqlite {
    pub async fn open(path: &Path, seal: Seal) -> Result<Sqlite> {
        Sqlite::open_reporting(path, seal, Arc::default()).await
    }

    /// `full` becomes true as soon as a write fails for want of space. Nothing here makes it false again.
    pub async fn open_reporting(path: &Path, seal: Seal, full: Arc<AtomicBool>) -> Result<Sqlite> {
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
        Ok(Sqlite {
            writer: Writer::start(connection, full),
            readers,
            seal: Arc::new(seal),
            lines: Mutex::default(),
        })
    }

    /// Waits until everything sent to the writer is on disk, and closes the file.
    pub async fn close(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }

    async fn line(&self, no: SessionNo) -> Result<Line> {
        if let Some(line) = self.lines.lock().expect("nobody panics while holding it").get(&no) {
            return Ok(line.clone());
        }
        let line: Line = read::line(&self.readers, no).await?.into();
        self.lines.lock().expect("nobody panics while holding it").insert(no, line.clone());
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
        return Err(Error::TooOld { found, needed: OLDEST.0 });
    }
    Ok(())
}

fn is_too_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<i64>().unwrap_or(0));
    let number = (0..3).fold(0, |sum, _| sum * 1000 + parts.next().unwrap_or(0));
    number < OLDEST.1
}

#[async_trait]
impl Store for Sqlite {
    async fn key(&self, hash: &str) -> Result<Option<Key>> {
        read::key(&self.readers, hash).await
    }

    async fn keys(&self, tenant: &TenantId) -> Result<Vec<Key>> {
        read::keys(&self.readers, tenant).await
    }

    async fn add_key(&self, key: Key, hash: String, by: Order) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { write::add_key(db, &key, &hash, by).await })).await
    }

    async fn remove_key(&self, tenant: &TenantId, id: &str, at: Timestamp, by: Order) -> Result<bool> {
        let (tenant, id) = (tenant.clone(), id.to_owned());
        self.writer
            .write(move |db| Box::pin(async move { write::remove_key(db, (&tenant, &id), at, by).await }))
            .await
    }

    async fn deploy(&self, agent: NewAgent) -> Result<Agent> {
        let (tenant, name) = (agent.tenant.clone(), agent.name.clone());
        let env = agent.env.as_ref().map(|env| self.seal.seal(env));
        let deployed =
            self.writer.write(move |db| Box::pin(async move { write::deploy(db, &agent, env).await }));
        let version = deployed.await?;
        read::agent_at(&self.readers, &self.seal, (&tenant, &name), version)
            .await?
            .ok_or(Error::Damaged { what: "agent", why: "just deployed, not there".into() })
    }

    async fn agent(&self, tenant: &TenantId, name: &AgentName) -> Result<Option<Agent>> {
        Ok(read::agents(&self.readers, &self.seal, tenant, Some(name)).await?.pop())
    }

    async fn agents(&self, tenant: &TenantId) -> Result<Vec<Agent>> {
        read::agents(&self.readers, &self.seal, tenant, None).await
    }

    async fn version(&self, tenant: &TenantId, name: &AgentName, version: u32) -> Result<Option<Version>> {
        read::version(&self.readers, &self.seal, tenant, name, version).await
    }

    async fn change_agent(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        config: Option<String>,
        env: Option<Env>,
    ) -> Result<bool> {
        let (tenant, name) = (tenant.clone(), name.clone());
        let env = env.map(|env| self.seal.seal(&env));
        self.writer
            .write(move |db| {
                Box::pin(async move { write::change_agent(db, (&tenant, &name), config, env).await })
            })
            .await
    }

    async fn kept_agents(&self, tenant: &TenantId, name: &AgentName) -> Result<KeptAgents> {
        read::kept_agents(&self.readers, tenant, name).await
    }

    async fn delete_agent(&self, tenant: &TenantId, name: &AgentName, at: Timestamp) -> Result<bool> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.writer
            .write(move |db| Box::pin(async move { write::delete_agent(db, &tenant, &name, at).await }))
            .await
    }

    async fn create(&self, session: NewSession) -> Result<Session> {
        let sealed =
            SealedValues { env: self.seal.seal(&session.env), secrets: self.seal.seal(&session.secrets) };
        let no = self
            .writer
            .write(move |db| Box::pin(async move { write::create(db, &session, sealed).await }))
            .await?;
        self.session(no).await?.ok_or(Error::Damaged { what: "session", why: "just made, not there".into() })
    }

    async fn find(&self, scope: &Scope, id: &SessionId) -> Result<Option<Session>> {
        read::find(&self.readers, scope, id).await
    }

    async fn session(&self, no: SessionNo) -> Result<Option<Session>> {
        read::session(&self.readers, no).await
    }

    async fn sessions(&self, scope: &Scope, filter: &Filter) -> Result<Page> {
        list::sessions(&self.readers, scope, filter).await
    }

    async fn restless(&self) -> Result<Vec<SessionNo>> {
        read::restless(&self.readers).await
    }

    async fn sessions_of(&self, workspace: WorkspaceId) -> Result<Vec<(SessionNo, Status)>> {
        read::sessions_of(&self.readers, workspace).await
    }

    async fn env(&self, no: SessionNo) -> Result<Env> {
        self.seal.unseal(read::sealed(&self.readers, no).await?.env.as_deref())
    }

    async fn set_env(&self, no: SessionNo, env: &Env) -> Result<()> {
        let sealed = self.seal.seal(env);
        self.writer.write(move |db| Box::pin(async move { write::set_env(db, no, sealed).await })).await
    }

    async fn secrets(&self, no: SessionNo) -> Result<Env> {
        self.seal.unseal(read::sealed(&self.readers, no).await?.secrets.as_deref())
    }

    async fn set_secrets(&self, no: SessionNo, secrets: &Env) -> Result<()> {
        let sealed = self.seal.seal(secrets);
        self.writer.write(move |db| Box::pin(async move { write::set_secrets(db, no, sealed).await })).await
    }

    async fn count_active(&self, tenant: &TenantId) -> Result<u64> {
        read::count_active(&self.readers, tenant).await
    }

    async fn hold(&self, workspace: WorkspaceId) -> Result<Option<Hold>> {
        read::hold(&self.readers, workspace).await
    }

    async fn claim(&self, workspace: WorkspaceId, node: &str, from: &Hold) -> Result<Lease> {
        let (node, from) = (node.to_owned(), from.clone());
        self.writer
            .write(move |db| Box::pin(async move { write::claim(db, workspace, &node, &from).await }))
            .await
    }

    async fn append(&self, lease: &Lease, append: Append) -> Result<()> {
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

    async fn facts(&self, no: SessionNo) -> Result<Vec<Event>> {
        read::facts(&self.readers, no).await
    }

    async fn read(&self, no: SessionNo, after: Cursor, limit: u32) -> Result<Vec<Item>> {
        read::items(&self.readers, &self.line(no).await?, after, limit).await
    }

    async fn messages(&self, no: SessionNo, after: u64, limit: u32) -> Result<Vec<(u64, Event)>> {
        messages::messages(&self.readers, &self.line(no).await?, after, limit).await
    }

    async fn events(&self, no: SessionNo, query: &EventQuery) -> Result<Vec<Event>> {
        read::events(&self.readers, &self.line(no).await?, query).await
    }

    async fn positions(&self, incarnation: Incarnation) -> Result<Vec<(SessionNo, JournalPosition)>> {
        read::positions(&self.readers, incarnation).await
    }

    async fn turn(&self, no: SessionNo, turn: TurnId) -> Result<Option<TurnRow>> {
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

    async fn holdings(&self, tenant: &TenantId) -> Result<Holdings> {
        read::holdings(&self.readers, tenant).await
    }

    async fn taken_back(&self, workspace: WorkspaceId, after: u64) -> Result<Vec<(TakenBack, Timestamp)>> {
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

    async fn set_far(&self, place: &str) -> Result<()> {
        let place = place.to_owned();
        self.writer.write(move |db| Box::pin(async move { far::set_place(db, &place).await })).await
    }

    async fn outgoing(&self, limit: u32, except: &[SessionNo]) -> Result<Vec<Outgoing>> {
        let except: Vec<i64> = except.iter().map(|session| session.0).collect();
        let except = serde_json::to_string(&except).expect("a list of numbers");
        far::outgoing(&self.readers, limit, &except).await
    }

    async fn sent(&self, what: &Outgoing, seq: Seq, at: Timestamp) -> Result<()> {
        let what = what.clone();
        self.writer.write(move |db| Box::pin(async move { far::sent(db, &what, seq, at).await })).await
    }

    async fn lag(&self) -> Result<Lag> {
        far::lag(&self.readers).await
    }

    async fn far_packs(&self, tenant: &TenantId) -> Result<HashMap<String, u64>> {
        far::packs(&self.readers, tenant).await
    }

    async fn add_far_packs(&self, tenant: &TenantId, packs: &[(String, u64)]) -> Result<()> {
        let (tenant, packs) = (tenant.clone(), packs.to_vec());
        self.writer.write(move |db| Box::pin(async move { far::add_packs(db, &tenant, &packs).await })).await
    }

    async fn sealed(&self, no: SessionNo) -> Result<SealedValues> {
        read::sealed(&self.readers, no).await
    }

    async fn rebuild(&self, rebuilt: Rebuilt) -> Result<bool> {
        let seal = self.seal.clone();
        self.writer.write(move |db| Box::pin(async move { far::rebuild(db, &seal, &rebuilt).await })).await
    }

    async fn adopt(&self, adoption: Adoption) -> Result<()> {
        // Whose events a fork shares changes where two histories part.
        self.lines.lock().expect("nobody panics while holding it").clear();
        let adopted =
            self.writer.write(move |db| Box::pin(async move { witness::adopt(db, &adoption).await })).await;
        self.lines.lock().expect("nobody panics while holding it").clear();
        adopted
    }

    async fn raise_epoch(&self, workspace: WorkspaceId, epoch: Epoch) -> Result<()> {
        self.writer
            .write(move |db| Box::pin(async move { witness::raise_epoch(db, workspace, epoch).await }))
            .await
    }

    async fn purge_again(&self, no: SessionNo, at: Timestamp, by: Order) -> Result<()> {
        let seal = self.seal.clone();
        self.writer
            .write(move |db| Box::pin(async move { witness::purge_again(db, &seal, no, (at, &by)).await }))
            .await
    }

    async fn tombstones_of(&self, tenant: &TenantId, id: &SessionId) -> Result<Vec<Tombstone>> {
        purge::of_id(&self.readers, tenant, id).await
    }

    async fn session_then(
        &self,
        tenant: &TenantId,
        id: &SessionId,
        at: Timestamp,
    ) -> Result<Option<Session>> {
        let row = purge::had_id(&self.readers, (tenant, id), at).await?;
        row.as_ref().map(read::session_row).transpose()
    }

    async fn definition(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        version: u32,
    ) -> Result<Option<FarAgent>> {
        far::definition(&self.readers, tenant, name, version).await
    }

    async fn log_positions(&self, tenant: &TenantId) -> Result<Vec<LogPosition>> {
        witness::log_positions(&self.readers, tenant).await
    }

    async fn tombstones(&self) -> Result<Vec<(SessionNo, Tombstone)>> {
        witness::tombstones(&self.readers, false, u32::MAX).await
    }

    async fn tombstone(&self, no: SessionNo) -> Result<Option<(Tombstone, bool)>> {
        witness::tombstone(&self.readers, no).await
    }

    async fn damage(&self) -> Result<Option<String>> {
        read::damage(&self.readers).await
    }

    async fn add_agents(&self, agents: Vec<FarAgent>, at: Timestamp) -> Result<()> {
        self.writer
            .write(move |db| {
                Box::pin(async move {
                    for agent in &agents {
                        far::add_agent(db, agent, at).await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    async fn make_workspace(&self, new: NewWorkspace) -> Result<Workspace> {
        self.writer.write(move |db| Box::pin(async move { workspaces::make(db, &new).await })).await
    }

    async fn find_workspace(&self, scope: &Scope, slug: &Slug) -> Result<Option<Workspace>> {
        workspaces::find(&self.readers, scope, slug).await
    }

    async fn workspaces(&self, scope: &Scope) -> Result<Vec<Workspace>> {
        workspaces::list(&self.readers, scope).await
    }

    async fn half_deleted(&self) -> Result<Vec<Workspace>> {
        workspaces::half_deleted(&self.readers).await
    }

    async fn begin_deleting(&self, id: WorkspaceId, at: Timestamp, by: Order) -> Result<()> {
        self.writer
            .write(move |db| Box::pin(async move { workspaces::begin_deleting(db, id, at, by).await }))
            .await
    }

    async fn deleted(&self, id: WorkspaceId, at: Timestamp) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { workspaces::deleted(db, id, at).await })).await
    }

    async fn order_end(&self, no: SessionNo, by: Order, fate: Fate) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { audit::order(db, no, by, fate).await })).await
    }

    async fn overdue(&self, now: Timestamp) -> Result<Vec<Session>> {
        trash::overdue(&self.readers, now).await
    }

    async fn rested(&self, status: Status, before: Timestamp) -> Result<Vec<Session>> {
        trash::rested(&self.readers, status, before).await
    }

    async fn record(&self, line: Audited, of: Option<SessionNo>) -> Result<()> {
        let seal = self.seal.clone();
        self.writer.write(move |db| Box::pin(async move { audit::record(db, &seal, line, of).await })).await
    }

    async fn audit(&self, tenant: &TenantId, query: &AuditQuery) -> Result<Vec<Audited>> {
        audit::list(&self.readers, &self.seal, tenant, query).await
    }

    async fn trash(&self, no: SessionNo, at: Timestamp, by: Order) -> Result<bool> {
        let seal = self.seal.clone();
        self.writer.write(move |db| Box::pin(async move { trash::put(db, &seal, no, (at, &by)).await })).await
    }

    async fn trashed_parents(&self, before: Timestamp) -> Result<Vec<SessionNo>> {
        trash::old_parents(&self.readers, before).await
    }

    async fn forget_unshared(&self, no: SessionNo) -> Result<bool> {
        let done =
            self.writer.write(move |db| Box::pin(async move { trash::thin_out(db, no).await })).await?;
        if !done {
            self.writer.erase_log().await;
        }
        Ok(done)
    }

    async fn trashed(&self, before: Timestamp) -> Result<Vec<Session>> {
        trash::old(&self.readers, before).await
    }

    async fn bury(&self, no: SessionNo, at: Timestamp) -> Result<bool> {
        let seal = self.seal.clone();
        let done = self
            .writer
            .write(move |db| Box::pin(async move { trash::bury(db, &seal, no, at).await }))
            .await?;
        if done {
            self.writer.erase_log().await;
        }
        Ok(done)
    }

    async fn doom(&self, keys: &[String], at: Timestamp) -> Result<()> {
        let keys = keys.to_vec();
        self.writer.write(move |db| Box::pin(async move { far::doom(db, &keys, at).await })).await
    }

    async fn doomed(&self, limit: u32) -> Result<Vec<(i64, String)>> {
        far::doomed(&self.readers, limit).await
    }

    async fn spare(&self, keys: &[String]) -> Result<()> {
        let keys = serde_json::to_string(keys).expect("a list of strings");
        self.writer.write(move |db| Box::pin(async move { far::spare(db, &keys).await })).await
    }

    async fn forget_far_packs(&self, tenant: &TenantId, packs: &[String]) -> Result<()> {
        let (tenant, packs) = (tenant.clone(), serde_json::to_string(packs).expect("a list of strings"));
        self.writer
            .write(move |db| Box::pin(async move { far::forget_packs(db, &tenant, &packs).await }))
            .await
    }

    async fn remote_state(&self, tenant: &TenantId) -> Result<RemoteState> {
        census::state(&self.readers, tenant).await
    }

    async fn retract(&self, tenant: &TenantId, what: Retraction) -> Result<()> {
        let tenant = tenant.clone();
        self.writer.write(move |db| Box::pin(async move { census::retract(db, &tenant, &what).await })).await
    }

    async fn missing_packs(&self, tenant: &TenantId) -> Result<HashSet<String>> {
        census::missing(&self.readers, tenant).await
    }

    async fn add_remote_object(&self, key: &str, size: u64) -> Result<()> {
        let key = key.to_owned();
        self.writer.write(move |db| Box::pin(async move { census::add_object(db, &key, size).await })).await
    }

    async fn forget_remote_objects(&self, keys: &[String]) -> Result<()> {
        let keys = serde_json::to_string(keys).expect("a list of strings");
        self.writer.write(move |db| Box::pin(async move { census::forget_objects(db, &keys).await })).await
    }

    async fn undoom(&self, numbers: &[i64]) -> Result<()> {
        let numbers = serde_json::to_string(numbers).expect("a list of numbers");
        self.writer.write(move |db| Box::pin(async move { far::undoom(db, &numbers).await })).await
    }

    async fn usage(&self, scope: &Scope, by: Option<UsageBy>, query: &UsageQuery) -> Result<Vec<UsageSum>> {
        usage::sums(&self.readers, scope, by, query).await
    }

    async fn took(&self, workspace: WorkspaceId, of: (Incarnation, Resources), at: Timestamp) -> Result<()> {
        self.writer
            .write(move |db| Box::pin(async move { resources::took(db, workspace, of, at).await }))
            .await
    }

    async fn taken(&self, workspace: Option<WorkspaceId>) -> Result<Resources> {
        resources::taken(&self.readers, workspace).await
    }

    async fn taken_of(&self, scope: &Scope, query: &UsageQuery) -> Result<Resources> {
        resources::taken_of(&self.readers, scope, query).await
    }

    async fn taken_by(&self, scope: &Scope, sessions: &[SessionId]) -> Result<Vec<(SessionId, Resources)>> {
        resources::taken_by(&self.readers, scope, sessions).await
    }

    async fn once(
        &self,
        tenant: &TenantId,
        route: &str,
        key: &str,
        hash: &str,
        resource: &str,
        at: Timestamp,
    ) -> Result<Claimed> {
        let words = [tenant.as_str(), route, key, hash, resource].map(str::to_owned);
        self.writer.write(move |db| Box::pin(async move { write::once(db, &words, at).await })).await
    }

    async fn claimed(&self, tenant: &TenantId, route: &str, key: &str) -> Result<Option<String>> {
        read::claimed(&self.readers, tenant, route, key).await
    }

    async fn forget_refused(&self, tenant: &TenantId, route: &str, key: &str) -> Result<()> {
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

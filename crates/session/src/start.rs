//! The start of a session: its files, its sandbox, its agent, and the agent's memory.

mod briefing;
mod handshake;
mod memory;
mod options;
mod salvage;
mod sandbox;
mod scripts;
mod transcript;
mod tree;

pub(crate) use tree::{StartTree, make_tree, recipe, recipe_of, standing_on};

use crate::{
    Error, Result,
    agent_logs::AgentLogBuffer,
    artifacts, blocking,
    error::DISK_LIMIT,
    ladder::{RecalledConversation, SalvageOnlyFiles, StartTreeOrigin},
    live_directory::{LiveDirectory, LiveTree, LiveTreeShape, open_root},
    machine::LogState,
    resource_limits,
    sandbox_conn::{SandboxConn, StartupUsage},
    services::{Services, StartRequirements},
    slots::SandboxPermit,
    workspace::{ExclusiveGuard, Sandbox, Workspace},
};
use ash_driver::{AgentDriver, ClaudeVersion, ConversationSource, ResumedConversation, TurnTracker};
use ash_model::{
    Fact, ModelApiDialect, Problem, RemoteComparison, ResourceLimits, ResumeComparison, Tier, WorkspaceRewind,
};
use ash_sandbox::{RecordStream, SandboxLayout};
use ash_snapshot::{FileOwner, TreeId};
use ash_store::{AgentVersion, Lease, SessionRow};
use handshake::AgentGreeting;
use memory::Rung;
use sandbox::SandboxShare;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Notify;
use tree::FilesComparison;

const SEALED: &str =
    "environment variables: they were sealed with another seal.key; bring them again with `env`";

/// A sandbox whose agent answers, and how it was started.
pub(crate) struct CompletedStart {
    pub(crate) conn: SandboxConn,
    pub(crate) tree: StartTree,
    pub(crate) recalled: RecalledConversation,
    /// Rewinds of the workspace by other sessions while this one had no sandbox.
    pub(crate) backs: Vec<WorkspaceRewind>,
    /// The attempts that failed before, from the top of the ladder.
    pub(crate) failed: Vec<Fact>,
    pub(crate) head: Option<String>,
    pub(crate) compared: Option<(ResumeComparison, Vec<String>)>,
    pub(crate) salvage: Option<SalvageOnlyFiles>,
    /// Paths that are missing in the checkpoint that the files were restored from.
    pub(crate) unsaved: Vec<String>,
    pub(crate) ear: TurnTracker,
    /// How many inputs the agent got after its greeting.
    pub(crate) more_inputs: u64,
    pub(crate) began: Instant,
}

/// An agent that has answered.
struct StartedAgent {
    part: SandboxShare,
    position: u64,
    recalled: RecalledConversation,
    ear: TurnTracker,
    more_inputs: u64,
}

/// What the first message and the receipt say about the resume.
struct ResumeDetails {
    pub(crate) tree: StartTree,
    pub(crate) backs: Vec<WorkspaceRewind>,
    pub(crate) head: Option<String>,
    pub(crate) compared: Option<(ResumeComparison, Vec<String>)>,
    pub(crate) salvage: Option<SalvageOnlyFiles>,
    pub(crate) unsaved: Vec<String>,
}

/// Which program is started, and how.
pub(crate) struct AgentProgram<'w> {
    pub(crate) driver: &'w dyn AgentDriver,
    pub(crate) version: &'w AgentVersion,
    pub(crate) program: Option<PathBuf>,
    pub(crate) claude: Option<ClaudeVersion>,
    pub(crate) provider: Option<ModelApiDialect>,
}

/// Everything that a start needs; it runs beside the actor.
pub(crate) struct SessionStartJob {
    pub(crate) services: Arc<Services>,
    pub(crate) session: SessionRow,
    pub(crate) state: LogState,
    pub(crate) lease: Lease,
    pub(crate) live: LiveDirectory,
    pub(crate) workspace: Arc<Workspace>,
    pub(crate) tree: Option<LiveTree>,
    pub(crate) logs: Arc<AgentLogBuffer>,
    /// A client wants the session to stop: the start stops waiting for slow steps.
    pub(crate) halt: Arc<Notify>,
    pub(crate) used_early: StartupUsage,
    /// The session's environment was sealed on another machine and cannot be opened here.
    pub(crate) sealed: bool,
    /// JSON pointers of secrets in the options that cannot be read.
    pub(crate) missing_secrets: Vec<String>,
    /// Held until the sandbox exists.
    pub(crate) exclusive: Option<ExclusiveGuard>,
    /// For the sandbox, as long as it does not exist.
    pub(crate) permit: Option<SandboxPermit>,
    /// How long to wait for a sandbox permit; `None`: without limit.
    pub(crate) queue_timeout: Option<Duration>,
    /// A sandbox in which nothing runs yet: from the warm pool, or made while the files were compared.
    pub(crate) prepared: Option<(Arc<Sandbox>, RecordStream)>,
    /// The sandbox was made before its session was.
    pub(crate) in_advance: bool,
}

impl SessionStartJob {
    pub(crate) async fn wake(mut self) -> Result<CompletedStart> {
        let woken = self.start_all().await;
        // A warm sandbox that this session did not use.
        let unused = self.prepared.take().or_else(|| self.workspace.take_prepared());
        if let Some((sandbox, _)) = unused.filter(|_| woken.is_err()) {
            sandbox.remote.end().await.ok();
            drop(sandbox);
            self.reap_previous_sandbox().await?;
        }
        woken
    }

    async fn start_all(&mut self) -> Result<CompletedStart> {
        let began = Instant::now();
        if self.state.resuming {
            // Options may have changed since the actor was spawned.
            self.session = self.services.store.session(self.session.no).await?.ok_or(Error::NotFound)?;
        }
        let version = self.version().await?;
        // Checked before anything is built: without its keys the start would only fail later.
        let needs = self.services.start_needs(&self.session, &version).await?;
        let StartRequirements { program, claude, provider } = needs;
        let driver = ash_driver::driver(version.runtime);
        self.prepared = self.workspace.take_prepared();
        self.in_advance = self.prepared.is_some();
        if self.prepared.is_none() && self.sandbox().is_none() {
            // Before the exclusive guard is taken: the session that has to give up its sandbox may be of this workspace.
            self.reserve().await?;
        }
        self.exclusive = Some(self.unless_halted(self.exclusive_when_vacant()).await?);
        let tree = match (self.sandbox(), &self.prepared) {
            (Some(_), _) => StartTree {
                origin: StartTreeOrigin::Live,
                uid: self.workspace.tree().and_then(|tree| tree.uid),
                fallback: None,
            },
            (None, Some(_)) => StartTree {
                origin: StartTreeOrigin::Fresh,
                uid: self.workspace.tree().and_then(|tree| tree.uid),
                fallback: None,
            },
            (None, None) => {
                self.reap_previous_sandbox().await?;
                self.tree = self.workspace.tree();
                if self.tree.is_some() && self.live.shape() != LiveTreeShape::Whole {
                    return Err(Error::Distrusted);
                }
                self.tree(&version).await?
            }
        };
        self.tree = Some(LiveTree { uid: tree.uid });
        self.workspace.set_tree(self.tree);
        self.fits(&version).await?;
        let way = AgentProgram { driver: driver.as_ref(), version: &version, program, claude, provider };
        let files = self.compare_files(&tree, &way).await?;
        self.make_session_folder().await;
        // Files that went with their workspace took the agent's own memory along: the agent gets the conversation as text.
        let passing = self.session.slug.is_some() || self.session.options.ephemeral == Some(true);
        let told = passing && tree.origin == StartTreeOrigin::Fresh && self.state.turns_delivered > 0;
        let rungs: &[Rung] =
            if told { &[Rung::History] } else { &[Rung::Transcript, Rung::Rebuilt, Rung::History] };
        let (started, failed) = self.descend(&way, rungs).await?;
        // From here on no other session can rewind these files, because this session is at work in them.
        let told = match self.resume_details(way.driver, tree, files, &started.recalled).await {
            Ok(told) => told,
            Err(error) => {
                // The agent runs, and no fact names its sandbox: otherwise it would run for ever.
                self.leave_sandbox(started.part).await?;
                return Err(error);
            }
        };
        let ResumeDetails { tree, backs, head, compared, salvage, unsaved } = told;
        let StartedAgent {
            part: SandboxShare { sandbox, process, records },
            position,
            recalled,
            ear,
            more_inputs,
        } = started;
        let (incarnation, remote) = (sandbox.incarnation, sandbox.remote.clone());
        let conn = SandboxConn {
            incarnation,
            remote,
            process,
            records,
            position,
            exited: false,
            allowed: None,
            sandbox,
        };
        Ok(CompletedStart {
            conn,
            tree,
            recalled,
            backs,
            failed,
            head,
            compared,
            salvage,
            unsaved,
            ear,
            more_inputs,
            began,
        })
    }

    /// What is read about the session while its agent runs already.
    async fn resume_details(
        &self,
        driver: &dyn AgentDriver,
        tree: StartTree,
        files: FilesComparison,
        recalled: &RecalledConversation,
    ) -> Result<ResumeDetails> {
        let backs =
            self.services.workspace_rewinds_since(&self.session, self.state.last_workspace_rewind).await?;
        let head = self.briefing(driver, &tree, recalled, &backs).await?;
        let compared = self.compared(&tree, files).await?;
        let salvage = self.only_in_salvage(&tree).await?;
        let unsaved = self.unsaved(&tree).await?;
        Ok(ResumeDetails { tree, backs, head, compared, salvage, unsaved })
    }

    /// Creates the session folder that the agent is told about. If a file of the agent is in the way, there is no such
    /// folder.
    async fn make_session_folder(&self) {
        let (home, uid) = (self.live.home(), self.tree.and_then(|tree| tree.uid));
        let whose = (self.session.native_id, self.state.inherited_memory);
        let owner = uid.map(|uid| FileOwner { uid, gid: uid });
        let made = blocking(move || artifacts::lay_out(&open_root(&home)?, whose, owner)).await;
        if let Err(error) = made {
            tracing::warn!(session = %self.session.id, %error, "the session folder could not be created");
        }
    }

    /// Compares the checkpoint that the session continues from with the other witnesses.
    async fn compared(
        &self,
        tree: &StartTree,
        files: FilesComparison,
    ) -> Result<Option<(ResumeComparison, Vec<String>)>> {
        let number = tree.fallback.as_ref().map(|fallback| fallback.used).or(self.state.checkpoint);
        let comes_back = self.state.resuming || self.state.turns_delivered > 0;
        let Some(number) = number.filter(|_| comes_back) else { return Ok(None) };
        let Some(checkpoint) = self.services.store.checkpoint(self.session.workspace, number).await? else {
            return Ok(None);
        };
        let Ok(tree) = TreeId::parse(&checkpoint.tree) else { return Ok(None) };
        let repo = self.services.repo(&self.session.tenant)?;
        let (compared, mut lost) =
            crate::embedded_log::compare(&self.services, repo, &self.session, &tree).await?;
        lost.extend(files.lost);
        let unreachable = self.services.witnesses.was_unreachable(self.session.no);
        let remote = unreachable.then_some(RemoteComparison::Unreachable);
        Ok(Some((ResumeComparison { by: files.by, remote, ..compared }, lost)))
    }

    /// Descends the ladder until the agent starts. If it does not start without a memory either, its memory is not the
    /// cause and stays as it was.
    async fn descend(&mut self, way: &AgentProgram<'_>, rungs: &[Rung]) -> Result<(StartedAgent, Vec<Fact>)> {
        let (mut failed, mut tried) = (Vec::new(), Vec::new());
        let before = self.live.mended(self.session.native_id);
        for rung in rungs.iter().copied() {
            let inside = self.services.inside(&self.live);
            let recalled = self.prepare_memory(rung, (way.driver, &inside), before.as_ref()).await?;
            match self.try_start(way, inside, recalled.clone()).await {
                Ok(started) => return Ok((started, failed)),
                Err(error)
                    if is_about_memory(&error)
                        && !matches!(recalled.memory, ConversationSource::Fresh { .. }) =>
                {
                    let reason = error.problem().error;
                    tracing::warn!(session = %self.session.id, tier = ?recalled.tier, reason, "the agent did not start with its memory");
                    failed.push(Fact::ResumeFailed { tier: recalled.tier, reason });
                    tried.push(recalled);
                }
                Err(error) => {
                    for tried in tried.iter().chain([&recalled]).rev() {
                        self.restore_put_aside(tried).await;
                    }
                    self.live.note_mended(self.session.native_id, before)?;
                    return Err(error);
                }
            }
        }
        Err(failed_to_start())
    }

    async fn try_start(
        &mut self,
        way: &AgentProgram<'_>,
        inside: SandboxLayout,
        recalled: RecalledConversation,
    ) -> Result<StartedAgent> {
        let in_advance = self.in_advance && self.prepared.is_some();
        match self.try_start_once(way, inside.clone(), recalled.clone()).await {
            // The sandbox died after it was checked and before its agent started; the start is repeated once with a new
            // sandbox.
            Err(error) if in_advance && is_about_sandbox(&error) => {
                tracing::warn!(session = %self.session.id, error = %error.problem().error, "a warm sandbox could not be used; the server creates another one");
                self.try_start_once(way, inside, recalled).await
            }
            tried => tried,
        }
    }

    async fn try_start_once(
        &mut self,
        way: &AgentProgram<'_>,
        inside: SandboxLayout,
        recalled: RecalledConversation,
    ) -> Result<StartedAgent> {
        let mut part = self.join_sandbox(way).await?;
        match self.start_agent(&mut part, way, inside, &recalled).await {
            Ok(AgentGreeting { resumed, offset, ear, more_inputs }) => {
                let found = recalled.found.or(resumed);
                let forgot = self.state.turns_delivered > 0
                    && found.as_ref().is_some_and(ResumedConversation::is_nothing);
                let tier = if forgot { Tier::History } else { recalled.tier };
                let mut lost = recalled.lost;
                lost.extend(self.sealed.then(|| SEALED.to_owned()));
                lost.extend(self.missing_secrets.drain(..).map(|at| {
                    format!("secret {at}: it was sealed with another seal.key, or is in no copy; send `mcpServers` again")
                }));
                let recalled = RecalledConversation { found, tier, lost, ..recalled };
                Ok(StartedAgent { part, position: offset, recalled, ear, more_inputs })
            }
            Err(error) => {
                self.leave_sandbox(part).await?;
                Err(error)
            }
        }
    }

    async fn version(&self) -> Result<AgentVersion> {
        let SessionRow { tenant, agent, version, .. } = &self.session;
        let found = self.services.store.version(tenant, agent, *version).await?;
        found.ok_or_else(|| Error::NoAgent(agent.to_string()))
    }

    pub(crate) fn bounds(&self, version: &AgentVersion) -> ResourceLimits {
        self.services.policy.limits_in_force(self.session.options.limits, version.limits)
    }

    /// A session whose files exceed their limit does not start until they shrink or the limit is raised.
    async fn fits(&self, version: &AgentVersion) -> Result<()> {
        let was_full = self.state.problem.as_ref().is_some_and(|problem| problem.code == DISK_LIMIT);
        let Some(most) = resource_limits::of_disk(&self.bounds(version)).filter(|_| was_full) else {
            return Ok(());
        };
        let (weight, _) = self.services.weigh(&self.live, most).await?;
        let reached = resource_limits::reached(None, weight, most);
        reached.map_or(Ok(()), |reached| Err(Error::Failed(reached.problem())))
    }
}

/// Whether the agent itself gave up, and not its sandbox or the server.
fn is_about_memory(error: &Error) -> bool {
    matches!(error, Error::Failed(problem) if matches!(problem.code.as_str(), "agent_failed" | "agent_silent"))
}

fn is_about_sandbox(error: &Error) -> bool {
    match error {
        Error::Failed(problem) => problem.code == "sandbox_failed",
        Error::Sandbox(_) => true,
        _ => false,
    }
}

fn failed_to_start() -> Error {
    failed("agent_failed", "The agent could not be started; see the session's logs")
}

pub(crate) fn failed(code: &str, error: &str) -> Error {
    Error::Failed(Problem::new(code, error))
}

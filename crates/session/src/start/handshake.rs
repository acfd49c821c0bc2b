//! Starts an agent in its sandbox and waits until it answers.

use super::{AgentProgram, SessionStartJob, failed, sandbox::SandboxShare};
use crate::{Result, agent_logs::LogLineSource, blocking, ladder::RecalledConversation, machine::TurnPhase};
use ash_driver::{AgentDriver, AgentEvent, AgentInput, AgentLaunch, ResumedConversation, TurnTracker};
use ash_model::secrets::fill_secrets;
use ash_sandbox::{
    JournalPayload, JournalRecord, ProcessSpec, RecordStream, SandboxHandle, SandboxLayout, write_private,
};
use std::{collections::BTreeMap, sync::PoisonError, time::Duration};

/// How long an agent may take to answer its greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the end of a sandbox may come after that of a process in it.
const SANDBOX_END_GRACE: Duration = Duration::from_millis(500);

/// What is known of an agent that has answered.
pub(super) struct AgentGreeting {
    /// What it found of an earlier conversation.
    pub(super) resumed: Option<ResumedConversation>,
    /// Where its answer ends in the journal.
    pub(super) offset: u64,
    pub(super) ear: TurnTracker,
    /// How many inputs it got after the greeting.
    pub(super) more_inputs: u64,
}

/// The name of the file with the MCP servers; each agent of a sandbox has its own.
fn mcp_config(process: u16) -> String {
    format!("mcp-{process}.json")
}

impl SessionStartJob {
    pub(super) async fn start_agent(
        &mut self,
        SandboxShare { sandbox, process, records }: &mut SandboxShare,
        AgentProgram { driver, version, program, claude, provider }: &AgentProgram<'_>,
        inside: SandboxLayout,
        recalled: &RecalledConversation,
    ) -> Result<AgentGreeting> {
        let launch = AgentLaunch {
            workspace: inside.workspace.clone(),
            home: inside.home.clone(),
            exe: inside.exe.clone(),
            program: program.clone().unwrap_or_else(|| inside.exe.clone()),
            claude_version: *claude,
            model_socket: match sandbox.remote.has_usage() {
                true => inside.model_socket_of(*process),
                false => inside.model_socket.clone(),
            },
            mcp_config: inside.private.join(mcp_config(*process)),
            provider: *provider,
            memory: recalled.memory,
            continues_cut_turn: self.state.current().is_some_and(|turn| turn.phase == TurnPhase::Cut),
            options: self.session.options.clone(),
        };
        let command = driver.launch(&launch);
        let cwd = self.put_home_entries(*driver, &inside).await?;
        self.write_mcp_config(*process).await?;
        let mut env = self.services.base_env(&self.session, &inside);
        env.extend(command.env);
        env.extend(version.env.expose());
        env.extend(self.own_env().await?);
        let (remote, process) = (&sandbox.remote, *process);
        let start = ProcessSpec { process, argv: command.argv, env, cwd, raw: false, stdin: true };
        let egress = self.services.egress_policy(&self.session, version.runtime, *provider).await?;
        remote.set_egress(egress).await?;
        self.services.note_credential_used(&self.session).await?;
        // Set before the agent can send a request.
        remote
            .set_allowance(
                process,
                Some(self.state.remaining_budget().allowance(&self.services.settings.prices, 0)),
            )
            .await?;
        remote.start(start).await?;
        remote
            .input(
                process,
                1,
                driver.tell(&AgentInput::Hello {
                    system_prompt: self.session.options.system_prompt.clone(),
                    append_system_prompt: self.session.options.append_system_prompt.clone(),
                    client_tools: self.session.options.client_tools.clone().unwrap_or_default(),
                }),
            )
            .await?;
        let greeting = Box::pin(self.wait_for_greeting((process, records), *driver, remote));
        tokio::time::timeout(GREETING_TIMEOUT, greeting)
            .await
            .map_err(|_| failed("agent_silent", "The agent did not answer its greeting within 60 s"))?
    }

    /// The session's own environment variables. If they cannot be opened here they stay stored, for a server that has
    /// their seal key.
    pub(super) async fn own_env(&mut self) -> Result<BTreeMap<String, String>> {
        match self.services.store.env(self.session.no).await {
            Ok(env) => Ok(env.expose()),
            Err(ash_store::Error::Sealed) => {
                self.sealed = true;
                Ok(BTreeMap::new())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the MCP servers with their secrets into a file that is in no checkpoint and is deleted with the sandbox.
    async fn write_mcp_config(&mut self, process: u16) -> Result<()> {
        let options = &self.session.options;
        let Some(servers) = options.mcp_servers.clone() else { return Ok(()) };
        // This agent would not read the file, and it contains secrets.
        if ash_driver::driver(self.session.runtime).ignores(options).contains(&"mcpServers") {
            return Ok(());
        }
        let secrets = match self.services.store.secrets(self.session.no).await {
            Err(ash_store::Error::Sealed) => BTreeMap::new(),
            secrets => secrets?.expose(),
        };
        let (servers, missing) = fill_secrets(&servers, &secrets);
        self.missing_secrets = missing;
        let text = serde_json::json!({ "mcpServers": servers }).to_string();
        let (run, uid) = (self.live.run(), self.tree.and_then(|tree| tree.uid));
        blocking(move || Ok(write_private(&run, &mcp_config(process), text.as_bytes(), uid)?)).await
    }

    async fn wait_for_greeting(
        &self,
        (process, records): (u16, &mut RecordStream),
        driver: &dyn AgentDriver,
        remote: &SandboxHandle,
    ) -> Result<AgentGreeting> {
        let (mut ear, mut more_inputs) = (TurnTracker::default(), 0);
        while let Some(JournalRecord { offset, payload: what, process: whose }) = records.next().await {
            if whose != process && !matches!(what, JournalPayload::SandboxGone { .. }) {
                continue;
            }
            match what {
                JournalPayload::StdoutLine(line) => {
                    for heard in driver.parse_line(&mut ear, &line) {
                        match heard {
                            AgentEvent::Ready { resumed } => {
                                return Ok(AgentGreeting { resumed, offset, ear, more_inputs });
                            }
                            // Some agents ask before they greet, and greet after they have their answer.
                            AgentEvent::ToolServerAsked { request, message } => {
                                let tools = self.session.options.client_tools.clone().unwrap_or_default();
                                more_inputs += 1;
                                let reply = AgentInput::ToolServerReply { request, message, tools };
                                remote.input(process, 1 + more_inputs, driver.tell(&reply)).await?;
                            }
                            AgentEvent::Delta { .. }
                            | AgentEvent::Message { .. }
                            | AgentEvent::PermissionRequested { .. }
                            | AgentEvent::ToolRequested { .. }
                            | AgentEvent::RequestWithdrawn { .. }
                            | AgentEvent::MemoryCompacted
                            | AgentEvent::Steered { .. }
                            | AgentEvent::SettingAnswered { .. }
                            | AgentEvent::TurnEnded { .. } => {}
                        }
                    }
                }
                JournalPayload::StderrLine(line) => {
                    self.logs.add(LogLineSource::Stderr, &line, self.services.clock())
                }
                // Another session's agent may have brought the sandbox down a moment ago.
                JournalPayload::StartFailed { why } if why.contains("the sandbox is gone") => {
                    return Err(failed("sandbox_failed", "The sandbox ended before its agent was started"));
                }
                JournalPayload::StartFailed { why } => {
                    return Err(failed("agent_failed", &format!("The agent could not be started: {why}")));
                }
                JournalPayload::Exit(_) if self.is_gone(records).await => {
                    return Err(failed("sandbox_failed", "The sandbox ended before its agent answered"));
                }
                JournalPayload::Exit(exit) => {
                    return Err(failed(
                        "agent_failed",
                        &format!("The agent ended before it answered ({exit}); see the session's logs"),
                    ));
                }
                JournalPayload::SandboxGone { how, .. } => {
                    return Err(failed(
                        "sandbox_failed",
                        &format!("The sandbox ended before its agent answered ({how})"),
                    ));
                }
                JournalPayload::Started { .. }
                | JournalPayload::StdoutTail(_)
                | JournalPayload::LineTooLong
                | JournalPayload::StdoutChunk(_)
                | JournalPayload::StderrChunk(_) => {}
                JournalPayload::Usage(usage) => {
                    self.used_early.lock().unwrap_or_else(PoisonError::into_inner).push(usage);
                }
            }
        }
        Err(failed("sandbox_failed", "The sandbox ended before its agent answered"))
    }

    /// Whether the agent ended because the whole sandbox ended, which is reported a moment later.
    async fn is_gone(&self, records: &mut RecordStream) -> bool {
        let gone = async {
            while let Some(record) = records.next().await {
                if matches!(record.payload, JournalPayload::SandboxGone { .. }) {
                    return true;
                }
            }
            true
        };
        self.session.slug.is_some() && tokio::time::timeout(SANDBOX_END_GRACE, gone).await.unwrap_or(false)
    }
}

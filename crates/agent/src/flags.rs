//! Parses and checks the command line once. Hand-written, because an argument parser would be larger than the agent.

use crate::context_window::{ContextWindow, WindowSettings};
use crate::ids;
use crate::provider::DEFAULT_MODEL;
use crate::skills;
use crate::tools::NAMES;
use ash_model::ClientTool;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, PartialEq)]
pub(crate) struct AgentFlags {
    pub(crate) session: String,
    pub(crate) resume: Option<String>,
    pub(crate) backend: ModelBackend,
    pub(crate) system_prompt: Option<String>,
    pub(crate) settings: AgentSettings,
}

/// The settings that the session chose.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentSettings {
    /// The tools that the session allows.
    pub(crate) tools: Vec<&'static str>,
    /// The tools that the session's client executes.
    pub(crate) client_tools: Vec<ClientTool>,
    pub(crate) effort: Option<String>,
    /// Whether the agent streams partial answers.
    pub(crate) streaming: bool,
    pub(crate) skills: skills::SkillSettings,
    pub(crate) window: ContextWindow,
}

impl Default for AgentSettings {
    fn default() -> AgentSettings {
        let (skills, window) = (skills::SkillSettings::default(), ContextWindow::default());
        AgentSettings {
            tools: NAMES.to_vec(),
            client_tools: Vec::new(),
            effort: None,
            streaming: true,
            skills,
            window,
        }
    }
}

impl AgentSettings {
    pub(crate) fn is_client_tool(&self, name: &str) -> bool {
        self.client_tools.iter().any(|tool| tool.name == name)
    }

    /// The names of all tools that the model may call.
    pub(crate) fn tool_names(&self) -> Vec<&str> {
        let own = self.tools.iter().copied().filter(|name| !self.is_client_tool(name));
        own.chain(self.client_tools.iter().map(|tool| tool.name.as_str())).collect()
    }
}

/// The model service, and what a connection to it needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ModelBackend {
    Offline,
    Anthropic {
        model: String,
        socket: PathBuf,
    },
    /// Any service that speaks chat completions. Azure's needs an API version.
    OpenAi {
        model: String,
        socket: PathBuf,
        api_version: Option<String>,
    },
}

impl ModelBackend {
    fn model(&self) -> Option<&str> {
        match self {
            ModelBackend::Offline => None,
            ModelBackend::Anthropic { model, .. } | ModelBackend::OpenAi { model, .. } => Some(model),
        }
    }
}

impl AgentFlags {
    pub(crate) fn parse(args: Vec<OsString>) -> Result<AgentFlags, String> {
        let (mut session, mut resume, mut system_prompt) = (None, None, None);
        let (mut provider, mut model, mut socket, mut api_version) = (None, None, None, None);
        let (mut manner, mut window) = (AgentSettings::default(), WindowSettings::default());
        let mut args = args.into_iter();
        while let Some(flag) = args.next() {
            let flag = flag.to_string_lossy().into_owned();
            let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let value = value.into_string().map_err(|_| format!("the value of {flag} is not UTF-8"))?;
            match flag.as_str() {
                "--session-id" => session = Some(file_name(value)?),
                "--resume" => resume = Some(file_name(value)?),
                "--system-prompt" => system_prompt = Some(value),
                "--provider" => provider = Some(value),
                "--model" => model = Some(value),
                "--tools" => manner.tools.retain(|tool| names(&value, tool)),
                "--disallowed-tools" => manner.tools.retain(|tool| !names(&value, tool)),
                "--effort" => manner.effort = Some(value),
                "--streaming" => manner.streaming = value != "false",
                "--config-dir" => manner.skills.config = Some(PathBuf::from(value)),
                "--skills" => manner.skills.folders.push(PathBuf::from(value)),
                "--without-skill" => manner.skills.without.push(value),
                "--compaction" => window.compacts = value != "off",
                "--compact-from" => window.from = parse_fraction(&flag, &value)?,
                "--compact-by" => window.by = parse_fraction(&flag, &value)?,
                "--context-window" => window.tokens = Some(tokens(&flag, &value)?),
                "--model-socket" => socket = Some(PathBuf::from(value)),
                "--api-version" => api_version = Some(value),
                _ => return Err(format!("unknown flag {flag}")),
            }
        }
        let session = session.or_else(|| resume.clone()).unwrap_or_else(ids::uuid);
        let answers = answers(provider.as_deref(), model, (socket, api_version))?;
        manner.window = ContextWindow::new(window, answers.model());
        Ok(AgentFlags { session, resume, backend: answers, system_prompt, settings: manner })
    }
}

fn parse_fraction(flag: &str, value: &str) -> Result<f64, String> {
    let part = value.parse().ok().filter(|part| *part > 0.0 && *part <= 1.0);
    part.ok_or_else(|| format!("{flag} must be over 0 and at most 1"))
}

fn tokens(flag: &str, value: &str) -> Result<u64, String> {
    value.parse().ok().filter(|tokens| *tokens >= 1000).ok_or_else(|| format!("{flag} must be 1000 or more"))
}

/// Whether a comma-separated list names one of our tools.
fn names(list: &str, tool: &str) -> bool {
    list.split(',').any(|name| name == tool)
}

fn answers(
    provider: Option<&str>,
    model: Option<String>,
    (socket, api_version): (Option<PathBuf>, Option<String>),
) -> Result<ModelBackend, String> {
    match provider {
        // With the offline provider the model name does not matter.
        None | Some("offline") => Ok(ModelBackend::Offline),
        Some("anthropic") => {
            let socket = socket.ok_or("--provider anthropic needs --model-socket")?;
            Ok(ModelBackend::Anthropic { model: model.unwrap_or_else(|| DEFAULT_MODEL.to_owned()), socket })
        }
        Some(name @ ("openai" | "azure")) => {
            let socket = socket.ok_or_else(|| format!("--provider {name} needs --model-socket"))?;
            let model = model.ok_or_else(|| format!("--provider {name} needs --model"))?;
            Ok(ModelBackend::OpenAi { model, socket, api_version })
        }
        Some(other) => {
            Err(format!("unknown provider {other:?}; there are: offline, anthropic, openai, azure"))
        }
    }
}

/// The id becomes a file name, so it must not contain a path.
fn file_name(id: String) -> Result<String, String> {
    let plain = id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if plain && (1..=64).contains(&id.len()) { Ok(id) } else { Err(format!("{id:?} is no session id")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<AgentFlags, String> {
        AgentFlags::parse(args.iter().map(OsString::from).collect())
    }

    #[test]
    fn a_resumed_session_keeps_its_id_unless_a_flag_names_another() {
        let flags = parse(&["--resume", "a-1"]).expect("valid");
        assert_eq!((flags.session.as_str(), flags.resume.as_deref()), ("a-1", Some("a-1")));
        let flags = parse(&["--resume", "a-1", "--session-id", "b-2"]).expect("valid");
        assert_eq!((flags.session.as_str(), flags.resume.as_deref()), ("b-2", Some("a-1")));
    }

    #[test]
    fn an_id_cannot_leave_the_folder_of_transcripts() {
        for id in ["../x", "a/b", "", ".", "a.b"] {
            assert!(parse(&["--session-id", id]).is_err(), "{id}");
        }
    }

    #[test]
    fn a_model_without_a_given_name_gets_one() {
        let answers = |args: &[&str]| parse(args).map(|flags| flags.backend);
        let named = |model: &str| Ok(ModelBackend::Anthropic { model: model.into(), socket: "/s".into() });
        let socket = ["--provider", "anthropic", "--model-socket", "/s"];
        assert_eq!(answers(&socket), named(DEFAULT_MODEL));
        assert_eq!(answers(&[&socket[..], &["--model", "m"]].concat()), named("m"));
        assert_eq!(answers(&["--model", "m"]), Ok(ModelBackend::Offline));
    }

    #[test]
    fn a_service_with_its_own_models_gets_the_model_name() {
        let answers = |args: &[&str]| parse(args).map(|flags| flags.backend);
        let azure = ["--provider", "azure", "--model-socket", "/s", "--api-version", "v"];
        assert!(answers(&azure).is_err(), "there is none that all of them have");
        let named =
            ModelBackend::OpenAi { model: "m".into(), socket: "/s".into(), api_version: Some("v".into()) };
        assert_eq!(answers(&[&azure[..], &["--model", "m"]].concat()), Ok(named));
    }

    #[test]
    fn unknown_flags_are_refused() {
        for args in
            [&["--what", "x"][..], &["--provider", "oracle"], &["--session-id"], &["--provider", "anthropic"]]
        {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}

//! The protocol between server and shim. A shim outlives the server that started it, so an old shim meets a newer
//! server: the frames are versioned, and golden-tested below.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use ash_model::{CaptureConsistency, Epoch, Incarnation};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    BackendKind, EgressPolicy, RequiredWalls, SandboxLimits, ShimLimits, UsageAllowance, UserNamespacePolicy,
    container::ContainerRequest,
};

pub(crate) const VERSION: u32 = 1;
/// A longer frame is a mistake or an attack. Either way the connection is closed.
pub(crate) const MAX_FRAME_BYTES: usize = 64 << 20;
const HEADER: usize = 5;

/// A process to start inside.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Names the process in every later frame and record. The caller chooses it, and may use it again after the exit.
    pub process: u16,
    pub argv: Vec<String>,
    /// The whole environment: the process inherits nothing.
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
    /// Record output as raw chunks instead of lines.
    pub raw: bool,
    /// Whether its stdin accepts input; otherwise it reads end of file.
    pub stdin: bool,
}

impl fmt::Debug for ProcessSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names only: callers put their secrets into the values.
        f.debug_struct("Start")
            .field("process", &self.process)
            .field("argv", &self.argv)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("cwd", &self.cwd)
            .field("raw", &self.raw)
            .field("stdin", &self.stdin)
            .finish()
    }
}

/// Everything a shim needs to build its sandbox. The server sends it once, right after it started the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShimPlan {
    pub(crate) version: u32,
    pub(crate) incarnation: Incarnation,
    pub(crate) epoch: Epoch,
    #[serde(rename = "walls")]
    pub(crate) backend: BackendKind,
    pub(crate) bwrap: PathBuf,
    pub(crate) exe: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) workspace: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) uid: Option<u32>,
    pub(crate) limits: SandboxLimits,
    pub(crate) readonly: Vec<PathBuf>,
    /// The /etc that all sandboxes of a server share. A server without one, or an older server, names none: then the
    /// shim makes one in `run_dir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) etc: Option<PathBuf>,
    pub(crate) orphan_ttl_ms: u64,
    pub(crate) caps: ShimLimits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<ContainerRequest>,
    #[serde(default, skip_serializing_if = "UserNamespacePolicy::are_refused")]
    pub(crate) user_namespaces: UserNamespacePolicy,
    /// Walls without which the shim refuses to build the sandbox.
    #[serde(default, skip_serializing_if = "RequiredWalls::is_nothing")]
    pub(crate) required: RequiredWalls,
}

/// A process by its number on the host. The start time distinguishes it from a later process with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostProcess {
    pub pid: u32,
    pub starttime: u64,
}

/// The shim's first answer to a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimHello {
    pub version: u32,
    pub incarnation: Incarnation,
    /// The number of the last input that the shim accepted. Input with this number or a lower one must not be sent
    /// again.
    pub last_in: u64,
    /// The same per process that has accepted input. An older shim has one count for all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub last_ins: BTreeMap<u16, u64>,
    /// The current end of the journal.
    pub end: u64,
    pub acked: u64,
    /// Processes that were started and have not exited.
    pub running: Vec<u16>,
    /// None once the sandbox is gone and only the journal is left.
    pub init: Option<HostProcess>,
    /// Whether the shim understands `egress`. An older shim would reject the frame as malformed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub egress: bool,
    /// Whether the shim understands `allow`, and records what the answers of models used. An older shim does neither.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub usage: bool,
    /// Walls without which the shim would not have built the sandbox. An older shim leaves this out.
    #[serde(default, skip_serializing_if = "RequiredWalls::is_nothing")]
    pub required: RequiredWalls,
    #[serde(default, skip_serializing_if = "UserNamespacePolicy::are_refused")]
    pub user_namespaces: UserNamespacePolicy,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientFrame {
    Build(Box<ShimPlan>),
    Attach {
        version: u32,
        epoch: Epoch,
    },
    Follow {
        offset: u64,
    },
    Start(ProcessSpec),
    In {
        process: u16,
        number: u64,
        bytes: Vec<u8>,
    },
    CloseIn {
        process: u16,
    },
    Ack {
        offset: u64,
    },
    Freeze,
    Thaw,
    Signal {
        process: u16,
        signal: i32,
    },
    End,
    Ping,
    Egress(Option<EgressPolicy>),
    /// What the session of this process may still use. None: the session has left.
    Allow {
        process: u16,
        allowance: Option<UsageAllowance>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShimFrame {
    Hello(ShimHello),
    Data(Vec<u8>),
    Frozen(CaptureConsistency),
    Thawed { held: bool },
    Refused { why: String },
    Pong,
}

/// The peer sent a frame that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("frame of kind {kind} and {bytes} bytes makes no sense")]
pub struct MalformedFrame {
    kind: u8,
    bytes: usize,
}

#[derive(Serialize, Deserialize)]
struct AttachFrameBody {
    version: u32,
    epoch: Epoch,
}
#[derive(Serialize, Deserialize)]
struct OffsetFrameBody {
    offset: u64,
}
#[derive(Serialize, Deserialize)]
struct ProcessFrameBody {
    process: u16,
}
#[derive(Serialize, Deserialize)]
struct AllowanceFrameBody {
    process: u16,
    allowance: Option<UsageAllowance>,
}
#[derive(Serialize, Deserialize)]
struct SignalFrameBody {
    process: u16,
    signal: i32,
}
#[derive(Serialize, Deserialize)]
struct FrozenFrameBody {
    consistency: CaptureConsistency,
}
#[derive(Serialize, Deserialize)]
struct ThawedFrameBody {
    held: bool,
}
#[derive(Serialize, Deserialize)]
struct RefusedFrameBody {
    why: String,
}

fn json(body: &impl Serialize) -> Vec<u8> {
    // Only a path that is not UTF-8 can fail here; callers check that before they send anything.
    serde_json::to_vec(body).unwrap_or_default()
}

fn framed(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    frame.push(kind);
    frame.extend_from_slice(payload);
    frame
}

fn parse<T: DeserializeOwned>(kind: u8, payload: &[u8]) -> Result<T, MalformedFrame> {
    serde_json::from_slice(payload).map_err(|_| MalformedFrame { kind, bytes: payload.len() })
}

fn empty(kind: u8, payload: &[u8]) -> Result<(), MalformedFrame> {
    if payload.is_empty() { Ok(()) } else { Err(MalformedFrame { kind, bytes: payload.len() }) }
}

impl ClientFrame {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Build(plan) => framed(1, &json(plan)),
            Self::Attach { version, epoch } => {
                framed(2, &json(&AttachFrameBody { version: *version, epoch: *epoch }))
            }
            Self::Follow { offset } => framed(3, &json(&OffsetFrameBody { offset: *offset })),
            Self::Start(start) => framed(4, &json(start)),
            Self::In { process, number, bytes } => {
                let mut payload = Vec::with_capacity(10 + bytes.len());
                payload.extend_from_slice(&process.to_le_bytes());
                payload.extend_from_slice(&number.to_le_bytes());
                payload.extend_from_slice(bytes);
                framed(5, &payload)
            }
            Self::CloseIn { process } => framed(6, &json(&ProcessFrameBody { process: *process })),
            Self::Ack { offset } => framed(7, &json(&OffsetFrameBody { offset: *offset })),
            Self::Freeze => framed(8, b""),
            Self::Thaw => framed(9, b""),
            Self::Signal { process, signal } => {
                framed(10, &json(&SignalFrameBody { process: *process, signal: *signal }))
            }
            Self::End => framed(11, b""),
            Self::Ping => framed(12, b""),
            Self::Egress(policy) => framed(13, &json(policy)),
            Self::Allow { process, allowance } => {
                framed(14, &json(&AllowanceFrameBody { process: *process, allowance: allowance.clone() }))
            }
        }
    }

    pub(crate) fn decode(kind: u8, payload: &[u8]) -> Result<Self, MalformedFrame> {
        let malformed = || MalformedFrame { kind, bytes: payload.len() };
        Ok(match kind {
            1 => Self::Build(Box::new(parse(kind, payload)?)),
            2 => parse::<AttachFrameBody>(kind, payload)
                .map(|b| Self::Attach { version: b.version, epoch: b.epoch })?,
            3 => Self::Follow { offset: parse::<OffsetFrameBody>(kind, payload)?.offset },
            4 => Self::Start(parse(kind, payload)?),
            5 => {
                let (process, rest) = payload.split_first_chunk().ok_or_else(malformed)?;
                let (number, bytes) = rest.split_first_chunk().ok_or_else(malformed)?;
                Self::In {
                    process: u16::from_le_bytes(*process),
                    number: u64::from_le_bytes(*number),
                    bytes: bytes.to_vec(),
                }
            }
            6 => Self::CloseIn { process: parse::<ProcessFrameBody>(kind, payload)?.process },
            7 => Self::Ack { offset: parse::<OffsetFrameBody>(kind, payload)?.offset },
            8 => empty(kind, payload).map(|()| Self::Freeze)?,
            9 => empty(kind, payload).map(|()| Self::Thaw)?,
            10 => parse::<SignalFrameBody>(kind, payload)
                .map(|b| Self::Signal { process: b.process, signal: b.signal })?,
            11 => empty(kind, payload).map(|()| Self::End)?,
            12 => empty(kind, payload).map(|()| Self::Ping)?,
            13 => Self::Egress(parse(kind, payload)?),
            14 => parse::<AllowanceFrameBody>(kind, payload)
                .map(|b| Self::Allow { process: b.process, allowance: b.allowance })?,
            _ => return Err(malformed()),
        })
    }
}

impl ShimFrame {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => framed(65, &json(hello)),
            Self::Data(bytes) => framed(66, bytes),
            Self::Frozen(consistency) => framed(67, &json(&FrozenFrameBody { consistency: *consistency })),
            Self::Thawed { held } => framed(68, &json(&ThawedFrameBody { held: *held })),
            Self::Refused { why } => framed(69, &json(&RefusedFrameBody { why: why.clone() })),
            Self::Pong => framed(70, b""),
        }
    }

    pub(crate) fn decode(kind: u8, payload: Vec<u8>) -> Result<Self, MalformedFrame> {
        Ok(match kind {
            65 => Self::Hello(parse(kind, &payload)?),
            66 => Self::Data(payload),
            67 => Self::Frozen(parse::<FrozenFrameBody>(kind, &payload)?.consistency),
            68 => Self::Thawed { held: parse::<ThawedFrameBody>(kind, &payload)?.held },
            69 => Self::Refused { why: parse::<RefusedFrameBody>(kind, &payload)?.why },
            70 => empty(kind, &payload).map(|()| Self::Pong)?,
            _ => return Err(MalformedFrame { kind, bytes: payload.len() }),
        })
    }
}

/// Splits a stream of bytes into frames.
#[derive(Debug, Default)]
pub(crate) struct FrameDecoder {
    bytes: Vec<u8>,
}

impl FrameDecoder {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn next(&mut self) -> Result<Option<(u8, Vec<u8>)>, MalformedFrame> {
        let Some((header, rest)) = self.bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let (length, kind) =
            (u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize, header[4]);
        if length > MAX_FRAME_BYTES {
            return Err(MalformedFrame { kind, bytes: length });
        }
        if rest.len() < length {
            return Ok(None);
        }
        let payload = rest[..length].to_vec();
        self.bytes.drain(..HEADER + length);
        if self.bytes.is_empty() && self.bytes.capacity() > 1 << 20 {
            // Frees the buffer: one large prompt must not stay in every idle shim's memory.
            self.bytes = Vec::new();
        }
        Ok(Some((kind, payload)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docker_engine::DockerEngine;

    fn start() -> ProcessSpec {
        ProcessSpec {
            process: 3,
            argv: vec!["cat".into(), "-u".into()],
            env: BTreeMap::from([("TOKEN".to_owned(), "sesame".to_owned())]),
            cwd: "/workspace".into(),
            raw: false,
            stdin: true,
        }
    }

    fn plan() -> ShimPlan {
        ShimPlan {
            version: 1,
            incarnation: Incarnation(uuid::Uuid::nil()),
            epoch: Epoch(7),
            backend: BackendKind::Bubblewrap,
            bwrap: "/usr/bin/bwrap".into(),
            exe: "/usr/bin/ash".into(),
            run_dir: "/data/run".into(),
            workspace: "/data/workspace".into(),
            home: "/data/home".into(),
            uid: Some(60001),
            limits: SandboxLimits::default(),
            readonly: vec!["/opt/tools".into()],
            etc: None,
            orphan_ttl_ms: 3_600_000,
            caps: ShimLimits::default(),
            container: None,
            user_namespaces: UserNamespacePolicy::Refused,
            required: RequiredWalls::default(),
        }
    }

    fn egress() -> EgressPolicy {
        let headers = BTreeMap::from([("x-api-key".to_owned(), "sesame".into())]);
        EgressPolicy {
            upstream: "https://api.anthropic.com".to_owned(),
            headers,
            public: false,
            dialect: None,
        }
    }

    fn allowance() -> UsageAllowance {
        let prices = serde_json::from_str(r#"{"m":{"input":1,"output":2,"cache_write":3,"cache_read":4}}"#);
        let prices = Some(prices.expect("prices"));
        UsageAllowance { position: 4096, tokens: Some(1000), nano_usd: Some(5_000_000), prices }
    }

    fn every_client_frame() -> Vec<ClientFrame> {
        vec![
            ClientFrame::Build(Box::new(plan())),
            ClientFrame::Attach { version: 1, epoch: Epoch(7) },
            ClientFrame::Follow { offset: 4096 },
            ClientFrame::Start(start()),
            ClientFrame::In { process: 3, number: 9, bytes: b"hi\n".to_vec() },
            ClientFrame::CloseIn { process: 3 },
            ClientFrame::Ack { offset: 128 },
            ClientFrame::Freeze,
            ClientFrame::Thaw,
            ClientFrame::Signal { process: 3, signal: 15 },
            ClientFrame::End,
            ClientFrame::Ping,
            ClientFrame::Egress(Some(egress())),
            ClientFrame::Egress(None),
            ClientFrame::Allow { process: 1, allowance: Some(allowance()) },
            ClientFrame::Allow { process: 2, allowance: None },
        ]
    }

    fn hello() -> ShimHello {
        ShimHello {
            version: 1,
            incarnation: Incarnation(uuid::Uuid::nil()),
            last_in: 9,
            last_ins: BTreeMap::new(),
            end: 4096,
            acked: 128,
            running: vec![3],
            init: Some(HostProcess { pid: 42, starttime: 4711 }),
            egress: false,
            usage: false,
            required: RequiredWalls::default(),
            user_namespaces: UserNamespacePolicy::Refused,
        }
    }

    fn every_shim_frame() -> Vec<ShimFrame> {
        vec![
            ShimFrame::Hello(hello()),
            ShimFrame::Data(vec![0, 255]),
            ShimFrame::Frozen(CaptureConsistency::Frozen),
            ShimFrame::Thawed { held: true },
            ShimFrame::Refused { why: "no".into() },
            ShimFrame::Pong,
        ]
    }

    fn readable(frames: impl Iterator<Item = Vec<u8>>) -> String {
        frames.map(|bytes| bytes.escape_ascii().to_string() + "\n").collect()
    }

    #[test]
    fn the_bytes_of_every_frame_are_those_of_version_one() {
        insta::assert_snapshot!(
            "frames_from_client",
            readable(every_client_frame().iter().map(ClientFrame::encode))
        );
        insta::assert_snapshot!(
            "frames_from_shim",
            readable(every_shim_frame().iter().map(ShimFrame::encode))
        );
    }

    #[test]
    fn a_plan_may_name_the_etc_of_all() {
        let build = ClientFrame::Build(Box::new(ShimPlan { etc: Some("/data/etc".into()), ..plan() }));
        let bytes = build.encode();
        insta::assert_snapshot!("plan_with_etc", bytes.escape_ascii());
        assert_eq!(ClientFrame::decode(bytes[4], &bytes[HEADER..]), Ok(build));
    }

    #[test]
    fn a_plan_may_want_a_container() {
        let engine = DockerEngine { socket: "/run/docker.sock".into() };
        let container = Some(ContainerRequest { engine, image: "ash-agent".to_owned() });
        let build =
            ClientFrame::Build(Box::new(ShimPlan { backend: BackendKind::Docker, container, ..plan() }));
        let bytes = build.encode();
        insta::assert_snapshot!("plan_with_container", bytes.escape_ascii());
        assert_eq!(ClientFrame::decode(bytes[4], &bytes[HEADER..]), Ok(build));
    }

    #[test]
    fn a_plan_may_require_walls_and_allow_namespaces() {
        let required = RequiredWalls::parse("limits,landlock").expect("walls");
        let user_namespaces = UserNamespacePolicy::Allowed;
        let build = ClientFrame::Build(Box::new(ShimPlan { user_namespaces, required, ..plan() }));
        let bytes = build.encode();
        insta::assert_snapshot!("plan_with_required", bytes.escape_ascii());
        assert_eq!(ClientFrame::decode(bytes[4], &bytes[HEADER..]), Ok(build));
    }

    #[test]
    fn a_shim_may_say_that_it_has_a_way_out() {
        let hello = ShimFrame::Hello(ShimHello { egress: true, ..hello() });
        let bytes = hello.encode();
        insta::assert_snapshot!("hello_with_egress", bytes.escape_ascii());
        assert_eq!(ShimFrame::decode(bytes[4], bytes[HEADER..].to_vec()), Ok(hello));
    }

    #[test]
    fn a_shim_may_say_what_its_walls_are_like() {
        let required = RequiredWalls::parse("uid").expect("a wall");
        let user_namespaces = UserNamespacePolicy::Allowed;
        let hello = ShimFrame::Hello(ShimHello { required, user_namespaces, ..hello() });
        let bytes = hello.encode();
        insta::assert_snapshot!("hello_with_required", bytes.escape_ascii());
        assert_eq!(ShimFrame::decode(bytes[4], bytes[HEADER..].to_vec()), Ok(hello));
    }

    #[test]
    fn every_frame_is_read_back_as_it_was_written_even_byte_by_byte() {
        let (mut frames, mut read) = (FrameDecoder::default(), Vec::new());
        for byte in every_client_frame().iter().flat_map(ClientFrame::encode) {
            frames.push(&[byte]);
            while let Some((kind, payload)) = frames.next().expect("well-formed") {
                read.push(ClientFrame::decode(kind, &payload).expect("known"));
            }
        }
        assert_eq!(read, every_client_frame());
        for frame in every_shim_frame() {
            let bytes = frame.encode();
            assert_eq!(ShimFrame::decode(bytes[4], bytes[HEADER..].to_vec()), Ok(frame));
        }
    }

    #[test]
    fn a_frame_that_is_too_long_or_unknown_is_refused() {
        let mut frames = FrameDecoder::default();
        frames.push(&((MAX_FRAME_BYTES + 1) as u32).to_le_bytes());
        frames.push(&[5]);
        assert!(frames.next().is_err());
        assert!(ClientFrame::decode(99, b"").is_err());
        assert!(ClientFrame::decode(5, b"short").is_err());
        assert!(ClientFrame::decode(8, b"more").is_err());
    }

    #[test]
    fn values_of_an_environment_and_keys_are_not_printed() {
        let text = format!("{:?} {:?}", start(), ClientFrame::Egress(Some(egress())));
        let names = text.contains("TOKEN") && text.contains("x-api-key");
        assert!(names && !text.contains("sesame"), "{text}");
    }
}

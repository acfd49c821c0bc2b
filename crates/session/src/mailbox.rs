//! What callers send to a session's actor, and what they get back.

use crate::{
    Result,
    files::FileSource,
    machine::{LockRequest, StateCommand, Turn},
    pool::Admission,
    workspace::WriterGuard,
};
use ash_model::{
    EventSeq, LiveSetting, Receipt, SessionLock, SessionMetadata, SessionOptions, SessionRewind, TurnId,
};
use ash_store::{Checkpoint, SecretEnv};
use std::time::Duration;
use tokio::sync::oneshot;
use uuid::Uuid;

pub(crate) type ReplySender<T> = oneshot::Sender<Result<T>>;

#[expect(clippy::large_enum_variant, reason = "one at a time, looked at and gone")]
pub(crate) enum ActorMessage {
    Command {
        wish: StateCommand,
        passage: Admission,
        reply: ReplySender<CommandReply>,
    },
    /// The turns that are not over, in order.
    Queue {
        reply: ReplySender<Vec<Turn>>,
    },
    Lock {
        wanted: LockRequest,
        reply: ReplySender<SessionLock>,
    },
    /// The holder of lock `number` used it.
    Renew {
        number: u64,
        reply: ReplySender<()>,
    },
    Unlock {
        number: u64,
        reply: ReplySender<()>,
    },
    /// Lock `number` is over, and another client writes.
    ExpireLock {
        number: u64,
        reply: ReplySender<()>,
    },
    Exec {
        command: String,
        timeout: Duration,
        reply: ReplySender<ExecOutput>,
    },
    Files {
        purpose: FileAccessMode,
        reply: ReplySender<GuardedFileSource>,
    },
    /// Whose conversation it takes up, as long as no checkpoint holds its own.
    Inherited {
        reply: ReplySender<Option<Uuid>>,
    },
    /// Answered when the live agent, if there is one, goes on with them.
    Options {
        wanted: OptionsChange,
        reply: ReplySender<()>,
    },
    /// What callers note on it is this from now on.
    SetMetadata {
        metadata: SessionMetadata,
        reply: ReplySender<()>,
    },
    /// Its time is over, or a rule wants it to end: unless somebody is at work with it. The rule has seen its log up to
    /// `seen`, and nobody is to have used it for so long.
    Expire {
        seen: EventSeq,
        unused: Duration,
        reply: ReplySender<CommandReply>,
    },
    /// Somebody else needs its sandbox more. Refused by whoever is at work.
    Evict {
        cost: EvictionCost,
        reply: ReplySender<CommandReply>,
    },
    /// Files were written from outside.
    FilesChanged,
    ForkPoint {
        reply: ReplySender<ForkPoint>,
    },
    /// Another session of the workspace took the files back.
    NoteWorkspaceRewinds {
        reply: ReplySender<()>,
    },
    /// Nobody has used it for long: its files need not be here if the object store has them. Answers whether they went.
    DropLocalFiles {
        reply: ReplySender<bool>,
    },
    Shutdown {
        grace: Duration,
        reply: ReplySender<()>,
    },
}

/// What an eviction may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictionCost {
    Nothing,
    /// What the session holds and nobody keeps may be lost.
    MayLose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccessMode {
    Read,
    Write,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct CommandReply {
    pub(crate) receipt: Option<Receipt>,
    /// The turn that a wish concerned, if any.
    pub(crate) turn: Option<TurnId>,
    pub(crate) rewound: Option<Box<SessionRewind>>,
}

/// What a fork is made from.
#[derive(Debug, Clone)]
pub(crate) struct ForkPoint {
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) memory: uuid::Uuid,
    pub(crate) turns_delivered: u64,
    pub(crate) waiting: Vec<TurnId>,
    pub(crate) summary: ash_store::SessionSummary,
}

/// What a caller wants of a session from now on.
pub struct OptionsChange {
    pub options: SessionOptions,
    /// None: as it is.
    pub env: Option<SecretEnv>,
    /// What the options hold masks for, by JSON pointer. None: as they are.
    pub secrets: Option<SecretEnv>,
    /// What a live agent can be told.
    pub settings: Vec<LiveSetting>,
}

/// How a command in the sandbox ended.
#[derive(Debug, Clone)]
pub struct ExecOutput {
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub timed_out: bool,
    pub truncated: bool,
}

/// Where the files are, and for a writer the guard.
pub(crate) type GuardedFileSource = (FileSource, Option<WriterGuard>);

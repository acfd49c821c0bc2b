//! The messages that callers send to a session's actor, and the replies.

use crate::{
    Result,
    files::FileSource,
    machine::{LockRequest, StateCommand, Turn},
    slots::Admission,
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
        command: StateCommand,
        admission: Admission,
        reply: ReplySender<CommandReply>,
    },
    /// Lists the turns that are not over, in order.
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
    /// Lock `number` ran out, and another client writes.
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
    /// Answers whose conversation the session continues, as long as no checkpoint holds its own.
    Inherited {
        reply: ReplySender<Option<Uuid>>,
    },
    /// Answered when the live agent, if there is one, has accepted them.
    Options {
        wanted: OptionsChange,
        reply: ReplySender<()>,
    },
    /// Replaces the metadata that callers attach to the session.
    SetMetadata {
        metadata: SessionMetadata,
        reply: ReplySender<()>,
    },
    /// Ends the session because its TTL is over or a rule requires it, unless it is in use. The rule has read the log
    /// up to `seen`, and requires that the session is unused for this long.
    Expire {
        seen: EventSeq,
        unused: Duration,
        reply: ReplySender<CommandReply>,
    },
    /// Another session needs the sandbox more. A session that is at work refuses.
    Evict {
        cost: EvictionCost,
        reply: ReplySender<CommandReply>,
    },
    /// Files were written from outside.
    FilesChanged,
    ForkPoint {
        reply: ReplySender<ForkPoint>,
    },
    /// Another session of the workspace rewound the files.
    NoteWorkspaceRewinds {
        reply: ReplySender<()>,
    },
    /// Drops the files of a session that is unused for long, if the object store has them. Answers whether they were
    /// dropped.
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
    /// What is stored nowhere else may be lost.
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
    /// The turn that the command concerned, if any.
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

/// The new options that a caller requests.
pub struct OptionsChange {
    pub options: SessionOptions,
    /// None: unchanged.
    pub env: Option<SecretEnv>,
    /// The secrets that the options hold masks for, by JSON pointer. None: unchanged.
    pub secrets: Option<SecretEnv>,
    /// The changes that a live agent can be told.
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

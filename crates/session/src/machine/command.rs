//! The commands of callers, and the reasons to refuse them.

use ash_model::{
    BusyPolicy, ConversationPoint, EventSeq, LimitReached, MessageOptions, PermissionId, PermissionVerdict,
    SessionStatus, ToolOutput, ToolRequestId, TurnId,
};

#[derive(Debug, Clone, PartialEq)]
pub enum StateCommand {
    Prompt {
        turn: TurnId,
        content: serde_json::Value,
        ask: MessageOptions,
        wake: WakePolicy,
        on_busy: BusyPolicy,
        /// The number of the lock that its sender holds.
        lock: Option<u64>,
    },
    /// Withdraws a waiting message.
    Withdraw {
        turn: TurnId,
    },
    /// Moves these waiting turns to the front, in this order.
    Reorder {
        first: Vec<TurnId>,
    },
    Interrupt,
    /// Answers an open permission request or question of the agent.
    Answer {
        id: PermissionId,
        verdict: PermissionVerdict,
    },
    /// Answers a call of a client's tool.
    AnswerTool {
        id: ToolRequestId,
        output: ToolOutput,
    },
    Pause,
    Stop,
    /// Ends the sandbox; the session may resume.
    Release {
        /// Also if a turn or a command runs.
        by_force: bool,
    },
    Resume,
    /// Rewinds to checkpoint `to`, which covers the log up to `seq`.
    Rewind {
        to: u64,
        seq: EventSeq,
        then: ConversationPoint,
        /// In a shared workspace: also takes back the files of all sessions.
        files: bool,
    },
    End,
}

/// Whether a message may wake a paused or stopped session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakePolicy {
    Allowed,
    Forbidden,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefusal {
    #[error("Session is {0}")]
    WrongStatus(SessionStatus),
    #[error("Cannot {command} session with status \"{status}\"")]
    NotPossible { command: &'static str, status: SessionStatus },
    #[error("Session has ended — create a new session")]
    SessionEnded,
    #[error("A turn is not over; wait for it, or interrupt it")]
    Busy,
    #[error(
        "The session is busy: a turn is not over. Wait for it, or send the message with onBusy \"queue\""
    )]
    SessionBusy,
    #[error(
        "The turn does not wait any more: the agent was told of it, or it is over. One that runs can be interrupted"
    )]
    NotWaiting,
    #[error("{0}")]
    Budget(LimitReached),
    #[error("There is no such permission request")]
    NoSuchPermission,
    #[error("There is no such call of a tool")]
    NoSuchToolCall,
    #[error("The call was answered otherwise")]
    ToolAnswered,
    #[error("The call was withdrawn: its turn is over, or the agent does not wait any more")]
    ToolWithdrawn,
    #[error("The permission request was answered otherwise, or withdrawn")]
    AlreadyAnswered,
    #[error("A question is allowed with answers: what was chosen, by the words of each question")]
    AnswersMissing,
    #[error("Answers are for questions; this request asks whether a call may be made")]
    NotAQuestion,
}

impl StateCommand {
    /// The turn of a message.
    pub fn turn(&self) -> Option<TurnId> {
        match self {
            StateCommand::Prompt { turn, .. } => Some(*turn),
            StateCommand::Withdraw { .. }
            | StateCommand::Reorder { .. }
            | StateCommand::Interrupt
            | StateCommand::Answer { .. }
            | StateCommand::AnswerTool { .. }
            | StateCommand::Pause
            | StateCommand::Stop
            | StateCommand::Release { .. }
            | StateCommand::Resume
            | StateCommand::Rewind { .. }
            | StateCommand::End => None,
        }
    }
}

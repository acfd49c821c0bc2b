//! Compaction: the model summarizes the old part of a long conversation on a thread beside the turns, before the context
//! window is full.
//!
//! A summary counts once it is whole in the transcript. After a crash before that, the agent requests it again.

use crate::cancel::CancelToken;
use crate::context_window::{self, ContextView, ContextWindow, TokenDensity, VerbatimTail};
use crate::conversation::{
    ApiUsage, AssistantBlock, CompactedTurn, CompactionRecord, PromptContent, TerminalReason,
    TranscriptEntry, TranscriptFact, TranscriptTurn,
};
use crate::flags::{AgentSettings, ModelBackend};
use crate::protocol::{AgentOutputLine, CompactMetadata, SystemNotice};
use crate::provider::{self, ModelRequest};
use crate::turn::{TurnRunner, TurnStop, now};
use crate::{ids, tools, transcript};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

/// How often a waiting turn requests a summary. The provider retries within each of these attempts.
const ATTEMPTS: u32 = 3;
const STACK: usize = 256 << 10;

/// A summary that the model is still writing.
pub(crate) struct PendingCompaction {
    answer: Receiver<Result<ConversationSummary, provider::Error>>,
    /// Cancelled when the summary is there, or will never be.
    done: CancelToken,
    /// Cancelled when no turn needs the summary any more.
    stop: CancelToken,
    covers: Vec<CompactedTurn>,
    tokens_before: u64,
    rate: TokenDensity,
}

struct ConversationSummary {
    text: String,
    usage: ApiUsage,
}

impl Drop for PendingCompaction {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl PendingCompaction {
    pub(crate) fn is_done(&self) -> bool {
        self.done.is_cancelled()
    }
}

/// One request to the model.
pub(crate) struct PreparedRequest {
    /// The turns that the model sees; `None`: all of them.
    pub(crate) turns: Option<Vec<TranscriptTurn>>,
    /// The longest answer that fits into the window, in tokens.
    pub(crate) room: u64,
}

impl PreparedRequest {
    fn of(window: &ContextWindow, view: ContextView) -> PreparedRequest {
        PreparedRequest { room: window.room(view.tokens), turns: Some(view.turns) }
    }
}

/// Wakes a worker that is idle except for a pending summary.
pub(crate) type WakeCallback = Arc<dyn Fn() + Send + Sync>;

/// What the summary thread needs. It shares nothing with the turn.
struct SummaryJob {
    answers: ModelBackend,
    manner: AgentSettings,
    system: Option<String>,
    turns: Vec<TranscriptTurn>,
    room: u64,
    stop: CancelToken,
}

/// Reports the end of the summary thread, even if it panics.
struct CompactionDoneGuard {
    done: CancelToken,
    ring: WakeCallback,
}

impl Drop for CompactionDoneGuard {
    fn drop(&mut self) {
        self.done.cancel();
        (self.ring)();
    }
}

impl TurnRunner<'_> {
    /// The next request to the model. Waits for a summary if the conversation does not fit without one.
    pub(crate) fn prepare(
        &mut self,
        cancel: &CancelToken,
    ) -> Result<Result<PreparedRequest, TurnStop>, transcript::TranscriptError> {
        if !self.provider.has_window() {
            return Ok(Ok(PreparedRequest { turns: None, room: context_window::MAX_ANSWER_TOKENS }));
        }
        let window = self.settings.window;
        let mut failures = Vec::new();
        loop {
            failures.extend(self.apply_compaction()?);
            let base = self.base();
            let view = self.view(base);
            let is_full = view.tokens > window.full;
            if window.compacts && self.is_due(&view, is_full) && (failures.len() as u32) < ATTEMPTS {
                self.begin(&view, is_full);
            }
            if !is_full {
                return Ok(Ok(PreparedRequest::of(&window, view)));
            }
            match &self.compacting {
                Some(compacting) if cancel.or(&compacting.done) => {
                    let (reason, partial) = (TerminalReason::AbortedStreaming, String::new());
                    return Ok(Err(TurnStop::Aborted { reason, partial }));
                }
                Some(_) => {}
                None => return Ok(self.shorten_to_fit(view, base, failures.last())),
            }
        }
    }

    /// Called after an answer, so that the next request waits less.
    pub(crate) fn begin_compaction_early(&mut self) {
        if self.provider.has_window() && self.settings.window.compacts {
            let view = self.view(self.base());
            if self.is_due(&view, false) {
                self.begin(&view, false);
            }
        }
    }

    /// Whether the conversation grew enough since the last summary, or since a summary that freed nothing. Otherwise
    /// another summary would cost money and free nothing.
    fn is_due(&self, view: &ContextView, is_full: bool) -> bool {
        let (window, grown) = (&self.settings.window, |since: u64| {
            view.tokens >= since + self.settings.window.min_tokens_between_summaries()
        });
        let is_new = self.conversation.fruitless.is_none_or(grown);
        let is_long = view.tokens > window.background && self.conversation.left.is_none_or(grown);
        is_new && (is_full || is_long)
    }

    fn base(&self) -> u64 {
        context_window::base(self.system.as_deref(), &tools::offered(self.settings))
    }

    fn view(&self, base: u64) -> ContextView {
        context_window::view(&self.settings.window, &self.conversation, base, self.provider.model())
    }

    /// Called when no more can be summarized: shortens long pieces, or ends the turn.
    fn shorten_to_fit(
        &mut self,
        view: ContextView,
        base: u64,
        failure: Option<&String>,
    ) -> Result<PreparedRequest, TurnStop> {
        let window = self.settings.window;
        let full = |why: String| TurnStop::Failed { reason: TerminalReason::ContextFull, why };
        if let Some(why) = failure {
            return Err(full(format!(
                "The conversation fills the context window of {} tokens and could not be summed up: {why} Send the message \
                 again later, or go back to an earlier checkpoint.",
                window.tokens
            )));
        }
        if !window.compacts {
            return Err(full(format!(
                "The context window of {} tokens is full, and this session does not sum up what was said \
                 (infiniteSessions.enabled is false). Set infiniteSessions to true and send the message again, go back to an \
                 earlier checkpoint, or begin a new session.",
                window.tokens
            )));
        }
        let fitting = context_window::squeezed(&window, &view.turns, base, window.full);
        let fitting = fitting.ok_or_else(|| {
            full(format!(
                "Instructions, tools and the last message do not fit into the context window of {} tokens, however short \
                 they are made. Set a larger infiniteSessions.contextWindow, or shorten the instructions.",
                window.tokens
            ))
        })?;
        // The usage that the service reports for this request does not hold for the conversation in another view.
        self.squeezed = true;
        Ok(PreparedRequest::of(&window, fitting))
    }

    /// Requests a summary, unless one is pending or there is nothing to summarize.
    fn begin(&mut self, view: &ContextView, is_full: bool) {
        if self.compacting.is_some() {
            return;
        }
        let window = self.settings.window;
        let plan = context_window::plan(&window, &view.turns, &self.conversation, VerbatimTail::Recent);
        let plan = plan.or_else(|| {
            let all = is_full.then(|| {
                context_window::plan(&window, &view.turns, &self.conversation, VerbatimTail::Nothing)
            });
            all.flatten()
        });
        let Some(plan) = plan else { return };
        let room = window.summary_room();
        let instruction = context_window::user_turn(instruction(room));
        let base = self.base() + context_window::size_of(&instruction);
        let Some(plan) = plan.fitted_to_request(&window, base, view.rate, &self.conversation) else { return };
        let (Ok(done), Ok(stop)) = (CancelToken::new(), CancelToken::new()) else { return };
        let work = SummaryJob {
            answers: self.answers.clone(),
            manner: AgentSettings { streaming: false, ..self.settings.clone() },
            system: self.system.clone(),
            turns: plan.turns.into_iter().chain([instruction]).collect(),
            room,
            stop: stop.clone(),
        };
        let (tell, answer) = channel();
        let finish = CompactionDoneGuard { done: done.clone(), ring: self.ring.clone() };
        let spawned = Builder::new().name("compaction".into()).stack_size(STACK).spawn(move || {
            let finish = finish;
            sum_up(&work, &tell);
            drop(finish);
        });
        if spawned.is_ok() {
            self.compacting = Some(PendingCompaction {
                answer,
                done,
                stop,
                covers: plan.covers,
                tokens_before: view.tokens,
                rate: view.rate,
            });
            let (session_id, uuid) = (self.session, ids::uuid());
            let notice =
                SystemNotice::Status { session_id, uuid: &uuid, status: "compacting", tokens: view.tokens };
            self.out.write_line(&AgentOutputLine::System(notice));
        }
    }

    /// Applies a finished summary, or returns why there is none. Only the thread that owns the transcript writes to it.
    pub(crate) fn apply_compaction(&mut self) -> Result<Option<String>, transcript::TranscriptError> {
        let Some(compacting) = self.compacting.take_if(|compacting| compacting.is_done()) else {
            return Ok(None);
        };
        match compacting.answer.try_recv() {
            Ok(Ok(summary)) => self.record_compaction(&compacting, summary).map(|()| None),
            Ok(Err(provider::Error::Failed(why) | provider::Error::Refused(why))) => Ok(Some(why)),
            Ok(Err(provider::Error::Cancelled)) => Ok(None),
            Err(_) => Ok(Some("The thread that did it broke.".into())),
        }
    }

    fn record_compaction(
        &mut self,
        compacting: &PendingCompaction,
        summary: ConversationSummary,
    ) -> Result<(), transcript::TranscriptError> {
        let ConversationSummary { text, usage } = summary;
        let mut coverage = self.conversation.coverage.clone();
        coverage.extend(&text, &compacting.covers);
        let tokens_after = context_window::size_with(
            &self.settings.window,
            &self.conversation,
            &coverage,
            self.base(),
            compacting.rate,
        );
        let (covers, tokens_before) = (compacting.covers.clone(), compacting.tokens_before);
        let without = context_window::size_with(
            &self.settings.window,
            &self.conversation,
            &self.conversation.coverage,
            self.base(),
            compacting.rate,
        );
        let turn = covers.last().map(|covered| covered.turn.clone()).unwrap_or_default();
        if tokens_after >= without {
            // The current length: what was added meanwhile is no reason for another summary.
            let tokens = tokens_before.max(self.view(self.base()).tokens);
            return self.record(&turn, TranscriptFact::CompactionDiscarded { tokens, usage });
        }
        let fact = CompactionRecord {
            summary: text.clone(),
            covers,
            tokens_before,
            tokens_after,
            tokens_per_1000_bytes: compacting.rate.per_thousand(),
            usage,
        };
        let uuid = ids::uuid();
        let entry =
            TranscriptEntry { fact: TranscriptFact::Compaction(fact), uuid: uuid.clone(), turn, at: now() };
        self.transcript.append(&entry)?;
        self.conversation.add(entry);
        let metadata =
            CompactMetadata { trigger: "auto", pre_tokens: tokens_before, post_tokens: tokens_after };
        let (session_id, uuid, summary) = (self.session, uuid.as_str(), text.as_str());
        let boundary = SystemNotice::CompactBoundary {
            session_id,
            uuid,
            compact_metadata: metadata,
            summary,
            usage: &usage,
        };
        self.out.write_line(&AgentOutputLine::System(boundary));
        Ok(())
    }
}

fn sum_up(work: &SummaryJob, tell: &Sender<Result<ConversationSummary, provider::Error>>) {
    let provider = provider::client_for(&work.answers);
    let request = ModelRequest {
        system: work.system.as_deref(),
        manner: &work.manner,
        turns: &work.turns,
        room: work.room,
    };
    let answer = provider.answer(&request, &mut |_| {}, &work.stop);
    let summary = answer.and_then(|reply| {
        let text = reply.content.iter().filter_map(|block| match block {
            AssistantBlock::Text { text } => Some(text.as_str()),
            AssistantBlock::ToolUse(_)
            | AssistantBlock::Thinking { .. }
            | AssistantBlock::RedactedThinking { .. } => None,
        });
        let text = between_tags(&text.collect::<String>());
        let empty = || provider::Error::Failed("The model gave no summary.".into());
        (!text.is_empty()).then_some(ConversationSummary { text, usage: reply.usage }).ok_or_else(empty)
    });
    // Fails only if the turn does not need the summary any more.
    drop(tell.send(summary));
}

/// A model that forgets the tags has still written a summary.
fn between_tags(text: &str) -> String {
    let inner = text.split_once("<summary>").map_or(text, |(_, rest)| rest);
    let inner = inner.split_once("</summary>").map_or(inner, |(inner, _)| inner);
    inner.trim().to_owned()
}

fn instruction(room: u64) -> PromptContent {
    PromptContent::Text(format!(
        "There is not enough room for this conversation to go on as it is. Write a summary of the conversation so far, \
         which will stand in the place of all that is above: whoever goes on sees only it and what comes after. Do not call \
         tools, and do not go on with the work.\n\nTell, in this order and with the exact names, paths, commands, numbers and \
         words that matter:\n1. what the user wants, all wishes and corrections, in their own words where it matters;\n2. what \
         was decided, and why;\n3. what was done: files read, made and changed, commands run, and what came of it;\n4. errors, \
         and how they were mended;\n5. what is under way or still to be done, and the next step.\n\nIf an earlier summary is \
         above, keep what is still true of it. Use at most {} words, all of them in <summary></summary> tags.",
        room / 2
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_what_is_between_the_tags_or_all_of_it() {
        assert_eq!(between_tags("<analysis>hm</analysis><summary>\n tea \n</summary> bye"), "tea");
        assert_eq!(between_tags("<summary>cut off at the end"), "cut off at the end");
        assert_eq!(between_tags(" just words "), "just words");
        assert_eq!(between_tags("<summary> </summary>"), "");
    }
}

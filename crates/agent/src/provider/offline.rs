//! Deterministic answers without a model: for tests, demonstrations, and machines without a network.
//!
//! The prompt is a small command language (see `command`). The provider answers any other prompt with what it remembers.

mod command;

use super::{AnswerProgress, AnswerSink, Error, ModelClient, ModelReply, ModelRequest};
use crate::cancel::CancelToken;
use crate::conversation::{
    ApiUsage, AssistantBlock, PromptContent, ResultSubtype, ToolUse, TranscriptTurn, TurnStep,
};
use crate::ids::FnvDigest;
use command::{OfflineCall, OfflineCommand};
use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = r#"I work without a model. One command per line, or one command over several lines:
  run: COMMAND             runs it in a shell
  write PATH: TEXT         writes a file
  read PATH                shows a file
  edit PATH: OLD => NEW    replaces a text that occurs once
  list [PATH]              shows a folder
  search TEXT [in PATH]    finds a text in files
  slow N: TEXT             says the text, waiting N milliseconds before each word
  call NAME: JSON          calls a tool of the session; a line "call A: JSON and call B: JSON" calls both at once
  hold PATH: TEXT          says the first word, and the others when there is a file at PATH
  help                     shows this
Anything else I answer with what I remember of our conversation."#;
const HINT: &str = r#" Say "help" to see what I can do."#;
const WORDS_AT_ONCE: usize = 8;
/// Any text is streamed in at most this many pieces.
const MAX_PIECES: usize = 1024;

pub(super) struct OfflineClient;

impl ModelClient for OfflineClient {
    fn model(&self) -> &str {
        "offline"
    }

    fn has_window(&self) -> bool {
        false
    }

    fn answer(
        &self,
        request: &ModelRequest<'_>,
        sink: AnswerSink<'_>,
        cancel: &CancelToken,
    ) -> Result<ModelReply, Error> {
        let Some((turn, earlier)) = request.turns.split_last() else { return Err(Error::Cancelled) };
        let round = match command::parse(&turn.text()) {
            Some(commands) => script(commands, turn),
            None => {
                OfflineAnswer { parts: vec![OfflineText::at_once(chat(turn, earlier))], calls: Vec::new() }
            }
        };
        let text = perform(&round.parts, sink, cancel)?;
        let usage = usage(request, &text, &round.calls);
        let text = (!text.is_empty() || round.calls.is_empty()).then_some(AssistantBlock::Text { text });
        let content = text.into_iter().chain(round.calls.into_iter().map(AssistantBlock::ToolUse)).collect();
        Ok(ModelReply { id: format!("msg_{}", name(turn)), content, usage })
    }
}

/// The text and the calls of one answer.
struct OfflineAnswer {
    parts: Vec<OfflineText>,
    calls: Vec<ToolUse>,
}

struct OfflineText {
    text: String,
    pace: OfflineTextPace,
}

enum OfflineTextPace {
    AtOnce,
    /// Waits this long before each word.
    Slow(Duration),
    /// Waits after the first word until a file exists at this path.
    UntilFile(PathBuf),
}

/// How often a held text checks for its file.
const FILE_POLL_INTERVAL: Duration = Duration::from_millis(5);

impl OfflineText {
    fn at_once(text: String) -> OfflineText {
        OfflineText { text, pace: OfflineTextPace::AtOnce }
    }

    /// Waits before a piece. Returns true as soon as the turn is cancelled.
    fn is_cancelled_before(&self, piece: usize, cancel: &CancelToken) -> bool {
        match &self.pace {
            OfflineTextPace::AtOnce => cancel.is_cancelled(),
            OfflineTextPace::Slow(pause) => cancel.within(*pause),
            OfflineTextPace::UntilFile(_) if piece == 0 => cancel.is_cancelled(),
            OfflineTextPace::UntilFile(path) => {
                while !path.exists() {
                    if cancel.within(FILE_POLL_INTERVAL) {
                        return true;
                    }
                }
                cancel.is_cancelled()
            }
        }
    }
}

/// Each call command takes one step, so the number of steps gives the position. The last answer reports the results.
fn script(commands: Vec<OfflineCommand>, turn: &TranscriptTurn) -> OfflineAnswer {
    let mut parts = Vec::new();
    let mut called = 0;
    for command in commands {
        match command {
            OfflineCommand::Say { pause, text } => {
                parts.push(OfflineText { text, pace: OfflineTextPace::Slow(pause) })
            }
            OfflineCommand::Hold { path, text } => {
                parts.push(OfflineText { text, pace: OfflineTextPace::UntilFile(path.into()) })
            }
            OfflineCommand::Help => parts.push(OfflineText::at_once(HELP.into())),
            OfflineCommand::Call(calls) if called == turn.steps.len() => {
                let calls = calls.into_iter().zip(call_ids(turn));
                let calls = calls.map(|(OfflineCall { tool, input }, id)| ToolUse { id, name: tool, input });
                return OfflineAnswer { parts, calls: calls.collect() };
            }
            OfflineCommand::Call(_) => {
                called += 1;
                parts.clear();
            }
        }
    }
    let came_out = turn.steps.iter().flat_map(results).map(|text| OfflineText::at_once(text.to_owned()));
    OfflineAnswer { parts: came_out.chain(parts).collect(), calls: Vec::new() }
}

fn results(step: &TurnStep) -> impl Iterator<Item = &str> {
    step.results.iter().map(|result| result.content.content.as_str())
}

/// The same for the same step of the same turn, and different for any other.
fn name(turn: &TranscriptTurn) -> FnvDigest {
    FnvDigest::EMPTY.add(turn.uuid.as_bytes()).add(&turn.steps.len().to_le_bytes())
}

/// The first call of a step has the step's name, the others a number behind it.
fn call_ids(turn: &TranscriptTurn) -> impl Iterator<Item = String> {
    let first = format!("toolu_{}", name(turn));
    let others = first.clone();
    std::iter::once(first).chain((2..).map(move |number: u32| format!("{others}_{number}")))
}

fn perform(parts: &[OfflineText], sink: AnswerSink<'_>, cancel: &CancelToken) -> Result<String, Error> {
    let mut said = String::new();
    for (index, part) in parts.iter().enumerate() {
        let break_before = if index > 0 { "\n" } else { "" };
        let words = match part.pace {
            OfflineTextPace::AtOnce => WORDS_AT_ONCE,
            OfflineTextPace::Slow(_) | OfflineTextPace::UntilFile(_) => 1,
        };
        for (number, piece) in pieces(&part.text, words).into_iter().enumerate() {
            if part.is_cancelled_before(number, cancel) {
                return Err(Error::Cancelled);
            }
            let piece = if number == 0 { format!("{break_before}{piece}") } else { piece.to_owned() };
            sink(AnswerProgress::Text(&piece));
            said.push_str(&piece);
        }
    }
    if cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(said) }
}

/// Splits after every `words` words. The pieces joined are the text, including spaces.
fn pieces(text: &str, words: usize) -> Vec<&str> {
    let shortest = if words == 1 { 0 } else { text.len() / MAX_PIECES };
    let (mut pieces, mut start, mut seen) = (Vec::new(), 0, 0);
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        if !c.is_whitespace() && before.is_whitespace() {
            if seen >= words && at - start >= shortest {
                pieces.push(&text[start..at]);
                (start, seen) = (at, 0);
            }
            seen += 1;
        }
        before = c;
    }
    if start < text.len() {
        pieces.push(&text[start..]);
    }
    pieces
}

fn chat(turn: &TranscriptTurn, earlier: &[TranscriptTurn]) -> String {
    let number = earlier.len() + 1;
    let answered = earlier.iter().filter(|turn| is_answered(turn)).count();
    let mut said = format!("This is turn {number}. I remember {} earlier messages", earlier.len() + answered);
    if let Some(first) = earlier.first() {
        said += &format!("; the first was: \"{}\"", cut(&first.text(), 80));
    }
    said += &format!(". You said: \"{}\".", cut(&turn.text(), 200));
    match turn.prompt.as_ref().map_or(0, PromptContent::non_text_blocks) {
        0 => {}
        1 => said += " With it came 1 block that is not text.",
        others => said += &format!(" With it came {others} blocks that are not text."),
    }
    if earlier.is_empty() {
        said += HINT;
    }
    said
}

fn is_answered(turn: &TranscriptTurn) -> bool {
    turn.ended.as_ref().is_some_and(|ended| ended.ending.subtype == ResultSubtype::Success)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// One token per four characters, approximately.
fn usage(request: &ModelRequest<'_>, said: &str, calls: &[ToolUse]) -> ApiUsage {
    let read = characters(request.system.unwrap_or_default()) + request.turns.iter().map(size).sum::<u64>();
    let written = characters(said) + calls.iter().map(call_size).sum::<u64>();
    ApiUsage { input_tokens: read.div_ceil(4), output_tokens: written.div_ceil(4), ..ApiUsage::default() }
}

fn size(turn: &TranscriptTurn) -> u64 {
    let steps = turn.steps.iter().map(|step| {
        let calls = step.message.calls().map(call_size).sum::<u64>();
        characters(&step.message.text()) + calls + results(step).map(characters).sum::<u64>()
    });
    let partial = turn.ended.as_ref().map_or(0, |ended| characters(&ended.partial));
    characters(&turn.text()) + steps.sum::<u64>() + partial
}

fn call_size(call: &ToolUse) -> u64 {
    characters(&call.name) + characters(&call.input.to_string())
}

fn characters(text: &str) -> u64 {
    text.chars().count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_text_in_groups_of_words() {
        assert_eq!(pieces(" a b  c\nd ", 2), [" a b  ", "c\nd "]);
        assert_eq!(pieces("a b", 1), ["a ", "b"]);
        assert_eq!(pieces("", 8), [""; 0]);
        assert_eq!(pieces("  ", 8), ["  "]);
    }

    #[test]
    fn a_long_text_comes_in_a_bounded_number_of_pieces() {
        let text = "word ".repeat(200_000);
        let pieces = pieces(&text, 8);
        assert!(pieces.len() <= MAX_PIECES + 1, "{}", pieces.len());
        assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn a_cut_text_shows_that_it_was_cut_and_never_splits_a_character() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöü", 2), "äö…");
    }
}

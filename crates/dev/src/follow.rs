//! Answers without a script: what follows from the conversation alone.

use crate::{
    conversation::{Conversation, Outcome, Prompt},
    directive::{self, Step},
    reply::{Block, Pace},
    side, tools,
};

/// What to say, and in a word why.
#[derive(Debug, PartialEq)]
pub(crate) struct Said {
    pub(crate) blocks: Vec<Block>,
    pub(crate) why: String,
}

impl Said {
    pub(crate) fn text(why: &str, text: impl Into<String>) -> Said {
        Said { blocks: vec![Block::text(text)], why: why.into() }
    }
}

pub(crate) fn answer(conversation: &Conversation) -> Said {
    let Some(prompt) = conversation.prompt() else {
        return Said::text("nothing was asked", "Nothing was asked of me.");
    };
    if conversation.is_notice() {
        return Said::text("notice", "I have taken note of it.");
    }
    if side::asks_for_summary(&prompt.text) {
        return Said::text("summary", side::summary(conversation));
    }
    let steps = directive::parse(&prompt.text).steps;
    if steps.is_empty() {
        return talk(&prompt, conversation);
    }
    perform(steps, &prompt, conversation)
}

fn talk(prompt: &Prompt, conversation: &Conversation) -> Said {
    if prompt.outcomes.is_empty() {
        return Said::text("chat", chat(&prompt.text, conversation));
    }
    Said { blocks: joined(prompt.outcomes.iter().map(told).collect()), why: "tool result".into() }
}

/// Each call takes an answer of its own, so the number of results tells where we are. The last answer tells what came
/// out, and says what stands after the last call.
fn perform(steps: Vec<Step>, prompt: &Prompt, conversation: &Conversation) -> Said {
    let mut blocks = Vec::new();
    let mut called = 0;
    for step in steps {
        match step {
            Step::Think(text) => blocks.push(Block::Thinking(text)),
            Step::Say { text, pace } => blocks.push(Block::Text { text, pace }),
            Step::Chat(text) => blocks.push(Block::text(chat(&text, conversation))),
            Step::Call(wish) => match tools::call(&wish, conversation) {
                Err(instead) => blocks.push(Block::text(instead)),
                Ok(_) if called < prompt.outcomes.len() => {
                    called += 1;
                    blocks.clear();
                }
                Ok((name, input)) => {
                    let why = format!("call of {name}");
                    blocks.push(Block::Call { name, input });
                    return Said { blocks, why };
                }
            },
        }
    }
    let came_out: Vec<Block> = prompt.outcomes.iter().map(told).collect();
    let why = if came_out.is_empty() { "say" } else { "tool result" };
    let mut blocks = joined([came_out, blocks].concat());
    // A model that only thought would have ended its turn without a word.
    if blocks.iter().all(|block| matches!(block, Block::Thinking(_))) {
        blocks.push(Block::text("I have thought about it."));
    }
    Said { blocks, why: why.into() }
}

/// Texts that follow each other are one: clients show the last block as the result, and it should have all of it.
fn joined(blocks: Vec<Block>) -> Vec<Block> {
    let mut whole: Vec<Block> = Vec::new();
    for block in blocks {
        match (whole.last_mut(), block) {
            (
                Some(Block::Text { text, pace: Pace::AtOnce }),
                Block::Text { text: more, pace: Pace::AtOnce },
            ) => *text = format!("{text}\n{more}"),
            (_, block) => whole.push(block),
        }
    }
    whole
}

fn told(outcome: &Outcome) -> Block {
    let first = outcome.text.lines().map(str::trim).find(|line| !line.is_empty());
    Block::text(match (first, outcome.failed) {
        (Some(line), false) => format!("The output begins with: {line}"),
        (Some(line), true) => format!("It failed: {line}"),
        (None, false) => "There was no output.".into(),
        (None, true) => "It failed without a word.".into(),
    })
}

fn chat(text: &str, conversation: &Conversation) -> String {
    let seen = match conversation.prompts() {
        1 => "1 user message".to_owned(),
        many => format!("{many} user messages"),
    };
    format!("You said: \"{text}\". I can see {seen} of this conversation.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn said(messages: Value, tools: &[&str]) -> Said {
        let tools: Vec<Value> = tools.iter().map(|name| json!({ "name": name })).collect();
        let body = json!({ "messages": messages, "tools": tools });
        answer(&Conversation::read(&body).expect("a conversation"))
    }

    fn call(name: &str, input: Value) -> Block {
        Block::Call { name: name.into(), input }
    }

    fn result(text: &str) -> [Value; 2] {
        [
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}),
        ]
    }

    #[test]
    fn talk_is_repeated_with_the_number_of_messages() {
        let one = json!([{"role": "user", "content": "hello"}]);
        let text = r#"You said: "hello". I can see 1 user message of this conversation."#;
        assert_eq!(said(one, &["Bash"]), Said::text("chat", text));
    }

    #[test]
    fn a_directive_calls_the_tool_that_is_offered() {
        let run = json!([{"role": "user", "content": "run: ls"}]);
        let of_claude = call("Bash", json!({"command": "ls", "description": "What the prompt asks for"}));
        assert_eq!(said(run.clone(), &["Bash", "run"]).blocks, [of_claude]);
        assert_eq!(said(run.clone(), &["run"]).blocks, [call("run", json!({"command": "ls"}))]);
        let none = Block::text("I would call Bash or run, but it is not offered.");
        assert_eq!(said(run, &[]).blocks, [none]);
    }

    #[test]
    fn several_directives_are_done_one_after_the_other() {
        let prompt = json!({"role": "user", "content": "think: hm\nrun: a\nsay: now\nrun: b\nsay: done"});
        let mut messages = vec![prompt];
        let of = |command: &str| call("run", json!({ "command": command }));
        let first = said(json!(messages), &["run"]).blocks;
        assert_eq!(first, [Block::Thinking("hm".into()), of("a")]);
        messages.extend(result("one\ntwo"));
        assert_eq!(said(json!(messages), &["run"]).blocks, [Block::text("now"), of("b")]);
        messages.extend(result(""));
        let last = Block::text("The output begins with: one\nThere was no output.\ndone");
        assert_eq!(said(json!(messages), &["run"]).blocks, [last]);
    }

    #[test]
    fn a_request_for_a_summary_gets_one() {
        let asked =
            "Your task is to create a detailed summary of the conversation so far, in <summary> tags.";
        let said = said(json!([{"role": "user", "content": asked}]), &["Bash"]);
        assert_eq!(said.why, "summary");
        assert!(matches!(&said.blocks[..], [Block::Text { text, .. }] if text.starts_with("<summary>")));
    }
}

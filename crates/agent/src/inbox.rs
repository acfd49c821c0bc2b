//! Stdin, line by line. A line that makes no sense is answered and forgotten; the end of input ends the agent.

use crate::desk::Desk;
use crate::turn::Prompt;
use crate::wire::Incoming;
use std::io::{self, BufRead, Read};

/// More than any prompt with pictures; less than what would hurt the other sandboxes on the machine.
const LONGEST: u64 = 64 << 20;
/// What stays allocated between lines.
const KEPT: usize = 4 << 10;

pub(crate) fn serve(mut desk: Desk) -> i32 {
    let mut stdin = io::stdin().lock();
    let mut line = Vec::new();
    let code = loop {
        match next_line(&mut stdin, &mut line) {
            Ok(Next::End) => break 0,
            Ok(Next::TooLong) => desk.complain(&format!("a line of more than {LONGEST} bytes was skipped")),
            Ok(Next::Line) => hear(&mut desk, &line),
            Err(error) => {
                desk.complain(&format!("cannot read stdin: {error}"));
                break 1;
            }
        }
        line.clear();
        line.shrink_to(KEPT);
    };
    desk.finish();
    code
}

fn hear(desk: &mut Desk, line: &[u8]) {
    if line.trim_ascii().is_empty() {
        return;
    }
    match serde_json::from_slice(line) {
        Ok(Incoming::ControlRequest { request_id, request }) => desk.control(&request_id, request),
        Ok(Incoming::User { uuid: Some(uuid), message, head, steer: Some(into) }) => {
            desk.steer(into, Prompt { uuid, content: message.content, head });
        }
        Ok(Incoming::User { uuid, message, head, steer: _ }) => desk.prompt(uuid, message.content, head),
        Err(error) => desk.complain(&format!("a line on stdin was not understood: {error}")),
    }
}

enum Next {
    Line,
    TooLong,
    End,
}

fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Next> {
    if input.by_ref().take(LONGEST).read_until(b'\n', line)? == 0 {
        return Ok(Next::End);
    }
    if line.ends_with(b"\n") || (line.len() as u64) < LONGEST {
        return Ok(Next::Line);
    }
    input.skip_until(b'\n')?;
    Ok(Next::TooLong)
}

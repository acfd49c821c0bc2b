//! Reads stdin line by line. The agent answers an invalid line with an error and goes on; the end of input ends the
//! agent.

use crate::protocol::HostMessage;
use crate::turn::PendingPrompt;
use crate::turn_worker::TurnWorker;
use std::io::{self, BufRead, Read};

/// More than any prompt with pictures, and less than would harm other sandboxes on the machine.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// The size of the buffer that stays allocated between lines.
const RETAINED_BUFFER_BYTES: usize = 4 << 10;

pub(crate) fn serve(mut desk: TurnWorker) -> i32 {
    let mut stdin = io::stdin().lock();
    let mut line = Vec::new();
    let code = loop {
        match next_line(&mut stdin, &mut line) {
            Ok(InputLine::End) => break 0,
            Ok(InputLine::TooLong) => {
                desk.complain(&format!("a line of more than {MAX_LINE_BYTES} bytes was skipped"))
            }
            Ok(InputLine::Line) => handle_line(&mut desk, &line),
            Err(error) => {
                desk.complain(&format!("cannot read stdin: {error}"));
                break 1;
            }
        }
        line.clear();
        line.shrink_to(RETAINED_BUFFER_BYTES);
    };
    desk.finish();
    code
}

fn handle_line(desk: &mut TurnWorker, line: &[u8]) {
    if line.trim_ascii().is_empty() {
        return;
    }
    match serde_json::from_slice(line) {
        Ok(HostMessage::ControlRequest { request_id, request }) => desk.control(&request_id, request),
        Ok(HostMessage::ControlResponse { response }) => desk.respond(response),
        Ok(HostMessage::User { uuid: Some(uuid), message, head, steer: Some(into) }) => {
            desk.steer(into, PendingPrompt { uuid, content: message.content, head });
        }
        Ok(HostMessage::User { uuid, message, head, steer: _ }) => desk.prompt(uuid, message.content, head),
        Err(error) => desk.complain(&format!("a line on stdin was not understood: {error}")),
    }
}

enum InputLine {
    Line,
    TooLong,
    End,
}

fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<InputLine> {
    if input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line)? == 0 {
        return Ok(InputLine::End);
    }
    if line.ends_with(b"\n") || (line.len() as u64) < MAX_LINE_BYTES {
        return Ok(InputLine::Line);
    }
    input.skip_until(b'\n')?;
    Ok(InputLine::TooLong)
}

//! Parses the data of server-sent events, as far as model services use them. Pure, and bounded.

use super::failure::ProviderFailure;

/// Longer than any event of a model, and short enough to hold in memory.
const MAX_EVENT_BYTES: usize = 16 << 20;

#[derive(Default)]
pub(super) struct SseDecoder {
    line: Vec<u8>,
    data: Vec<u8>,
}

impl SseDecoder {
    /// Adds received bytes, and returns the data of each complete event.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ProviderFailure> {
        let mut whole = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            whole.extend(self.end_line());
            self.check()?;
        }
        self.line.extend_from_slice(rest);
        self.check()?;
        Ok(whole)
    }

    fn check(&self) -> Result<(), ProviderFailure> {
        match self.line.len().max(self.data.len()) > MAX_EVENT_BYTES {
            true => Err(ProviderFailure::malformed("an event without end")),
            false => Ok(()),
        }
    }

    fn end_line(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.is_empty() {
            return Some(std::mem::take(&mut self.data)).filter(|data| !data.is_empty());
        }
        // The data repeats the name of its event, and we need no other fields.
        if let Some(data) = line.strip_prefix(b"data:") {
            if !self.data.is_empty() {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str, size: usize) -> Vec<String> {
        let mut events = SseDecoder::default();
        let taken = text.as_bytes().chunks(size).map(|piece| events.take(piece).expect("events"));
        taken.flatten().map(|data| String::from_utf8(data).expect("UTF-8")).collect()
    }

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text = "event: ping\ndata: {\"a\":1}\n\n: a comment\r\nid: 3\r\ndata:one\r\ndata: two\r\n\r\n\n\ndata: torn";
        for size in 1..=text.len() {
            assert_eq!(events(text, size), ["{\"a\":1}", "one\ntwo"], "{size}");
        }
    }

    #[test]
    fn an_event_without_end_is_refused_and_not_kept() {
        for piece in ["data: xxxxxxxxxxxxxxxxxxxxxx", "data: xxxxxxxxxxxxxxxxxxxxxx\n"] {
            let mut events = SseDecoder::default();
            let piece = piece.repeat(4096);
            let pieces = 2 * MAX_EVENT_BYTES / piece.len();
            let refused = (0..pieces).any(|_| events.take(piece.as_bytes()).is_err());
            assert!(refused, "{pieces} pieces were taken");
        }
    }
}

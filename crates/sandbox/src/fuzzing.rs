//! Properties that hold for any input bytes: the bodies of the fuzz targets in `fuzz/`. The test below runs each over
//! the inputs in `fuzz/corpus`.

pub use crate::egress::fuzzing::{egress_request, json_scanner, model_answer};
use crate::{
    frame::{ClientFrame, FrameDecoder, MAX_FRAME_BYTES, MalformedFrame, ShimFrame},
    journal::{self, JournalPayload, JournalReader, JournalRecord, TornJournal},
};

/// The header of a frame: length and kind.
const FRAME_HEADER: usize = 5;
/// The header of a record: length, checksum, kind, padding, process.
const RECORD_HEADER: usize = 12;
/// More input for a reader that has failed.
const MORE: &[u8] = &[0; 64];

/// A stream of frames, from a server or from a shim. The first byte is the length of the pieces that the decoder gets.
pub fn frames(input: &[u8]) {
    let Some((step, stream)) = input.split_first() else { return };
    let whole = cut_frames(stream, stream.len());
    assert_eq!(whole, cut_frames(stream, usize::from(*step)), "frames do not depend on their pieces");
    for (kind, payload) in whole.0 {
        assert!(payload.len() <= MAX_FRAME_BYTES && payload.len() <= stream.len());
        if let Ok(frame) = ClientFrame::decode(kind, &payload) {
            let again = frame.encode();
            assert_eq!(again[4], kind);
            assert_eq!(ClientFrame::decode(kind, &again[FRAME_HEADER..]).as_ref(), Ok(&frame));
        }
        if let Ok(frame) = ShimFrame::decode(kind, payload) {
            let again = frame.encode();
            assert_eq!(again[4], kind);
            assert_eq!(ShimFrame::decode(kind, again[FRAME_HEADER..].to_vec()), Ok(frame));
        }
    }
}

/// All frames of a stream, as kind and payload, and the error that ended it, if any.
fn cut_frames(stream: &[u8], step: usize) -> (Vec<(u8, Vec<u8>)>, Option<MalformedFrame>) {
    let (mut decoder, mut frames) = (FrameDecoder::default(), Vec::new());
    for piece in stream.chunks(step.max(1)) {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(failure) => return (frames, Some(failure)),
            }
        }
    }
    (frames, None)
}

/// A journal. The first byte is the length of the pieces that the reader gets. A fuzzer does not find valid checksums,
/// so the bytes are also read with corrected checksums.
pub fn journal(input: &[u8]) {
    let Some((step, bytes)) = input.split_first() else { return };
    journal_of(bytes, usize::from(*step));
    journal_of(&with_checksums(bytes), usize::from(*step));
}

fn journal_of(bytes: &[u8], step: usize) {
    let whole = cut_records(bytes, bytes.len());
    assert_eq!(whole, cut_records(bytes, step), "records do not depend on their pieces");
    let mut at = 0;
    for record in whole.0 {
        let end = usize::try_from(record.offset).expect("within the bytes");
        assert!(end >= at + RECORD_HEADER && end <= bytes.len(), "a record ends where its bytes do");
        let mut again = Vec::new();
        append(&mut again, &record);
        let (decoded, torn) = cut_records(&again, again.len());
        assert!(!torn);
        let [decoded] = &decoded[..] else { panic!("{record:?} is written as {decoded:?}") };
        assert_eq!((decoded.process, &decoded.payload), (record.process, &record.payload));
        at = end;
    }
}

/// The records at the beginning, and whether invalid bytes follow them. A reader that has failed keeps failing: `drain`
/// relies on that to read to the end of the file.
fn cut_records(bytes: &[u8], step: usize) -> (Vec<JournalRecord>, bool) {
    let (mut reader, mut records) = (JournalReader::at(0), Vec::new());
    for piece in bytes.chunks(step.max(1)) {
        reader.push(piece);
        loop {
            match reader.next() {
                Ok(Some(record)) => records.push(record),
                Ok(None) => break,
                Err(TornJournal) => {
                    reader.push(MORE);
                    assert_eq!(reader.next(), Err(TornJournal));
                    return (records, true);
                }
            }
        }
    }
    (records, false)
}

fn append(batch: &mut Vec<u8>, JournalRecord { process, payload, .. }: &JournalRecord) {
    match payload {
        JournalPayload::StdoutLine(bytes) => journal::line(batch, *process, bytes),
        JournalPayload::StdoutTail(bytes) => journal::tail(batch, *process, bytes),
        JournalPayload::StderrLine(bytes) => journal::err(batch, *process, bytes),
        JournalPayload::StdoutChunk(bytes) => journal::chunk(batch, *process, bytes),
        JournalPayload::StderrChunk(bytes) => journal::err_chunk(batch, *process, bytes),
        JournalPayload::Started { pid } => journal::started(batch, *process, *pid),
        JournalPayload::StartFailed { why } => journal::start_failed(batch, *process, why),
        JournalPayload::Exit(exit) => journal::exit(batch, *process, *exit),
        JournalPayload::LineTooLong => journal::too_long(batch, *process),
        JournalPayload::SandboxGone { how, oom } => {
            journal::gone(batch, how, *oom);
            // The writer names no process in this record; the reader accepts any.
            batch[RECORD_HEADER - 2..RECORD_HEADER].copy_from_slice(&process.to_le_bytes());
            *batch = with_checksums(batch);
        }
        JournalPayload::Usage(usage) => journal::usage(batch, *process, usage),
    }
}

/// The same bytes with correct checksums: every possible record gets the checksum of its content.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let (mut signed, mut at) = (bytes.to_vec(), 0);
    while let Some(header) = signed.get(at..at + RECORD_HEADER) {
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let Some(end) = at.checked_add(RECORD_HEADER + length).filter(|end| *end <= signed.len()) else {
            break;
        };
        let mut sum = crc32fast::Hasher::new();
        sum.update(&signed[at + 8..end]);
        let sum = sum.finalize().to_le_bytes();
        signed[at + 4..at + 8].copy_from_slice(&sum);
        at = end;
    }
    signed
}

#[cfg(test)]
mod tests {
    use super::*;

    type Target = fn(&[u8]);

    #[test]
    fn what_holds_for_any_bytes_holds_for_those_of_the_corpus() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        let targets: [(&str, Target); 5] = [
            ("frames", frames),
            ("journal", journal),
            ("model_answer", model_answer),
            ("json_scanner", json_scanner),
            ("egress_request", egress_request),
        ];
        for (name, target) in targets {
            let inputs = std::fs::read_dir(corpus.join(name)).expect("a corpus");
            let mut count = 0;
            for input in inputs.map(|input| input.expect("an input").path()) {
                // The last input printed is the one that fails.
                println!("{}", input.display());
                target(&std::fs::read(&input).expect("readable"));
                count += 1;
            }
            assert!(count >= 10, "{name} has only {count} inputs");
        }
    }
}

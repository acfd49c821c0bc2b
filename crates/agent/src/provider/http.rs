//! The part of HTTP/1.1 that one request and its response need. The response is bounded and checked, because a process in
//! the sandbox may have replaced the socket.

use super::failure::ProviderFailure;

/// A source of bytes; 0 means end of file.
pub(super) trait ByteSource {
    fn read(&mut self, into: &mut [u8]) -> Result<usize, ProviderFailure>;
}

/// The limit for all headers together.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Enough for the longest answer, including the JSON around every token.
const MAX_BODY_BYTES: u64 = 64 << 20;
/// The chunk size and its extensions.
const MAX_CHUNK_LINE_BYTES: usize = 1 << 10;
/// Responses such as `100 Continue`, which come before the final one.
const MAX_INFORMATIONAL_RESPONSES: usize = 8;
const BUFFER: usize = 16 << 10;

/// A POST request.
pub(super) struct HttpPost<'a> {
    /// The path and the query.
    pub(super) target: &'a str,
    /// Headers in addition to those of every request.
    pub(super) headers: &'a [(&'a str, &'a str)],
    pub(super) body: &'a [u8],
}

pub(super) fn request(HttpPost { target, headers, body }: &HttpPost<'_>) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let length = body.len();
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut bytes = format!(
        "POST {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         accept: text/event-stream\r\n{more}user-agent: ash/{version}\r\ncontent-length: {length}\r\n\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct HttpResponseHead {
    pub(super) status: u16,
    /// Names are in lower case.
    pub(super) headers: Vec<(String, String)>,
}

impl HttpResponseHead {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str()).collect()
    }
}

pub(super) struct HttpResponse<S> {
    pub(super) head: HttpResponseHead,
    pub(super) body: HttpResponseBody<S>,
}

pub(super) struct HttpResponseBody<S> {
    reader: HttpByteReader<S>,
    framing: BodyFraming,
    left: u64,
}

#[derive(Debug, PartialEq)]
enum BodyFraming {
    Length(u64),
    /// The rest of the current chunk.
    Chunk(u64),
    NextChunk,
    Over,
}

pub(super) fn answer<S: ByteSource>(source: S) -> Result<HttpResponse<S>, ProviderFailure> {
    let mut reader = HttpByteReader { source, buffer: vec![0; BUFFER], start: 0, end: 0 };
    for _ in 0..MAX_INFORMATIONAL_RESPONSES {
        let head = head(&mut reader)?;
        if head.status >= 200 {
            let framing = framing(&head)?;
            return Ok(HttpResponse {
                head,
                body: HttpResponseBody { reader, framing, left: MAX_BODY_BYTES },
            });
        }
    }
    Err(ProviderFailure::malformed("notes without an answer"))
}

fn head<S: ByteSource>(reader: &mut HttpByteReader<S>) -> Result<HttpResponseHead, ProviderFailure> {
    let mut room = MAX_HEAD_BYTES;
    let mut line = || {
        let line = reader.line(room)?;
        room -= line.len();
        String::from_utf8(line).map_err(|_| ProviderFailure::malformed("a header that is not text"))
    };
    let status = status(&line()?)?;
    let mut headers = Vec::new();
    loop {
        let line = line()?;
        if line.is_empty() {
            return Ok(HttpResponseHead { status, headers });
        }
        let (name, value) =
            line.split_once(':').ok_or_else(|| ProviderFailure::malformed("a header without a colon"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

fn status(line: &str) -> Result<u16, ProviderFailure> {
    let number =
        line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 ")).and_then(|rest| rest.get(..3));
    let number = number.and_then(|number| number.parse().ok()).filter(|number| (100..1000).contains(number));
    number.ok_or_else(|| ProviderFailure::malformed("no status"))
}

/// Refuses a response without a length and without chunks: its end would look like a broken connection.
fn framing(head: &HttpResponseHead) -> Result<BodyFraming, ProviderFailure> {
    match (head.all("transfer-encoding")[..].as_ref(), head.all("content-length")[..].as_ref()) {
        ([coding], []) if coding.eq_ignore_ascii_case("chunked") => Ok(BodyFraming::NextChunk),
        ([], [length]) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            let length = length.parse().map_err(|_| ProviderFailure::malformed("a length"))?;
            Ok(if length == 0 { BodyFraming::Over } else { BodyFraming::Length(length) })
        }
        _ => Err(ProviderFailure::malformed("no length")),
    }
}

impl<S: ByteSource> HttpResponseBody<S> {
    /// Appends received bytes; false at the end.
    pub(super) fn read(&mut self, into: &mut Vec<u8>) -> Result<bool, ProviderFailure> {
        if self.framing == BodyFraming::NextChunk {
            self.framing = self.next_chunk()?;
        }
        let left = match self.framing {
            BodyFraming::Length(left) | BodyFraming::Chunk(left) => left,
            BodyFraming::NextChunk | BodyFraming::Over => return Ok(false),
        };
        let piece = self.reader.some(left)?;
        let length = piece.len() as u64;
        into.extend_from_slice(piece);
        self.left =
            self.left.checked_sub(length).ok_or_else(|| ProviderFailure::malformed("a body without end"))?;
        self.framing = match self.framing {
            BodyFraming::Length(left) if left == length => BodyFraming::Over,
            BodyFraming::Length(left) => BodyFraming::Length(left - length),
            BodyFraming::Chunk(left) if left == length => {
                self.end_of_chunk()?;
                BodyFraming::NextChunk
            }
            BodyFraming::Chunk(left) => BodyFraming::Chunk(left - length),
            BodyFraming::NextChunk => BodyFraming::NextChunk,
            BodyFraming::Over => BodyFraming::Over,
        };
        Ok(true)
    }

    fn next_chunk(&mut self) -> Result<BodyFraming, ProviderFailure> {
        let line = self.reader.line(MAX_CHUNK_LINE_BYTES)?;
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let size =
            std::str::from_utf8(digits).ok().filter(|size| size.bytes().all(|b| b.is_ascii_hexdigit()));
        let size = size.and_then(|size| u64::from_str_radix(size, 16).ok());
        match size.ok_or_else(|| ProviderFailure::malformed("the size of a chunk"))? {
            0 => {
                self.skip_trailers()?;
                Ok(BodyFraming::Over)
            }
            size if size > MAX_BODY_BYTES => Err(ProviderFailure::malformed("the size of a chunk")),
            size => Ok(BodyFraming::Chunk(size)),
        }
    }

    fn skip_trailers(&mut self) -> Result<(), ProviderFailure> {
        let mut room = MAX_HEAD_BYTES;
        loop {
            match self.reader.line(room)?.len() {
                0 => return Ok(()),
                length => room -= length,
            }
        }
    }

    fn end_of_chunk(&mut self) -> Result<(), ProviderFailure> {
        match self.reader.line(MAX_CHUNK_LINE_BYTES)?.is_empty() {
            true => Ok(()),
            false => Err(ProviderFailure::malformed("a chunk longer than its size")),
        }
    }
}

struct HttpByteReader<S> {
    source: S,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<S: ByteSource> HttpByteReader<S> {
    /// At least one byte, and at most `most`.
    fn some(&mut self, most: u64) -> Result<&[u8], ProviderFailure> {
        if self.start == self.end {
            self.start = 0;
            self.end = self.source.read(&mut self.buffer)?;
            if self.end == 0 {
                return Err(ProviderFailure::Broken("the answer was cut off".into()));
            }
        }
        let length = (self.end - self.start).min(usize::try_from(most).unwrap_or(usize::MAX));
        self.start += length;
        Ok(&self.buffer[self.start - length..self.start])
    }

    /// A line without its terminator. Line and terminator have at most `most` bytes.
    fn line(&mut self, most: usize) -> Result<Vec<u8>, ProviderFailure> {
        let mut line = Vec::new();
        while line.len() < most {
            match self.some(1)? {
                b"\n" => {
                    let without = line.strip_suffix(b"\r").map_or(line.len(), <[u8]>::len);
                    line.truncate(without);
                    return Ok(line);
                }
                byte => line.extend_from_slice(byte),
            }
        }
        Err(ProviderFailure::malformed("a line without end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns this many bytes per read, and repeats for ever if asked to.
    struct Script<'a> {
        bytes: &'a [u8],
        then: &'a [u8],
        size: usize,
    }

    impl ByteSource for Script<'_> {
        fn read(&mut self, into: &mut [u8]) -> Result<usize, ProviderFailure> {
            let wanted = self.size.min(into.len());
            let mut length = 0;
            while length < wanted {
                if self.bytes.is_empty() {
                    self.bytes = self.then;
                }
                let some = self.bytes.len().min(wanted - length);
                if some == 0 {
                    break;
                }
                into[length..length + some].copy_from_slice(&self.bytes[..some]);
                self.bytes = &self.bytes[some..];
                length += some;
            }
            Ok(length)
        }
    }

    fn whole(bytes: &str, size: usize) -> Result<(u16, String), ProviderFailure> {
        read(Script { bytes: bytes.as_bytes(), then: b"", size })
    }

    fn endless(bytes: &str, then: &str) -> ProviderFailure {
        let script = Script { bytes: bytes.as_bytes(), then: then.as_bytes(), size: 8192 };
        read(script).expect_err("refused")
    }

    fn read(script: Script<'_>) -> Result<(u16, String), ProviderFailure> {
        let mut answer = answer(script)?;
        let mut body = Vec::new();
        while answer.body.read(&mut body)? {}
        Ok((answer.head.status, String::from_utf8(body).expect("UTF-8")))
    }

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n";

    #[test]
    fn an_answer_is_the_same_however_it_is_cut() {
        let chunked = format!(
            "HTTP/1.1 100 Continue\r\n\r\n{CHUNKED}5;x=y\r\nhello\r\n1 \r\n,\r\nA\r\n you there\r\n0\r\nx: y\r\n\r\nmore"
        );
        let counted = "HTTP/1.1 529 \r\nContent-Length: 5\r\nX: y:z\r\n\r\nhello and more";
        let none = "HTTP/1.1 500 No\nContent-Length: 0\n\n";
        for size in 1..=chunked.len() {
            assert_eq!(whole(&chunked, size), Ok((200, "hello, you there".into())), "{size}");
            assert_eq!(whole(counted, size), Ok((529, "hello".into())), "{size}");
            assert_eq!(whole(none, size), Ok((500, String::new())), "{size}");
        }
    }

    #[test]
    fn headers_are_found_whatever_their_case() {
        let bytes = b"HTTP/1.1 429 Slow down\r\nRetry-After:  3 \r\ncontent-length: 0\r\n\r\n";
        let answer = answer(Script { bytes, then: b"", size: 7 }).expect("an answer");
        assert_eq!((answer.head.header("retry-after"), answer.head.header("x")), (Some("3"), None));
    }

    #[test]
    fn an_answer_that_is_cut_anywhere_is_broken() {
        let text = format!("{CHUNKED}5\r\nhello\r\n0\r\n\r\n");
        for end in 0..text.len() {
            let broken = whole(&text[..end], 3);
            assert!(matches!(broken, Err(ProviderFailure::Broken(_))), "{end}: {broken:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [
            "",
            "\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 20\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\nuntil the end",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        ] {
            assert!(whole(bytes, 64).is_err(), "{bytes:?}");
        }
        for size in
            ["", "x", "-1", "+1", "0x5", "5 5", "ffffffffffffffff", "fffffffffffffffff", "7fffffff", ";5"]
        {
            assert!(whole(&format!("{CHUNKED}{size}\r\nhello\r\n0\r\n\r\n"), 64).is_err(), "{size:?}");
        }
        assert!(whole(&format!("{CHUNKED}4\r\nhello\r\n0\r\n\r\n"), 64).is_err(), "longer than its size");
        assert!(whole("HTTP/1.1 200 \u{fffd}\r\nx: \u{7f}\r\ncontent-length: 0\r\n\r\n", 64).is_ok());
        let bytes = b"HTTP/1.1 200 OK\r\nx: \xff\r\ncontent-length: 0\r\n\r\n";
        assert!(answer(Script { bytes, then: b"", size: 64 }).is_err());
    }

    #[test]
    fn endless_headers_and_lines_are_refused() {
        let one = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
        for (bytes, then) in [
            ("", "x"),
            ("HTTP/1.1 200 OK\r\n", "a: b\r\n"),
            ("HTTP/1.1 200 OK\r\na: ", "b"),
            ("", "HTTP/1.1 100 Continue\r\n\r\n"),
            (CHUNKED, "1"),
            (CHUNKED, one.as_str()),
            (&format!("{CHUNKED}0\r\n"), "a: b\r\n"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 9999999999999\r\n\r\n", "x"),
        ] {
            let refused = endless(bytes, then);
            assert!(matches!(refused, ProviderFailure::Broken(_)), "{refused:?}");
        }
    }
}

//! Logs each request as a line of JSON before the response starts: a test that saw a response finds its request.

use axum::http::{HeaderMap, Method};
use serde_json::{Map, Value, json};
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// How many lines stay in memory for HTTP clients; the file has all.
const MAX_LINES_KEPT: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    file: Option<File>,
    lines: VecDeque<(u64, String)>,
    last: u64,
}

pub(crate) struct RequestLogEntry<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Value,
    pub(crate) answered: &'a str,
    /// The usage in the response, if it completes.
    pub(crate) usage: Option<Value>,
}

impl RequestLog {
    /// The file is private, because headers contain keys.
    pub(crate) fn open(path: Option<&Path>) -> io::Result<RequestLog> {
        let open = |path| File::options().create(true).append(true).mode(0o600).open(path);
        Ok(RequestLog { file: path.map(open).transpose()?, ..RequestLog::default() })
    }

    /// Writes an entry and returns its number.
    pub(crate) fn write(&mut self, entry: &RequestLogEntry<'_>) -> io::Result<u64> {
        let number = self.last + 1;
        let line = json!({
            "n": number,
            "at": format!("{:.3}", jiff::Timestamp::now()),
            "method": entry.method.as_str(),
            "path": entry.path,
            "headers": headers(entry.headers),
            "body": entry.body,
            "answered": entry.answered,
            "usage": entry.usage,
        });
        let line = format!("{line}\n");
        if let Some(file) = &mut self.file {
            file.write_all(line.as_bytes())?;
            file.flush()?;
        }
        self.last = number;
        self.lines.push_back((number, line));
        if self.lines.len() > MAX_LINES_KEPT {
            self.lines.pop_front();
        }
        Ok(number)
    }

    pub(crate) fn after(&self, number: u64) -> String {
        self.lines.iter().filter(|(n, _)| *n > number).map(|(_, line)| line.as_str()).collect()
    }
}

/// Header names are in lower case already; a repeated header becomes a list.
fn headers(headers: &HeaderMap) -> Value {
    let mut all = Map::new();
    for name in headers.keys() {
        let mut values: Vec<Value> = headers
            .get_all(name)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into())
            .collect();
        let value = if values.len() == 1 { values.remove(0) } else { Value::Array(values) };
        all.insert(name.as_str().to_owned(), value);
    }
    Value::Object(all)
}

//! Terminal output: the only printer, colours, tables, and relative times.

use serde_json::Value;
use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    io::{IsTerminal, Write},
    sync::OnceLock,
    time::Duration,
};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

// These replace std's macros in the whole crate, so that every command prints through the printer below.
macro_rules! println {
    () => { println!("") };
    ($($words:tt)*) => { $crate::terminal::print(&mut std::io::stdout().lock(), format_args!($($words)*), "\n") };
}
macro_rules! print {
    ($($words:tt)*) => { $crate::terminal::print(&mut std::io::stdout().lock(), format_args!($($words)*), "") };
}
macro_rules! eprintln {
    () => { eprintln!("") };
    ($($words:tt)*) => { $crate::terminal::print(&mut std::io::stderr().lock(), format_args!($($words)*), "\n") };
}
macro_rules! eprint {
    ($($words:tt)*) => { $crate::terminal::print(&mut std::io::stderr().lock(), format_args!($($words)*), "") };
}

/// The printer. It removes escape sequences and bidi controls, so that no name from an agent, a model or a file moves
/// the cursor or reverses a line. Our own colours carry a secret mark.
pub(crate) fn print(to: &mut dyn Write, words: fmt::Arguments<'_>, end: &str) {
    // SIGPIPE ends us if the reader has gone. A full disk leaves no way to print an error.
    to.write_all((strip_control_sequences(&words.to_string()) + end).as_bytes())
        .and_then(|()| to.flush())
        .ok();
}

/// Prints bytes of a file or a command: unchanged for a program, cleaned for a terminal.
pub(crate) fn print_bytes(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    if stdout.is_terminal() {
        print(&mut stdout, format_args!("{}", String::from_utf8_lossy(bytes)), "");
        return Ok(());
    }
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Unknown outside of this process, so that only our own colours pass the printer.
fn own_colour_mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| format!("{:016x};", RandomState::new().build_hasher().finish()))
}

pub(crate) fn is_bidi(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn strip_control_sequences(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            '\x1b' => match own_colour(after) {
                Some((code, after)) => {
                    shown.push_str(&format!("\x1b[{code}m"));
                    after
                }
                None => after_sequence(after),
            },
            '\u{9b}' => after_parameters(after),
            '\n' | '\t' => {
                shown.push(c);
                after
            }
            c if c.is_control() || is_bidi(c) => after,
            c => {
                shown.push(c);
                after
            }
        };
    }
    shown
}

fn own_colour(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(']')?.strip_prefix(own_colour_mark())?.split_once('\x07')
}

/// The rest of the text after an escape sequence whose first character was just read.
fn after_sequence(text: &str) -> &str {
    match text.chars().next() {
        Some('[') => after_parameters(&text[1..]),
        Some(']' | 'P' | 'X' | '^' | '_') => {
            let end = text.find(['\x07', '\u{9c}', '\x1b']);
            // An unterminated sequence must not hide the text after it.
            let Some(end) = end else { return &text[1..] };
            let rest = &text[end..];
            rest.strip_prefix("\x1b\\").unwrap_or_else(|| rest.trim_start_matches(['\x07', '\u{9c}']))
        }
        Some(c) if ('\x20'..='\x7e').contains(&c) => &text[1..],
        Some(_) | None => text,
    }
}

fn after_parameters(text: &str) -> &str {
    let end = text.find(|c: char| !('\x20'..='\x3f').contains(&c)).unwrap_or(text.len());
    let rest = &text[end..];
    match rest.chars().next() {
        Some(c) if ('\x40'..='\x7e').contains(&c) => &rest[1..],
        Some(_) | None => rest,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TerminalStyle {
    Bold,
    Dim,
    Green,
    Yellow,
    Red,
    Cyan,
}

impl TerminalStyle {
    fn code(self) -> &'static str {
        match self {
            TerminalStyle::Bold => "1",
            TerminalStyle::Dim => "2",
            TerminalStyle::Green => "32",
            TerminalStyle::Yellow => "33",
            TerminalStyle::Red => "31",
            TerminalStyle::Cyan => "36",
        }
    }
}

fn colours(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// For stdout.
pub(crate) fn paint(paint: TerminalStyle, text: &str) -> String {
    painted(colours(std::io::stdout().is_terminal()), paint, text)
}

/// For stderr.
pub(crate) fn paint_err(paint: TerminalStyle, text: &str) -> String {
    painted(colours(std::io::stderr().is_terminal()), paint, text)
}

fn painted(on: bool, paint: TerminalStyle, text: &str) -> String {
    if !on {
        return text.to_owned();
    }
    let mark = own_colour_mark();
    format!("\x1b]{mark}{}\x07{text}\x1b]{mark}0\x07", paint.code())
}

pub(crate) fn status(status: &str) -> String {
    let colour = match status {
        "active" | "ok" => TerminalStyle::Green,
        "starting" => TerminalStyle::Cyan,
        "paused" | "stopped" => TerminalStyle::Yellow,
        "error" => TerminalStyle::Red,
        _ => TerminalStyle::Dim,
    };
    paint(colour, status)
}

/// JSON output: it escapes what the printer would remove, so that a program reads the exact value.
pub(crate) fn json(value: &Value) {
    println!("{}", escaped(&serde_json::to_string_pretty(value).unwrap_or_default()));
}

/// The same JSON, with every character escaped that the printer removes. Such characters occur only in strings.
pub(crate) fn escaped(json: &str) -> String {
    let hidden = |c: char| is_bidi(c) || (c.is_control() && !matches!(c, '\n' | '\t'));
    json.chars().map(|c| if hidden(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }).collect()
}

/// Columns with free text, which may be truncated. Ids, names and numbers never are.
const MAY_BE_CUT: [&str; 3] = ["TITLE", "MESSAGE", "LABEL"];
/// Minimum width of a truncated column.
const MIN_COLUMN_WIDTH: usize = 8;
const GAP: usize = 2;

pub(crate) struct TextTable {
    head: Vec<&'static str>,
    rows: Vec<Vec<(String, Option<TerminalStyle>)>>,
}

impl TextTable {
    pub(crate) fn new(head: &[&'static str]) -> TextTable {
        TextTable { head: head.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<(String, Option<TerminalStyle>)>) {
        // Cleaned before the width is measured; each row is one line.
        let cells = cells
            .into_iter()
            .map(|(text, paint)| (strip_control_sequences(&text).replace(['\n', '\t'], " "), paint));
        self.rows.push(cells.collect());
    }

    pub(crate) fn print(&self) {
        self.lines(terminal_width()).iter().for_each(|line| println!("{line}"));
    }

    /// `room`: maximum width of a line; `None`: unlimited.
    fn lines(&self, room: Option<usize>) -> Vec<String> {
        let width = |column: usize| self.widest(column).max(self.head[column].len());
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let Some(room) = room else { return self.columns(&widths) };
        let (mut narrowed, mut hanging) = (widths.clone(), widths);
        if self.narrow(&mut narrowed, room) {
            self.columns(&narrowed)
        } else if self.hang(&mut hanging, room) {
            self.columns(&hanging)
        } else {
            self.records(room)
        }
    }

    fn widest(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|(text, _)| text.width()).max().unwrap_or(0)
    }

    fn columns(&self, widths: &[usize]) -> Vec<String> {
        let gap = " ".repeat(GAP);
        let head: Vec<String> =
            self.head.iter().zip(widths).map(|(name, width)| cell(name, None, *width)).collect();
        let head = paint(TerminalStyle::Dim, head.join(&gap).trim_end());
        let rows = self.rows.iter().flat_map(|row| {
            let mut cells: Vec<String> =
                row.iter().zip(widths).map(|((text, colour), width)| cell(text, *colour, *width)).collect();
            let too_long = row.first().filter(|(text, _)| text.width() > widths[0]);
            let alone = too_long.map(|(text, colour)| {
                cells[0] = " ".repeat(widths[0]);
                cell(text, *colour, text.width())
            });
            alone.into_iter().chain([cells.join(&gap).trim_end().to_owned()])
        });
        std::iter::once(head).chain(rows).collect()
    }

    /// Narrows the first column: longer entries get a line of their own. False: the table still does not fit.
    fn hang(&self, widths: &mut [usize], room: usize) -> bool {
        let cells = self.rows.iter().filter_map(|row| row.first()).map(|(text, _)| text.width());
        let short = cells.filter(|width| *width <= room / 3);
        widths[0] = short.chain([self.head[0].len(), MIN_COLUMN_WIDTH]).max().unwrap_or(MIN_COLUMN_WIDTH);
        self.narrow(widths, room)
    }

    /// Layout for too many columns: a block of lines for each row.
    fn records(&self, room: usize) -> Vec<String> {
        let names = self.head.iter().map(|name| name.len()).max().unwrap_or(0);
        let block = |row: &Vec<(String, Option<TerminalStyle>)>| -> Vec<String> {
            let told = self.head.iter().zip(row).filter(|(_, (text, _))| !text.is_empty());
            let line = |(name, (text, colour)): (&&str, &(String, Option<TerminalStyle>))| {
                let left =
                    if MAY_BE_CUT.contains(name) { room.saturating_sub(names + GAP) } else { text.width() };
                format!(
                    "{}{}{}",
                    paint(TerminalStyle::Dim, &format!("{name:names$}")),
                    " ".repeat(GAP),
                    cell(text, *colour, left.min(text.width()))
                )
            };
            told.map(line).collect()
        };
        let blocks: Vec<Vec<String>> = self.rows.iter().map(block).collect();
        blocks.join(&String::new())
    }

    /// Narrows the widest column that may be truncated, until the row fits. False: it cannot fit.
    fn narrow(&self, widths: &mut [usize], room: usize) -> bool {
        loop {
            let all = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
            let Some(over) = all.checked_sub(room).filter(|over| *over > 0) else { return true };
            let may_be_cut = |column: &usize| {
                MAY_BE_CUT.contains(&self.head[*column]) && widths[*column] > MIN_COLUMN_WIDTH
            };
            let Some(widest) = (0..widths.len()).filter(may_be_cut).max_by_key(|column| widths[*column])
            else {
                return false;
            };
            let next = (0..widths.len()).filter(|column| *column != widest).filter(may_be_cut);
            let next = next.map(|column| widths[column]).max().unwrap_or(MIN_COLUMN_WIDTH);
            widths[widest] =
                widths[widest].saturating_sub(over).max(next.min(widths[widest] - 1)).max(MIN_COLUMN_WIDTH);
        }
    }
}

/// Wraps a text between words, as lines that begin at this column of the terminal. One line without a terminal.
pub(crate) fn wrapped(text: &str, column: usize) -> Vec<String> {
    wrapped_to(text, terminal_width().map(|width| width.saturating_sub(column).max(20)))
}

fn wrapped_to(text: &str, room: Option<usize>) -> Vec<String> {
    let Some(room) = room else { return vec![text.to_owned()] };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        if !line.is_empty() && line.width() + 1 + word.width() > room {
            lines.push(word.to_owned());
        } else {
            let gap = if line.is_empty() { "" } else { " " };
            line.push_str(gap);
            line.push_str(word);
        }
    }
    lines
}

fn cell(text: &str, colour: Option<TerminalStyle>, width: usize) -> String {
    let text = truncate_to_width(text, width);
    let padding = " ".repeat(width.saturating_sub(text.width()));
    let text = colour.map_or_else(|| text.clone(), |colour| paint(colour, &text));
    format!("{text}{padding}")
}

/// Truncates to this many terminal columns; some characters take two.
fn truncate_to_width(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let needs = c.width().unwrap_or(0);
        let fits = needs <= left;
        left = left.saturating_sub(needs);
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// `None`: the output is not a terminal.
fn terminal_width() -> Option<usize> {
    // SAFETY: the call writes one winsize, which may be all zeros, into the one that it is given.
    let (done, size) = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size), size)
    };
    (done == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// A chosen id is shown in full; of a generated one the beginning is enough.
pub(crate) fn is_custom_id(id: &str) -> bool {
    let is_ours = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    !(id.len() == 36 && id.bytes().enumerate().all(is_ours))
}

/// "3m ago", from an ISO time.
pub(crate) fn format_age(time: &str, now: jiff::Timestamp) -> String {
    let Ok(then) = time.parse::<jiff::Timestamp>() else { return time.to_owned() };
    let seconds = now.as_second() - then.as_second();
    match seconds {
        ..5 => "just now".to_owned(),
        5..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..86_400 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

pub(crate) fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

pub(crate) fn shortened(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

const TICKS: [&str; 11] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏", " "];
const TICK: Duration = Duration::from_millis(80);

pub(crate) fn plural(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A spinner on stderr; nothing without a terminal.
pub(crate) fn spinner(message: &str) -> indicatif::ProgressBar {
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let spinner = indicatif::ProgressBar::new_spinner().with_message(strip_control_sequences(message));
    spinner.set_style(spinner_style());
    spinner.enable_steady_tick(TICK);
    spinner
}

fn spinner_style() -> indicatif::ProgressStyle {
    let style = indicatif::ProgressStyle::with_template("{spinner:.cyan} {msg:.dim}");
    style.unwrap_or_else(|_| indicatif::ProgressStyle::default_spinner()).tick_strings(&TICKS)
}

/// A progress bar for `bytes` of work.
pub(crate) fn bar(message: &str, bytes: u64) -> indicatif::ProgressBar {
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new(bytes).with_message(strip_control_sequences(message));
    bar.set_style(bar_style());
    // The tick draws the bar at once, and moves it while there is nothing to count.
    bar.enable_steady_tick(TICK);
    bar
}

fn bar_style() -> indicatif::ProgressStyle {
    let template = "{spinner:.cyan} {msg} {bar:30.cyan/dim} {decimal_bytes}/{decimal_total_bytes} {left}";
    let style = indicatif::ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar());
    style.tick_strings(&TICKS).with_key("left", time_left)
}

/// Shows the progress of a restore: fetched bytes as a bar, written files as a number.
pub(crate) fn show_restore_progress(bar: &indicatif::ProgressBar, told: &serde_json::Value) {
    let number = |name: &str| told[name].as_u64().unwrap_or(0);
    if told["phase"] == "fetching" {
        if bar.length().is_none() {
            bar.set_style(bar_style());
        }
        bar.set_message("fetching from the object store");
        bar.set_length(number("totalBytes"));
        bar.set_position(number("fetchedBytes"));
    } else {
        if bar.length().is_some() {
            bar.unset_length();
            bar.set_style(spinner_style());
        }
        let bytes = indicatif::DecimalBytes(number("bytes"));
        bar.set_message(format!("writing files: {}, {bytes}", number("files")));
    }
}

/// Empty while the rate is unknown.
fn time_left(state: &indicatif::ProgressState, to: &mut dyn std::fmt::Write) {
    if state.pos() > 0 && state.len().is_some_and(|len| state.pos() < len) {
        write!(to, "{:#} left", indicatif::HumanDuration(state.eta())).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_id_is_distinguished_from_a_chosen_one_by_its_form() {
        assert!(!is_custom_id("0190f3a2-7c1b-7def-8a90-5b6c7d8e9f01"));
        for chosen in [
            "payments-team-nightly-reconcile-2026",
            "0190F3A2-7C1B-7DEF-8A90-5B6C7D8E9F01",
            "0190f3a27c1b-7def-8a90-5b6c7d8e9f-01",
            "0190f3a2-7c1b-7def-8a90-5b6c7d8e9f0",
            "bob",
        ] {
            assert!(is_custom_id(chosen), "{chosen}");
        }
    }

    #[test]
    fn times_are_printed_as_people_say_them() {
        let now: jiff::Timestamp = "2026-11-15T12:00:00Z".parse().expect("a time");
        for (time, said) in [
            ("2026-11-15T12:00:00.000Z", "just now"),
            ("2026-11-15T11:59:30.000Z", "30s ago"),
            ("2026-11-15T11:57:00.000Z", "3m ago"),
            ("2026-11-15T07:00:00.000Z", "5h ago"),
            ("2026-11-10T12:00:00.000Z", "5d ago"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(format_age(time, now), said);
        }
    }

    #[test]
    fn escape_sequences_and_bidi_controls_do_not_pass_the_printer() {
        let printed = |text: &str| {
            let mut page = Vec::new();
            print(&mut page, format_args!("{text}"), "\n");
            String::from_utf8(page).expect("text")
        };
        for (text, shown) in [
            ("a\x1b[31mb\x07\nc\td", "ab\nc\td\n"),
            ("\x1b]0;title\x07x", "x\n"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link\n"),
            ("\x1bPq#0\x1b\\x", "x\n"),
            ("\x1b]never ends", "never ends\n"),
            ("\u{9b}2Jx\x1bcy\rz\x08", "xyz\n"),
            ("rm \u{202e}txt.exe\u{2066}\u{200f}", "rm txt.exe\n"),
            ("\x1b[999;1", "\n"),
            ("\x1b]0000000000000000;31\x07x", "x\n"),
        ] {
            assert_eq!(printed(text), shown, "{text:?}");
        }
        assert_eq!(printed(&painted(true, TerminalStyle::Red, "a\x1b[2Jb")), "\x1b[31mab\x1b[0m\n");
    }

    #[test]
    fn json_keeps_what_the_printer_would_remove() {
        let text = serde_json::to_string("a\u{202e}b\u{9b}c\u{7f}").expect("JSON");
        let printed = strip_control_sequences(&escaped(&text));
        assert_eq!(serde_json::from_str::<String>(&printed).expect("JSON"), "a\u{202e}b\u{9b}c\u{7f}");
    }

    fn table(head: &[&'static str], rows: &[&[&str]]) -> TextTable {
        let mut table = TextTable::new(head);
        rows.iter().for_each(|row| table.row(row.iter().map(|text| ((*text).to_owned(), None)).collect()));
        table
    }

    #[test]
    fn a_table_fits_the_terminal_and_never_cuts_a_chosen_id() {
        let (long, text, wide) =
            ("a-session-that-somebody-named-at-length", "x".repeat(100), "日本語".repeat(10));
        let table = table(&["ID", "STATUS", "TITLE"], &[&[long, "active", &text], &["b", "active", &wide]]);
        let lines = table.lines(Some(70));
        assert!(lines.iter().all(|line| line.width() <= 70), "{lines:#?}");
        assert!(lines[1].starts_with(long) && lines[1].ends_with('…'), "{lines:#?}");
        assert!(lines[2].ends_with('…'), "{lines:#?}");
        // Output for a program is never truncated.
        assert!(table.lines(None)[1].ends_with(&text));
    }

    #[test]
    fn a_name_that_is_too_long_for_its_column_gets_a_line_of_its_own() {
        let long = "a-session-that-somebody-named-at-length-and-more";
        let rows: [&[&str]; 2] =
            [&[long, "active", "3", "日本語日本語日本語"], &["b", "paused", "1", "short"]];
        let lines = table(&["ID", "STATUS", "TURNS", "TITLE"], &rows).lines(Some(50));
        let expected = [
            "ID        STATUS  TURNS  TITLE",
            long,
            "          active  3      日本語日本語日本語",
            "b         paused  1      short",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_table_with_too_many_columns_is_printed_as_lines() {
        let wide = "日本語".repeat(20);
        let agent = "an-agent-with-a-name-as-long-as-the-terminal";
        let rows: [&[&str]; 2] = [&["a", agent, "12345678", ""], &["b", "default", "1", &wide]];
        let lines = table(&["ID", "AGENT", "TURNS", "TITLE"], &rows).lines(Some(60));
        let expected = [
            "ID     a".to_owned(),
            format!("AGENT  {agent}"),
            "TURNS  12345678".to_owned(),
            String::new(),
            "ID     b".to_owned(),
            "AGENT  default".to_owned(),
            "TURNS  1".to_owned(),
            format!("TITLE  {}…", wide.chars().take(26).collect::<String>()),
        ];
        assert_eq!(lines, expected);
        assert!(lines.iter().all(|line| line.width() <= 60), "{lines:#?}");
    }

    #[test]
    fn numbers_and_command_arguments_are_never_cut() {
        for head in ["TURN", "WHICH", "BY KEY", "OF", "TENANT", "COST", "CACHE READ", "MODEL", "OWNER"] {
            let value = "0123456789-0123456789";
            let lines = table(&[head, "TITLE"], &[&[value, "words and words"]]).lines(Some(24));
            assert!(lines.iter().any(|line| line.contains(value)), "{head}: {lines:?}");
        }
    }

    #[test]
    fn a_table_counts_double_width_characters() {
        let table = table(&["NAME", "SIZE"], &[&["日本", "1"], &["abcd", "2"]]);
        assert_eq!(table.lines(None)[1..], ["日本  1", "abcd  2"]);
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(wrapped_to("one two three", Some(7)), ["one two", "three"]);
        assert_eq!(wrapped_to("日本 日本 日本", Some(9)), ["日本 日本", "日本"]);
        assert_eq!(wrapped_to("a/path/that/is/long", Some(4)), ["a/path/that/is/long"]);
        assert_eq!(wrapped_to("one two three", None), ["one two three"]);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([0, 999, 1000, 1_500_000].map(format_bytes), ["0 B", "999 B", "1.0 KB", "1.5 MB"]);
    }
}

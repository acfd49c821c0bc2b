//! What people see: colours where there is a terminal, tables, times as one says them.

use serde_json::Value;
use std::{io::IsTerminal, time::Duration};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Bold,
    Dim,
    Green,
    Yellow,
    Red,
    Cyan,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Paint::Bold => "1",
            Paint::Dim => "2",
            Paint::Green => "32",
            Paint::Yellow => "33",
            Paint::Red => "31",
            Paint::Cyan => "36",
        }
    }
}

fn colours(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// For stdout.
pub(crate) fn paint(paint: Paint, text: &str) -> String {
    painted(colours(std::io::stdout().is_terminal()), paint, text)
}

/// For stderr.
pub(crate) fn paint_err(paint: Paint, text: &str) -> String {
    painted(colours(std::io::stderr().is_terminal()), paint, text)
}

fn painted(on: bool, paint: Paint, text: &str) -> String {
    if on { format!("\x1b[{}m{text}\x1b[0m", paint.code()) } else { text.to_owned() }
}

pub(crate) fn status(status: &str) -> String {
    let colour = match status {
        "active" | "ok" => Paint::Green,
        "starting" => Paint::Cyan,
        "paused" | "stopped" => Paint::Yellow,
        "error" => Paint::Red,
        _ => Paint::Dim,
    };
    paint(colour, status)
}

pub(crate) fn json(value: &Value) {
    println!("{}", serde_json::to_string_pretty(value).unwrap_or_default());
}

/// Text from an agent or a file may hold control characters; on a terminal they would be commands.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<(String, Option<Paint>)>>,
}

impl Table {
    pub(crate) fn new(head: &[&'static str]) -> Table {
        Table { head: head.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<(String, Option<Paint>)>) {
        self.rows.push(cells.into_iter().map(|(text, paint)| (harmless(&text), paint)).collect());
    }

    pub(crate) fn print(&self) {
        let width = |column: usize| {
            let cells =
                self.rows.iter().filter_map(|row| row.get(column)).map(|(text, _)| text.chars().count());
            cells.chain([self.head[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let head: Vec<String> =
            self.head.iter().zip(&widths).map(|(name, width)| format!("{name:width$}")).collect();
        println!("{}", paint(Paint::Dim, head.join("  ").trim_end()));
        for row in &self.rows {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|((text, colour), width)| cell(text, *colour, *width)).collect();
            println!("{}", cells.join("  ").trim_end());
        }
    }
}

fn cell(text: &str, colour: Option<Paint>, width: usize) -> String {
    let padding = " ".repeat(width.saturating_sub(text.chars().count()));
    let text = colour.map_or_else(|| text.to_owned(), |colour| paint(colour, text));
    format!("{text}{padding}")
}

/// "3m ago", from an ISO time.
pub(crate) fn ago(time: &str, now: jiff::Timestamp) -> String {
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

pub(crate) fn size(bytes: u64) -> String {
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

/// A spinner on stderr while something takes its time; nothing where there is no terminal.
pub(crate) fn spinner(message: &str) -> indicatif::ProgressBar {
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let spinner = indicatif::ProgressBar::new_spinner().with_message(message.to_owned());
    spinner.set_style(spinner_style());
    spinner.enable_steady_tick(TICK);
    spinner
}

fn spinner_style() -> indicatif::ProgressStyle {
    let style = indicatif::ProgressStyle::with_template("{spinner:.cyan} {msg:.dim}");
    style.unwrap_or_else(|_| indicatif::ProgressStyle::default_spinner()).tick_strings(&TICKS)
}

/// A bar for `bytes` of work.
pub(crate) fn bar(message: &str, bytes: u64) -> indicatif::ProgressBar {
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new(bytes).with_message(message.to_owned());
    bar.set_style(bar_style());
    // Drawn at once and alive, also while nothing can be counted.
    bar.enable_steady_tick(TICK);
    bar
}

fn bar_style() -> indicatif::ProgressStyle {
    let template = "{spinner:.cyan} {msg} {bar:30.cyan/dim} {decimal_bytes}/{decimal_total_bytes} {left}";
    let style = indicatif::ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar());
    style.tick_strings(&TICKS).with_key("left", time_left)
}

/// Shows how far it has come to bring files back: what is fetched as a bar, what is written as a number.
pub(crate) fn restoring(bar: &indicatif::ProgressBar, told: &serde_json::Value) {
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

/// Nothing, as long as nothing is known.
fn time_left(state: &indicatif::ProgressState, to: &mut dyn std::fmt::Write) {
    if state.pos() > 0 && state.len().is_some_and(|len| state.pos() < len) {
        write!(to, "{:#} left", indicatif::HumanDuration(state.eta())).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_as_people_say_them() {
        let now: jiff::Timestamp = "2026-11-15T12:00:00Z".parse().expect("a time");
        for (time, said) in [
            ("2026-11-15T12:00:00.000Z", "just now"),
            ("2026-11-15T11:59:30.000Z", "30s ago"),
            ("2026-11-15T11:57:00.000Z", "3m ago"),
            ("2026-11-15T07:00:00.000Z", "5h ago"),
            ("2026-11-10T12:00:00.000Z", "5d ago"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(ago(time, now), said);
        }
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(harmless("a\x1b[31mb\x07\nc\td"), "a[31mb\nc\td");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([0, 999, 1000, 1_500_000].map(size), ["0 B", "999 B", "1.0 KB", "1.5 MB"]);
    }
}

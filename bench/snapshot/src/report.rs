//! Collects samples, compares them with bars and prints both.

use crate::meter::Cost;
use anyhow::Result;
use serde_json::{Value, json};
use std::{fs, time::Instant};

/// The measurements of one contender.
#[derive(Debug, Default, Clone)]
pub(crate) struct Samples {
    costs: Vec<Cost>,
    bytes: Vec<f64>,
}

impl Samples {
    pub(crate) fn wall(&self, part: f64) -> f64 {
        quantile(self.costs.iter().map(|cost| cost.wall), part)
    }

    pub(crate) fn cpu(&self, part: f64) -> f64 {
        quantile(self.costs.iter().map(|cost| cost.cpu), part)
    }

    /// The mean, so that occasional writes count too.
    pub(crate) fn bytes(&self) -> f64 {
        self.bytes.iter().sum::<f64>() / self.bytes.len().max(1) as f64
    }
}

/// Empty if nothing was measured.
fn milliseconds(seconds: f64) -> String {
    if seconds.is_nan() { String::new() } else { format!("{:.1}", seconds * 1000.0) }
}

/// The smallest sample that at least this part of all samples does not exceed.
fn quantile(samples: impl Iterator<Item = f64>, part: f64) -> f64 {
    let mut samples: Vec<f64> = samples.collect();
    samples.sort_by(f64::total_cmp);
    let rank = (samples.len() as f64 * part).ceil() as usize;
    samples.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    AtLeast,
    AtMost,
}

#[derive(Debug, Clone)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) rule: Rule,
    pub(crate) bound: f64,
    pub(crate) found: f64,
    pub(crate) unit: &'static str,
}

impl Bar {
    pub(crate) fn times_better(name: impl Into<String>, bound: f64, theirs: f64, ours: f64) -> Bar {
        Bar { name: name.into(), rule: Rule::AtLeast, bound, found: theirs / ours, unit: "times" }
    }

    pub(crate) fn at_most_times(name: impl Into<String>, bound: f64, ours: f64, limit: f64) -> Bar {
        Bar { name: name.into(), rule: Rule::AtMost, bound, found: ours / limit, unit: "times" }
    }

    pub(crate) fn at_most(name: impl Into<String>, bound: f64, found: f64, unit: &'static str) -> Bar {
        Bar { name: name.into(), rule: Rule::AtMost, bound, found, unit }
    }

    fn passed(&self) -> bool {
        match self.rule {
            Rule::AtLeast => self.found >= self.bound,
            Rule::AtMost => self.found <= self.bound,
        }
    }

    fn verdict(&self) -> &'static str {
        if self.passed() { "PASS" } else { "FAIL" }
    }

    fn bound(&self) -> String {
        let sign = match self.rule {
            Rule::AtLeast => '≥',
            Rule::AtMost => '≤',
        };
        format!("{sign} {}", self.bound)
    }
}

pub(crate) struct Report {
    began: Instant,
    load: String,
    /// Group, name and samples, in order of arrival.
    samples: Vec<(String, String, Samples)>,
    bars: Vec<Bar>,
    /// Bars that are aims: missing one does not fail the run.
    goals: Vec<Bar>,
    notes: Vec<String>,
}

fn load() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
}

impl Report {
    pub(crate) fn new() -> Result<Report> {
        let (samples, bars, goals, notes) = Default::default();
        Ok(Report { began: Instant::now(), load: load()?, samples, bars, goals, notes })
    }

    fn entry(&mut self, group: &str, name: &str) -> &mut Samples {
        let at = self.samples.iter().position(|(g, n, _)| g == group && n == name);
        let at = at.unwrap_or_else(|| {
            self.samples.push((group.to_owned(), name.to_owned(), Samples::default()));
            self.samples.len() - 1
        });
        &mut self.samples[at].2
    }

    /// Adds a row without samples. The report prints rows in the order of their first mention.
    pub(crate) fn row(&mut self, group: &str, name: &str) {
        self.entry(group, name);
    }

    pub(crate) fn cost(&mut self, group: &str, name: &str, cost: Cost) {
        self.entry(group, name).costs.push(cost);
    }

    pub(crate) fn bytes(&mut self, group: &str, name: &str, bytes: f64) {
        self.entry(group, name).bytes.push(bytes);
    }

    pub(crate) fn get(&self, group: &str, name: &str) -> Samples {
        let found = self.samples.iter().find(|(g, n, _)| g == group && n == name);
        found.map(|(_, _, samples)| samples.clone()).unwrap_or_default()
    }

    pub(crate) fn bar(&mut self, bar: Bar) {
        self.bars.push(bar);
    }

    pub(crate) fn goal(&mut self, goal: Bar) {
        self.goals.push(goal);
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn passed(&self) -> bool {
        self.bars.iter().all(Bar::passed)
    }

    pub(crate) fn print(&self) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let took = self.began.elapsed().as_secs_f64();
        println!("{took:.0} s, {cores} cores, load {} before and {} after", self.load, load()?);
        self.notes.iter().for_each(|note| println!("{note}"));
        let mut group = "";
        for (of, name, samples) in &self.samples {
            if of != group {
                group = of;
                println!(
                    "\n{group:<30}{:>4}{:>12}{:>12}{:>12}{:>12}{:>14}",
                    "n", "wall ms", "p90", "CPU ms", "p90", "bytes written"
                );
            }
            let costs = [samples.wall(0.5), samples.wall(0.9), samples.cpu(0.5), samples.cpu(0.9)];
            let [wall, wall90, cpu, cpu90] = costs.map(milliseconds);
            let bytes = match samples.bytes.is_empty() {
                true => String::new(),
                false => format!("{:.0}", samples.bytes()),
            };
            let n = samples.costs.len();
            println!("  {name:<28}{n:>4}{wall:>12}{wall90:>12}{cpu:>12}{cpu90:>12}{bytes:>14}");
        }
        for (title, bars) in [("bar", &self.bars), ("goal", &self.goals)] {
            println!("\n{title:<58}{:>10}{:>10}", "bound", "found");
            for bar in bars {
                let (name, bound) = (&bar.name, bar.bound());
                println!("{name:<58}{bound:>10}{:>10.2} {:<6}{}", bar.found, bar.unit, bar.verdict());
            }
        }
        Ok(())
    }

    pub(crate) fn print_markdown(&self) {
        let groups: Vec<&str> = self.samples.iter().map(|(group, _, _)| group.as_str()).collect();
        for (at, (group, name, samples)) in self.samples.iter().enumerate() {
            if at == 0 || groups[at - 1] != group {
                println!("\n| {group} | wall ms | CPU ms | written |\n|---|---:|---:|---:|");
            }
            let written = match samples.bytes.is_empty() {
                true => String::new(),
                false => format!("{:.0} KB", samples.bytes() / 1000.0),
            };
            let [wall, cpu] = [samples.wall(0.5), samples.cpu(0.5)].map(milliseconds);
            println!("| {name} | {wall} | {cpu} | {written} |");
        }
        println!("\n| bar | bound | found | |\n|---|---:|---:|---|");
        for bar in &self.bars {
            println!(
                "| {} | {} | {:.2} {} | {} |",
                bar.name,
                bar.bound(),
                bar.found,
                bar.unit,
                bar.verdict()
            );
        }
    }

    pub(crate) fn json(&self) -> Value {
        let samples = self.samples.iter().map(|(group, name, samples)| {
            let costs: Vec<Value> =
                samples.costs.iter().map(|cost| json!({ "wall": cost.wall, "cpu": cost.cpu })).collect();
            json!({
                "group": group, "name": name, "costs": costs, "bytes": samples.bytes,
                "median": { "wall": samples.wall(0.5), "cpu": samples.cpu(0.5) },
            })
        });
        let bars = |bars: &[Bar]| -> Vec<Value> {
            let bar = |bar: &Bar| {
                json!({
                    "name": bar.name, "bound": bar.bound(), "found": bar.found, "unit": bar.unit,
                    "passed": bar.passed(),
                })
            };
            bars.iter().map(bar).collect()
        };
        json!({
            "seconds": self.began.elapsed().as_secs_f64(), "load": self.load, "notes": self.notes,
            "samples": samples.collect::<Vec<_>>(), "bars": bars(&self.bars), "goals": bars(&self.goals),
            "passed": self.passed(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let samples = || (1..=10).rev().map(f64::from);
        assert_eq!((quantile(samples(), 0.5), quantile(samples(), 0.9)), (5.0, 9.0));
        assert!(quantile([].into_iter(), 0.5).is_nan());
    }

    #[test]
    fn a_bar_is_passed_on_its_better_side() {
        assert!(Bar::times_better("", 2.5, 5.0, 2.0).passed());
        assert!(!Bar::times_better("", 2.5, 4.9, 2.0).passed());
        assert!(Bar::at_most_times("", 1.4, 1.4, 1.0).passed());
        assert!(!Bar::at_most("", 150.0, f64::NAN, "MB").passed(), "what was not measured is not passed");
    }
}

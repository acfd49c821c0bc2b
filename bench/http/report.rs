//! Collects samples, compares them with bars and prints both.

use anyhow::Result;
use serde_json::{Value, json};
use std::{
    fs,
    time::{Duration, Instant},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
}

/// A figure that must not be worse than another one.
pub(crate) struct Bar {
    name: &'static str,
    rule: &'static str,
    unit: &'static str,
    found: f64,
    bound: f64,
    better: Better,
}

impl Bar {
    pub(crate) fn at_most(
        name: &'static str,
        rule: &'static str,
        unit: &'static str,
        (found, bound): (f64, f64),
    ) -> Bar {
        Bar { name, rule, unit, found, bound, better: Better::Lower }
    }

    pub(crate) fn at_least(name: &'static str, rule: &'static str, (found, bound): (f64, f64)) -> Bar {
        Bar { name, rule, unit: "/s", found, bound, better: Better::Higher }
    }

    fn passed(&self) -> bool {
        match self.better {
            Better::Lower => self.found <= self.bound,
            Better::Higher => self.found >= self.bound,
        }
    }

    fn ratio(&self) -> f64 {
        self.found / self.bound
    }
}

pub(crate) struct Report {
    samples: usize,
    began: Instant,
    load: [String; 2],
    times: Vec<(&'static str, Vec<Duration>)>,
    bars: Vec<Bar>,
    numbers: Vec<(&'static str, f64)>,
    took: Duration,
}

fn load() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
}

impl Report {
    pub(crate) fn new(samples: usize) -> Result<Report> {
        Ok(Report {
            samples,
            began: Instant::now(),
            load: [load()?, String::new()],
            times: Vec::new(),
            bars: Vec::new(),
            numbers: Vec::new(),
            took: Duration::ZERO,
        })
    }

    pub(crate) fn samples(&self) -> usize {
        self.samples
    }

    pub(crate) fn sample(&mut self, name: &'static str, time: Duration) {
        match self.times.iter_mut().find(|(known, _)| *known == name) {
            Some((_, times)) => times.push(time),
            None => self.times.push((name, vec![time])),
        }
    }

    pub(crate) fn bar(&mut self, bar: Bar) {
        self.bars.push(bar);
    }

    pub(crate) fn number(&mut self, name: &'static str, value: f64) {
        self.numbers.push((name, value));
    }

    fn quantile(&self, name: &str, part: f64) -> f64 {
        let times = self.times.iter().find(|(known, _)| *known == name).map(|(_, times)| times.as_slice());
        quantile(times.unwrap_or_default(), part)
    }

    /// The median in milliseconds.
    pub(crate) fn median(&self, name: &str) -> f64 {
        self.quantile(name, 0.5)
    }

    pub(crate) fn p99(&self, name: &str) -> f64 {
        self.quantile(name, 0.99)
    }

    pub(crate) fn passed(&self) -> bool {
        self.bars.iter().all(Bar::passed)
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        self.load[1] = load()?;
        self.took = self.began.elapsed();
        Ok(())
    }

    pub(crate) fn print(&self) {
        let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
        println!(
            "{} samples, {:.0} s, {cores} cores, load {} before and {} after\n",
            self.samples,
            self.took.as_secs_f64(),
            self.load[0],
            self.load[1]
        );
        println!("{:<26}{:>6}{:>11}{:>11}", "", "n", "median ms", "p99 ms");
        for (name, times) in &self.times {
            let (median, p99) = (self.median(name), self.p99(name));
            println!("{name:<26}{:>6}{median:>11.2}{p99:>11.2}", times.len());
        }
        println!();
        for (name, value) in &self.numbers {
            println!("{name:<38}{value:>9.1}");
        }
        println!("\n{:<31}{:>9}  {:<31}{:>9}{:>7}", "bar", "found", "bound", "", "ratio");
        for bar in &self.bars {
            let sign = if bar.better == Better::Lower { '≤' } else { '≥' };
            println!(
                "{:<31}{:>9.2}  {:<31}{:>9.2}{:>7.2}  {}",
                format!("{} {}", bar.name, bar.unit),
                bar.found,
                format!("{sign} {}", bar.rule),
                bar.bound,
                bar.ratio(),
                if bar.passed() { "PASS" } else { "FAIL" }
            );
        }
    }

    pub(crate) fn print_json(&self) {
        let times = self.times.iter().map(|(name, times)| {
            json!({ "name": name, "samples": times.len(), "medianMs": self.median(name), "p99Ms": self.p99(name) })
        });
        let bars = self.bars.iter().map(|bar| {
            json!({
                "name": bar.name, "unit": bar.unit, "rule": bar.rule, "found": bar.found, "bound": bar.bound,
                "ratio": bar.ratio(), "passed": bar.passed(),
            })
        });
        let numbers: serde_json::Map<String, Value> =
            self.numbers.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let report = json!({
            "samples": self.samples, "seconds": self.took.as_secs_f64(), "load": self.load,
            "times": times.collect::<Vec<_>>(), "numbers": numbers, "bars": bars.collect::<Vec<_>>(),
            "passed": self.passed(),
        });
        println!("{report:#}");
    }
}

/// The quantile in milliseconds: the smallest sample that at least this part of all samples does not exceed.
fn quantile(times: &[Duration], part: f64) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let rank = (times.len() as f64 * part).ceil() as usize;
    times.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let times: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!((quantile(&times, 0.5), quantile(&times, 0.99)), (100.0, 198.0));
        assert_eq!((quantile(&times[..1], 0.99), quantile(&[], 0.5)), (200.0, 0.0));
    }

    #[test]
    fn a_bar_is_passed_on_its_better_side() {
        assert!(Bar::at_most("create", "", "ms", (10.0, 10.0)).passed());
        assert!(!Bar::at_most("create", "", "ms", (10.1, 10.0)).passed());
        assert!(Bar::at_least("rate", "", (61.0, 60.0)).passed());
        assert!(!Bar::at_least("rate", "", (59.0, 60.0)).passed());
    }
}

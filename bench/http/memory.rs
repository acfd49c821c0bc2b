//! Measures the memory of a server and of an idle session.

use crate::{
    floor::{Line, is_root},
    report::{Bar, Report},
    server::Server,
    stage::Stage,
};
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;

const SESSIONS: usize = 50;
const MOST_RSS: f64 = 30.0;
const MOST_PSS: f64 = 4.0;

/// Also returns the command line of one of the running sandboxes.
pub(crate) async fn measure(server: &Server, stage: &Stage, report: &mut Report) -> Result<Line> {
    report.bar(Bar::at_most("server RSS, idle", "", "MB", (resident(server.pid())?, MOST_RSS)));
    let client = server.client();
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(client.create().await?);
    }
    let sandboxes =
        sessions.iter().map(|session| Sandbox::of(server, session)).collect::<Result<Vec<_>>>()?;
    // An ordinary user cannot read the memory of a process that is not dumpable, such as the shim.
    if is_root() {
        let all = sandboxes.iter().map(Sandbox::proportional).sum::<Result<f64>>()?;
        report.bar(Bar::at_most(
            "idle session PSS",
            "of 50, builtin",
            "MB",
            (all / SESSIONS as f64, MOST_PSS),
        ));
    }
    report.number("server RSS with 50 sessions, MB", resident(server.pid())?);
    let line = Line::of(sandboxes[0].bwrap, &server.etc(), stage)?;
    for session in &sessions {
        client.end(session["id"].as_str().context("an id")?).await?;
    }
    Ok(line)
}

struct Sandbox {
    keeper: u32,
    bwrap: u32,
}

impl Sandbox {
    fn of(server: &Server, session: &Value) -> Result<Sandbox> {
        let note = fs::read(server.run_dir(session)?.join("init"))?;
        let note: Value = serde_json::from_slice(&note)?;
        let init = note["init"]["pid"].as_u64().or(note["pid"].as_u64()).context("an init")?;
        let bwrap = parent(init as u32).context("bubblewrap")?;
        Ok(Sandbox { keeper: parent(bwrap).context("a keeper")?, bwrap })
    }

    fn proportional(&self) -> Result<f64> {
        family(self.keeper)
            .into_iter()
            .map(|pid| megabytes(&format!("/proc/{pid}/smaps_rollup"), "Pss:"))
            .sum()
    }
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// A process and all its descendants.
fn family(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    [pid].into_iter().chain(children.flat_map(family)).collect()
}

pub(crate) fn resident(pid: u32) -> Result<f64> {
    megabytes(&format!("/proc/{pid}/status"), "VmRSS:")
}

fn megabytes(file: &str, name: &str) -> Result<f64> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let kib =
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.with_context(|| format!("no {name} in {file}"))? * 1024.0 / 1e6)
}

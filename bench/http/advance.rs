//! Compares a session whose agent has a prewarmed sandbox with a session whose agent has none, in turns.

use crate::{
    report::{Bar, Report},
    server::{AGENT, Client},
    stage::Stage,
};
use anyhow::{Context, Result};
use std::{
    fs,
    time::{Duration, Instant},
};

const EAGER: &str = "eager";

pub(crate) async fn measure(client: &Client, stage: &Stage, report: &mut Report) -> Result<()> {
    let folder = stage.dir.join("eager");
    fs::create_dir(&folder)?;
    fs::write(folder.join("ash.toml"), "runtime = \"builtin\"\n[sandbox]\nprewarm = 1\n")?;
    client.deploy_folder(EAGER, &folder).await?;
    for _ in 0..report.samples() {
        for (agent, name) in [(AGENT, "made on request"), (EAGER, "made in advance")] {
            while client.warm().await? == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let began = Instant::now();
            let session = client.create_of(agent).await?;
            report.sample(name, began.elapsed());
            client.end(session["id"].as_str().context("an id")?).await?;
        }
    }
    let [made, ready] = ["made on request", "made in advance"].map(|name| report.median(name));
    report.bar(Bar::at_most("made in advance", "0.5 · made on request", "ms", (ready, 0.5 * made)));
    client.remove(EAGER).await
}

//! Forks of a small and of a large workspace: how long one takes, and how much disk space it keeps.

use crate::{
    report::{Bar, Report},
    server::{Client, Server},
};
use anyhow::{Context, Result};
use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Instant};

const SMALL: usize = 50;
const LARGE: usize = 41_000;

pub(crate) async fn measure(server: &Server, client: &Client, report: &mut Report) -> Result<()> {
    for (files, fork, bytes) in [
        (SMALL, "fork of 50 files", "bytes of a fork of 50 files"),
        (LARGE, "fork of 41,000 files", "bytes of a fork of 41,000 files"),
    ] {
        let session = client.create().await?;
        let id = session["id"].as_str().context("an id")?;
        let make = format!(
            "for d in $(seq {}); do mkdir -p d$d; for f in $(seq 50); do echo $d $f > d$d/f$f; done; done",
            files / 50
        );
        client.exec(id, &make).await?;
        client.say(id).await?;
        // This fork captures what the turn changed, so the measured forks find nothing new.
        client.act(id, "fork").await?;
        let before = size(server.data())?;
        for _ in 0..report.samples() {
            let began = Instant::now();
            client.act(id, "fork").await?;
            report.sample(fork, began.elapsed());
        }
        let grown = size(server.data())?.saturating_sub(before) / report.samples().max(1) as u64;
        report.bar(Bar::at_most(fork, "5 ms", "ms", (report.median(fork), 5.0)));
        report.bar(Bar::at_most(bytes, "64 KB", "KB", (grown as f64 / 1024.0, 64.0)));
        client.end(id).await?;
    }
    Ok(())
}

/// The size of everything that the server stores, without the trees of running sandboxes.
fn size(at: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(at)? {
        let entry = entry?;
        let Ok(is) = entry.path().symlink_metadata() else { continue };
        sum += match is.is_dir() {
            true if entry.file_name() == "live" => 0,
            true => size(&entry.path())?,
            false => is.blocks() * 512,
        };
    }
    Ok(sum)
}

//! Measures how much memory a burst of work leaves behind.

use crate::{
    probe, process,
    report::{Bar, Report},
    server::{Client, Server},
    stage::Stage,
};
use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};

/// Concurrent requests.
const AT_ONCE: usize = 8;
/// Upper limit for memory after a burst, relative to before it.
const MAX_RATIO: f64 = 1.5;

pub(crate) async fn measure(
    stage: &Stage,
    (sessions, streams): (usize, usize),
    report: &mut Report,
) -> Result<()> {
    let server = Server::start_with(stage, |command| {
        command.env("ASH_MAX_SANDBOXES", (sessions + 1).to_string());
    })
    .await?;
    let client = server.client();
    client.deploy().await?;
    // A first burst warms up whatever the server allocates only once.
    burst(&client, 1, 1).await?;
    let before = process::resident(server.pid())?;
    process::forget_peak(server.pid())?;
    burst(&client, sessions, streams).await?;
    let first = probe::after(&server, MAX_RATIO * before).await?;
    burst(&client, sessions, streams).await?;
    let peak = process::peak(server.pid())?;
    let second = probe::after(&server, MAX_RATIO * before).await?;
    server.stop().await?;
    report.number("before a burst, RSS MB", before);
    report.number("peak of two bursts, RSS MB", peak);
    report.number("after the first, RSS MB", first.resident);
    report.number("after the second, RSS MB", second.resident);
    report.number("until then, s", second.took.as_secs_f64());
    let rule = "1.5 times what was before";
    report.bar(Bar::at_most("after two bursts", rule, "MB", (second.resident, MAX_RATIO * before)));
    Ok(())
}

/// Creates sessions that work and end, and opens this many streams on them.
async fn burst(client: &Client, sessions: usize, streams: usize) -> Result<()> {
    let made = stream::iter(0..sessions).map(|_| async {
        let session = client.create().await?;
        let id = session["id"].as_str().context("an id")?.to_owned();
        client.say(&id).await?;
        anyhow::Ok(id)
    });
    let ids: Vec<String> = made.buffer_unordered(AT_ONCE).try_collect().await?;
    let opened = stream::iter(0..streams).map(|number| {
        let path = format!("/api/sessions/{}/stream", ids[number % ids.len()]);
        async move { client.another().open(&path).await }
    });
    let held: Vec<_> = opened.buffer_unordered(AT_ONCE).try_collect().await?;
    let ended = stream::iter(&ids).map(|id| client.end(id));
    ended.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    drop(held);
    Ok(())
}

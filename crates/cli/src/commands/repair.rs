//! `ash repair`: a database that knows less than its witnesses learns from them.

use super::doctor::Server;
use crate::{
    api::{Failure, Result},
    out::{self, Paint, paint},
};
use ash_server::{Repair, Repaired, RepairedSession};
use serde_json::{Value, json};

/// Answers 1 if something could not be brought back, or if there is something to bring back and nothing was done.
pub(super) async fn run(yes: bool, as_json: bool) -> Result<u8> {
    let config = Server::of_environment()?;
    let how = if yes { Repair::Apply } else { Repair::DryRun };
    let repaired = ash_server::repair(&config, how).await;
    let repaired = repaired.map_err(|error| Failure::invalid(error.to_string()))?;
    match as_json {
        true => out::json(&shown(&repaired, yes)),
        false => tell(&repaired, yes),
    }
    let failed = repaired.sessions.iter().any(|session| session.failed.is_some());
    let left = !yes && is_something(&repaired);
    Ok(u8::from(failed || left))
}

fn is_something(repaired: &Repaired) -> bool {
    repaired.damaged.is_some() || !repaired.sessions.is_empty() || !repaired.orphans.is_empty()
}

fn shown(repaired: &Repaired, yes: bool) -> Value {
    let session = |one: &RepairedSession| {
        json!({
            "tenantId": one.tenant, "id": one.session, "from": one.witness, "known": one.known, "proven": one.proven,
            "error": one.failed,
        })
    };
    json!({
        "dryRun": !yes, "damaged": repaired.damaged, "aside": repaired.aside,
        "sessions": repaired.sessions.iter().map(session).collect::<Vec<_>>(),
        "unknownTrees": repaired.orphans, "kept": repaired.kept,
    })
}

fn tell(repaired: &Repaired, yes: bool) {
    if !is_something(repaired) {
        eprintln!("{}", paint(Paint::Green, "the database knows everything that its witnesses know"));
        return;
    }
    if let Some(damaged) = &repaired.damaged {
        eprintln!("the database cannot be read: {}", damaged);
        match &repaired.aside {
            Some(aside) => eprintln!("it is kept as {}; a new one was made", aside.display()),
            None => {
                eprintln!("with --yes it is put aside, and a new one is made from packs and the object store")
            }
        }
    }
    for one in &repaired.sessions {
        let known = one.known.map_or("unknown".to_owned(), |known| format!("known up to event {known}"));
        let from = match one.witness {
            ash_model::Witness::Packs => "packs",
            ash_model::Witness::Bucket => "the object store",
        };
        let what = match (&one.failed, yes) {
            (Some(error), _) => paint(Paint::Red, &format!("not back: {}", error)),
            (None, true) => paint(Paint::Green, "back"),
            (None, false) => "would come back".to_owned(),
        };
        let id = one.session.as_str().to_owned();
        println!("{id}  {known}, {} events in {from}: {what}", one.proven);
    }
    for (number, workspace) in repaired.orphans.iter().enumerate() {
        match repaired.kept.get(number) {
            Some(kept) => println!("the files of an unknown workspace are in {}", kept.display()),
            None => println!("the files of workspace {workspace}, which nobody knows, would be put aside"),
        }
    }
    match yes {
        true => eprintln!("next: ash start"),
        false => eprintln!("nothing was changed; `ash repair --yes` does it"),
    }
}

//! `ash snapshot`: snapshots of any folder, without a server.

use clap::{Args, Subcommand};
use std::{path::PathBuf, time::Duration};

#[derive(Args)]
pub(crate) struct RepositoryArgs {
    /// The repository: a directory with packs
    // Asked for by hand: a required option before the subcommand cannot be given after it.
    #[arg(long = "repo", global = true, value_name = "DIR", help_heading = "Repository")]
    pub(crate) dir: Option<PathBuf>,
    /// The key that it is sealed with: 32 bytes, or 64 hexadecimal digits
    #[arg(long, global = true, value_name = "FILE", help_heading = "Repository")]
    pub(crate) key_file: Option<PathBuf>,
    /// Answer in JSON, for programs
    #[arg(long, global = true, help_heading = "Repository")]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Save a folder as it is now; only what changed since the last time is read and written
    Save {
        #[arg(value_name = "PATH")]
        folder: PathBuf,
    },
    /// All snapshots, newest first
    List,
    /// Write a snapshot into an empty or new folder
    Restore {
        /// Its id, the beginning of it, or `latest`
        id: String,
        target: PathBuf,
    },
    /// What changed since a snapshot: up to another one, or to a folder as it is now
    Diff {
        id: String,
        /// [default: the folder that was saved]
        #[arg(value_name = "ID|PATH")]
        other: Option<String>,
    },
    /// Check that every snapshot is whole, and say which are not
    Verify {
        /// Read every byte, not only what holds them together
        #[arg(long)]
        read_data: bool,
    },
    /// Forget snapshots by rules, and free what no other needs; without a rule all are kept
    Gc {
        /// Keep so many of the newest, of each folder
        #[arg(long, value_name = "N")]
        keep_last: Option<usize>,
        /// Keep the newest of so many hours
        #[arg(long, value_name = "N")]
        keep_hourly: Option<usize>,
        /// Keep the newest of so many days
        #[arg(long, value_name = "N")]
        keep_daily: Option<usize>,
        /// Say what would go, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Leave packs alone that are younger, for example 90s, 30m, 24h or 7d
        #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = ash_model::parse_duration)]
        grace: Duration,
    },
    /// Sessions that checkpoints of a server's repository tell of
    Sessions,
}

//! `ash snapshot`: snapshots of any folder, without a server.

use clap::{Args, Subcommand};
use std::{path::PathBuf, time::Duration};

#[derive(Args)]
pub(crate) struct RepositoryArgs {
    /// Repository: a directory with packs
    // Checked in code: clap cannot accept a required global option after the subcommand.
    #[arg(long = "repo", global = true, value_name = "DIR", help_heading = "Repository")]
    pub(crate) dir: Option<PathBuf>,
    /// File with the repository's key: 32 bytes, or 64 hexadecimal digits
    #[arg(long, global = true, value_name = "FILE", help_heading = "Repository")]
    pub(crate) key_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, help_heading = "Repository")]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Save a folder; only changes since the last time are read and written
    Save {
        #[arg(value_name = "PATH")]
        folder: PathBuf,
    },
    /// List all snapshots, newest first
    List,
    /// Write a snapshot into an empty or new folder
    Restore {
        /// Id of the snapshot, its beginning, or `latest`
        id: String,
        target: PathBuf,
    },
    /// Show changes since a snapshot: up to another one, or to the current state of a folder
    Diff {
        id: String,
        /// [default: the folder that was saved]
        #[arg(value_name = "ID|PATH")]
        other: Option<String>,
    },
    /// Check that every snapshot is complete, and name the damaged ones
    Verify {
        /// Read every byte, not only the structure
        #[arg(long)]
        read_data: bool,
    },
    /// Remove snapshots by rules, and free the space that no other needs; without a rule all are kept
    Gc {
        /// Keep the newest N of each folder
        #[arg(long, value_name = "N")]
        keep_last: Option<usize>,
        /// Keep the newest of each of the last N hours that have one
        #[arg(long, value_name = "N")]
        keep_hourly: Option<usize>,
        /// Keep the newest of each of the last N days that have one
        #[arg(long, value_name = "N")]
        keep_daily: Option<usize>,
        /// Print what would be removed, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Keep packs that are younger than this, for example 90s, 30m, 24h or 7d
        #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = ash_model::parse_duration)]
        grace: Duration,
    },
    /// List sessions in the checkpoints of a server's repository
    Sessions,
}

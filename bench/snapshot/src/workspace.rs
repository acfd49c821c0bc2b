//! Builds the three workspaces, each with the agent's home beside it, and applies turns to them. Everything is
//! derived from names and numbers, so two runs see the same bytes.

use crate::noise::{Dice, Language, PAGE, noise};
use anyhow::{Context, Result};
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{FileExt, lchown, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

/// As in a sandbox, another user owns the files.
pub(crate) const OWNER: u32 = 60001;

const TRANSCRIPT: &str = "home/.claude/projects/-workspace/7c2f.jsonl";
const DATABASE: &str = "workspace/data/app.db";
const TRANSCRIPT_SIZE: f64 = 5e6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    W1,
    W2,
    W3,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::W1 => "W1",
            Kind::W2 => "W2",
            Kind::W3 => "W3",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
    Text,
    Noise,
    Transcript,
    Pages,
}

struct Planned {
    path: String,
    fill: Fill,
    size: usize,
}

pub(crate) struct Workspace {
    pub(crate) kind: Kind,
    /// Holds `workspace` and `home`.
    pub(crate) root: PathBuf,
    pub(crate) files: usize,
    pub(crate) bytes: u64,
    language: Language,
    /// The files that an agent edits, relative to the root.
    sources: Vec<String>,
    owned: bool,
}

struct Plan {
    dice: Dice,
    files: Vec<Planned>,
    links: Vec<(String, String)>,
    taken: BTreeSet<String>,
}

impl Plan {
    fn add(&mut self, path: String, fill: Fill, size: f64) {
        if self.taken.insert(path.clone()) {
            self.files.push(Planned { path, fill, size: size.max(1.0) as usize });
        }
    }

    /// Scales all files after the first `fixed` so that they add up to `bytes`.
    fn stretch(&mut self, fixed: usize, bytes: f64) {
        let sum: f64 = self.files[fixed..].iter().map(|file| file.size as f64).sum();
        for file in &mut self.files[fixed..] {
            file.size = ((file.size as f64 * bytes / sum) as usize).max(1);
        }
    }
}

fn count(full: usize, scale: f64) -> usize {
    ((full as f64 * scale).round() as usize).max(1)
}

fn plan(kind: Kind, scale: f64, language: &Language) -> Plan {
    let mut plan = Plan { dice: Dice::new(5), files: Vec::new(), links: Vec::new(), taken: BTreeSet::new() };
    let transcript = if kind == Kind::W3 { TRANSCRIPT_SIZE } else { TRANSCRIPT_SIZE * scale.sqrt() };
    plan.add(TRANSCRIPT.into(), Fill::Transcript, transcript);
    match kind {
        Kind::W1 => plan_node(&mut plan, scale, language),
        Kind::W2 => plan_binaries(&mut plan, scale, language),
        Kind::W3 => {
            plan_sources(&mut plan, 48, 4, language);
            plan.add("workspace/package.json".into(), Fill::Text, 900.0);
        }
    }
    plan
}

/// A project with its `.git`, its build and its `node_modules`: 41,000 files, 560 MB.
fn plan_node(plan: &mut Plan, scale: f64, language: &Language) {
    for pack in 0..2 {
        plan.add(format!("workspace/.git/objects/pack/pack-{pack}.pack"), Fill::Noise, 2.2e7 * scale);
    }
    let fixed = plan.files.len();
    // Without a HEAD file: otherwise git would treat the folder as a repository of its own and store only its name.
    for name in ["config", "index", "packed-refs", "logs/heads/main", "refs/heads/main"] {
        plan.add(format!("workspace/.git/{name}"), Fill::Text, 2000.0);
    }
    for _ in 0..count(2500, scale) {
        let (name, size) = (plan.dice.roll(), plan.dice.size(1500.0, 1.2));
        plan.add(format!("workspace/.git/objects/{:02x}/{name:038x}", name & 0xff), Fill::Noise, size);
    }
    plan_sources(plan, count(1400, scale), count(120, scale.sqrt()), language);
    for _ in 0..count(1500, scale) {
        let (name, size) = (plan.dice.roll(), plan.dice.size(12_000.0, 1.3));
        let dir = ["static/chunks", "server/app", "cache/webpack"][plan.dice.below(3)];
        plan.add(format!("workspace/.next/{dir}/{name:016x}.js"), Fill::Text, size);
    }
    let mut packages: Vec<String> = Vec::new();
    while plan.files.len() < count(41_000, scale) {
        let package = package_path(plan, &packages, language);
        plan_package(plan, &package, language);
        packages.push(package);
    }
    plan.files.truncate(count(41_000, scale).max(fixed + 100));
    let fixed_bytes: usize = plan.files[..fixed].iter().map(|file| file.size).sum();
    plan.stretch(fixed, 5.6e8 * scale - fixed_bytes as f64);
}

fn package_path(plan: &mut Plan, packages: &[String], language: &Language) -> String {
    let dice = &mut plan.dice;
    let name = format!("{}-{}", language.word(dice), dice.below(1000));
    // Some packages bring nested packages of their own.
    if dice.below(7) == 0 && !packages.is_empty() {
        return format!("{}/node_modules/{name}", packages[dice.below(packages.len())]);
    }
    if dice.below(6) == 0 {
        let scope = dice.below(30);
        return format!("workspace/node_modules/@scope{scope}/{name}");
    }
    format!("workspace/node_modules/{name}")
}

fn plan_package(plan: &mut Plan, package: &str, language: &Language) {
    const DIRS: [&str; 10] = [
        "lib",
        "dist",
        "dist/esm",
        "dist/cjs",
        "dist/esm/internal",
        "src",
        "src/util",
        "types",
        "build/umd",
        "test/fixtures",
    ];
    plan.add(format!("{package}/package.json"), Fill::Text, 1800.0);
    plan.add(format!("{package}/README.md"), Fill::Text, 4000.0);
    plan.add(format!("{package}/LICENSE"), Fill::Text, 1070.0);
    let (files, dirs) = (plan.dice.size(22.0, 1.3).min(900.0) as usize, 1 + plan.dice.below(7));
    let first = plan.dice.below(DIRS.len());
    for _ in 0..files {
        let dir = DIRS[(first + plan.dice.below(dirs)) % DIRS.len()];
        let name = format!("{}{}", language.word(&mut plan.dice), plan.dice.below(100));
        let (ending, fill) = match plan.dice.below(100) {
            0..=55 => ("js", Fill::Text),
            56..=74 => ("d.ts", Fill::Text),
            75..=88 => ("js.map", Fill::Text),
            89..=96 => ("json", Fill::Text),
            _ => ("wasm", Fill::Noise),
        };
        let size = plan.dice.size(2300.0, 1.6).min(2e6);
        plan.add(format!("{package}/{dir}/{name}.{ending}"), fill, size);
    }
    if plan.dice.below(3) == 0 {
        let name = package.rsplit('/').next().unwrap_or_default().to_owned();
        let target = format!("../{name}/lib/cli.js");
        plan.links.push((format!("workspace/node_modules/.bin/{name}"), target));
    }
}

/// 2,000 files, four incompressible files of 150 MB, and a database of 200 MB.
fn plan_binaries(plan: &mut Plan, scale: f64, language: &Language) {
    plan.add(DATABASE.into(), Fill::Pages, 2e8 * scale);
    for number in 0..4 {
        plan.add(format!("workspace/models/part-{number}.bin"), Fill::Noise, 1.5e8 * scale);
    }
    plan_sources(plan, count(1994, scale), count(90, scale.sqrt()), language);
}

fn plan_sources(plan: &mut Plan, files: usize, dirs: usize, language: &Language) {
    let dirs: Vec<String> = (0..dirs)
        .map(|n| match n % 3 {
            0 => format!("workspace/src/part{n}"),
            1 => format!("workspace/src/part{}/components/{}", n / 3, language.word(&mut plan.dice)),
            _ => format!("workspace/src/lib/part{}/{}/deep", n / 5, language.word(&mut plan.dice)),
        })
        .collect();
    let wanted = plan.files.len() + files;
    while plan.files.len() < wanted {
        let dir = &dirs[plan.dice.below(dirs.len())];
        let name = format!("{}{}", language.word(&mut plan.dice), plan.dice.below(1000));
        let size = plan.dice.size(3500.0, 1.0).min(2e5);
        plan.add(format!("{dir}/{name}.ts"), Fill::Text, size);
    }
}

impl Workspace {
    pub(crate) fn build(kind: Kind, scale: f64, root: &Path) -> Result<Workspace> {
        let language = Language::new();
        let plan = plan(kind, scale, &language);
        let folders: BTreeSet<&str> =
            plan.files.iter().filter_map(|file| Some(file.path.rsplit_once('/')?.0)).collect();
        for folder in folders {
            fs::create_dir_all(root.join(folder))?;
        }
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let write = || {
                while let Some(file) = plan.files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    write_file(root, file, &language)?;
                }
                anyhow::Ok(())
            };
            let writers = [scope.spawn(write), scope.spawn(write)];
            writers
                .map(|writer| writer.join().expect("a writer does not panic"))
                .into_iter()
                .collect::<Result<()>>()
        })?;
        for (link, target) in &plan.links {
            let link = root.join(link);
            fs::create_dir_all(link.parent().context("a parent")?)?;
            symlink(target, &link).ok();
        }
        let owned = rustix::process::geteuid().is_root();
        if owned {
            give_away(root)?;
        }
        let sources = plan.files.iter().map(|file| &file.path);
        let sources = sources.filter(|path| path.starts_with("workspace/src/")).cloned().collect();
        let bytes = plan.files.iter().map(|file| file.size as u64).sum();
        Ok(Workspace {
            kind,
            root: root.to_owned(),
            files: plan.files.len(),
            bytes,
            language,
            sources,
            owned,
        })
    }

    /// What an agent does in a turn; equal numbers do the same.
    pub(crate) fn turn(&mut self, number: usize) -> Result<()> {
        let mut dice = Dice::new(0x7u64 << 32 | number as u64);
        let lines = self.language.transcript(&mut dice, 20_000);
        OpenOptions::new().append(true).open(self.root.join(TRANSCRIPT))?.write_all(&lines)?;
        for _ in 0..5 {
            let path = self.root.join(&self.sources[dice.below(self.sources.len())]);
            self.edit(&path, &mut dice)?;
        }
        for name in 0..3 {
            let path = format!("{}/turn{number}-{name}.ts", self.some_folder(&mut dice)?);
            let text = self.language.text(&mut dice, 4000);
            self.write(&path, &text)?;
            self.sources.push(path);
        }
        let doomed = self.sources.remove(dice.below(self.sources.len()));
        fs::remove_file(self.root.join(doomed))?;
        let moved = dice.below(self.sources.len());
        let to = format!("{}/moved{number}.ts", self.some_folder(&mut dice)?);
        fs::rename(self.root.join(&self.sources[moved]), self.root.join(&to))?;
        self.sources[moved] = to;
        if self.kind == Kind::W2 {
            let file = OpenOptions::new().write(true).open(self.root.join(DATABASE))?;
            let pages = file.metadata()?.len() / PAGE as u64;
            let page = pages / 2 + dice.below(64) as u64;
            file.write_all_at(&self.language.page(&mut dice), page * PAGE as u64)?;
        }
        Ok(())
    }

    /// Undoes growth, so that the thousandth turn meets the same workspace as the tenth: removes the new files and
    /// truncates the transcript to its first length.
    pub(crate) fn shrink(&mut self, files: usize) -> Result<()> {
        while self.sources.len() > files {
            let doomed = self.sources.remove(self.sources.len() / 2);
            fs::remove_file(self.root.join(doomed))?;
        }
        let transcript = OpenOptions::new().write(true).open(self.root.join(TRANSCRIPT))?;
        let length = transcript.metadata()?.len();
        transcript.set_len(length.min(TRANSCRIPT_SIZE as u64))?;
        Ok(())
    }

    pub(crate) fn sources(&self) -> usize {
        self.sources.len()
    }

    fn some_folder(&self, dice: &mut Dice) -> Result<String> {
        let file = &self.sources[dice.below(self.sources.len())];
        Ok(file.rsplit_once('/').context("a folder")?.0.to_owned())
    }

    fn edit(&self, path: &Path, dice: &mut Dice) -> Result<()> {
        let mut bytes = fs::read(path)?;
        let (at, new) = (dice.below(bytes.len()), self.language.text(dice, 120));
        let end = (at + 80).min(bytes.len());
        bytes.splice(at..end, new);
        fs::write(path, bytes).with_context(|| format!("cannot edit {path:?}"))
    }

    fn write(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let path = self.root.join(path);
        fs::write(&path, bytes)?;
        if self.owned {
            lchown(&path, Some(OWNER), Some(OWNER))?;
        }
        Ok(())
    }
}

fn write_file(root: &Path, planned: &Planned, language: &Language) -> Result<()> {
    let mut dice = Dice::of(planned.path.as_bytes());
    let mut file = File::create_new(root.join(&planned.path))?;
    match planned.fill {
        Fill::Text => file.write_all(&language.text(&mut dice, planned.size))?,
        Fill::Transcript => file.write_all(&language.transcript(&mut dice, planned.size))?,
        Fill::Noise => {
            let mut left = planned.size;
            while left > 0 {
                let part = left.min(1 << 20);
                file.write_all(&noise(&mut dice, part))?;
                left -= part;
            }
        }
        Fill::Pages => {
            let mut first = language.page(&mut dice);
            first[..16].copy_from_slice(b"SQLite format 3\0");
            file.write_all(&first)?;
            for _ in 1..planned.size / PAGE {
                file.write_all(&language.page(&mut dice))?;
            }
        }
    }
    Ok(())
}

fn give_away(path: &Path) -> Result<()> {
    lchown(path, Some(OWNER), Some(OWNER))?;
    if path.symlink_metadata()?.is_dir() {
        for entry in fs::read_dir(path)? {
            give_away(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspaces_have_the_size_the_bars_speak_of() {
        let language = Language::new();
        for (kind, files, bytes) in [(Kind::W1, 41_000, 560), (Kind::W2, 2_000, 820), (Kind::W3, 50, 5)] {
            let plan = plan(kind, 1.0, &language);
            let sum: usize = plan.files.iter().map(|file| file.size).sum();
            assert_eq!(plan.files.len(), files, "{}", kind.name());
            assert!((sum / 1_000_000).abs_diff(bytes) <= bytes / 50 + 1, "{} {sum}", kind.name());
        }
    }
}

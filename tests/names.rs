//! A type's name is a promise to a reader who searches for it: one name, one type. This refuses a second type of the same
//! name among the exported ones of the workspace and within one crate, and names that std or the prelude have already.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Each crate has one of these.
const ONE_FOR_EACH_CRATE: [&str; 2] = ["Error", "Result"];

/// Names of std and its prelude that a reader would take for std's own.
const STD: &[&str] = &[
    "Any",
    "Arc",
    "Args",
    "AsMut",
    "AsRef",
    "Barrier",
    "Borrow",
    "Bound",
    "Box",
    "BTreeMap",
    "BTreeSet",
    "BufReader",
    "BufWriter",
    "Builder",
    "Bytes",
    "CStr",
    "CString",
    "Cell",
    "Chain",
    "Chars",
    "Child",
    "ChildStderr",
    "ChildStdin",
    "ChildStdout",
    "Clone",
    "Command",
    "Component",
    "Components",
    "Condvar",
    "Context",
    "Copy",
    "Cow",
    "Cursor",
    "Debug",
    "Default",
    "Deref",
    "DirBuilder",
    "DirEntry",
    "Display",
    "Drain",
    "Drop",
    "Duration",
    "Empty",
    "Entry",
    "Enumerate",
    "ErrorKind",
    "ExitCode",
    "ExitStatus",
    "Extend",
    "File",
    "FileType",
    "Filter",
    "Fn",
    "FnMut",
    "FnOnce",
    "Formatter",
    "From",
    "FromIterator",
    "FromStr",
    "Future",
    "Hash",
    "HashMap",
    "HashSet",
    "Hasher",
    "Incoming",
    "Infallible",
    "Instant",
    "Into",
    "IntoIter",
    "IntoIterator",
    "IpAddr",
    "Iter",
    "Iterator",
    "JoinHandle",
    "Layout",
    "LazyCell",
    "LazyLock",
    "Lines",
    "LocalKey",
    "Location",
    "Map",
    "Metadata",
    "Mutex",
    "MutexGuard",
    "NonNull",
    "NonZero",
    "Once",
    "OnceCell",
    "OnceLock",
    "OpenOptions",
    "Option",
    "Ord",
    "Ordering",
    "OsStr",
    "OsString",
    "Output",
    "OwnedFd",
    "PartialEq",
    "PartialOrd",
    "Path",
    "PathBuf",
    "Peekable",
    "Permissions",
    "PhantomData",
    "Pin",
    "Poll",
    "Prefix",
    "Range",
    "Rc",
    "Read",
    "ReadDir",
    "Receiver",
    "Ref",
    "RefCell",
    "RefMut",
    "Repeat",
    "Rev",
    "RwLock",
    "Scope",
    "Seek",
    "SeekFrom",
    "Send",
    "Sender",
    "Sink",
    "Sized",
    "Skip",
    "SocketAddr",
    "Split",
    "Stdin",
    "Stdio",
    "Stdout",
    "Step",
    "String",
    "Sum",
    "Sync",
    "SystemTime",
    "Take",
    "TcpListener",
    "TcpStream",
    "Thread",
    "ToOwned",
    "ToString",
    "TryFrom",
    "TryInto",
    "TypeId",
    "UnixListener",
    "UnixStream",
    "Vec",
    "VecDeque",
    "Wake",
    "Waker",
    "Weak",
    "Windows",
    "Wrapping",
    "Write",
    "Zip",
];

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Definition {
    krate: String,
    name: String,
    /// `pub`: what other crates may see.
    is_exported: bool,
    place: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        match entry.is_dir() {
            true => sources(&entry, found),
            false if entry.extension().is_some_and(|ext| ext == "rs") => found.push(entry),
            false => {}
        }
    }
}

/// The types that a file defines, except in its unit tests, which end the file and have private types. rustfmt puts
/// each definition on a new line. An indented `type` belongs to a trait or to its implementation.
fn definitions(krate: &str, place: &str, text: &str) -> Vec<Definition> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().enumerate();
    lines.filter_map(|(number, line)| definition(krate, &format!("{place}:{}", number + 1), line)).collect()
}

fn definition(krate: &str, place: &str, line: &str) -> Option<Definition> {
    let (visibility, rest) = match line.trim_start().strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => ("crate", rest.split_once(") ")?.1),
        Some(rest) => ("pub", rest.strip_prefix(' ')?),
        None => ("", line.trim_start()),
    };
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (keyword, rest) = rest.split_once(' ')?;
    let is_type = match keyword {
        "struct" | "enum" | "union" | "trait" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let name: String = rest.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect();
    let is_name = name.starts_with(|first: char| first.is_ascii_uppercase());
    (is_type && is_name).then(|| Definition {
        krate: krate.to_owned(),
        name,
        is_exported: visibility == "pub",
        place: place.to_owned(),
    })
}

fn workspace() -> Vec<Definition> {
    let mut all = Vec::new();
    for krate in fs::read_dir(root().join("crates")).expect("the crates") {
        let krate = krate.expect("a crate").path();
        let name = krate.file_name().expect("a name").to_string_lossy().into_owned();
        let mut files = Vec::new();
        sources(&krate.join("src"), &mut files);
        files.retain(|file| !file.ends_with("tests.rs") && !file.iter().any(|part| part == "tests"));
        for file in files {
            let text = fs::read_to_string(&file).expect("a source");
            let place = file.strip_prefix(&krate).expect("beneath the crate").display().to_string();
            all.extend(definitions(&name, &format!("crates/{name}/{place}"), &text));
        }
    }
    all
}

/// The problems with the names of these types, one line for each.
fn complaints(all: &[Definition]) -> Vec<String> {
    let mut within: BTreeMap<(&str, &str), Vec<&Definition>> = BTreeMap::new();
    let mut exported: BTreeMap<&str, Vec<&Definition>> = BTreeMap::new();
    let mut complaints = Vec::new();
    for definition in all {
        within.entry((&definition.krate, &definition.name)).or_default().push(definition);
        if definition.is_exported && !ONE_FOR_EACH_CRATE.contains(&definition.name.as_str()) {
            exported.entry(&definition.name).or_default().push(definition);
        }
        if STD.contains(&definition.name.as_str()) {
            complaints.push(format!("{} is a name of std's: {}", definition.name, definition.place));
        }
    }
    let twice = within.into_values().chain(exported.into_values()).filter(|types| types.len() > 1);
    complaints.extend(twice.map(|types| {
        let places: Vec<&str> = types.iter().map(|definition| definition.place.as_str()).collect();
        format!("{} is the name of {} types: {}", types[0].name, types.len(), places.join(", "))
    }));
    complaints.sort();
    complaints.dedup();
    complaints
}

#[test]
fn every_type_has_a_name_of_its_own() {
    let all = workspace();
    assert!(all.len() > 900, "only {} types were found", all.len());
    let complaints = complaints(&all);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn fewer_than_one_in_twenty_types_share_their_name_with_another_one() {
    let all = workspace();
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let counted = all.iter().filter(|definition| !ONE_FOR_EACH_CRATE.contains(&definition.name.as_str()));
    counted.for_each(|definition| *names.entry(&definition.name).or_default() += 1);
    let shared: usize = names.values().filter(|count| **count > 1).sum();
    println!("{shared} of {} types share their name", all.len());
    assert!(shared * 20 < all.len(), "{shared} of {} types share their name", all.len());
}

#[test]
fn a_duplicate_is_refused_and_says_where() {
    let types = |krate, place: &str, text| definitions(krate, place, text);
    let one = types("one", "one.rs", "pub struct Lease {\n    a: u8,\n}\n");
    let own = types("two", "two.rs", "struct Lease;\nimpl X {\n    type Lease = u8;\n}\n");
    assert_eq!(complaints(&[one.clone(), own.clone()].concat()), Vec::<String>::new());
    let exported = types("three", "three.rs", "#[derive(Debug)]\npub enum Lease {}\n");
    assert_eq!(
        complaints(&[one.clone(), own.clone(), exported].concat()),
        ["Lease is the name of 2 types: one.rs:1, three.rs:2"]
    );
    let again = types("two", "again.rs", "mod inner {\n    pub(crate) trait Lease<T> {}\n}\n");
    assert_eq!(
        complaints(&[one, own, again].concat()),
        ["Lease is the name of 2 types: two.rs:1, again.rs:2"]
    );
    let shadow = types("one", "path.rs", "pub(super) type Path = u8;\npub type Result<T> = u8;\n");
    assert_eq!(complaints(&shadow), ["Path is a name of std's: path.rs:1"]);
}

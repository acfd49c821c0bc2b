//! A pack written by the first version stays readable for ever. The file is never written anew; a new version
//! of the format gets a file of its own beside it.

use std::io::Read;
use std::os::unix::fs::MetadataExt;

use ash_snapshot::{Entry, Target, TreeId};

use crate::support::{Bench, open, rel};

const TREE: &str = "237a7f542aad161261c5ec82ce23d8bee217e730d9f383cd8aa8bd2978d7ebb1";
const PACK: &[u8] = include_bytes!("../golden/version-0.pack");

#[test]
fn the_first_pack_still_restores() {
    let bench = Bench::new();
    let tree = TreeId::parse(TREE).expect("an id");
    std::fs::write(bench.dir.path().join(format!("repo/{TREE}.pack")), PACK).expect("written");
    bench.repo.verify(&tree).expect("sound");
    let (workspace, home) = (bench.empty("w"), bench.empty("h"));
    let (w, h) = (open(&workspace), open(&home));
    let targets = [
        Target { root: "workspace", folder: &w, owner: None },
        Target { root: "home", folder: &h, owner: None },
    ];
    let restored = bench.repo.restore(&tree, &targets).expect("restored");
    assert_eq!((restored.files, restored.bytes), (3, 12 + 10_004 + 2));

    let is = |path: &str| std::fs::symlink_metadata(workspace.join(path)).expect("there");
    assert_eq!(std::fs::read(workspace.join("src/main.rs")).expect("read"), b"fn main() {}");
    assert_eq!((is("src/main.rs").mode() & 0o7777, is("src/main.rs").mtime()), (0o640, 1_700_000_000));
    assert_eq!(is("src/main.rs").mtime_nsec(), 123_456_789);
    assert_eq!(is("src/main.rs").ino(), is("src/same.rs").ino());
    assert_eq!((is("empty").mode() & 0o7777, is("empty").mtime()), (0o1755, 1_600_000_000));
    assert_eq!(std::fs::read_link(workspace.join("link")).expect("a link").to_str(), Some("src/main.rs"));
    let sparse = std::fs::read(workspace.join("sparse")).expect("read");
    assert_eq!(sparse, [&[0; 10_000][..], b"tail"].concat());
    let Some(Entry::File { mut content, .. }) = bench.repo.read(&tree, "home", &rel(".state")).expect("read")
    else {
        panic!("a file")
    };
    let mut state = String::new();
    content.read_to_string(&mut state).expect("text");
    assert_eq!(state, "{}");
}

/// The same tree is still written as the same bytes, or the version byte has to change.
#[test]
fn the_first_tree_is_still_written_alike() {
    let bench = Bench::new();
    let (workspace, home) = (bench.empty("w"), bench.empty("h"));
    build(&workspace, &home);
    let (w, h) = (open(&workspace), open(&home));
    let roots = [
        ash_snapshot::Root { name: "workspace", folder: &w },
        ash_snapshot::Root { name: "home", folder: &h },
    ];
    let tree = bench.repo.take(&roots, &|_, _| false).expect("taken").tree;
    let pack = std::fs::read(bench.dir.path().join(format!("repo/{tree}.pack"))).expect("read");
    assert_eq!((tree.as_str(), pack.as_slice()), (TREE, PACK));
}

fn build(workspace: &std::path::Path, home: &std::path::Path) {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    let at = |path: &str| workspace.join(path);
    std::fs::create_dir(at("src")).expect("made");
    std::fs::create_dir(at("empty")).expect("made");
    std::fs::write(at("src/main.rs"), "fn main() {}").expect("written");
    std::fs::hard_link(at("src/main.rs"), at("src/same.rs")).expect("linked");
    std::os::unix::fs::symlink("src/main.rs", at("link")).expect("linked");
    let sparse = std::fs::File::create(at("sparse")).expect("created");
    sparse.write_all_at(b"tail", 10_000).expect("written");
    std::fs::write(home.join(".state"), "{}").expect("written");
    let modes =
        [(at("src"), 0o755), (at("src/main.rs"), 0o640), (at("empty"), 0o1755), (at("sparse"), 0o644)];
    for (path, mode) in modes.into_iter().chain([(home.join(".state"), 0o600)]) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    }
    let file = (1_700_000_000, 123_456_789);
    let old = (1_600_000_000, 0);
    for (path, (seconds, nanos)) in [
        (at("src/main.rs"), file),
        (at("link"), file),
        (at("sparse"), file),
        (home.join(".state"), file),
        (at("src"), old),
        (at("empty"), old),
        (workspace.to_owned(), old),
        (home.to_owned(), old),
    ] {
        let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanos };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).expect("set");
    }
}

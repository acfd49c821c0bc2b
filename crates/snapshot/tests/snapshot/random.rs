//! Random trees come back unchanged.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof};

use crate::support::Bench;

#[derive(Debug, Clone)]
enum Node {
    Dir(u32, Vec<(Vec<u8>, Node)>),
    File {
        mode: u32,
        size: u64,
        pieces: Vec<(u64, Vec<u8>)>,
    },
    Link(Vec<u8>),
    /// Links to any file made before; creates a file if there is none.
    HardLink(usize),
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'.'), 1u8..=255], 1..12)
        .prop_filter("a name", |name| !name.contains(&b'/') && name != b"." && name != b"..")
}

fn node() -> impl Strategy<Value = Node> {
    let piece = (0u64..3 << 20, proptest::collection::vec(any::<u8>(), 0..9000));
    let file = (0u32..0o1000, 0u64..4 << 20, proptest::collection::vec(piece, 0..3))
        .prop_map(|(mode, size, pieces)| Node::File { mode, size, pieces });
    let link = proptest::collection::vec(1u8..=255, 1..300).prop_map(Node::Link);
    let leaf = prop_oneof![3 => file, 1 => link, 1 => any::<usize>().prop_map(Node::HardLink)];
    leaf.prop_recursive(4, 24, 6, |inner| {
        let entries = proptest::collection::vec((name(), inner), 0..6);
        (0u32..0o1000, entries).prop_map(|(mode, entries)| Node::Dir(mode, entries))
    })
}

#[derive(Default)]
struct Built {
    files: Vec<PathBuf>,
    /// An ordinary user cannot enter all of them, so they get their modes at the end, the innermost first.
    dirs: Vec<(PathBuf, u32)>,
}

fn build(at: &Path, node: &Node) {
    let mut built = Built::default();
    put(at, node, &mut built);
    for (dir, mode) in built.dirs {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).expect("set");
    }
}

fn put(at: &Path, node: &Node, built: &mut Built) {
    match node {
        Node::Dir(mode, entries) => {
            std::fs::create_dir(at).expect("made");
            for (name, node) in entries {
                let at = at.join(OsStr::from_bytes(name));
                if std::fs::symlink_metadata(&at).is_err() {
                    put(&at, node, built);
                }
            }
            built.dirs.push((at.to_owned(), *mode));
        }
        Node::File { mode, size, pieces } => {
            let file = std::fs::File::create(at).expect("created");
            for (offset, bytes) in pieces {
                file.write_all_at(bytes, *offset).expect("written");
            }
            file.set_len(*size).expect("sized");
            file.set_permissions(std::fs::Permissions::from_mode(*mode)).expect("set");
            built.files.push(at.to_owned());
        }
        Node::Link(target) => std::os::unix::fs::symlink(OsStr::from_bytes(target), at).expect("linked"),
        Node::HardLink(which) => match built.files.len() {
            0 => drop(std::fs::File::create(at).expect("created")),
            n => std::fs::hard_link(&built.files[which % n], at).expect("linked"),
        },
    }
}

proptest::proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_comes_back_as_it_was(node in node()) {
        let bench = Bench::new();
        build(&bench.at("top"), &node);
        let taken = bench.take();
        assert_eq!((&taken.skipped, &taken.unsettled), (&vec![], &vec![]));
        assert_eq!(bench.compare(&taken.tree, &bench.workspace()), vec![]);
        let to = bench.empty("restored");
        bench.restore(&taken.tree, &to, None);
        assert_eq!(bench.compare(&taken.tree, &to), vec![]);
        let again = crate::support::take(&bench.repo, &to).tree;
        assert!(again.same_files(&taken.tree), "the same files have the same name");
    }
}

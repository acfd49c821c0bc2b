//! A second writer of the format, based only on the descriptions in `pack.rs` and `object.rs`. It proves that they
//! are correct, and writes what the real writer never would.

use std::path::Path;

use ash_snapshot::TreeId;

pub(crate) fn number(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

pub(crate) fn bytes(bytes: &[u8]) -> Vec<u8> {
    [&number(bytes.len() as u64), bytes].concat()
}

/// An object and its place: in this pack, or in the pack with this name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) id: [u8; 32],
    pub(crate) pack: Option<[u8; 16]>,
    pub(crate) block: u64,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// An entry of a directory or a piece of a list: its hashed part, and the object it refers to.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) logical: Vec<u8>,
    pub(crate) at: Option<At>,
}

pub(crate) struct Block {
    pub(crate) stored: Vec<u8>,
    pub(crate) raw: u64,
    pub(crate) how: u8,
}

/// A pack that is being written.
#[derive(Default)]
pub(crate) struct Forger {
    pub(crate) blocks: Vec<Block>,
}

const DIRECTORY: &str = "ash snapshot 1 directory";
const LIST: &str = "ash snapshot 1 list";

impl Forger {
    /// Puts each object into a block of its own.
    fn put(&mut self, raw: &[u8], id: [u8; 32]) -> At {
        self.blocks.push(Block { stored: raw.to_vec(), raw: raw.len() as u64, how: 0 });
        At { id, pack: None, block: self.blocks.len() as u64 - 1, start: 0, length: raw.len() as u64 }
    }

    pub(crate) fn chunk(&mut self, content: &[u8]) -> At {
        self.put(content, *blake3::hash(content).as_bytes())
    }

    fn object(&mut self, context: &str, logical: &[u8], items: &[Item]) -> At {
        let id = *blake3::Hasher::new_derive_key(context).update(logical).finalize().as_bytes();
        let packs: Vec<[u8; 16]> = items.iter().filter_map(|item| item.at.and_then(|at| at.pack)).collect();
        let mut stored = bytes(logical);
        stored.extend(number(packs.len() as u64));
        packs.iter().for_each(|pack| stored.extend(pack));
        let mut foreign = 0;
        for at in items.iter().filter_map(|item| item.at) {
            foreign += u64::from(at.pack.is_some());
            let pack = if at.pack.is_some() { foreign } else { 0 };
            [pack, at.block, at.start, at.length].into_iter().for_each(|n| stored.extend(number(n)));
        }
        self.put(&stored, id)
    }

    pub(crate) fn directory(&mut self, entries: &[Item]) -> At {
        let logical: Vec<u8> = entries.iter().flat_map(|entry| entry.logical.clone()).collect();
        self.object(DIRECTORY, &logical, entries)
    }

    pub(crate) fn list(&mut self, level: u8, pieces: &[Item]) -> At {
        let pieces_of = pieces.iter().flat_map(|piece| piece.logical.clone());
        let logical: Vec<u8> = std::iter::once(level).chain(pieces_of).collect();
        self.object(LIST, &logical, pieces)
    }

    /// Stores these bytes as a directory, with the id that results.
    pub(crate) fn raw_directory(&mut self, logical: &[u8], places: &[u8]) -> At {
        let id = *blake3::Hasher::new_derive_key(DIRECTORY).update(logical).finalize().as_bytes();
        self.put(&[&bytes(logical), places].concat(), id)
    }

    /// Writes a whole repository whose workspace has these entries.
    pub(crate) fn store_workspace(mut self, entries: &[Item], repo: &Path) -> TreeId {
        let workspace = self.directory(entries);
        self.store_root(workspace, repo)
    }

    pub(crate) fn store_root(mut self, workspace: At, repo: &Path) -> TreeId {
        let root = self.directory(&[dir(b"workspace", 0, workspace)]);
        self.store(root, repo)
    }

    pub(crate) fn store(self, root: At, repo: &Path) -> TreeId {
        let mut file = b"ASHPACK\x01".to_vec();
        let (mut table, mut name) = (number(self.blocks.len() as u64), Vec::new());
        for block in &self.blocks {
            let hash = blake3::hash(&block.stored);
            let check = &hash.as_bytes()[..16];
            table.extend(number(file.len() as u64));
            table.extend(number(block.stored.len() as u64));
            table.extend(number(block.raw));
            table.push(block.how);
            table.extend(check);
            name.extend((block.raw as u32).to_le_bytes());
            name.extend(check);
            file.extend(&block.stored);
        }
        let mut rest = vec![1];
        rest.extend(root.id);
        rest.extend(root.pack.unwrap_or_default());
        [root.block, root.start, root.length].into_iter().for_each(|n| rest.extend(number(n)));
        rest.extend(number(0));
        table.extend(&rest);
        name.extend(&rest);
        let offset = file.len() as u64;
        file.extend(&table);
        file.push(0);
        file.extend(offset.to_le_bytes());
        file.extend((table.len() as u32).to_le_bytes());
        file.extend(blake3::hash(&table).as_bytes());
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let pack = hex(&blake3::hash(&name).as_bytes()[..16]);
        std::fs::write(repo.join(format!("{pack}.pack")), file).expect("written");
        TreeId::parse(&format!("{}{pack}", hex(&root.id))).expect("an id")
    }
}

/// The pack in which a tree begins.
pub(crate) fn pack_of(tree: &TreeId) -> [u8; 16] {
    let hex = &tree.as_str()[64..];
    std::array::from_fn(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).expect("hexadecimal"))
}

/// `kind name mtime [mode] …`, with a time of 1,000 seconds (2,000 as a signed number).
pub(crate) fn entry(kind: u8, name: &[u8], mode: Option<u64>, rest: &[u8], at: Option<At>) -> Item {
    let mut logical = vec![kind, name.len() as u8];
    logical.extend(name);
    logical.extend(number(2000));
    logical.extend(number(0));
    mode.iter().for_each(|mode| logical.extend(number(*mode)));
    logical.extend(rest);
    Item { logical, at }
}

pub(crate) fn dir(name: &[u8], mode: u64, at: At) -> Item {
    entry(1, name, Some(mode), &at.id, Some(at))
}

pub(crate) fn empty(name: &[u8]) -> Item {
    entry(2, name, Some(0o644), &[], None)
}

pub(crate) fn whole(name: &[u8], at: At) -> Item {
    entry(3, name, Some(0o644), &[&number(at.length), &at.id[..]].concat(), Some(at))
}

pub(crate) fn listed(name: &[u8], size: u64, at: At) -> Item {
    entry(4, name, Some(0o644), &[&number(size), &at.id[..]].concat(), Some(at))
}

pub(crate) fn link(name: &[u8], target: &[u8]) -> Item {
    entry(5, name, None, &bytes(target), None)
}

/// Adds a field that a flag in the kind announces: a group (16) or attributes (32).
pub(crate) fn with(mut item: Item, kind: u8, rest: &[u8]) -> Item {
    item.logical[0] |= kind;
    item.logical.extend(rest);
    item
}

pub(crate) fn zeros(length: u64) -> Item {
    Item { logical: [&[0][..], &number(length)].concat(), at: None }
}

pub(crate) fn piece(length: u64, at: At) -> Item {
    // The xxh3 hash only helps writers; readers ignore it.
    Item { logical: [&[1][..], &number(length), &at.id, &[0; 8]].concat(), at: Some(at) }
}

pub(crate) fn sublist(length: u64, at: At) -> Item {
    Item { logical: [&[2][..], &number(length), &at.id].concat(), at: Some(at) }
}

/// An unsealed pack, decoded by the description: unpacked blocks (`None`: dropped), and the rest of the table, which
/// is the root and the notes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) blocks: Vec<Option<Vec<u8>>>,
    pub(crate) rest: Vec<u8>,
}

pub(crate) fn unpack(pack: &[u8]) -> Unpacked {
    let (body, footer) = pack.split_at(pack.len() - 45);
    let (magic, version) = body[..8].split_at(7);
    assert_eq!((magic, version, footer[0]), (&b"ASHPACK"[..], &[1][..], 0));
    let offset = u64::from_le_bytes(footer[1..9].try_into().expect("8 bytes")) as usize;
    let length = u32::from_le_bytes(footer[9..13].try_into().expect("4 bytes")) as usize;
    let table = &body[offset..];
    assert_eq!(
        (table.len(), blake3::hash(table).as_bytes()),
        (length, footer[13..].try_into().expect("32 bytes"))
    );
    let mut rest = table;
    let count = read_number(&mut rest);
    let block = |_| {
        let (offset, stored, raw) = (read_number(&mut rest), read_number(&mut rest), read_number(&mut rest));
        let (how, behind) = rest.split_first().expect("how");
        let (check, behind) = behind.split_at(16);
        rest = behind;
        let stored = &body[offset as usize..][..stored as usize];
        let unpacked = match how {
            0 => stored.to_vec(),
            1 => zstd::bulk::decompress(stored, raw as usize).expect("unpacked"),
            2 => return None,
            other => panic!("packed in the unknown way {other}"),
        };
        assert_eq!((&blake3::hash(stored).as_bytes()[..16], unpacked.len() as u64), (check, raw));
        Some(unpacked)
    };
    let blocks = (0..count).map(block).collect();
    Unpacked { blocks, rest: rest.to_vec() }
}

fn read_number(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("a number");
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

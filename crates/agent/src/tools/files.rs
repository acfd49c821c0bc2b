//! File tools: read, write, edit, list. They open only regular files, since reading a pipe might never end.

use super::MAX_TEXT_BYTES;
use rustix::fs::OFlags;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const MAX_LISTED_NAMES: usize = 10_000;
/// Text files have no zero byte in this prefix.
const BINARY_CHECK_BYTES: usize = 8 << 10;

pub(super) fn read(path: &Path) -> Result<String, String> {
    let (bytes, length) = beginning(path).map_err(because("read", path))?;
    if is_binary(&bytes) {
        return Ok(format!("[binary file of {length} bytes]"));
    }
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if length > bytes.len() as u64 {
        text += &format!("\n[cut: the first {} of {length} bytes]", bytes.len());
    }
    Ok(text)
}

pub(super) fn write(path: &Path, text: &str) -> Result<String, String> {
    replace(path, text.as_bytes()).map_err(because("write", path))?;
    Ok(format!("Wrote {} bytes to {}.", text.len(), path.display()))
}

/// Works on bytes, so that the rest of the file keeps bytes that are not UTF-8.
pub(super) fn edit(path: &Path, old: &str, new: &str) -> Result<String, String> {
    let (mut bytes, length) = beginning(path).map_err(because("edit", path))?;
    if length > bytes.len() as u64 {
        return Err(format!("cannot edit {}: it has more than {MAX_TEXT_BYTES} bytes", path.display()));
    }
    let at = only_place(&bytes, old.as_bytes()).map_err(because("edit", path))?;
    bytes.splice(at..at + old.len(), new.bytes());
    replace(path, &bytes).map_err(because("edit", path))?;
    Ok(format!("Edited {}.", path.display()))
}

pub(super) fn list(path: &Path) -> Result<String, String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(because("list", path))? {
        let entry = entry.map_err(because("list", path))?;
        let folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        names.push(entry.file_name().to_string_lossy().into_owned() + if folder { "/" } else { "" });
    }
    names.sort();
    if names.len() > MAX_LISTED_NAMES {
        let more = names.len() - MAX_LISTED_NAMES;
        names.truncate(MAX_LISTED_NAMES);
        names.push(format!("[and {more} more]"));
    }
    Ok(if names.is_empty() { "[empty]".into() } else { names.join("\n") })
}

fn because<E: Display>(what: &str, path: &Path) -> impl FnOnce(E) -> String {
    move |error| format!("cannot {what} {}: {error}", path.display())
}

/// The bytes that fit, and the length of the whole file.
pub(super) fn beginning(path: &Path) -> io::Result<(Vec<u8>, u64)> {
    let file = open(OpenOptions::new().read(true), path)?;
    let mut bytes = Vec::new();
    (&file).take(MAX_TEXT_BYTES as u64).read_to_end(&mut bytes)?;
    let length = file.metadata()?.len().max(bytes.len() as u64);
    Ok((bytes, length))
}

pub(super) fn is_binary(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(BINARY_CHECK_BYTES)].contains(&0)
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let mut file = open(OpenOptions::new().write(true).create(true), path)?;
    file.set_len(0)?;
    file.write_all(bytes)
}

fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Non-blocking, because opening a pipe would otherwise wait for its other end before we can check the file type.
    let file = options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

fn only_place(bytes: &[u8], old: &[u8]) -> Result<usize, &'static str> {
    if old.is_empty() {
        return Err("the text to replace is empty");
    }
    let mut places = bytes.windows(old.len()).enumerate().filter(|(_, window)| *window == old);
    let (at, _) = places.next().ok_or("the text to replace does not occur")?;
    match places.next() {
        Some(_) => Err("the text to replace occurs more than once"),
        None => Ok(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    #[test]
    fn an_edit_needs_exactly_one_place_and_keeps_the_rest_byte_for_byte() {
        let folder = tempdir().expect("folder");
        let path = folder.path().join("f");
        fs::write(&path, b"a\xffb aa").expect("write");
        assert!(edit(&path, "x", "y").expect_err("none").contains("does not occur"));
        assert!(edit(&path, "a", "y").expect_err("many").contains("more than once"));
        assert!(edit(&path, "", "y").is_err());
        edit(&path, "b", "ccc").expect("one");
        assert_eq!(fs::read(&path).expect("read"), b"a\xffccc aa");
    }

    #[test]
    fn overlapping_places_are_more_than_one() {
        assert!(only_place(b"aaa", b"aa").is_err());
    }

    #[test]
    fn a_pipe_a_folder_and_a_device_are_no_files_to_wait_for() {
        let folder = tempdir().expect("folder");
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("pipe");
        for path in [&pipe, folder.path(), Path::new("/dev/zero")] {
            assert!(read(path).is_err(), "{path:?}");
            assert!(write(path, "x").is_err(), "{path:?}");
            assert!(edit(path, "x", "y").is_err(), "{path:?}");
        }
    }

    #[test]
    fn strange_contents_are_shown_within_bounds() {
        let folder = tempdir().expect("folder");
        let path = folder.path().join("f");
        fs::write(&path, b"\x00\x01").expect("write");
        assert_eq!(read(&path), Ok("[binary file of 2 bytes]".into()));
        fs::write(&path, b"a\xff").expect("write");
        assert_eq!(read(&path), Ok("a\u{fffd}".into()));
        fs::write(&path, "x".repeat(MAX_TEXT_BYTES + 1)).expect("write");
        assert!(read(&path).expect("read").ends_with("x\n[cut: the first 1048576 of 1048577 bytes]"));
        assert!(edit(&path, "x", "y").expect_err("too long").contains("more than"));
    }

    #[test]
    fn writing_makes_the_folders_and_leaves_nothing_of_what_was_there() {
        let folder = tempdir().expect("folder");
        let path = folder.path().join("a/b/f");
        write(&path, "long text").expect("write");
        write(&path, "short").expect("write");
        assert_eq!(fs::read_to_string(&path).expect("read"), "short");
        assert_eq!(list(&folder.path().join("a")), Ok("b/".into()));
        assert!(list(&path).is_err());
    }
}

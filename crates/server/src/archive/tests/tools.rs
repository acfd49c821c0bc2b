//! Archives from other tools are accepted. For refused archives, the tests show what other tools would do with them.

use super::*;
use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::PathBuf,
    process::{Command, Stdio},
};

/// Unpacks an archive with a tool that does no checks, into a folder with a sibling that an attack could overwrite.
fn trusting(archive: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let inside = dir.path().join("inside");
    fs::create_dir(&inside).expect("made");
    fs::write(dir.path().join("outside"), "mine").expect("written");
    let mut tar = Command::new("tar")
        .args(["-xpPf", "-", "-C"])
        .arg(&inside)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("tar");
    tar.stdin.take().expect("a pipe").write_all(archive).expect("written");
    tar.wait().expect("over");
    (dir, inside)
}

#[test]
fn each_of_these_does_harm_where_archives_are_trusted() {
    let outside = |dir: &Path| fs::read_to_string(dir.join("outside")).expect("read");
    let climbing = TestTarBuilder::default().file("../outside", "pwned").end();
    assert_eq!(outside(trusting(&climbing).0.path()), "pwned");
    let through = TestTarBuilder::default().link("l", "..").file("l/outside", "pwned").end();
    assert_eq!(outside(trusting(&through).0.path()), "pwned");
    let pax = TestTarBuilder::default().pax(&[("path", b"../outside")]).file("harmless", "pwned").end();
    assert_eq!(outside(trusting(&pax).0.path()), "pwned");
    let linked = TestTarBuilder::default().hard("l", "../outside").file("x", "").end();
    let (_dir, inside) = trusting(&linked);
    assert_eq!(fs::read_to_string(inside.join("l")).expect("read"), "mine");
    let link = TestTarBuilder::default().link("l", "../outside").end();
    assert_eq!(fs::read_to_string(trusting(&link).1.join("l")).expect("read"), "mine");
    let fifo = TestTarBuilder::default().entry(b'6', "f", "", "").end();
    assert!(!fs::metadata(trusting(&fifo).1.join("f")).expect("made").is_file());
    let twice = [
        TestTarBuilder::default().file("a", "x").0,
        TestTarBuilder::default().file("/dev/null/x", "x").end(),
    ]
    .concat();
    let (_dir, inside) = trusting(&twice);
    assert!(inside.join("a").exists(), "a half is left");
    let setuid = TestTarBuilder::default()
        .patched(b'0', b"s", b"", b"x", |header| header[100..107].copy_from_slice(b"0006755"));
    let setuid = setuid.end();
    let mode = |path: PathBuf| fs::metadata(path).expect("made").permissions().mode() & 0o7777;
    assert_eq!(mode(trusting(&setuid).1.join("s")), 0o6755);

    for archive in [climbing, through, pax, linked, link, fifo, twice] {
        assert_eq!(
            check_archive(&archive, &SMALL).map_err(|refusal| refusal.code()),
            Err("archive_bad_entry")
        );
    }
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(unpack_into(dir.path(), &setuid, &SMALL), Ok(1));
    assert_eq!(mode(dir.path().join("s")), 0o755);
}

#[test]
fn bits_owners_and_times_are_ours() {
    let mut archive = TestTarBuilder::default();
    for (name, field, value) in [
        ("closed", 100, &b"0000000"[..]),
        ("sticky", 100, b"0001777"),
        ("owner", 108, &[0xff; 16]),
        ("before time", 136, &[0xff; 12]),
        ("after time", 136, b"\x80\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("no time", 136, b"yesterday..."),
    ] {
        let patch = |header: &mut [u8]| header[field..field + value.len()].copy_from_slice(value);
        archive = archive.patched(b'0', name.as_bytes(), b"", b"x", patch);
    }
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(unpack_into(dir.path(), &archive.end(), &SMALL), Ok(6));
    let me = fs::metadata(dir.path()).expect("there");
    for (name, mode) in [("closed", 0o600), ("sticky", 0o777), ("owner", 0o644), ("before time", 0o644)] {
        use std::os::unix::fs::MetadataExt;
        let file = fs::metadata(dir.path().join(name)).expect("written");
        assert_eq!((file.mode() & 0o7777, file.uid()), (mode, me.uid()), "{name}");
        assert!(file.modified().expect("a time").elapsed().expect("before now").as_secs() < 600, "{name}");
    }
}

#[test]
fn archives_that_tar_writes_are_accepted() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = dir.path().join("from");
    let long = "long-".repeat(30);
    fs::create_dir_all(from.join("deep").join(&long)).expect("made");
    fs::create_dir(from.join("empty")).expect("made");
    fs::write(from.join("deep").join(&long).join("file"), b"x".repeat(10_000)).expect("written");
    fs::write(from.join("ü name"), "text").expect("written");
    fs::write(from.join(std::ffi::OsStr::from_bytes(b"\xff\n\\x2d")), "bytes").expect("written");
    fs::write(from.join("none"), "").expect("written");
    fs::set_permissions(from.join("none"), fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::hard_link(from.join("ü name"), from.join("zwin")).expect("linked");
    std::os::unix::fs::symlink("../ü name", from.join("deep/link")).expect("linked");
    std::os::unix::fs::symlink(format!("deep/{long}/file"), from.join("far")).expect("linked");
    let from_arg = from.to_str().expect("text");
    let lines: [&[&str]; 6] = [
        &["--format=gnu", "-cf", "-", "-C", from_arg, "."],
        &["--format=pax", "-cf", "-", "-C", from_arg, "."],
        &["--format=posix", "--xattrs", "-czf", "-", "-C", from_arg, "."],
        &["--format=oldgnu", "-czf", "-", "-C", from_arg, "."],
        &["--format=gnu", "--blocking-factor=1", "-cf", "-", "-C", from_arg, "deep", "ü name", "zwin"],
        &["--format=pax", "-czf", "-", "-C", from_arg, "-T", "/dev/null"],
    ];
    for (number, args) in lines.iter().enumerate() {
        let packed = Command::new("tar").args(*args).output().expect("tar");
        assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
        let into = dir.path().join(format!("into-{number}"));
        fs::create_dir(&into).expect("made");
        let written = unpack_into(&into, &packed.stdout, &ArchiveLimits::UPLOAD).expect("taken");
        assert_eq!(written, [7, 7, 7, 7, 4, 0][number], "{args:?}");
        if number < 4 {
            let same = Command::new("diff").arg("-r").arg("--no-dereference").args([&from, &into]).output();
            let same = same.expect("diff");
            assert!(same.status.success(), "{args:?}: {}", String::from_utf8_lossy(&same.stdout));
            assert!(into.join("empty").is_dir());
        }
    }
}

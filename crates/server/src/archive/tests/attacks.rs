//! One attack per case, each with a harmless counterpart.

use super::*;

/// The expected code, the name of the attack, the archive with the attack, and the one without.
type ArchiveAttack = (&'static str, &'static str, Vec<u8>, Vec<u8>);

fn tar() -> TestTarBuilder {
    TestTarBuilder::default()
}

fn refused(attacks: Vec<ArchiveAttack>) {
    for (code, what, hostile, harmless) in attacks {
        let dir = tempfile::tempdir().expect("a directory");
        let inside = dir.path().join("inside");
        std::fs::create_dir(&inside).expect("made");
        let refusal = unpack_into(&inside, &hostile, &SMALL).expect_err(what);
        assert_eq!(refusal.code(), code, "{what}: {refusal}");
        assert!(refusal.to_string().len() < 600, "{what}: {refusal}");
        let left = |path: &Path| std::fs::read_dir(path).expect("read").count();
        assert_eq!((left(&inside), left(dir.path())), (0, 1), "{what} left something");
        if let Err(refusal) = unpack_into(&inside, &harmless, &SMALL) {
            panic!("without the harm of \"{what}\": {refusal}");
        }
    }
}

const BAD: &str = "archive_bad_entry";
const DAMAGED: &str = "archive_damaged";
const LARGE: &str = "archive_too_large";
const MANY: &str = "archive_too_many_entries";
const UNSUPPORTED: &str = "archive_unsupported";

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let named = |name: &str| tar().file("first", "x").file(name, "x").end();
    let by_pax = |name: &[u8]| tar().pax(&[("path", name)]).file("short", "x").end();
    let by_gnu = |name: &[u8]| tar().entry(b'L', "././@LongLink", "", name).file("short", "x").end();
    let by_prefix = |prefix: &[u8]| {
        let patch = |header: &mut [u8]| header[345..345 + prefix.len()].copy_from_slice(prefix);
        tar().patched(b'0', b"x", b"", b"x", patch).end()
    };
    let folders = |count: usize| [&b"d/".repeat(count - 1)[..], b"f"].concat();
    refused(vec![
        (BAD, "absolute", named("/x"), named("x")),
        (BAD, "absolute folder", tar().folder("/").end(), tar().folder("./").end()),
        (BAD, "parent", named("../x"), named("..x")),
        (BAD, "parent behind ./", named("./../x"), named("././x")),
        (BAD, "parent in the middle", named("a/../../x"), named("a/..a/x")),
        (BAD, "parent at the end", tar().folder("a/..").end(), tar().folder("a/b/").end()),
        (BAD, "empty component", named("a//b"), named("a/b")),
        (BAD, "dot component", named("a/./b"), named("a/.b")),
        (BAD, "empty", named(""), named("e")),
        (BAD, "the folder itself as a file", named("."), named(".f")),
        (BAD, "backslashes that climb", named("..\\x"), named("x\\x2d")),
        (BAD, "backslashes that climb in the middle", named("a\\..\\..\\x"), named("a\\b")),
        (BAD, "backslash first", named("\\x"), named("x\\")),
        (BAD, "parent in attributes", by_pax(b"../x"), by_pax(b"x")),
        (BAD, "NUL in attributes", by_pax(b"a\0b"), by_pax(b"a\xffb")),
        (BAD, "nothing in attributes", by_pax(b""), by_pax(b"e")),
        (BAD, "parent in a long name", by_gnu(b"../x\0"), by_gnu(b"x\0")),
        (BAD, "NUL in a long name", by_gnu(b"a\0b\0"), by_gnu(b"ab\0")),
        (BAD, "parent in a prefix", by_prefix(b".."), by_prefix(b"p")),
        (BAD, "absolute by a prefix", by_prefix(b"/p"), by_prefix(b"p/q")),
        (BAD, "a long component", by_gnu(&[b'x'; 256]), by_gnu(&[b'x'; 255])),
        (BAD, "a long path", by_gnu(&[[b'x'; 255]; 17].join(&b'/')), by_gnu(&[[b'x'; 255]; 15].join(&b'/'))),
        (BAD, "too deep", by_gnu(&folders(21)), by_gnu(&folders(20))),
    ]);
}

#[test]
fn links_that_lead_out_and_entries_that_go_through_links_are_refused() {
    let link = |name, target| tar().link(name, target).end();
    let long = |target: &[u8]| tar().entry(b'K', "././@LongLink", "", target).link("d/l", "t").end();
    refused(vec![
        (BAD, "absolute link", link("l", "/etc/passwd"), link("l", "etc/passwd")),
        (BAD, "link up", link("l", "../x"), link("d/l", "../x")),
        (BAD, "link up too far", link("d/l", "../../x"), link("d/e/l", "../../x")),
        (BAD, "link that climbs in the middle", link("d/l", "x/../../../y"), link("d/l", "../x/y")),
        (BAD, "link that climbs by another link", link("d/e/l", "up/../../x"), link("d/e/l", "../../x")),
        (BAD, "link to nothing", link("l", ""), link("l", "l")),
        (BAD, "long link up", long(b"../../x\0"), long(b"../x\0")),
        (BAD, "endless link", long(&[b'x'; 4096]), long(&[b'x'; 4095])),
        (
            BAD,
            "through a link",
            tar().folder("d").link("l", "d").file("l/f", "x").end(),
            tar().folder("d").link("l", "d").file("d/f", "x").end(),
        ),
        (
            BAD,
            "a folder in place of a link",
            tar().link("l", "d").folder("l").end(),
            tar().link("l", "d").file("l", "in its place").end(),
        ),
        (
            BAD,
            "a link in place of a folder",
            tar().file("d/f", "x").link("d", "e").end(),
            tar().file("d/f", "x").link("e", "d").end(),
        ),
        (
            BAD,
            "a folder in place of a file",
            tar().file("a", "x").file("a/b", "x").end(),
            tar().file("a/b", "x").end(),
        ),
        (
            BAD,
            "a file in place of a folder",
            tar().file("a/b", "x").file("a", "x").end(),
            tar().folder("a").folder("a/").end(),
        ),
        (
            BAD,
            "hard link out",
            tar().hard("h", "/etc/passwd").end(),
            tar().file("f", "x").hard("h", "f").end(),
        ),
        (BAD, "hard link up", tar().hard("h", "../f").end(), tar().file("f", "x").hard("h", "./f").end()),
        (
            BAD,
            "hard link to what comes later",
            tar().hard("h", "f").file("f", "x").end(),
            tar().file("f", "x").hard("h", "f").end(),
        ),
        (
            BAD,
            "hard link to a link",
            tar().link("l", "f").hard("h", "l").end(),
            tar().file("l", "f").hard("h", "l").end(),
        ),
        (
            BAD,
            "hard link through a link",
            tar().file("d/f", "x").link("l", "d").hard("h", "l/f").end(),
            tar().file("d/f", "x").hard("h", "d/f").end(),
        ),
        (
            BAD,
            "hard link to itself",
            tar().file("f", "x").hard("f", "f").end(),
            tar().file("f", "x").hard("g", "f").end(),
        ),
    ]);
}

#[test]
fn only_files_folders_and_links_are_accepted() {
    let of = |flag| tar().entry(flag, "x", "", "").end();
    let mut attacks = Vec::new();
    for (flag, what) in [
        (b'3', "character device"),
        (b'4', "block device"),
        (b'6', "FIFO"),
        (b'S', "sparse file"),
        (b'V', "name of a volume"),
        (b'M', "rest of a file"),
        (b'D', "list of a folder"),
        (b'N', "old long name"),
        (b'X', "other attributes"),
        (b's', "socket"),
        (0xff, "unheard of"),
    ] {
        attacks.push((BAD, what, of(flag), of(b'0')));
    }
    for key in ["GNU.sparse.major", "GNU.sparse.realsize", "GNU.sparse.map"] {
        let with = |key| tar().pax(&[(key, b"1")]).file("x", "x").end();
        attacks.push((BAD, "sparse by attributes", with(key), with("comment")));
    }
    let with_content = |flag| tar().entry(flag, "x", "y", "content").end();
    attacks.push((BAD, "folder with content", with_content(b'5'), with_content(b'7')));
    attacks.push((BAD, "link with content", with_content(b'2'), with_content(0)));
    attacks.push((
        BAD,
        "content in a folder by its name",
        tar().file("x/", "content").end(),
        tar().file("x/", "").end(),
    ));
    refused(attacks);
}

#[test]
fn extension_headers_are_small_unique_and_consistent() {
    let note = |length: usize| tar().pax(&[("comment", &b"x".repeat(length))]).file("f", "x").end();
    let claims = |size: &'static [u8]| {
        let patch = |header: &mut [u8]| header[124..124 + size.len()].copy_from_slice(size);
        tar().patched(b'x', b"pax", b"", b"", patch).file("f", "x").end()
    };
    let sized = |size: &[u8]| tar().pax(&[("size", size)]).file("f", "12345").end();
    let pax = || tar().pax(&[("comment", b"x")]);
    let name = |tar: TestTarBuilder| tar.entry(b'L', "long", "", "name");
    let notes = |count: usize| {
        (0..count).fold(tar(), |tar, _| tar.attributes(b'g', &[("comment", b"x")])).file("f", "x").end()
    };
    refused(vec![
        (LARGE, "long attributes", note(6_000), note(4_000)),
        (LARGE, "attributes of a gigabyte", claims(b"10000000000"), claims(b"00000000000")),
        (
            DAMAGED,
            "attributes twice",
            pax().pax(&[("comment", b"y")]).file("f", "x").end(),
            pax().file("f", "x").end(),
        ),
        (
            DAMAGED,
            "long name twice",
            name(name(tar())).file("f", "x").end(),
            name(tar()).file("f", "x").end(),
        ),
        (
            DAMAGED,
            "two names",
            name(tar()).pax(&[("path", b"p")]).file("f", "x").end(),
            name(pax()).file("f", "x").end(),
        ),
        (
            DAMAGED,
            "a name twice",
            tar().pax(&[("path", b"p"), ("path", b"q")]).file("f", "x").end(),
            tar().pax(&[("path", b"p")]).file("f", "x").end(),
        ),
        (DAMAGED, "a name and no entry", name(tar()).end(), name(tar()).file("f", "x").end()),
        (
            DAMAGED,
            "attributes and no entry",
            tar().file("f", "x").pax(&[("comment", b"x")]).end(),
            tar().file("f", "x").end(),
        ),
        (
            DAMAGED,
            "a name for all",
            tar().attributes(b'g', &[("path", b"p")]).file("f", "x").end(),
            tar().attributes(b'g', &[("comment", b"p")]).file("f", "x").end(),
        ),
        (MANY, "thousands of notes", notes(5_000), notes(50)),
        (BAD, "another size", sized(b"3"), sized(b"5")),
        (BAD, "a larger size", sized(b"1000"), sized(b"5")),
        (DAMAGED, "a negative size", sized(b"-5"), sized(b"5")),
    ]);
}

#[test]
fn headers_that_lie_are_refused() {
    let sized = |size: &'static [u8]| {
        let patch = |header: &mut [u8]| header[124..124 + size.len()].copy_from_slice(size);
        tar().patched(b'0', b"f", b"", b"12345", patch).end()
    };
    let right = || sized(b"00000000005\0");
    let mut unsigned = right();
    unsigned[0] = b'g';
    let mut no_checksum = right();
    no_checksum[148..156].fill(0);
    let mode = |mode: &'static [u8; 8]| {
        tar().patched(b'0', b"f", b"", b"x", |header| header[100..108].copy_from_slice(mode)).end()
    };
    refused(vec![
        (DAMAGED, "wrong checksum", unsigned, right()),
        (DAMAGED, "no checksum", no_checksum, right()),
        (BAD, "negative size", sized(&[0xff; 12]), sized(b"\x80\0\0\0\0\0\0\0\0\0\0\x05")),
        (BAD, "size beyond numbers", sized(b"\x80\x01\0\0\0\0\0\0\0\0\0\x05"), right()),
        (LARGE, "huge size", sized(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"), right()),
        (LARGE, "largest size", sized(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"), right()),
        (LARGE, "large octal size", sized(b"77777777777\0"), right()),
        (BAD, "size that is none", sized(b"0000000000x\0"), sized(b"         5 \0")),
        (BAD, "mode that is none", mode(b"-000644\0"), mode(b"0104755\0")),
    ]);
}

#[test]
fn too_much_is_refused() {
    let files = |count: usize, size: usize| {
        (0..count).fold(tar(), |tar, n| tar.file(format!("f{n}"), b"x".repeat(size)))
    };
    let copies = |count: usize| {
        (0..count).fold(tar().file("f", b"x".repeat(30_000)), |tar, n| tar.hard(&format!("h{n}"), "f")).end()
    };
    let folders = |count: usize| (0..count).fold(tar(), |tar, n| tar.folder(&format!("d{n}"))).end();
    let same = |count: usize| (0..count).fold(tar(), |tar, _| tar.folder("d")).end();
    let deep =
        |count: usize| (0..count).fold(tar(), |tar, n| tar.file(format!("{n}/b/c/d/e/f/g/h/i/j"), "")).end();
    let named = |count: usize| {
        let name = |n: usize| format!("{n:03}{}", "x".repeat(200));
        (0..count).fold(tar(), |tar, n| tar.pax(&[("path", name(n).as_bytes())]).file("f", "")).end()
    };
    refused(vec![
        (LARGE, "one that is too large", files(1, 50_001).end(), files(1, 50_000).end()),
        (LARGE, "too much together", files(3, 33_400).end(), files(3, 33_000).end()),
        (LARGE, "too much by hard links", copies(3), copies(2)),
        (MANY, "too many", folders(61), folders(60)),
        (MANY, "too many of the same", same(61), same(60)),
        (MANY, "too many folders in paths", deep(7), deep(6)),
        (LARGE, "names without end", named(26), named(24)),
    ]);
}

#[test]
fn an_archive_that_is_not_whole_or_goes_on_after_its_end_is_refused() {
    let plain = tar().file("first", "x").file("second", "y".repeat(3_000)).end();
    let packed = gzip(&plain);
    let cut = |bytes: &[u8], by: usize| bytes[..bytes.len() - by].to_vec();
    let and = |bytes: &[u8], more: &[u8]| [bytes, more].concat();
    let other = tar().file("third", "z").end();
    let flip = |at: usize| {
        let mut packed = packed.clone();
        packed[at] ^= 0xff;
        packed
    };
    let right = || packed.clone();
    refused(vec![
        (DAMAGED, "cut in the middle of a file", plain[..2048].to_vec(), plain.clone()),
        (DAMAGED, "cut in the middle of a header", plain[..1200].to_vec(), plain.clone()),
        (DAMAGED, "cut between two files", plain[..1024].to_vec(), plain.clone()),
        (DAMAGED, "no end", cut(&plain, 1024), cut(&plain, 512)),
        (DAMAGED, "cut between two files, packed", gzip(&plain[..1024]), right()),
        (DAMAGED, "cut gzip", cut(&packed, 20), right()),
        (DAMAGED, "cut checksum of gzip", cut(&packed, 1), right()),
        (DAMAGED, "cut header of gzip", packed[..5].to_vec(), right()),
        (DAMAGED, "wrong checksum of gzip", flip(packed.len() - 8), right()),
        (DAMAGED, "wrong length of gzip", flip(packed.len() - 1), right()),
        (DAMAGED, "entries after the end", and(&plain, &other), and(&plain, &[0; 10_240])),
        (
            DAMAGED,
            "entries after the end, packed",
            gzip(&and(&plain, &other)),
            gzip(&and(&plain, &[0; 10_240])),
        ),
        (DAMAGED, "something after the end", and(&plain, b"x"), and(&plain, b"\0")),
        (DAMAGED, "a second gzip", and(&packed, &gzip(&other)), right()),
        (DAMAGED, "a second gzip with nothing in it", and(&packed, &gzip(b"")), right()),
        (DAMAGED, "something after the gzip", and(&packed, b"x"), right()),
        (DAMAGED, "zeros after the gzip", and(&packed, &[0; 512]), right()),
    ]);
}

#[test]
fn other_formats_are_refused_by_name() {
    let plain = tar().file("f", "x").end();
    // Incompressible, so that it takes more than one block.
    let noise: Vec<u8> = (0..3_000u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let noise = tar().file("f", noise).end();
    refused(vec![
        (UNSUPPORTED, "gzip in gzip", gzip(&gzip(&noise)), gzip(&noise)),
        (UNSUPPORTED, "text", b"hello".to_vec(), plain.clone()),
        (UNSUPPORTED, "a lot of text", b"hello ".repeat(1000), plain.clone()),
        (UNSUPPORTED, "packed text", gzip(&b"hello ".repeat(1000)), gzip(&plain)),
        (UNSUPPORTED, "nothing", Vec::new(), plain.clone()),
        (UNSUPPORTED, "zip", [&b"PK\x03\x04"[..], &[0; 600]].concat(), plain.clone()),
        (UNSUPPORTED, "bzip2", [&b"BZh9"[..], &[1; 600]].concat(), plain.clone()),
        (UNSUPPORTED, "xz", [&b"\xfd7zXZ\0"[..], &[1; 600]].concat(), plain.clone()),
        (UNSUPPORTED, "zstd", [&b"\x28\xb5\x2f\xfd"[..], &[1; 600]].concat(), plain.clone()),
    ]);
    let refusal = check_archive(b"PK\x03\x04", &SMALL).expect_err("refused");
    assert_eq!(refusal.to_string(), "the archive is a zip file; send a gzipped tar or a plain tar");
}

#[test]
fn a_bomb_is_stopped_early_and_the_same_bytes_unpacked_are_not_one() {
    let zeros = |count: usize| tar().file("f", vec![0; count]).end();
    let ratio = "archive_ratio";
    let after = |count: usize| [tar().file("f", "x").end(), vec![0; count]].concat();
    refused(vec![
        (ratio, "zeros", gzip(&zeros(49_900)), zeros(49_900)),
        (ratio, "zeros after the end", gzip(&after(60_000)), after(60_000)),
    ]);
    assert_eq!(
        check_archive(&gzip(&zeros(10_000)), &SMALL).map(|weight| weight.files),
        Ok(1),
        "small ones may be"
    );
    // The check stops unpacking as soon as it knows the answer.
    let archive = gzip(&after(64 << 20));
    assert_eq!(check_archive(&archive, &ArchiveLimits::UPLOAD), Err(ArchiveError::Ratio { most: 200 }));
    let refusal = check_archive(&after(210 << 20), &ArchiveLimits::UPLOAD).expect_err("too many zeros");
    assert_eq!(refusal.code(), LARGE);
}

#[test]
fn millions_of_folders_are_given_up_at_the_limit() {
    let one = tar().folder("d").0;
    let archive = one.repeat(100_001);
    assert_eq!(check_archive(&archive, &ArchiveLimits::UPLOAD), Err(ArchiveError::TooMany(100_000)));
    let fewer = [one.repeat(100_000), vec![0; 1024]].concat();
    assert_eq!(check_archive(&fewer, &ArchiveLimits::UPLOAD).map(|weight| weight.files), Ok(1));
}

#[test]
fn a_refusal_shows_the_name_in_one_line_and_not_without_end() {
    let name = [&b"/\n\x1b[31m"[..], &b"x".repeat(200)].concat();
    let refusal =
        check_archive(&tar().pax(&[("path", &name)]).file("f", "").end(), &SMALL).expect_err("absolute");
    let text = refusal.to_string();
    assert!(text.starts_with(r#""/\n\u{1b}[31mxxx"#) && text.contains('…') && text.len() < 250, "{text}");
    let problem = ApiProblem::from(refusal);
    assert_eq!((problem.kind, problem.code.as_str()), (FailureKind::Invalid, BAD));
}

//! What the agent remembers: across restarts, in forks, and with a damaged transcript.

use crate::harness::{Place, SESSION};
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A path that the test replaces, and how.
type Trick<'t> = (&'t Path, &'t dyn Fn(&Path));

const FORK: &str = "22222222-2222-4222-8222-222222222222";

#[test]
fn a_resumed_session_remembers() {
    let place = Place::new();
    place.fresh().answer("a", "my name is Ada");
    let mut agent = place.resumed();
    let resumed = agent.hello();
    let expected =
        json!({"found": true, "entries": 3, "turns": 1, "damaged": 0, "digest": resumed["digest"]});
    assert_eq!(resumed, expected);
    let said = agent.answer("b", "who am I?");
    let expected = "This is turn 2. I remember 2 earlier messages; the first was: \"my name is Ada\". \
        You said: \"who am I?\".";
    assert_eq!(said, expected);
}

#[test]
fn a_session_that_never_was_is_not_passed_off_as_resumed() {
    let place = Place::new();
    for from in [SESSION, FORK] {
        let mut agent = place.start(&["--session-id", SESSION, "--resume", from]);
        assert_eq!(agent.hello(), json!({"found": false, "entries": 0, "turns": 0}));
    }
}

#[test]
fn a_fork_goes_its_own_way() {
    let place = Place::new();
    place.fresh().answer("a", "first");
    let original = fs::read(place.transcript(SESSION)).expect("transcript");
    let fork = ["--session-id", FORK, "--resume", SESSION];

    let mut agent = place.start(&fork);
    let resumed = agent.hello();
    assert_eq!((&resumed["found"], &resumed["turns"]), (&json!(true), &json!(1)));
    assert_eq!(resumed["digest"], place.resumed().hello()["digest"]);
    assert!(agent.answer("b", "second").starts_with("This is turn 2."));
    drop(agent);
    assert_eq!(fs::read(place.transcript(SESSION)).expect("transcript"), original);

    let mut agent = place.start(&fork);
    assert_eq!(agent.hello()["turns"], 2, "its own turns are kept, not copied over");
    assert!(agent.answer("c", "third").starts_with("This is turn 3."));
    assert!(place.resumed().answer("d", "other").starts_with("This is turn 2."));
}

#[test]
fn a_fork_whose_copy_was_lost_is_made_again() {
    let place = Place::new();
    place.fresh().answer("a", "first");
    for lost in [&b""[..], &[0; 100]] {
        fs::write(place.transcript(FORK), lost).expect("write");
        let resumed = place.start(&["--session-id", FORK, "--resume", SESSION]).hello();
        assert_eq!((&resumed["turns"], &resumed["damaged"]), (&json!(1), &json!(0)));
    }
}

#[test]
fn a_torn_end_is_cut_off_and_reported() {
    let place = Place::new();
    place.fresh().answer("a", "first");
    let whole = fs::read(place.transcript(SESSION)).expect("transcript");
    let digest = place.resumed().hello()["digest"].clone();
    for torn in [&b"{\"type\":\"us"[..], b"{\"type\":\"us\n", b"\0\0\0", &whole[..whole.len() - 1]] {
        let mut bytes = whole.clone();
        bytes.extend_from_slice(
            torn.rsplit(|b| *b == b'\n').find(|part| !part.is_empty()).expect("something"),
        );
        if torn.ends_with(b"\n") {
            bytes.push(b'\n');
        }
        fs::write(place.transcript(SESSION), &bytes).expect("write");
        let expected = json!({"found": true, "entries": 3, "turns": 1, "damaged": 1, "digest": digest});
        assert_eq!(place.resumed().hello(), expected, "{}", String::from_utf8_lossy(torn));
        assert_eq!(fs::read(place.transcript(SESSION)).expect("transcript"), whole);
    }
    assert!(place.resumed().answer("b", "second").starts_with("This is turn 2."));
}

#[test]
fn damage_in_the_middle_costs_only_what_it_hit() {
    let place = Place::new();
    place.fresh().answer("a", "first");
    let file = fs::OpenOptions::new().append(true).open(place.transcript(SESSION));
    file.and_then(|mut file| file.write_all(b"garbage\n{\"type\":\"of the future\"}\n\xff\n"))
        .expect("write");
    // Another turn, so that the damage is in the middle of the file and not at its end.
    let mut agent = place.resumed();
    assert_eq!(agent.hello()["damaged"], 3);
    agent.answer("b", "second");
    drop(agent);
    let resumed = place.resumed().hello();
    assert_eq!(
        (&resumed["turns"], &resumed["entries"], &resumed["damaged"]),
        (&json!(2), &json!(6), &json!(2))
    );
}

#[test]
fn a_transcript_path_that_is_no_file_is_put_aside() {
    let place = Place::new();
    place.fresh().answer("a", "first");
    let (transcript, elsewhere) = (place.transcript(SESSION), place.transcript(FORK));
    let folder = transcript.parent().expect("a folder");
    fs::rename(&transcript, &elsewhere).expect("moved");
    let whole = fs::read(&elsewhere).expect("transcript");
    let tricks: [Trick<'_>; 4] = [
        (&transcript, &|at| symlink(&elsewhere, at).expect("link")),
        (&transcript, &|at| fs::create_dir(at).expect("folder")),
        (&transcript, &|at| mkfifoat(CWD, at, Mode::RWXU).expect("pipe")),
        (folder, &|at| {
            fs::rename(at, at.with_extension("moved")).expect("moved");
            symlink("/nowhere", at).expect("link");
        }),
    ];
    for (at, trick) in tricks {
        fs::remove_file(&transcript).ok();
        trick(at);
        let mut agent = place.resumed();
        assert_eq!(agent.hello()["found"], false, "{at:?}");
        assert!(agent.answer("b", "second").starts_with("This is turn 1."), "{at:?}");
        assert!(fs::symlink_metadata(&transcript).expect("transcript").is_file(), "{at:?}");
    }
    assert_eq!(
        fs::read(folder.with_extension("moved").join(elsewhere.file_name().expect("name")))
            .expect("transcript"),
        whole
    );
}

#[test]
fn a_transcript_of_the_first_version_is_still_understood() {
    let place = Place::new();
    fs::create_dir_all(place.transcript(SESSION).parent().expect("a folder")).expect("folder");
    fs::write(place.transcript(SESSION), include_bytes!("../golden/transcript-1.jsonl")).expect("write");
    let mut agent = place.resumed();
    let expected =
        json!({"found": true, "entries": 10, "turns": 3, "damaged": 0, "digest": agent.hello()["digest"]});
    assert_eq!(agent.hello(), expected);
    assert!(agent.answer("d", "hello").starts_with("This is turn 4. I remember 5 earlier messages"));
    let shown = agent.ask("b", "never mind the text, the turn is known");
    assert_eq!(shown[1]["result"], "hi");
    assert_eq!(agent.ask("c", "")[0]["terminal_reason"], "aborted_streaming");
}

/// A transcript that is slow to read.
fn many_turns(place: &Place) {
    let words = "x".repeat(400);
    let mut text = String::new();
    for number in 0..400 {
        let entry = json!({"type": "user", "uuid": format!("u{number}"), "turn": format!("t{number}"), "at": 0,
            "message": {"role": "user", "content": format!("{number} {words}")}});
        text.push_str(&format!("{entry}\n"));
    }
    let path = place.transcript(SESSION);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, text).expect("written");
}

/// How many bytes a process has read since its start.
fn read_by(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("it runs");
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("a number");
    line.parse().expect("a number")
}

#[test]
fn a_turn_of_a_long_conversation_does_not_read_all_of_it_again() {
    let place = Place::new();
    many_turns(&place);
    let length = fs::metadata(place.transcript(SESSION)).expect("there").len();
    let mut agent = place.resumed();
    assert!(agent.answer("a", "first").starts_with("This is turn 401."));
    let before = read_by(agent.id());
    for number in 0..5 {
        assert!(agent.answer(&format!("b{number}"), "next").starts_with("This is turn 40"));
    }
    let read = read_by(agent.id()) - before;
    assert!(read < length / 2, "{read} bytes for five turns, of {length}");
}

#[test]
fn the_next_turn_sees_what_other_processes_wrote_into_a_long_transcript() {
    let place = Place::new();
    many_turns(&place);
    let mut agent = place.resumed();
    agent.answer("a", "first");
    for (number, turns) in [(0, 403), (1, 405), (2, 407)] {
        let mut file = fs::OpenOptions::new().append(true).open(place.transcript(SESSION)).expect("opens");
        let entry = json!({"type": "user", "uuid": format!("w{number}"), "turn": format!("v{number}"), "at": 0,
            "message": {"role": "user", "content": "from elsewhere"}});
        writeln!(file, "{entry}").expect("written");
        let said = agent.answer(&format!("c{number}"), "next");
        assert!(said.starts_with(&format!("This is turn {turns}.")), "{said}");
    }
    // Another file of the same length.
    let path = place.transcript(SESSION);
    let other = fs::read_to_string(&path).expect("read").replace("\"0 xxx", "\"9 yyy");
    fs::write(path.with_extension("new"), other).expect("written");
    fs::rename(path.with_extension("new"), &path).expect("renamed");
    let said = agent.answer("d", "next");
    assert!(said.contains("the first was: \"9 yyy"), "{said:.200}");
}

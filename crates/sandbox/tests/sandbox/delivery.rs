//! Lines in and out: none lost, none duplicated, none changed, whichever process dies in between.

use ash_model::Epoch;
use ash_sandbox::{Error, JournalPayload, ProcessExit, ShimLimits};

use crate::rig::{Live, Rig, command, eventually, script};

const LINES: u64 = 20_000;

/// Reads numbered lines until `stop`, checks each, and returns the next number and the journal offset.
async fn count(live: &mut Live, mut next: u64, stop: u64) -> (u64, u64) {
    let mut offset = 0;
    while next < stop {
        let record = live.next().await;
        offset = record.offset;
        match record.payload {
            JournalPayload::StdoutLine(line) => {
                assert_eq!(String::from_utf8_lossy(&line), next.to_string());
                next += 1;
            }
            JournalPayload::Started { .. } => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    (next, offset)
}

#[tokio::test]
async fn a_client_that_dies_again_and_again_reads_an_exact_sequence() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.remote
        .start(script(1, &format!("for ((i=0;i<{LINES};i++)); do echo $i; done")))
        .await
        .expect("sent");
    let (mut next, mut offset) = (0, 0);
    for attempt in 1..=9 {
        (next, offset) = count(&mut live, next, attempt * LINES / 10).await;
        live.remote.ack(offset).await.expect("sent");
        // Dropped in the middle of the stream, while records are unread.
        drop(live);
        live = rig.reattach(1, offset).await;
    }
    count(&mut live, next, LINES).await;
    assert!(matches!(live.next().await.payload, JournalPayload::Exit(ProcessExit { code: Some(0), .. })));
    assert!(offset > 0);
}

#[tokio::test]
async fn a_newer_epoch_takes_over_and_an_older_one_is_refused() {
    let rig = Rig::new().await;
    let mut first = rig.launch().await;
    let second = rig.reattach(5, 0).await;
    first.closed().await;
    assert!(matches!(first.remote.ack(0).await, Err(Error::Gone)));
    let refused = ash_sandbox::knock(&rig.spec.run_dir, Epoch(4)).await;
    assert!(matches!(&refused, Err(Error::Refused { why }) if why.contains("epoch 4")), "{refused:?}");
    // The refused connection did not disturb the other.
    let mut second = second;
    assert_eq!(second.run("echo still here").await.0, ["still here"]);
}

#[tokio::test]
async fn input_with_a_repeated_number_arrives_once() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.start(command(1, &["cat"])).await;
    for (number, text) in [(1, "one\n"), (1, "one\n"), (2, "two\n"), (1, "one\n"), (2, "two\n")] {
        live.remote.input(1, number, text.into()).await.expect("sent");
    }
    assert_eq!((live.line().await, live.line().await), ("one".to_owned(), "two".to_owned()));
    drop(live);
    let knocked = rig.knock(1).await;
    assert_eq!((knocked.hello.last_in, &knocked.hello.running[..]), (2, &[1][..]));
    let end = knocked.hello.end;
    let mut live = Live::of(knocked.follow(end).await.expect("followed"));
    live.remote.input(1, 2, b"two\n".to_vec()).await.expect("sent");
    live.remote.input(1, 3, b"three\n".to_vec()).await.expect("sent");
    assert_eq!(live.line().await, "three");
}

#[tokio::test]
async fn unread_input_does_not_hold_up_the_rest() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.start(script(1, "read line; sleep 1000")).await;
    live.remote.input(1, 1, vec![b'x'; 8 << 20]).await.expect("sent");
    assert_eq!(live.run("echo on time").await.0, ["on time"]);
}

#[tokio::test]
async fn megabytes_go_in_and_come_out_unchanged() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    let mut start = command(1, &["cat"]);
    start.raw = true;
    live.start(start).await;
    let sent: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 251) as u8).collect();
    live.remote.input(1, 1, sent.clone()).await.expect("sent");
    live.remote.close_input(1).await.expect("sent");
    let mut got = Vec::new();
    loop {
        match live.next().await.payload {
            JournalPayload::StdoutChunk(bytes) => got.extend(bytes),
            JournalPayload::Exit(_) => break,
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!(got == sent);
}

#[tokio::test]
async fn an_agent_whose_output_is_not_read_waits_and_loses_nothing() {
    let rig = Rig::with(ShimLimits { unacked_bytes: 64 << 10, ..ShimLimits::default() }, "data").await;
    let lines = 200_000;
    let mut live = rig.launch().await;
    let journal = rig.spec.run_dir.join(format!("journal.{}", rig.spec.incarnation));
    let length = || std::fs::metadata(&journal).expect("there").len();
    live.remote.start(command(1, &["seq", "0", &(lines - 1).to_string()])).await.expect("sent");
    eventually("the cap is reached", || length() > 64 << 10).await;
    let (next, offset) = count(&mut live, 0, 3000).await;
    // At most one read beyond the limit; the whole output would be 3.5 MB.
    assert!(length() < 1 << 20);
    live.remote.ack(offset).await.expect("sent");
    let mut next = next;
    while next < lines {
        let step;
        (next, step) = count(&mut live, next, (next + 1000).min(lines)).await;
        live.remote.ack(step).await.expect("sent");
    }
    assert!(matches!(live.next().await.payload, JournalPayload::Exit(ProcessExit { code: Some(0), .. })));
}

#[tokio::test]
async fn an_exit_passes_the_cap() {
    let rig = Rig::with(ShimLimits { unacked_bytes: 1 << 10, ..ShimLimits::default() }, "data").await;
    let mut live = rig.launch().await;
    live.start(script(1, "seq 100000")).await;
    live.remote.signal(1, rustix::process::Signal::KILL.as_raw()).await.expect("sent");
    let (_, exit) = live.finish().await;
    assert_eq!(exit, ProcessExit { code: None, signal: Some(9), oom: false });
}

#[tokio::test]
async fn a_line_that_is_too_long_ends_its_process_only() {
    let rig = Rig::with(ShimLimits { line_bytes: 100_000, ..ShimLimits::default() }, "data").await;
    let mut live = rig.launch().await;
    live.start(script(1, "head -c 100000 /dev/zero; echo; echo fine; head -c 200000 /dev/zero; sleep 1000"))
        .await;
    assert_eq!(live.next().await.payload, JournalPayload::StdoutLine(vec![0; 100_000]));
    assert_eq!(live.next().await.payload, JournalPayload::StdoutLine(b"fine".to_vec()));
    assert_eq!(live.next().await.payload, JournalPayload::LineTooLong);
    assert_eq!(
        live.next().await.payload,
        JournalPayload::Exit(ProcessExit { code: None, signal: Some(9), oom: false })
    );
    assert_eq!(live.run("echo on").await.0, ["on"]);
}

#[tokio::test]
async fn bytes_that_are_not_text_are_carried_as_they_are() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.start(script(1, "printf 'a\\xff\\xfe\\0b\\nrest'; printf 'bad\\xff\\n' >&2; exit 3")).await;
    let mut seen = Vec::new();
    while !matches!(seen.last(), Some(JournalPayload::Exit(_))) {
        seen.push(live.next().await.payload);
    }
    assert!(seen.contains(&JournalPayload::StdoutLine(b"a\xff\xfe\0b".to_vec())), "{seen:?}");
    assert!(seen.contains(&JournalPayload::StdoutTail(b"rest".to_vec())), "{seen:?}");
    assert!(seen.contains(&JournalPayload::StderrLine(b"bad\xff".to_vec())), "{seen:?}");
    assert_eq!(
        seen.last(),
        Some(&JournalPayload::Exit(ProcessExit { code: Some(3), signal: None, oom: false }))
    );
}

#[tokio::test]
async fn an_exit_does_not_wait_for_children_left_behind() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    let text = "(trap '' PIPE; for i in $(seq 1000000); do echo noise || exit; [ -e stop ] && break; done; touch ended) & echo mine";
    live.start(script(1, text)).await;
    let (lines, exit) = live.finish().await;
    assert!(lines.contains(&"mine".to_owned()) && exit.code == Some(0));
    live.run("touch stop").await;
    // The shim kept reading its output, or it would hang in a full pipe.
    eventually("the child left behind ends", || rig.spec.workspace.join("ended").exists()).await;
}

#[tokio::test]
async fn a_socket_path_longer_than_an_address_works() {
    let rig = Rig::with(ShimLimits::default(), &"long/".repeat(40)).await;
    assert!(rig.spec.run_dir.as_os_str().len() > 200);
    let mut live = rig.launch().await;
    assert_eq!(live.run("echo far").await.0, ["far"]);
    drop(live);
    assert_eq!(rig.reattach(2, 0).await.hello.incarnation, rig.spec.incarnation);
}

#[tokio::test]
async fn a_signal_reaches_the_whole_group() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.start(script(1, "trap 'echo got it; exit 4' INT; sleep 1000 & echo up; wait")).await;
    assert_eq!(live.line().await, "up");
    live.remote.signal(1, rustix::process::Signal::INT.as_raw()).await.expect("sent");
    let (lines, exit) = live.finish().await;
    assert_eq!((lines, exit.code), (vec!["got it".to_owned()], Some(4)));
}

/// Several listeners share a sandbox: each receives its own records, a slow one delays no other, and all receive its
/// end.
#[tokio::test]
async fn each_listener_hears_its_own_processes() {
    let rig = Rig::new().await;
    let live = rig.launch().await;
    let said = |record: ash_sandbox::JournalRecord| match record.payload {
        JournalPayload::StdoutLine(line) => {
            Some((record.process, String::from_utf8_lossy(&line).into_owned()))
        }
        _ => None,
    };
    let (mut first, mut second) = (live.remote.listen(vec![1..=1]), live.remote.listen(vec![2..=2, 70..=79]));
    // No test code reads the second listener, and its process prints a lot.
    live.remote.start(script(2, "for ((i=0;i<2000;i++)); do echo b$i; done")).await.expect("sent");
    live.remote.start(command(1, &["cat"])).await.expect("sent");
    live.remote.start(script(75, "echo c")).await.expect("sent");
    // Each process counts its own input.
    live.remote.input(2, 5, b"x\n".to_vec()).await.expect("sent");
    live.remote.input(1, 1, b"a\n".to_vec()).await.expect("sent");
    let next = async |records: &mut ash_sandbox::RecordStream| loop {
        let record = tokio::time::timeout(crate::rig::DEADLINE, records.next()).await.expect("in time");
        if let Some(line) = said(record.expect("a record")) {
            return line;
        }
    };
    assert_eq!(next(&mut first).await, (1, "a".to_owned()));
    let mut heard = Vec::new();
    while heard.len() < 2001 {
        heard.push(next(&mut second).await);
    }
    assert_eq!(heard.iter().filter(|(process, _)| *process == 75).count(), 1);
    let last = heard.iter().rfind(|(process, _)| *process == 2).expect("lines");
    assert_eq!(last.1, "b1999");
    // Dropping a listener does not affect the others.
    drop(second);
    live.remote.input(1, 2, b"still\n".to_vec()).await.expect("sent");
    assert_eq!(next(&mut first).await, (1, "still".to_owned()));
    live.remote.end().await.expect("sent");
    let gone = async { while first.next().await.is_some() {} };
    tokio::time::timeout(crate::rig::DEADLINE, gone).await.expect("the listener gets the end");
}

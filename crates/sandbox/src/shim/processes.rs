//! Processes inside: starting them, and moving data through their pipes.

use super::{
    InitCommand, MAX_PIPE_BYTES, MAX_QUEUED_INPUT_BYTES, OutputStream, PipeReadOutcome, ProcessExit,
    ProcessPipes, ProcessSpec, READ_SIZE, Shim, ShimFrame, ShimPhase, io, journal, stdio,
};

impl Shim {
    pub(super) fn start(&mut self, start: &ProcessSpec) {
        let started = if self.phase != ShimPhase::Up {
            Err(io::Error::other("the sandbox is gone"))
        } else if self.processes.contains_key(&start.process) {
            // An answer would look like a failure of the running process.
            return;
        } else {
            self.try_start(start)
        };
        if let Err(e) = started {
            journal::start_failed(&mut self.batch, start.process, &e.to_string());
            self.commit();
        }
    }

    fn try_start(&mut self, start: &ProcessSpec) -> io::Result<()> {
        let (process, theirs) = stdio::pipes(start.raw, start.stdin)?;
        let what = crate::init_protocol::seal(start)?;
        let sandbox = self.sandbox.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let [stdin, stdout, stderr] = theirs;
        sandbox.order(InitCommand::Start, vec![what, stdin, stdout, stderr]);
        // Input numbers of an earlier process with this number do not apply.
        self.last_ins.remove(&start.process);
        self.processes.insert(start.process, process);
        Ok(())
    }

    // Init is not trusted: a number that the shim did not assign, or that init has answered before, is ignored.
    pub(super) fn started(&mut self, number: u16, pid: u32) {
        if let Some(process) = self.processes.get_mut(&number).filter(|process| !process.started) {
            process.started = true;
            journal::started(&mut self.batch, number, pid);
            self.commit();
        }
    }

    pub(super) fn start_failed(&mut self, number: u16, why: &str) {
        if self.processes.get(&number).is_some_and(|process| !process.started) {
            self.processes.remove(&number);
            journal::start_failed(&mut self.batch, number, why);
            self.commit();
        }
    }

    pub(super) fn signal(&mut self, number: u16, signal: i32) {
        if let (Some(process), Some(sandbox)) = (self.processes.get_mut(&number), &mut self.sandbox) {
            process.killed |= signal == libc::SIGKILL;
            sandbox.order(InitCommand::Signal { process: number, signal }, Vec::new());
        }
    }

    pub(super) fn take_input(&mut self, process: u16, number: u64, bytes: &[u8]) {
        let last = self.last_ins.entry(process).or_default();
        if number <= *last {
            return;
        }
        *last = number;
        // A process that is gone reads nothing; the number still counts as accepted.
        let Some(input) = self.processes.get_mut(&process).and_then(|p| p.input.as_mut()) else { return };
        if input.waiting() + bytes.len() > MAX_QUEUED_INPUT_BYTES {
            self.say(&ShimFrame::Refused { why: format!("process {process} does not read its input") });
            return self.lose_client();
        }
        input.push(bytes);
        self.write_input(process);
    }

    pub(super) fn close_input(&mut self, process: u16) {
        if let Some(input) = self.processes.get_mut(&process).and_then(|p| p.input.as_mut()) {
            input.close();
            self.write_input(process);
        }
    }

    pub(super) fn write_input(&mut self, process: u16) {
        let Some(process) = self.processes.get_mut(&process) else { return };
        if process.input.as_mut().is_some_and(|input| !input.write()) {
            process.input = None;
        }
    }

    pub(super) fn read_stream(
        &mut self,
        number: u16,
        which: fn(&mut ProcessPipes) -> &mut Option<OutputStream>,
    ) {
        let longest = self.plan.as_ref().map_or(usize::MAX, |plan| plan.caps.line_bytes);
        let Some(process) = self.processes.get_mut(&number) else { return };
        let Some(stream) = which(process).as_mut() else { return };
        let (read, bytes) = stream.read(number, &mut self.buffer, &mut self.batch, longest);
        match read {
            PipeReadOutcome::Some | PipeReadOutcome::Nothing => {}
            PipeReadOutcome::End => {
                stream.finish(number, &mut self.batch);
                *which(process) = None;
            }
            PipeReadOutcome::TooLong => self.signal(number, libc::SIGKILL),
        }
        self.flow.passed(bytes);
        self.commit();
        self.write_client();
    }

    pub(super) fn exited(&mut self, number: u16, code: Option<i32>, signal: Option<i32>) {
        if !self.processes.contains_key(&number) {
            return;
        }
        self.finish_streams(number);
        let killed = self.processes.remove(&number).is_some_and(|process| process.killed);
        self.count_ooms();
        let oom = self.ooms.unattributed > 0 && signal == Some(libc::SIGKILL) && !killed;
        self.ooms.unattributed -= u64::from(oom);
        journal::exit(&mut self.batch, number, ProcessExit { code, signal, oom });
        self.commit();
        self.write_client();
    }

    /// Reads what an ended process left in its pipes. A child of it may still hold their other end.
    pub(super) fn finish_streams(&mut self, number: u16) {
        let longest = self.plan.as_ref().map_or(usize::MAX, |plan| plan.caps.line_bytes);
        let Some(process) = self.processes.get_mut(&number) else { return };
        for mut stream in [process.out.take(), process.err.take()].into_iter().flatten() {
            let mut read = PipeReadOutcome::Some;
            // The limit on unacknowledged bytes does not apply: a pipe is small, and the exit must come after the
            // output.
            for _ in 0..MAX_PIPE_BYTES / READ_SIZE {
                let bytes;
                (read, bytes) = stream.read(number, &mut self.buffer, &mut self.batch, longest);
                self.flow.passed(bytes);
                if read != PipeReadOutcome::Some {
                    break;
                }
            }
            stream.finish(number, &mut self.batch);
            if read != PipeReadOutcome::End {
                self.leftovers.push(stream.fd);
            }
        }
        self.commit();
    }

    pub(super) fn discard(&mut self, n: usize) {
        let Some(leftover) = self.leftovers.get(n) else { return };
        match rustix::io::read(leftover, &mut self.buffer[..]) {
            Ok(0) => drop(self.leftovers.remove(n)),
            Ok(n) => self.flow.passed(n),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => drop(self.leftovers.remove(n)),
        }
    }
}

//! The life of the sandbox: built, up, gone.

use super::{
    Client, Consistency, Flow, FromShim, Hold, Instant, Phase, Plan, Report, Sandbox, Shim, Watchdog,
    journal, process,
};

impl Shim {
    pub(super) fn build(&mut self, client: Client, plan: Plan) {
        self.epoch = plan.epoch;
        self.client = Some(client);
        self.phase = Phase::Building;
        self.since = Instant::now();
        match Sandbox::build(&plan) {
            Ok((sandbox, journal)) => {
                self.flow = Flow::new(plan.limits.output_per_second, Instant::now());
                self.watchdog = plan
                    .limits
                    .memory_bytes
                    .filter(|_| !sandbox.counts_memory())
                    .map(|most| Watchdog::new(most, Instant::now()));
                self.sandbox = Some(sandbox);
                self.journal = Some(journal);
            }
            Err(e) => self.refuse_build(&e.to_string()),
        }
        self.plan = Some(plan);
    }

    pub(super) fn refuse_build(&mut self, why: &str) {
        let words = self.sandbox.as_mut().map(Sandbox::last_words).unwrap_or_default();
        let why = if words.is_empty() { why.to_owned() } else { format!("{why}: {words}") };
        self.say(&FromShim::Refused { why });
        self.end(true);
    }

    pub(super) fn learn_init(&mut self) {
        let learnt = self.sandbox.as_mut().map_or(Ok(()), Sandbox::read_status);
        if let Err(e) = learnt {
            self.refuse_build(&e.to_string());
        }
    }

    pub(super) fn serve_control(&mut self, revents: i16) {
        if revents & libc::POLLOUT != 0 {
            self.sandbox.iter_mut().for_each(Sandbox::send_orders);
        }
        // Bounded: an init that talks without end must not keep the loop.
        for _ in 0..64 {
            match self.sandbox.as_mut().and_then(Sandbox::hear) {
                Some(report) => self.hear(report),
                None => return,
            }
        }
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Ready => self.ready(),
            Report::Started { process, pid } => self.started(process, pid),
            Report::StartFailed { process, why } => self.start_failed(process, &why),
            Report::Exited { process, code, signal } => self.exited(process, code, signal),
            Report::Stopped { all } => {
                if let Hold::Stopping { .. } = self.hold {
                    self.held(if all { Consistency::Stopped } else { Consistency::Live });
                }
            }
        }
    }

    fn ready(&mut self) {
        if self.phase != Phase::Building {
            return;
        }
        // Bubblewrap has told the number before it let init run, but on another pipe.
        self.learn_init();
        if self.sandbox.as_ref().is_some_and(|sandbox| sandbox.init().is_some()) {
            self.phase = Phase::Up;
            self.say_hello();
        } else {
            self.refuse_build("bubblewrap did not tell the number of the init process");
        }
    }

    pub(super) fn reap(&mut self) {
        process::forget_signals(&self.children);
        while let Some((pid, status)) = process::reap_one() {
            if let Some(sandbox) = self.sandbox.as_mut()
                && sandbox.child_ended(pid)
            {
                let how = sandbox.how(status);
                self.fallen(&how);
            }
        }
    }

    pub(super) fn init_ended(&mut self) {
        let how = self.sandbox.as_mut().map(Sandbox::container_fell).unwrap_or_default();
        self.fallen(&how);
    }

    /// The walls came down, by themselves or because we asked.
    fn fallen(&mut self, how: &str) {
        match self.phase {
            Phase::Building => self.refuse_build(how),
            Phase::Up => self.gone(how),
            Phase::Unbuilt | Phase::Gone | Phase::Ending { .. } => {}
        }
    }

    fn gone(&mut self, how: &str) {
        // Reports that init sent before it died are still in the socket.
        self.serve_control(libc::POLLIN);
        for number in self.processes.keys().copied().collect::<Vec<_>>() {
            self.finish_streams(number);
        }
        self.processes.clear();
        self.leftovers.clear();
        self.count_ooms();
        // A container's engine says what ended it, even if the kernel's count had moved before.
        let oom = self.ooms.unsaid > 0 || self.sandbox.as_ref().is_some_and(Sandbox::fell_for_memory);
        self.sandbox.iter().for_each(|sandbox| sandbox.doors().hush());
        journal::gone(&mut self.batch, how, oom);
        self.commit();
        self.phase = Phase::Gone;
        self.since = Instant::now();
        self.answer_hold();
        self.let_go(Hold::Lapsed);
        self.sandbox.iter_mut().for_each(Sandbox::kill);
        self.write_client();
    }

    pub(super) fn end(&mut self, refused: bool) {
        if !matches!(self.phase, Phase::Ending { .. }) {
            self.phase = Phase::Ending { refused };
            self.since = Instant::now();
            self.sandbox.iter_mut().for_each(Sandbox::kill);
        }
    }

    pub(super) fn commit(&mut self) {
        if let Some(journal) = &mut self.journal {
            // First: what an agent says of an answer comes after what the answer used.
            if let Some(sandbox) = &self.sandbox {
                sandbox.doors().flush(journal);
            }
            journal.append(&self.batch, Instant::now());
        }
        self.batch.clear();
        self.batch.shrink_to(1 << 20);
    }

    pub(super) fn count_ooms(&mut self) {
        let killed = self.watchdog.as_ref().map_or(0, Watchdog::kills);
        let count = killed + self.sandbox.as_ref().map_or(0, Sandbox::oom_kills);
        self.ooms.count(count, Instant::now());
    }
}

//! The phases of the sandbox: building, up, gone, ending.

use super::{
    CaptureConsistency, FreezeState, InitReport, Instant, MemoryWatchdog, OutputThrottle, Shim, ShimClient,
    ShimFrame, ShimPhase, ShimPlan, ShimSandbox, journal, process,
};

impl Shim {
    pub(super) fn build(&mut self, client: ShimClient, plan: ShimPlan) {
        self.epoch = plan.epoch;
        self.client = Some(client);
        self.phase = ShimPhase::Building;
        self.since = Instant::now();
        match ShimSandbox::build(&plan) {
            Ok((sandbox, journal)) => {
                self.flow = OutputThrottle::new(plan.limits.output_per_second, Instant::now());
                self.watchdog = plan
                    .limits
                    .memory_bytes
                    .filter(|_| !sandbox.counts_memory())
                    .map(|most| MemoryWatchdog::new(most, Instant::now()));
                self.sandbox = Some(sandbox);
                self.journal = Some(journal);
            }
            Err(e) => self.refuse_build(&e.to_string()),
        }
        self.plan = Some(plan);
    }

    pub(super) fn refuse_build(&mut self, why: &str) {
        let words = self.sandbox.as_mut().map(ShimSandbox::last_output).unwrap_or_default();
        let why = if words.is_empty() { why.to_owned() } else { format!("{why}: {words}") };
        self.say(&ShimFrame::Refused { why });
        self.end(true);
    }

    pub(super) fn learn_init(&mut self) {
        let learnt = self.sandbox.as_mut().map_or(Ok(()), ShimSandbox::read_status);
        if let Err(e) = learnt {
            self.refuse_build(&e.to_string());
        }
    }

    pub(super) fn serve_control(&mut self, revents: i16) {
        if revents & libc::POLLOUT != 0 {
            self.sandbox.iter_mut().for_each(ShimSandbox::send_orders);
        }
        // Bounded: an init that sends reports without end must not block the loop.
        for _ in 0..64 {
            match self.sandbox.as_mut().and_then(ShimSandbox::hear) {
                Some(report) => self.hear(report),
                None => return,
            }
        }
    }

    fn hear(&mut self, report: InitReport) {
        match report {
            InitReport::Ready => self.ready(),
            InitReport::Started { process, pid } => self.started(process, pid),
            InitReport::StartFailed { process, why } => self.start_failed(process, &why),
            InitReport::Exited { process, code, signal } => self.exited(process, code, signal),
            InitReport::Stopped { all } => {
                if let FreezeState::Stopping { .. } = self.hold {
                    self.set_held(if all { CaptureConsistency::Stopped } else { CaptureConsistency::Live });
                }
            }
        }
    }

    fn ready(&mut self) {
        if self.phase != ShimPhase::Building {
            return;
        }
        // Bubblewrap has written the number before it let init run, but to another pipe.
        self.learn_init();
        if self.sandbox.as_ref().is_some_and(|sandbox| sandbox.init().is_some()) {
            self.phase = ShimPhase::Up;
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
                let how = sandbox.exit_description(status);
                self.on_walls_down(&how);
            }
        }
    }

    pub(super) fn init_ended(&mut self) {
        let how = self.sandbox.as_mut().map(ShimSandbox::on_container_exit).unwrap_or_default();
        self.on_walls_down(&how);
    }

    /// Handles the end of the sandbox, requested or not.
    fn on_walls_down(&mut self, how: &str) {
        match self.phase {
            ShimPhase::Building => self.refuse_build(how),
            ShimPhase::Up => self.record_sandbox_gone(how),
            ShimPhase::Unbuilt | ShimPhase::Gone | ShimPhase::Ending { .. } => {}
        }
    }

    fn record_sandbox_gone(&mut self, how: &str) {
        // Reports that init sent before it died are still in the socket.
        self.serve_control(libc::POLLIN);
        for number in self.processes.keys().copied().collect::<Vec<_>>() {
            self.finish_streams(number);
        }
        self.processes.clear();
        self.leftovers.clear();
        self.count_ooms();
        // An engine knows what ended its container, even if the kernel's count had changed before.
        let oom =
            self.ooms.unattributed > 0 || self.sandbox.as_ref().is_some_and(ShimSandbox::was_oom_killed);
        self.sandbox.iter().for_each(|sandbox| sandbox.doors().wait_for_last_usage());
        journal::gone(&mut self.batch, how, oom);
        self.commit();
        self.phase = ShimPhase::Gone;
        self.since = Instant::now();
        self.answer_hold();
        self.release_hold(FreezeState::Lapsed);
        self.sandbox.iter_mut().for_each(ShimSandbox::kill);
        self.write_client();
    }

    pub(super) fn end(&mut self, refused: bool) {
        if !matches!(self.phase, ShimPhase::Ending { .. }) {
            self.phase = ShimPhase::Ending { refused };
            self.since = Instant::now();
            self.sandbox.iter_mut().for_each(ShimSandbox::kill);
        }
    }

    pub(super) fn commit(&mut self) {
        if let Some(journal) = &mut self.journal {
            // Usage first: its records must precede what an agent says about the answer.
            if let Some(sandbox) = &self.sandbox {
                sandbox.doors().flush(journal);
            }
            journal.append(&self.batch, Instant::now());
        }
        self.batch.clear();
        self.batch.shrink_to(1 << 20);
    }

    pub(super) fn count_ooms(&mut self) {
        let killed = self.watchdog.as_ref().map_or(0, MemoryWatchdog::kills);
        let count = killed + self.sandbox.as_ref().map_or(0, ShimSandbox::oom_kills);
        self.ooms.count(count, Instant::now());
    }
}

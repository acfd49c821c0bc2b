//! Which clients may talk to the shim, and the commands that they send.

use super::{
    ClientDisconnected, ClientFrame, Epoch, FreezeState, Instant, MAX_UNIDENTIFIED_CLIENTS, Shim, ShimClient,
    ShimFrame, ShimHello, ShimPhase, ShimPlan, ShimSandbox, VERSION,
};

impl Shim {
    pub(super) fn accept(&mut self) {
        if let Some(stranger) = ShimClient::accept(&self.listener)
            && self.unidentified.len() < MAX_UNIDENTIFIED_CLIENTS
        {
            self.unidentified.push(stranger);
        }
    }

    pub(super) fn hear_stranger(&mut self, n: usize) {
        // A removal earlier in this pass shifts the indexes. The read then finds nothing, which does no harm.
        let Some(stranger) = self.unidentified.get_mut(n) else { return };
        let heard = stranger.read(&mut self.buffer).and_then(|()| stranger.next());
        match heard {
            Ok(None) => {}
            Ok(Some(first)) => {
                let stranger = self.unidentified.remove(n);
                self.introduce(stranger, first);
            }
            Err(ClientDisconnected) => drop(self.unidentified.remove(n)),
        }
    }

    fn introduce(&mut self, mut stranger: ShimClient, first: ClientFrame) {
        let refused = match first {
            ClientFrame::Build(plan) => match self.may_build(&plan) {
                Ok(()) => return self.build(stranger, *plan),
                Err(why) => why,
            },
            ClientFrame::Attach { version, epoch } => match self.may_attach(version, epoch) {
                Ok(()) => return self.attach(stranger, epoch),
                Err(why) => why,
            },
            ClientFrame::Follow { .. }
            | ClientFrame::Start(_)
            | ClientFrame::In { .. }
            | ClientFrame::CloseIn { .. }
            | ClientFrame::Ack { .. }
            | ClientFrame::Freeze
            | ClientFrame::Thaw
            | ClientFrame::Signal { .. }
            | ClientFrame::End
            | ClientFrame::Ping
            | ClientFrame::Egress(_)
            | ClientFrame::Allow { .. } => "say build or attach first".to_owned(),
        };
        stranger.say(&ShimFrame::Refused { why: refused });
        // Best effort, then the connection closes: its socket buffer is empty, so a short answer fits.
        let _ = stranger.write(None, &mut []);
    }

    fn may_build(&self, plan: &ShimPlan) -> Result<(), String> {
        match self.phase {
            ShimPhase::Unbuilt if plan.version == VERSION => Ok(()),
            ShimPhase::Unbuilt => Err(format!("this shim speaks version {VERSION}")),
            ShimPhase::Building | ShimPhase::Up | ShimPhase::Gone | ShimPhase::Ending { .. } => {
                Err("already built".to_owned())
            }
        }
    }

    fn may_attach(&self, version: u32, epoch: Epoch) -> Result<(), String> {
        match self.phase {
            ShimPhase::Unbuilt => Err("nothing is built yet".to_owned()),
            ShimPhase::Building | ShimPhase::Up | ShimPhase::Gone | ShimPhase::Ending { .. }
                if version != VERSION =>
            {
                Err(format!("this shim speaks version {VERSION}"))
            }
            ShimPhase::Building | ShimPhase::Up | ShimPhase::Gone | ShimPhase::Ending { .. }
                if epoch < self.epoch =>
            {
                Err(format!("epoch {} is over, epoch {} holds this sandbox", epoch.0, self.epoch.0))
            }
            ShimPhase::Building | ShimPhase::Up | ShimPhase::Gone | ShimPhase::Ending { .. } => Ok(()),
        }
    }

    fn attach(&mut self, client: ShimClient, epoch: Epoch) {
        if let ShimPhase::Ending { .. } = self.phase {
            // Closed without an answer, as all connections will be in a moment.
            return;
        }
        self.lose_client();
        self.epoch = epoch;
        self.client = Some(client);
        if self.phase != ShimPhase::Building {
            self.say_hello();
        }
        // More frames may have arrived together with the first.
        self.obey_client();
    }

    pub(super) fn say(&mut self, frame: &ShimFrame) {
        if let Some(client) = &mut self.client {
            client.say(frame);
        }
        self.write_client();
    }

    pub(super) fn say_hello(&mut self) {
        let (Some(plan), Some(journal)) = (&self.plan, &self.journal) else { return };
        let hello = ShimHello {
            version: VERSION,
            incarnation: plan.incarnation,
            last_in: self.last_ins.values().copied().max().unwrap_or(0),
            last_ins: self.last_ins.clone(),
            end: journal.end(),
            acked: journal.acked(),
            running: self.processes.keys().copied().collect(),
            init: self.sandbox.as_ref().filter(|_| self.phase == ShimPhase::Up).and_then(ShimSandbox::init),
            egress: true,
            usage: true,
            required: plan.required.clone(),
            user_namespaces: plan.user_namespaces,
        };
        self.say(&ShimFrame::Hello(hello));
    }

    pub(super) fn serve_client(&mut self, revents: i16) {
        if revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0 {
            let Some(client) = &mut self.client else { return };
            if client.read(&mut self.buffer).is_err() {
                return self.lose_client();
            }
            self.obey_client();
        }
        if revents & libc::POLLOUT != 0 {
            self.write_client();
        }
    }

    pub(super) fn write_client(&mut self) {
        let Some(client) = &mut self.client else { return };
        if client.write(self.journal.as_ref(), &mut self.buffer).is_err() {
            self.lose_client();
        }
    }

    fn obey_client(&mut self) {
        while let Some(client) = &mut self.client {
            match client.next() {
                Ok(Some(frame)) => self.obey(frame),
                Ok(None) => return,
                Err(ClientDisconnected) => return self.lose_client(),
            }
        }
    }

    pub(super) fn lose_client(&mut self) {
        if self.client.take().is_some() {
            self.client_lost_at = Instant::now();
            self.looked = self.client_lost_at;
            // No other client would thaw it.
            self.release_hold(FreezeState::None);
        }
    }

    fn obey(&mut self, frame: ClientFrame) {
        match frame {
            ClientFrame::Build(_) | ClientFrame::Attach { .. } => self.lose_client(),
            ClientFrame::Follow { offset } => self.follow(offset),
            ClientFrame::Start(start) => self.start(&start),
            ClientFrame::In { process, number, bytes } => self.take_input(process, number, &bytes),
            ClientFrame::CloseIn { process } => self.close_input(process),
            ClientFrame::Ack { offset } => self.journal.iter_mut().for_each(|journal| journal.ack(offset)),
            ClientFrame::Freeze => self.freeze(),
            ClientFrame::Thaw => self.thaw(),
            ClientFrame::Signal { process, signal } => self.signal(process, signal),
            ClientFrame::End => self.end(false),
            ClientFrame::Ping => self.say(&ShimFrame::Pong),
            ClientFrame::Egress(policy) => {
                self.sandbox.iter().for_each(|sandbox| sandbox.doors().set_policy(policy.as_ref()));
            }
            ClientFrame::Allow { process, allowance } => {
                let sandbox = self.sandbox.as_mut();
                // Without its socket the agent cannot reach a model, and reports that itself.
                if let Some(Err(error)) = sandbox.map(|sandbox| sandbox.doors_mut().allow(process, allowance))
                {
                    eprintln!("ash shim: the socket of process {process}: {error}");
                }
            }
        }
    }

    fn follow(&mut self, offset: u64) {
        let held = self.journal.as_ref().is_some_and(|journal| journal.holds(offset));
        if held {
            self.client.iter_mut().for_each(|client| client.follow(offset));
            self.write_client();
        } else {
            self.say(&ShimFrame::Refused { why: format!("the journal does not hold offset {offset}") });
            self.lose_client();
        }
    }
}

//! Who may talk to the shim, and what they ask for.

use super::{
    Client, Epoch, FromClient, FromShim, Hello, Hold, Instant, Lost, MOST_STRANGERS, Phase, Plan, Sandbox,
    Shim, VERSION,
};

impl Shim {
    pub(super) fn accept(&mut self) {
        if let Some(stranger) = Client::accept(&self.listener)
            && self.strangers.len() < MOST_STRANGERS
        {
            self.strangers.push(stranger);
        }
    }

    pub(super) fn hear_stranger(&mut self, n: usize) {
        // A removal earlier in this turn moved the others up: then this reads nothing, which does no harm.
        let Some(stranger) = self.strangers.get_mut(n) else { return };
        let heard = stranger.read(&mut self.buffer).and_then(|()| stranger.next());
        match heard {
            Ok(None) => {}
            Ok(Some(first)) => {
                let stranger = self.strangers.remove(n);
                self.introduce(stranger, first);
            }
            Err(Lost) => drop(self.strangers.remove(n)),
        }
    }

    fn introduce(&mut self, mut stranger: Client, first: FromClient) {
        let refused = match first {
            FromClient::Build(plan) => match self.may_build(&plan) {
                Ok(()) => return self.build(stranger, *plan),
                Err(why) => why,
            },
            FromClient::Attach { version, epoch } => match self.may_attach(version, epoch) {
                Ok(()) => return self.attach(stranger, epoch),
                Err(why) => why,
            },
            FromClient::Follow { .. }
            | FromClient::Start(_)
            | FromClient::In { .. }
            | FromClient::CloseIn { .. }
            | FromClient::Ack { .. }
            | FromClient::Freeze
            | FromClient::Thaw
            | FromClient::Signal { .. }
            | FromClient::End
            | FromClient::Ping
            | FromClient::Egress(_)
            | FromClient::Allow { .. } => "say build or attach first".to_owned(),
        };
        stranger.say(&FromShim::Refused { why: refused });
        // Best effort, then the connection closes: its socket is empty, so a short answer fits.
        let _ = stranger.write(None, &mut []);
    }

    fn may_build(&self, plan: &Plan) -> Result<(), String> {
        match self.phase {
            Phase::Unbuilt if plan.version == VERSION => Ok(()),
            Phase::Unbuilt => Err(format!("this shim speaks version {VERSION}")),
            Phase::Building | Phase::Up | Phase::Gone | Phase::Ending { .. } => {
                Err("already built".to_owned())
            }
        }
    }

    fn may_attach(&self, version: u32, epoch: Epoch) -> Result<(), String> {
        match self.phase {
            Phase::Unbuilt => Err("nothing is built yet".to_owned()),
            Phase::Building | Phase::Up | Phase::Gone | Phase::Ending { .. } if version != VERSION => {
                Err(format!("this shim speaks version {VERSION}"))
            }
            Phase::Building | Phase::Up | Phase::Gone | Phase::Ending { .. } if epoch < self.epoch => {
                Err(format!("epoch {} is over, epoch {} holds this sandbox", epoch.0, self.epoch.0))
            }
            Phase::Building | Phase::Up | Phase::Gone | Phase::Ending { .. } => Ok(()),
        }
    }

    fn attach(&mut self, client: Client, epoch: Epoch) {
        if let Phase::Ending { .. } = self.phase {
            // Closed without a word, as it will be in a moment for everybody.
            return;
        }
        self.lose_client();
        self.epoch = epoch;
        self.client = Some(client);
        if self.phase != Phase::Building {
            self.say_hello();
        }
        // Frames may have come together with the first one.
        self.obey_client();
    }

    pub(super) fn say(&mut self, frame: &FromShim) {
        if let Some(client) = &mut self.client {
            client.say(frame);
        }
        self.write_client();
    }

    pub(super) fn say_hello(&mut self) {
        let (Some(plan), Some(journal)) = (&self.plan, &self.journal) else { return };
        let hello = Hello {
            version: VERSION,
            incarnation: plan.incarnation,
            last_in: self.last_ins.values().copied().max().unwrap_or(0),
            last_ins: self.last_ins.clone(),
            end: journal.end(),
            acked: journal.acked(),
            running: self.processes.keys().copied().collect(),
            init: self.sandbox.as_ref().filter(|_| self.phase == Phase::Up).and_then(Sandbox::init),
            egress: true,
            usage: true,
            required: plan.required.clone(),
            user_namespaces: plan.user_namespaces,
        };
        self.say(&FromShim::Hello(hello));
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
                Err(Lost) => return self.lose_client(),
            }
        }
    }

    pub(super) fn lose_client(&mut self) {
        if self.client.take().is_some() {
            self.alone = Instant::now();
            self.looked = self.alone;
            // Nobody is left who would thaw it.
            self.let_go(Hold::None);
        }
    }

    fn obey(&mut self, frame: FromClient) {
        match frame {
            FromClient::Build(_) | FromClient::Attach { .. } => self.lose_client(),
            FromClient::Follow { offset } => self.follow(offset),
            FromClient::Start(start) => self.start(&start),
            FromClient::In { process, number, bytes } => self.take_input(process, number, &bytes),
            FromClient::CloseIn { process } => self.close_input(process),
            FromClient::Ack { offset } => self.journal.iter_mut().for_each(|journal| journal.ack(offset)),
            FromClient::Freeze => self.freeze(),
            FromClient::Thaw => self.thaw(),
            FromClient::Signal { process, signal } => self.signal(process, signal),
            FromClient::End => self.end(false),
            FromClient::Ping => self.say(&FromShim::Pong),
            FromClient::Egress(policy) => {
                self.sandbox.iter().for_each(|sandbox| sandbox.doors().set(policy.as_ref()));
            }
            FromClient::Allow { process, allowance } => {
                let sandbox = self.sandbox.as_mut();
                // Without a socket its agent has no way to a model, and says so.
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
            self.say(&FromShim::Refused { why: format!("the journal does not hold offset {offset}") });
            self.lose_client();
        }
    }
}

//! What agents and sessions do not get, whatever they ask for: the operator's word is the last one.

use crate::{
    Error, Result, bounds,
    rooms::{Rooms, Settings},
};
use ash_model::{Bounds, Needs};
use ash_sandbox::{Hello, UserNamespaces, Wall};

impl Rooms {
    /// Whether an agent may have what it needs, with the limits that it and its session ask for.
    pub fn permits(&self, needs: &Needs, session: Option<Bounds>, agent: Option<Bounds>) -> Result<()> {
        if needs.user_namespaces && !self.settings.user_namespaces {
            return Err(Error::UserNamespaces);
        }
        let bounds = bounds::merged(self, session, agent);
        match without_limit(&bounds).filter(|_| self.settings.required.has(Wall::Limits)) {
            Some(name) => Err(Error::Unlimited(name)),
            None => Ok(()),
        }
    }
}

impl Settings {
    /// Whether a sandbox that outlived its server is one that this server would have made.
    pub(crate) fn is_strong(&self, hello: &Hello) -> bool {
        let refused = hello.user_namespaces == UserNamespaces::Refused;
        hello.required.covers(&self.required) && (self.user_namespaces || refused)
    }
}

/// Which of those that the kernel holds there is none for.
fn without_limit(bounds: &Bounds) -> Option<&'static str> {
    let held = [("memoryMb", bounds.memory_mb), ("maxProcesses", bounds.max_processes)];
    held.into_iter().find(|(_, number)| number.is_none()).map(|(name, _)| name)
}

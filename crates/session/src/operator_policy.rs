//! What agents and sessions do not get, whatever they ask for: the operator's word is the last one.

use crate::{
    Error, Result, resource_limits,
    services::{ServiceSettings, Services},
};
use ash_model::{ResourceLimits, SandboxRequirements};
use ash_sandbox::{ShimHello, UserNamespacePolicy, WallKind};

impl Services {
    /// Whether an agent may have what it needs, with the limits that it and its session ask for.
    pub fn permits(
        &self,
        needs: &SandboxRequirements,
        session: Option<ResourceLimits>,
        agent: Option<ResourceLimits>,
    ) -> Result<()> {
        if needs.user_namespaces && !self.settings.user_namespaces {
            return Err(Error::UserNamespaces);
        }
        let bounds = resource_limits::merged(self, session, agent);
        match without_limit(&bounds).filter(|_| self.settings.required.has(WallKind::Limits)) {
            Some(name) => Err(Error::Unlimited(name)),
            None => Ok(()),
        }
    }
}

impl ServiceSettings {
    /// Whether a sandbox that outlived its server is one that this server would have made.
    pub(crate) fn is_strong(&self, hello: &ShimHello) -> bool {
        let refused = hello.user_namespaces == UserNamespacePolicy::Refused;
        hello.required.covers(&self.required) && (self.user_namespaces || refused)
    }
}

/// Which of those that the kernel holds there is none for.
fn without_limit(bounds: &ResourceLimits) -> Option<&'static str> {
    let held = [("memoryMb", bounds.memory_mb), ("maxProcesses", bounds.max_processes)];
    held.into_iter().find(|(_, number)| number.is_none()).map(|(name, _)| name)
}

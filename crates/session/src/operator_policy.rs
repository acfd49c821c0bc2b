//! What agents and sessions may not get, whatever they ask for: the operator's settings take precedence.

use crate::{Error, Result, settings::ServiceSettings};
use ash_model::{BadResourceLimits, ResourceLimits, SandboxRequirements};
use ash_sandbox::{RequiredWalls, ShimHello, UserNamespacePolicy, WallKind};

/// The settings that bound what others may ask for.
#[derive(Debug, Clone)]
pub struct OperatorPolicy {
    limits: ResourceLimits,
    max_limits: ResourceLimits,
    user_namespaces: bool,
    required: RequiredWalls,
}

/// Who asks for limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitsRequester {
    Operator,
    Tenant,
}

impl OperatorPolicy {
    pub fn new(settings: &ServiceSettings) -> OperatorPolicy {
        OperatorPolicy {
            limits: settings.limits,
            max_limits: settings.max_limits,
            user_namespaces: settings.user_namespaces,
            required: settings.required.clone(),
        }
    }

    /// Whether an agent may have what it needs, with the limits that it and its session ask for.
    pub fn permits(
        &self,
        needs: &SandboxRequirements,
        session: Option<ResourceLimits>,
        agent: Option<ResourceLimits>,
    ) -> Result<()> {
        if needs.user_namespaces && !self.user_namespaces {
            return Err(Error::UserNamespaces);
        }
        let limits = self.limits_in_force(session, agent);
        match without_limit(&limits).filter(|_| self.required.has(WallKind::Limits)) {
            Some(name) => Err(Error::Unlimited(name)),
            None => Ok(()),
        }
    }

    /// Whether `asked` is within the most that this requester may ask for. For a tenant that is the default limits,
    /// unless the operator sets another maximum.
    pub fn check_max_limits(
        &self,
        requester: LimitsRequester,
        asked: ResourceLimits,
    ) -> std::result::Result<(), BadResourceLimits> {
        asked.check_within(match requester {
            LimitsRequester::Operator => self.max_limits,
            LimitsRequester::Tenant => self.max_limits.with_fallback(self.limits),
        })
    }

    /// Precedence: session, then agent, then server; never above the server's maximum.
    pub(crate) fn limits_in_force(
        &self,
        session: Option<ResourceLimits>,
        agent: Option<ResourceLimits>,
    ) -> ResourceLimits {
        let asked = session.unwrap_or_default().with_fallback(agent.unwrap_or_default());
        asked.with_fallback(self.limits).capped_by(self.max_limits)
    }
}

impl ServiceSettings {
    /// Whether a sandbox that outlived its server is as strong as this server requires of new ones.
    pub(crate) fn is_strong(&self, hello: &ShimHello) -> bool {
        let refused = hello.user_namespaces == UserNamespacePolicy::Refused;
        hello.required.covers(&self.required) && (self.user_namespaces || refused)
    }
}

/// The first of the limits that the kernel enforces that is missing.
fn without_limit(limits: &ResourceLimits) -> Option<&'static str> {
    let held = [("memoryMb", limits.memory_mb), ("maxProcesses", limits.max_processes)];
    held.into_iter().find(|(_, number)| number.is_none()).map(|(name, _)| name)
}

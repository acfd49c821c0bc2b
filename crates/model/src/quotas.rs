//! Quotas: how much one tenant or session may store on the server. The operator sets them, and no caller can raise them.

/// The quotas, by their names in `ASH_QUOTAS` and in answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaKind {
    /// Waiting messages of one session.
    SessionMessages,
    /// KiB of waiting messages of one session.
    SessionQueuedKb,
    /// Waiting messages of all sessions of a tenant.
    TenantMessages,
    /// KiB of waiting messages of all sessions of a tenant.
    TenantQueuedKb,
    /// API keys of a tenant.
    Keys,
    /// Agents of a tenant.
    Agents,
    /// Agent names of a tenant, including deleted agents.
    KeptAgents,
    /// Versions of one agent.
    AgentVersions,
    /// Prewarmed sandboxes of one agent.
    Prewarmed,
    /// Prewarmed sandboxes of all tenants together.
    PrewarmedTotal,
    /// Bytes of one label.
    LabelBytes,
    /// KiB of one configuration.
    ConfigKb,
    /// KiB of the metadata of one session.
    MetadataKb,
    /// Stored credentials of a tenant.
    Credentials,
}

impl QuotaKind {
    /// All quotas with their defaults.
    const ALL: [(QuotaKind, &'static str, u64); Quotas::COUNT] = [
        (QuotaKind::SessionMessages, "sessionMessages", 1000),
        (QuotaKind::SessionQueuedKb, "sessionQueuedKb", 65_536),
        (QuotaKind::TenantMessages, "tenantMessages", 20_000),
        (QuotaKind::TenantQueuedKb, "tenantQueuedKb", 524_288),
        (QuotaKind::Keys, "keys", 1000),
        (QuotaKind::Agents, "agents", 1000),
        (QuotaKind::KeptAgents, "keptAgents", 10_000),
        (QuotaKind::AgentVersions, "agentVersions", 10_000),
        (QuotaKind::Prewarmed, "prewarmed", 16),
        (QuotaKind::PrewarmedTotal, "prewarmedTotal", 64),
        (QuotaKind::LabelBytes, "labelBytes", 1024),
        (QuotaKind::ConfigKb, "configKb", 4096),
        (QuotaKind::MetadataKb, "metadataKb", 64),
        (QuotaKind::Credentials, "credentials", 1000),
    ];

    /// The name in `ASH_QUOTAS` and in answers.
    pub fn as_str(self) -> &'static str {
        QuotaKind::ALL[self as usize].1
    }
}

/// The value of each quota; 0: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas([u64; Quotas::COUNT]);

/// A larger value is a mistake, and could overflow when counted in bytes.
const MAX_QUOTA: u64 = 1 << 40;

/// Why a list of quotas is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadQuotas {
    /// There is no quota of this name.
    #[error("there is no quota {0:?}; there are: {names}", names = QuotaKind::ALL.map(|(_, name, _)| name).join(", "))]
    Unknown(String),
    /// The number is below the minimum that works.
    #[error("{name} must be 0 (no limit) or {least} to {MAX_QUOTA}")]
    Range {
        /// The quota.
        name: &'static str,
        /// The minimum.
        least: u64,
    },
    /// This part is not a name with a number.
    #[error("{0:?} is not NAME=NUMBER, as keys=1000; 0 is no limit, and {MAX_QUOTA} the most")]
    NotANumber(String),
}

/// A request exceeds a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "Quota {name} reached: {used} of {limit} are used, and this needs {wanted} more. {remedy}, or have the operator raise {name} in ASH_QUOTAS",
    name = .quota.as_str(), remedy = .quota.remedy()
)]
pub struct QuotaReached {
    /// The quota.
    pub quota: QuotaKind,
    /// Its limit.
    pub limit: u64,
    /// The amount in use.
    pub used: u64,
    /// The additional amount of the request.
    pub wanted: u64,
}

impl QuotaKind {
    /// With less than this the server would refuse its own operations.
    fn least(self) -> u64 {
        match self {
            // A key without a label gets a default label.
            QuotaKind::LabelBytes => 16,
            QuotaKind::SessionMessages
            | QuotaKind::SessionQueuedKb
            | QuotaKind::TenantMessages
            | QuotaKind::TenantQueuedKb
            | QuotaKind::Keys
            | QuotaKind::Agents
            | QuotaKind::KeptAgents
            | QuotaKind::AgentVersions
            | QuotaKind::Prewarmed
            | QuotaKind::PrewarmedTotal
            | QuotaKind::ConfigKb
            | QuotaKind::MetadataKb
            | QuotaKind::Credentials => 1,
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            QuotaKind::SessionMessages | QuotaKind::SessionQueuedKb => {
                "Wait until messages of the session are answered, or withdraw some"
            }
            QuotaKind::TenantMessages | QuotaKind::TenantQueuedKb => {
                "Wait until messages of the tenant's sessions are answered, or withdraw some"
            }
            QuotaKind::Keys => "Delete a key",
            QuotaKind::Credentials => "Delete a credential",
            QuotaKind::Agents => "Delete an agent",
            QuotaKind::KeptAgents => "Deploy it under the name of an agent that was deleted",
            QuotaKind::AgentVersions => "Deploy it under another name",
            QuotaKind::Prewarmed | QuotaKind::PrewarmedTotal => {
                "Ask for fewer with sandbox.prewarm in ash.toml"
            }
            QuotaKind::LabelBytes | QuotaKind::ConfigKb | QuotaKind::MetadataKb => "Send less",
        }
    }
}

impl Default for Quotas {
    fn default() -> Quotas {
        Quotas(QuotaKind::ALL.map(|(_, _, usual)| usual))
    }
}

impl Quotas {
    const COUNT: usize = 14;

    /// `None`: no limit.
    pub fn get(&self, quota: QuotaKind) -> Option<u64> {
        Some(self.0[quota as usize]).filter(|limit| *limit > 0)
    }

    /// Whether `wanted` more fits on top of `used`.
    pub fn admit(&self, quota: QuotaKind, used: u64, wanted: u64) -> Result<(), QuotaReached> {
        match self.get(quota) {
            Some(limit) if used.saturating_add(wanted) > limit => {
                Err(QuotaReached { quota, limit, used, wanted })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The same for bytes, if the quota is in KiB.
    pub fn admit_bytes(&self, quota: QuotaKind, used: u64, wanted: u64) -> Result<(), QuotaReached> {
        match self.get(quota) {
            Some(limit) if used.saturating_add(wanted) > limit << 10 => {
                Err(QuotaReached { quota, limit, used: used.div_ceil(1024), wanted: wanted.div_ceil(1024) })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Parses `keys=50,agents=20`; quotas that it does not name keep their defaults.
    pub fn parse(text: &str) -> Result<Quotas, BadQuotas> {
        let shortened = |text: &str| text.chars().take(60).collect::<String>();
        let mut quotas = Quotas::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = || BadQuotas::NotANumber(shortened(part));
            let (name, number) = part.split_once('=').ok_or_else(wrong)?;
            let known = QuotaKind::ALL.iter().find(|(_, known, _)| *known == name.trim());
            let &(quota, name, _) = known.ok_or_else(|| BadQuotas::Unknown(shortened(name)))?;
            let number = number.trim().parse().ok().filter(|number| *number <= MAX_QUOTA);
            let (number, least) = (number.ok_or_else(wrong)?, quota.least());
            if number != 0 && number < least {
                return Err(BadQuotas::Range { name, least });
            }
            quotas.0[quota as usize] = number;
        }
        Ok(quotas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_quota_is_where_its_number_says() {
        for (place, (quota, name, _)) in QuotaKind::ALL.into_iter().enumerate() {
            assert_eq!((quota as usize, quota.as_str()), (place, name));
        }
    }

    #[test]
    fn quotas_that_the_operator_does_not_set_keep_their_defaults() {
        let quotas = Quotas::parse("keys=2, agents=0").expect("quotas");
        assert_eq!(quotas.get(QuotaKind::Keys), Some(2));
        assert_eq!(quotas.get(QuotaKind::Agents), None);
        assert_eq!(quotas.get(QuotaKind::ConfigKb), Quotas::default().get(QuotaKind::ConfigKb));
        assert!(
            quotas.admit(QuotaKind::Keys, 1, 1).is_ok()
                && quotas.admit(QuotaKind::Agents, 9, u64::MAX).is_ok()
        );
        let reached = quotas.admit(QuotaKind::Keys, 2, 1).expect_err("full");
        assert_eq!((reached.quota.as_str(), reached.limit, reached.used), ("keys", 2, 2));
    }

    /// Without default limits a tenant could fill the server.
    #[test]
    fn every_quota_has_a_limit_if_the_operator_sets_nothing() {
        let usual = QuotaKind::ALL.map(|(quota, name, _)| (name, Quotas::default().get(quota)));
        let expected = [
            ("sessionMessages", 1000),
            ("sessionQueuedKb", 64 << 10),
            ("tenantMessages", 20_000),
            ("tenantQueuedKb", 512 << 10),
            ("keys", 1000),
            ("agents", 1000),
            ("keptAgents", 10_000),
            ("agentVersions", 10_000),
            ("prewarmed", 16),
            ("prewarmedTotal", 64),
            ("labelBytes", 1024),
            ("configKb", 4096),
            ("metadataKb", 64),
            ("credentials", 1000),
        ];
        assert_eq!(usual, expected.map(|(name, limit)| (name, Some(limit))));
    }

    #[test]
    fn errors_in_quotas_are_named() {
        let said = |text: &str| Quotas::parse(text).expect_err(text).to_string();
        assert!(said("key=2").contains("there are: sessionMessages, sessionQueuedKb"));
        for wrong in ["keys", "keys=-1", "keys=a", "keys=1099511627777"] {
            assert!(said(wrong).contains("NAME=NUMBER"), "{wrong}");
        }
    }
}

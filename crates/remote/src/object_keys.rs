//! The keys of objects, in one place because they are part of the stored format. Ids and names contain no slash: that
//! is checked where they are parsed.

use ash_model::{AgentName, Epoch, EventSeq, SessionId, TenantId};

pub(crate) const TENANTS: &str = "tenants";

pub(crate) fn packs(tenant: &TenantId) -> String {
    format!("{TENANTS}/{tenant}/packs")
}

pub(crate) fn pack(tenant: &TenantId, pack: &str) -> String {
    format!("{}/{pack}", packs(tenant))
}

pub(crate) fn agents(tenant: &TenantId) -> String {
    format!("{TENANTS}/{tenant}/agents")
}

pub(crate) fn agent(tenant: &TenantId, name: &AgentName) -> String {
    format!("{}/{name}", agents(tenant))
}

/// Of the objects of one version, the one with the most changes counts. The highest version is the agent as it is now.
pub(crate) fn version(tenant: &TenantId, name: &AgentName, version: u32, changes: u64) -> String {
    format!("{}/{version:08}-{changes:08}.json", agent(tenant, name))
}

pub(crate) fn sessions(tenant: &TenantId) -> String {
    format!("{TENANTS}/{tenant}/sessions")
}

pub(crate) fn session(tenant: &TenantId, id: &SessionId) -> String {
    format!("{}/{id}", sessions(tenant))
}

/// The key that sorts last is the newest manifest.
pub(crate) fn manifest(tenant: &TenantId, id: &SessionId, epoch: Epoch, seq: EventSeq) -> String {
    format!("{}/{:010}-{seq:016}.json", session(tenant, id), epoch.0)
}

/// The numbers in the key of a manifest or a version.
pub(crate) fn numbers(key: &str) -> Option<(u64, u64)> {
    let name = key.rsplit('/').next()?.strip_suffix(".json")?;
    let (first, second) = name.split_once('-')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_their_numbers_do_and_say_them_again() {
        let (tenant, id) = (TenantId::main(), SessionId::parse("s").expect("an id"));
        let key = |epoch, seq| manifest(&tenant, &id, Epoch(epoch), seq);
        let keys = [key(1, 9), key(1, 10), key(2, 3), key(10, 1)];
        assert!(keys.is_sorted(), "{keys:?}");
        assert_eq!(keys[0], "tenants/default/sessions/s/0000000001-0000000000000009.json");
        assert_eq!(keys.map(|key| numbers(&key)), [Some((1, 9)), Some((1, 10)), Some((2, 3)), Some((10, 1))]);
        let agent = AgentName::parse("a").expect("a name");
        assert_eq!(numbers(&version(&tenant, &agent, 2, 5)), Some((2, 5)));
        for other in ["", "x/y.json", "a-b.json", "1-2"] {
            assert_eq!(numbers(other), None, "{other}");
        }
    }
}

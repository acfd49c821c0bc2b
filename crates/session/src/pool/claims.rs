//! Claims that refused requests leave: a slot that is free, or becomes free, is kept for the tenant's next request.

use crate::slots::SandboxPermit;
use ash_model::TenantId;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

/// One claim at most for each tenant.
#[derive(Default)]
pub(crate) struct SlotClaims(Mutex<SlotClaimTable>);

#[derive(Default)]
struct SlotClaimTable {
    next: u64,
    by_tenant: HashMap<TenantId, SlotClaim>,
}

struct SlotClaim {
    number: u64,
    /// `None`: the claim waits in the queue.
    permit: Option<SandboxPermit>,
}

impl SlotClaims {
    fn table(&self) -> MutexGuard<'_, SlotClaimTable> {
        self.0.lock().expect("no thread panics while holding it")
    }

    /// The number of a new claim. None: the tenant has one.
    pub(crate) fn begin(&self, tenant: &TenantId) -> Option<u64> {
        let mut table = self.table();
        if table.by_tenant.contains_key(tenant) {
            return None;
        }
        table.next += 1;
        let number = table.next;
        table.by_tenant.insert(tenant.clone(), SlotClaim { number, permit: None });
        Some(number)
    }

    /// Keeps a slot for the tenant, unless the claim is over.
    pub(crate) fn hold(&self, tenant: &TenantId, number: u64, permit: SandboxPermit) {
        let mut table = self.table();
        let claim = table.by_tenant.get_mut(tenant).filter(|claim| claim.number == number);
        let surplus = match claim {
            Some(claim) => claim.permit.replace(permit),
            None => Some(permit),
        };
        // A permit that is dropped notifies the queue, which may ask for claims.
        drop(table);
        drop(surplus);
    }

    /// The slot that is kept for the tenant. The claim is over then.
    pub(crate) fn take(&self, tenant: &TenantId) -> Option<SandboxPermit> {
        let mut table = self.table();
        let is_kept = table.by_tenant.get(tenant).is_some_and(|claim| claim.permit.is_some());
        if is_kept { table.by_tenant.remove(tenant)?.permit } else { None }
    }

    /// The tenant got a slot, and needs no claim.
    pub(crate) fn cancel(&self, tenant: &TenantId) {
        let claim = self.table().by_tenant.remove(tenant);
        drop(claim);
    }

    /// The client did not come back in time.
    pub(crate) fn end(&self, tenant: &TenantId, number: u64) {
        let mut table = self.table();
        let is_it = table.by_tenant.get(tenant).is_some_and(|claim| claim.number == number);
        let claim = if is_it { table.by_tenant.remove(tenant) } else { None };
        drop(table);
        drop(claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::SandboxSlots;

    #[test]
    fn a_slot_is_kept_for_the_tenants_next_request_and_given_back_without_one() {
        let (claims, slots, tenant) = (SlotClaims::default(), SandboxSlots::new(1), TenantId::main());
        let permit = || slots.acquire_unconditionally(&tenant);
        let first = claims.begin(&tenant).expect("the first claim");
        assert_eq!(claims.begin(&tenant), None, "one for each tenant");
        assert!(claims.take(&tenant).is_none(), "it waits in the queue");
        claims.hold(&tenant, first, permit());
        assert_eq!(slots.held(&tenant), 1);
        assert!(claims.take(&tenant).is_some());
        assert!(claims.take(&tenant).is_none(), "it is used once");
        let second = claims.begin(&tenant).expect("the first is over");
        claims.end(&tenant, first);
        claims.hold(&tenant, second, permit());
        assert_eq!(slots.held(&tenant), 1, "an earlier claim's end does not end it");
        claims.end(&tenant, second);
        assert_eq!(slots.held(&tenant), 0, "the client did not come back");
        let third = claims.begin(&tenant).expect("the second is over");
        claims.cancel(&tenant);
        claims.hold(&tenant, third, permit());
        assert_eq!(slots.held(&tenant), 0, "the tenant got a slot in another way");
    }
}

//! Whose rows a caller may see.

use ash_model::{OwnerId, TenantId};

/// Whose sessions and workspaces a caller may see: all of a tenant's, or those of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessScope {
    /// The tenant of the caller's key.
    pub tenant: TenantId,
    /// The owner of the caller's key. `None`: the key sees the whole tenant.
    pub owner: Option<OwnerId>,
}

impl AccessScope {
    /// The whole tenant.
    pub fn all(tenant: &TenantId) -> AccessScope {
        AccessScope { tenant: tenant.clone(), owner: None }
    }
}

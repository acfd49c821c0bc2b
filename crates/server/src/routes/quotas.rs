//! Size quotas of a tenant, refused with 413. `ash_session` checks quotas of counts, refused with 429.

use crate::{
    openapi::ErrorDetails,
    problem::{ApiProblem, ApiResult},
};
use ash_model::{FailureKind, QuotaKind, Quotas};

/// Whether a value from a caller is within its quota, in bytes or KiB.
fn fits(quotas: &Quotas, quota: QuotaKind, (what, bytes): (&str, usize)) -> ApiResult<()> {
    let bytes = bytes as u64;
    let admitted = match quota {
        QuotaKind::LabelBytes => quotas.admit(quota, 0, bytes),
        _ => quotas.admit_bytes(quota, 0, bytes),
    };
    let Err(reached) = admitted else { return Ok(()) };
    let (name, limit, unit) =
        (quota.as_str(), reached.limit, if quota == QuotaKind::LabelBytes { "bytes" } else { "KiB" });
    let error = format!(
        "{what} takes {} {unit}, and may take {limit}: send less, or have the operator raise {name} in ASH_QUOTAS",
        reached.wanted
    );
    let problem = ApiProblem::new(FailureKind::TooLarge, "payload_too_large", error);
    Err(problem.with(ErrorDetails::quota(name, limit, reached.wanted)))
}

pub(super) fn label(quotas: &Quotas, label: &str) -> ApiResult<()> {
    fits(quotas, QuotaKind::LabelBytes, ("label", label.len()))
}

pub(super) fn config(quotas: &Quotas, json: &str) -> ApiResult<()> {
    config_of(quotas, json.len())
}

pub(super) fn config_of(quotas: &Quotas, bytes: usize) -> ApiResult<()> {
    fits(quotas, QuotaKind::ConfigKb, ("The configuration", bytes))
}

pub(super) fn metadata<'a>(
    quotas: &Quotas,
    texts: impl Iterator<Item = (&'a String, &'a String)>,
) -> ApiResult<()> {
    fits(
        quotas,
        QuotaKind::MetadataKb,
        ("metadata", texts.map(|(name, value)| name.len() + value.len()).sum()),
    )
}

//! Reading and writing single columns.

use crate::{Error, Result};
use ash_model::OwnerId;
use sqlx::{Row, sqlite::SqliteRow};

pub(super) fn unsigned<I: sqlx::ColumnIndex<SqliteRow>>(row: &SqliteRow, column: I) -> Result<u64> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| Error::Damaged { what: "number", why: format!("{number} is negative") })
}

pub(super) fn parsed<T>(
    row: &SqliteRow,
    column: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T> {
    let text: &str = row.try_get(column)?;
    parse(text).ok_or_else(|| Error::Damaged { what: column, why: format!("{text:?}") })
}

pub(super) fn optional<T>(
    row: &SqliteRow,
    column: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>> {
    let text: Option<&str> = row.try_get(column)?;
    text.map(|text| parse(text).ok_or_else(|| Error::Damaged { what: column, why: format!("{text:?}") }))
        .transpose()
}

pub(super) fn owner(row: &SqliteRow) -> Result<Option<OwnerId>> {
    optional(row, "owner", |text| OwnerId::parse(text).ok())
}

pub(super) fn encoded(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers")
}

/// SQLite's integers are signed. Only damaged values come near the limit.
pub(super) fn number(n: u64) -> Result<i64> {
    i64::try_from(n).map_err(|_| Error::Damaged { what: "number", why: format!("{n} is too large") })
}

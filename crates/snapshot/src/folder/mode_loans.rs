//! Permissions that the server, as an ordinary user, lends itself on entries that an agent has closed. Several
//! threads may work in one tree at the same time: all of them see the mode that the owner set, and the last one
//! restores it.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, Stat};
use rustix::io::Result;

use super::FileAttributes;

type InodeKey = (u64, u64);

struct ModeLoan {
    /// The mode that the owner set, and the mode meanwhile.
    was: u32,
    is: u32,
    holders: u64,
}

static LOANS: LazyLock<Mutex<HashMap<InodeKey, ModeLoan>>> = LazyLock::new(Mutex::default);
/// `OUT` counts the current loans, `EVER` all loans so far. While there are no loans and there were no new ones,
/// readers need not consult the table. A loan counts before its mode changes, and until the mode is restored.
static OUT: AtomicU64 = AtomicU64::new(0);
static EVER: AtomicU64 = AtomicU64::new(0);

/// The duty to restore a mode. If it is dropped instead, the mode stays: the entry is gone, or about to be removed.
#[derive(Debug)]
pub(super) struct ModeLoanGuard(InodeKey);

impl Drop for ModeLoanGuard {
    fn drop(&mut self) {
        if returned(&mut loans(), self.0).is_some() {
            OUT.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn loans() -> MutexGuard<'static, HashMap<InodeKey, ModeLoan>> {
    LOANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends one hold. Returns the loan if this was the last one.
fn returned(loans: &mut HashMap<InodeKey, ModeLoan>, id: InodeKey) -> Option<ModeLoan> {
    let loan = loans.get_mut(&id)?;
    loan.holders -= 1;
    if loan.holders > 0 {
        return None;
    }
    loans.remove(&id)
}

/// The attributes of an entry, with the mode that its owner set.
pub(super) fn look(stat: impl Fn() -> Result<Stat>) -> Result<FileAttributes> {
    let ever = EVER.load(Ordering::SeqCst);
    let none = OUT.load(Ordering::SeqCst) == 0;
    let is = FileAttributes::as_found(&stat()?);
    if none && ever == EVER.load(Ordering::SeqCst) {
        return Ok(is);
    }
    // While this thread holds the lock, no other thread can lend or give back.
    let loans = loans();
    let is = FileAttributes::as_found(&stat()?);
    let raw_mode =
        loans.get(&is.id).filter(|loan| loan.is == is.raw_mode).map_or(is.raw_mode, |loan| loan.was);
    Ok(FileAttributes { raw_mode, ..is })
}

/// Lends the owner's bits in `need`; `None` if no loan is needed. Root needs no permission bits, and an entry of another
/// user cannot be changed.
pub(super) fn lend(handle: BorrowedFd<'_>, is: &FileAttributes, need: u32) -> Result<Option<ModeLoanGuard>> {
    if is.raw_mode & need == need {
        return Ok(None);
    }
    let we = rustix::process::geteuid();
    if we.is_root() || we.as_raw() != is.uid {
        return Ok(None);
    }
    let mut loans = loans();
    let found = FileAttributes::as_found(&rustix::fs::fstat(handle)?).raw_mode;
    let loan = loans.entry(is.id).or_insert_with(|| {
        OUT.fetch_add(1, Ordering::SeqCst);
        ModeLoan { was: found, is: found, holders: 0 }
    });
    EVER.fetch_add(1, Ordering::SeqCst);
    if loan.is != found {
        // The owner has changed the mode meanwhile.
        (loan.was, loan.is) = (found, found);
    }
    loan.holders += 1;
    let (lent, wanted) = (ModeLoanGuard(is.id), loan.is | need);
    if wanted != loan.is {
        if let Err(error) = change_mode(handle, wanted) {
            drop(loans);
            drop(lent);
            return Err(error);
        }
        loan.is = wanted;
    }
    Ok(Some(lent))
}

/// Restores the mode, unless other threads still need the loan or the owner has changed the mode.
pub(super) fn give_back(handle: BorrowedFd<'_>, lent: ModeLoanGuard) {
    let mut loans = loans();
    let last = returned(&mut loans, lent.0);
    std::mem::forget(lent);
    let Some(loan) = last else { return };
    let given = match rustix::fs::fstat(handle) {
        Ok(found) if FileAttributes::as_found(&found).raw_mode == loan.is => change_mode(handle, loan.was),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    OUT.fetch_sub(1, Ordering::SeqCst);
    if let Err(error) = given {
        tracing::warn!(%error, mode = loan.was, "a permission lent for reading could not be given back");
    }
}

/// The magic link in /proc leads to this very handle, even after a rename; fchmod refuses O_PATH handles.
fn change_mode(handle: BorrowedFd<'_>, mode: u32) -> Result<()> {
    rustix::fs::chmod(in_proc(handle), Mode::from_raw_mode(mode))
}

pub(super) fn in_proc(handle: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

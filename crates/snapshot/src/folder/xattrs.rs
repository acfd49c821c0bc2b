//! Extended attributes: the user namespace belongs to the agent, all others to this machine.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::object::Xattrs;

/// Attributes beyond this size have no known use, and are not kept.
const MAX_XATTR_BYTES: usize = 64 << 10;

/// The attributes; none where the file system does not support them.
pub(crate) fn xattrs(handle: BorrowedFd<'_>) -> Xattrs {
    let mut names = vec![0; 1024];
    let length = match rustix::fs::flistxattr(handle, &mut names[..]) {
        Ok(0) => return Vec::new(),
        Err(Errno::RANGE) => {
            names.resize(MAX_XATTR_BYTES, 0);
            rustix::fs::flistxattr(handle, &mut names[..]).unwrap_or(0)
        }
        Ok(length) => length,
        Err(_) => 0,
    };
    let mut found: Xattrs = names[..length]
        .split(|b| *b == 0)
        .filter(|name| name.starts_with(b"user."))
        .filter_map(|name| {
            let mut value = vec![0; MAX_XATTR_BYTES];
            let length = rustix::fs::fgetxattr(handle, name, &mut value[..]).ok()?;
            value.truncate(length);
            Some((name.to_vec(), value))
        })
        .collect();
    found.sort();
    found
}

/// Sets the attributes. They are lost where the file system does not support them; a comparison then shows the
/// difference.
pub(crate) fn set_xattrs(handle: BorrowedFd<'_>, xattrs: &Xattrs) {
    for (name, value) in xattrs {
        let flags = rustix::fs::XattrFlags::empty();
        if let Err(error) = rustix::fs::fsetxattr(handle, name.as_slice(), value, flags) {
            tracing::warn!(%error, "an attribute could not be restored");
        }
    }
}

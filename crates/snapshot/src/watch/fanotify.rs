//! The kernel interface: requests events, reads them and decodes them. Makes no decisions.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::WatchError;

/// TARGET: the handle of a created, removed or renamed object is part of its event, and a rename is one event with both
/// places. Without FAN_UNLIMITED_QUEUE, because a process that writes faster than we read would fill our memory.
const HOW: libc::c_uint =
    libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_DFID_NAME_TARGET | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;

/// A writable mapping also ends with CLOSE_WRITE: its last reference closes the file.
const WHAT: u64 = libc::FAN_CREATE
    | libc::FAN_DELETE
    | libc::FAN_RENAME
    | libc::FAN_MODIFY
    | libc::FAN_CLOSE_WRITE
    | libc::FAN_ATTRIB
    | libc::FAN_ONDIR;

const METADATA: usize = size_of::<libc::fanotify_event_metadata>();
/// Kind, padding, length; then the file system's id; then the handle.
const RECORD_HEAD: usize = 4;
const HANDLE_AT: usize = RECORD_HEAD + 8;
/// The length of a handle's bytes and its type.
const HANDLE_HEAD: usize = 8;

pub(super) struct FanotifyQueue(OwnedFd);

impl FanotifyQueue {
    pub(super) fn of(mount: BorrowedFd<'_>) -> Result<FanotifyQueue, WatchError> {
        // SAFETY: no pointers; a returned descriptor is new and has no other owner.
        let queue = unsafe {
            let fd = libc::fanotify_init(HOW, (libc::O_RDONLY | libc::O_LARGEFILE) as libc::c_uint);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
        };
        let queue = queue.map_err(|cause| match cause.raw_os_error() {
            Some(libc::EPERM) => WatchError::Rights,
            Some(libc::EINVAL | libc::ENOSYS) => WatchError::Kernel,
            Some(_) | None => WatchError::System { what: "make a queue for changes", source: cause },
        })?;
        let how = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
        let here = CString::from(c".");
        // SAFETY: the path is a string that ends with NUL and outlives the call.
        let marked =
            unsafe { libc::fanotify_mark(queue.as_raw_fd(), how, WHAT, mount.as_raw_fd(), here.as_ptr()) };
        match marked {
            0 => Ok(FanotifyQueue(queue)),
            _ => Err(not_marked(io::Error::last_os_error())),
        }
    }

    /// How many events wait now, or more: the kernel counts at least the metadata's length for each.
    pub(super) fn waiting(&self) -> io::Result<usize> {
        Ok(rustix::io::ioctl_fionread(&self.0)? as usize / METADATA)
    }

    /// Reads whole events into the buffer; `None` when there are none.
    pub(super) fn read<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<FanotifyEvents<'a>>> {
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut *buffer)) {
            Ok(read) => Ok(Some(FanotifyEvents { rest: &buffer[..read] })),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for FanotifyQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn not_marked(cause: io::Error) -> WatchError {
    match cause.raw_os_error() {
        Some(libc::EPERM) => WatchError::Rights,
        Some(libc::EINVAL) => WatchError::Kernel,
        // EXDEV: a btrfs subvolume. ENODEV: no file system id.
        Some(libc::EOPNOTSUPP | libc::ENODEV | libc::EXDEV) => WatchError::Filesystem { source: cause },
        Some(_) | None => WatchError::System { what: "follow the file system", source: cause },
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FanotifyEvent<'a> {
    mask: u64,
    /// The place of the event.
    pub(super) at: Option<FanotifyEntry<'a>>,
    /// The old and the new place of a rename.
    pub(super) from: Option<FanotifyEntry<'a>>,
    pub(super) to: Option<FanotifyEntry<'a>>,
    /// The handle of the changed object.
    pub(super) object: Option<&'a [u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FanotifyEntry<'a> {
    pub(super) dir: &'a [u8],
    /// The name in the directory; `.` is the directory itself.
    pub(super) name: &'a [u8],
}

impl FanotifyEvent<'_> {
    pub(super) fn is_overflow(&self) -> bool {
        self.mask & libc::FAN_Q_OVERFLOW != 0
    }

    pub(super) fn is_of_directory(&self) -> bool {
        self.mask & libc::FAN_ONDIR != 0
    }

    pub(super) fn is_create(&self) -> bool {
        self.mask & libc::FAN_CREATE != 0
    }

    pub(super) fn is_delete(&self) -> bool {
        self.mask & libc::FAN_DELETE != 0
    }

    /// Whether the content of a file may have changed.
    pub(super) fn is_write(&self) -> bool {
        self.mask & (libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE) != 0
    }
}

/// The events of one read. An error means that an event could not be decoded, so its content is lost.
pub(super) struct FanotifyEvents<'a> {
    rest: &'a [u8],
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct GarbledEvent;

impl<'a> Iterator for FanotifyEvents<'a> {
    type Item = Result<FanotifyEvent<'a>, GarbledEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let event = self.cut();
        if event.is_none() {
            self.rest = &[];
        }
        Some(event.ok_or(GarbledEvent))
    }
}

impl<'a> FanotifyEvents<'a> {
    fn cut(&mut self) -> Option<FanotifyEvent<'a>> {
        let length = number(self.rest)? as usize;
        let (event, rest) = self.rest.split_at_checked(length)?;
        let (metadata, mut records) = event.split_at_checked(METADATA)?;
        self.rest = rest;
        if metadata[4] != libc::FANOTIFY_METADATA_VERSION {
            return None;
        }
        let mask = u64::from_ne_bytes(metadata[8..16].try_into().ok()?);
        let mut event = FanotifyEvent { mask, ..FanotifyEvent::default() };
        while !records.is_empty() {
            let length = u16::from_ne_bytes(records.get(2..4)?.try_into().ok()?);
            let (record, rest) = records.split_at_checked(usize::from(length))?;
            event.learn(record)?;
            records = rest;
        }
        Some(event)
    }
}

impl<'a> FanotifyEvent<'a> {
    fn learn(&mut self, record: &'a [u8]) -> Option<()> {
        let kind = *record.first()?;
        match kind {
            libc::FAN_EVENT_INFO_TYPE_FID => self.object = Some(handle(record)?.0),
            libc::FAN_EVENT_INFO_TYPE_DFID_NAME => self.at = Some(entry(record)?),
            libc::FAN_EVENT_INFO_TYPE_DFID => {
                self.at = Some(FanotifyEntry { dir: handle(record)?.0, name: b"." })
            }
            libc::FAN_EVENT_INFO_TYPE_OLD_DFID_NAME => self.from = Some(entry(record)?),
            libc::FAN_EVENT_INFO_TYPE_NEW_DFID_NAME => self.to = Some(entry(record)?),
            _ => {}
        }
        Some(())
    }
}

/// Splits off the handle in the kernel's layout; the rest of the record follows.
fn handle(record: &[u8]) -> Option<(&[u8], &[u8])> {
    let from = record.get(HANDLE_AT..)?;
    let bytes = number(from)? as usize;
    // Without bytes, the kernel could not create a handle.
    if bytes == 0 { None } else { from.split_at_checked(HANDLE_HEAD + bytes) }
}

fn entry(record: &[u8]) -> Option<FanotifyEntry<'_>> {
    let (dir, name) = handle(record)?;
    let name = name.split(|&byte| byte == 0).next().filter(|name| !name.is_empty())?;
    Some(FanotifyEntry { dir, name })
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, handle: &[u8], name: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 8];
        body.extend((handle.len() as u32).to_ne_bytes());
        body.extend(1i32.to_ne_bytes());
        body.extend(handle);
        body.extend(name);
        let length = (RECORD_HEAD + body.len()) as u16;
        [&[kind, 0], &length.to_ne_bytes()[..], &body].concat()
    }

    fn event(mask: u64, records: &[Vec<u8>]) -> Vec<u8> {
        let records = records.concat();
        let length = (METADATA + records.len()) as u32;
        let head = [&length.to_ne_bytes()[..], &[3, 0], &(METADATA as u16).to_ne_bytes()];
        [&head.concat()[..], &mask.to_ne_bytes(), &[0xff; 8], &records].concat()
    }

    fn handle_of(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_ne_bytes()[..], &1i32.to_ne_bytes(), bytes].concat()
    }

    #[test]
    fn events_are_taken_apart() {
        let written = event(
            libc::FAN_MODIFY,
            &[
                record(libc::FAN_EVENT_INFO_TYPE_DFID_NAME, b"dir!", b"na\nme\0\0\0"),
                record(libc::FAN_EVENT_INFO_TYPE_FID, b"file", b""),
            ],
        );
        let overflow = event(libc::FAN_Q_OVERFLOW, &[]);
        let bytes = [written, overflow].concat();
        let (dir, file) = (handle_of(b"dir!"), handle_of(b"file"));
        let at = Some(FanotifyEntry { dir: &dir, name: b"na\nme" });
        let expected = [
            Ok(FanotifyEvent { mask: libc::FAN_MODIFY, at, object: Some(&file), ..FanotifyEvent::default() }),
            Ok(FanotifyEvent { mask: libc::FAN_Q_OVERFLOW, ..FanotifyEvent::default() }),
        ];
        assert_eq!(FanotifyEvents { rest: &bytes }.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn invalid_events_are_reported_and_never_looped_over() {
        let whole = event(1, &[record(libc::FAN_EVENT_INFO_TYPE_DFID_NAME, b"dir!", b"name\0")]);
        for cut in 1..whole.len() {
            assert_eq!(FanotifyEvents { rest: &whole[..cut] }.collect::<Vec<_>>(), [Err(GarbledEvent)]);
        }
        let no_handle = event(1, &[record(libc::FAN_EVENT_INFO_TYPE_FID, b"", b"")]);
        assert_eq!(FanotifyEvents { rest: &no_handle }.collect::<Vec<_>>(), [Err(GarbledEvent)]);
        assert_eq!(FanotifyEvents { rest: &[0; 64] }.next(), Some(Err(GarbledEvent)));
    }
}

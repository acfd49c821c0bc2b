//! The environment that every process in a sandbox begins with, so that agents, scripts and commands see the same.

use ash_sandbox::SandboxLayout;
use ash_store::SessionRow;
use std::{collections::BTreeMap, path::Path};

pub(crate) fn base_env(session: &SessionRow, inside: &SandboxLayout) -> BTreeMap<String, String> {
    let text = |path: &Path| path.display().to_string();
    [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("HOME", text(&inside.home)),
        ("USER", "agent".to_owned()),
        ("LOGNAME", "agent".to_owned()),
        ("SHELL", "/bin/sh".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TERM", "dumb".to_owned()),
        ("ASH_SESSION_ID", session.id.to_string()),
        ("ASH_SESSION_DIR", text(&inside.home.join(ash_driver::session_folder(session.native_id)))),
        ("ASH_WORKSPACE_DIR", text(&inside.workspace)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

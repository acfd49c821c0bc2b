//! The stamp beside a live tree, which says whether the tree can be trusted.

use ash_model::{Epoch, EventSeq, Tier};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Written beside the tree, never inside it, where the agent could change it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LiveTreeStamp {
    pub(crate) epoch: Epoch,
    /// Identifies the boot: a reboot loses the page cache, and with it writes that were not on the disk yet.
    pub(crate) boot: String,
    pub(crate) uid: Option<u32>,
    /// The last rewind that the tree reflects: its place in the log, or, in a shared workspace, the number of its
    /// checkpoint. 0: none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) rewound: EventSeq,
    /// The tree is of an older checkpoint than the newest one, which could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fallback: Option<CheckpointFallback>,
    /// The repair of the memory of the only agent in the tree. Read from old stamps, never written any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mended: Option<TranscriptRepair>,
    /// Repairs of agents' memories in the tree, by the ids of their conversations, until a receipt reports them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mends: BTreeMap<Uuid, TranscriptRepair>,
    /// Changes from outside that a checkpoint holds by now, until a receipt reports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) outside: Vec<String>,
}

/// How an agent's memory was repaired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TranscriptRepair {
    pub(crate) tier: Tier,
    pub(crate) repairs: Vec<String>,
    pub(crate) lost: Vec<String>,
}

impl TranscriptRepair {
    /// Combines two repairs in order.
    pub(crate) fn after(mut self, before: Option<&TranscriptRepair>) -> TranscriptRepair {
        let Some(before) = before else { return self };
        let add = |to: &mut Vec<String>, from: &[String]| {
            let new: Vec<String> = from.iter().filter(|text| !to.contains(text)).cloned().collect();
            to.splice(0..0, new);
        };
        add(&mut self.repairs, &before.repairs);
        add(&mut self.lost, &before.lost);
        if before.tier == Tier::Rebuilt {
            self.tier = Tier::Rebuilt;
        }
        self
    }
}

/// A checkpoint that could not be read, and the checkpoint whose files are used instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckpointFallback {
    pub(crate) instead_of: u64,
    pub(crate) used: u64,
    pub(crate) why: String,
}

fn is_none(rewound: &EventSeq) -> bool {
    *rewound == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_written_and_read_as_in_the_first_version() {
        let plain = LiveTreeStamp {
            epoch: Epoch(7),
            boot: "b0".to_owned(),
            uid: None,
            rewound: 0,
            fallback: None,
            mended: None,
            mends: BTreeMap::new(),
            outside: Vec::new(),
        };
        let fallback = Some(CheckpointFallback { instead_of: 5, used: 3, why: "w".to_owned() });
        let mended =
            TranscriptRepair { tier: Tier::Repaired, repairs: vec!["r".to_owned()], lost: Vec::new() };
        let mends = BTreeMap::from([(Uuid::nil(), mended.clone())]);
        let stamps = [
            (LiveTreeStamp { uid: Some(60001), ..plain.clone() }, r#"{"epoch":7,"boot":"b0","uid":60001}"#),
            (plain.clone(), r#"{"epoch":7,"boot":"b0","uid":null}"#),
            (
                LiveTreeStamp { rewound: 42, ..plain.clone() },
                r#"{"epoch":7,"boot":"b0","uid":null,"rewound":42}"#,
            ),
            (
                LiveTreeStamp { fallback, ..plain.clone() },
                r#"{"epoch":7,"boot":"b0","uid":null,"fallback":{"insteadOf":5,"used":3,"why":"w"}}"#,
            ),
            (
                LiveTreeStamp { mended: Some(mended), ..plain.clone() },
                r#"{"epoch":7,"boot":"b0","uid":null,"mended":{"tier":"repaired","repairs":["r"],"lost":[]}}"#,
            ),
            (
                LiveTreeStamp { outside: vec!["a".to_owned()], ..plain.clone() },
                r#"{"epoch":7,"boot":"b0","uid":null,"outside":["a"]}"#,
            ),
            (
                LiveTreeStamp { mends, ..plain },
                r#"{"epoch":7,"boot":"b0","uid":null,"mends":{"00000000-0000-0000-0000-000000000000":{"tier":"repaired","repairs":["r"],"lost":[]}}}"#,
            ),
        ];
        for (stamp, text) in stamps {
            assert_eq!(serde_json::to_string(&stamp).expect("plain"), text);
            assert_eq!(serde_json::from_str::<LiveTreeStamp>(text).expect("read"), stamp);
        }
    }

    #[test]
    fn a_memory_repaired_twice_is_reported_once_from_the_worse_tier() {
        let mending = |tier, repairs: &[&str], lost: &[&str]| TranscriptRepair {
            tier,
            repairs: repairs.iter().map(ToString::to_string).collect(),
            lost: lost.iter().map(ToString::to_string).collect(),
        };
        let before = mending(Tier::Rebuilt, &["a", "b"], &["x"]);
        let after = mending(Tier::Repaired, &["b", "c"], &["x", "y"]).after(Some(&before));
        assert_eq!(after, mending(Tier::Rebuilt, &["a", "b", "c"], &["x", "y"]));
    }
}

//! The settings by which messages become rows, while decisions are repeated and made. The log says
//! which ones hold, so a repetition passes over a change of the job, and a change holds behind the
//! last decision.

use zillion_rows::ByteSize;
use zillion_stream::RowRules;

use super::Feed;
use super::summary::Summary;
use crate::error::Result;
use crate::job::OnlineConfig;
use crate::online::rules::{rules_of, time_rules_of};

impl Feed {
    /// Sets the settings by which messages become rows from now on. A log of an earlier version has
    /// not recorded them, so that those of the job hold.
    pub(super) fn set_rules(&mut self, rules: Option<RowRules>) -> Result<()> {
        self.rules = rules;
        let rules = self.present_rules();
        for input in &mut self.streams {
            input.source.set_max_message_bytes(rules.max_message_bytes as usize)?;
        }
        self.assembler.set_rules(time_rules_of(&rules))
    }

    /// Returns the settings by which messages become rows at the present decision.
    pub(super) fn present_rules(&self) -> RowRules {
        self.rules.unwrap_or_else(|| rules_of(&self.setup.online()))
    }
}

/// Returns the settings with which a source is opened: it must be able to read the largest message
/// that any decision of the log, the state of a checkpoint or the job allows.
pub(super) fn widen(online: &OnlineConfig, rules: &RowRules, summary: &Summary) -> OnlineConfig {
    let largest = summary.largest_message().max(rules.max_message_bytes);
    let largest = largest.max(online.max_message_bytes.0);
    OnlineConfig { max_message_bytes: ByteSize(largest), ..online.clone() }
}

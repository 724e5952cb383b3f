//! The removal of what no kept checkpoint needs: states of the feed, and decisions.

use super::super::Run;
use super::super::output::kept_steps;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::online::{FeedThread, newest_link, retain, retain_renewals, stream_folder};

impl Run {
    /// Removes the states of the feed that no kept checkpoint names, and the decisions before the
    /// oldest kept checkpoint.
    pub(super) fn retain_streams(&mut self, feed: &FeedThread) -> Result<()> {
        let run = self.output.dir.path();
        let mut kept = Vec::new();
        let steps = kept_steps(&self.output.dir, self.output.bucket.as_ref())?;
        for &step in &steps {
            let checkpoint = Checkpoint::open(self.output.dir.checkpoint_path(step)?)?;
            kept.extend(newest_link(run, &checkpoint)?);
        }
        let oldest = kept.iter().map(|link| link.next_decision).min();
        // An open checkpoint is not among the kept ones, but its state is newer than theirs.
        if let Some(oldest) = oldest {
            retain(&self.options.files, &stream_folder(run), &kept)?;
            retain_renewals(&self.options.files, run, &steps)?;
            feed.forget_before(oldest);
        }
        Ok(())
    }
}

//! The publications of a resident run.
//!
//! A run that repeats its log first looks for the version of the first time. If the registry has
//! it, the gate has let it pass then, and nothing is published again. The log alone does not show
//! this: the feed is ahead, and may have decided on later versions before the run had judged this
//! one.

use std::collections::BTreeMap;

use super::super::Run;
use super::judge::{Judged, Validation};
use crate::error::Result;
use crate::observer::{Observer, PublishReport};
use crate::online::{FedVersion, NewestRows, Repetition, Trip, stream_folder};
use crate::online_report::OnlineReport;
use crate::profile::Stage;
use crate::publish::Repeated;

impl Run {
    /// Publishes the present state as the gate says, or finds the version of the first time.
    /// Returns what a rewind leaves out if the gate has found bad batches. A replay (not `is_live`)
    /// publishes what the run has published whose log it repeats.
    pub(super) fn follow_publication(
        &mut self,
        (wanted, judged): (&FedVersion, Judged),
        is_live: bool,
        (validation, report): (&mut Option<Validation>, &mut OnlineReport),
        observer: &mut dyn Observer,
    ) -> Result<Option<Trip>> {
        if is_live && wanted.repetition != Repetition::New {
            let found = self.repeat_publication(wanted, (&mut *validation, &mut *report), observer);
            match found {
                Ok(true) => return Ok(None),
                Ok(false) => {}
                Err(error) if matches!(judged, Judged::Publish) => {
                    observer.report_version(&PublishReport { published: None, seconds: 0.0 });
                    self.report_unpublished(error, observer);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        match judged {
            Judged::Trip(trip) if is_live => Ok(Some(trip)),
            _ => {
                self.publish_judged(&wanted.newest, validation, report, observer)?;
                Ok(None)
            }
        }
    }

    /// Finds the version of the present state, and takes note of it as of one that is published
    /// now. Returns `false` if there is none, so that the state must be judged and published. A
    /// state without a version is passed over if the run has published later ones.
    fn repeat_publication(
        &mut self,
        wanted: &FedVersion,
        (validation, report): (&mut Option<Validation>, &mut OnlineReport),
        observer: &mut dyn Observer,
    ) -> Result<bool> {
        if self.job.has_parity_in_streams() {
            if wanted.newest.is_empty() {
                return Ok(false);
            }
            self.renew_parity_rows(&wanted.newest)?;
        }
        match self.stage(Stage::Publish, |run| run.find_repeated())? {
            Repeated::There(version) => {
                let number = version.version.0;
                self.take_repeated(version, observer);
                report.published = Some(number);
                if let Some(validation) = validation {
                    validation.note_published(self, number);
                }
                Ok(true)
            }
            Repeated::Passed if wanted.repetition == Repetition::Earlier => {
                self.pass_repeated();
                Ok(true)
            }
            Repeated::Passed | Repeated::Missing => Ok(false),
        }
    }

    /// Publishes the present state, which the gate has let pass, and takes note of the version.
    pub(super) fn publish_judged(
        &mut self,
        newest: &NewestRows,
        validation: &mut Option<Validation>,
        report: &mut OnlineReport,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let version = self.publish_online(newest, observer)?;
        report.published = version.or(report.published);
        if let (Some(validation), Some(version)) = (validation, version) {
            validation.note_published(self, version);
        }
        Ok(())
    }

    /// Publishes the present state, with parity rows from the newest messages. Returns the number
    /// of the version, or `None` if none was published.
    fn publish_online(
        &mut self,
        newest: &NewestRows,
        observer: &mut dyn Observer,
    ) -> Result<Option<u64>> {
        let has_parity = self.job.has_parity_in_streams();
        if newest.is_empty() && has_parity {
            return Ok(None);
        }
        self.output.publishing.last = None;
        self.stage(Stage::Publish, |run| {
            if has_parity && let Err(error) = run.renew_parity_rows(newest) {
                observer.report_version(&PublishReport { published: None, seconds: 0.0 });
                run.report_unpublished(error, observer);
                return Ok(());
            }
            run.publish(BTreeMap::new(), false, observer)
        })?;
        Ok(self.output.publishing.last.as_ref().map(|last| last.version.version.0))
    }

    /// Takes the parity rows of further versions from the newest messages.
    fn renew_parity_rows(&mut self, newest: &NewestRows) -> Result<()> {
        let folder = stream_folder(self.output.dir.path());
        let features = &self.job.schema.features;
        let columns: Vec<&str> = features.iter().map(|feature| feature.column.as_str()).collect();
        let file = newest.write(&self.options.files, &folder, &columns)?;
        self.use_parity_rows(&file)
    }
}

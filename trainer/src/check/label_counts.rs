//! The counts of labels in the sample of a check.

use zillion_feature::{Batch, LabelSpec};

use super::report::{Findings, LabelCheck};

/// The counts of a label, or of one class of a label of classes.
pub(super) struct LabelCount {
    /// The name of the task.
    name: String,
    /// The index of the label.
    label: usize,
    /// The index of the class; `None` for a label without classes.
    class: Option<usize>,
    /// The number of rows that have the label.
    rows: u64,
    /// The number of rows whose label is 1, or has the class.
    ones: u64,
}

impl LabelCount {
    /// Creates the counts of labels, with one for each class of a label of classes.
    pub(super) fn of(labels: &[LabelSpec]) -> Vec<Self> {
        let counts = labels.iter().enumerate().flat_map(|(label, spec)| {
            let has_classes = spec.classes.is_some();
            let names = spec.task_names().into_iter().enumerate();
            names.map(move |(class, name)| Self {
                name,
                label,
                class: has_classes.then_some(class),
                rows: 0,
                ones: 0,
            })
        });
        counts.collect()
    }

    /// Adds the first rows of a batch.
    pub(super) fn add(&mut self, batch: &Batch, rows: usize) {
        let column = &batch.labels[self.label];
        for (at, &y) in column.values[..rows].iter().enumerate() {
            if column.mask.as_ref().is_none_or(|mask| mask[at]) {
                self.rows += 1;
                let is_one = self.class.map_or(y > 0.5, |class| y == class as f32);
                self.ones += u64::from(is_one);
            }
        }
    }

    /// Reports a label that no row has, or that has one value alone.
    pub(super) fn judge(&self, findings: &mut Findings) {
        let Self { name, class, rows, ones, .. } = self;
        let label =
            class.and_then(|_| name.split_once('=')).map_or(name.as_str(), |(name, _)| name);
        let about = format!("labels.{label}");
        let is_alone = format!(
            "all {rows} rows of the sample, so nothing can be learned; check the column of the label"
        );
        match (ones, class) {
            // The classes of a label share its rows.
            (_, Some(1..)) if *rows == 0 => {}
            _ if *rows == 0 => findings.stop(
                &about,
                "has no value in any row of the sample; check the column of the label",
            ),
            (0, None) => findings.stop(&about, format!("is 0 in {is_alone}")),
            (0, Some(_)) => findings.note(
                &about,
                format!("`{name}` has no row in the sample of {rows} rows; a class without rows is not learned"),
            ),
            (n, None) if n == rows => findings.stop(&about, format!("is 1 in {is_alone}")),
            (n, Some(_)) if n == rows => {
                findings.stop(&about, format!("has the class `{name}` in {is_alone}"));
            }
            _ => {}
        }
    }

    /// Returns the counts for the report.
    pub(super) fn report(self) -> LabelCheck {
        LabelCheck {
            name: self.name,
            base_rate: (self.rows > 0).then(|| self.ones as f64 / self.rows as f64),
            rows: self.rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use zillion_feature::Schema;

    use super::*;

    #[test]
    fn each_class_has_its_share_of_rows() {
        let job = "[features.user]\nkind = 'id'\n[labels.genre]\nkind = 'class'\nclasses = ['a', 'b', 'c']";
        let schema = Schema::from_job(&job.parse::<toml::Table>().unwrap().into()).unwrap();
        let mut batch = Batch::empty(&schema);
        batch.labels[0].values = vec![0.0, 2.0, 0.0, 0.0, 2.0];
        let mut counts = LabelCount::of(&schema.labels);
        let mut findings = Findings::default();
        for count in &mut counts {
            count.add(&batch, 4);
            count.judge(&mut findings);
        }
        let report: Vec<_> = counts.into_iter().map(LabelCount::report).collect();
        let shares: Vec<_> = report.iter().map(|l| (l.name.as_str(), l.base_rate)).collect();
        assert_eq!(
            shares,
            [("genre=a", Some(0.75)), ("genre=b", Some(0.0)), ("genre=c", Some(0.25))]
        );
    }
}

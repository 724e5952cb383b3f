//! The values of nodes as lines of JSON.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use zillion_feature::Batch;
use zillion_trainer::Fetched;

/// The rows whose values are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    All,
    First(u64),
    These(Vec<u64>),
}

impl Choice {
    /// Returns the rows that the command line chooses, or `otherwise` if it chooses none.
    pub(crate) fn new(rows: &[u64], first: Option<u64>, otherwise: Self) -> Self {
        match (rows, first) {
            ([], None) => otherwise,
            ([], Some(n)) => Self::First(n),
            (rows, _) => Self::These(rows.to_vec()),
        }
    }

    fn has(&self, row: u64) -> bool {
        match self {
            Self::All => true,
            Self::First(n) => row < *n,
            Self::These(rows) => rows.contains(&row),
        }
    }

    /// Returns whether this row or any later row is chosen.
    pub(crate) fn goes_on(&self, row: u64) -> bool {
        match self {
            Self::All => true,
            Self::First(n) => row < *n,
            Self::These(rows) => rows.iter().any(|&chosen| chosen >= row),
        }
    }
}

/// A buffer for lines that are printed together.
pub(crate) struct Lines {
    step: Option<u64>,
    text: String,
}

impl Lines {
    pub(crate) fn new(step: Option<u64>) -> Self {
        Self { step, text: String::new() }
    }

    /// Adds the values of the chosen rows of a node. If the node does not depend on the batch, adds
    /// one line if `constants` is set.
    pub(crate) fn add(
        &mut self,
        fetched: &Fetched<'_>,
        batch: &Batch,
        first_row: u64,
        choice: &Choice,
        constants: bool,
    ) {
        if !fetched.is_by_row() {
            if constants {
                self.line(None, fetched, fetched.values);
            }
            return;
        }
        for (row, at) in (first_row..).zip(0..batch.rows) {
            if choice.has(row)
                && let Some(values) = fetched.of_row(batch, at)
            {
                self.line(Some(row), fetched, values);
            }
        }
    }

    fn line(&mut self, row: Option<u64>, fetched: &Fetched<'_>, values: &[f32]) {
        let text = &mut self.text;
        text.push('{');
        if let Some(step) = self.step {
            let _ = write!(text, "\"step\":{step},");
        }
        if let Some(row) = row {
            let _ = write!(text, "\"row\":{row},");
        }
        // The name of a node may come from the name of a feature, which may contain any character,
        // so it is escaped.
        let name = serde_json::Value::from(fetched.name);
        let _ = write!(text, "\"node\":{name},\"values\":[");
        for (at, value) in values.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            // JSON has no NaN and no infinity, and these are often the values that a user looks
            // for.
            let _ = match value.is_finite() {
                true => write!(text, "{value}"),
                false => write!(text, "\"{value}\""),
            };
        }
        text.push_str("]}\n");
    }

    /// Writes the lines to standard output.
    pub(crate) fn print(&mut self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.text.as_bytes())?;
        self.text.clear();
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_as_the_command_line_says() {
        assert_eq!(Choice::new(&[], None, Choice::All), Choice::All);
        let first = Choice::new(&[], Some(2), Choice::All);
        assert_eq!([0, 1, 2].map(|row| first.has(row)), [true, true, false]);
        assert!(first.goes_on(1) && !first.goes_on(2));
        let these = Choice::new(&[7, 0], None, Choice::All);
        assert_eq!([0, 5, 7].map(|row| these.has(row)), [true, false, true]);
        assert!(these.goes_on(7) && !these.goes_on(8));
    }
}
